"""One walk at a time in plain Python: the contract of `README.md`, written as it is read.

The fast versions are tested against this one.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph
from tokenphormer.hashing import GOLDEN, mix64

Kind = Literal["uniform", "non_backtracking", "jump", "non_backtracking_jump"]
KINDS: tuple[Kind, ...] = ("uniform", "non_backtracking", "jump", "non_backtracking_jump")
ATTEMPTS = 128
"""Failed attempts per unit of jump radius before a jump is drawn from its law."""
Memo = dict[tuple[int, int], float]


def base_key(seed: int, kind: Kind) -> int:
    """The part of a walk's key that all walks of a call share."""
    return mix64(mix64(seed) + (KINDS.index(kind) + 1) * GOLDEN)


def integer_weights(graph: Graph) -> NDArray[np.int64] | None:
    """(E) running sums, within each row, of the weights as integers; None for a graph without weights."""
    if graph.edge_weight is None:
        return None
    rows = np.repeat(np.arange(graph.num_nodes), graph.degree)
    if not len(rows):
        return np.zeros(0, np.int64)
    filled = np.flatnonzero(graph.degree)
    highest = np.zeros(graph.num_nodes)
    highest[filled] = np.maximum.reduceat(graph.edge_weight, graph.indptr[:-1][filled])
    # 2^exponent > the row's highest weight, 2^bits > its number of entries: the row's sum stays below 2^61.
    exponent, bits = np.frexp(highest)[1], np.frexp(graph.degree.astype(np.float64))[1]
    scaled = np.rint(np.ldexp(graph.edge_weight, (60 - bits - exponent)[rows]))
    running = np.cumsum(np.maximum(scaled, 1).astype(np.int64))  # may wrap; the differences below do not
    before = np.concatenate([np.zeros(1, np.int64), running])[graph.indptr[:-1]]
    result: NDArray[np.int64] = running - before[rows]
    return result


@dataclass
class Walker:
    """Draws single walks of one call."""

    graph: Graph
    kind: Kind
    jump_radius: int
    seed: int

    def __post_init__(self) -> None:
        self.base = base_key(self.seed, self.kind)
        self.weights = integer_weights(self.graph)

    def walk(self, node: int, index: int, length: int) -> list[int]:
        """Walk number `index` of `node`: `length` + 1 nodes, −1 after the end."""
        self.key = mix64(mix64(self.base ^ node) ^ index)
        self.draws = 0
        visited = [node]
        for _ in range(length):
            following = self._follow(visited)
            if following is None:
                break
            visited.append(following)
        return visited + [-1] * (length + 1 - len(visited))

    def _draw(self, n: int) -> int:
        self.draws += 1
        return (mix64(self.key + self.draws * GOLDEN) * n) >> 64

    def _follow(self, visited: list[int]) -> int | None:
        node, previous = visited[-1], visited[-2] if len(visited) > 1 else None
        if self.kind == "uniform":
            return self._step(node)
        if self.kind == "non_backtracking":
            self.draws = 2 * (len(visited) - 1)  # two draws belong to every step, needed or not
            return self._step_on(node, previous)
        if self.kind == "non_backtracking_jump" and previous is not None and self._can_leave(node, previous):
            return self._jump(node, {node, previous})
        return self._jump(node, {node}) if self._outside(node, {node}) else None

    def _running(self, node: int) -> list[int]:
        """Running sums of the integer weights of N(node)."""
        if self.weights is None:
            return list(range(1, int(self.graph.degree[node]) + 1))
        return [int(w) for w in self.weights[self.graph.indptr[node] : self.graph.indptr[node + 1]]]

    def _step(self, node: int) -> int | None:
        running = self._running(node)
        if not running:
            return None
        return int(self.graph.neighbours(node)[bisect_right(running, self._draw(running[-1]))])

    def _step_on(self, node: int, previous: int | None) -> int | None:
        """A step that avoids `previous` unless it is the only neighbour."""
        neighbours, running = self.graph.neighbours(node).tolist(), self._running(node)
        chosen = self._step(node)
        if chosen is None or chosen != previous or len(neighbours) == 1:
            return chosen
        position = neighbours.index(previous)
        before = running[position - 1] if position else 0
        gap = running[position] - before
        drawn = self._draw(running[-1] - gap)
        if self.weights is None:  # the last neighbour stands in for the avoided one
            return int(neighbours[-1 if drawn == position else drawn])
        return int(neighbours[bisect_right(running, drawn if drawn < before else drawn + gap)])

    def _outside(self, node: int, avoid: set[int]) -> bool:
        return any(int(u) not in avoid for u in self.graph.neighbours(node))

    def _can_leave(self, node: int, previous: int) -> bool:
        """Whether k steps from `node` can end anywhere but at `node` or `previous`."""
        avoid = {node, previous}
        if self._outside(node, avoid):
            return True
        through = self.jump_radius >= 2 and previous in self.graph.neighbours(node)
        return through and self._outside(previous, avoid)

    def _jump(self, node: int, avoid: set[int]) -> int:
        for _ in range(ATTEMPTS * self.jump_radius):
            end: int | None = node
            for _ in range(1 + self._draw(self.jump_radius)):
                end = None if end is None else self._step(end)
            if end is not None and end not in avoid:
                return end
        return self._jump_by_law(node, avoid)

    def _jump_by_law(self, node: int, avoid: set[int]) -> int:
        """The same jump without rejection: every choice is weighted by its chance to end outside `avoid`."""
        chances = [self.chance(node, steps, avoid) for steps in range(1, self.jump_radius + 1)]
        steps = 1 + self._choose(chances)
        for left in range(steps - 1, -1, -1):
            neighbours = self.graph.neighbours(node).tolist()
            onward = [self.chance(u, left, avoid) for u in neighbours]
            weights = [p * c for p, c in zip(self._probabilities(node), onward, strict=True)]
            node = neighbours[self._choose(weights)]
        return node

    def chance(self, node: int, steps: int, avoid: set[int], memo: Memo | None = None) -> float:
        """Probability that exactly `steps` uniform steps from `node` end outside `avoid`; a dead end does not."""
        memo = {} if memo is None else memo
        if steps == 0:
            return 0.0 if node in avoid else 1.0
        if (node, steps) not in memo:
            total = 0.0
            for neighbour, p in zip(self.graph.neighbours(node).tolist(), self._probabilities(node), strict=True):
                total += p * self.chance(neighbour, steps - 1, avoid, memo)
            memo[node, steps] = total
        return memo[node, steps]

    def _probabilities(self, node: int) -> list[float]:
        running = self._running(node)
        return [float(after - before) / float(running[-1]) for before, after in pairwise([0, *running])]

    def _choose(self, weights: list[float]) -> int:
        """One draw: an index with probability proportional to its weight, summed from left to right."""
        total = 0.0
        for weight in weights:
            total += weight
        target = float(self._draw(1 << 53)) * 2.0**-53 * total
        chosen, total = 0, 0.0
        for index, weight in enumerate(weights):
            if weight > 0:
                chosen = index
            total += weight
            if target < total:
                break
        return chosen
