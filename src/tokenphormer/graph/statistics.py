"""Sizes, components, homophily, diameter and radius of a graph.

Eccentricities come from a breadth-first search that carries 64 sources at once, one bit each (Then et al.:
The more the merrier, PVLDB 2014). Where searching from every node would take too long, four searches from
chosen nodes bound diameter and radius instead. Distances ignore edge directions and weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numba import njit, prange
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from tokenphormer.graph.graph import Graph

MAX_WORK = 2e10
"""Edge visits up to which diameter and radius are made exact: some 20 seconds on two cores."""

Bounds = tuple[int, int]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class GraphStatistics:
    """What a person wants to know of a graph before working with it. Bounds are (at least, at most)."""

    nodes: int
    edges: int
    directed: bool
    classes: int
    features: int
    isolated: int
    """Nodes without any neighbour but themselves."""
    components: int
    """Connected components; of a directed graph, weakly connected ones."""
    largest_component: int
    """Nodes of the largest component."""
    mean_degree: float
    """Of a directed graph, the out-degree."""
    max_degree: int
    edge_homophily: float | None
    """Share of edges between labelled nodes that join equal labels; None without such edges."""
    node_homophily: float | None
    """The same share among each node's own edges, averaged over nodes that have any."""
    diameter: Bounds
    """Greatest distance in the largest component, edge directions ignored."""
    radius: Bounds
    """Least eccentricity in the largest component, edge directions ignored."""

    @property
    def exact(self) -> bool:
        """Whether diameter and radius are single numbers."""
        return self.diameter[0] == self.diameter[1] and self.radius[0] == self.radius[1]


@dataclass(frozen=True, eq=False)
class Extents:
    """(components) bounds of each component's diameter and radius, in the order of `component_labels`."""

    diameter_low: Ints
    diameter_high: Ints
    radius_low: Ints
    radius_high: Ints


def graph_statistics(graph: Graph, *, max_work: float = MAX_WORK) -> GraphStatistics:
    """Count and measure; diameter and radius are exact if that takes at most `max_work` edge visits.

    >>> path = graph_statistics(Graph.from_edges([[0, 1, 2], [1, 2, 3]], num_nodes=5, y=[0, 0, 1, 1, 1]))
    >>> path.diameter, path.radius, path.components, round(path.edge_homophily, 3)
    ((3, 3), (2, 2), 2, 0.667)
    """
    sizes = np.bincount(component_labels(graph))
    extents = component_extents(graph, max_work=max_work)
    edge_homophily, node_homophily = homophily(graph)
    return GraphStatistics(
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        directed=graph.directed,
        classes=graph.num_classes,
        features=graph.num_features,
        isolated=int((sizes == 1).sum()),
        components=len(sizes),
        largest_component=int(sizes[0]),
        mean_degree=graph.num_directed_edges / graph.num_nodes,
        max_degree=int(graph.degree.max()),
        edge_homophily=edge_homophily,
        node_homophily=node_homophily,
        diameter=(int(extents.diameter_low[0]), int(extents.diameter_high[0])),
        radius=(int(extents.radius_low[0]), int(extents.radius_high[0])),
    )


def homophily(graph: Graph) -> tuple[float | None, float | None]:
    """Edge homophily and node homophily; self-loops and unlabelled ends do not count."""
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    target = graph.indices
    counted = (graph.y[source] >= 0) & (graph.y[target] >= 0) & (source != target)
    source, target = source[counted], target[counted]
    if not len(source):
        return None, None
    equal = graph.y[source] == graph.y[target]
    edges = np.bincount(source)
    shares = np.bincount(source, weights=equal)[edges > 0] / edges[edges > 0]
    return float(equal.mean()), float(shares.mean())


def component_labels(graph: Graph) -> Ints:
    """(n) each node's component; 0 is the largest, equal sizes are in the order of their first nodes."""
    return _labels(_undirected(graph))


