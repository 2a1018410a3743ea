"""What a graph document says once its words are only told apart, not known: patterns of sentences, exactly and drawn.

The pattern of a sentence names every word by the position of its first appearance: "a b c a" and "x y z x" are both
0 1 2 0. A graph's nodes have no names of their own, so two graphs are compared by these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph
from tokenphormer.studies.laws import weighted_walks
from tokenphormer.walks import Kind

Keys = NDArray[np.int64]


def pattern_keys(walks: NDArray[np.signedinteger]) -> Keys:
    """(W) one number for the pattern of each of (W, L + 1) walks.

    >>> a, b, c = pattern_keys(np.array([[4, 5, 6, 4], [1, 2, 3, 1], [1, 2, 3, 4]])).tolist()
    >>> a == b, a == c
    (True, False)
    """
    width = walks.shape[1]
    assert width**width < 2**63, "patterns of so many words do not fit 64 bits"
    keys = np.zeros(len(walks), dtype=np.int64)
    for position in range(1, width):
        first = np.full(len(walks), position, dtype=np.int8)
        for earlier in range(position - 1, -1, -1):
            first[walks[:, earlier] == walks[:, position]] = earlier
        keys += first.astype(np.int64) * width ** (position - 1)
    return keys


@dataclass(frozen=True, eq=False)
class PatternLaw:
    """The law of the pattern of one node's sentences: patterns in ascending order, and integer weights."""

    keys: Keys
    weights: NDArray[np.int64]

    @property
    def signature(self) -> Hashable:
        """Equal for equal laws, if their weights have the same sum."""
        return self.keys.tobytes(), self.weights.tobytes()


def pattern_laws(graph: Graph, kind: Kind, length: int, base: int) -> list[PatternLaw]:
    """The law of the patterns of each node's sentences of `length` steps, exactly: weights sum to baseˡᵉⁿᵍᵗʰ."""
    laws = []
    for start in range(graph.num_nodes):
        walks, weight = weighted_walks(graph, kind, start, length, base)
        keys, which = np.unique(pattern_keys(walks), return_inverse=True)
        weights = np.zeros(len(keys), dtype=np.int64)
        np.add.at(weights, which, weight)
        laws.append(PatternLaw(keys, weights))
    return laws


def document_signature(laws: Sequence[PatternLaw]) -> Hashable:
    """What a document of endless sentences says of a graph up to names: every node's law, in no order."""
    return frozenset(Counter(law.signature for law in laws).items())


def compare_laws(
    a: Sequence[PatternLaw], b: Sequence[PatternLaw], total: int
) -> tuple[float, list[float], list[float]]:
    """Total variation of the two documents' patterns, and each node's chance of a pattern the other graph cannot have.

    `total` is the sum of every node's weights.
    """
    pooled = [_pooled(laws) for laws in (a, b)]
    keys = pooled[0].keys() | pooled[1].keys()
    sizes = [total * len(laws) for laws in (a, b)]
    gaps = (abs(Fraction(pooled[0][key], sizes[0]) - Fraction(pooled[1][key], sizes[1])) for key in sorted(keys))
    tv = float(sum(gaps, Fraction(0)) / 2)
    return tv, _chances(a, pooled[1], total), _chances(b, pooled[0], total)


def _pooled(laws: Sequence[PatternLaw]) -> Counter[int]:
    pooled: Counter[int] = Counter()
    for law in laws:
        pooled.update(dict(zip(law.keys.tolist(), law.weights.tolist(), strict=True)))
    return pooled


def _chances(laws: Sequence[PatternLaw], other: Counter[int], total: int) -> list[float]:
    known = np.array(sorted(other), dtype=np.int64)
    return [float(law.weights[~np.isin(law.keys, known)].sum()) / total for law in laws]
