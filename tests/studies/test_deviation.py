"""The binomial law of information types, the bound that holds, and the one that does not."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from tests.tiny import tiny_graph
from tokenphormer.graph import Graph
from tokenphormer.studies import deviation
from tokenphormer.studies.laws import transition_matrix, walk_law

EPSILONS = (0.01, 0.05, 0.1, 0.2, 0.4)
WALKS = (1, 2, 3, 7, 20, 100, 500, 2000)
P = np.linspace(0.001, 0.999, 57)


def test_types_have_the_probabilities_of_the_papers_products() -> None:
    """P^{l₁ l₂ l₃} = P^{l₁} P^{l₂} P^{l₃} with P^{l} the columns of label l, the row of the start summed up."""
    graph = tiny_graph(num_nodes=15)
    full = transition_matrix(graph).toarray()
    limited = [full * (graph.y == label) for label in range(3)]
    for start in (0, 7):
        found = deviation.type_probabilities(graph, start, 3)
        assert found.sum() == pytest.approx(1)
        for number, labels in enumerate(product(range(3), repeat=3)):
            expected = (limited[labels[0]] @ limited[labels[1]] @ limited[labels[2]])[start].sum()
            assert found[number] == pytest.approx(expected, abs=1e-15)


def test_types_of_walks_are_numbered_alike() -> None:
    graph = tiny_graph(num_nodes=15)
    law = walk_law(graph, "uniform", 3, 2)
    total = np.zeros(9)
    for walk, mass in law.items():
        total[deviation.type_numbers(graph, np.array(walk, dtype=np.int32))] += float(mass)
    np.testing.assert_allclose(deviation.type_probabilities(graph, 3, 2), total, atol=1e-15)


@pytest.mark.parametrize("walks", [1, 5, 20])
@pytest.mark.parametrize("epsilon", [0.1, 0.25])
def test_the_chance_of_a_deviation_is_the_sum_of_its_outcomes(walks: int, epsilon: float) -> None:
    for p in (0.0625, 0.25, 0.5, 0.75, 1.0):  # such that p ± 0.25 is an outcome, which does not deviate by more
        outcomes = np.arange(walks + 1)
        beyond = np.abs(outcomes / walks - p) > epsilon + 1e-12
        expected = binom.pmf(outcomes, walks, p)[beyond].sum()
        assert deviation.exceedance(np.array([p]), walks, epsilon)[0] == pytest.approx(expected, abs=1e-14)


def test_hoeffdings_bound_holds_everywhere() -> None:
    for walks in WALKS:
        for epsilon in EPSILONS:
            assert (deviation.exceedance(P, walks, epsilon) <= deviation.hoeffding_bound(walks, epsilon)).all()


def test_the_papers_bound_does_not() -> None:
    broken = [
        (walks, epsilon)
        for walks in WALKS
        for epsilon in EPSILONS
        if (deviation.exceedance(P, walks, epsilon) > deviation.paper_bound(walks, epsilon)).any()
    ]
    assert len(broken) > 0.9 * len(WALKS) * len(EPSILONS)
    # A coin thrown a hundred times is off by more than 5 in a hundred in 27 % of cases; the paper allows 0.6 %.
    assert deviation.exceedance(np.array([0.5]), 100, 0.05)[0] == pytest.approx(0.2713, abs=1e-4)
    assert deviation.paper_bound(100, 0.05) == pytest.approx(0.00607, abs=1e-5)


def test_no_factor_that_falls_with_n_can_hold() -> None:
    """For ε = c/√n the chance tends to the normal law's, 2·(1 − Φ(2c)) for p = ½, whatever n."""
    c = 0.5
    limit = math.erfc(2 * c / math.sqrt(2))
    for walks in (10_001, 1_000_001):
        found = deviation.exceedance(np.array([0.5]), walks, c / math.sqrt(walks))[0]
        assert found == pytest.approx(limit, rel=0.02)
        assert found > 1000 * deviation.paper_bound(walks, c / math.sqrt(walks))


