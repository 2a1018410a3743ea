"""Centrality against networkx and a slow twin, and the bins that embeddings have."""

from __future__ import annotations

import time

import networkx as nx
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.sgpm.graphs import pieces
from tests.tiny import tiny_graph
from tests.walks.graphs import AWKWARD, barbell, directed_with_sinks, leaf_chains, random_graph, star, weighted
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


def slow_core_numbers(graph: Graph) -> NDArray[np.int64]:
    """The twin: a node's core number is the h-index of its neighbours' core numbers.

    Repeating that from the degrees on comes down to it (Lü et al. 2016, https://doi.org/10.1038/ncomms10168).
    """
    core = graph.degree.copy()
    while True:
        new = core.copy()
        for node in range(graph.num_nodes):
            best = np.sort(core[graph.neighbours(node)])[::-1]
            new[node] = (best > np.arange(len(best))).sum()  # the (i + 1)-th largest is at least i + 1
        if (new == core).all():
            return core
        core = new


def with_loops(seed: int, directed: bool, n: int = 40, edges: int = 160) -> Graph:
    """A random graph with self-loops, also of nodes that have nothing else, and nodes alone."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(n // 2, size=(2, edges))
    loops = rng.integers(n, size=n // 3)
    return Graph.from_edges(np.concatenate([ends, [loops, loops]], axis=1), n, directed=directed, self_loops=True)


@pytest.mark.parametrize("graph", [*GRAPHS, *AWKWARD, random_graph(4, n=80, edges=700, directed=True)], ids=str)
def test_core_numbers_as_the_slow_twin(graph: Graph) -> None:
    found = core_numbers(graph)
    assert found.dtype == np.int64
    assert found.tolist() == slow_core_numbers(graph).tolist()


@pytest.mark.parametrize("directed", [False, True])
def test_core_numbers_of_random_graphs_with_loops(directed: bool) -> None:
    different = set()
    for seed in range(30):
        graph = with_loops(seed, directed, edges=10 * (seed + 1))
        assert graph.num_self_loops
        assert (graph.degree == 0).any()
        assert core_numbers(graph).tolist() == slow_core_numbers(graph).tolist()
        different |= set(core_numbers(graph).tolist())
    assert {0, 1, 2, 3, 4, 5} <= different


def test_core_numbers_count_a_loop_once_and_follow_edges() -> None:
    loop = Graph.from_edges([[0, 1], [0, 2]], 4, self_loops=True)
    assert core_numbers(loop).tolist() == [1, 1, 1, 0]
    # 0 → 1 → 2 → 0 is a cycle, 3 leads into it, and 4 is led to: only who leads on has neighbours that do.
    edges = Graph.from_edges([[0, 1, 2, 3, 0], [1, 2, 0, 0, 4]], 5, directed=True)
    assert core_numbers(edges).tolist() == [1, 1, 1, 1, 0]
    assert core_numbers(Graph.from_edges(np.zeros((2, 0), int), 3)).tolist() == [0, 0, 0]
    assert core_numbers(Graph.from_edges(np.zeros((2, 0), int), 3, directed=True)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("directed", [False, True])
def test_core_numbers_of_a_path_of_a_million_nodes(directed: bool) -> None:
    """Seconds: its ends must not be felt one step a pass over the edges."""
    node = np.arange(999_999)
    path = Graph.from_edges([node, node + 1], directed=directed)
    began = time.perf_counter()
    found = core_numbers(path)
    assert time.perf_counter() - began < 30  # a tenth, but for compiling on a busy machine
    assert set(found.tolist()) == ({0} if directed else {1})


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
