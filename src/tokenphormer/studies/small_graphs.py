"""Small graphs with names, and the pairs that tell methods apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tokenphormer.graph import Graph
from tokenphormer.hashing import hash_order

Edge = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two graphs, and whether they are the same but for the names of the nodes."""

    name: str
    a: Graph
    b: Graph
    isomorphic: bool = False


def from_list(edges: Iterable[Edge], name: str) -> Graph:
    """A graph from pairs of nodes."""
    return Graph.from_edges(np.array(list(edges)).T, name=name)


def cycle(n: int) -> Graph:
    """The cycle of n nodes."""
    return from_list(((v, (v + 1) % n) for v in range(n)), f"C{n}")


def complete(n: int) -> Graph:
    """All edges among n nodes."""
    return from_list(((u, v) for u in range(n) for v in range(u)), f"K{n}")


def two_triangles() -> Graph:
    """Two triangles with no edge between them."""
    return from_list([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)], "two triangles")


def utility() -> Graph:
    """K3,3: every one of three nodes with every one of three others."""
    return from_list(((u, v) for u in range(3) for v in range(3, 6)), "K3,3")


def prism() -> Graph:
    """Two triangles, joined node by node."""
    return from_list([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)], "prism")


def spider(*legs: int) -> Graph:
    """A node with paths of these lengths attached."""
    edges: list[Edge] = []
    for leg in legs:
        first = len(edges) + 1
        edges += [(0 if step == 0 else first + step - 1, first + step) for step in range(leg)]
    return from_list(edges, f"spider {', '.join(map(str, legs))}")


def decalin() -> Graph:
    """Two hexagons that share an edge: the carbon atoms of decalin."""
    return from_list([*((v, (v + 1) % 10) for v in range(10)), (0, 5)], "decalin")


def bicyclopentyl() -> Graph:
    """Two pentagons joined by an edge: the carbon atoms of bicyclopentyl."""
    rings = [(5 * ring + v, 5 * ring + (v + 1) % 5) for ring in range(2) for v in range(5)]
    return from_list([*rings, (0, 5)], "bicyclopentyl")


def petersen() -> Graph:
    """A pentagon, a pentagram, and five edges between them."""
    outer, spokes = [(v, (v + 1) % 5) for v in range(5)], [(v, v + 5) for v in range(5)]
    return from_list([*outer, *spokes, *((5 + v, 5 + (v + 2) % 5) for v in range(5))], "Petersen")


def rook() -> Graph:
    """The squares of a 4 × 4 board; an edge where a rook goes in one move."""
    squares = [(row, column) for row in range(4) for column in range(4)]
    moves = [(u, v) for u in range(16) for v in range(u) if _aligned(squares[u], squares[v])]
    return from_list(moves, "rook 4 × 4")


def _aligned(a: Edge, b: Edge) -> bool:
    return a[0] == b[0] or a[1] == b[1]


def shrikhande() -> Graph:
    """The sums of two numbers modulo 4; an edge where they differ by ±(1, 0), ±(0, 1) or ±(1, 1)."""
    steps = ((1, 0), (0, 1), (1, 1))
    moves = ((4 * r + c, 4 * ((r + a) % 4) + (c + b) % 4) for r in range(4) for c in range(4) for a, b in steps)
    return from_list(moves, "Shrikhande")


def relabelled(graph: Graph, seed: int) -> Graph:
    """The same graph with its nodes in another order."""
    order = hash_order(np.arange(graph.num_nodes), seed)
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    edges = np.stack([order[source], order[graph.indices]])
    return Graph.from_edges(edges, num_nodes=graph.num_nodes, name=f"{graph.name}, other names")


def known_pairs() -> list[Pair]:
    """Non-isomorphic pairs from easy to hard, then isomorphic ones."""
    different = [
        Pair("two spiders with the same degrees", spider(1, 1, 3), spider(1, 2, 2)),
        Pair("hexagon / K6", cycle(6), complete(6)),
        Pair("two triangles / hexagon", two_triangles(), cycle(6)),
        Pair("K3,3 / prism", utility(), prism()),
        Pair("decalin / bicyclopentyl", decalin(), bicyclopentyl()),
        Pair("rook 4 × 4 / Shrikhande", rook(), shrikhande()),
    ]
    same = [petersen(), decalin(), shrikhande()]
    return different + [Pair(f"{g.name} / the same, other names", g, relabelled(g, 7), True) for g in same]
