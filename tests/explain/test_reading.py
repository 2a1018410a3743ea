"""What is read is what the model reads: same predictions, same inputs from the mixture, same hops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.explain.models import CASES, CPU, ISOLATED, added_to, awkward_graph, case_of, config_of, method_of
from tokenphormer.explain import Explainer, reading
from tokenphormer.explain.neighbours import distances, hop_rows, score_share
from tokenphormer.explain.reading import Mixture, project_rows, read
from tokenphormer.graph import Graph
from tokenphormer.hops import NORMALISATIONS, propagation_matrix
from tokenphormer.model import ModelSettings, score_weights
from tokenphormer.tokens import source as source_module
from tokenphormer.training.loop import predict

NODES = np.array([0, 3, 18, ISOLATED])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_probabilities_are_the_predictions(case: dict[str, Any], whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        if "row_activation" in case:
            pytest.skip("rows are activated only where a graph is projected whole")
        monkeypatch.setattr(source_module, "WHOLE_GRAPH_BYTES", 0)
    graph, method = case_of(case)
    assert method.source.whole == whole
    found = Explainer(method, graph, graph.class_names).read(NODES).probabilities
    expected = predict(method, NODES, config_of(), CPU)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0.1  # nodes differ, so that equality means something


@pytest.mark.parametrize("case", CASES, ids=str)
def test_many_variants_at_once_are_one_by_one(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, method = case_of(case)
    found = Explainer(method, graph, graph.class_names).read(NODES)
    T = len(found.kinds)
    rng = np.random.default_rng(0)
    owner, keep = rng.integers(0, len(NODES), 30), rng.random((30, T)) < rng.random((30, 1))
    keep[:, 0] = True
    together = found.of_kept(owner, keep)
    for row, b, stay in zip(together, owner, keep, strict=True):
        with torch.no_grad():
            scores = method.module.encode(found.inputs[b][torch.tensor(stay)][None])[0][0]
        expected = F.softmax(found.score_share[b] * scores + found.score_rest[b], dim=0)
        np.testing.assert_allclose(row, expected, rtol=0, atol=1e-5)
    monkeypatch.setattr(reading, "PIECE", 1)  # one sequence at a time
    np.testing.assert_allclose(found.of_kept(owner, keep), together, rtol=0, atol=1e-5)
    if T > 2:
        assert len(np.unique(keep.sum(axis=1))) > 1
        assert np.ptp(together, axis=0).max() > 0.1


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("whole", [True, False])
def test_the_mixture_makes_the_inputs(case: dict[str, Any], whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        if "row_activation" in case:
            pytest.skip("rows are activated only where a graph is projected whole")
        monkeypatch.setattr(source_module, "WHOLE_GRAPH_BYTES", 0)
    graph, method = case_of(case)
    settings = method.source.settings
    everyone = np.arange(graph.num_nodes)
    own, other = project_rows(method, everyone)
    for node in NODES:
        one = read(method, np.array([node]))
        hops = hop_rows(graph, settings.hop_normalisation, int(node), settings.num_hops)
        mixture = Mixture.of(one, hops, everyone)
        made = added_to(method, own[node]) + torch.tensor(mixture.pooled) @ other
        counts = np.array([kind != "sgpm" for kind in one.kinds])  # no features are mixed into that token
        torch.testing.assert_close(made[counts], one.inputs[0][counts], rtol=0, atol=1e-4)
        assert not mixture.matrix[~counts].any()


def test_the_walks_are_those_of_the_vote() -> None:
    graph = awkward_graph()
    method = method_of(graph)
    first, second = (read(method, NODES, draw).walks for draw in (0, 1))
    method.source.begin_prediction(1)
    assert (second == method.source.walks(torch.tensor(NODES)).numpy()).all()
    assert (first != second).any()


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("kind", [{}, {"directed": True}, {"weighted": True}])
def test_hop_rows_are_rows_of_powers(normalisation: Any, kind: dict[str, bool]) -> None:
    graph = awkward_graph(**kind)
    matrix = propagation_matrix(graph, normalisation).toarray().astype(np.float64)
    for node in range(graph.num_nodes):
        rows = hop_rows(graph, normalisation, node, 3)
        for k, (nodes, shares) in enumerate(rows, 1):
            dense = np.zeros(graph.num_nodes)
            dense[nodes] = shares
            expected = np.linalg.matrix_power(matrix, k)[node]
            np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-6)


def test_distances_are_the_powers_that_reach() -> None:
    graph = awkward_graph(directed=True)
    step = propagation_matrix(graph, "none").toarray() > 0
    reached, expected = np.eye(graph.num_nodes, dtype=bool), np.where(np.eye(graph.num_nodes, dtype=bool), 0, -1)
    for k in range(1, graph.num_nodes):
        reached = reached | (reached.astype(int) @ step > 0)
        expected[reached & (expected < 0)] = k
    for node in range(graph.num_nodes):
        found = distances(graph, node, np.arange(graph.num_nodes))
        assert found == {u: d for u, d in enumerate(expected[node].tolist()) if d >= 0}
        assert distances(graph, node, np.array([node])) == {node: 0}


@pytest.mark.parametrize("hops", [0, 1, 4])
def test_score_share_is_the_diagonal(hops: int) -> None:
    graph = awkward_graph()
    matrix = propagation_matrix(graph, "symmetric").toarray().astype(np.float64)
    passed = np.eye(graph.num_nodes)
    for _ in range(hops):
        passed = 0.8 * matrix @ passed + 0.2 * np.eye(graph.num_nodes)
    weights = score_weights(ModelSettings(score_hops=hops, score_teleport=0.2))
    found = [score_share(graph, node, weights) for node in range(graph.num_nodes)]
    np.testing.assert_allclose(found, np.diag(passed), rtol=1e-5)


def test_a_graph_without_edges() -> None:
    graph = Graph.from_edges(np.zeros((2, 0), int), 4, x=np.eye(4), y=[0, 1, 2, 0])
    found = read(method_of(graph), np.array([2]))
    assert (found.walks[0] == [2, -1, -1, -1]).all()
    assert np.isfinite(found.probabilities).all()
