"""Exphormer: Sparse Transformers for Graphs (ICML 2023), https://arxiv.org/abs/2303.06147."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from tokenphormer.baselines.base import Baseline, Task, at_least, check_heads, shares
from tokenphormer.baselines.graphgps import GPSBlock
from tokenphormer.baselines.gt import EdgeAttention
from tokenphormer.model import dropout


def expander_edges(num_nodes: int, degree: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """(2, 2·n·degree) the edges of `degree` random Hamiltonian cycles, both ways.

    Every node has 2·degree neighbours (some perhaps twice), the graph is connected, and with two cycles or more it is
    almost surely an expander: after a few steps a walk can be anywhere.
    """
    edges = np.empty((2, 2, degree, num_nodes), dtype=np.int64)
    for number in range(degree):
        cycle = generator.permutation(num_nodes)
        edges[0, 0, number] = edges[1, 1, number] = cycle
        edges[1, 0, number] = edges[0, 1, number] = np.roll(cycle, -1)
    return edges.reshape(2, -1)


@dataclass(frozen=True, eq=False)
class SparsePattern:
    """Where attention goes. Node n + v is virtual node v."""

    graph_edges: Tensor
    """(2, E₀) the graph's own."""
    edges: Tensor
    """(2, E) the graph's, the expander's, those into each virtual node, and those out of each."""
    kinds: Tensor
    """(E, kinds) 1 for the kind of each edge: first the graph's, then the expander's, then those of virtual nodes.

    The gradient of a product with it is quick; that of a lookup would add a row for each edge to a few others."""
    graph_weight: Tensor | None = None
    """(E₀) the weights of the graph's own, if it has any."""

    @classmethod
    def of(cls, task: Task, expander: NDArray[np.int64], virtual_nodes: int) -> SparsePattern:
        """The pattern of a graph."""
        n, graph_edges = task.num_nodes, task.edge_index
        everyone, parts = torch.arange(n), [graph_edges.cpu(), torch.tensor(expander)]
        hubs = [torch.full((n,), n + number) for number in range(virtual_nodes)]
        parts += [torch.stack([everyone, hub]) for hub in hubs] + [torch.stack([hub, everyone]) for hub in hubs]
        kinds = torch.cat([torch.full((part.shape[1],), kind) for kind, part in enumerate(parts)])
        edges = torch.cat(parts, dim=1).to(task.device)
        return cls(graph_edges, edges, F.one_hot(kinds, len(parts)).float().to(task.device), task.edge_weight)


@dataclass(frozen=True)
class ExphormerSettings:
    """The shape of an Exphormer; defaults are the authors' for Photo, but for the virtual node."""

    hidden_channels: int = 64
    num_layers: int = 4
    num_heads: int = 2
    expander_degree: int = 3
    """Random Hamiltonian cycles; each gives every node two neighbours."""
    virtual_nodes: int = 1
    """Nodes joined with all others; the authors have none on Photo, and one or more elsewhere."""
    dropout: float = 0.4
    attention_dropout: float = 0.0
    """Dropout of attention weights; the authors' 0.8 for Photo is read by nothing in their code."""
    running_statistics: bool = False
    """Whether BatchNorm predicts with running statistics, as published, and not with those of the graph's nodes."""

    def __post_init__(self) -> None:
        check_heads(self.hidden_channels, self.num_heads)
        at_least(1, num_layers=self.num_layers)
        at_least(0, expander_degree=self.expander_degree, virtual_nodes=self.virtual_nodes)
        shares(dropout=self.dropout, attention_dropout=self.attention_dropout)


class ExphormerLayer(nn.Module):
    """A GPS layer whose attention runs along given edges, each kind of edge with its own factor."""

    def __init__(self, settings: ExphormerSettings) -> None:
        super().__init__()
        h = settings.hidden_channels
        self.conv = GCNConv(h, h, cached=True)
        self.attention = EdgeAttention(h, settings.num_heads, settings.attention_dropout)
        self.edge_factor = nn.Linear(h, h, bias=False)
        self.block = GPSBlock(h, settings.dropout, settings.running_statistics)

    def forward(self, H: Tensor, virtual: Tensor, sparse: SparsePattern, edge_kinds: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes (n, h) and virtual nodes (V, h) after the layer; `edge_kinds` has a row for each kind of edge."""
        factor = sparse.kinds @ self.edge_factor(edge_kinds)  # (E, h)
        attended: Tensor = self.attention(torch.cat([H, virtual]), sparse.edges, factor)
        passed = self.conv(H, sparse.graph_edges, sparse.graph_weight)
        return self.block(H, passed, attended[: len(H)]), attended[len(H) :]


class Exphormer(Baseline):
    """Attention along the graph's edges, an expander's edges, and edges to and from virtual nodes.

    Edge weights are in the message passing beside the attention, which has no place for them. The authors' code has a
    layer more before the first (linear, BatchNorm, ReLU, dropout), where here the features are dropped out, and the
    learning rate falls along a cosine over a fixed number of epochs.
    """

    title = "Exphormer"
    paper = "https://arxiv.org/abs/2303.06147"
    settings_class = ExphormerSettings
    schedule: ClassVar[dict[str, object]] = {
        "learning_rate": 1e-3,
        "weight_decay": 1e-3,
        "warmup_updates": 5,
        "gradient_clip": 1.0,
    }
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128),
        "num_layers": (2, 4),
        "virtual_nodes": (0, 1, 4),
        "dropout": (0.2, 0.4, 0.7),
        "attention_dropout": (0.0, 0.8),
        "learning_rate": (5e-4, 1e-3, 5e-3),
        "weight_decay": (5e-5, 1e-3, 1e-2, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: ExphormerSettings) -> None:
        super().__init__(task)
        h, virtual = settings.hidden_channels, settings.virtual_nodes
        expander = expander_edges(task.num_nodes, settings.expander_degree, self.generator(0))
        self.sparse = SparsePattern.of(task, expander, virtual)
        self.features = nn.Linear(task.x.shape[1], h)
        self.edge_kinds = nn.Parameter(torch.randn(2 + 2 * virtual, h))
        self.virtual = nn.Parameter(torch.randn(virtual, h))
        self.layers = nn.ModuleList(ExphormerLayer(settings) for _ in range(settings.num_layers))
        self.output = nn.Linear(h, task.num_classes)
        self.dropout = settings.dropout

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        H = self.features(dropout(self.task.x, self.dropout if self.training else 0.0))
        virtual = self.virtual
        for layer in self.layers:
            H, virtual = layer(H, virtual, self.sparse, self.edge_kinds)
        scores: Tensor = self.output(H)
        return scores
