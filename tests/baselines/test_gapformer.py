"""Gapformer: nodes attend to pooled keys and values, globally or locally."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tests.baselines.test_baselines import first_scores
from tokenphormer.baselines.gapformer import GlobalPooling, LocalPooling
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix


def parts(n: int = 90) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    H, q, k, v = torch.randn(4, n, 8)
    return H, q.view(n, 2, 4), k.view(n, 2, 4), v.view(n, 2, 4)


def slow_attention(q: torch.Tensor, pooled_k: list[torch.Tensor], pooled_v: list[torch.Tensor]) -> torch.Tensor:
    """(heads, d) of one node over a list of pooled keys and values."""
    result = torch.zeros_like(q)
    for head in range(len(q)):
        score = torch.stack([q[head] @ key[head] / q.shape[1] ** 0.5 for key in pooled_k])
        for weight, value in zip(F.softmax(score, dim=0), pooled_v, strict=True):
            result[head] += weight * value[head]
    return result


def test_mechanism_global_attention_is_over_weighted_means_of_all_nodes() -> None:
    H, q, k, v = parts()
    pooling = GlobalPooling(8, 5)
    S = F.softmax(pooling.assign(H), dim=1)
    pooled = []
    for part in (k, v):
        pooled.append([sum(S[i, p] * part[i] for i in range(90)) / S[:, p].sum() for p in range(5)])
    found = pooling.attend(H, q, k, v, torch.zeros(2, 0, dtype=torch.int64))
    for node in (0, 44, 89):
        torch.testing.assert_close(found[node], slow_attention(q[node], *pooled), rtol=1e-4, atol=1e-5)


def test_mechanism_local_attention_is_over_means_of_neighbourhoods() -> None:
    graph = separable_graph()
    H, q, k, v = parts()
    P = torch.tensor(propagation_matrix(graph, "row").toarray())
    found = LocalPooling(3).attend(H, q, k, v, build("gapformer", graph=graph).task.edge_index)
    for node in (0, 44, 89):
        pooled: list[list[torch.Tensor]] = [[], []]
        for part, pools in zip((k, v), pooled, strict=True):
            for hop in range(4):
                row = torch.linalg.matrix_power(P, hop)[node]
                pools.append(torch.einsum("n,nhd->hd", row, part))
        torch.testing.assert_close(found[node], slow_attention(q[node], *pooled), rtol=1e-4, atol=1e-5)


def test_mechanism_only_global_pools_reach_another_component() -> None:
    edges = [[0, 1, 2, 4, 5, 6], [1, 2, 3, 5, 6, 7]]
    x = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    moved = x.copy()
    moved[4:] += 5
    for pooling, seen in (("local", False), ("global", True)):
        before, after = (
            first_scores(
                "gapformer",
                torch.arange(4),
                graph=Graph.from_edges(edges, num_nodes=8, x=features, y=np.arange(8) % 2),
                pooling=pooling,
                num_pooled=3,
            )
            for features in (x, moved)
        )
        assert torch.allclose(before, after, atol=1e-6) != seen


@pytest.mark.parametrize("pooling", ["local", "global"])
def test_mechanism_pools_and_neighbours_both_count(pooling: str) -> None:
    before = first_scores("gapformer", torch.arange(9), pooling=pooling)
    for branch in ("output", "near"):
        method: Any = build("gapformer", pooling=pooling).eval()
        with torch.no_grad():
            for layer in method.layers:
                for parameter in getattr(layer, branch).parameters():
                    parameter.zero_()
            assert not torch.allclose(method.scores(torch.arange(9)), before, atol=1e-3), branch


@pytest.mark.parametrize("pooling", ["local", "global"])
def test_the_gradient_reaches_every_parameter(pooling: str) -> None:
    method = build("gapformer", pooling=pooling)
    torch.autograd.backward(F.cross_entropy(method(), torch.arange(90) % 3))
    assert [name for name, p in method.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_settings_are_checked() -> None:
    for wrong in ({"pooling": "none"}, {"num_pooled": 0}, {"num_heads": 3}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            build("gapformer", **wrong)
