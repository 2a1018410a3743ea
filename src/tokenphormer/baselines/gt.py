"""GT: A Generalization of Transformer Networks to Graphs (AAAI 2021 workshop), https://arxiv.org/abs/2012.09699."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.utils import softmax

from tokenphormer.baselines.base import Baseline, Task, at_least, check_heads, node_norm, shares
from tokenphormer.model import dropout
from tokenphormer.tokens.encodings import laplacian_eigenvectors


class Positions:
    """Laplacian eigenvectors of a graph's nodes, whose signs mean nothing: training sees them flipped at random."""

    def __init__(self, task: Task, count: int) -> None:
        # Eigenvectors have length 1; scaled like this, an entry is about ±1 in graphs of every size.
        scaled = laplacian_eigenvectors(task.graph, count) * np.float32(task.num_nodes**0.5)
        self.columns = torch.tensor(scaled, device=task.device)
        """(n, count) as predictions see them."""
        self.flipped = self.columns
        """(n, count) as training sees them."""

    def flip(self, generator: np.random.Generator) -> None:
        """Draw the signs of all columns anew."""
        signs = generator.choice(np.array([-1, 1], np.float32), self.columns.shape[1])
        self.flipped = self.columns * torch.tensor(signs, device=self.columns.device)


class PlacedInput(nn.Module):
    """One linear map of [x ; place], without putting the two side by side."""

    def __init__(self, num_features: int, num_columns: int, hidden_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features + num_columns, hidden_channels)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """(n, features) and (n, columns) → (n, h)."""
        weight, features = self.linear.weight, x.shape[1]
        return F.linear(x, weight[:, :features], self.linear.bias) + F.linear(places, weight[:, features:])


class EdgeAttention(nn.Module):
    """Σ_j softmax_j(⟨q_i, k_j⟩ / √d) v_j over the edges j → i only; a node without any gets zeros."""

    def __init__(self, hidden_channels: int, num_heads: int, attention_dropout: float = 0.0) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(hidden_channels, 3 * hidden_channels, bias=False)
        self.num_heads, self.dropout = num_heads, attention_dropout

    def forward(self, H: Tensor, edges: Tensor, factor: Tensor | None = None) -> Tensor:
        """(n, h) → (n, h); `factor` (E, h) multiplies the channels of q ∘ k of each edge."""
        n, h = H.shape
        source, target = edges
        q, k, v = self.query_key_value(H).chunk(3, dim=1)
        # index_select: its gradient is a plain addition, that of brackets is sorted first
        product = q.index_select(0, target) * k.index_select(0, source)  # (E, h)
        product = product if factor is None else product * factor
        by_head = (len(source), self.num_heads, h // self.num_heads)
        score = product.view(by_head).sum(dim=2) * by_head[2] ** -0.5
        weight = dropout(softmax(score, target, num_nodes=n), self.dropout if self.training else 0.0)  # (E, heads)
        message = v.index_select(0, source).view(by_head) * weight[:, :, None]
        return H.new_zeros(n, h).index_add(0, target, message.flatten(1))


@dataclass(frozen=True)
class GTSettings:
    """The shape of a GT."""

    hidden_channels: int = 64
    num_layers: int = 4
    num_heads: int = 8
    laplacian_pe: int = 10
    """Laplacian eigenvectors added at the input."""
    dropout: float = 0.2
    running_statistics: bool = False
    """Whether BatchNorm predicts with running statistics, as published, and not with those of the graph's nodes."""

    def __post_init__(self) -> None:
        check_heads(self.hidden_channels, self.num_heads)
        at_least(1, num_layers=self.num_layers, laplacian_pe=self.laplacian_pe)
        shares(dropout=self.dropout)


class GTLayer(nn.Module):
    """Attention over neighbours and a feed-forward network, each followed by a residual and BatchNorm."""

    def __init__(self, settings: GTSettings) -> None:
        super().__init__()
        h, running = settings.hidden_channels, settings.running_statistics
        self.attention = EdgeAttention(h, settings.num_heads)
        # No biases before a BatchNorm, which would take them away again.
        self.output, self.attention_norm = nn.Linear(h, h, bias=False), node_norm(h, running)
        self.widen, self.narrow = nn.Linear(h, 2 * h), nn.Linear(2 * h, h, bias=False)
        self.ffn_norm = node_norm(h, running)
        self.dropout = settings.dropout

    def forward(self, H: Tensor, edges: Tensor) -> Tensor:
        """(n, h) → (n, h)."""
        drop = self.dropout if self.training else 0.0
        H = self.attention_norm(H + self.output(dropout(self.attention(H, edges), drop)))
        widened = dropout(F.relu(self.widen(H)), drop)
        result: Tensor = self.ffn_norm(H + self.narrow(widened))
        return result


class GT(Baseline):
    """A Transformer whose attention reaches the neighbours only, with Laplacian positions at the input.

    Neither has a place for edge weights: they are ignored.
    """

    title = "GT"
    paper = "https://arxiv.org/abs/2012.09699"
    settings_class = GTSettings
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 1e-3}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128),
        "num_layers": (1, 2, 4),
        "laplacian_pe": (5, 10, 20),
        "dropout": (0.2, 0.5, 0.7),
        "learning_rate": (5e-4, 1e-3, 5e-3, 1e-2),
        "weight_decay": (1e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: GTSettings) -> None:
        super().__init__(task)
        h = settings.hidden_channels
        self.positions = Positions(task, settings.laplacian_pe)
        self.input = PlacedInput(task.x.shape[1], settings.laplacian_pe, h)
        self.layers = nn.ModuleList(GTLayer(settings) for _ in range(settings.num_layers))
        self.output = nn.Linear(h, task.num_classes)
        self.dropout = settings.dropout

    def begin_epoch(self, epoch: int) -> None:
        """Flip the signs of the positions."""
        self.positions.flip(self.generator(epoch))

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        positions = self.positions.flipped if self.training else self.positions.columns
        H = self.input(dropout(self.task.x, self.dropout if self.training else 0.0), positions)
        for layer in self.layers:
            H = layer(H, self.task.edge_index)
        scores: Tensor = self.output(H)
        return scores
