"""GraphGPS: Recipe for a General, Powerful, Scalable Graph Transformer (NeurIPS 2022), https://arxiv.org/abs/2205.12454.

The layer is PyG's `GPSConv`, which a test holds it to. It is written out since PyG gives its attention a mask that
masks nothing and that keeps torch from its fused kernels: without gradients, n × n weights a head would be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from tokenphormer.baselines.base import Baseline, Task, at_least, attention_dtype, check_heads, node_norm, shares
from tokenphormer.baselines.gt import PlacedInput, Positions
from tokenphormer.hops import propagation_matrix
from tokenphormer.model import dropout
from tokenphormer.tokens.encodings import return_probabilities


class FullAttention(nn.Module):
    """Attention of every node to every node.

    Time grows with n², memory with n: torch's fused kernels hold no n × n weights (on CPUs the flash one knows no
    dropout of weights; so there is none here).
    """

    def __init__(self, hidden_channels: int, num_heads: int) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(hidden_channels, 3 * hidden_channels)
        self.output = nn.Linear(hidden_channels, hidden_channels)
        self.num_heads = num_heads

    def forward(self, H: Tensor) -> Tensor:
        """(n, h) → (n, h)."""
        n, h = H.shape
        split = self.query_key_value(H).view(n, 3, self.num_heads, h // self.num_heads).to(attention_dtype(H.device))
        q, k, v = split.permute(1, 2, 0, 3).unsqueeze(1)  # each (1, heads, n, d)
        attended = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(n, h).to(H.dtype)
        output: Tensor = self.output(attended)
        return output


class GPSBlock(nn.Module):
    """What joins the two halves of a GPS layer: residual and BatchNorm of each, their sum, a feed-forward network."""

    def __init__(self, hidden_channels: int, dropout: float, running_statistics: bool) -> None:
        super().__init__()
        h = hidden_channels
        self.local_norm, self.global_norm, self.norm = (node_norm(h, running_statistics) for _ in range(3))
        self.widen, self.narrow = nn.Linear(h, 2 * h), nn.Linear(2 * h, h)
        self.dropout = dropout

    def forward(self, H: Tensor, passed: Tensor, attended: Tensor) -> Tensor:
        """(n, h) from the layer's input, what message passing made of it, and what attention did."""
        drop = self.dropout if self.training else 0.0
        H = self.local_norm(H + dropout(passed, drop)) + self.global_norm(H + dropout(attended, drop))
        widened = dropout(F.relu(self.widen(H)), drop)
        result: Tensor = self.norm(H + dropout(self.narrow(widened), drop))
        return result


class GPSLayer(nn.Module):
    """GCN over the edges beside attention over all nodes."""

    def __init__(self, hidden_channels: int, num_heads: int, dropout: float, running_statistics: bool = False) -> None:
        super().__init__()
        self.conv = GCNConv(hidden_channels, hidden_channels, cached=True)
        self.attention = FullAttention(hidden_channels, num_heads)
        self.block = GPSBlock(hidden_channels, dropout, running_statistics)

    def forward(self, H: Tensor, edges: Tensor, weight: Tensor | None = None) -> Tensor:
        """(n, h) → (n, h); `weight` (E) is that of the edges."""
        result: Tensor = self.block(H, self.conv(H, edges, weight), self.attention(H))
        return result


@dataclass(frozen=True)
class GraphGPSSettings:
    """The shape of a GraphGPS."""

    hidden_channels: int = 64
    num_layers: int = 2
    num_heads: int = 4
    laplacian_pe: int = 10
    """Laplacian eigenvectors added at the input (LapPE)."""
    walk_pe: int = 0
    """Return probabilities of walks of 1 to this many steps, added at the input (RWSE)."""
    dropout: float = 0.5
    running_statistics: bool = False
    """Whether BatchNorm predicts with running statistics, as published, and not with those of the graph's nodes."""

    def __post_init__(self) -> None:
        check_heads(self.hidden_channels, self.num_heads)
        at_least(1, num_layers=self.num_layers)
        at_least(0, laplacian_pe=self.laplacian_pe, walk_pe=self.walk_pe)
        shares(dropout=self.dropout)


