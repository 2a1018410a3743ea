"""ANS-GT: Hierarchical Graph Transformer with Adaptive Node Sampling (NeurIPS 2022), https://arxiv.org/abs/2210.03930."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from tokenphormer.baselines.base import Baseline, Task, at_least, check_heads, shares
from tokenphormer.baselines.biased_transformer import BiasedLayer, hide
from tokenphormer.baselines.ego_graphs import draw_key, numbered, row_keys, uniform
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hashing import mix64_array, mix64_tensor
from tokenphormer.hops import propagation_matrix

SAMPLERS = ("personalised PageRank", "1 hop", "2 hops", "feature similarity")


@dataclass(frozen=True)
class ANSGTSettings:
    """Defaults as published, but for `update_period`: the published 1000 epochs are more than are trained."""

    hidden_channels: int = 128
    num_heads: int = 8
    num_layers: int = 4
    num_sampled: int = 14
    """Nodes drawn for each node."""
    num_super_nodes: int = 1
    """Clusters it sees: its own, and others drawn by the edges between clusters."""
    num_global_nodes: int = 1
    """Learned tokens that every node sees."""
    num_powers: int = 6
    """The attention bias is learned from Â¹ … Âᵏ."""
    num_similar: int = 64
    """Nodes of the most similar features that the last sampler draws from."""
    coarsening: float = 0.1
    """Clusters for every node of the graph, at most, where edges allow."""
    restart: float = 0.15
    """Of personalised PageRank."""
    update_period: int = 5
    """Epochs after which the samplers' weights are adapted."""
    bandit_rate: float = 2.0
    """How strongly."""
    least_share: float = 0.05
    """Share of the draws that every sampler keeps."""
    dropout: float = 0.3

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_heads=self.num_heads, num_layers=self.num_layers)
        at_least(1, num_sampled=self.num_sampled, num_super_nodes=self.num_super_nodes, num_powers=self.num_powers)
        at_least(1, num_similar=self.num_similar, update_period=self.update_period)
        at_least(0, num_global_nodes=self.num_global_nodes, bandit_rate=self.bandit_rate)
        shares(coarsening=self.coarsening, restart=self.restart, dropout=self.dropout)
        if not self.restart:
            raise InputError("restart: 0; expected more, or personalised PageRank has no end")
        shares(all_least_shares=len(SAMPLERS) * self.least_share)
        check_heads(self.hidden_channels, self.num_heads)


