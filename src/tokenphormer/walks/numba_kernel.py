"""The walks on CPU cores, in Numba: blocks of walks advance in lockstep so that their memory reads overlap.

A single walk waits for main memory twice a step (the row's bounds, then the neighbour). Walks are independent,
so each thread takes a block of them and does first all the reads of one sort, then all of the other: the
processor keeps many in flight. For the same reason the loops choose values rather than branches where they can: a
wrong guess costs more than a read. `running` is None for a graph without weights; Numba then drops those branches.
The graph must have an edge: rows that are not there are read at place 0, and what was read is thrown away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit, prange
from numba.np.ufunc import threading_layer

from tokenphormer.hashing import GOLDEN, MIX_A, MIX_B
from tokenphormer.threads import launch
from tokenphormer.walks.reference import ATTEMPTS

BLOCK = 256
_U = np.uint64
_GOLDEN, _MIX_A, _MIX_B, _LOW = _U(GOLDEN), _U(MIX_A), _U(MIX_B), _U(0xFFFFFFFF)
_NONE, _UNFINISHED = np.int32(-1), np.int32(-2)


@njit(cache=True, inline="always")
def _mix(z: Any) -> Any:
    z = (z ^ (z >> _U(30))) * _MIX_A
    z = (z ^ (z >> _U(27))) * _MIX_B
    return z ^ (z >> _U(31))


@njit(cache=True, inline="always")
def _draw(key: Any, count: Any) -> Any:
    return _mix(key + _U(count) * _GOLDEN)


@njit(cache=True, inline="always")
def _below(r: Any, n: Any) -> Any:
    """floor(r · n / 2⁶⁴) for n < 2³²: two products."""
    n = _U(n)
    return np.int64(((r >> _U(32)) * n + (((r & _LOW) * n) >> _U(32))) >> _U(32))


@njit(cache=True)
def _below_wide(r: Any, n: Any) -> Any:
    """floor(r · n / 2⁶⁴) for any n < 2⁶²: four products."""
    n1, n0 = _U(n) >> _U(32), _U(n) & _LOW
    r1, r0 = r >> _U(32), r & _LOW
    p01, p10 = r0 * n1, r1 * n0
    middle = ((r0 * n0) >> _U(32)) + (p01 & _LOW) + (p10 & _LOW)
    return np.int64(r1 * n1 + (p01 >> _U(32)) + (p10 >> _U(32)) + (middle >> _U(32)))


@njit(cache=True)
def _search(running: Any, start: Any, size: Any, drawn: Any) -> Any:
    """Position of the first running sum of the row above `drawn`."""
    low, high = np.int64(0), np.int64(size - 1)
    while low < high:
        middle = (low + high) >> 1
        if running[start + middle] > drawn:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True, inline="always")
def _pick(running: Any, start: Any, size: Any, r: Any) -> Any:
    """Position of a drawn neighbour in a row that is not empty."""
    if running is None:
        return _below(r, size)
    return _search(running, start, size, _below_wide(r, running[start + size - 1]))


@njit(cache=True, inline="always")
def _place(running: Any, start: Any, size: Any, alive: Any, r: Any) -> Any:
    """Place among all edges of a drawn neighbour, −1 where the walk is not alive."""
    if running is None:
        drawn = start + _below(r, size)
        return drawn if alive else np.int64(-1)
    if alive:
        return start + _pick(running, start, size, r)
    return np.int64(-1)


@njit(cache=True, inline="always")
def _other_place(running: Any, start: Any, size: Any, place: Any, r: Any) -> Any:
    """Place of a drawn neighbour other than the one at `place`; `place` itself where there is no other."""
    if running is None:
        last = start + size - 1
        drawn = start + _below(r, max(size - 1, np.int64(0)))
        drawn = last if drawn == place else drawn
        return drawn if size > 1 else place
    if place < 0 or size < 2:
        return place
    before = running[place - 1] if place > start else np.int64(0)
    gap = running[place] - before
    drawn = _below_wide(r, running[start + size - 1] - gap)
    return start + _search(running, start, size, drawn if drawn < before else drawn + gap)


@njit(cache=True)
def _outside(indptr: Any, indices: Any, node: Any, first: Any, second: Any) -> Any:
    """Whether a neighbour of `node` is neither `first` nor `second`; three entries tell."""
    for at in range(indptr[node], min(indptr[node + 1], indptr[node] + 3)):
        if indices[at] != first and indices[at] != second:
            return True
    return False


@njit(cache=True)
def _to_avoid(indptr: Any, indices: Any, node: Any, previous: Any, radius: Any) -> Any:
    """The previous node where a jump can end elsewhere, −1 where only the plain jump is left, −2 where none is."""
    if indptr[node + 1] - indptr[node] >= 3:
        return previous
    if previous >= 0:
        if _outside(indptr, indices, node, node, previous):
            return previous
        if radius >= 2:
            for at in range(indptr[node], indptr[node + 1]):
                if indices[at] == previous and _outside(indptr, indices, previous, node, previous):
                    return previous
    return _NONE if _outside(indptr, indices, node, node, node) else _UNFINISHED


@njit(cache=True, inline="always")
def _start(nodes: Any, num_walks: Any, base: Any, first: Any, size: Any, key: Any, current: Any, out: Any) -> None:
    """Keys and first nodes of the walks first … first + size − 1."""
    for i in range(size):
        node = nodes[(first + i) // num_walks]
        key[i] = _mix(_mix(base ^ _U(node)) ^ _U((first + i) % num_walks))
        current[i] = node
        out[first + i, 0] = node


@njit(cache=True, parallel=True, nogil=True)
def uniform(
    indptr: Any, indices: Any, running: Any, nodes: Any, num_walks: int, length: int, base: Any, out: Any
) -> None:
    """Fill `out` (len(nodes) · num_walks, length + 1) with uniform walks."""
    total = len(out)
    for block in prange((total + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        size = min(BLOCK, total - first)
        key, current, place = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int64)
        _start(nodes, num_walks, base, first, size, key, current, out)
        for step in range(1, length + 1):
            for i in range(size):
                node = _U(max(current[i], np.int32(0)))
                start = np.int64(indptr[node])
                degree = np.int64(indptr[node + _U(1)]) - start
                alive = (current[i] >= 0) & (degree > 0)
                place[i] = _place(running, start, degree, alive, _draw(key[i], step))
            for i in range(size):
                following = indices[_U(max(place[i], np.int64(0)))]
                following = following if place[i] >= 0 else _NONE
                current[i] = following
                out[first + i, step] = following


@njit(cache=True, parallel=True, nogil=True)
def non_backtracking(
    indptr: Any, indices: Any, running: Any, nodes: Any, num_walks: int, length: int, base: Any, out: Any
) -> None:
    """Fill `out` (len(nodes) · num_walks, length + 1) with non-backtracking walks."""
    total = len(out)
    for block in prange((total + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        size = min(BLOCK, total - first)
        key, current, place = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int32), np.empty(BLOCK, np.int64)
        other, previous = np.empty(BLOCK, np.int64), np.full(BLOCK, -1, np.int32)
        _start(nodes, num_walks, base, first, size, key, current, out)
        for step in range(1, length + 1):
            for i in range(size):
                node = _U(max(current[i], np.int32(0)))
                start = np.int64(indptr[node])
                degree = np.int64(indptr[node + _U(1)]) - start
                alive = (current[i] >= 0) & (degree > 0)
                place[i] = _place(running, start, degree, alive, _draw(key[i], 2 * step - 1))
                other[i] = _other_place(running, start, degree, place[i], _draw(key[i], 2 * step))
            for i in range(size):
                at, instead = place[i], other[i]
                following = indices[_U(max(at, np.int64(0)))]
                instead = instead if following == previous[i] else at
                following = indices[_U(max(instead, np.int64(0)))]
                following = following if at >= 0 else _NONE
                previous[i] = current[i]
                current[i] = following
                out[first + i, step] = following


@njit(cache=True, parallel=True, nogil=True)
def jump(
    indptr: Any,
    indices: Any,
    running: Any,
    nodes: Any,
    num_walks: int,
    length: int,
    base: Any,
    out: Any,
    radius: int,
    backtracking: bool,
) -> bool:
    """Fill `out` with jump walks; True if some walk was left unfinished (marked −2) for `finish_jumps`.

    One pass moves every open walk of the block by one small step of its current attempt, whatever jump and
    attempt that belongs to, so long runs of rejections of one walk hold up no other.
    """
    total = len(out)
    unfinished = 0
    for block in prange((total + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        size = min(BLOCK, total - first)
        key, place, draws = np.empty(size, np.uint64), np.empty(size, np.int64), np.zeros(size, np.int64)
        current, at, avoid = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
        previous = np.full(size, -1, np.int32)
        step, left, tries = np.ones(size, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int64)
        open_walks = np.arange(size)
        _start(nodes, num_walks, base, first, size, key, current, out)
        while size > 0:
            for o in range(size):
                i = open_walks[o]
                place[i] = -1
                if left[i] == 0:  # a new attempt, perhaps the first of a jump
                    if tries[i] == 0:
                        old = _NONE if backtracking else previous[i]
                        avoid[i] = _to_avoid(indptr, indices, current[i], old, radius)
                        if avoid[i] == _UNFINISHED:  # no way on: the walk ends
                            continue
                    draws[i] += 1
                    left[i] = 1 + _below(_draw(key[i], draws[i]), radius)
                    at[i] = current[i]
                start = indptr[_U(at[i])]
                degree = indptr[_U(at[i]) + _U(1)] - start
                if degree > 0:
                    draws[i] += 1
                    place[i] = start + _pick(running, start, degree, _draw(key[i], draws[i]))
            kept = 0
            for o in range(size):
                i = open_walks[o]
                if place[i] >= 0:
                    at[i] = indices[_U(place[i])]
                    left[i] -= 1
                    if left[i] == 0 and at[i] != current[i] and at[i] != avoid[i]:
                        out[first + i, step[i]] = at[i]
                        previous[i], current[i] = current[i], at[i]
                        tries[i] = 0
                        step[i] += 1
                    elif left[i] == 0:
                        tries[i] += 1
                elif avoid[i] != _UNFINISHED:  # a dead end: this attempt failed
                    left[i] = 0
                    tries[i] += 1
                if avoid[i] == _UNFINISHED:
                    out[first + i, step[i] :] = -1
                elif tries[i] >= ATTEMPTS * radius:
                    out[first + i, step[i] :] = -1
                    out[first + i, step[i]] = _UNFINISHED
                    unfinished += 1
                elif step[i] <= length:
                    open_walks[kept] = i
                    kept += 1
            size = kept
    return unfinished > 0


@njit(cache=True)
def _probability(indptr: Any, running: Any, node: Any, at: Any) -> Any:
    """Probability of the step from `node` to the neighbour at place `at` of the rows."""
    if running is None:
        return 1.0 / float(indptr[node + 1] - indptr[node])
    before = running[at - 1] if at > indptr[node] else np.int64(0)
    return float(running[at] - before) / float(running[indptr[node + 1] - 1])


@njit(cache=True)
def _chance(indptr: Any, indices: Any, running: Any, node: Any, steps: Any, first: Any, second: Any, memo: Any) -> Any:
    """Probability that exactly `steps` steps from `node` end neither at `first` nor at `second`."""
    if steps == 0:
        return 0.0 if node in (first, second) else 1.0
    key = (np.int64(node), np.int64(steps))
    if key in memo:
        return memo[key]
    total = 0.0
    for at in range(indptr[node], indptr[node + 1]):
        onward = _chance(indptr, indices, running, np.int64(indices[at]), steps - 1, first, second, memo)
        total += _probability(indptr, running, node, at) * onward
    memo[key] = total
    return total


@njit(cache=True)
def _choose(weights: Any, r: Any) -> Any:
    """An index with probability proportional to its weight, summed from left to right."""
    total = 0.0
    for weight in weights:
        total += weight
    target = float(r >> _U(11)) * 2.0**-53 * total
    chosen, total = 0, 0.0
    for index, weight in enumerate(weights):
        if weight > 0:
            chosen = index
        total += weight
        if target < total:
            break
    return chosen


@njit(cache=True)
def _jump_by_law(
    indptr: Any, indices: Any, running: Any, node: Any, avoid: Any, radius: Any, key: Any, draws: Any
) -> Any:
    """A jump without rejection: every choice is weighted by its chance to end at neither of the two."""
    memo = {(np.int64(-1), np.int64(-1)): 0.0}
    origin = np.int64(node)
    chances = np.empty(radius)
    for steps in range(radius):
        chances[steps] = _chance(indptr, indices, running, origin, steps + 1, origin, avoid, memo)
    draws += 1
    at = origin
    for left in range(_choose(chances, _draw(key, draws)), -1, -1):
        start = indptr[at]
        weights = np.empty(indptr[at + 1] - start)
        for i in range(len(weights)):
            onward = _chance(indptr, indices, running, np.int64(indices[start + i]), left, origin, avoid, memo)
            weights[i] = _probability(indptr, running, at, start + i) * onward
        draws += 1
        at = np.int64(indices[start + _choose(weights, _draw(key, draws))])
    return at, draws


@njit(cache=True, parallel=True, nogil=True)
def finish_jumps(
    indptr: Any,
    indices: Any,
    running: Any,
    starts: Any,
    walk: Any,
    base: Any,
    out: Any,
    radius: int,
    backtracking: bool,
) -> None:
    """Draw again, one by one, the walks whose attempts ran out: row i of `out` is walk `walk[i]` of `starts[i]`."""
    for i in prange(len(starts)):
        key = _mix(_mix(base ^ _U(starts[i])) ^ _U(walk[i]))
        draws = np.int64(0)
        current, previous = np.int64(starts[i]), np.int64(-1)
        out[i, 0] = current
        out[i, 1:] = -1
        for step in range(1, out.shape[1]):
            avoid = np.int64(_to_avoid(indptr, indices, current, np.int64(-1) if backtracking else previous, radius))
            if avoid == _UNFINISHED:
                break
            end = np.int64(-1)
            for _ in range(ATTEMPTS * radius):
                draws += 1
                end = current
                for _ in range(1 + _below(_draw(key, draws), radius)):
                    degree = indptr[end + 1] - indptr[end]
                    if degree == 0:
                        end = np.int64(-1)
                        break
                    draws += 1
                    end = np.int64(indices[indptr[end] + _pick(running, indptr[end], degree, _draw(key, draws))])
                if end >= 0 and end != current and end != avoid:
                    break
                end = np.int64(-1)
            if end < 0:
                end, draws = _jump_by_law(indptr, indices, running, current, avoid, radius, key, draws)
            previous, current = current, end
            out[i, step] = end


# -------------------------------------------------------------------- in processes that were forked

_forked = False


def _after_fork() -> None:
    """GNU's OpenMP ends a process that was forked from one that used it, as soon as it uses it too."""
    global _forked
    with suppress(ValueError):  # no thread was started yet
        _forked = _forked or threading_layer() == "omp"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def here(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel as this process can run it: on all cores, or, forked from one that did so (a data loader's), on one."""
    if _forked:
        return _on_one_core(kernel)
    launch()
    return kernel


@cache
def _on_one_core(kernel: Any) -> Callable[..., Any]:
    plain = kernel.py_func
    alone = FunctionType(plain.__code__, plain.__globals__, f"{plain.__name__}_on_one_core")
    alone.__module__, alone.__qualname__ = plain.__module__, alone.__name__  # Numba's cache goes by the name
    compiled: Callable[..., Any] = njit(cache=True, nogil=True)(alone)
    return compiled
