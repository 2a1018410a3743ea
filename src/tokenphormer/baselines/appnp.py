"""APPNP: Predict then Propagate (ICLR 2019), https://arxiv.org/abs/1810.05997.

PyG's `APPNP` drops edges of the already thinned matrix in each step, so that after ten steps almost none is left;
the paper draws anew from the whole matrix, as is done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tokenphormer.baselines.base import Baseline, Task, at_least, shares
from tokenphormer.baselines.mlp import Perceptron
from tokenphormer.hops import propagation_matrix
from tokenphormer.tokens.operators import SparseOperator


@dataclass(frozen=True)
class APPNPSettings:
    """The shape of an APPNP."""

    hidden_channels: int = 64
    num_hops: int = 10
    """K, the steps of power iteration."""
    alpha: float = 0.1
    """How much of the prediction itself is mixed in again at each step."""
    dropout: float = 0.5
    """Of each layer's input and of the adjacency."""

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_hops=self.num_hops)
        shares(alpha=self.alpha, dropout=self.dropout)


class APPNP(Baseline):
    """H = MLP(X), then Z ← (1 − α) Â Z + α H, K times."""

    title = "APPNP"
    paper = "https://arxiv.org/abs/1810.05997"
    settings_class = APPNPSettings
    schedule: ClassVar[dict[str, object]] = {"weight_decay": 5e-3}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128, 256),
        "alpha": (0.1, 0.2, 0.5, 0.9),
        "dropout": (0.2, 0.5, 0.7, 0.8),
        "learning_rate": (1e-3, 5e-3, 1e-2, 5e-2),
        "weight_decay": (1e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: APPNPSettings) -> None:
        super().__init__(task)
        self.settings = settings
        self.mlp = Perceptron([task.x.shape[1], settings.hidden_channels, task.num_classes], settings.dropout)
        matrix = propagation_matrix(task.graph)
        self.hop = SparseOperator.from_scipy(matrix, task.device, symmetric=not task.graph.directed)

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        alpha, drop = self.settings.alpha, self.settings.dropout
        H: Tensor = self.mlp(self.task.x)
        Z = H
        for _ in range(self.settings.num_hops):
            hop = self.hop.dropout(drop) if self.training and drop else self.hop
            Z = (1 - alpha) * (hop @ Z) + alpha * H
        return Z
