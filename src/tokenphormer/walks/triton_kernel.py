"""The walks on a GPU, in Triton: one thread a walk, all steps in one kernel launch.

The random reads of a walk are what costs; everything else (hashes, tests) hides behind them. A program is one
warp wide, so "does any walk here still …" is a vote of that warp, and rejection loops are left as soon as its
walks are done. Under `TRITON_INTERPRET=1` the same code runs on CPU tensors, which is how it is tested without
a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from tokenphormer.hashing import GOLDEN, MIX_A, MIX_B, signed
from tokenphormer.walks.portable import Csr
from tokenphormer.walks.reference import ATTEMPTS, Kind

LAUNCH: dict[Kind, tuple[int, int]] = {
    "uniform": (32, 1),
    "non_backtracking": (32, 1),
    "jump": (32, 1),
    "non_backtracking_jump": (32, 1),
}
"""Walks and warps of one program; measured by `benchmarks/tune_triton.py`."""

MAX_STAGED = 64
"""Walks of fewer steps are staged (see `_begin`); longer ones would not fit the registers."""

_jit: Callable[[Callable[..., Any]], Any] = triton.jit
_kernel: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["base"])
_GOLDEN = tl.constexpr(GOLDEN)
_MIX_A = tl.constexpr(MIX_A)
_MIX_B = tl.constexpr(MIX_B)
_ATTEMPTS = tl.constexpr(ATTEMPTS)


@_jit
def _mix(z: tl.tensor) -> tl.tensor:
    z = (z ^ (z >> 30)) * _MIX_A
    z = (z ^ (z >> 27)) * _MIX_B
    return z ^ (z >> 31)


@_jit
def _draw(key: tl.tensor, count: tl.tensor) -> tl.tensor:
    return _mix(key + count.to(tl.uint64) * _GOLDEN)


@_jit
def _below(r: tl.tensor, n: tl.tensor) -> tl.tensor:
    """floor(r · n / 2⁶⁴) for 0 ≤ n < 2⁶², from 32-bit products (umulhi of the interpreter has no 64-bit form)."""
    n = n.to(tl.uint64)
    r1, r0, n1, n0 = r >> 32, r & 0xFFFFFFFF, n >> 32, n & 0xFFFFFFFF
    p01, p10 = r0 * n1, r1 * n0
    middle = ((r0 * n0) >> 32) + (p01 & 0xFFFFFFFF) + (p10 & 0xFFFFFFFF)
    return (r1 * n1 + (p01 >> 32) + (p10 >> 32) + (middle >> 32)).to(tl.int64)


@_jit
def _below_narrow(r: tl.tensor, n: tl.tensor) -> tl.tensor:
    """floor(r · n / 2⁶⁴) for 0 ≤ n < 2³²: two products."""
    n = n.to(tl.uint64)
    return (((r >> 32) * n + (((r & 0xFFFFFFFF) * n) >> 32)) >> 32).to(tl.int64)


@_jit
def _any(mask: tl.tensor) -> tl.tensor:
    return tl.max(mask.to(tl.int32), axis=0) > 0


@_jit
def _row(indptr: tl.tensor, node: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """Start and size of a node's row; size 0 where masked."""
    start = tl.load(indptr + node, mask=mask, other=0, eviction_policy="evict_last")
    end = tl.load(indptr + node + 1, mask=mask, other=0, eviction_policy="evict_last")
    return start.to(tl.int64), (end - start).to(tl.int64)


@_jit
def _neighbour(indices: tl.tensor, place: tl.tensor, mask: tl.tensor) -> tl.tensor:
    """The neighbour at a place of the rows. A place is seldom read twice, a row's bounds are: these may go first."""
    return tl.load(indices + place, mask=mask, other=-1, eviction_policy="evict_first")


@_jit
def _search(running: tl.tensor, start: tl.tensor, size: tl.tensor, drawn: tl.tensor) -> tl.tensor:
    """Position of the first running sum of the row above `drawn`."""
    low = size * 0
    high = tl.maximum(size - 1, 0)
    while _any(low < high):
        middle = (low + high) >> 1
        open_rows = low < high
        above = tl.load(running + start + middle, mask=open_rows, other=0) > drawn
        high = tl.where(open_rows & above, middle, high)
        low = tl.where(open_rows & (above == 0), middle + 1, low)
    return low


@_jit
def _pick(running: tl.tensor, start: tl.tensor, size: tl.tensor, r: tl.tensor, WEIGHTED: tl.constexpr) -> tl.tensor:
    """Position of a drawn neighbour."""
    if WEIGHTED:
        total = tl.load(running + start + size - 1, mask=size > 0, other=0)
        position = _search(running, start, size, _below(r, total))
    else:
        position = _below_narrow(r, size)
    return position


