"""Centrality against networkx, and the bins that embeddings have."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from tests.sgpm.graphs import pieces
from tests.tiny import tiny_graph
from tests.walks.graphs import barbell, directed_with_sinks, leaf_chains, random_graph, star, weighted
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.sgpm.centrality import MAX_BINS, bin_edges, bins_of, centrality_of, core_numbers, pagerank


def as_networkx(graph: Graph) -> nx.Graph:
    found = nx.DiGraph() if graph.directed else nx.Graph()
    found.add_nodes_from(range(graph.num_nodes))
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    weight = np.ones(len(source)) if graph.edge_weight is None else graph.edge_weight
    found.add_weighted_edges_from(zip(source.tolist(), graph.indices.tolist(), weight.tolist(), strict=True))
    return found


GRAPHS = [pieces(), tiny_graph(), star(), barbell(), leaf_chains(), random_graph(1, n=200, edges=500)]


@pytest.mark.parametrize(
    "graph", [*GRAPHS, weighted(), directed_with_sinks(), random_graph(2, directed=True, weights=True)], ids=str
)
def test_pagerank(graph: Graph) -> None:
    expected = nx.pagerank(as_networkx(graph), tol=1e-12, max_iter=1000)
    np.testing.assert_allclose(pagerank(graph), [expected[v] for v in range(graph.num_nodes)], rtol=1e-5)
    assert pagerank(graph).sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("graph", [*GRAPHS, random_graph(3, n=60, edges=600)], ids=str)
def test_core_numbers(graph: Graph) -> None:
    expected = nx.core_number(as_networkx(graph))
    assert core_numbers(graph).tolist() == [expected[v] for v in range(graph.num_nodes)]


def test_core_numbers_of_a_long_path() -> None:
    node = np.arange(999)
    assert set(core_numbers(Graph.from_edges([node, node + 1])).tolist()) == {1}


def test_kinds() -> None:
    graph = tiny_graph()
    np.testing.assert_array_equal(centrality_of(graph, "degree"), graph.degree)
    np.testing.assert_array_equal(centrality_of(graph, "core"), core_numbers(graph))
    # The same on a graph twice as large, of two copies: what a new graph is read by must not depend on its size.
    source = np.repeat(np.arange(60), graph.degree)
    both = np.concatenate([np.stack([source, graph.indices]), np.stack([source, graph.indices]) + 60], axis=1)
    twice = Graph.from_edges(both, 120)
    for kind in ("degree", "pagerank", "core"):
        one, two = centrality_of(graph, kind), centrality_of(twice, kind)  # type: ignore[arg-type]
        np.testing.assert_allclose(two, np.tile(one, 2), rtol=1e-6)
    with pytest.raises(InputError, match="centrality: 'fame'; expected degree, pagerank or core"):
        centrality_of(graph, "fame")  # type: ignore[arg-type]


def test_few_values_have_a_bin_each() -> None:
    values = np.array([4.0, 1.0, 9.0, 4.0, 1.0])
    edges = bin_edges(values)
    assert bins_of(values, edges).tolist() == [1, 0, 2, 1, 0]
    assert bins_of(np.array([-100.0, 2.4, 2.6, 6.4, 6.6, 1e9]), edges).tolist() == [0, 0, 1, 1, 2, 2]


def test_many_values_share_bins_of_equal_size() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    edges = bin_edges(values)
    assert len(edges) == MAX_BINS - 1
    sizes = np.bincount(bins_of(values, edges), minlength=MAX_BINS)
    assert sizes.sum() == 10_000
    assert 20 <= sizes[1:-1].min() < sizes.max() <= 60  # some 39 each; at both ends fewer
    assert (np.diff(bins_of(np.sort(values), edges)) >= 0).all()


def test_one_value_has_one_bin() -> None:
    assert bins_of(np.ones(5), bin_edges(np.ones(5))).tolist() == [0] * 5
