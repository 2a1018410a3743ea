"""GraphSAGE: Inductive Representation Learning on Large Graphs (NeurIPS 2017), https://arxiv.org/abs/1706.02216.

The mean aggregator over all neighbours. The paper samples 25 and 10 of them, to make large graphs fit; on graphs
that are passed over whole there is nothing to gain from that. The layer is PyG's `SAGEConv`, which a test holds it to,
but projects before it averages: PyG gathers the features of every edge's end, which for Flickr are 23 GB.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.baselines.base import Baseline, Task, at_least, shares
from tokenphormer.hops import propagation_matrix
from tokenphormer.model import dropout
from tokenphormer.tokens.operators import SparseOperator


class MeanConv(nn.Module):
    """W₁ h_i + mean(W₂ h_j) + b; a node without neighbours has W₁ h_i + b."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.own = nn.Linear(in_channels, out_channels)
        self.neighbours = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, H: Tensor, mean: SparseOperator) -> Tensor:
        """(n, in) → (n, out); `mean` is D^-1 A."""
        result: Tensor = self.own(H) + mean @ self.neighbours(H)
        return result


def mean_operator(task: Task) -> SparseOperator:
    """(n, n) D^-1 A."""
    return SparseOperator.from_scipy(propagation_matrix(task.graph, "row"), task.device)


@dataclass(frozen=True)
class GraphSAGESettings:
    """The shape of a GraphSAGE."""

    hidden_channels: int = 128
    num_layers: int = 2
    dropout: float = 0.5
    unit_length: bool = True
    """Scale every hidden vector to length 1 (line 7 of the paper's algorithm 1)."""

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_layers=self.num_layers)
        shares(dropout=self.dropout)


class GraphSAGE(Baseline):
    """W₁ h_i + W₂ mean(h_j), ReLU, for each layer."""

    title = "GraphSAGE"
    paper = "https://arxiv.org/abs/1706.02216"
    settings_class = GraphSAGESettings
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128, 256),
        "num_layers": (2, 3, 6),
        "dropout": (0.2, 0.5, 0.7),
        "unit_length": (False, True),
        "learning_rate": (1e-3, 5e-3, 1e-2, 5e-2),
        "weight_decay": (5e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: GraphSAGESettings) -> None:
        super().__init__(task)
        widths = [task.x.shape[1], *[settings.hidden_channels] * (settings.num_layers - 1), task.num_classes]
        self.convs = nn.ModuleList(MeanConv(a, b) for a, b in pairwise(widths))
        self.dropout, self.unit_length = settings.dropout, settings.unit_length
        self.mean = mean_operator(task)

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        H = self.task.x
        for number, conv in enumerate(self.convs):
            if number:
                H = F.relu(H)
                H = F.normalize(H, dim=1) if self.unit_length else H
            H = conv(dropout(H, self.dropout if self.training else 0.0), self.mean)
        return H
