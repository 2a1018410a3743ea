"""GraphSAGE: the node itself beside the mean of its neighbours."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import adjacency, without_edges
from tokenphormer.graph import Graph


def test_mechanism_is_the_mean_beside_the_node() -> None:
    graph = separable_graph()
    method = build("sage", graph=graph, unit_length=False).eval()
    A = adjacency(graph)
    mean = A / A.sum(dim=1, keepdim=True)
    H = method.task.x
    for number, conv in enumerate(method.convs):
        H = F.relu(H) if number else H
        H = H @ conv.own.weight.t() + conv.own.bias + mean @ H @ conv.neighbours.weight.t()
    torch.testing.assert_close(method(), H, rtol=1e-4, atol=1e-5)


def test_mechanism_is_that_of_pyg() -> None:
    """With an isolated node, whose mean is zero."""
    graph = Graph.from_edges([[0, 0, 1], [1, 2, 2]], num_nodes=4, x=np.eye(4), y=[0, 1, 2, 0])
    method = build("sage", graph=graph, train_nodes=np.arange(4), num_layers=1).eval()
    (conv,) = method.convs
    twin = SAGEConv(4, 3)
    state = {"lin_l.weight": conv.neighbours.weight, "lin_l.bias": conv.own.bias, "lin_r.weight": conv.own.weight}
    twin.load_state_dict(state)
    torch.testing.assert_close(method(), twin(method.task.x, method.task.edge_index))


def test_mechanism_changes_the_output() -> None:
    graph = separable_graph()
    alone = build("sage", graph=without_edges(graph)).eval()
    assert not torch.allclose(build("sage", graph=graph).eval()(), alone(), atol=1e-3)


def test_hidden_vectors_have_length_one() -> None:
    method = build("sage", unit_length=True).eval()
    seen = []
    method.convs[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    method()
    torch.testing.assert_close(seen[0].norm(dim=1), torch.ones(90))