def radius_by_component(graph: Graph, *, max_work: float = MAX_WORK) -> Ints:
    """(components) the radius of each component; where only bounds are known, the upper one.

    >>> two = Graph.from_edges([[0, 1, 2, 3, 5], [1, 2, 3, 4, 6]])
    >>> component_labels(two).tolist(), radius_by_component(two).tolist()
    ([0, 0, 0, 0, 0, 1, 1], [2, 1])
    """
    return component_extents(graph, max_work=max_work).radius_high


def eccentricities(graph: Graph, nodes: ArrayLike | None = None) -> Ints:
    """(len(nodes)) the greatest distance from each node to any node of its component; default: all nodes."""
    ordered = _order(graph)
    chosen = np.arange(graph.num_nodes) if nodes is None else np.asarray(nodes, dtype=np.int64)
    places = ordered.place[chosen]
    order = np.argsort(places, kind="stable")
    result = np.empty(len(chosen), dtype=np.int64)
    result[order] = _search_all(ordered.indptr, ordered.indices, places[order], ordered.starts)
    return result


def component_extents(graph: Graph, *, max_work: float = MAX_WORK) -> Extents:
    """Diameter and radius of every component: bounds by four searches, then exact, the small ones first."""
    ordered = _order(graph)
    extents = _bounds(ordered)
    starts = ordered.starts
    edges, nodes = np.diff(ordered.indptr[starts]), np.diff(starts)
    work = np.ceil(nodes / 64) * (edges + nodes) * (extents.diameter_low + 1)
    # The smallest stand last. From `first` on, all fit into the budget together.
    first = int((np.cumsum(work[::-1])[::-1] > max_work).sum())
    if first < len(nodes):
        sources = np.arange(starts[first], starts[-1])
        exact = _search_all(ordered.indptr, ordered.indices, sources, starts)
        offsets = starts[first:-1] - starts[first]
        diameter, radius = np.maximum.reduceat(exact, offsets), np.minimum.reduceat(exact, offsets)
        for low, high, value in (
            (extents.diameter_low, extents.diameter_high, diameter),
            (extents.radius_low, extents.radius_high, radius),
        ):
            assert (low[first:] <= value).all()
            assert (value <= high[first:]).all()
            low[first:] = high[first:] = value
    return extents


# -------------------------------------------------------------------- nodes in the order of their components


@dataclass(frozen=True, eq=False)
class _Ordered:
    """The undirected graph with its nodes renumbered so that every component is one range of places."""

    indptr: Ints
    indices: NDArray[np.int32]
    place: Ints
    """(n) node → place."""
    starts: Ints
    """(components + 1) first place of each component."""


def _undirected(graph: Graph) -> sp.csr_array:
    ones = np.ones(graph.num_directed_edges, dtype=np.int8)
    matrix = sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.num_nodes, graph.num_nodes))
    return sp.csr_array(matrix.maximum(matrix.T)) if graph.directed else matrix


def _labels(matrix: sp.csr_array) -> Ints:
    _, found = connected_components(matrix, directed=False)
    _, first, sizes = np.unique(found, return_index=True, return_counts=True)
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(len(sizes))
    return rank[found]


def _order(graph: Graph) -> _Ordered:
    matrix = _undirected(graph)
    labels = _labels(matrix)
    order = np.argsort(labels, kind="stable")
    place = np.empty(graph.num_nodes, dtype=np.int64)
    place[order] = np.arange(graph.num_nodes)
    degree = np.diff(matrix.indptr)[order]
    indptr = np.zeros(graph.num_nodes + 1, dtype=np.int64)
    np.cumsum(degree, out=indptr[1:])
    edges = np.repeat(matrix.indptr[order] - indptr[:-1], degree) + np.arange(indptr[-1])
    starts = np.zeros(int(labels.max()) + 2, dtype=np.int64)
    np.cumsum(np.bincount(labels), out=starts[1:])
    return _Ordered(indptr, place[matrix.indices[edges]].astype(np.int32), place, starts)


# -------------------------------------------------------------------- searches