def test_measured_deviations_are_those_of_the_binomial_law() -> None:
    graph = tiny_graph()
    result = deviation.study([graph], starts=8, repeats=500, walks=(3, 30))
    for row in result.deviations:
        spread = math.sqrt(row.exact * (1 - row.exact) / 500)
        assert row.measured == pytest.approx(row.exact, abs=5 * spread + 1e-9)
        assert row.measured_mean == pytest.approx(row.exact_mean, abs=0.01)
        assert row.exact <= row.hoeffding
    for missed in result.missed:
        assert missed.missed == pytest.approx(missed.exact, abs=0.01)
    assert result.findings["rows above Hoeffding's bound, exact"] == 0
    assert result.findings["rows above the paper's bound, exact"] == len(result.deviations)


def test_a_row_is_of_the_worst_type() -> None:
    """Of 20 walks, a type of ½ deviates by more than 0.1 in 26 % of cases, one of 0.01 in 0.1 %."""
    row = deviation._row("g", 0.1, 20, np.array([0.01, 0.5]), np.array([0.4, 0.3]))
    worst, other = 2 * binom.cdf(7, 20, 0.5), binom.sf(2, 20, 0.01)
    assert (row.types, row.measured, row.measured_mean) == (2, 0.3, pytest.approx(0.35))
    assert (row.exact, row.exact_mean) == (pytest.approx(worst), pytest.approx((worst + other) / 2))
    assert (row.paper, row.hoeffding) == (math.exp(-0.4) / 20, 1.0)  # 2·exp(−0.4) is above 1
    assert row.above_paper == 0.5


def test_findings_are_counted_over_the_rows() -> None:
    def row(epsilon: float, exact: float, hoeffding: float, paper: float) -> deviation.DeviationRow:
        return deviation.DeviationRow("g", epsilon, 10, 2, exact, 0, 0, 0, hoeffding, paper, 0)

    rows = [row(0.1, 0.2, 0.4, 0.1), row(0.2, 0.3, 0.2, 0.06), row(0.3, 0.1, 0.2, 0.5)]
    missed = [deviation.MissedRow("g", walks, 2, walks / 1000, 0.9) for walks in (10, 100, 1000)]
    found = deviation.Deviation(rows, missed, seed=3, repeats=7).findings
    assert (found["rows"], found["seed"], found["repeats"]) == (3, 3, 7)
    assert found["rows above Hoeffding's bound, exact"] == 1
    assert found["rows above the paper's bound, exact"] == 2
    assert found["largest ratio of exact to the paper's bound"] == pytest.approx(5)
    assert found["where"] == "g, ε = 0.2, n = 10"
    assert found["g: share of types that 100 walks miss"] == 0.1


def test_weights_count_in_the_law_as_they_do_in_walks() -> None:
    edges = [[0, 0, 1, 2, 3], [1, 2, 2, 3, 0]]
    graph = Graph.from_edges(edges, edge_weight=[10.0, 1.0, 1.0, 1.0, 2.0], y=[0, 1, 0, 1])
    for row in deviation.study([graph], starts=4, repeats=500, walks=(10, 100)).deviations:
        assert row.measured_mean == pytest.approx(row.exact_mean, abs=0.02)


def test_directed_graphs_are_refused() -> None:
    with pytest.raises(AssertionError, match="walks may end"):
        deviation.study([Graph.from_edges([[0, 1], [1, 2]], y=[0, 1, 0], directed=True)])


def test_the_study_writes_what_it_says(tmp_path: Path) -> None:
    options = {"starts": 3, "repeats": 20, "walks": (1, 10)}
    result = deviation.study([tiny_graph()], **options)
    assert result == deviation.study([tiny_graph()], **options)
    assert result.findings["repeats"] == 20
    other = deviation.study([tiny_graph()], seed=1, **options)
    assert [row.exact_mean for row in result.deviations] != [row.exact_mean for row in other.deviations]  # other starts
    names = {path.name for path in deviation.write(result, tmp_path)}
    assert {"deviation.csv", "missed.csv", "deviation.png", "findings.json"} <= names
