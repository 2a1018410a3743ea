"""Neighbourhoods: true distances, edges of the graph, and no more than can be drawn."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from tests.tiny import tiny_graph
from tokenphormer.graph import Graph
from tokenphormer.serve.neighbourhood import Neighbourhood, neighbourhood


def networkx(graph: Graph) -> nx.Graph[int]:
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    made: nx.Graph[int] = nx.DiGraph() if graph.directed else nx.Graph()
    made.add_nodes_from(range(graph.num_nodes))
    made.add_edges_from(zip(source.tolist(), graph.indices.tolist(), strict=True))
    return made


def check(found: Neighbourhood, graph: Graph, node: int) -> None:
    peer = networkx(graph)
    distance = nx.single_source_shortest_path_length(peer, node)
    assert found.nodes[0] == node
    assert len(set(found.nodes)) == len(found.nodes)
    assert [distance[each] for each in found.nodes] == list(found.distances)
    assert list(found.distances) == sorted(found.distances)
    drawn = {(found.nodes[a], found.nodes[b]) for a, b in found.edges}
    among = {(a, b) for a, b in peer.edges(found.nodes) if a in found.nodes and b in found.nodes}
    assert len(drawn) == len(found.edges)
    if graph.directed:
        assert drawn == among
    else:
        assert {frozenset(pair) for pair in drawn} == {frozenset(pair) for pair in among}


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
def test_everything_within_the_hops(hops: int, directed: bool) -> None:
    graph = tiny_graph(directed=directed, edge_index=np.random.default_rng(1).integers(0, 60, (2, 90)))
    for node in range(0, 60, 7):
        found = neighbourhood(graph, node, hops, 1000, {})
        check(found, graph, node)
        near = nx.single_source_shortest_path_length(networkx(graph), node, cutoff=hops)
        assert set(found.nodes) == set(near)
        assert all(ring.shown == ring.total for ring in found.rings)


@pytest.mark.parametrize("limit", [1, 5, 20])
def test_no_more_than_the_limit(limit: int) -> None:
    graph = tiny_graph()
    for node in range(0, 60, 7):
        found = neighbourhood(graph, node, 3, limit, {})
        check(found, graph, node)
        assert len(found.nodes) <= limit + 1
        for ring in found.rings:
            assert ring.total is not None
            assert ring.shown <= ring.total
        # Nothing floats: every node has an edge towards the middle.
        inner = {found.nodes[b]: found.nodes[a] for a, b in found.edges} | {found.nodes[a]: 0 for a, b in found.edges}
        assert set(found.nodes[1:]) <= inner.keys()


def test_a_node_of_many_neighbours_still_shows_what_lies_behind() -> None:
    star = [[0] * 100 + list(range(1, 101)), list(range(1, 101)) + list(range(101, 201))]
    found = neighbourhood(Graph.from_edges(star), 0, 2, 40, {})
    assert [(ring.shown, ring.total) for ring in found.rings] == [(20, 100), (20, 100)]


def test_nodes_with_more_edges_come_first() -> None:
    graph = Graph.from_edges([[0, 0, 0, 1, 2, 1, 3], [1, 2, 3, 4, 4, 5, 6]])
    found = neighbourhood(graph, 0, 2, 4, {})
    assert found.nodes == (0, 1, 2, 4, 5)


def test_nodes_that_must_be_there() -> None:
    path = Graph.from_edges([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    found = neighbourhood(path, 0, 1, 1, {0: 0, 1: 1, 5: 5, 3: 3})
    check(found, path, 0)
    assert found.nodes == (0, 1, 3, 5)
    assert [(ring.distance, ring.shown, ring.total) for ring in found.rings] == [(1, 1, 1), (3, 1, None), (5, 1, None)]
    assert len(neighbourhood(tiny_graph(), 0, 2, 1, dict.fromkeys(tiny_graph().neighbours(0).tolist(), 1)).nodes) > 2


@pytest.mark.parametrize(("limit", "expected"), [(1, 4), (4, 4), (5, 5), (9, 9)])
def test_nodes_that_must_be_there_are_of_the_limit(limit: int, expected: int) -> None:
    star = Graph.from_edges([[0] * 20, list(range(1, 21))])
    found = neighbourhood(star, 0, 1, limit, dict.fromkeys([3, 5, 8, 13], 1))
    assert len(found.nodes) - 1 == expected
    assert set(found.nodes) > {3, 5, 8, 13}


def test_a_node_alone() -> None:
    found = neighbourhood(Graph.from_edges([[0], [1]], 3), 2, 3, 10, {})
    assert (found.nodes, found.edges, found.rings) == ((2,), (), ())
