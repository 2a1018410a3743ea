"""How central a node is, and the bins that turn it into an embedding's index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix
from tokenphormer.sgpm.settings import Centrality

MAX_BINS = 256
DAMPING = 0.85
Floats = NDArray[np.float64]


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


def core_numbers(graph: Graph) -> NDArray[np.int64]:
    """(n) the largest k such that the node is in a subgraph whose nodes all have k neighbours in it.

    A node's core number is the h-index of its neighbours' core numbers; repeating that from the degrees on comes down
    to it (Lü et al. 2016, https://doi.org/10.1038/ncomms10168).
    """
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    core = graph.degree.copy()
    while True:
        order = np.lexsort((-core[graph.indices], source))
        place = np.arange(len(source)) - graph.indptr[source]
        enough = core[graph.indices[order]] > place  # the (place + 1)-th largest is at least place + 1
        new = np.bincount(source, weights=enough, minlength=graph.num_nodes).astype(np.int64)
        if (new == core).all():
            return core
        core = new


def bin_edges(values: Floats) -> Floats:
    """At most 255 values that part the numbers into bins: between all different ones, or else at quantiles."""
    different = np.unique(values)
    if len(different) > MAX_BINS:
        different = np.unique(np.quantile(values, np.linspace(0, 1, MAX_BINS), method="nearest"))
    edges: Floats = (different[:-1] + different[1:]) / 2
    return edges


def bins_of(values: Floats, edges: Floats) -> NDArray[np.int64]:
    """(n) the bin of each number: 0 … len(edges)."""
    return np.searchsorted(edges, values).astype(np.int64)
