"""JKNet: Representation Learning on Graphs with Jumping Knowledge Networks (ICML 2018), https://arxiv.org/abs/1806.03536."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, JumpingKnowledge

from tokenphormer.baselines.base import Baseline, Task, at_least, check_choice, shares
from tokenphormer.model import dropout

MODES = ("cat", "max", "lstm")


@dataclass(frozen=True)
class JKNetSettings:
    """The shape of a JKNet."""

    hidden_channels: int = 32
    num_layers: int = 6
    mode: Literal["cat", "max", "lstm"] = "cat"
    """How a node's layers become one vector: side by side, the largest of each channel, or weighted by an LSTM."""
    dropout: float = 0.5

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_layers=self.num_layers)
        check_choice("mode", self.mode, MODES)
        shares(dropout=self.dropout)


class JKNet(Baseline):
    """A stack of GCN layers; the classes are read from all of them together."""

    title = "JKNet"
    paper = "https://arxiv.org/abs/1806.03536"
    settings_class = JKNetSettings
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 5e-3}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (32, 64, 128),
        "num_layers": (2, 4, 6),
        "mode": MODES,
        "dropout": (0.2, 0.5, 0.7, 0.8),
        "learning_rate": (1e-3, 5e-3, 1e-2, 5e-2),
        "weight_decay": (1e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: JKNetSettings) -> None:
        super().__init__(task)
        h, layers = settings.hidden_channels, settings.num_layers
        widths = [task.x.shape[1], *[h] * (layers - 1)]
        self.convs = nn.ModuleList(GCNConv(width, h, cached=True) for width in widths)
        self.jump = JumpingKnowledge(settings.mode, h, layers)
        self.output = nn.Linear(h * layers if settings.mode == "cat" else h, task.num_classes)
        self.dropout = settings.dropout

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        drop = self.dropout if self.training else 0.0
        H, layers = self.task.x, []
        for conv in self.convs:
            H = F.relu(conv(dropout(H, drop), self.task.edge_index, self.task.edge_weight))
            layers.append(H)
        scores: Tensor = self.output(dropout(self.jump(layers), drop))
        return scores
