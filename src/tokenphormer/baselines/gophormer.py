"""Gophormer: Ego-Graph Transformer for Node Classification (2021), https://arxiv.org/abs/2110.13094."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.baselines.base import Baseline, Task, at_least, check_heads, shares
from tokenphormer.baselines.biased_transformer import BiasedLayer, hide
from tokenphormer.baselines.ego_graphs import EgoGraphs, draw_key, read_in_groups
from tokenphormer.hashing import mix64_tensor
from tokenphormer.hops import propagation_matrix


@dataclass(frozen=True)
class GophormerSettings:
    """Defaults are those published for Cora, but for `num_samples`."""

    hidden_channels: int = 64
    num_heads: int = 8
    num_layers: int = 2
    fan_out: int = 7
    """Neighbours drawn of the centre."""
    second_fan_out: int = 2
    """Neighbours drawn of each of these."""
    num_global_nodes: int = 4
    """Learned tokens that every ego-graph sees."""
    proximity_order: int = 1
    """K: the attention bias is learned from Â⁰ … Âᴷ."""
    num_samples: int = 2
    """Ego-graphs of a node in a training step; published are 2 (Pubmed, DBLP) to 5 (Cora)."""
    consistency: float = 0.5
    """Weight of the loss between these."""
    temperature: float = 0.5
    """Of the sharpened mean they are drawn to."""
    dropout: float = 0.3

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_heads=self.num_heads, num_layers=self.num_layers)
        at_least(1, fan_out=self.fan_out, num_samples=self.num_samples)
        at_least(0, second_fan_out=self.second_fan_out, num_global_nodes=self.num_global_nodes)
        at_least(0, proximity_order=self.proximity_order, consistency=self.consistency)
        at_least(0.01, temperature=self.temperature)
        check_heads(self.hidden_channels, self.num_heads)
        shares(dropout=self.dropout)


class Proximity:
    """Â⁰ … Âᴷ, looked up for pairs of nodes. Â = D̃^-½ (A + I) D̃^-½."""

    def __init__(self, task: Task, order: int) -> None:
        self.num_nodes = task.num_nodes
        power = A = propagation_matrix(task.graph)
        self.powers: list[tuple[Tensor, Tensor]] = []
        for k in range(1, order + 1):
            power = sp.csr_array(power @ A) if k > 1 else A
            power.sort_indices()
            row = np.repeat(np.arange(self.num_nodes), np.diff(power.indptr))
            # An entry after the last: where the search for a pair beyond all others ends.
            pair = np.append(row * self.num_nodes + power.indices, self.num_nodes**2)
            value = np.append(power.data, 0).astype(np.float32)
            self.powers.append((torch.tensor(pair, device=task.device), torch.tensor(value, device=task.device)))

    def __call__(self, tokens: Tensor) -> Tensor:
        """(B, T, T, K + 1) the encoding of all pairs of a row's tokens."""
        tokens = tokens.clamp(min=0)
        wanted = tokens[:, :, None] * self.num_nodes + tokens[:, None, :]
        found = [(tokens[:, :, None] == tokens[:, None, :]).float()]
        for pair, value in self.powers:
            at = torch.searchsorted(pair, wanted)
            found.append(torch.where(pair[at] == wanted, value[at], 0.0))
        return torch.stack(found, dim=3)


