"""The surroundings of a node, as much of them as can be drawn: rings of nodes by distance, and the edges between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenphormer.graph import Graph

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ring:
    """The nodes at one distance."""

    distance: int
    shown: int
    total: int | None
    """None beyond the hops that were looked at."""


@dataclass(frozen=True)
class Neighbourhood:
    """A node, what lies around it, and the edges between."""

    nodes: tuple[int, ...]
    """Indices, the node itself first, then by distance."""
    distances: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of places in `nodes`; of an undirected edge, one."""
    rings: tuple[Ring, ...]


def neighbourhood(graph: Graph, node: int, hops: int, limit: int, also: Mapping[int, int]) -> Neighbourhood:
    """The nodes `also` with their distances, and as many around a node, within `hops`, as make `limit` of all.

    Every ring but the last takes at most half of the room that is left, so that a node of many neighbours still shows
    what lies behind them. Nodes with the most edges to what is shown already come first, and none without any.

    >>> g = Graph.from_edges([[0, 0, 1, 3], [1, 2, 3, 4]])
    >>> found = neighbourhood(g, 0, hops=2, limit=10, also={})
    >>> found.nodes, found.distances, found.edges
    ((0, 1, 2, 3), (0, 1, 1, 2), ((0, 1), (0, 2), (1, 3)))
    """
    wanted = {index: distance for index, distance in also.items() if index != node}
    shown: dict[int, int] = {node: 0}
    rings, room, levels = [], max(0, limit - len(wanted)), _levels(graph, node, hops)
    for distance, level in enumerate(levels, 1):
        given = [index for index, at in wanted.items() if at == distance]
        shown |= dict.fromkeys(given, distance)
        share = room if distance == hops else (room + 1) // 2
        inner = [index for index, at in shown.items() if at == distance - 1]
        chosen = _most_linked(graph, inner, np.setdiff1d(level, given))[:share]
        shown |= dict.fromkeys(chosen, distance)
        room -= len(chosen)
        rings.append(Ring(distance, len(chosen) + len(given), len(level)))
    further = sorted({at for at in wanted.values() if at > hops})
    for distance in further:
        given = [index for index, at in wanted.items() if at == distance]
        shown |= dict.fromkeys(given, distance)
        rings.append(Ring(distance, len(given), None))
    return Neighbourhood(tuple(shown), tuple(shown.values()), _edges(graph, list(shown)), tuple(rings))


def _levels(graph: Graph, node: int, hops: int) -> list[Ints]:
    """The nodes at distances 1 … hops, ascending."""
    seen = np.zeros(graph.num_nodes, dtype=bool)
    levels, frontier = [], np.array([node])
    for _ in range(hops):
        seen[frontier] = True
        reached = np.unique(_targets(graph, frontier)[1])
        frontier = reached[~seen[reached]]
        if not len(frontier):
            break
        levels.append(frontier.astype(np.int64))
    return levels


def _targets(graph: Graph, nodes: Ints) -> tuple[Ints, Ints]:
    """For all edges that leave `nodes`: the place of the source among them, and the target."""
    degree = graph.degree[nodes]
    before = np.cumsum(degree) - degree
    inside = np.arange(degree.sum()) - np.repeat(before, degree)
    target = graph.indices[np.repeat(graph.indptr[nodes], degree) + inside]
    return np.repeat(np.arange(len(nodes)), degree), target.astype(np.int64)


def _most_linked(graph: Graph, inner: list[int], candidates: Ints) -> list[int]:
    """The candidates that edges from `inner` lead to, those with the most such edges first."""
    if not inner:
        return []
    reached, count = np.unique(_targets(graph, np.array(inner, dtype=np.int64))[1], return_counts=True)
    linked = np.isin(reached, candidates)
    reached, count = reached[linked], count[linked]
    found: list[int] = reached[np.argsort(-count, kind="stable")].tolist()
    return found


def _edges(graph: Graph, nodes: list[int]) -> tuple[tuple[int, int], ...]:
    indices = np.array(nodes)
    order = np.argsort(indices)
    source, target = _targets(graph, indices)
    place = np.minimum(np.searchsorted(indices, target, sorter=order), len(nodes) - 1)
    end = order[place]
    keep = (indices[end] == target) & (source != end)
    if not graph.directed:
        keep &= source < end
    return tuple(zip(source[keep].tolist(), end[keep].tolist(), strict=True))
