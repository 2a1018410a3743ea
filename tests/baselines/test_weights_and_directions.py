"""Weights and directions mean the same to every baseline: weights count, and a node reads where its edges lead."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.baselines.build import build, separable_graph, without_norms
from tokenphormer.baselines import BASELINES, Task, load_baseline
from tokenphormer.baselines.gapformer import LocalPooling, mean_weights
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix

IGNORE_WEIGHTS = ("gat", "gatv2", "gt", "graphormer", "san", "mlp", "gat_tuned")
USE_WEIGHTS = tuple(name for name in BASELINES if name not in IGNORE_WEIGHTS)
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "gapformer": [{"pooling": "local"}, {"pooling": "global"}],
    "graphormer": [{}, {"max_full_nodes": 0}],
    "san": [{}, {"max_full_nodes": 0}],
}
"""Settings that take another way through the graph, where a method has any."""


def variants(names: tuple[str, ...]) -> list[Any]:
    made = [(name, settings) for name in names for settings in SETTINGS.get(name, [{}])]
    return [pytest.param(*one, id="-".join([one[0], *map(str, one[1].values())])) for one in made]


def scores(name: str, graph: Graph, settings: dict[str, Any], train_nodes: Any = None, *, norms: bool = True) -> Tensor:
    method: Any = build(name, graph=graph, train_nodes=train_nodes, **settings)
    if not norms:
        without_norms(method)
    if name == "gophormer":  # what it learns from proximities begins as zero
        torch.nn.init.constant_(method.relation_weights, 0.5)
    method.eval()
    method.begin_prediction(0)
    with torch.no_grad():
        found: Tensor = method.scores(torch.arange(graph.num_nodes))
    return found


def weighted(graph: Graph, seed: int = 1) -> Graph:
    """The same edges with weights from 0.1 to 10; those of an undirected edge are the same both ways."""
    node = np.repeat(np.arange(graph.num_nodes), graph.degree)
    pair = node * graph.num_nodes + graph.indices
    if not graph.directed:
        pair = np.minimum(pair, graph.indices.astype(np.int64) * graph.num_nodes + node)
    draws = np.random.default_rng(seed).uniform(-1, 1, graph.num_nodes**2)
    return dataclasses.replace(graph, edge_weight=10.0 ** draws[pair])


def directed_graph() -> Graph:
    """30 nodes, edges one way; some nodes have none."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 5)).astype(np.float32)
    edges = rng.integers(0, 30, (2, 70))
    return Graph.from_edges(edges, num_nodes=30, x=x, y=np.arange(30) % 3, directed=True)


def task_of(graph: Graph) -> Task:
    return Task.of(graph, np.arange(10), torch.device("cpu"))


# ---------------------------------------------------------------- the task


def test_undirected_edges_stand_as_they_are() -> None:
    graph = separable_graph()
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    assert task_of(graph).edge_index.tolist() == [source.tolist(), graph.indices.tolist()]
    assert task_of(graph).edge_weight is None


def test_directed_edges_are_turned_round_and_weights_stay_with_them() -> None:
    graph = Graph.from_edges([[0, 2, 2], [1, 0, 1]], edge_weight=[1.0, 2.0, 3.0], directed=True)
    task = Task(graph, 2, np.arange(1), np.arange(1), torch.device("cpu"))
    assert task.ends.tolist() == [[0, 2, 2], [1, 0, 1]]
    assert task.edge_index.tolist() == [[1, 0, 1], [0, 2, 2]]
    assert task.edge_index.is_contiguous()
    assert task.edge_weight is not None
    assert task.edge_weight.dtype == torch.float32
    assert task.edge_weight.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("graph", [directed_graph(), weighted(directed_graph()), weighted(separable_graph())])
