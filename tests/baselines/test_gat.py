"""GAT: attention over a node and its neighbours, by the paper's formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import adjacency, without_edges
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph


def slow_layer(conv: Any, H: Tensor, reached: Tensor) -> tuple[Tensor, Tensor]:
    """(n, heads, d) output and (n, n, heads) weights of a layer, with a full matrix of scores."""
    Z = (H @ conv.lin.weight.t()).view(len(H), conv.heads, conv.out_channels)
    score = F.leaky_relu((Z * conv.att_dst).sum(-1)[:, None] + (Z * conv.att_src).sum(-1)[None], 0.2)
    weight = F.softmax(score.masked_fill(~reached[:, :, None], -torch.inf), dim=1)
    return torch.einsum("ijk,jkd->ikd", weight, Z), weight


def test_mechanism_is_additive_attention() -> None:
    graph = separable_graph()
    method = build("gat", graph=graph, num_heads=4, output_heads=3).eval()
    reached = (adjacency(graph) + torch.eye(90)) > 0
    first, last = method.convs
    attended, weight = slow_layer(first, method.task.x, reached)
    torch.testing.assert_close(weight.sum(dim=1), torch.ones(90, 4))
    hidden = F.elu(attended.reshape(90, 16) + first.bias)
    expected = slow_layer(last, hidden, reached)[0].mean(dim=1) + last.bias
    torch.testing.assert_close(method(), expected, rtol=1e-4, atol=1e-5)


def test_mechanism_weights_sum_to_one_and_differ() -> None:
    method = build("gat").eval()
    _, (edges, weight) = method.convs[0](method.task.x, method.edges, return_attention_weights=True)
    total = torch.zeros(90, 2).index_add(0, edges[1], weight)
    torch.testing.assert_close(total, torch.ones(90, 2))
    degree = torch.bincount(edges[1])[edges[1]]
    assert (weight[:, 0] - 1 / degree).abs().max() > 0.05, "a plain mean"


def test_mechanism_changes_the_output() -> None:
    graph = separable_graph()
    alone = build("gat", graph=without_edges(graph)).eval()
    assert not torch.allclose(build("gat", graph=graph).eval()(), alone(), atol=1e-3)


def test_loops_of_the_graph_are_not_doubled() -> None:
    looped = Graph.from_edges([[0, 0, 1], [0, 1, 2]], x=torch.eye(3).numpy(), y=[0, 1, 0], self_loops=True)
    method = build("gat", graph=looped, train_nodes=torch.arange(3).numpy())
    pairs = sorted(map(tuple, method.edges.t().tolist()))
    assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)]


def test_heads_must_share_the_channels() -> None:
    with pytest.raises(InputError, match="hidden_channels: 10 cannot be shared by num_heads=4"):
        build("gat", hidden_channels=10, num_heads=4)
