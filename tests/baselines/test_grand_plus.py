"""GRAND+: the push approximates Π's rows, views are random, and training draws them together."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from tests.baselines.build import build, separable_graph
from tokenphormer.baselines.grand_plus import (
    PROPAGATIONS,
    GRANDPlusSettings,
    inconsistency,
    step_weights,
    unlabelled_pool,
)
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.graph.splits import stratified_split
from tokenphormer.hashing import hash_order


def transitions(graph: Graph) -> NDArray[np.float64]:
    A = np.eye(graph.num_nodes)
    A[np.repeat(np.arange(graph.num_nodes), graph.degree), graph.indices] = 1
    P: NDArray[np.float64] = A / A.sum(axis=1, keepdims=True)
    return P


def power_series(graph: Graph, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    P = transitions(graph)
    series: NDArray[np.float64] = sum((w * np.linalg.matrix_power(P, n) for n, w in enumerate(weights)), 0 * P)
    return series


def slow_push(graph: Graph, source: int, weights: NDArray[np.float64], r_max: float) -> NDArray[np.float64]:
    """The paper's algorithm with dense vectors, one source at a time."""
    P = transitions(graph)
    residue = np.eye(graph.num_nodes)[source]
    total = weights[0] * residue
    for weight in weights[1:]:
        residue = np.where(residue > r_max * (graph.degree + 1), residue, 0) @ P
        total = total + weight * residue
    return total


def rows_of(method: Any, count: int) -> NDArray[np.float64]:
    nodes, values = method.push(np.arange(count))
    dense = np.zeros((count, method.task.num_nodes))
    np.add.at(dense, (np.arange(count)[:, None], nodes), values)
    return dense


@pytest.mark.parametrize("propagation", PROPAGATIONS)
def test_mechanism_push_gives_the_power_series(propagation: str) -> None:
    graph = separable_graph()
    method: Any = build("grand_plus", graph=graph, propagation=propagation, order=5, r_max=0.0, top_k=90)
    expected = power_series(graph, step_weights(method.settings))
    np.testing.assert_allclose(rows_of(method, 90), expected, atol=1e-6)
    np.testing.assert_allclose(method.propagated.numpy(), expected @ np.asarray(graph.x), rtol=1e-4, atol=1e-4)


def test_weights_of_the_steps() -> None:
    kinds = {name: step_weights(GRANDPlusSettings(propagation=name, order=2, alpha=0.5)) for name in PROPAGATIONS}
    np.testing.assert_allclose(kinds["ppr"], np.array([4, 2, 1]) / 7)
    np.testing.assert_allclose(kinds["average"], np.full(3, 1 / 3))
    np.testing.assert_allclose(kinds["single"], [0, 0, 1])


@pytest.mark.parametrize("r_max", [0.0, 1.13e-3, 1.13e-2])  # no residue is just as large as the threshold
def test_mechanism_push_is_its_slow_twin(r_max: float) -> None:
    graph = separable_graph()
    method: Any = build("grand_plus", graph=graph, order=6, r_max=r_max, top_k=90)
    found = rows_of(method, 90)
    for source in range(90):
        expected = slow_push(graph, source, step_weights(method.settings), r_max)
        np.testing.assert_allclose(found[source], expected, atol=1e-6)
    exact = power_series(graph, step_weights(method.settings))
    assert (found <= exact + 1e-6).all()
    assert (np.abs(found - exact).max() > 1e-4) == (r_max > 0)  # a threshold loses something


def test_the_largest_entries_are_kept() -> None:
    graph = separable_graph()
    method: Any = build("grand_plus", graph=graph, order=4, r_max=0.0, top_k=3)
    exact = power_series(graph, step_weights(method.settings))
    _, values = method.push(np.arange(90))
    np.testing.assert_allclose(np.sort(values, axis=1), np.sort(exact, axis=1)[:, -3:], atol=1e-6)


