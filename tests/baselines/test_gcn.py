"""GCN: the scores are the paper's formula."""

from __future__ import annotations

import numpy as np
import torch

from tests.baselines.build import build, separable_graph


def test_mechanism_is_the_normalised_adjacency() -> None:
    """Scores = Â relu(Â X W₀ + b₀) W₁ + b₁, with Â = D̃^-½ (A + I) D̃^-½ written out in NumPy."""
    graph = separable_graph()
    method = build("gcn", graph=graph).eval()
    A = np.eye(graph.num_nodes)
    A[np.repeat(np.arange(graph.num_nodes), graph.degree), graph.indices] = 1
    scale = A.sum(axis=1) ** -0.5
    hat = torch.tensor(scale[:, None] * A * scale, dtype=torch.float32)
    first, second = method.convs
    H = torch.relu(hat @ method.task.x @ first.lin.weight.t() + first.bias)
    expected = hat @ H @ second.lin.weight.t() + second.bias
    torch.testing.assert_close(method(), expected, rtol=1e-4, atol=1e-5)


def test_mechanism_changes_the_output() -> None:
    graph = separable_graph()
    edgeless = build("gcn", graph=type(graph).from_edges(np.zeros((2, 0), int), num_nodes=90, x=graph.x, y=graph.y))
    assert not torch.allclose(build("gcn", graph=graph).eval()(), edgeless.eval()())
