"""All walks at once in plain torch operations: the specification that runs on any device.

64-bit unsigned arithmetic is done on int64 tensors, whose products and sums wrap; only right shifts and
comparisons need care. Every function takes and returns tensors of one entry a walk.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tokenphormer.hashing import GOLDEN
from tokenphormer.hashing import mix64_tensor as _mix
from tokenphormer.hashing import shift_right as _shift
from tokenphormer.hashing import signed as _signed
from tokenphormer.walks.reference import ATTEMPTS, Kind

UNFINISHED = -2
"""Stands where a jump used up its attempts; the caller has the reference walk on from there."""


class Csr(NamedTuple):
    """The rows of a graph as tensors on one device; `running` holds the integer weights' running sums."""

    indptr: Tensor
    indices: Tensor
    running: Tensor | None


def _below(r: Tensor, n: Tensor) -> Tensor:
    """floor(r · n / 2⁶⁴) with r unsigned and 0 ≤ n < 2⁶², from four 32-bit products."""
    low = (1 << 32) - 1
    r1, r0, n1, n0 = _shift(r, 32), r & low, n >> 32, n & low
    p00, p01, p10 = r0 * n0, r0 * n1, r1 * n0
    middle = _shift(p00, 32) + (p01 & low) + (p10 & low)
    return r1 * n1 + _shift(p01, 32) + _shift(p10, 32) + (middle >> 32)


def _search(running: Tensor, start: Tensor, size: Tensor, drawn: Tensor) -> Tensor:
    """Position in each row of the first running sum above `drawn`."""
    low, high = torch.zeros_like(size), size - 1
    for _ in range(int(size.max()).bit_length() if size.numel() else 0):
        middle = (low + high) >> 1
        above = running[start + middle] > drawn
        low, high = torch.where(above, low, torch.minimum(middle + 1, high)), torch.where(above, middle, high)
    return low


class _Walks:
    """The state of a call: a key and a count of draws for every walk."""

    def __init__(self, csr: Csr, starts: Tensor, walk: Tensor, base: int) -> None:
        self.csr = csr
        self.key = _mix(_mix(starts ^ _signed(base)) ^ walk)
        self.draws = torch.zeros_like(self.key)

    def draw(self, who: Tensor, n: Tensor) -> Tensor:
        self.draws[who] += 1
        return _below(_mix(self.key[who] + self.draws[who] * _signed(GOLDEN)), n)

    def rows(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        start = self.csr.indptr[nodes].long()
        return start, self.csr.indptr[nodes + 1].long() - start

    def pick(self, who: Tensor, start: Tensor, size: Tensor) -> Tensor:
        """Position of a drawn neighbour in rows that are not empty."""
        running = self.csr.running
        if running is None:
            return self.draw(who, size)
        return _search(running, start, size, self.draw(who, running[start + size - 1]))

    def pick_other(self, who: Tensor, start: Tensor, size: Tensor, taboo: Tensor) -> Tensor:
        """Position of a drawn neighbour other than the one at `taboo`."""
        running = self.csr.running
        if running is None:
            drawn = self.draw(who, size - 1)
            return torch.where(drawn == taboo, size - 1, drawn)
        before = torch.where(taboo > 0, running[start + (taboo - 1).clamp(min=0)], 0)
        gap = running[start + taboo] - before
        drawn = self.draw(who, running[start + size - 1] - gap)
        return _search(running, start, size, torch.where(drawn < before, drawn, drawn + gap))

    def step(self, who: Tensor, nodes: Tensor, previous: Tensor | None = None) -> Tensor:
        """One step for the walks `who` standing on `nodes`; −1 at dead ends; avoids `previous` where it can."""
        following = torch.full_like(nodes, -1)
        start, size = self.rows(nodes)
        alive = size > 0
        start, size, who = start[alive], size[alive], who[alive]
        position = self.pick(who, start, size)
        chosen = self.csr.indices[start + position].long()
        if previous is not None:
            back = (chosen == previous[alive]) & (size > 1)
            position = self.pick_other(who[back], start[back], size[back], position[back])
            chosen[back] = self.csr.indices[start[back] + position].long()
        following[alive] = chosen
        return following

    def outside(self, nodes: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Whether a neighbour of each of `nodes` is neither `first` nor `second`; three entries tell."""
        start, size = self.rows(nodes)
        found = torch.zeros_like(nodes, dtype=torch.bool)
        for position in range(3):
            there = size > position
            neighbour = self.csr.indices[start[there] + position].long()
            found[there] |= (neighbour != first[there]) & (neighbour != second[there])
        return found

    def leads_to(self, nodes: Tensor, target: Tensor) -> Tensor:
        """Whether `target` is among the first two neighbours of each of `nodes` (asked only of such rows)."""
        start, size = self.rows(nodes)
        found = torch.zeros_like(nodes, dtype=torch.bool)
        for position in range(2):
            there = size > position
            found[there] |= self.csr.indices[start[there] + position].long() == target[there]
        return found

    def jump(self, who: Tensor, nodes: Tensor, previous: Tensor, radius: int) -> Tensor:
        """One jump each; `previous` is −1 where nothing but the node itself is to be avoided."""
        can_leave = self.outside(nodes, nodes, previous)
        if radius >= 2:
            through = ~can_leave & (previous >= 0) & self.leads_to(nodes, previous)
            can_leave[through] = self.outside(previous[through], nodes[through], previous[through])
        avoid = torch.where(can_leave, previous, -1)
        following = torch.full_like(nodes, -1)
        pending = torch.nonzero(can_leave | self.outside(nodes, nodes, nodes)).squeeze(1)
        for _ in range(ATTEMPTS * radius):
            if not pending.numel():
                break
            here = nodes[pending]
            steps = 1 + self.draw(who[pending], torch.full_like(here, radius))
            end = here.clone()
            for step in range(radius):
                going = (step < steps) & (end >= 0)
                end[going] = self.step(who[pending[going]], end[going])
            accepted = (end >= 0) & (end != here) & (end != avoid[pending])
            following[pending[accepted]] = end[accepted]
            pending = pending[~accepted]
        following[pending] = UNFINISHED
        return following


def sample(
    csr: Csr, kind: Kind, nodes: Tensor | None, num_walks: int, length: int, radius: int, base: int, out: Tensor
) -> None:
    """Fill `out` (len(nodes) · num_walks, length + 1) with walks from `nodes`; None is every node."""
    starts = torch.arange(len(csr.indptr) - 1, device=out.device) if nodes is None else nodes.long()
    current = starts.repeat_interleave(num_walks)
    walk = torch.arange(num_walks, device=out.device).repeat(len(starts))
    walks = _Walks(csr, current, walk, base)
    out.fill_(-1)
    out[:, 0] = current.to(out.dtype)
    previous = torch.full_like(current, -1)
    who = torch.arange(len(current), device=out.device)
    for step in range(1, length + 1):
        if kind == "uniform":
            following = walks.step(who, current)
        elif kind == "non_backtracking":
            walks.draws.fill_(2 * (step - 1))
            following = walks.step(who, current, previous)
        else:
            avoid = previous if kind == "non_backtracking_jump" else torch.full_like(previous, -1)
            following = walks.jump(who, current, avoid, radius)
        out[who, step] = following.to(out.dtype)
        alive = following >= 0
        who, previous, current = who[alive], current[alive], following[alive]