def _bounds(ordered: _Ordered) -> Extents:
    """Search from a hub, the node farthest from it, the node farthest from that, and one midway between.

    All components at once, each search from one node of each. An eccentricity e says: diameter from e to 2·e,
    radius at most e; and the radius is at least half the diameter.
    """
    starts = ordered.starts
    hubs = _first_of_best(np.diff(ordered.indptr), starts)
    from_hub = _distances(ordered.indptr, ordered.indices, hubs)
    end = _first_of_best(from_hub, starts)
    from_end = _distances(ordered.indptr, ordered.indices, end)
    from_other = _distances(ordered.indptr, ordered.indices, _first_of_best(from_end, starts))
    middle = _first_of_best(-np.maximum(from_end, from_other), starts)
    from_middle = _distances(ordered.indptr, ordered.indices, middle)
    searches = (from_hub, from_end, from_other, from_middle)
    found = np.stack([np.maximum.reduceat(distances, starts[:-1]) for distances in searches])
    low, least = found.max(axis=0), found.min(axis=0)
    return Extents(low, 2 * least, (low + 1) // 2, least)


def _first_of_best(values: Ints, starts: Ints) -> Ints:
    """(components) the first place in each component that holds its greatest value."""
    best = np.repeat(np.maximum.reduceat(values, starts[:-1]), np.diff(starts))
    hits = np.flatnonzero(values == best)
    return hits[np.searchsorted(hits, starts[:-1])]


@njit(cache=True)
def _distances(indptr: Ints, indices: NDArray[np.int32], seeds: Ints) -> Ints:
    """(n) distance from the nearest seed; every component holds one."""
    n = len(indptr) - 1
    distance = np.full(n, -1, dtype=np.int64)
    queue = np.empty(n, dtype=np.int32)
    tail = 0
    for seed in seeds:
        distance[seed] = 0
        queue[tail] = seed
        tail += 1
    head = 0
    while head < tail:
        node = queue[head]
        head += 1
        for edge in range(indptr[node], indptr[node + 1]):
            neighbour = indices[edge]
            if distance[neighbour] < 0:
                distance[neighbour] = distance[node] + 1
                queue[tail] = neighbour
                tail += 1
    return distance


@njit(cache=True)
def _search_64(indptr: Ints, indices: NDArray[np.int32], sources: Ints, low: int, high: int) -> Ints:
    """Eccentricities of up to 64 sources whose components are the places `low` to `high` − 1."""
    seen = np.zeros(high - low, dtype=np.uint64)
    front = np.zeros(high - low, dtype=np.uint64)
    fresh = np.zeros(high - low, dtype=np.uint64)
    result = np.zeros(len(sources), dtype=np.int64)
    everyone = np.uint64(0)
    for bit in range(len(sources)):
        mask = np.uint64(1) << np.uint64(bit)
        seen[sources[bit] - low] |= mask
        front[sources[bit] - low] |= mask
        everyone |= mask
    level = 0
    while True:
        level += 1
        reached = np.uint64(0)
        for node in range(high - low):
            news = np.uint64(0)
            lacking = everyone & ~seen[node]
            if lacking != 0:
                for edge in range(indptr[low + node], indptr[low + node + 1]):
                    news |= front[indices[edge] - low]
                    if news & lacking == lacking:
                        break
                news &= lacking
                seen[node] |= news
                reached |= news
            fresh[node] = news
        if reached == 0:
            return result
        for bit in range(len(sources)):
            if (reached >> np.uint64(bit)) & np.uint64(1):
                result[bit] = level
        front, fresh = fresh, front


@njit(cache=True, parallel=True)
def _search_all(indptr: Ints, indices: NDArray[np.int32], sources: Ints, starts: Ints) -> Ints:
    """Eccentricities of ascending `sources`, 64 at a time."""
    result = np.zeros(len(sources), dtype=np.int64)
    for batch in prange((len(sources) + 63) // 64):
        chunk = sources[batch * 64 : (batch + 1) * 64]
        low = starts[np.searchsorted(starts, chunk[0], side="right") - 1]
        high = starts[np.searchsorted(starts, chunk[-1], side="right")]
        result[batch * 64 : batch * 64 + len(chunk)] = _search_64(indptr, indices, chunk, low, high)
    return result
