"""The exact laws against each other, against matrix powers, and against the walk engine."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.walks.graphs import barbell, bipartite, directed_with_sinks, leaf_chains, path_of_two, star, weighted
from tests.walks.test_distributions import next_law as slow_law
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.studies import laws
from tokenphormer.walks import KINDS, Kind, sample_walks

SMALL = [star(), leaf_chains(), barbell(), bipartite(), path_of_two()]
Law = NDArray[np.float64]


def ids(graph: Graph) -> str:
    return graph.name


def dense(graph: Graph) -> Law:
    return laws.transition_matrix(graph).toarray()


def positions(graph: Graph, kind: Kind, start: Law, steps: int) -> list[Law]:
    return list(laws.position_laws(graph, kind, start, steps))


@pytest.mark.parametrize("radius", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", SMALL, ids=ids)
def test_positions_are_the_ends_of_all_walks(graph: Graph, kind: Kind, radius: int) -> None:
    for node in range(graph.num_nodes):
        start = np.eye(graph.num_nodes)[node]
        for steps, law in enumerate(laws.position_laws(graph, kind, start, 4, radius)):
            ends = np.zeros(graph.num_nodes)
            for walk, mass in laws.walk_law(graph, kind, node, steps, radius).items():
                if len(walk) == steps + 1:  # the others ended before
                    ends[walk[-1]] += float(mass)
            np.testing.assert_allclose(law, ends, atol=1e-14)


@pytest.mark.parametrize("radius", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", SMALL, ids=ids)
def test_next_steps_are_those_of_the_definitions(graph: Graph, kind: Kind, radius: int) -> None:
    """Against the law that the engine itself is tested with, written independently in floats."""
    for node in range(graph.num_nodes):
        for previous in [None, *graph.neighbours(node).tolist()]:
            law = np.zeros(graph.num_nodes)
            for v, mass in laws.next_law(graph, kind, node, previous, radius).items():
                law[v] = float(mass)
            np.testing.assert_allclose(law, slow_law(graph, kind, node, previous, radius), atol=1e-14)


@pytest.mark.parametrize("graph", [*SMALL[:4], weighted()], ids=ids)
def test_uniform_positions_are_powers_of_the_matrix(graph: Graph) -> None:
    start = np.full(graph.num_nodes, 1 / graph.num_nodes)
    for steps, law in enumerate(positions(graph, "uniform", start, 6)):
        np.testing.assert_allclose(law, start @ np.linalg.matrix_power(dense(graph), steps), atol=1e-14)


@pytest.mark.parametrize("graph", [star(), leaf_chains(), barbell()], ids=ids)
def test_non_backtracking_positions_are_powers_of_the_papers_edge_matrix(graph: Graph) -> None:
    """P̃((u, v), (x, y)) of the paper, and (v, u) from (u, v) where v has no other neighbour."""
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    edges = list(zip(source.tolist(), graph.indices.tolist(), strict=True))
    P = np.zeros((len(edges), len(edges)))
    for i, (u, v) in enumerate(edges):
        for j, (x, y) in enumerate(edges):
            if v == x and (y != u or graph.degree[v] == 1):
                P[i, j] = 1 / max(graph.degree[v] - 1, 1)
    np.testing.assert_allclose(P.sum(axis=0), 1)  # doubly stochastic: why every edge stays as likely as any other
    np.testing.assert_allclose(P.sum(axis=1), 1)
    start = np.eye(graph.num_nodes)[0]
    first = np.array([start[u] / graph.degree[u] for u, _ in edges])
    for steps, law in enumerate(positions(graph, "non_backtracking", start, 6)[1:]):
        at = np.zeros(graph.num_nodes)
        np.add.at(at, graph.indices, first @ np.linalg.matrix_power(P, steps))
        np.testing.assert_allclose(law, at, atol=1e-14)


@pytest.mark.parametrize("kind", ["uniform", "non_backtracking"])
@pytest.mark.parametrize("graph", SMALL, ids=ids)
def test_the_degree_law_stays(graph: Graph, kind: Kind) -> None:
    degrees = laws.degree_law(graph)
    np.testing.assert_allclose(degrees, graph.degree / (2 * graph.num_edges))
    for law in positions(graph, kind, degrees, 5):
        np.testing.assert_allclose(law, degrees, atol=1e-15)


def test_the_degree_law_does_not_stay_under_jumps_nor_with_weights() -> None:
    graph = barbell()
    for kind in ("jump", "non_backtracking_jump"):
        assert (
            laws.total_variation(positions(graph, kind, laws.degree_law(graph), 1)[1], laws.degree_law(graph)) > 0.005
        )
    graph = weighted()
    degrees = laws.degree_law(graph)
    assert laws.total_variation(positions(graph, "uniform", degrees, 9)[-1], degrees) == 0
    assert laws.total_variation(positions(graph, "non_backtracking", degrees, 9)[-1], degrees) > 0.01


@pytest.mark.parametrize("radius", [2, 3])
@pytest.mark.parametrize("graph", [star(), leaf_chains(), barbell(), weighted()], ids=ids)
def test_the_jump_limit_stays_and_is_reached(graph: Graph, radius: int) -> None:
    limit = laws.jump_limit(graph, radius)
    np.testing.assert_allclose(limit @ laws.step_law(graph, "jump", radius).toarray(), limit, atol=1e-15)
    start = np.eye(graph.num_nodes)[0]
    np.testing.assert_allclose(list(laws.position_laws(graph, "jump", start, 400, radius))[-1], limit, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_draws_from_these_laws(kind: Kind) -> None:
    graph, walks, steps = barbell(), 40_000, 5
    drawn = sample_walks(graph, kind, walks, steps, nodes=[1], seed=3).numpy()[0]
    for step, law in enumerate(positions(graph, kind, np.eye(graph.num_nodes)[1], steps)):
        share = np.bincount(drawn[:, step], minlength=graph.num_nodes) / walks
        # Five standard deviations of each node's share.
        assert (np.abs(share - law) <= 5 * np.sqrt(law * (1 - law) / walks) + 1e-12).all()


@pytest.mark.parametrize("kind", ["uniform", "non_backtracking"])
@pytest.mark.parametrize("graph", [star(), leaf_chains(), barbell()], ids=ids)
def test_weighted_walks_are_all_walks(graph: Graph, kind: Kind) -> None:
    base = laws.common_base([graph])
    for start in range(graph.num_nodes):
        walks, weight = laws.weighted_walks(graph, kind, start, 4, base)
        assert int(weight.sum()) == base**4
        found = {tuple(walk): w for walk, w in zip(walks.tolist(), weight.tolist(), strict=True)}
        exact = laws.walk_law(graph, kind, start, 4)
        assert found == {walk: int(mass * base**4) for walk, mass in exact.items()}


def test_directed_graphs_are_refused() -> None:
    with pytest.raises(InputError, match="is directed"):
        positions(directed_with_sinks(), "uniform", np.ones(7) / 7, 1)


def test_total_variation() -> None:
    assert laws.total_variation(np.array([0.5, 0.5, 0]), np.array([0.25, 0.25, 0.5])) == 0.5
    assert laws.total_variation(np.array([0.3, 0.7]), np.array([0.3, 0.7])) == 0
    assert laws.total_variation(np.array([0.5, 0.5]), np.array([0.5 + 1e-9, 0.5 - 1e-9])) == 1e-9
    assert laws.total_variation(np.array([0.5, 0.5]), np.array([0.5 + 1e-15, 0.5 - 1e-15])) == 0
