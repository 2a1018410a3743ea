"""Leaks: what could let a method know test labels without learning anything. Checked on every dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph, Split

LEAST = 3
"""Nodes of a class before a column that tells it is taken for a label."""


@dataclass(frozen=True)
class Leaks:
    """What was found of one graph and one split."""

    dataset: str
    split: str
    shared_nodes: int
    """Nodes in more than one part of the split: must be 0."""
    duplicates: int
    """Test nodes with the features and the neighbours of a training or validation node: the same thing twice."""
    same_features: int
    """Test nodes that share their (non-empty) features with a training node."""
    label_columns: int
    """Feature columns that alone tell a class of three nodes or more, exactly: labels among the features."""
    train_test_edges: int
    """Edges between training and test nodes."""
    transductive: bool
    """Whether training may see such edges. All methods of the benchmark do: they are given the whole graph."""

    @property
    def fine(self) -> bool:
        """Whether nothing was found that would make a result worthless."""
        edges = 0 if self.transductive else self.train_test_edges
        return self.shared_nodes == self.label_columns == edges == 0


def find_leaks(graph: Graph, split: Split, *, transductive: bool = True) -> Leaks:
    """Look for leaks; where test nodes are not to be seen in training, say `transductive=False`."""
    parts = (split.train, split.val, split.test)
    everything = np.concatenate(parts)
    shared = len(everything) - len(np.unique(everything))
    features = _row_hashes(graph.x, graph.num_nodes)
    neighbours = _neighbour_hashes(graph)
    empty = _empty_rows(graph.x, graph.num_nodes)
    known = np.concatenate(parts[:2])
    both = set(zip(features[known].tolist(), neighbours[known].tolist(), strict=True))
    twice = [pair in both for pair in zip(features[split.test].tolist(), neighbours[split.test].tolist(), strict=True)]
    lone = (graph.degree[split.test] == 0) & empty[split.test]
    same = np.isin(features[split.test], features[split.train]) & ~empty[split.test]
    part = np.zeros(graph.num_nodes, dtype=np.int8)
    part[split.train], part[split.test] = 1, 2
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    ends = part[source] + 4 * part[graph.indices]
    crossing = int((ends == 1 + 4 * 2).sum())
    if graph.directed:
        crossing += int((ends == 2 + 4 * 1).sum())
    return Leaks(
        dataset=graph.name,
        split=split.name,
        shared_nodes=shared,
        duplicates=int((np.array(twice, dtype=bool) & ~lone).sum()),
        same_features=int(same.sum()),
        label_columns=_label_columns(graph),
        train_test_edges=crossing,
        transductive=transductive,
    )


def _row_hashes(x: Any, n: int) -> NDArray[np.int64]:
    """Equal for rows of equal numbers: −0 is 0, and a zero that is stored in a sparse row is none."""
    if x is None:
        return np.zeros(n, dtype=np.int64)
    if isinstance(x, np.ndarray):
        return np.array([hash((row + 0).tobytes()) for row in x], dtype=np.int64)
    x = x.copy()
    x.eliminate_zeros()
    x.sort_indices()
    ends = zip(x.indptr[:-1].tolist(), x.indptr[1:].tolist(), strict=True)
    return np.array([hash((x.indices[a:b].tobytes(), x.data[a:b].tobytes())) for a, b in ends], dtype=np.int64)


def _neighbour_hashes(graph: Graph) -> NDArray[np.int64]:
    return np.array([hash(graph.neighbours(v).tobytes()) for v in range(graph.num_nodes)], dtype=np.int64)


def _empty_rows(x: Any, n: int) -> NDArray[np.bool_]:
    if x is None:
        return np.ones(n, dtype=np.bool_)
    empty: NDArray[np.bool_] = np.asarray(abs(x).sum(axis=1)).ravel() == 0
    return empty


def _label_columns(graph: Graph) -> int:
    """Columns that are non-zero at exactly the nodes of a class, or have one value a class and not the same for all.

    Classes of less than three nodes are left out: any rare word would do.
    """
    x: Any = graph.x
    if x is None:
        return 0
    members = [np.flatnonzero(graph.y == c) for c in range(graph.num_classes)]
    members = [nodes for nodes in members if len(nodes) >= LEAST]
    labelled = np.flatnonzero(graph.y >= 0)
    total = _count(x[labelled])
    found = np.zeros(x.shape[1], dtype=np.bool_)
    constant = np.ones(x.shape[1], dtype=np.bool_)
    values = []
    for nodes in members:
        inside = _count(x[nodes])
        found |= (inside == len(nodes)) & (inside == total)
        low, high = (_dense(getattr(x[nodes], name)(axis=0)) for name in ("min", "max"))
        constant &= low == high
        values.append(low)
    if len(values) > 1:
        found |= constant & (np.ptp(np.stack(values), axis=0) > 0)
    return int(found.sum())


def _count(x: Any) -> NDArray[np.int64]:
    """Non-zero entries of each column."""
    counts: NDArray[np.int64] = _dense((x != 0).sum(axis=0)).astype(np.int64)
    return counts


def _dense(row: Any) -> NDArray[Any]:
    return np.asarray(row.toarray() if hasattr(row, "toarray") else row).ravel()
