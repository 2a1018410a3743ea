"""ANS-GT: four samplers, a bandit that follows the attention, clusters, proximity bias, votes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse.csgraph import connected_components
from scipy.stats import chisquare

from tests.baselines.build import build, separable_graph
from tokenphormer.baselines import load_baseline
from tokenphormer.baselines.ans_gt import SAMPLERS, coarse_graph, coarsen, draw_distinct, significance
from tokenphormer.baselines.biased_transformer import BiasedLayer
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hashing import mix64_tensor
from tokenphormer.hops import propagation_matrix
from tokenphormer.training.loop import Labelled, Trainer
from tokenphormer.training.settings import TrainingSettings


def ans_gt(**settings: Any) -> Any:
    return build("ans_gt", num_layers=2, **settings)


def step(method: Any, epoch: int) -> None:
    method.begin_epoch(epoch)
    nodes, classes = torch.tensor(method.task.train_nodes), torch.tensor(method.task.train_classes)
    method.loss(nodes, lambda scores: F.cross_entropy(scores, classes, reduction="sum"))


# ---------------------------------------------------------------- samplers


def test_mechanism_the_samplers_are_the_four_of_the_paper() -> None:
    graph = separable_graph()
    method = ans_gt(num_similar=5)
    A = propagation_matrix(graph).toarray()
    P = propagation_matrix(graph, "row").toarray()
    pagerank = 0.15 * sum(0.85**k * np.linalg.matrix_power(P, k) for k in range(200))
    x = np.asarray(graph.x) / np.linalg.norm(np.asarray(graph.x), axis=1, keepdims=True)
    alike = np.maximum(x @ x.T, 0)
    np.fill_diagonal(alike, 0)
    alike[alike < np.sort(alike, axis=1)[:, [-5]]] = 0
    for name, found, expected in zip(SAMPLERS, method.samplers.numpy(), (pagerank, A, A @ A, alike), strict=True):
        rows = np.array(expected)
        np.fill_diagonal(rows, 0)
        rows /= rows.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(found, rows, atol=1e-5, err_msg=name)


def test_draws_without_replacement_have_the_law_of_one_after_the_other() -> None:
    weights = torch.tensor([0.5, 0.3, 0.0, 0.2])
    rows = 20_000
    drawn = draw_distinct(weights.expand(rows, -1), 2, mix64_tensor(torch.arange(rows)))
    pairs = [tuple(pair) for pair in drawn.tolist()]
    expected = {(a, b): float(weights[a] * weights[b] / (1 - weights[a])) for a, b in permutations((0, 1, 3), 2)}
    assert set(pairs) == set(expected)
    counts = [pairs.count(pair) for pair in expected]
    assert chisquare(counts, [rows * value / sum(expected.values()) for value in expected.values()]).pvalue > 1e-3
    assert draw_distinct(weights[None], 6, torch.tensor([1]))[0, 3:].tolist() == [-1, -1, -1]


def test_mechanism_the_mixture_decides_what_is_drawn() -> None:
    method, nodes = ans_gt(num_sampled=3, least_share=0.0), torch.arange(90)
    for sampler in range(4):
        method.log_weights.zero_()
        method.log_weights[sampler] = 500.0  # the others' share is 0 to the last bit
        method.begin_epoch(1)
        drawn = method.sample(nodes)[:, 1:4]
        chance = method.samplers[sampler][nodes[:, None], drawn.clamp(min=0)]
        assert (chance[drawn >= 0] > 0).all()
        method.begin_epoch(2)
        assert not torch.equal(method.sample(nodes)[:, 1:4], drawn)


# ---------------------------------------------------------------- the bandit


@pytest.mark.parametrize("favourite", range(4))
def test_mechanism_weights_move_to_the_sampler_whose_nodes_get_attention(favourite: int) -> None:
    method, nodes = ans_gt(bandit_rate=1.0), torch.arange(90)
    q = method.samplers
    start = method.mixture.clone()
    torch.testing.assert_close(start, torch.full((4,), 0.25))
    for epoch in range(1, 4):
        method.begin_epoch(epoch)
        drawn = method.sample(nodes)[:, 1:15]
        there = (slice(None), nodes[:, None], drawn.clamp(min=0))
        most = (q[there].argmax(dim=0) == favourite) & (drawn >= 0)  # nodes that this sampler favours most
        method.reward(nodes, drawn, most.float())
        method.adapt()
    assert method.mixture.argmax() == favourite
    assert method.mixture[favourite] > 0.3
    torch.testing.assert_close(method.mixture.sum(), torch.tensor(1.0))
    assert method.mixture.min() >= method.settings.least_share


def test_the_reward_is_the_papers_formula() -> None:
    method = ans_gt()
    nodes, drawn = torch.tensor([3, 8]), torch.tensor([[5, 6], [30, -1]])
    attention = torch.tensor([[0.3, 0.1], [0.7, 0.2]])
    q = method.samplers
    method.reward(nodes, drawn, attention)
    for i in range(4):
        total = 0.0
        for row, column, weight in ((0, 0, 0.75), (0, 1, 0.25), (1, 0, 0.7 / 0.9)):
            v, j = nodes[row], drawn[row, column]
            total += float(weight * q[i, v, j] / (0.25 * q[:, v, j].sum()).clamp(min=1e-12))
        assert method.reward_sum[i].item() == pytest.approx(total, rel=1e-4)
    assert method.reward_count.item() == 2


def test_mechanism_training_adapts_every_few_epochs() -> None:
    method = ans_gt(update_period=2)
    seen = []
    for epoch in range(1, 6):
        step(method, epoch)
        seen.append(method.log_weights.tolist())
    assert seen[0] == seen[1] == [0, 0, 0, 0]
    assert seen[2] != seen[1]
    assert seen[3] == seen[2]
    assert seen[4] != seen[3]


def test_the_weights_survive_with_the_best_weights() -> None:
    """What is restored after training is the mixture of the best epoch, not of the last."""
    graph, device = separable_graph(), torch.device("cpu")
    method = ans_gt(update_period=1)
    parts = [Labelled(nodes, graph.y[nodes]) for nodes in (np.arange(60), np.arange(60, 75))]
    values: dict[str, Any] = {"learning_rate": 5e-3, "warmup_updates": 0, "max_epochs": 12, "patience": 12}
    seen: list[list[float]] = []
    trainer = Trainer(method, *parts, 3, TrainingSettings(**values), device)
    progress = trainer.run(lambda _: seen.append(method.log_weights.tolist()))
    assert seen[0] != seen[-1]
    assert method.log_weights.tolist() == seen[progress.best_epoch - 1]


def test_significance_is_attention_times_the_length_of_values() -> None:
    torch.manual_seed(0)
    layer = BiasedLayer(8, 2, 0.0)
    H, bias = torch.randn(1, 4, 8), torch.randn(1, 2, 4, 4)
    q, k, v = layer.heads(H)
    expected = torch.zeros(4)
    for head in range(2):
        weights = F.softmax(k[0, head] @ q[0, head, 0] / 2 + bias[0, head, 0], dim=0)
        expected += weights * v[0, head].norm(dim=1) / 2
    torch.testing.assert_close(significance(layer, H, bias)[0], expected)
    assert not significance(layer, H, bias).requires_grad


# ---------------------------------------------------------------- clusters and bias


def test_clusters_are_few_and_connected() -> None:
    graph = separable_graph()
    cluster = coarsen(graph, 0.1)
    assert set(cluster) == set(range(cluster.max() + 1))
    assert 3 <= cluster.max() + 1 <= 9  # the graph has three parts
    A = propagation_matrix(graph, "none")
    for number in set(cluster):
        member = np.flatnonzero(cluster == number)
        assert connected_components(A[member][:, member])[0] == 1
    edges = coarse_graph(graph, cluster).toarray()
    assert edges.sum() == 2 * graph.num_directed_edges
    np.testing.assert_array_equal(coarsen(graph, 0.1), cluster)


def test_heavy_edges_are_joined_first() -> None:
    graph = Graph.from_edges([[0, 1, 2], [1, 2, 3]], num_nodes=5, edge_weight=[5.0, 1.0, 4.0])
    assert coarsen(graph, 0.7).tolist() == [0, 0, 1, 1, 2]
    assert coarsen(graph, 0.0).tolist() == [0, 0, 0, 0, 1]  # a node without edges stays alone


def test_mechanism_the_encoding_is_of_nodes_and_of_clusters() -> None:
    method = ans_gt(num_super_nodes=3)
    tokens = method.sample(torch.arange(90))
    encoding = method.encoding(tokens)
    assert encoding.shape == (90, 1 + 14 + 3, 1 + 14 + 3, 6)
    A = propagation_matrix(method.task.graph).toarray()
    row = tokens[40].tolist()
    assert row[15] == 90 + method.cluster_of[40]
    assert len(set(row[15:])) == 3 or -1 in row[15:]  # no cluster twice
    between = coarse_graph(method.task.graph, method.cluster_of[:90].numpy()).toarray()
    size = between + np.eye(len(between))
    root = size.sum(axis=1) ** -0.5
    coarse = root[:, None] * size * root
    for k in range(6):
        near, far = np.linalg.matrix_power(A, k + 1), np.linalg.matrix_power(coarse, k + 1)
        for i, u in enumerate(row):
            for j, v in enumerate(row):
                if min(u, v) < 0:
                    continue
                clusters = method.cluster_of[u], method.cluster_of[v]
                expected = near[u, v] if max(u, v) < 90 else far[clusters]
                assert encoding[40, i, j, k].item() == pytest.approx(expected, abs=1e-5)


def test_mechanism_bias_clusters_and_global_nodes_change_the_output() -> None:
    def scores(change: Any) -> torch.Tensor:
        method = ans_gt(num_super_nodes=2).eval()
        method.begin_prediction(0)
        with torch.no_grad():
            change(method)
            result: torch.Tensor = method.scores(torch.arange(20))
        return result

    before = scores(lambda method: None)
    changes = {
        "bias": lambda method: method.encoding_weights.mul_(500),
        "global nodes": lambda method: method.global_nodes.add_(torch.randn(16)),
        "clusters": lambda method: method.x[90:].mul_(-2),
    }
    for name, change in changes.items():
        assert not torch.allclose(scores(change), before, atol=1e-3), name


def test_votes_differ() -> None:
    method = ans_gt(num_sampled=4).eval()
    assert method.schedule["votes"] == 8
    with torch.no_grad():
        method.begin_prediction(0)
        first = method.scores(torch.arange(20))
        method.begin_prediction(1)
        assert not torch.allclose(method.scores(torch.arange(20)), first, atol=1e-4)


def test_memory_and_settings() -> None:
    cls = load_baseline("ans_gt")
    assert cls.bytes_needed(separable_graph(), cls.settings_class(), torch.device("cpu")) >= 90 * 90 * 4 * 10
    numbers = ({"update_period": 0}, {"least_share": 0.25}, {"num_heads": 3}, {"num_super_nodes": 0}, {"restart": 0.0})
    for wrong in numbers:
        with pytest.raises(InputError, match=next(iter(wrong))):
            build("ans_gt", **wrong)