class ANSGT(Baseline):
    """A Transformer over sampled nodes, their cluster and global nodes; a bandit learns how to mix four samplers.

    The reward of a sampler is the attention, times the length of the value, that its nodes get from the centre in
    the last layer. It is taken from the training nodes (published: the validation nodes), and the attention of a node
    is scaled to sum 1, so that the size of the values does not set the pace. Samples are drawn anew every epoch.
    The coarsening is the heavy-edge clustering of `coarsen`, where the original takes a library's.
    """

    title = "ANS-GT"
    paper = "https://arxiv.org/abs/2210.03930"
    settings_class = ANSGTSettings
    # Published: batches of 32 nodes with 8 samples each, and a learning rate of 2e-4. Larger batches, larger steps.
    schedule: ClassVar[dict[str, object]] = {
        "learning_rate": 1e-3,
        "weight_decay": 1e-2,
        "batch_size": 512,
        "votes": 8,
    }
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "num_layers": (2, 4),
        "num_sampled": (14, 24),
        "num_super_nodes": (1, 4),
        "dropout": (0.1, 0.3, 0.5),
        "learning_rate": (2e-4, 5e-4, 1e-3),
        "weight_decay": (1e-5, 1e-2),
    }
    log_weights: Tensor
    reward_sum: Tensor
    reward_count: Tensor

    def __init__(self, task: Task, settings: ANSGTSettings) -> None:
        super().__init__(task)
        s, h, n = settings, settings.hidden_channels, task.num_nodes
        self.settings = s
        self.near = powers(dense(propagation_matrix(task.graph), task.device), s.num_powers)  # (k, n, n)
        self.samplers = samplers(task, s, self.near)  # (4, n, n)
        cluster = coarsen(task.graph, s.coarsening)
        coarse = coarse_graph(task.graph, cluster)
        self.between = dense(coarse, task.device).fill_diagonal_(0)  # (m, m) edges
        self.coarse = powers(dense(normalise(coarse), task.device), s.num_powers)
        m = len(self.between)
        # Rows n, n + 1, … are the clusters: a cluster belongs to itself and has the mean of its nodes' features.
        self.cluster_of = torch.tensor(np.concatenate([cluster, np.arange(m)]), device=task.device)
        member = F.one_hot(self.cluster_of[:n], m).t().float()
        self.x = torch.cat([task.x, member @ task.x / member.sum(dim=1, keepdim=True)])

        self.project = nn.Linear(task.x.shape[1], h)
        self.global_nodes = nn.Parameter(torch.randn(s.num_global_nodes, h) * 0.02)
        self.global_encoding = nn.Parameter(torch.randn(s.num_global_nodes, s.num_powers) * 0.02)
        self.layers = nn.ModuleList(BiasedLayer(h, s.num_heads, s.dropout) for _ in range(s.num_layers))
        self.encoding_weights = nn.Parameter(torch.randn(s.num_layers, s.num_powers, s.num_heads) * 0.02)
        self.head = nn.Sequential(nn.LayerNorm(h), nn.Linear(h, task.num_classes))
        for name in ("log_weights", "reward_sum"):
            self.register_buffer(name, torch.zeros(len(SAMPLERS)))
        self.register_buffer("reward_count", torch.zeros(()))
        self.micro_batch = min(n, 1024)
        self.key = draw_key(task.seed, 0, prediction=True)

    @classmethod
    def bytes_needed(cls, graph: Graph, settings: Any, device: torch.device) -> int:
        """The samplers and the powers of Â, (n, n) each, and four more while they are computed."""
        del device
        return 4 * graph.num_nodes**2 * (len(SAMPLERS) + int(settings.num_powers) + 4)

    # ---------------------------------------------------------------- the bandit

    @property
    def mixture(self) -> Tensor:
        """(4) the samplers' shares of the draws."""
        least = self.settings.least_share
        return least + (1 - len(SAMPLERS) * least) * F.softmax(self.log_weights, dim=0)

    def begin_epoch(self, epoch: int) -> None:
        """New samples; every few epochs the samplers' weights follow their rewards first."""
        if epoch > 1 and (epoch - 1) % self.settings.update_period == 0:
            self.adapt()
        self.key = draw_key(self.task.seed, epoch, prediction=False)

    def adapt(self) -> None:
        """EXP4.P: w ← w · exp(rate · (mean reward + 0.01 / share)), and begin to count anew."""
        reward = self.reward_sum / self.reward_count.clamp(min=1)
        self.log_weights += self.settings.bandit_rate * (reward + 0.01 / self.mixture)
        self.log_weights -= self.log_weights.mean()
        self.reward_sum.zero_()
        self.reward_count.zero_()

    def reward(self, nodes: Tensor, drawn: Tensor, attention: Tensor) -> None:
        """Credit every sampler with Σ_j a_j q(j) / φ(j), the sum over the nodes drawn.

        a_j is the attention on j, q(j) the sampler's own probability of j, φ(j) that of the mixture.
        """
        q = self.samplers[:, nodes[:, None], drawn.clamp(min=0)] * (drawn >= 0)  # (4, B, k)
        mixed = torch.einsum("s,sbk->bk", self.mixture, q).clamp(min=1e-12)
        share = attention / attention.sum(dim=1, keepdim=True).clamp(min=1e-12)
        self.reward_sum += (share * q / mixed).sum(dim=(1, 2))
        self.reward_count += len(nodes)

    # ---------------------------------------------------------------- samples

    def begin_prediction(self, draw: int) -> None:
        """The samples of a vote."""
        self.key = draw_key(self.task.seed, draw, prediction=True)

    def sample(self, nodes: Tensor) -> Tensor:
        """(B, T) the node, the nodes drawn for it, its cluster and others; clusters count from n; −1 is none."""
        keys = row_keys(nodes, self.key)
        mixed = torch.einsum("s,sbn->bn", self.mixture, self.samplers[:, nodes])
        drawn = draw_distinct(mixed, self.settings.num_sampled, keys)
        own = self.cluster_of[nodes]
        clusters = draw_distinct(self.between[own], self.settings.num_super_nodes - 1, mix64_tensor(keys))
        clusters = torch.where(clusters >= 0, clusters + self.task.num_nodes, -1)
        return torch.cat([nodes[:, None], drawn, own[:, None] + self.task.num_nodes, clusters], dim=1)

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores from one sample each."""
        return self.read(self.sample(nodes))[0]

    def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
        """Cross-entropy; the attention on the way is the samplers' reward."""
        tokens = self.sample(nodes)
        scores, attention = self.read(tokens)
        drawn = slice(1, 1 + self.settings.num_sampled)
        self.reward(nodes, tokens[:, drawn], attention[:, drawn])
        return criterion(scores)

    def encoding(self, tokens: Tensor) -> Tensor:
        """(B, T, T, k) Â¹ … Âᵏ between nodes, and those of the clusters' graph where a cluster is one of the two."""
        tokens = tokens.clamp(min=0)
        node, cluster = tokens.clamp(max=self.task.num_nodes - 1), self.cluster_of[tokens]
        fine = tokens < self.task.num_nodes
        near = self.near[:, node[:, :, None], node[:, None, :]]
        coarse = self.coarse[:, cluster[:, :, None], cluster[:, None, :]]
        return torch.where(fine[:, :, None] & fine[:, None, :], near, coarse).permute(1, 2, 3, 0)

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C) class scores, and (B, T) how much the centre takes of every token in the last layer."""
        B, G = len(tokens), len(self.global_nodes)
        H = torch.cat(
            [F.embedding(tokens.clamp(min=0), self.project(self.x)), self.global_nodes.expand(B, -1, -1)], dim=1
        )
        encoding = self.encoding(tokens)
        ends = self.global_encoding[None, :, None].expand(B, -1, tokens.shape[1], -1)
        encoding = torch.cat([encoding, ends], dim=1)
        ends = self.global_encoding[None, None].expand(B, tokens.shape[1] + G, -1, -1)
        encoding = torch.cat([encoding, ends], dim=2)  # (B, T + G, T + G, k)
        valid = F.pad(tokens >= 0, (0, G), value=True)
        biases = [hide((encoding @ weights).permute(0, 3, 1, 2), valid) for weights in self.encoding_weights]
        for layer, bias in zip(self.layers[:-1], biases, strict=False):
            H = layer(H, bias)
        last = self.layers[-1](H, biases[-1], first=1)
        return self.head(last[:, 0]), significance(self.layers[-1], H, biases[-1])


def significance(layer: nn.Module, H: Tensor, bias: Tensor) -> Tensor:
    """(B, T) the first token's attention times the length of the values, mean of the heads; without gradient."""
    assert isinstance(layer, BiasedLayer)
    with torch.no_grad():
        q, k, v = layer.heads(H)
        score = (q[:, :, :1] @ k.transpose(2, 3)) * q.shape[3] ** -0.5 + bias[:, :, :1]
        weighted: Tensor = F.softmax(score, dim=3)[:, :, 0] * v.square().sum(dim=3).sqrt()
        return weighted.mean(dim=1)


