"""JKNet: all layers are read, in three ways."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import normalised
from tokenphormer.errors import InputError


def layers_of(method: Any, hat: Tensor) -> list[Tensor]:
    H, layers = method.task.x, []
    for conv in method.convs:
        H = F.relu(hat @ H @ conv.lin.weight.t() + conv.bias)
        layers.append(H)
    return layers


@pytest.mark.parametrize("mode", ["cat", "max", "lstm"])
def test_mechanism_reads_all_layers(mode: str) -> None:
    graph = separable_graph()
    method = build("jknet", graph=graph, mode=mode, num_layers=3).eval()
    layers = layers_of(method, normalised(graph))
    if mode == "cat":
        joined = torch.cat(layers, dim=1)
    elif mode == "max":
        joined = torch.stack(layers).amax(dim=0)
    else:
        jump = method.jump
        weight = F.softmax(jump.att(jump.lstm(torch.stack(layers, dim=1))[0]), dim=1)  # (n, layers, 1)
        torch.testing.assert_close(weight.sum(dim=1), torch.ones(90, 1))
        joined = (weight * torch.stack(layers, dim=1)).sum(dim=1)
    torch.testing.assert_close(method(), method.output(joined), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["cat", "max", "lstm"])
def test_mechanism_gives_every_layer_a_direct_gradient(mode: str) -> None:
    """Were only the last layer read, the first one's output would reach the scores through the second alone."""
    method = build("jknet", mode=mode, num_layers=2).eval()
    method.convs[1].lin.weight.data.zero_()
    method().sum().backward()
    assert float(method.convs[0].lin.weight.grad.abs().sum()) > 0


def test_unknown_modes() -> None:
    with pytest.raises(InputError, match="mode: 'sum'; expected one of cat, max, lstm"):
        build("jknet", mode="sum")