def test_gcn_passes_messages_by_the_propagation_matrix(graph: Graph) -> None:
    method: Any = build("gcn", graph=graph, num_layers=1, train_nodes=np.arange(10)).eval()
    (conv,) = method.convs
    hop = torch.tensor(propagation_matrix(graph).toarray())
    torch.testing.assert_close(method(), hop @ conv.lin(method.task.x) + conv.bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graph", [directed_graph(), weighted(directed_graph()), weighted(separable_graph())])
def test_local_pools_are_those_of_the_propagation_matrix(graph: Graph) -> None:
    task = task_of(graph)
    hop = torch.tensor(propagation_matrix(graph, "row").toarray())
    found = LocalPooling(1).mean(task.x, task.edge_index, mean_weights(task))
    torch.testing.assert_close(found, hop @ task.x, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize(("name", "settings"), variants(USE_WEIGHTS))
@pytest.mark.parametrize("directed", [False, True])
def test_weights_change_the_scores(name: str, settings: dict[str, Any], directed: bool) -> None:
    graph = directed_graph() if directed else separable_graph()
    train_nodes = np.arange(0, graph.num_nodes, 2)
    plain, first, other = (
        scores(name, one, settings, train_nodes) for one in (graph, weighted(graph, 1), weighted(graph, 2))
    )
    assert torch.isfinite(first).all()
    assert not torch.allclose(plain, first, atol=1e-3)
    assert not torch.allclose(first, other, atol=1e-3)


def test_local_pools_of_gapformer_are_given_the_weights() -> None:
    """With message passing that adds nothing."""
    found = []
    for graph in (separable_graph(), weighted(separable_graph())):
        method: Any = build("gapformer", graph=graph, pooling="local").eval()
        for layer in method.layers:
            torch.nn.init.zeros_(layer.near.lin.weight)
        found.append(method())
    assert not torch.allclose(*found, atol=1e-3)


@pytest.mark.parametrize("name", ["graphgps", "exphormer", "gapformer"])
def test_weights_of_one_are_no_weights(name: str) -> None:
    graph = separable_graph()
    ones = dataclasses.replace(graph, edge_weight=np.ones(graph.num_directed_edges))
    torch.testing.assert_close(scores(name, ones, {}), scores(name, graph, {}))


@pytest.mark.parametrize(("name", "settings"), variants(IGNORE_WEIGHTS))
def test_what_ignores_weights_says_so(name: str, settings: dict[str, Any]) -> None:
    graph = separable_graph()
    assert torch.equal(scores(name, graph, settings), scores(name, weighted(graph), settings))
    said = load_baseline(name).__doc__ or ""
    assert name == "mlp" or "edge weights" in said.lower()


# ---------------------------------------------------------------- directions

LOCAL: dict[str, dict[str, Any]] = {
    "exphormer": {"expander_degree": 0, "virtual_nodes": 0},
    "gapformer": {"pooling": "local"},
    "graphormer": {"max_full_nodes": 0},
    "san": {"max_full_nodes": 0},
}
"""How a method is kept from reading beyond the neighbours, where that is a matter of settings."""
NO_SUCH_TEST = {
    "mlp": "reads no neighbours",
    "label_propagation": "reads labels, no features; tested below",
    "graphgps": "every node attends to all; its message passing is tested below",
    "ans_gt": "draws nodes by their features from the whole graph; clusters have no direction",
}


def edge_graph(moved: int | None = None) -> Graph:
    """Fourteen nodes and the edge 0 → 1; `moved` has other features."""
    x = np.random.default_rng(0).normal(size=(14, 5)).astype(np.float32)
    if moved is not None:
        x[moved] = [3, -2, 4, -5, 1]
    return Graph.from_edges([[0], [1]], num_nodes=14, x=x, y=np.arange(14) % 3, directed=True)


def check_directions(name: str, settings: dict[str, Any]) -> None:
    """Node 0 reads node 1; node 1 does not read node 0, and node 2 reads neither."""
    before, other, own = (
        scores(name, edge_graph(moved), settings, np.arange(14), norms=False) for moved in (None, 1, 0)
    )
    assert not torch.allclose(other[0], before[0], atol=1e-3), "node 0 does not read where its edge leads"
    torch.testing.assert_close(own[1], before[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(other[2], before[2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", BASELINES)
def test_a_node_reads_where_its_edge_leads(name: str) -> None:
    if name in NO_SUCH_TEST:
        pytest.skip(NO_SUCH_TEST[name])
    check_directions(name, LOCAL.get(name, {}))


def test_the_real_edges_of_san_in_one_sequence_of_all_nodes() -> None:
    check_directions("san", {"gamma": 0.0})


def test_labels_come_from_where_an_edge_leads() -> None:
    graph = edge_graph()
    from_0, from_1 = (scores("label_propagation", graph, {}, np.array([node])) for node in (0, 1))
    assert from_1[0].argmax() == graph.y[1]
    assert from_1[0].max() - from_1[0].min() > 1
    assert (from_0[1] == from_0[1, 0]).all(), "node 1 has the label of node 0"


def test_the_message_passing_of_graphgps() -> None:
    """With attention that adds nothing."""
    found = []
    for moved in (None, 1, 0):
        method: Any = build("graphgps", graph=edge_graph(moved), train_nodes=np.arange(14), laplacian_pe=0)
        without_norms(method.eval())
        for layer in method.layers:
            torch.nn.init.zeros_(layer.attention.output.weight)
            torch.nn.init.zeros_(layer.attention.output.bias)
        found.append(method())
    before, other, own = found
    assert not torch.allclose(other[0], before[0], atol=1e-3)
    torch.testing.assert_close(own[1], before[1])


def test_every_baseline_that_ignores_weights_or_has_no_test_is_one() -> None:
    assert {*IGNORE_WEIGHTS, *NO_SUCH_TEST, *LOCAL, *SETTINGS} <= set(BASELINES)
