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

from tokenphormer.hashing import GOLDEN, MIX_A, MIX_B
from tokenphormer.walks.portable import Csr, _signed
from tokenphormer.walks.reference import ATTEMPTS, Kind

LAUNCH: dict[Kind, tuple[int, int]] = {
    "uniform": (128, 4),
    "non_backtracking": (128, 4),
    "jump": (32, 1),
    "non_backtracking_jump": (32, 1),
}
"""Walks and warps of one program; measured by `benchmarks/tune_triton.py`."""

_jit: Callable[[Callable[..., Any]], Any] = triton.jit
_kernel: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["base"])
_GOLDEN = tl.constexpr(GOLDEN)
_MIX_A = tl.constexpr(MIX_A)
_MIX_B = tl.constexpr(MIX_B)
_ATTEMPTS = tl.constexpr(ATTEMPTS)


@_jit
def _mix(z: Any) -> Any:
    z = (z ^ (z >> 30)) * _MIX_A
    z = (z ^ (z >> 27)) * _MIX_B
    return z ^ (z >> 31)


@_jit
def _draw(key: Any, count: Any) -> Any:
    return _mix(key + count.to(tl.uint64) * _GOLDEN)


@_jit
def _below(r: Any, n: Any) -> Any:
    """floor(r · n / 2⁶⁴) for 0 ≤ n < 2⁶², from 32-bit products (umulhi of the interpreter has no 64-bit form)."""
    n = n.to(tl.uint64)
    r1, r0, n1, n0 = r >> 32, r & 0xFFFFFFFF, n >> 32, n & 0xFFFFFFFF
    p01, p10 = r0 * n1, r1 * n0
    middle = ((r0 * n0) >> 32) + (p01 & 0xFFFFFFFF) + (p10 & 0xFFFFFFFF)
    return (r1 * n1 + (p01 >> 32) + (p10 >> 32) + (middle >> 32)).to(tl.int64)


@_jit
def _below_narrow(r: Any, n: Any) -> Any:
    """floor(r · n / 2⁶⁴) for 0 ≤ n < 2³²: two products."""
    n = n.to(tl.uint64)
    return (((r >> 32) * n + (((r & 0xFFFFFFFF) * n) >> 32)) >> 32).to(tl.int64)


@_jit
def _any(mask: Any) -> Any:
    return tl.max(mask.to(tl.int32), axis=0) > 0


@_jit
def _row(indptr: Any, node: Any, mask: Any) -> Any:
    """Start and size of a node's row; size 0 where masked."""
    start = tl.load(indptr + node, mask=mask, other=0)
    end = tl.load(indptr + node + 1, mask=mask, other=0)
    return start.to(tl.int64), (end - start).to(tl.int64)


@_jit
def _search(running: Any, start: Any, size: Any, drawn: Any) -> Any:
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
def _pick(running: Any, start: Any, size: Any, r: Any, WEIGHTED: tl.constexpr) -> Any:
    """Position of a drawn neighbour."""
    if WEIGHTED:
        total = tl.load(running + start + size - 1, mask=size > 0, other=0)
        position = _search(running, start, size, _below(r, total))
    else:
        position = _below_narrow(r, size)
    return position


@_jit
def _pick_other(running: Any, start: Any, size: Any, taboo: Any, r: Any, mask: Any, WEIGHTED: tl.constexpr) -> Any:
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
def _outside(indptr: Any, indices: Any, node: Any, first: Any, second: Any, mask: Any) -> Any:
    """Whether a neighbour of `node` is neither `first` nor `second`; three entries tell."""
    start, size = _row(indptr, node, mask)
    found = mask & (size < 0)
    for position in tl.static_range(3):
        there = mask & (size > position)
        neighbour = tl.load(indices + start + position, mask=there, other=-1)
        found = found | (there & (neighbour != first) & (neighbour != second))
    return found


