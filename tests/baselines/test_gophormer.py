"""Gophormer: sampled ego-graphs, global nodes, proximity bias, consistency, votes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tokenphormer.baselines.gophormer import Proximity, disagreement
from tokenphormer.errors import InputError
from tokenphormer.hops import propagation_matrix
from tokenphormer.training.loop import predict
from tokenphormer.training.settings import TrainingSettings


def gophormer(**settings: Any) -> Any:
    return build("gophormer", **settings).eval()


def vote(method: Any, draw: int = 0, nodes: int = 90) -> torch.Tensor:
    method.begin_prediction(draw)
    with torch.no_grad():
        scores: torch.Tensor = method.scores(torch.arange(nodes))
    return scores


def test_mechanism_every_epoch_sample_and_vote_has_its_own_ego_graphs() -> None:
    method, nodes = gophormer(fan_out=3), torch.arange(90)
    seen = []
    numbers = (
        (method.begin_epoch, 1),
        (method.begin_epoch, 2),
        (method.begin_prediction, 0),
        (method.begin_prediction, 1),
    )
    for begin, number in numbers:
        begin(number)
        seen += list(method.sample(nodes, 2).split(90))
    assert all(torch.equal(tokens[:, 0], nodes) for tokens in seen)
    assert not any(torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])
    method.begin_epoch(1)
    assert torch.equal(method.sample(nodes, 2), torch.cat(seen[:2]))


def test_mechanism_votes_are_averaged_over_draws() -> None:
    method = gophormer(fan_out=2)
    assert not torch.allclose(vote(method, 0), vote(method, 1))
    mean = torch.stack([F.softmax(vote(method, draw), dim=1) for draw in range(5)]).mean(dim=0)
    assert method.schedule["votes"] == 5
    voted = predict(method, np.arange(90), TrainingSettings(votes=5), torch.device("cpu"))
    np.testing.assert_allclose(voted, mean.numpy(), atol=1e-6)


def test_mechanism_the_bias_is_the_weighted_sum_of_powers() -> None:
    graph = separable_graph()
    method = gophormer(proximity_order=3)
    A = propagation_matrix(graph).toarray()
    tokens = torch.tensor([[4, 17, 80, 5], [0, 1, 2, 3]])
    found = Proximity(method.task, 3)(tokens)
    for k in range(4):
        power = torch.tensor(np.linalg.matrix_power(A, k), dtype=torch.float32)
        torch.testing.assert_close(found[..., k], power[tokens[:, :, None], tokens[:, None, :]], atol=1e-6, rtol=1e-4)
    before = vote(method)
    with torch.no_grad():
        method.relation_weights[:, :-1] += 20  # zero at first; the last is that of global nodes
    assert not torch.allclose(vote(method), before, atol=1e-3)


def test_mechanism_the_centre_is_read_as_in_a_plain_slow_version() -> None:
    method = gophormer(fan_out=3, num_layers=2)
    with torch.no_grad():
        method.relation_weights.normal_()
    method.begin_prediction(0)
    tokens = method.sample(torch.tensor([11]), 1)
    nodes = [token for token in tokens[0].tolist() if token >= 0]
    A = torch.tensor(propagation_matrix(method.task.graph).toarray())
    H = torch.cat([method.project(method.task.x[nodes]), method.global_nodes])
    T, heads = len(H), method.settings.num_heads
    for layer, weights in zip(method.layers, method.relation_weights, strict=True):
        q, k, v = layer.query_key_value(layer.attention_norm(H)).view(T, 3, heads, -1).unbind(dim=1)
        attended = torch.zeros(T, heads, q.shape[2])
        for head in range(heads):
            for i in range(T):
                score = []
                for j in range(T):
                    both = i < len(nodes) and j < len(nodes)
                    bias = weights[-1, head]
                    if both:
                        bias = (i == j) * weights[0, head] + A[nodes[i], nodes[j]] * weights[1, head]
                    score.append(q[i, head] @ k[j, head] / q.shape[2] ** 0.5 + bias)
                attended[i, head] = F.softmax(torch.stack(score), dim=0) @ v[:, head]
        H = H + layer.output(attended.flatten(1))
        H = H + layer.narrow(F.gelu(layer.widen(layer.ffn_norm(H))))
    torch.testing.assert_close(method.scores(torch.tensor([11]))[0], method.head(H[0]), rtol=1e-4, atol=1e-4)


def test_mechanism_global_nodes_are_seen() -> None:
    method = gophormer()
    before = vote(method)
    with torch.no_grad():
        method.global_nodes += torch.randn_like(method.global_nodes)
    assert not torch.allclose(vote(method), before, atol=1e-3)
    assert vote(gophormer(num_global_nodes=0)).shape == (90, 3)


def test_disagreement_is_the_distance_to_the_sharpened_mean() -> None:
    P = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]])
    sharp = torch.tensor([0.7, 0.3]) ** 2 / (0.7**2 + 0.3**2)  # temperature 0.5
    expected = ((P[:, 0] - sharp) ** 2).sum(dim=1).mean()
    torch.testing.assert_close(disagreement(P, 0.5), expected)


def test_mechanism_the_consistency_loss_draws_samples_together() -> None:
    """Features of noise, and nothing but consistency to learn: the samples of a node come to agree."""
    noise = np.random.default_rng(0).normal(0, 2, (90, 6)).astype(np.float32)
    graph = dataclasses.replace(separable_graph(), x=noise)
    method: Any = build("gophormer", graph=graph, fan_out=2, consistency=1.0, dropout=0.0)
    with torch.no_grad():
        for layer in method.layers:
            layer.output.weight *= 5
        method.head[-1].weight *= 10  # so that samples make a difference

    def distance() -> float:
        method.begin_prediction(0)
        with torch.no_grad():
            P = F.softmax(method.read(method.sample(torch.arange(90), 8)).view(8, 90, -1), dim=2)
        return float((P - P.mean(dim=0)).square().sum(dim=2).mean())

    before = distance()
    optimiser = torch.optim.Adam(method.parameters(), lr=5e-3)
    for epoch in range(1, 31):
        method.begin_epoch(epoch)
        optimiser.zero_grad()
        torch.autograd.backward(method.loss(torch.arange(60), lambda scores: 0 * scores.sum()))
        optimiser.step()
    assert before > 0.01
    assert distance() < before / 5


def test_settings_are_checked() -> None:
    for wrong in ({"fan_out": 0}, {"num_heads": 3}, {"temperature": 0.0}, {"dropout": 1.0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            build("gophormer", **wrong)
