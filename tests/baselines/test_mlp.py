"""MLP: features alone."""

from __future__ import annotations

import torch

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import without_edges


def test_mechanism_is_the_features_alone() -> None:
    graph, nodes = separable_graph(), torch.arange(90)
    method = build("mlp", graph=graph).eval()
    first, second = method.mlp.layers
    expected = torch.relu(method.task.x @ first.weight.t() + first.bias) @ second.weight.t() + second.bias
    torch.testing.assert_close(method.scores(nodes), expected)
    alone = build("mlp", graph=without_edges(graph)).eval()
    torch.testing.assert_close(alone.scores(nodes), expected)


def test_dropout_is_for_training() -> None:
    method, nodes = build("mlp", dropout=0.5), torch.arange(9)
    assert not torch.equal(method.scores(nodes), method.scores(nodes))
    method.eval()
    assert torch.equal(method.scores(nodes), method.scores(nodes))
