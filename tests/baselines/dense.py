"""Graphs as dense matrices, for the slow versions that the baselines are tested against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokenphormer.graph import Graph


def adjacency(graph: Graph) -> Tensor:
    """(n, n) A."""
    A = np.zeros((graph.num_nodes, graph.num_nodes), dtype=np.float32)
    A[np.repeat(np.arange(graph.num_nodes), graph.degree), graph.indices] = 1
    return torch.tensor(A)


def normalised(graph: Graph) -> Tensor:
    """(n, n) Â = D̃^-½ (A + I) D̃^-½."""
    A = adjacency(graph) + torch.eye(graph.num_nodes)
    scale = A.sum(dim=1) ** -0.5
    return scale[:, None] * A * scale


def without_edges(graph: Graph) -> Graph:
    """The same nodes, alone."""
    nothing = np.zeros((2, 0), dtype=np.int64)
    names = graph.class_names
    return Graph.from_edges(nothing, num_nodes=graph.num_nodes, x=graph.x, y=graph.y, class_names=names)
