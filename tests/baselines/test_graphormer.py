"""Graphormer: distances and degrees shape the attention; ego-graphs where the graph is large."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tests.baselines.test_baselines import first_scores
from tokenphormer.baselines import load_baseline
from tokenphormer.baselines.ego_graphs import dense_adjacency
from tokenphormer.baselines.graphormer import distances
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, to_networkx
from tokenphormer.training.loop import Labelled, Trainer, predict
from tokenphormer.training.settings import TrainingSettings


def wheel() -> Graph:
    """A hub and a ring: no two nodes are more than two steps apart."""
    ring = [(node, node % 6 + 1) for node in range(1, 7)]
    edges = np.array([(0, node) for node in range(1, 7)] + ring).T
    x = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    return Graph.from_edges(edges, num_nodes=7, x=x, y=np.arange(7) % 3, class_names=("a", "b", "c"))


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_mechanism_distances_are_those_of_networkx(cap: int) -> None:
    edges = [[0, 1, 2, 3, 4, 5, 7], [1, 2, 3, 4, 5, 6, 8]]  # a path and a pair
    graph = Graph.from_edges(edges, num_nodes=10, x=np.eye(10), y=np.arange(10) % 2)
    found = distances(dense_adjacency(build("graphormer", graph=graph).task).float(), cap)
    lengths = dict(nx.all_pairs_shortest_path_length(to_networkx(graph)))
    for i in range(10):
        for j in range(10):
            assert found[i, j] == min(lengths[str(i)].get(str(j), 99), cap + 1), (i, j)


def test_mechanism_the_scores_are_those_of_a_plain_slow_version() -> None:
    method: Any = build("graphormer", graph=wheel(), num_layers=2).eval()
    with torch.no_grad():
        method.distance_bias.normal_()
    steps = dict(nx.all_pairs_shortest_path_length(to_networkx(wheel())))
    H = method.project(method.task.x) + method.centrality.weight[[6, 3, 3, 3, 3, 3, 3]]
    for layer in method.layers:
        q, k, v = layer.query_key_value(layer.attention_norm(H)).view(7, 3, 2, -1).unbind(dim=1)
        attended = torch.zeros_like(q)
        for head in range(2):
            for i in range(7):
                bias = torch.stack([method.distance_bias[steps[str(i)][str(j)], head] for j in range(7)])
                weights = F.softmax(k[:, head] @ q[i, head] / q.shape[2] ** 0.5 + bias, dim=0)
                attended[i, head] = weights @ v[:, head]
        H = H + layer.output(attended.flatten(1))
        H = H + layer.narrow(F.gelu(layer.widen(layer.ffn_norm(H))))
    torch.testing.assert_close(method(), method.head(H), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("max_full_nodes", [90, 0])
def test_mechanism_bias_and_centrality_change_the_output(max_full_nodes: int) -> None:
    before = first_scores("graphormer", torch.arange(9), max_full_nodes=max_full_nodes)
    for name in ("distance_bias", "centrality.weight"):
        method = build("graphormer", max_full_nodes=max_full_nodes).eval()
        method.begin_prediction(0)
        with torch.no_grad():
            parameter = method.get_parameter(name)
            parameter[:] = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 3
            assert not torch.allclose(method.scores(torch.arange(9)), before, atol=1e-3), name


@pytest.mark.parametrize("name", ["graphormer", "san"])
def test_an_ego_graph_of_all_nodes_is_the_whole_graph(name: str) -> None:
    """Where nothing is left out, large and small graphs are read alike."""
    graph, nodes = wheel(), torch.arange(7)
    whole = first_scores(name, nodes, graph=graph)
    sampled = first_scores(name, nodes, graph=graph, max_full_nodes=0, fan_out=6)
    torch.testing.assert_close(sampled, whole, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(first_scores(name, nodes, graph=graph, max_full_nodes=0, fan_out=1), whole, atol=1e-4)


@pytest.mark.parametrize("name", ["graphormer", "san"])
def test_sampled_scores_depend_on_the_vote_and_not_on_the_batch(name: str) -> None:
    settings = {"max_full_nodes": 0, "fan_out": 2}
    together = first_scores(name, torch.arange(20), **settings)
    torch.testing.assert_close(first_scores(name, torch.tensor([4]), **settings)[0], together[4], rtol=1e-4, atol=1e-4)
    method = build(name, **settings).eval()
    method.begin_prediction(1)
    with torch.no_grad():
        assert not torch.allclose(method.scores(torch.arange(20)), together, atol=1e-4)


@pytest.mark.parametrize("name", ["graphormer", "san"])
def test_sampled_ego_graphs_learn(name: str) -> None:
    graph, device = separable_graph(), torch.device("cpu")
    method = build(name, graph=graph, max_full_nodes=0, fan_out=3)
    parts = [Labelled(nodes, graph.y[nodes]) for nodes in (np.arange(60), np.arange(60, 75))]
    settings = TrainingSettings(
        learning_rate=5e-3, warmup_updates=0, decay_updates=10**9, max_epochs=25, patience=25, weight_decay=1e-3
    )
    Trainer(method, *parts, 3, settings, device).run()
    test = np.arange(75, 90)
    assert (predict(method, test, settings, device).argmax(axis=1) == graph.y[test]).mean() >= 0.9


@pytest.mark.parametrize("name", ["graphormer", "san"])
def test_memory_is_asked_for_where_all_attend_to_all(name: str) -> None:
    graph, cls = separable_graph(), load_baseline(name)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert cls.bytes_needed(graph, cls.settings_class(num_heads=2), gpu) >= 90 * 90 * 2 * 4
    assert 90 * 90 * 2 <= cls.bytes_needed(graph, cls.settings_class(), cpu) < 90 * 90 * 8  # a byte a pair, no floats
    for device in (gpu, cpu):
        assert cls.bytes_needed(graph, cls.settings_class(max_full_nodes=89), device) == 0


def test_distances_that_need_more_than_a_byte_are_floats_on_a_cpu_too() -> None:
    graph, cls = separable_graph(), load_baseline("graphormer")
    bytes_on = [cls.bytes_needed(graph, cls.settings_class(max_distance=255), torch.device(d)) for d in ("cpu", "cuda")]
    assert bytes_on[0] == bytes_on[1] > 90 * 90 * 8
    method: Any = build("graphormer", max_distance=255)
    assert method.distances.dtype == torch.int16
    torch.testing.assert_close(method.eval().scores(torch.arange(9)), method()[:9])


def test_the_bias_is_a_sum_over_distances_and_so_is_its_gradient() -> None:
    method: Any = build("graphormer", max_full_nodes=0)
    steps = torch.randint(0, 7, (5, 11, 11)).to(torch.int16)
    expected = sum(bias[:, None, None] * (steps[:, None] == d) for d, bias in enumerate(method.distance_bias))
    found, g = method.bias(steps), torch.randn(5, 2, 11, 11)
    assert torch.equal(found, expected)
    ours, theirs = (torch.autograd.grad(bias, method.distance_bias, g)[0] for bias in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", [None, 1])
def test_attention_with_dropout_of_next_to_nothing_is_that_without(first: int | None) -> None:
    """On a CPU the one is written out, the other torch's."""
    layer: Any = build("graphormer", max_full_nodes=0, dropout=1e-9).layers[0]
    H, bias = torch.randn(4, 9, 16), torch.randn(4, 2, 9, 9)
    bias[1, :, :, 5:] = -torch.inf
    scores = [layer.train(training)(H, bias, first=first) for training in (True, False)]
    torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-5)


def test_settings_are_checked() -> None:
    for wrong in ({"max_distance": 0}, {"num_heads": 3}, {"fan_out": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            build("graphormer", **wrong)
