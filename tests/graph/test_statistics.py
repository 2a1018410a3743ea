"""Statistics against networkx and against loops that are too plain to be wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokenphormer.graph import Graph
from tokenphormer.graph.statistics import (
    component_extents,
    component_labels,
    eccentricities,
    graph_statistics,
    homophily,
    radius_by_component,
)

nx: Any = pytest.importorskip("networkx")


def random_graph(seed: int, *, directed: bool = False, self_loops: bool = False) -> Graph:
    """Sparse enough to fall into one large and many small components of more than one batch of 64."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 260))
    edges = rng.integers(0, n, size=(2, int(n * rng.uniform(0.3, 1.2))))
    y = rng.integers(-1, 3, size=n)
    names = ("a", "b", "c")
    return Graph.from_edges(edges, n, y=y, class_names=names, directed=directed, self_loops=self_loops)


def as_networkx(graph: Graph) -> Any:
    result = nx.Graph()
    result.add_nodes_from(range(graph.num_nodes))
    sources = np.repeat(np.arange(graph.num_nodes), graph.degree)
    result.add_edges_from(zip(sources.tolist(), graph.indices.tolist(), strict=True))
    return result


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("loops", [False, True])
def test_eccentricities_and_components_as_networkx(seed: int, directed: bool, loops: bool) -> None:
    graph = random_graph(seed, directed=directed, self_loops=loops)
    twin = as_networkx(graph)
    parts = sorted(nx.connected_components(twin), key=lambda part: (-len(part), min(part)))
    labels, found = component_labels(graph), eccentricities(graph)
    extents = component_extents(graph)
    for number, part in enumerate(parts):
        expected = nx.eccentricity(twin.subgraph(part))
        assert all(labels[node] == number for node in part)
        assert {node: int(found[node]) for node in part} == expected
        assert extents.diameter_low[number] == extents.diameter_high[number] == max(expected.values())
        assert extents.radius_low[number] == extents.radius_high[number] == min(expected.values())
    statistics = graph_statistics(graph)
    assert statistics.exact
    assert (statistics.components, statistics.largest_component) == (len(parts), len(parts[0]))
    assert statistics.isolated == sum(len(part) == 1 for part in parts)
    assert statistics.diameter[0] == extents.diameter_low[0]
    assert radius_by_component(graph).tolist() == extents.radius_low.tolist()


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_without_the_exact_search(seed: int) -> None:
    graph = random_graph(seed)
    exact, bounds = component_extents(graph), component_extents(graph, max_work=0)
    assert (bounds.diameter_low <= exact.diameter_low).all()
    assert (exact.diameter_low <= bounds.diameter_high).all()
    assert (bounds.radius_low <= exact.radius_low).all()
    assert (exact.radius_low <= bounds.radius_high).all()


def test_a_small_budget_makes_the_small_components_exact() -> None:
    cycle = [[*range(100)], [*range(1, 100), 0]]
    triangle = [[100, 101, 102], [101, 102, 100]]
    graph = Graph.from_edges(np.concatenate([cycle, triangle], axis=1))
    extents = component_extents(graph, max_work=100)
    assert extents.diameter_low[0] == 50
    assert extents.diameter_high[0] == 100  # twice any node's eccentricity: nothing better is known
    assert extents.diameter_low[1] == extents.diameter_high[1] == 1
    statistics = graph_statistics(graph, max_work=100)
    assert not statistics.exact
    assert statistics.radius == (25, 50)
    assert graph_statistics(graph).radius == (50, 50)


def test_eccentricities_of_chosen_nodes_keep_their_order() -> None:
    path = Graph.from_edges([[0, 1, 2, 3], [1, 2, 3, 4]], num_nodes=6)
    assert eccentricities(path, [4, 2, 5, 0, 4]).tolist() == [4, 2, 0, 4, 4]
    assert eccentricities(path, []).tolist() == []


@pytest.mark.parametrize("directed", [False, True])
def test_homophily_by_hand_loops(directed: bool) -> None:
    graph = random_graph(3, directed=directed, self_loops=True)
    equal, counted, shares = 0, 0, []
    for node in range(graph.num_nodes):
        others = [v for v in graph.neighbours(node).tolist() if v != node and graph.y[v] >= 0]
        if graph.y[node] < 0 or not others:
            continue
        same = sum(graph.y[v] == graph.y[node] for v in others)
        equal, counted = equal + same, counted + len(others)
        shares.append(same / len(others))
    edge, node_average = homophily(graph)
    assert edge == pytest.approx(equal / counted)
    assert node_average == pytest.approx(np.mean(shares))


def test_a_graph_without_edges_or_labels() -> None:
    statistics = graph_statistics(Graph.from_edges(np.zeros((2, 0), dtype=int), num_nodes=3))
    assert (statistics.nodes, statistics.edges, statistics.isolated, statistics.components) == (3, 0, 3, 3)
    assert statistics.diameter == statistics.radius == (0, 0)
    assert statistics.edge_homophily is None
    assert statistics.node_homophily is None


def test_degrees_and_direction() -> None:
    star = graph_statistics(Graph.from_edges([[0, 0, 0], [1, 2, 3]], directed=True))
    assert (star.directed, star.edges, star.max_degree, star.mean_degree) == (True, 3, 3, 0.75)
    assert (star.diameter, star.radius) == ((2, 2), (1, 1))
