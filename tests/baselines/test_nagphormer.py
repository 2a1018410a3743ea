"""NAGphormer: a node's hops are its tokens, and nothing else is read for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import normalised, without_edges
from tokenphormer.tokens.encodings import laplacian_eigenvectors


def test_mechanism_tokens_are_hops() -> None:
    graph = separable_graph()
    method = build("nagphormer", graph=graph, num_hops=4, laplacian_pe=5)
    now = torch.cat([method.task.x, torch.tensor(laplacian_eigenvectors(graph, 5))], dim=1)
    assert method.tokens.shape == (90, 5, 11)
    for k in range(5):
        torch.testing.assert_close(method.tokens[:, k], now, rtol=1e-4, atol=1e-5)
        now = normalised(graph) @ now


def slow_scores(method: Any, tokens: Tensor, self_half: Tensor) -> Tensor:
    """(C) the scores of one node, written straight from the paper's equations."""
    H = method.input(tokens)
    (layer,) = method.layers
    q, k, v = layer.query_key_value(layer.attention_norm(H)).view(len(H), 3, 2, 8).permute(1, 2, 0, 3)
    attended = F.softmax(q @ k.transpose(1, 2) / 8**0.5, dim=2) @ v
    H = H + layer.output(attended.transpose(0, 1).reshape(len(H), 16))
    H = H + layer.narrow(F.gelu(layer.widen(layer.ffn_norm(H))))
    H = method.norm(H)
    w = torch.cat([self_half, method.readout.weight[0]])
    weight = F.softmax(torch.stack([w @ torch.cat([H[0], hop]) for hop in H[1:]]), dim=0)
    out = H[0] + sum(a * hop for a, hop in zip(weight, H[1:], strict=True))
    return method.head(out)


def test_mechanism_is_the_paper_s_readout() -> None:
    """The half of the readout's vector that meets the node's own token changes nothing."""
    method = build("nagphormer").eval()
    scores = method.scores(torch.arange(4))
    for half in (torch.zeros(16), torch.randn(16)):
        slow = torch.stack([slow_scores(method, method.tokens[node], half) for node in range(4)])
        torch.testing.assert_close(scores, slow, rtol=1e-4, atol=1e-5)


def test_mechanism_hops_change_the_output() -> None:
    graph = separable_graph()
    method, alone = (build("nagphormer", graph=g).eval() for g in (graph, without_edges(graph)))
    nodes = torch.arange(90)
    assert not torch.allclose(method.scores(nodes), alone.scores(nodes), atol=1e-3)
    method.readout.weight.data.add_(3.0)
    before = method.scores(nodes)
    method.readout.weight.data.neg_()
    assert not torch.allclose(method.scores(nodes), before, atol=1e-5), "the readout's weights matter"


def test_only_the_batch_s_own_tokens_are_read() -> None:
    method = build("nagphormer").eval()
    before = method.scores(torch.tensor([3]))
    method.tokens[4:] = torch.nan
    assert torch.equal(method.scores(torch.tensor([3])), before)


def test_batches_are_the_authors() -> None:
    assert build("nagphormer").micro_batch == 90
    assert build("nagphormer", graph=separable_graph(2100)).micro_batch == 2000
