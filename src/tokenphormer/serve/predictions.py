"""`Predictions`: the run's answer for every node of its graph, worked out once, and how nodes are looked up in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph, Split
from tokenphormer.graph.splits import PARTS

UNCERTAIN_MARGIN = 0.2
"""A prediction is uncertain if its two most probable classes are less than this apart."""

Outcome = Literal["right", "wrong", "unlabelled"]
OUTCOMES: tuple[Outcome, ...] = ("right", "wrong", "unlabelled")
Status = Literal["all", "right", "wrong", "uncertain", "unlabelled"]
Part = Literal["train", "val", "test", "none"]
Order = Literal["graph", "sure", "unsure"]
Ints = NDArray[np.int64]
Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """Which nodes, and in which order."""

    query: str = ""
    """Part of an id, whatever its case."""
    status: Status = "all"
    part: Part | None = None
    truth: int | None = None
    """A class's number."""
    predicted: int | None = None
    neighbour_of: int | None = None
    """An index: only the nodes that edges of this one lead to."""
    order: Order = "graph"


class Predictions:
    """(n, C) probabilities with all that follows from them."""

    def __init__(self, graph: Graph, split: Split, probabilities: NDArray[np.float32]) -> None:
        self.graph, self.probabilities = graph, probabilities
        self.classes = graph.class_names
        self.predicted: Ints = probabilities.argmax(axis=1)
        ranked = np.partition(probabilities, -2, axis=1)
        self.confidence, self.margin = ranked[:, -1], ranked[:, -1] - ranked[:, -2]
        self.uncertain = self.margin < UNCERTAIN_MARGIN
        self.outcome: Ints = np.where(graph.y < 0, 2, (graph.y != self.predicted).astype(np.int64))
        """(n) places in `OUTCOMES`."""
        self.part: Ints = np.full(graph.num_nodes, len(PARTS))
        """(n) places in train, val, test, none."""
        for number, name in enumerate(PARTS):
            self.part[getattr(split, name)] = number
        self._index = {graph.id_of(node): node for node in range(graph.num_nodes)}

    def index_of(self, node_id: str) -> int | None:
        """The index of an id; None if no node has it."""
        return self._index.get(node_id)

    # ---------------------------------------------------------------- one node

    def brief(self, node: int) -> Row:
        """A node's prediction in a line."""
        truth = int(self.graph.y[node])
        return {
            "id": self.graph.id_of(node),
            "predicted": self.classes[self.predicted[node]],
            "label": self.classes[truth] if truth >= 0 else None,
            "outcome": OUTCOMES[self.outcome[node]],
            "probability": share(self.confidence[node]),
            "margin": share(self.margin[node]),
            "uncertain": bool(self.uncertain[node]),
            "part": _part_name(int(self.part[node])),
            "degree": int(self.graph.degree[node]),
        }

    def full(self, node: int) -> Row:
        """The same with the probability of every class."""
        return self.brief(node) | {"probabilities": [share(p) for p in self.probabilities[node]]}

    # ---------------------------------------------------------------- many

    def find(self, wanted: Wanted) -> Ints:
        """The indices of the nodes that are wanted, in order; of a query, exact and leading matches come first."""
        keep = np.ones(self.graph.num_nodes, dtype=bool)
        if wanted.neighbour_of is not None:
            keep[:] = False
            keep[self.graph.neighbours(wanted.neighbour_of)] = True
        if wanted.status == "uncertain":
            keep &= self.uncertain
        elif wanted.status != "all":
            keep &= self.outcome == OUTCOMES.index(wanted.status)
        if wanted.part is not None:
            keep &= self.part == [*PARTS, "none"].index(wanted.part)
        if wanted.truth is not None:
            keep &= self.graph.y == wanted.truth
        if wanted.predicted is not None:
            keep &= self.predicted == wanted.predicted
        found = np.flatnonzero(keep)
        if wanted.order != "graph":
            key = self.confidence[found] if wanted.order == "unsure" else -self.confidence[found]
            found = found[np.argsort(key, kind="stable")]
        return self._matching(found, wanted.query) if wanted.query else found

    def _matching(self, nodes: Ints, query: str) -> Ints:
        text = query.casefold()
        names = self._folded
        ranks = np.array([_rank(names[node], text) for node in nodes.tolist()], dtype=np.int64)
        hits = np.flatnonzero(ranks < 3)
        return nodes[hits[np.argsort(ranks[hits], kind="stable")]]

    @cached_property
    def _folded(self) -> list[str]:
        return [name.casefold() for name in self._index]

    def confusion(self, part: Part | Literal["all"]) -> Row:
        """True against predicted classes of the labelled nodes of a part."""
        keep = self.graph.y >= 0
        if part != "all":
            keep = keep & (self.part == [*PARTS, "none"].index(part))
        truth, predicted, C = self.graph.y[keep], self.predicted[keep], len(self.classes)
        counts = np.bincount(truth * C + predicted, minlength=C * C).reshape(C, C)
        total = int(counts.sum())
        accuracy = float(np.trace(counts) / total) if total else None
        return {"part": part, "classes": self.classes, "confusion": counts.tolist(), "accuracy": accuracy}

    def counts(self) -> dict[str, int]:
        """How many nodes each status has."""
        outcome = np.bincount(self.outcome, minlength=len(OUTCOMES)).tolist()
        return dict(zip(OUTCOMES, outcome, strict=True)) | {"uncertain": int(self.uncertain.sum())}


def share(value: np.floating[Any] | float) -> float:
    """A probability with the digits that mean something.

    >>> share(np.float32(0.1))
    0.1
    """
    return round(float(value), 6)


def _rank(name: str, query: str) -> int:
    place = name.find(query)
    return 3 if place < 0 else 2 if place else 1 if len(name) > len(query) else 0


def _part_name(number: int) -> str | None:
    return PARTS[number] if number < len(PARTS) else None
