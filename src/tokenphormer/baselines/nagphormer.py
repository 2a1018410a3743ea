"""NAGphormer: A Tokenized Graph Transformer for Node Classification in Large Graphs (ICLR 2023).

https://arxiv.org/abs/2206.04910. The Transformer layer is Tokenphormer's, which took it from here; it has one dropout
more, between the two maps of the feed-forward network. Weights begin as PyTorch's own; the original's are normal, with
a standard deviation of 0.02/√layers, and its biases 0.

The schedule is the original's: the learning rate rises over 400 updates and falls until 1000. On Cora an epoch is one
update, and the chosen runs keep the weights of epochs 18 to 96, when the rate has come to between 5 and 24 % of its
height. The 20 and 300 that the search of our Tokenphormer starts from are no better for it: worse on Flickr, Actor and
debian, level on the five others that were run to the end (not Pubmed and Cornell; experiments/LOG.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.baselines.base import Baseline, Task, at_least, check_heads, shares
from tokenphormer.hops import propagation_matrix
from tokenphormer.model import EncoderLayer, ModelSettings
from tokenphormer.tokens.encodings import laplacian_eigenvectors
from tokenphormer.tokens.operators import SparseOperator


@dataclass(frozen=True)
class NAGphormerSettings:
    """The shape of a NAGphormer; defaults are the authors' for Cora."""

    hidden_channels: int = 512
    num_layers: int = 1
    num_heads: int = 8
    num_hops: int = 3
    """K; a node has K + 1 tokens."""
    laplacian_pe: int = 3
    """Laplacian eigenvectors appended to the features."""
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        at_least(2, hidden_channels=self.hidden_channels)
        check_heads(self.hidden_channels, self.num_heads)
        at_least(1, num_layers=self.num_layers, num_hops=self.num_hops, laplacian_pe=self.laplacian_pe)
        shares(dropout=self.dropout, attention_dropout=self.attention_dropout)


class NAGphormer(Baseline):
    """The tokens of a node are its rows of Âᵏ [X ; LapPE], k = 0 … K; a Transformer reads them, node by node."""

    title = "NAGphormer"
    paper = "https://arxiv.org/abs/2206.04910"
    settings_class = NAGphormerSettings
    schedule: ClassVar[dict[str, object]] = {
        "warmup_updates": 400,
        "decay_updates": 1000,
        "end_learning_rate": 1e-4,
        "weight_decay": 1e-5,
        "batch_size": 2000,
    }
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (128, 256, 512),
        "num_hops": (3, 5, 7, 10),
        "laplacian_pe": (3, 10, 15),
        "dropout": (0.1, 0.3, 0.5),
        "learning_rate": (1e-3, 5e-3, 1e-2),
        "weight_decay": (1e-5, 5e-4, 5e-3),
        "normalise_features": (False, True),
    }

    def __init__(self, task: Task, settings: NAGphormerSettings) -> None:
        super().__init__(task)
        s = settings
        h = s.hidden_channels
        self.tokens = hop_tokens(task, s.num_hops, s.laplacian_pe)
        self.micro_batch = min(task.num_nodes, 2000)
        shape = ModelSettings(h, s.num_layers, s.num_heads, dropout=s.dropout, attention_dropout=s.attention_dropout)
        self.input = nn.Linear(self.tokens.shape[2], h)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(s.num_layers))
        self.norm = nn.LayerNorm(h)
        self.readout = nn.Linear(h, 1, bias=False)
        self.head = nn.Sequential(nn.Linear(h, h // 2), nn.ReLU(), nn.Linear(h // 2, task.num_classes))

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores from the nodes' own tokens."""
        H = self.input(self.tokens[nodes])  # (B, K + 1, h)
        for layer in self.layers:
            H = layer(H)
        H = self.norm(H)
        own, hops = H[:, 0], H[:, 1:]
        # The paper scores [H₀ ; H_k] with a vector of width 2h; H₀'s half is the same for every k, so it cancels.
        weight = F.softmax(self.readout(hops), dim=1)  # (B, K, 1)
        scores: Tensor = self.head(own + (weight * hops).sum(dim=1))
        return scores


def hop_tokens(task: Task, num_hops: int, laplacian_pe: int) -> Tensor:
    """(n, K + 1, F + count) the rows of Âᵏ [X ; LapPE], k = 0 … K."""
    positions = torch.tensor(laplacian_eigenvectors(task.graph, laplacian_pe), device=task.device)
    now = torch.cat([task.x, positions], dim=1)
    hop = SparseOperator.from_scipy(propagation_matrix(task.graph), task.device)
    tokens = now.new_empty(task.num_nodes, num_hops + 1, now.shape[1])
    tokens[:, 0] = now
    for k in range(1, num_hops + 1):
        now = hop @ now
        tokens[:, k] = now
    return tokens
