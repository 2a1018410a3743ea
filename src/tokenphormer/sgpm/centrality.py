"""How central a node is, and the bins that turn it into an embedding's index."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numba import njit
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix
from tokenphormer.sgpm.settings import Centrality

MAX_BINS = 256
DAMPING = 0.85
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def centrality_of(graph: Graph, kind: Centrality) -> Floats:
    """(n) a number for each node that means the same on another graph."""
    if kind == "degree":
        return graph.degree.astype(np.float64)
    if kind == "pagerank":
        return pagerank(graph) * graph.num_nodes
    if kind == "core":
        return core_numbers(graph).astype(np.float64)
    raise InputError(f"centrality: {kind!r}; expected degree, pagerank or core")


def pagerank(graph: Graph, tolerance: float = 1e-10) -> Floats:
    """(n) PageRank with damping 0.85; who has no neighbour spreads evenly. It sums to 1."""
    n = graph.num_nodes
    forward = propagation_matrix(graph, "row").T.astype(np.float64).tocsr()
    alone = graph.degree == 0
    rank: Floats = np.full(n, 1.0 / n)
    for _ in range(1000):
        spread = (1 - DAMPING + DAMPING * rank[alone].sum()) / n
        new = DAMPING * (forward @ rank) + spread
        change = float(np.abs(new - rank).sum())
        rank = new
        if change < tolerance:
            break
    return rank


def core_numbers(graph: Graph) -> Ints:
    """(n) the largest k such that the node is in a subgraph whose nodes all have k neighbours in it.

    Neighbours are those that edges lead to; a node with a self-loop is one of its own. The time is that of a few passes
    over the edges, whatever their shape.
    """
    if not graph.directed:
        return _peel(graph.indptr, graph.indices, graph.degree)
    shape = (graph.num_nodes, graph.num_nodes)
    edges = sp.csr_array((np.ones(len(graph.indices), dtype=np.int8), graph.indices, graph.indptr), shape=shape).tocsc()
    return _peel(edges.indptr.astype(np.int64), edges.indices, graph.degree)


@njit(cache=True)
def _peel(indptr: Ints, sources: NDArray[np.int32], degree: Ints) -> Ints:
    """(n) core numbers: who has fewest neighbours left is taken away, again and again.

    `sources[indptr[v]:indptr[v + 1]]` are the nodes with an edge to v, each of which loses a neighbour with it. Nodes
    stand in the order of the neighbours they have left; one that loses a neighbour changes places with the first of its
    number (Batagelj and Zaveršnik 2003, https://arxiv.org/abs/cs/0310049).
    """
    n, most = len(degree), 0
    for node in range(n):
        most = max(most, degree[node])
    starts = np.zeros(most + 2, dtype=np.int64)  # the first place of each number of neighbours
    for node in range(n):
        starts[degree[node] + 1] += 1
    starts = np.cumsum(starts)
    core = degree.copy()
    order, place = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32)
    free = starts.copy()
    for node in range(n):
        place[node] = free[core[node]]
        order[place[node]] = node
        free[core[node]] += 1
    for here in range(n):
        node = order[here]
        for edge in range(indptr[node], indptr[node + 1]):
            source = sources[edge]
            if core[source] > core[node]:  # else it is gone, or goes with as many
                first = starts[core[source]]
                other, hole = order[first], place[source]
                order[first], place[source] = source, first
                order[hole], place[other] = other, hole
                starts[core[source]] += 1
                core[source] -= 1
    return core


def bin_edges(values: Floats) -> Floats:
    """At most 255 values that part the numbers into bins: between all different ones, or else at quantiles."""
    different = np.unique(values)
    if len(different) > MAX_BINS:
        different = np.unique(np.quantile(values, np.linspace(0, 1, MAX_BINS), method="nearest"))
    edges: Floats = (different[:-1] + different[1:]) / 2
    return edges


def bins_of(values: Floats, edges: Floats) -> Ints:
    """(n) the bin of each number: 0 … len(edges)."""
    return np.searchsorted(edges, values).astype(np.int64)
