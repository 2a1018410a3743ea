"""GraphGPS: message passing beside attention to all nodes, with positions at the input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_geometric.nn import GCNConv, GPSConv

from tests.baselines.build import build, separable_graph, without_norms
from tests.baselines.dense import without_edges
from tests.baselines.test_weights_and_directions import directed_graph, weighted
from tokenphormer.baselines.graphgps import FullAttention, GPSLayer, dense_returns
from tokenphormer.graph import Graph
from tokenphormer.tokens.encodings import return_probabilities


def twin_of(layer: GPSLayer, channels: int, heads: int) -> GPSConv:
    """PyG's layer with the same weights."""
    twin = GPSConv(channels, GCNConv(channels, channels), heads=heads, norm_kwargs={"track_running_stats": False})
    renamed = {
        "conv.": "conv.",
        "attention.query_key_value.": "attn.in_proj_",
        "attention.output.": "attn.out_proj.",
        "block.local_norm.": "norm1.module.",
        "block.global_norm.": "norm2.module.",
        "block.norm.": "norm3.module.",
        "block.widen.": "mlp.0.",
        "block.narrow.": "mlp.3.",
    }
    state = {}
    for name, value in layer.state_dict().items():
        (ours,) = [prefix for prefix in renamed if name.startswith(prefix)]
        state[name.replace(ours, renamed[ours])] = value
    twin.load_state_dict(state)
    return twin


@pytest.mark.parametrize("training", [True, False])
def test_mechanism_is_that_of_pyg(training: bool) -> None:
    edges = build("graphgps").task.edge_index
    torch.manual_seed(1)
    layer = GPSLayer(16, 2, dropout=0.0)
    twin = twin_of(layer, 16, 2)
    layer.train(training)
    twin.train(training)
    H = torch.randn(90, 16)
    torch.testing.assert_close(layer(H, edges), twin(H, edges), rtol=1e-4, atol=1e-5)


def test_mechanism_attention_reaches_beyond_the_edges() -> None:
    """On nodes without a single edge, changing one node's features changes the scores of another."""
    graph = without_edges(separable_graph())
    method = without_norms(build("graphgps", graph=graph, laplacian_pe=0)).eval()
    before = method()[5]
    method.task.x[70] += 1.0
    assert not torch.allclose(method()[5], before, atol=1e-6)


def test_mechanism_message_passing_changes_the_output() -> None:
    graph = separable_graph()
    method = build("graphgps", graph=graph, laplacian_pe=0).eval()
    alone = build("graphgps", graph=without_edges(graph), laplacian_pe=0).eval()
    assert not torch.allclose(method(), alone(), atol=1e-3)


@pytest.mark.parametrize("encoding", ["laplacian_pe", "walk_pe"])
def test_mechanism_encodings_change_the_output(encoding: str) -> None:
    method = build("graphgps", **({"laplacian_pe": 0, "walk_pe": 0} | {encoding: 6})).eval()
    before = method()
    method.input.linear.weight.data[:, method.task.x.shape[1] :] = 0.0
    assert not torch.allclose(method(), before, atol=1e-3)


def test_walk_encodings_are_standardised_return_probabilities() -> None:
    graph = separable_graph()
    returns = build("graphgps", graph=graph, walk_pe=5).returns.numpy()
    exact = return_probabilities(graph, 5)
    assert (returns[:, 0] == 0).all(), "no walk returns in one step"
    for step in range(1, 5):
        assert np.corrcoef(returns[:, step], exact[:, step])[0, 1] == pytest.approx(1, abs=1e-4)
        assert returns[:, step].std() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("graph", [separable_graph(), directed_graph(), weighted(directed_graph())])
def test_return_probabilities_of_gpus_are_the_same(graph: Graph) -> None:
    task = build("graphgps", graph=graph, train_nodes=np.arange(10), laplacian_pe=0).task
    exact = return_probabilities(graph, 5)
    assert exact[:, 1:].max() > 0
    np.testing.assert_allclose(dense_returns(task, 5), exact, atol=1e-7)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("graphgps", {"walk_pe": 6}),
        ("san", {}),
        ("san", {"max_full_nodes": 0}),
        ("graphormer", {}),
        ("graphormer", {"max_full_nodes": 0}),
        ("gophormer", {}),
        ("ans_gt", {}),
    ],
)
def test_attention_in_bfloat16_is_that_of_a_cpu(name: str, settings: dict[str, Any]) -> None:
    here, there = (build(name, device=device, **settings).eval() for device in ("cpu", "cuda"))
    there.load_state_dict(here.state_dict())
    found = []
    for method in (here, there):
        method.begin_prediction(0)
        found.append(method.scores(torch.arange(90, device=method.task.device)).detach().cpu())
    assert not torch.equal(*found), "nothing was rounded"
    torch.testing.assert_close(found[1], found[0], rtol=0.02, atol=0.02)


def test_signs_flip_in_training_only() -> None:
    method = build("graphgps", dropout=0.0)
    for mode, same in ((True, False), (False, True)):
        method.train(mode)
        scores = []
        for epoch in (1, 2):
            method.begin_epoch(epoch)
            scores.append(method())
        assert torch.equal(*scores) == same


def test_memory_grows_with_the_nodes_not_their_square() -> None:
    """The fused kernel takes both passes in float32; were a mask or a dropout given, it would refuse."""
    attention, H = FullAttention(16, 2), torch.randn(50, 16, requires_grad=True)
    plain = attention(H)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        fused = attention(H)
        fused.sum().backward()
    torch.testing.assert_close(fused, plain)
    assert H.grad is not None