def draw_distinct(weights: Tensor, count: int, keys: Tensor) -> Tensor:
    """(B, count) columns drawn one after the other without replacement, by `weights` (B, M); −1 where none is left.

    The largest of w / −log u are such a draw.
    """
    number = torch.arange(weights.shape[1], device=weights.device)
    race = weights / -uniform(numbered(keys[:, None], number)).log()
    best = race.topk(min(count, weights.shape[1]), dim=1)
    drawn = torch.where(best.values > 0, best.indices, -1)
    return F.pad(drawn, (0, count - drawn.shape[1]), value=-1)


def samplers(task: Task, settings: ANSGTSettings, near: Tensor) -> Tensor:
    """(4, n, n) each sampler's probability of the columns for the rows; no node draws itself."""
    n = task.num_nodes
    result = torch.empty(len(SAMPLERS), n, n, device=task.device)
    walk = dense(propagation_matrix(task.graph, "row"), task.device).mul_(settings.restart - 1)
    walk.diagonal().add_(1)
    result[0] = torch.linalg.inv(walk)  # Σ ((1 − restart) P)ᵏ
    result[1], result[2] = near[0], near[1] if len(near) > 1 else near[0] @ near[0]
    X = F.normalize(task.x, dim=1)
    alike = (X @ X.t()).fill_diagonal_(0)
    best = alike.topk(min(settings.num_similar, n), dim=1)
    result[3].zero_().scatter_(1, best.indices, best.values)
    for rows in result:
        rows.clamp_(min=0).fill_diagonal_(0)
        rows /= rows.sum(dim=1, keepdim=True).clamp(min=1e-12)
    return result


