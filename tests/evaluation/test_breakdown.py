"""Groups of nodes: bins of degree and homophily, intervals."""

from __future__ import annotations

import numpy as np
import pytest

from tokenphormer.errors import InputError
from tokenphormer.evaluation import breakdown
from tokenphormer.evaluation.breakdown import (
    HOMOPHILY_LABELS,
    bin_by_degree,
    bin_by_homophily,
    node_homophily,
    wilson_interval,
)
from tokenphormer.graph import Graph
from tokenphormer.graph.statistics import homophily


def test_degree_bins_hold_what_their_names_say() -> None:
    degree = np.concatenate([np.arange(600), 2 ** np.arange(20, 40), 2 ** np.arange(20, 40) + 1])
    bins, names = bin_by_degree(degree)
    assert names[:7] == ("0", "1", "2", "3–4", "5–8", "9–16", "17–32")
    assert len(names) == bins.max() + 1
    for value, place in zip(degree.tolist(), bins.tolist(), strict=True):
        low, _, high = names[place].partition("–")
        assert int(low) <= value <= int(high or low)


def test_degree_bins_of_nothing_and_of_nonsense() -> None:
    bins, names = bin_by_degree(np.empty(0, np.int64))
    assert (len(bins), names) == (0, ())
    with pytest.raises(InputError, match="-2"):
        bin_by_degree(np.array([3, -2]))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("edges_at_once", [breakdown.EDGES_AT_ONCE, 7])
def test_node_homophily_as_a_loop_and_as_the_mean_of_the_graph(
    directed: bool, edges_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breakdown, "EDGES_AT_ONCE", edges_at_once)
    rng = np.random.default_rng(5)
    y = rng.integers(-1, 3, size=80)
    edges = rng.integers(0, 80, size=(2, 90))
    names = ("a", "b", "c")
    graph = Graph.from_edges(edges, 80, y=y, class_names=names, directed=directed, self_loops=True)
    found = node_homophily(graph)
    for node in range(80):
        others = [other for other in graph.neighbours(node) if other != node and y[other] >= 0]
        if y[node] < 0 or not others:
            assert np.isnan(found[node])
        else:
            assert found[node] == pytest.approx(np.mean([y[other] == y[node] for other in others]))
    assert np.nanmean(found) == pytest.approx(homophily(graph)[1])
    some = np.concatenate([[7, 0, 7, 11], rng.permutation(80)[:60]])
    assert np.isfinite(found[some]).sum() > 20
    assert np.array_equal(node_homophily(graph, some), found[some], equal_nan=True)
    assert not len(node_homophily(graph, some[:0]))


def test_homophily_bins() -> None:
    values = np.array([0, 0.19, 0.2, 2 / 5, 3 / 5, 0.79, 4 / 5, 1, np.nan])
    assert bin_by_homophily(values).tolist() == [0, 0, 1, 2, 3, 3, 4, 4, 5]
    assert len(HOMOPHILY_LABELS) == 6
    with pytest.raises(InputError, match="0 to 1"):
        bin_by_homophily(np.array([1.5]))


def test_wilson_interval_as_scipy() -> None:
    from scipy.stats import binomtest

    hits, count = np.array([0, 3, 7, 10, 0]), np.array([4, 9, 7, 400, 0])
    low, high = wilson_interval(hits, count)
    for k in range(4):
        expected = binomtest(int(hits[k]), int(count[k])).proportion_ci(method="wilson")
        assert (low[k], high[k]) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert np.isnan(low[4])
    assert np.isnan(high[4])