@_jit
def _pick_other(
    running: tl.tensor,
    start: tl.tensor,
    size: tl.tensor,
    taboo: tl.tensor,
    r: tl.tensor,
    mask: tl.tensor,
    WEIGHTED: tl.constexpr,
) -> tl.tensor:
    """Position of a drawn neighbour other than the one at `taboo`."""
    if WEIGHTED:
        before = tl.load(running + start + taboo - 1, mask=mask & (taboo > 0), other=0)
        gap = tl.load(running + start + taboo, mask=mask, other=0) - before
        total = tl.load(running + start + size - 1, mask=mask, other=0)
        drawn = _below(r, total - gap)
        drawn = tl.where(drawn < before, drawn, drawn + gap)
        position = _search(running, start, tl.where(mask, size, 0), drawn)
    else:
        drawn = _below_narrow(r, size - 1)
        position = tl.where(drawn == taboo, size - 1, drawn)
    return position


@_jit
def _outside(
    indptr: tl.tensor, indices: tl.tensor, node: tl.tensor, first: tl.tensor, second: tl.tensor, mask: tl.tensor
) -> tl.tensor:
    """Whether a neighbour of `node` is neither `first` nor `second`; three entries tell."""
    start, size = _row(indptr, node, mask)
    found = mask & (size < 0)
    for position in tl.static_range(3):
        there = mask & (size > position)
        neighbour = tl.load(indices + start + position, mask=there, other=-1)
        found = found | (there & (neighbour != first) & (neighbour != second))
    return found


@_jit
def _to_avoid(
    indptr: tl.tensor, indices: tl.tensor, node: tl.tensor, previous: tl.tensor, radius: tl.tensor, mask: tl.tensor
) -> tl.tensor:
    """What a jump avoids: the previous node, −1 where only the plain jump is left, −2 where none is.

    Asked only where `node` has at most two neighbours.
    """
    leaves = _outside(indptr, indices, node, node, previous, mask & (previous >= 0))
    start, size = _row(indptr, node, mask)
    leads = mask & (size < 0)
    for position in tl.static_range(2):
        there = mask & (size > position) & (previous >= 0)
        leads = leads | (there & (tl.load(indices + start + position, mask=there, other=-1) == previous))
    through = leads & (leaves == 0) & (radius + size * 0 >= 2)
    leaves = leaves | _outside(indptr, indices, previous, node, previous, through)
    plain = _outside(indptr, indices, node, node, node, mask)
    return tl.where(leaves, previous, tl.where(plain, -1, -2))