def dense(matrix: sp.csr_array, device: torch.device) -> Tensor:
    """A SciPy matrix as a dense float32 tensor."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    result = torch.zeros(*matrix.shape, device=device)
    result[torch.tensor(row, device=device), torch.tensor(matrix.indices, device=device).long()] = torch.tensor(
        matrix.data, dtype=torch.float32, device=device
    )
    return result


def powers(matrix: Tensor, count: int) -> Tensor:
    """(count, n, n) M¹ … Mᶜ."""
    result = torch.empty(count, *matrix.shape, device=matrix.device)
    result[0] = matrix
    for k in range(1, count):
        torch.mm(result[k - 1], matrix, out=result[k])
    return result


def coarsen(graph: Graph, ratio: float) -> NDArray[np.int64]:
    """(n) the cluster of every node, by heavy edges, until there are at most `ratio` · n clusters.

    In a round every cluster joins the neighbour it shares most edge weight with, for their sizes: w / (|a| |b|). Equal
    edges are told apart by a hash. So rounds halve the number at least; what has no edges stays alone.
    """
    n = graph.num_nodes
    cluster, count = np.arange(n), n
    while count > ratio * n:
        edges = coarse_graph(graph, cluster).tocoo()
        between = edges.row != edges.col
        a, b, weight = edges.row[between].astype(np.int64), edges.col[between].astype(np.int64), edges.data[between]
        size = np.bincount(cluster)
        pair = (np.minimum(a, b) * count + np.maximum(a, b)).astype(np.uint64)
        order = np.lexsort((mix64_array(pair), weight / (size[a] * size[b])))
        chosen = np.arange(count)
        chosen[a[order]] = b[order]  # of several, the last stays: the heaviest
        joins = sp.csr_array((np.ones(count), (np.arange(count), chosen)), shape=(count, count))
        fewer, joined = connected_components(joins, directed=False)
        if fewer == count:
            break
        cluster, count = joined[cluster].astype(np.int64), int(fewer)
    return cluster


def coarse_graph(graph: Graph, cluster: NDArray[np.int64]) -> sp.csr_array:
    """(m, m) the weight of edges between clusters, and within them on the diagonal; directions are ignored."""
    n = graph.num_nodes
    member = sp.csr_array((np.ones(n), (np.arange(n), cluster)))
    A = propagation_matrix(graph, "none")
    return sp.csr_array(member.T @ (A + A.T) @ member)


def normalise(matrix: sp.csr_array) -> sp.csr_array:
    """D̃^-½ (M + I) D̃^-½."""
    with_self = sp.csr_array(matrix + sp.eye_array(matrix.shape[0]))
    root = sp.diags_array(np.asarray(with_self.sum(axis=1)).ravel() ** -0.5)
    return sp.csr_array(root @ with_self @ root)
