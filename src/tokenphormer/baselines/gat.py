"""GAT: Graph Attention Networks (ICLR 2018), https://arxiv.org/abs/1710.10903."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv
from torch_geometric.utils import add_self_loops, remove_self_loops

from tokenphormer.baselines.base import Baseline, Task, at_least, check_heads, shares
from tokenphormer.model import dropout


def edges_and_loops(task: Task) -> Tensor:
    """(2, E + n) the edges and one loop a node; made once, since PyG's layers would make them in every pass."""
    edges: Tensor = add_self_loops(remove_self_loops(task.edge_index)[0], num_nodes=task.num_nodes)[0]
    return edges


@dataclass(frozen=True)
class GATSettings:
    """The shape of a GAT."""

    hidden_channels: int = 64
    """Of all heads together; the paper has 8 heads of 8."""
    num_heads: int = 8
    output_heads: int = 1
    """Heads of the last layer, whose scores are averaged; the paper has 8 on Pubmed."""
    num_layers: int = 2
    dropout: float = 0.6
    """Of each layer's input and of its attention weights."""

    def __post_init__(self) -> None:
        check_heads(self.hidden_channels, self.num_heads)
        at_least(1, output_heads=self.output_heads, num_layers=self.num_layers)
        shares(dropout=self.dropout)


class GAT(Baseline):
    """Neighbours weighted by softmax(LeakyReLU(a₁ᵀ W h_i + a₂ᵀ W h_j)), ELU, for each layer.

    The attention has no place for edge weights: they are ignored.
    """

    title = "GAT"
    paper = "https://arxiv.org/abs/1710.10903"
    settings_class = GATSettings
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 5e-3}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128, 256),
        "num_heads": (1, 4, 8),
        "num_layers": (2, 3),
        "dropout": (0.2, 0.5, 0.6, 0.8),
        "learning_rate": (1e-3, 5e-3, 1e-2, 5e-2),
        "weight_decay": (5e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }
    layer: ClassVar[Any] = GATConv

    def __init__(self, task: Task, settings: GATSettings) -> None:
        super().__init__(task)
        s = settings
        widths = [task.x.shape[1], *[s.hidden_channels] * (s.num_layers - 1)]
        shared = {"dropout": s.dropout, "add_self_loops": False}
        last = self.layer(widths[-1], task.num_classes, heads=s.output_heads, concat=False, **shared)
        hidden = [self.layer(a, s.hidden_channels // s.num_heads, heads=s.num_heads, **shared) for a in widths[:-1]]
        self.convs = nn.ModuleList([*hidden, last])
        self.dropout = s.dropout
        self.edges = edges_and_loops(task)

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        H = self.task.x
        for number, conv in enumerate(self.convs):
            H = F.elu(H) if number else H
            H = conv(dropout(H, self.dropout if self.training else 0.0), self.edges)
        return H