@_jit
def _to_avoid(indptr: Any, indices: Any, node: Any, previous: Any, radius: Any, mask: Any) -> Any:
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
def _begin(nodes: Any, total: Any, num_walks: Any, base: Any, out: Any, length: Any, BLOCK: tl.constexpr) -> Any:
    """Keys, first nodes and output rows of this program's walks."""
    walk = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = walk < total
    node = tl.load(nodes + walk // num_walks, mask=mask, other=0)
    key = _mix(_mix(base.to(tl.uint64) ^ node.to(tl.uint64)) ^ (walk % num_walks).to(tl.uint64))
    row = out + walk * (length + 1)
    tl.store(row, node.to(tl.int32), mask=mask)
    return key, node.to(tl.int32), row, mask


@_kernel
def _uniform(
    indptr: Any,
    indices: Any,
    running: Any,
    nodes: Any,
    out: Any,
    total: Any,
    num_walks: Any,
    length: Any,
    base: Any,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    key, current, row, mask = _begin(nodes, total, num_walks, base, out, length, BLOCK)
    for step in range(1, length + 1):
        start, size = _row(indptr, current, mask & (current >= 0))
        position = _pick(running, start, size, _draw(key, (step + current * 0).to(tl.int64)), WEIGHTED)
        current = tl.load(indices + start + position, mask=size > 0, other=-1)
        tl.store(row + step, current, mask=mask)


@_kernel
def _non_backtracking(
    indptr: Any,
    indices: Any,
    running: Any,
    nodes: Any,
    out: Any,
    total: Any,
    num_walks: Any,
    length: Any,
    base: Any,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    key, current, row, mask = _begin(nodes, total, num_walks, base, out, length, BLOCK)
    previous = tl.full([BLOCK], -1, tl.int32)
    for step in range(1, length + 1):
        start, size = _row(indptr, current, mask & (current >= 0))
        draws = (2 * step + current * 0).to(tl.int64)
        position = _pick(running, start, size, _draw(key, draws - 1), WEIGHTED)
        following = tl.load(indices + start + position, mask=size > 0, other=-1)
        back = (size > 1) & (following == previous)
        if _any(back):
            other = _pick_other(running, start, size, position, _draw(key, draws), back, WEIGHTED)
            following = tl.where(back, tl.load(indices + start + other, mask=back, other=0), following)
        previous = current
        current = following
        tl.store(row + step, current, mask=mask)


@_kernel
def _jump(
    indptr: Any,
    indices: Any,
    running: Any,
    nodes: Any,
    out: Any,
    total: Any,
    num_walks: Any,
    length: Any,
    base: Any,
    radius: Any,
    BACKTRACKING: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    key, current, row, mask = _begin(nodes, total, num_walks, base, out, length, BLOCK)
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
        at = tl.load(indices + start + position, mask=moving, other=-1)
        left = tl.where(moving, left - 1, 0)
        ended = going & (over == 0) & (left == 0)
        accepted = ended & moving & (at != current) & (at != avoid)
        tl.store(row + step, tl.where(over, -1, at), mask=accepted | over)
        previous = tl.where(accepted, current, previous)
        current = tl.where(accepted, at, current)
        step += (accepted | over).to(tl.int64)  # a walk that is over writes −1 until its row is full
        tries = tl.where(accepted, 0, tries + (ended & (accepted == 0)).to(tl.int64))
        spent = going & (tries >= _ATTEMPTS * radius)
        tl.store(row + step, tl.full([BLOCK], -2, tl.int32), mask=spent)
        going = going & (spent == 0) & (step <= length)


def sample(
    csr: Csr, kind: Kind, nodes: Tensor, num_walks: int, length: int, radius: int, base: int, out: Tensor
) -> None:
    """Fill `out` (len(nodes) · num_walks, length + 1) with walks from `nodes`."""
    total = len(out)
    if not total:
        return
    weighted = csr.running is not None
    running = csr.running if csr.running is not None else csr.indices
    arguments = (csr.indptr, csr.indices, running, nodes, out, total, num_walks, length, _signed(base))
    block, warps = LAUNCH[kind]
    grid = (triton.cdiv(total, block),)
    if kind == "uniform":
        _uniform[grid](*arguments, weighted, block, num_warps=warps)
    elif kind == "non_backtracking":
        _non_backtracking[grid](*arguments, weighted, block, num_warps=warps)
    else:
        _jump[grid](*arguments, radius, kind == "jump", weighted, block, num_warps=warps)