class GraphGPS(Baseline):
    """Positions at the input; in each layer, message passing and global attention side by side.

    Edge weights are in the message passing and in the walks of `walk_pe`.
    """

    title = "GraphGPS"
    paper = "https://arxiv.org/abs/2205.12454"
    settings_class = GraphGPSSettings
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 1e-3, "weight_decay": 5e-5}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 256, 512),
        "num_layers": (1, 2, 4),
        "laplacian_pe": (0, 10),
        "walk_pe": (0, 16),
        "dropout": (0.2, 0.5, 0.7),
        "learning_rate": (5e-4, 1e-3, 5e-3),
        "weight_decay": (5e-5, 5e-4, 5e-3, 5e-2),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: GraphGPSSettings) -> None:
        super().__init__(task)
        h = settings.hidden_channels
        self.input = PlacedInput(task.x.shape[1], settings.laplacian_pe + settings.walk_pe, h)
        self.positions = Positions(task, settings.laplacian_pe) if settings.laplacian_pe else None
        self.returns = standardised_returns(task, settings.walk_pe) if settings.walk_pe else None
        shape = (h, settings.num_heads, settings.dropout, settings.running_statistics)
        self.layers = nn.ModuleList(GPSLayer(*shape) for _ in range(settings.num_layers))
        self.output = nn.Linear(h, task.num_classes)
        self.dropout = settings.dropout

    def begin_epoch(self, epoch: int) -> None:
        """Flip the signs of the positions."""
        if self.positions is not None:
            self.positions.flip(self.generator(epoch))

    def places(self) -> Tensor:
        """(n, laplacian_pe + walk_pe) what is known of each node's place."""
        parts = [self.task.x.new_zeros(self.task.num_nodes, 0)]
        if self.positions is not None:
            parts.append(self.positions.flipped if self.training else self.positions.columns)
        if self.returns is not None:
            parts.append(self.returns)
        return torch.cat(parts, dim=1)

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes."""
        H = self.input(dropout(self.task.x, self.dropout if self.training else 0.0), self.places())
        for layer in self.layers:
            H = layer(H, self.task.edge_index, self.task.edge_weight)
        scores: Tensor = self.output(H)
        return scores


def standardised_returns(task: Task, steps: int) -> Tensor:
    """(n, steps) return probabilities, each column with mean 0 and deviation 1; a constant column is 0."""
    returns = dense_returns(task, steps) if task.device.type == "cuda" else return_probabilities(task.graph, steps)
    centred = returns - returns.mean(axis=0)
    deviation = centred.std(axis=0)
    return torch.tensor(centred / np.where(deviation > 1e-6, deviation, np.inf), dtype=torch.float32).to(task.device)


def dense_returns(task: Task, steps: int) -> NDArray[np.float32]:
    """`return_probabilities` for GPUs, on which blocks of rows of Pʲ can be dense from the beginning."""
    P = sp.csr_array(propagation_matrix(task.graph, "row").T.astype(np.float64))
    indptr, indices, share = (torch.tensor(part, device=task.device) for part in (P.indptr, P.indices, P.data))
    transposed = torch.sparse_csr_tensor(indptr, indices, share, size=P.shape)
    result = torch.zeros(task.num_nodes, steps, device=task.device)
    for rows in torch.split(torch.arange(task.num_nodes, device=task.device), 1024):
        block = torch.zeros(task.num_nodes, len(rows), dtype=torch.float64, device=task.device)
        block[rows, rows - rows[0]] = 1
        for step in range(steps):
            block = transposed @ block
            result[rows, step] = block[rows, rows - rows[0]].float()
    return result.cpu().numpy()
