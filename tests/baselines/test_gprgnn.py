"""GPR-GNN: a learned, signed mix of powers of Â."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import normalised


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_mechanism_begins_as_pagerank(alpha: float) -> None:
    gamma = build("gprgnn", alpha=alpha).gamma
    expected = [alpha * (1 - alpha) ** k for k in range(10)] + [(1 - alpha) ** 10]
    torch.testing.assert_close(gamma.detach(), torch.tensor(expected))
    assert float(gamma.detach().sum()) == pytest.approx(1)


def test_mechanism_is_the_sum_of_powers() -> None:
    graph = separable_graph()
    method = build("gprgnn", graph=graph, num_hops=4).eval()
    gamma = torch.tensor([0.5, -1.0, 0.25, 2.0, -0.125])
    method.gamma.data.copy_(gamma)
    H = method.mlp(method.task.x)
    expected = sum(g * torch.linalg.matrix_power(normalised(graph), k) @ H for k, g in enumerate(gamma))
    torch.testing.assert_close(method(), expected, rtol=1e-4, atol=1e-5)


def test_mechanism_can_learn_negative_weights() -> None:
    """Where classes are to be told apart that neighbours share, one step of Â has to be taken off."""
    graph = separable_graph()
    method = build("gprgnn", graph=graph, alpha=0.5, num_hops=3, dropout=0.0, propagation_dropout=0.0)
    x = method.task.x
    wanted = ((x - normalised(graph) @ x)[:, 0] > 0).long()
    optimiser = torch.optim.Adam(method.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        torch.autograd.backward(F.cross_entropy(method()[:, :2], wanted))
        optimiser.step()
    assert float(method.gamma.detach().min()) < 0 < float(method.gamma.detach().max())


def test_dropout_of_what_is_propagated() -> None:
    method = build("gprgnn", dropout=0.0, propagation_dropout=0.5)
    assert not torch.equal(method(), method())
    method = build("gprgnn", dropout=0.0, propagation_dropout=0.0)
    assert torch.equal(method(), method())