def test_fewer_entries_than_asked_for() -> None:
    """A node alone keeps itself; the filling does not overwrite node 0."""
    graph = Graph.from_edges([[0], [1]], num_nodes=4, x=np.eye(4), y=[0, 1, 0, 1])
    method: Any = build("grand_plus", graph=graph, dropnode=0.0)
    with torch.no_grad():
        X = method.random_propagation(torch.arange(4))
    weights = step_weights(method.settings)
    near = weights[0] + weights[1:].sum() / 2
    expected = [[near, 1 - near, 0, 0], [1 - near, near, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(X, torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=1e-5)


def test_mechanism_views_differ_and_average_to_the_row() -> None:
    method: Any = build("grand_plus", order=3, r_max=0.0, top_k=90, dropnode=0.5)
    nodes = torch.arange(20)
    torch.manual_seed(0)
    views = torch.stack([method.random_propagation(nodes) for _ in range(400)])
    assert not torch.allclose(views[0], views[1])
    full = method.propagated[nodes]
    assert (views.mean(dim=0) - full).abs().max() < 0.15 * full.abs().max()
    whole: Any = build("grand_plus", order=3, r_max=0.0, top_k=90, dropnode=0.0)
    torch.testing.assert_close(whole.random_propagation(nodes), full, rtol=1e-4, atol=1e-4)


def test_inconsistency_counts_confident_nodes() -> None:
    unsure = torch.tensor([[0.4, 0.35, 0.25], [0.35, 0.4, 0.25]])
    sure = torch.tensor([[0.9, 0.1, 0.0], [0.7, 0.2, 0.1]])
    P = torch.stack([unsure, sure], dim=1)  # two views of two nodes
    mean = sure.mean(dim=0)
    sharp = mean**2 / (mean**2).sum()
    expected = ((sure - sharp) ** 2).sum(dim=1).mean() / 2
    torch.testing.assert_close(inconsistency(P, 0.5), expected)


def test_the_weight_of_consistency_rises() -> None:
    method: Any = build("grand_plus", consistency=2.0, warmup_epochs=4)
    seen = []
    for epoch in (1, 2, 4, 9):
        method.begin_epoch(epoch)
        seen.append(method.weight_now)
    assert seen == [0.5, 1.0, 2.0, 2.0]


def test_mechanism_the_consistency_loss_lowers_disagreement() -> None:
    """Features of noise, and nothing but consistency to learn: the views of a node come to agree."""
    noise = np.random.default_rng(0).normal(0, 2, (90, 6)).astype(np.float32)
    graph = dataclasses.replace(separable_graph(), x=noise)
    method: Any = build("grand_plus", graph=graph, warmup_epochs=1, order=2, dropout=0.0, input_dropout=0.0)
    with torch.no_grad():
        for linear in method.linears:
            linear.weight *= 3  # so that some are confident
    before = disagreement(method)
    optimiser = torch.optim.Adam(method.parameters(), lr=1e-2)
    for epoch in range(1, 61):
        method.begin_epoch(epoch)
        optimiser.zero_grad()
        torch.autograd.backward(method.loss(torch.arange(60), lambda scores: 0 * scores.sum()))
        optimiser.step()
    assert before > 0.05
    assert disagreement(method) < before / 10


def disagreement(method: Any) -> float:
    torch.manual_seed(99)
    with torch.no_grad():
        views = [method.classify(method.random_propagation(method.pool)) for _ in range(100)]
    P = F.softmax(torch.stack(views), dim=2)
    return float((P - P.mean(dim=0)).square().sum(dim=2).mean())


def test_all_nodes_labelled_leaves_no_pool() -> None:
    method: Any = build("grand_plus", train_nodes=np.arange(90))
    method.begin_epoch(1)
    classes = torch.tensor(method.task.train_classes)
    loss = method.loss(torch.arange(90), lambda s: F.cross_entropy(s, classes, reduction="sum"))
    assert torch.isfinite(loss)


def test_the_pool_holds_no_training_node() -> None:
    method: Any = build("grand_plus", unlabelled_pool=7)
    assert len(method.pool) == 7
    assert method.pool.min() >= 60


@pytest.mark.parametrize("seed", [0, 1, 100])
def test_a_pool_smaller_than_the_rest_is_drawn_from_validation_and_test_alike(seed: int) -> None:
    """Also with the seed that the split was made by, as in the benchmark."""
    y = np.random.default_rng(0).integers(0, 3, 60_000)
    split = stratified_split(y, seed, val=0.15)
    pool = unlabelled_pool(len(y), split.train, 10_000, seed)
    assert len(np.unique(pool)) == 10_000
    assert not np.isin(pool, split.train).any()
    for part, share in ((split.val, 0.375), (split.test, 0.625)):
        assert np.isin(pool, part).mean() == pytest.approx(share, abs=0.02)
    assert not np.array_equal(pool, unlabelled_pool(len(y), split.train, 10_000, seed + 1))


def test_a_pool_of_all_nodes_is_in_the_order_of_the_seed() -> None:
    others = np.arange(60, 90)
    np.testing.assert_array_equal(unlabelled_pool(90, np.arange(60), 30, 7), hash_order(others, 7))


def test_batch_norm_and_one_layer() -> None:
    method = build("grand_plus", batch_norm=True, num_layers=1).eval()
    assert method.scores(torch.arange(5)).shape == (5, 3)
    assert sum("weight" in name for name, _ in method.named_parameters()) == 2


def test_settings_are_checked() -> None:
    for wrong in ({"propagation": "none"}, {"top_k": 0}, {"alpha": 1.0}, {"temperature": 0.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            build("grand_plus", **wrong)
