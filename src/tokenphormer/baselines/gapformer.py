"""Gapformer: Graph Transformer with Graph Pooling for Node Classification (IJCAI 2023), https://www.ijcai.org/proceedings/2023/244."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SimpleConv

from tokenphormer.baselines.base import Baseline, Task, at_least, check_choice, check_heads, shares
from tokenphormer.model import dropout


@dataclass(frozen=True)
class GapformerSettings:
    """The shape of a Gapformer. There is no published code; the sizes are ours."""

    hidden_channels: int = 64
    num_heads: int = 4
    num_layers: int = 2
    pooling: str = "local"
    """`global`: all nodes are pooled to the same few. `local`: each node has the pools of its own neighbourhoods."""
    num_pooled: int = 32
    """Pooled nodes of `global`."""
    num_hops: int = 3
    """Neighbourhoods of `local`: 1, 2, … steps away, besides the node itself."""
    dropout: float = 0.5

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_heads=self.num_heads, num_layers=self.num_layers)
        at_least(1, num_pooled=self.num_pooled, num_hops=self.num_hops)
        check_choice("pooling", self.pooling, ("global", "local"))
        check_heads(self.hidden_channels, self.num_heads)
        shares(dropout=self.dropout)


class Edges(NamedTuple):
    """What a layer passes messages over; without weights on a graph that has none."""

    edge_index: Tensor
    """(2, E)."""
    weight: Tensor | None
    """(E) as they are."""
    mean_weight: Tensor | None
    """(E) those of `mean_weights`."""

    @classmethod
    def of(cls, task: Task) -> Edges:
        """The edges of a task."""
        return cls(task.edge_index, task.edge_weight, mean_weights(task))


def mean_weights(task: Task) -> Tensor | None:
    """(E) the edges' weights, scaled so that those of a node are 1 on average: with them PyG's mean is a weighted one.

    PyG multiplies with the weights, but then divides by the number of neighbours.
    """
    weight = task.graph.edge_weight
    if weight is None:
        return None
    reader = task.edge_index[1].cpu().numpy()
    mean = np.bincount(reader, weights=weight) / np.maximum(np.bincount(reader), 1)
    return torch.tensor(weight / mean[reader], dtype=torch.float32, device=task.device)


class GlobalPooling(nn.Module):
    """Pooled nodes are weighted means of all nodes, with weights learned from the nodes themselves."""

    def __init__(self, channels: int, num_pooled: int) -> None:
        super().__init__()
        self.assign = nn.Linear(channels, num_pooled)

    def weights(self, H: Tensor) -> Tensor:
        """(n', n) shares of the nodes in each pooled node; a node spreads over the pools by a softmax."""
        S = F.softmax(self.assign(H), dim=1)
        return (S / S.sum(dim=0)).t()

    def attend(self, H: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Tensor | None) -> Tensor:
        """(n, heads, d) of every node over the n' pooled keys and values."""
        W = self.weights(H)
        pooled_k, pooled_v = ((W @ part.flatten(1)).view(-1, *part.shape[1:]) for part in (k, v))
        score = torch.einsum("nhd,phd->nhp", q, pooled_k) * q.shape[2] ** -0.5
        return torch.einsum("nhp,phd->nhd", F.softmax(score, dim=2), pooled_v)


class LocalPooling(nn.Module):
    """Each node's pooled nodes are itself and the means over what is 1, 2, … steps of a random walk away."""

    def __init__(self, num_hops: int) -> None:
        super().__init__()
        self.num_hops = num_hops
        self.mean = SimpleConv(aggr="mean")

    def attend(
        self, _: Tensor, q: Tensor, k: Tensor, v: Tensor, edge_index: Tensor, mean_weight: Tensor | None = None
    ) -> Tensor:
        """(n, heads, d) of every node over its own pooled keys and values; `mean_weight` is that of `mean_weights`."""
        both = torch.cat([k.flatten(1), v.flatten(1)], dim=1)
        pools = [both]
        for _hop in range(self.num_hops):
            pools.append(self.mean(pools[-1], edge_index, mean_weight))
        stacked = torch.stack(pools, dim=1).view(len(k), len(pools), 2, *k.shape[1:])  # (n, n', 2, heads, d)
        pooled_k, pooled_v = stacked.unbind(dim=2)
        score = torch.einsum("nhd,nphd->nhp", q, pooled_k) * q.shape[2] ** -0.5
        return torch.einsum("nhp,nphd->nhd", F.softmax(score, dim=2), pooled_v)


class GapformerLayer(nn.Module):
    """Attention to pooled keys and values beside a GCN layer for what is near, then a feed-forward network."""

    def __init__(self, settings: GapformerSettings) -> None:
        super().__init__()
        h = settings.hidden_channels
        self.num_heads, self.dropout = settings.num_heads, settings.dropout
        self.attention_norm, self.ffn_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.query_key_value, self.output = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.pooling: GlobalPooling | LocalPooling = (
            GlobalPooling(h, settings.num_pooled) if settings.pooling == "global" else LocalPooling(settings.num_hops)
        )
        self.near = GCNConv(h, h, cached=True)
        self.widen, self.narrow = nn.Linear(h, 2 * h), nn.Linear(2 * h, h)

    def forward(self, H: Tensor, edges: Edges) -> Tensor:
        """(n, h) → (n, h)."""
        drop = self.dropout if self.training else 0.0
        normed = self.attention_norm(H)
        q, k, v = self.query_key_value(normed).view(len(H), 3, self.num_heads, -1).unbind(dim=1)
        far = self.output(self.pooling.attend(normed, q, k, v, edges.edge_index, edges.mean_weight).flatten(1))
        H = H + dropout(far + F.relu(self.near(normed, edges.edge_index, edges.weight)), drop)
        widened = dropout(F.gelu(self.widen(self.ffn_norm(H))), drop)
        return H + dropout(self.narrow(widened), drop)


class Gapformer(Baseline):
    """Every node attends to a few pooled nodes instead of all nodes: linear in the size of the graph.

    As in the paper, keys and values are pooled, globally or locally, before the attention. There is no published code:
    that a global pool is a learned soft assignment, a local one the mean of so many steps, and that a GCN layer beside
    the attention keeps what is near, are choices made here. Edge weights are in the GCN layer and in local pools.
    """

    title = "Gapformer"
    paper = "https://www.ijcai.org/proceedings/2023/244"
    settings_class = GapformerSettings
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 5e-3}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "pooling": ("global", "local"),
        "hidden_channels": (64, 128, 256),
        "num_layers": (1, 2, 3),
        "num_hops": (2, 3, 5),
        "dropout": (0.3, 0.5, 0.7),
        "learning_rate": (1e-3, 5e-3, 1e-2),
        "weight_decay": (1e-5, 5e-4, 5e-3),
    }

    def __init__(self, task: Task, settings: GapformerSettings) -> None:
        super().__init__(task)
        self.dropout = settings.dropout
        self.edges = Edges.of(task)
        self.project = nn.Linear(task.x.shape[1], settings.hidden_channels)
        self.layers = nn.ModuleList(GapformerLayer(settings) for _ in range(settings.num_layers))
        self.head = nn.Sequential(
            nn.LayerNorm(settings.hidden_channels), nn.Linear(settings.hidden_channels, task.num_classes)
        )

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        H = dropout(F.relu(self.project(self.task.x)), self.dropout if self.training else 0.0)
        for layer in self.layers:
            H = layer(H, self.edges)
        scores: Tensor = self.head(H)
        return scores
