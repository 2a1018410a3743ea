"""The rows of the study of graph documents."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tokenphormer.studies.results import Cell


@dataclass(frozen=True)
class PairRow:
    """What tells a pair apart."""

    pair: str
    isomorphic: bool
    nodes: int
    same_limit: bool
    """The multisets of dᵢ / 2|E| are equal: the paper's criterion fails."""
    same_visits: bool
    """So are the visit laws at every position of uniform sentences, node by node."""
    same_colours: bool
    """Colour refinement does not tell them apart."""
    uniform_length: int | None
    """The least length at which patterns of uniform sentences differ; None up to the longest looked at."""
    non_backtracking_length: int | None
    rounds_to_rebuild: int
    """Sentences from every node after which consecutive words are all the edges, in both graphs."""


@dataclass(frozen=True)
class LengthRow:
    """How much the patterns of two documents differ, exactly."""

    pair: str
    kind: str
    length: int
    told: bool
    """Whether the nodes' laws of patterns differ between the graphs."""
    tv: float
    only_first: float
    """Chance that a sentence of the first graph has a pattern which the second cannot have."""
    only_second: float


@dataclass(frozen=True)
class SampleRow:
    """Whether drawn documents show a pattern that the other graph cannot have."""

    pair: str
    length: int
    sentences_per_node: int
    chance: float
    measured: float
    """Share of drawn pairs of documents that did."""


@dataclass(frozen=True)
class CensusRow:
    """How many pairs among all connected graphs of a size a criterion leaves together."""

    nodes: int
    graphs: int
    pairs: int
    criterion: str
    length: int | None
    confused: int
    share: float


@dataclass(frozen=True)
class Documents:
    """All rows of the study."""

    pairs: list[PairRow]
    lengths: list[LengthRow]
    samples: list[SampleRow]
    census: list[CensusRow]

    @property
    def findings(self) -> dict[str, Cell]:
        """The figures that the page quotes."""
        found: dict[str, Cell] = {"chance that a sentence of length N(2, 1) has 7 or more steps": longer_than(2, 7)}
        for row in self.pairs:
            found[f"{row.pair}: least non-backtracking length that tells"] = row.non_backtracking_length
        for census in self.census:
            if census.nodes == max(row.nodes for row in self.census):
                length = "" if census.length is None else f", length {census.length}"
                found[f"{census.nodes} nodes, {census.criterion}{length}: pairs left together"] = census.confused
        return found


def longer_than(radius: int, steps: int) -> float:
    """The chance that a length from N(radius, 1), rounded, is at least `steps`."""
    return 0.5 * math.erfc((steps - 0.5 - radius) / math.sqrt(2))