class Gophormer(Baseline):
    """Full attention within sampled ego-graphs and global nodes, biased by proximity; the centre is read out.

    As in the paper the samples of a node are drawn together by the consistency loss; in the published code that loss
    sees one sample at a time. Ego-graphs are drawn anew every epoch, not chosen from 30 drawn beforehand.
    Edge weights are in the proximity; the drawing of neighbours does not heed them.
    """

    title = "Gophormer"
    paper = "https://arxiv.org/abs/2110.13094"
    settings_class = GophormerSettings
    # Published: batches of 32 and a learning rate of 1.5e-4. A GPU would idle; larger batches take larger steps.
    schedule: ClassVar[dict[str, object]] = {
        "learning_rate": 2e-3,
        "weight_decay": 1e-5,
        "batch_size": 512,
        "votes": 5,
    }
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "num_layers": (2, 4),
        "fan_out": (5, 7),
        "num_global_nodes": (1, 4),
        "proximity_order": (1, 2),
        "dropout": (0.1, 0.3, 0.5),
        "learning_rate": (1.5e-4, 5e-4, 2e-3),
        "weight_decay": (1e-5, 1e-3),
    }

    def __init__(self, task: Task, settings: GophormerSettings) -> None:
        super().__init__(task)
        s, h = settings, settings.hidden_channels
        self.settings = s
        self.egos = EgoGraphs(task)
        self.proximity = Proximity(task, s.proximity_order)
        self.project = nn.Linear(task.x.shape[1], h)
        self.global_nodes = nn.Parameter(torch.randn(s.num_global_nodes, h))
        self.layers = nn.ModuleList(BiasedLayer(h, s.num_heads, s.dropout) for _ in range(s.num_layers))
        # One weight a head for every order, and one for pairs with a global node; zero at first, as published.
        relations = s.proximity_order + 1 + (s.num_global_nodes > 0)
        self.relation_weights = nn.Parameter(torch.zeros(s.num_layers, relations, s.num_heads))
        self.head = nn.Sequential(nn.LayerNorm(h), nn.Linear(h, h // 2), nn.ReLU(), nn.Linear(h // 2, task.num_classes))
        self.micro_batch = min(task.num_nodes, 1024)
        self.key = draw_key(task.seed, 0, prediction=True)

    def begin_epoch(self, epoch: int) -> None:
        """New ego-graphs."""
        self.key = draw_key(self.task.seed, epoch, prediction=False)

    def begin_prediction(self, draw: int) -> None:
        """The ego-graphs of a vote."""
        self.key = draw_key(self.task.seed, draw, prediction=True)

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores from one ego-graph each."""
        return self.read(self.sample(nodes, 1))

    def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
        """Cross-entropy and consistency of several ego-graphs a node."""
        s = self.settings
        scores = self.read(self.sample(nodes, s.num_samples)).view(s.num_samples, len(nodes), -1)
        return torch.stack([criterion(one) for one in scores]).mean() + s.consistency * disagreement(
            F.softmax(scores, dim=2), s.temperature
        )

    def sample(self, nodes: Tensor, num_samples: int) -> Tensor:
        """(num_samples · B, T) ego-graphs of the nodes, all of the first sample first."""
        number = torch.arange(num_samples, device=nodes.device).repeat_interleave(len(nodes))
        fan_outs = (self.settings.fan_out, self.settings.second_fan_out)
        return self.egos.sample(nodes.repeat(num_samples), fan_outs, mix64_tensor(number + self.key))

    def read(self, tokens: Tensor) -> Tensor:
        """(B, C) class scores of the ego-graphs' centres."""
        inputs = self.project(self.task.x)
        return read_in_groups(tokens, lambda group: self.read_group(group, inputs))

    def read_group(self, tokens: Tensor, inputs: Tensor) -> Tensor:
        """The same of ego-graphs that are read together; `inputs` are the projected features of all nodes."""
        B, G = len(tokens), len(self.global_nodes)
        H = torch.cat([F.embedding(tokens.clamp(min=0), inputs), self.global_nodes.expand(B, -1, -1)], dim=1)
        encoding = F.pad(self.proximity(tokens), (0, int(G > 0), 0, G, 0, G))  # (B, T + G, T + G, relations)
        if G:
            encoding[:, -G:, :, -1] = encoding[:, :, -G:, -1] = 1
        valid = F.pad(tokens >= 0, (0, G), value=True)
        for number, layer in enumerate(self.layers, 1):
            bias = (encoding @ self.relation_weights[number - 1]).permute(0, 3, 1, 2)
            H = layer(H, hide(bias, valid), first=1 if number == len(self.layers) else None)
        scores: Tensor = self.head(H[:, 0])
        return scores


def disagreement(P: Tensor, temperature: float) -> Tensor:
    """Squared distance of (samples, B, C) probabilities to their sharpened mean: mean of samples, sum over nodes."""
    mean = P.mean(dim=0)
    sharp = F.softmax(mean.clamp(min=1e-12).log() / temperature, dim=1).detach()
    return (P - sharp).square().sum(dim=2).mean(dim=0).sum()
