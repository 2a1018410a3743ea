"""APPNP: the power iteration, and its dropout of edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import normalised
from tokenphormer.tokens.operators import SparseOperator


@pytest.mark.parametrize(("alpha", "num_hops"), [(0.1, 10), (0.5, 2)])
def test_mechanism_is_the_iteration(alpha: float, num_hops: int) -> None:
    graph = separable_graph()
    method = build("appnp", graph=graph, alpha=alpha, num_hops=num_hops).eval()
    H = method.mlp(method.task.x)
    Z = H
    for _ in range(num_hops):
        Z = (1 - alpha) * normalised(graph) @ Z + alpha * H
    torch.testing.assert_close(method(), Z, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(Z, H, atol=1e-2)


def test_mechanism_approaches_personalised_pagerank() -> None:
    graph = separable_graph()
    method = build("appnp", graph=graph, alpha=0.2, num_hops=100).eval()
    expected = 0.2 * torch.linalg.solve(torch.eye(90) - 0.8 * normalised(graph), method.mlp(method.task.x))
    torch.testing.assert_close(method(), expected, rtol=1e-4, atol=1e-4)


def test_edges_are_dropped_anew_in_each_step_of_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    method: Any = build("appnp", dropout=0.5, num_hops=4)
    dropped = [method.hop.dropout(0.5).value for _ in range(2)]
    share = [float((value == 0).float().mean()) for value in dropped]
    assert not torch.equal(*dropped)
    assert all(0.35 < s < 0.65 for s in share), "thinned more than once"
    method.mlp.dropout = 0.0  # else it alone would make two passes differ
    assert not torch.equal(method(), method())
    whole, thinned, drop = method.hop, [], SparseOperator.dropout
    monkeypatch.setattr(SparseOperator, "dropout", lambda hop, share: thinned.append(hop) or drop(hop, share))
    method()
    assert len(thinned) == 4
    assert all(hop is whole for hop in thinned)
    method.eval()
    assert torch.equal(method(), method())
    assert len(thinned) == 4


def test_the_gradient_passes_the_dropped_edges() -> None:
    """Against autograd through the same thinned matrix, dense."""
    method = build("appnp", dropout=0.5)
    hop = method.hop.dropout(0.5)
    dense = torch.sparse_csr_tensor(hop.crow, hop.column, hop.value, hop.shape).to_dense()
    weight = torch.randn(90, 3)
    gradients = []
    for matrix in (hop, dense):
        Z = torch.ones(90, 3, requires_grad=True)
        ((matrix @ Z) * weight).sum().backward()
        gradients.append(Z.grad)
    torch.testing.assert_close(*gradients)
