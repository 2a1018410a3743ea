"""GCN: Semi-Supervised Classification with Graph Convolutional Networks (ICLR 2017), https://arxiv.org/abs/1609.02907."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from tokenphormer.baselines.base import Baseline, Task, at_least, shares
from tokenphormer.model import dropout


@dataclass(frozen=True)
class GCNSettings:
    """The shape of a GCN."""

    hidden_channels: int = 64
    num_layers: int = 2
    dropout: float = 0.5

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_layers=self.num_layers)
        shares(dropout=self.dropout)


class GCN(Baseline):
    """D̃^-½ Ã D̃^-½ H W, ReLU, for each layer."""

    title = "GCN"
    paper = "https://arxiv.org/abs/1609.02907"
    settings_class = GCNSettings
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128, 256),
        "num_layers": (2, 3),
        "dropout": (0.2, 0.5, 0.7, 0.8),
        "learning_rate": (1e-3, 5e-3, 1e-2, 5e-2),
        "weight_decay": (1e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: GCNSettings) -> None:
        super().__init__(task)
        widths = [task.x.shape[1], *[settings.hidden_channels] * (settings.num_layers - 1), task.num_classes]
        # cached: the normalised adjacency is the same in every pass
        self.convs = nn.ModuleList(GCNConv(a, b, cached=True) for a, b in pairwise(widths))
        self.dropout = settings.dropout

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        H = self.task.x
        for layer, conv in enumerate(self.convs):
            H = F.relu(H) if layer else H
            H = dropout(H, self.dropout if self.training else 0.0)
            H = conv(H, self.task.edge_index, self.task.edge_weight)
        return H
