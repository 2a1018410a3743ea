"""GCN: Semi-Supervised Classification with Graph Convolutional Networks (ICLR 2017), https://arxiv.org/abs/1609.02907."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix
from tokenphormer.tokens.operators import FeatureRows, SparseOperator


class GCN(nn.Module):
    """D̃^-½ Ã D̃^-½ H W, ReLU, for each layer; sparse features stay sparse."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, dropout: float
    ) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, rows: FeatureRows, hop: SparseOperator) -> Tensor:
        """(n, classes) class scores of all nodes."""
        H = None
        for linear in self.linears:
            assert isinstance(linear, nn.Linear)
            if H is None:
                Z = rows.project(linear.weight.t())
            else:
                Z = F.dropout(F.relu(H), self.dropout, self.training) @ linear.weight.t()
            H = hop @ Z + linear.bias
        assert H is not None
        return H


class GCNMethod:
    """A GCN on one graph: every score comes from one pass over the whole graph."""

    def __init__(
        self,
        graph: Graph,
        num_classes: int,
        device: torch.device,
        *,
        hidden_channels: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.rows = FeatureRows.on(device, graph.x)
        symmetric = not graph.directed
        self.hop = SparseOperator.from_scipy(propagation_matrix(graph, "symmetric"), device, symmetric)
        self.module = GCN(graph.num_features, hidden_channels, num_classes, num_layers, dropout).to(device)
        self.micro_batch = graph.num_nodes

    def begin_epoch(self, epoch: int) -> None:
        """Nothing is drawn."""
        del epoch

    def begin_prediction(self, draw: int) -> None:
        """Nothing is drawn."""
        del draw

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores."""
        everything: Any = self.module(self.rows, self.hop)
        scores: Tensor = everything[nodes]
        return scores
