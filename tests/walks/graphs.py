"""Small awkward graphs for the tests of the walks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph


def star() -> Graph:
    return Graph.from_edges([[0, 0, 0, 0], [1, 2, 3, 4]], name="star")


def path_of_two() -> Graph:
    return Graph.from_edges([[0], [1]], num_nodes=3, name="path of two and an isolated node")


def path_of_three() -> Graph:
    return Graph.from_edges([[0, 1], [1, 2]], name="path of three")


def leaf_chains() -> Graph:
    return Graph.from_edges([[0, 1, 2, 0, 4, 0], [1, 2, 3, 4, 5, 6]], name="leaf chains")


def barbell() -> Graph:
    edges = [[0, 0, 1, 2, 3, 4, 4, 5], [1, 2, 2, 3, 4, 5, 6, 6]]
    return Graph.from_edges(edges, name="barbell")


def complete() -> Graph:
    row, column = np.triu_indices(5, 1)
    return Graph.from_edges([row, column], name="complete")


def bipartite() -> Graph:
    edges = [(a, b) for a in range(3) for b in range(3, 7) if (a + b) % 4]
    return Graph.from_edges(np.array(edges).T, name="bipartite")


def directed_with_sinks() -> Graph:
    edges = [[0, 0, 1, 1, 2, 3, 4, 5], [1, 2, 0, 3, 0, 4, 3, 6]]
    return Graph.from_edges(edges, directed=True, name="directed with sinks")


def weighted() -> Graph:
    edges = [[0, 0, 0, 1, 1, 3], [1, 2, 3, 2, 4, 4]]
    return Graph.from_edges(edges, edge_weight=[1.0, 2.5, 0.25, 7.0, 0.5, 3.0], name="weighted")


def extreme_weights() -> Graph:
    """From node 0 with previous node 1 a jump is accepted once in a million attempts: the law is enumerated."""
    edges = [[0, 1, 0, 1, 2], [1, 0, 2, 3, 0]]
    return Graph.from_edges(edges, edge_weight=[1.0, 1.0, 1e-6, 1e-6, 1.0], directed=True, name="extreme weights")


def directed_weighted_loops() -> Graph:
    edges = [[0, 0, 0, 1, 1, 2, 2, 3], [0, 1, 2, 0, 1, 3, 0, 3]]
    weight = [5.0, 1.0, 2.0, 3.0, 1.0, 1.0, 2.0, 1.0]
    return Graph.from_edges(edges, edge_weight=weight, directed=True, self_loops=True, name="loops")


AWKWARD = [
    star(),
    path_of_two(),
    path_of_three(),
    leaf_chains(),
    barbell(),
    complete(),
    bipartite(),
    directed_with_sinks(),
    weighted(),
    extreme_weights(),
    directed_weighted_loops(),
]


def random_graph(seed: int, n: int = 60, edges: int = 120, directed: bool = False, weights: bool = False) -> Graph:
    rng = np.random.default_rng(seed)
    weight = 10.0 ** rng.integers(-3, 3, edges) if weights else None
    return Graph.from_edges(rng.integers(0, n, (2, edges)), n + 3, edge_weight=weight, directed=directed)


def transition(graph: Graph) -> NDArray[np.float64]:
    """P, rows of dead ends zero."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for node in range(graph.num_nodes):
        row = slice(graph.indptr[node], graph.indptr[node + 1])
        weight = np.ones(graph.degree[node]) if graph.edge_weight is None else graph.edge_weight[row]
        matrix[node, graph.indices[row]] = weight / max(weight.sum(), 1e-300)
    return matrix
