"""Where errors sit: nodes grouped by degree and by homophily, and how sure an accuracy of few nodes is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph.disk import row_blocks
from tokenphormer.graph.graph import Graph

HOMOPHILY_BINS = 5
HOMOPHILY_LABELS = ("0–20 %", "20–40 %", "40–60 %", "60–80 %", "80–100 %", "no labelled neighbour")
EDGES_AT_ONCE = 1 << 22
Z_95 = 1.959963984540054


def bin_by_degree(degree: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Each node's bin among 0, 1, 2, 3–4, 5–8, 9–16, …, and the names of all bins up to the last one held.

    >>> bins, names = bin_by_degree(np.array([0, 1, 2, 3, 4, 9]))
    >>> bins.tolist(), names
    ([0, 1, 2, 3, 3, 5], ('0', '1', '2', '3–4', '5–8', '9–16'))
    """
    if degree.size and degree.min() < 0:
        raise InputError(f"degree: expected counts from 0, got {degree.min()}")
    # The exponent of d − 1 is its length in bits, ⌈log₂ d⌉, without the rounding of a logarithm.
    exponent = np.frexp(np.maximum(degree, 1).astype(np.float64) - 1)[1]
    bins = np.where(degree == 0, 0, exponent + 1).astype(np.int64)
    last = int(bins.max()) if bins.size else -1
    names = [f"{2 ** (k - 2) + 1}–{2 ** (k - 1)}" if k > 2 else str(k) for k in range(last + 1)]
    return bins, tuple(names)


def node_homophily(graph: Graph, nodes: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """(m) share of a node's labelled neighbours that have its own label; NaN without label or such neighbours.

    Of all nodes, or of some: then only their edges are read. Of a directed graph, neighbours are the targets of its
    edges. Self-loops do not count. All labels are used, those of test nodes too: it describes the graph and is nothing
    to train on.

    >>> node_homophily(Graph.from_edges([[0, 1], [1, 2]], num_nodes=4, y=[0, 0, 1, 1])).tolist()
    [1.0, 0.5, 0.0, nan]
    """
    chosen = np.arange(graph.num_nodes) if nodes is None else nodes
    starts = graph.indptr[chosen]
    ends = np.concatenate([[0], np.cumsum(graph.indptr[chosen + 1] - starts)])  # of the chosen rows, one behind another
    shares = np.empty(len(chosen))
    for first, last in row_blocks(ends, EDGES_AT_ONCE):
        row = np.repeat(np.arange(first, last), np.diff(ends[first : last + 1]))
        source, target = chosen[row], graph.indices[np.arange(ends[first], ends[last]) + (starts - ends[:-1])[row]]
        counted = (graph.y[source] >= 0) & (graph.y[target] >= 0) & (source != target)
        row, source, target = row[counted], source[counted], target[counted]
        neighbours = np.bincount(row - first, minlength=last - first)
        equal = np.bincount(row - first, weights=graph.y[source] == graph.y[target], minlength=last - first)
        shares[first:last] = equal / np.where(neighbours > 0, neighbours, np.nan)
    return shares


def bin_by_homophily(homophily: NDArray[np.float64]) -> NDArray[np.int64]:
    """(m) each node's place in `HOMOPHILY_LABELS`; a bin holds its lower edge, the last one 100 % too."""
    known = ~np.isnan(homophily)
    if known.any() and not (homophily[known].min() >= 0 and homophily[known].max() <= 1):
        raise InputError("homophily: expected shares from 0 to 1, or NaN for none")
    fifth = np.minimum(np.where(known, homophily, 0) * HOMOPHILY_BINS, HOMOPHILY_BINS - 1)
    return np.where(known, fifth.astype(np.int64), HOMOPHILY_BINS)


def wilson_interval(
    hits: NDArray[np.integer[Any]], count: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's 95 % interval of the share hits / count; NaN where the count is 0.

    >>> low, high = wilson_interval(np.array([9]), np.array([10]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.596], [0.982])
    """
    total = np.where(count > 0, count, np.nan)
    share, z2 = hits / total, Z_95**2
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z_95 / (1 + z2 / total) * np.sqrt(share * (1 - share) / total + z2 / (4 * total**2))
    return np.maximum(centre - half, 0), np.minimum(centre + half, 1)
