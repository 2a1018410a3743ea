"""What lies around one node of a graph, without touching the rest of it: rows, distances, rows of Âᵏ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph
from tokenphormer.hops import Normalisation

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SparseRow = tuple[Ints, Floats]
"""Indices, ascending, and values of what is not zero."""


def edges_of(graph: Graph, nodes: Ints) -> tuple[Ints, Ints]:
    """(E) for all edges that leave some nodes: which of the nodes, by its place, and where the edge is stored."""
    degree = graph.degree[nodes]
    which = np.repeat(np.arange(len(nodes)), degree)
    before = np.cumsum(degree) - degree
    return which, graph.indptr[nodes][which] + np.arange(len(which)) - before[which]


def distances(graph: Graph, node: int, targets: Ints) -> dict[int, int]:
    """Edges from a node to each of the targets that can be reached.

    >>> distances(Graph.from_edges([[0, 1], [1, 2]], num_nodes=4), 0, np.array([0, 2, 3]))
    {0: 0, 2: 2}
    """
    found: dict[int, int] = {}
    seen, wanted = (np.zeros(graph.num_nodes, dtype=bool) for _ in range(2))
    wanted[targets] = True
    missing, frontier, distance = int(wanted.sum()), np.array([node]), 0
    while len(frontier) and missing:
        seen[frontier] = True
        reached = frontier[wanted[frontier]].tolist()
        found |= dict.fromkeys(reached, distance)
        missing -= len(reached)
        beyond = np.unique(graph.indices[edges_of(graph, frontier)[1]]).astype(np.int64)
        frontier, distance = beyond[~seen[beyond]], distance + 1
    return found


def hop_rows(graph: Graph, normalisation: Normalisation, node: int, hops: int) -> list[SparseRow]:
    """The rows of Â … Âᴷ that belong to a node: how much of which nodes' features its hop-tokens read.

    >>> [(nodes.tolist(), shares.tolist()) for nodes, shares in hop_rows(Graph.from_edges([[0], [1]]), "row", 0, 2)]
    [([1], [1.0]), ([0], [1.0])]
    """
    nodes, shares, rows = np.array([node]), np.array([1.0]), []
    for _ in range(hops):
        which, place = edges_of(graph, nodes)
        targets = graph.indices[place].astype(np.int64)
        passed = shares[which] * (1.0 if graph.edge_weight is None else graph.edge_weight[place])
        if normalisation == "row":
            passed = passed / _strength(graph, nodes)[which]
        if normalisation == "symmetric":  # every node also hears itself
            which, targets = np.append(which, np.arange(len(nodes))), np.append(targets, nodes)
            passed = np.append(passed, shares) / np.sqrt(1 + _strength(graph, nodes))[which]
        nodes, same = np.unique(targets, return_inverse=True)
        shares = _sums(same, passed, len(nodes))
        if normalisation == "symmetric":
            shares = shares / np.sqrt(1 + _strength(graph, nodes))
        rows.append((nodes, shares))
    return rows


def _strength(graph: Graph, nodes: Ints) -> Floats:
    """The sum of the weights of the edges that leave each node; their number where there are no weights."""
    if graph.edge_weight is None:
        return graph.degree[nodes].astype(np.float64)
    which, place = edges_of(graph, nodes)
    return _sums(which, graph.edge_weight[place], len(nodes))


def _sums(group: Ints, values: Floats, count: int) -> Floats:
    """(count) the sum of the values of each group."""
    return np.bincount(group, values, count).astype(np.float64)


def score_row(graph: Graph, node: int, weights: Sequence[float]) -> SparseRow:
    """The row of Σ γₖ Âᵏ that belongs to a node: by what each node's class scores are multiplied on their way to it.

    >>> nodes, shares = score_row(Graph.from_edges([[0], [1]], num_nodes=3), 0, [0.5, 0.5])
    >>> nodes.tolist(), shares.round(6).tolist()  # half stays; of the other half, every node also hears itself
    ([0, 1], [0.75, 0.25])
    """
    parts = [(np.array([node]), np.array([1.0])), *hop_rows(graph, "symmetric", node, len(weights) - 1)]
    nodes, same = np.unique(np.concatenate([found for found, _ in parts]), return_inverse=True)
    passed = np.concatenate([weight * shares for weight, (_, shares) in zip(weights, parts, strict=True)])
    return nodes, _sums(same, passed, len(nodes))


def score_share(graph: Graph, node: int, weights: Sequence[float]) -> float:
    """The share of a node's own class scores in those that steps of passing on, of these weights, leave it with."""
    nodes, shares = score_row(graph, node, weights)
    return float(shares[nodes == node].sum())
