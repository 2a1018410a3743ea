"""MLP: features alone, no edges; the yardstick of the GCN paper (ICLR 2017), https://arxiv.org/abs/1609.02907."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.baselines.base import Baseline, Task, at_least, shares
from tokenphormer.model import dropout


class Perceptron(nn.Module):
    """Linear layers, ReLU between them, dropout before each; what several methods do before they propagate."""

    def __init__(self, widths: list[int], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, H: Tensor) -> Tensor:
        """(n, first width) → (n, last width)."""
        for number, layer in enumerate(self.layers):
            H = F.relu(H) if number else H
            H = layer(dropout(H, self.dropout if self.training else 0.0))
        return H


@dataclass(frozen=True)
class MLPSettings:
    """The shape of an MLP."""

    hidden_channels: int = 64
    num_layers: int = 2
    dropout: float = 0.5

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_layers=self.num_layers)
        shares(dropout=self.dropout)


class MLP(Baseline):
    """Class scores from a node's own features."""

    title = "MLP"
    paper = "https://arxiv.org/abs/1609.02907"
    settings_class = MLPSettings
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128, 256),
        "num_layers": (2, 3),
        "dropout": (0.2, 0.5, 0.7, 0.8),
        "learning_rate": (1e-3, 5e-3, 1e-2, 5e-2),
        "weight_decay": (1e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: MLPSettings) -> None:
        super().__init__(task)
        hidden = [settings.hidden_channels] * (settings.num_layers - 1)
        self.mlp = Perceptron([task.x.shape[1], *hidden, task.num_classes], settings.dropout)

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores; no other node is read."""
        scores: Tensor = self.mlp(self.task.x[nodes])
        return scores