@_jit
def _begin(
    nodes: tl.tensor,
    total: tl.tensor,
    num_walks: tl.tensor,
    base: tl.tensor,
    out: tl.tensor,
    length: tl.tensor,
    EVERY: tl.constexpr,
    STAGED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Keys, first nodes, where this program's walks go in the output, and how far apart their steps lie there.

    Staged, a program writes step by step into its own part of the output, so that a warp's walks fill whole memory
    sectors, and `_unstage` turns that part into rows at the end. Single words strewn over the rows cost more than
    the walk: the GPU's cache throws them out before a sector is full.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    mask = first + lane < total
    node = (first + lane) // num_walks
    if not EVERY:
        node = tl.load(nodes + node, mask=mask, other=0)
    walk = ((first + lane) % num_walks).to(tl.uint64)
    key = _mix(_mix(base.to(tl.uint64) ^ node.to(tl.uint64)) ^ walk)
    if STAGED:
        apart = tl.minimum(total - first, BLOCK)
        place = out + first * (length + 1) + lane
    else:
        apart = tl.minimum(total - first, 1)
        place = out + (first + lane) * (length + 1)
    tl.store(place, node.to(tl.int32), mask=mask)
    return key, node.to(tl.int32), place, apart, mask


@_jit
def _unstage(out: tl.tensor, total: tl.tensor, length: tl.tensor, COLUMNS: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Turn this program's part of the output from steps of walks into walks of steps, in place."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    count = tl.minimum(total - first, BLOCK)
    lane = tl.arange(0, BLOCK)[:, None]
    step = tl.arange(0, COLUMNS)[None, :]
    mask = (lane < count) & (step <= length)
    part = out + first * (length + 1)
    tl.debug_barrier()
    tile = tl.load(part + step * count + lane, mask=mask, other=0)
    tl.debug_barrier()
    tl.store(part + lane * (length + 1) + step, tile, mask=mask)


@_kernel
def _uniform(
    indptr: tl.tensor,
    indices: tl.tensor,
    running: tl.tensor,
    nodes: tl.tensor,
    out: tl.tensor,
    total: tl.tensor,
    num_walks: tl.tensor,
    length: tl.tensor,
    base: tl.tensor,
    WEIGHTED: tl.constexpr,
    EVERY: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    key, current, place, apart, mask = _begin(nodes, total, num_walks, base, out, length, EVERY, COLUMNS > 0, BLOCK)
    for step in range(1, length + 1):
        start, size = _row(indptr, current, mask & (current >= 0))
        position = _pick(running, start, size, _draw(key, (step + current * 0).to(tl.int64)), WEIGHTED)
        current = _neighbour(indices, start + position, size > 0)
        tl.store(place + step * apart, current, mask=mask)
    if COLUMNS > 0:
        _unstage(out, total, length, COLUMNS, BLOCK)


@_kernel
def _non_backtracking(
    indptr: tl.tensor,
    indices: tl.tensor,
    running: tl.tensor,
    nodes: tl.tensor,
    out: tl.tensor,
    total: tl.tensor,
    num_walks: tl.tensor,
    length: tl.tensor,
    base: tl.tensor,
    WEIGHTED: tl.constexpr,
    EVERY: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    key, current, place, apart, mask = _begin(nodes, total, num_walks, base, out, length, EVERY, COLUMNS > 0, BLOCK)
    previous = tl.full([BLOCK], -1, tl.int32)
    for step in range(1, length + 1):
        start, size = _row(indptr, current, mask & (current >= 0))
        draws = (2 * step + current * 0).to(tl.int64)
        position = _pick(running, start, size, _draw(key, draws - 1), WEIGHTED)
        following = _neighbour(indices, start + position, size > 0)
        back = (size > 1) & (following == previous)
        if _any(back):
            other = _pick_other(running, start, size, position, _draw(key, draws), back, WEIGHTED)
            following = tl.where(back, _neighbour(indices, start + other, back), following)
        previous = current
        current = following
        tl.store(place + step * apart, current, mask=mask)
    if COLUMNS > 0:
        _unstage(out, total, length, COLUMNS, BLOCK)


@_kernel
def _jump(
    indptr: tl.tensor,
    indices: tl.tensor,
    running: tl.tensor,
    nodes: tl.tensor,
    out: tl.tensor,
    total: tl.tensor,
    num_walks: tl.tensor,
    length: tl.tensor,
    base: tl.tensor,
    radius: tl.tensor,
    BACKTRACKING: tl.constexpr,
    WEIGHTED: tl.constexpr,
    EVERY: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    key, current, place, apart, mask = _begin(nodes, total, num_walks, base, out, length, EVERY, COLUMNS > 0, BLOCK)
    at = current
    previous = tl.full([BLOCK], -1, tl.int32)
    avoid = tl.full([BLOCK], -1, tl.int32)
    draws = tl.zeros([BLOCK], tl.int64)
    left = tl.zeros([BLOCK], tl.int64)
    tries = tl.zeros([BLOCK], tl.int64)
    step = tl.full([BLOCK], 1, tl.int64)
    going = mask
    # One pass moves every walk by one small step of its current attempt, whichever jump that belongs to.
    while _any(going):
        fresh = going & (left == 0)
        at = tl.where(fresh, current, at)
        start, size = _row(indptr, at, going)
        first = fresh & (tries == 0)
        avoid = tl.where(first, -1 if BACKTRACKING else previous, avoid)
        few = first & (size < 3)
        if _any(few):
            avoid = tl.where(few, _to_avoid(indptr, indices, current, avoid, radius, few), avoid)
        over = going & (avoid == -2)
        fresh = fresh & (over == 0)
        draws += fresh.to(tl.int64)
        chosen = 1 + _below_narrow(_draw(key, draws), (radius + left * 0))
        left = tl.where(fresh, chosen, left)
        moving = going & (over == 0) & (size > 0)
        draws += moving.to(tl.int64)
        position = _pick(running, start, tl.where(moving, size, 0), _draw(key, draws), WEIGHTED)
        at = _neighbour(indices, start + position, moving)
        left = tl.where(moving, left - 1, 0)
        ended = going & (over == 0) & (left == 0)
        accepted = ended & moving & (at != current) & (at != avoid)
        tl.store(place + step * apart, tl.where(over, -1, at), mask=accepted | over)
        previous = tl.where(accepted, current, previous)
        current = tl.where(accepted, at, current)
        step += (accepted | over).to(tl.int64)  # a walk that is over writes −1 until its row is full
        tries = tl.where(accepted, 0, tries + (ended & (accepted == 0)).to(tl.int64))
        spent = going & (tries >= _ATTEMPTS * radius)
        tl.store(place + step * apart, tl.full([BLOCK], -2, tl.int32), mask=spent)
        going = going & (spent == 0) & (step <= length)
    if COLUMNS > 0:
        _unstage(out, total, length, COLUMNS, BLOCK)


def sample(
    csr: Csr, kind: Kind, nodes: Tensor | None, num_walks: int, length: int, radius: int, base: int, out: Tensor
) -> None:
    """Fill `out` (len(nodes) · num_walks, length + 1) with walks from `nodes`; None is every node."""
    total = len(out)
    if not total:
        return
    weighted = csr.running is not None
    running = csr.running if csr.running is not None else csr.indices
    starts = csr.indptr if nodes is None else nodes  # not read where the walks start from every node
    arguments = (csr.indptr, csr.indices, running, starts, out, total, num_walks, length, signed(base))
    block, warps = LAUNCH[kind]
    columns = triton.next_power_of_2(length + 1) if length < MAX_STAGED else 0
    shape = (weighted, nodes is None, columns, block)
    grid = (triton.cdiv(total, block),)
    if kind == "uniform":
        _uniform[grid](*arguments, *shape, num_warps=warps)
    elif kind == "non_backtracking":
        _non_backtracking[grid](*arguments, *shape, num_warps=warps)
    else:
        _jump[grid](*arguments, radius, kind == "jump", *shape, num_warps=warps)
