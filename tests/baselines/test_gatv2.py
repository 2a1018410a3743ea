"""GATv2: the ranking of neighbours depends on the node that attends."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import adjacency


def weights_of(name: str) -> Tensor:
    """(n, n) attention weights of the first head of the first layer, on a complete graph of the same nodes."""
    method = build(name).eval()
    edges = torch.cartesian_prod(torch.arange(90), torch.arange(90)).t()
    _, (_, weight) = method.convs[0](method.task.x, edges, return_attention_weights=True)
    dense = torch.zeros(90, 90)
    dense[edges[1], edges[0]] = weight[:, 0].detach()
    return dense


def test_mechanism_ranks_neighbours_differently_for_each_node() -> None:
    """In GAT all nodes rank their neighbours alike (the paper's "static" attention); here they do not."""
    assert len(weights_of("gat").argmax(dim=1).unique()) == 1
    assert len(weights_of("gatv2").argmax(dim=1).unique()) > 1


def test_mechanism_is_the_formula() -> None:
    graph = separable_graph()
    method = build("gatv2", graph=graph, num_layers=1, output_heads=2).eval()
    (conv,) = method.convs
    sources, targets = (lin(method.task.x).view(90, 2, 3) for lin in (conv.lin_l, conv.lin_r))
    score = (F.leaky_relu(targets[:, None] + sources[None], 0.2) * conv.att).sum(-1)  # (n, n, heads)
    reached = (adjacency(graph) + torch.eye(90)) > 0
    weight = F.softmax(score.masked_fill(~reached[:, :, None], -torch.inf), dim=1)
    expected = torch.einsum("ijk,jkd->ikd", weight, sources).mean(dim=1) + conv.bias
    torch.testing.assert_close(method(), expected, rtol=1e-4, atol=1e-5)
