"""Label propagation: Learning with Local and Global Consistency (NeurIPS 2003).

https://papers.nips.cc/paper/2506-learning-with-local-and-global-consistency. Labels and edges alone, no features and
nothing to train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tokenphormer.baselines.base import Baseline, Task, at_least, shares
from tokenphormer.hops import propagation_matrix
from tokenphormer.tokens.operators import SparseOperator

EPSILON = 1e-9
"""Added to the mass before its logarithm; where no label arrives, all classes are equal."""


@dataclass(frozen=True)
class LabelPropagationSettings:
    """How far labels go."""

    num_layers: int = 50
    """Steps of the iteration."""
    alpha: float = 0.9
    """Share that comes from the neighbours; the rest is the node's own label."""

    def __post_init__(self) -> None:
        at_least(1, num_layers=self.num_layers)
        shares(alpha=self.alpha)


class LabelPropagation(Baseline):
    """Y ← α Â Y + (1 − α) Y₀, where Y₀ has a 1 for each training node's class."""

    title = "Label propagation"
    paper = "https://papers.nips.cc/paper/2506-learning-with-local-and-global-consistency"
    settings_class = LabelPropagationSettings
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "num_layers": (2, 5, 10, 50),
        "alpha": (0.5, 0.8, 0.9, 0.95, 0.99),
    }

    def __init__(self, task: Task, settings: LabelPropagationSettings) -> None:
        super().__init__(task)
        hop = SparseOperator.from_scipy(propagation_matrix(task.graph), task.device)
        first = torch.zeros(task.num_nodes, task.num_classes)
        first[torch.tensor(task.train_nodes), torch.tensor(task.train_classes)] = 1.0
        first = first.to(task.device)
        mass = first
        for _ in range(settings.num_layers):
            mass = settings.alpha * (hop @ mass) + (1 - settings.alpha) * first
        self.log_mass = torch.log(mass + EPSILON)

    def forward(self) -> Tensor:
        """(n, C) the logarithm of the mass at all nodes, so that a softmax gives each class its share."""
        return self.log_mass
