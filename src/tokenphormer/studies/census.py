"""All graphs of a few nodes, one of each shape, and colour refinement, the yardstick of message passing.

A graph of n nodes is a number here: bit e says whether the e-th pair of nodes is joined.
"""

from __future__ import annotations

from itertools import combinations, permutations
from math import comb

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph
from tokenphormer.graph.statistics import component_labels

Codes = NDArray[np.int64]


def graph_codes(n: int) -> Codes:
    """One number for every graph of n nodes up to isomorphism: 1, 2, 4, 11, 34, 156, 1044 for n = 1 … 7.

    Every such graph is one of n − 1 nodes and a further node, joined to some of them.
    """
    if n == 1:
        return np.zeros(1, dtype=np.int64)
    smaller = graph_codes(n - 1)
    joined = np.arange(1 << (n - 1), dtype=np.int64) << comb(n - 1, 2)
    return np.unique(canonical((smaller[:, None] | joined[None]).ravel(), n))


def canonical(codes: Codes, n: int) -> Codes:
    """The least number among all orders of the nodes: the same for graphs that are the same."""
    place = {pair: bit for bit, pair in enumerate(_pairs(n))}
    least = codes
    for order in permutations(range(n)):
        moved = np.zeros_like(codes)
        for (u, v), bit in place.items():
            target = place[min(order[u], order[v]), max(order[u], order[v])]
            moved |= ((codes >> bit) & 1) << target
        least = np.minimum(least, moved)
    return least


def _pairs(n: int) -> list[tuple[int, int]]:
    """Pairs of nodes in the order of the larger one, so that a further node's pairs come last."""
    return sorted(combinations(range(n), 2), key=lambda pair: (pair[1], pair[0]))


def decode(code: int, n: int) -> Graph:
    """The graph that a number stands for."""
    edges = [pair for bit, pair in enumerate(_pairs(n)) if code >> bit & 1]
    return Graph.from_edges(np.array(edges, dtype=np.int64).reshape(-1, 2).T, num_nodes=n, name=f"{n}:{code}")


def connected_graphs(n: int) -> list[Graph]:
    """One of every connected graph of n nodes: 1, 1, 2, 6, 21, 112, 853 for n = 1 … 7."""
    graphs = [decode(int(code), n) for code in graph_codes(n)]
    return [graph for graph in graphs if not component_labels(graph).any()]


def refined_colours(graphs: list[Graph]) -> list[tuple[int, ...]]:
    """Colour refinement (1-WL) of several graphs together: of each graph, the sorted colours of its nodes at the end.

    Equal tuples are graphs that no message passing tells apart, if all nodes begin alike.
    """
    colours = [np.zeros(graph.num_nodes, dtype=np.int64) for graph in graphs]
    for _ in range(max(graph.num_nodes for graph in graphs)):
        names: dict[tuple[int, tuple[int, ...]], int] = {}
        colours = [
            np.array([names.setdefault(_view(graph, colour, v), len(names)) for v in range(graph.num_nodes)])
            for graph, colour in zip(graphs, colours, strict=True)
        ]
    return [tuple(sorted(colour.tolist())) for colour in colours]


def _view(graph: Graph, colour: Codes, node: int) -> tuple[int, tuple[int, ...]]:
    return int(colour[node]), tuple(sorted(colour[graph.neighbours(node)].tolist()))
