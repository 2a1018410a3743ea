"""The law of the first and second step of every kind against the exact matrix, by chi-square."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2

from tests.walks.graphs import AWKWARD, transition
from tokenphormer.graph import Graph
from tokenphormer.walks import KINDS, Kind, sample_walks

WALKS = 20_000
RADIUS = 3
Law = NDArray[np.float64]


def next_law(graph: Graph, kind: Kind, node: int, previous: int | None, radius: int) -> Law:
    """The exact law of the next node, straight from the paper's definitions; all zero where the walk ends."""
    P = transition(graph)
    if kind in ("uniform", "non_backtracking"):
        law = P[node].copy()
        if kind == "non_backtracking" and previous is not None and graph.degree[node] > 1:
            law[previous] = 0
    else:
        law = sum(np.linalg.matrix_power(P, j)[node] for j in range(1, radius + 1)) / radius
        law[node] = 0
        if kind == "non_backtracking_jump" and previous is not None:
            without = law.copy()
            without[previous] = 0
            law = without if without.sum() > 1e-15 else law
    total = law.sum()
    return law / total if total > 0 else law


def check(counts: Law, law: Law, where: str) -> tuple[float, int]:
    """Chi-square statistic and degrees of freedom; nothing may be drawn that has probability zero."""
    assert counts[law == 0].sum() == 0, f"{where}: drew what cannot be drawn"
    expected = law * counts.sum()
    order = np.argsort(expected)
    # The rarest bins are pooled until the pool is large enough for the chi-square approximation.
    pooled = int(np.searchsorted(np.cumsum(expected[order]), 10)) + 1
    rare, rest = order[:pooled], order[pooled:]
    observed = np.append(counts[rest], counts[rare].sum())
    expected = np.append(expected[rest], expected[rare].sum())
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return statistic, len(rest)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graph", AWKWARD, ids=lambda g: g.name)
def test_one_and_two_steps_follow_the_exact_law(graph: Graph, kind: Kind) -> None:
    walks = sample_walks(graph, kind, WALKS, 2, jump_radius=RADIUS, seed=11).numpy()
    statistic, freedom = 0.0, 0
    for node in range(graph.num_nodes):
        law = next_law(graph, kind, node, None, RADIUS)
        first = walks[node, :, 1]
        if law.sum() == 0:
            assert (walks[node, :, 1:] == -1).all()
            continue
        counts = np.bincount(first, minlength=graph.num_nodes).astype(float)
        s, f = check(counts, law, f"{kind} from {node}")
        statistic, freedom = statistic + s, freedom + f
        for middle in np.flatnonzero(counts > 500):
            second = walks[node, first == middle, 2]
            law = next_law(graph, kind, int(middle), node, RADIUS)
            if law.sum() == 0:
                assert (second == -1).all()
                continue
            counts = np.bincount(second, minlength=graph.num_nodes).astype(float)
            s, f = check(counts, law, f"{kind} from {node} over {middle}")
            statistic, freedom = statistic + s, freedom + f
    if freedom:
        assert chi2.sf(statistic, freedom) > 1e-5, f"chi-square {statistic:.1f} on {freedom} degrees of freedom"


def test_the_check_can_fail() -> None:
    """The same test on a wrong law must fail, or it shows nothing."""
    graph = AWKWARD[0]
    walks = sample_walks(graph, "uniform", WALKS, 1, seed=11).numpy()
    counts = np.bincount(walks[0, :, 1], minlength=graph.num_nodes).astype(float)
    law = next_law(graph, "uniform", 0, None, RADIUS)
    tilted = law * np.array([0, 1.1, 1.0, 1.0, 0.9])
    statistic, freedom = check(counts, tilted, "tilted")
    assert chi2.sf(statistic, freedom) < 1e-5


@pytest.mark.parametrize("radius", [1, 2, 5])
def test_other_radii(radius: int) -> None:
    graph = AWKWARD[4]
    walks = sample_walks(graph, "non_backtracking_jump", WALKS, 2, jump_radius=radius, seed=5).numpy()
    statistic, freedom = 0.0, 0
    for middle in range(graph.num_nodes):
        second = walks[1, walks[1, :, 1] == middle, 2]
        if len(second) > 500:
            law = next_law(graph, "non_backtracking_jump", middle, 1, radius)
            counts = np.bincount(second, minlength=graph.num_nodes).astype(float)
            s, f = check(counts, law, f"radius {radius} over {middle}")
            statistic, freedom = statistic + s, freedom + f
    assert freedom > 0
    assert chi2.sf(statistic, freedom) > 1e-5


def test_hub_of_a_hundred_thousand_is_not_biased() -> None:
    n = 100_001
    hub = Graph.from_edges([np.zeros(n - 1, np.int64), np.arange(1, n)])
    ends = sample_walks(hub, "uniform", 1_000_000, 1, nodes=[0], seed=2).numpy()[0, :, 1]
    counts = np.bincount((ends - 1) // 1000, minlength=100).astype(float)
    statistic, freedom = check(counts, np.full(100, 0.01), "hub")
    assert chi2.sf(statistic, freedom) > 1e-5
