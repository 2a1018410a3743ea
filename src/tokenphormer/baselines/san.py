"""SAN: Rethinking Graph Transformers with Spectral Attention (NeurIPS 2021), https://arxiv.org/abs/2106.03893."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_geometric.utils import softmax

from tokenphormer.baselines.base import Baseline, Task, at_least, attention_dtype, check_heads, shares
from tokenphormer.baselines.ego_graphs import EgoGraphs, dense_adjacency, draw_key, read_in_groups
from tokenphormer.baselines.full_attention import HIDDEN, full_attention
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.model import dropout
from tokenphormer.tokens.encodings import laplacian_eigenvectors


@dataclass(frozen=True)
class SANSettings:
    """The shape of a SAN; γ, the eigenvectors and the width of the encoding as published for node classification."""

    hidden_channels: int = 64
    num_heads: int = 8
    num_layers: int = 3
    gamma: float = 0.1
    """γ: added edges have a share γ / (1 + γ) of the attention, the graph's own the rest."""
    num_eigenvectors: int = 10
    pe_channels: int = 16
    """Width of the learned positional encoding; four heads share it."""
    pe_layers: int = 1
    dropout: float = 0.1
    max_full_nodes: int = 8192
    """Nodes up to which all attend to all; larger graphs are read as ego-graphs."""
    fan_out: int = 6
    """Neighbours drawn in an ego-graph, of the centre and of each of these."""

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_heads=self.num_heads, num_layers=self.num_layers)
        at_least(1, num_eigenvectors=self.num_eigenvectors, pe_channels=self.pe_channels, pe_layers=self.pe_layers)
        at_least(0, gamma=self.gamma, max_full_nodes=self.max_full_nodes)
        at_least(1, fan_out=self.fan_out)
        check_heads(self.hidden_channels, self.num_heads)
        if self.pe_channels % PE_HEADS:
            raise InputError(f"pe_channels: {self.pe_channels} cannot be shared by {PE_HEADS} heads")
        shares(dropout=self.dropout)


PE_HEADS = 4


class Pairs(NamedTuple):
    """Which tokens attend to which, as `scaled_dot_product_attention` wants it."""

    bias: Tensor
    """(B, 1, T, T) 0 for a pair, −∞ for none; a row without pairs is all 0."""
    some: Tensor
    """(B, T, 1) whether a row has pairs."""

    @classmethod
    def of(cls, allowed: Tensor) -> Pairs:
        """From (B, T, T) booleans."""
        some = allowed.any(dim=2, keepdim=True)
        # Rows of a multiple of 8 numbers, of which the last are not shown: the fused attention would copy any other.
        T = allowed.shape[2]
        dtype = attention_dtype(allowed.device)
        bias = torch.zeros(*allowed.shape[:2], -(-T // 8) * 8, dtype=dtype, device=allowed.device)[:, :, :T]
        return cls(bias.masked_fill_(~allowed & some, -torch.inf)[:, None], some)


class AllPairs(NamedTuple):
    """The same of all nodes, for a CPU: the real edges one by one, and a byte for each pair."""

    reader: Tensor
    read: Tensor
    """(E) the node that reads along each edge, and the one it reads."""
    real: Tensor
    """(n, n) whether there is an edge from the row's node to the column's."""

    @classmethod
    def of(cls, real: Tensor) -> AllPairs:
        """From (n, n) booleans."""
        reader, read = real.nonzero(as_tuple=True)
        return cls(reader, read, real)


class SpectralAttention(nn.Module):
    """One layer: attention over real edges and over all other pairs, each with queries, keys and edges of its own.

    1 / (1 + γ) softmax over real edges + γ / (1 + γ) softmax over the others, as the paper's equation reads; the
    published code has one softmax for both, where on a graph of thousands of nodes the others take nearly all.
    LayerNorm stands where the published code has BatchNorm, which padded ego-graphs would disturb.
    """

    def __init__(self, settings: SANSettings) -> None:
        super().__init__()
        h = settings.hidden_channels
        self.num_heads, self.gamma, self.dropout = settings.num_heads, settings.gamma, settings.dropout
        self.real, self.added = nn.Linear(h, 2 * h, bias=False), nn.Linear(h, 2 * h, bias=False)  # Q and K
        self.edges = nn.Parameter(torch.ones(2, h))  # E of a real and of an added edge, elementwise in Q·K·E
        self.value, self.output = nn.Linear(h, h, bias=False), nn.Linear(h, h)
        self.attention_norm, self.ffn_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.widen, self.narrow = nn.Linear(h, 2 * h), nn.Linear(2 * h, h)

    def forward(self, H: Tensor, real: Pairs, added: Pairs, first: int | None = None) -> Tensor:
        """(B, T, h) → (B, T, h), or the `first` tokens' alone: all that is read of a last layer."""
        drop = self.dropout if self.training else 0.0
        value = self.value(H)
        near = self.attend(H, value, self.real, self.edges[0], real, first)
        far = self.attend(H, value, self.added, self.edges[1], added, first)
        return self._after_attention(H[:, :first], near, far, drop)

    def among_all(self, H: Tensor, pairs: AllPairs, nodes: Tensor | None = None) -> Tensor:
        """(1, n, h) → (1, n, h), or that of `nodes` alone: one sequence of all nodes, on a CPU."""
        drop = self.dropout if self.training else 0.0
        value = self.value(H)
        q, k = self.real(H).chunk(2, dim=2)
        q, k, v = (self._split(rows)[0] for rows in (q * self.edges[0], k, value))
        near = self._attend_edges(q, k, v, pairs)
        q, k = self.added(H).chunk(2, dim=2)
        q, k = (self._split(rows)[0] for rows in (q * self.edges[1], k))
        real = pairs.real
        if nodes is not None:
            H, near, q, real = H[:, nodes], near[nodes], q[:, nodes], real[nodes]
        seen = torch.tensor([0.0, HIDDEN]).expand(self.num_heads, 2)
        far = full_attention(q, k, v, seen, real.view(torch.uint8)).transpose(0, 1).flatten(1)
        far = far * ~real.all(dim=1, keepdim=True)
        return self._after_attention(H, near[None], far[None], drop)

    def _attend_edges(self, q: Tensor, k: Tensor, v: Tensor, pairs: AllPairs) -> Tensor:
        """(n, h) attention over the real edges, one score an edge and head.

        Of `q[pairs.reader]` several threads would add up the gradients as they come, in another order each time.
        """
        q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))  # (n, heads, d)
        score = (q.index_select(0, pairs.reader) * k.index_select(0, pairs.read)).sum(dim=2) * q.shape[2] ** -0.5
        weight = softmax(score, pairs.reader, num_nodes=len(q))
        read = (weight[:, :, None] * v.index_select(0, pairs.read)).flatten(1)
        return torch.zeros(len(q), read.shape[1]).index_add(0, pairs.reader, read)

    def _after_attention(self, H: Tensor, near: Tensor, far: Tensor, drop: float) -> Tensor:
        attended = (near + self.gamma * far) / (1 + self.gamma)
        H = self.attention_norm(H + self.output(dropout(attended, drop)))
        H = H + self.narrow(dropout(F.relu(self.widen(H)), drop))
        normed: Tensor = self.ffn_norm(H)
        return normed

    def attend(
        self, H: Tensor, value: Tensor, query_key: nn.Module, edge: Tensor, pairs: Pairs, first: int | None
    ) -> Tensor:
        """(B, T, h) attention of the `first` tokens over `pairs`; 0 for a token that has none."""
        q, k = query_key(H).chunk(2, dim=2)
        dtype = pairs.bias.dtype
        q, k, v = (self._split(rows).to(dtype) for rows in (q[:, :first] * edge, k, value))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=pairs.bias[:, :, :first])
        return attended.to(H.dtype).transpose(1, 2).flatten(2) * pairs.some[:, :first]

    def _split(self, H: Tensor) -> Tensor:
        return H.reshape(*H.shape[:2], self.num_heads, -1).transpose(1, 2)


class SAN(Baseline):
    """A Transformer over each node's eigenpairs gives its position; spectral attention layers do the rest.

    Edge weights are ignored: by the eigenpairs, by the attention, and by the drawing of ego-graphs.
    """

    title = "SAN"
    paper = "https://arxiv.org/abs/2106.03893"
    settings_class = SANSettings
    # A small graph is one sequence, whatever the batch: few batches, few passes over all nodes.
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 2e-3, "weight_decay": 1e-3, "batch_size": 5000}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128),
        "num_layers": (2, 3, 6),
        "gamma": (1e-3, 0.1, 1.0),
        "dropout": (0.1, 0.3, 0.5),
        "learning_rate": (5e-4, 1e-3, 2e-3),
        "weight_decay": (1e-5, 1e-3, 1e-2),
    }

    def __init__(self, task: Task, settings: SANSettings) -> None:
        super().__init__(task)
        s, h = settings, settings.hidden_channels
        self.settings = s
        self.eigenpairs = eigenpairs(task, s.num_eigenvectors)  # (n, m, 2)
        self.signs = torch.ones(self.eigenpairs.shape[1], device=task.device)
        self.pair = nn.Linear(2, s.pe_channels)
        self.pe_layers = nn.ModuleList(
            nn.TransformerEncoderLayer(s.pe_channels, PE_HEADS, 2 * s.pe_channels, s.dropout, batch_first=True)
            for _ in range(s.pe_layers)
        )
        # The published code sets channels of the hidden width aside for the encoding; two projections add up to that.
        self.project, self.place = nn.Linear(task.x.shape[1], h), nn.Linear(s.pe_channels, h, bias=False)
        self.layers = nn.ModuleList(SpectralAttention(s) for _ in range(s.num_layers))
        self.head = nn.Sequential(nn.Linear(h, h // 2), nn.ReLU(), nn.Linear(h // 2, task.num_classes))
        self.full = task.num_nodes <= s.max_full_nodes
        if not self.full:
            self.egos = EgoGraphs(task)
            self.micro_batch = 1024
        self.key = draw_key(task.seed, 0, prediction=True)

    @property
    def scores_all(self) -> bool:
        """Whether every pass scores all nodes: of graphs that are read as one sequence."""
        return self.full

    @classmethod
    def bytes_needed(cls, graph: Graph, settings: Any, device: torch.device) -> int:
        """The masks, and others while they are made; on a CPU a byte a pair, and the rows of a batch once more."""
        n = graph.num_nodes
        return (2 if device.type == "cpu" else 20) * n * n if n <= settings.max_full_nodes else 0

    def begin_epoch(self, epoch: int) -> None:
        """New signs for the eigenvectors, which have none of their own, and new ego-graphs."""
        flips = self.generator(epoch).integers(0, 2, len(self.signs)) * 2.0 - 1
        self.signs = torch.tensor(flips, dtype=torch.float32, device=self.task.device)
        self.key = draw_key(self.task.seed, epoch, prediction=False)

    def begin_prediction(self, draw: int) -> None:
        """The eigenvectors as they are, and the ego-graphs of a vote."""
        self.signs = torch.ones_like(self.signs)
        self.key = draw_key(self.task.seed, draw, prediction=True)

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes from one sequence of all nodes."""
        everyone = torch.arange(self.task.num_nodes, device=self.task.device)[None]
        return self.read(everyone, self.inputs(), *self.pairs, first=None)[0]

    @cached_property
    def pairs(self) -> tuple[Pairs, Pairs]:
        """Of all nodes, as `forward` wants them."""
        return real_and_added(dense_adjacency(self.task)[None])

    @cached_property
    def all_pairs(self) -> AllPairs:
        """Of all nodes, as `read_all` wants them."""
        adjacent = dense_adjacency(self.task)
        return AllPairs.of(adjacent.fill_diagonal_(True))

    def read_all(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores from one sequence of all nodes, as `forward` has them, on a CPU: no (n, n) floats."""
        H = self.inputs()[None]
        layers: list[Any] = list(self.layers)
        for layer in layers[:-1]:
            H = layer.among_all(H, self.all_pairs)
        scores: Tensor = self.head(layers[-1].among_all(H, self.all_pairs, nodes)[0])
        return scores

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores."""
        if self.full:
            return super().scores(nodes) if nodes.is_cuda else self.read_all(nodes)
        tokens = self.egos.sample(nodes, (self.settings.fan_out, self.settings.fan_out), self.key)
        inputs = self.inputs()

        def read(tokens: Tensor) -> Tensor:
            real, added = real_and_added(self.egos.adjacent(tokens), tokens >= 0)
            return self.read(tokens, inputs, real, added, first=1)[:, 0]

        return read_in_groups(tokens, read)

    def inputs(self) -> Tensor:
        """(n, h) features and positions of all nodes."""
        inputs: Tensor = self.project(self.task.x) + self.place(self.position())
        return inputs

    def read(self, tokens: Tensor, inputs: Tensor, real: Pairs, added: Pairs, first: int | None) -> Tensor:
        """(B, first, C) class scores of the first of (B, T) nodes; −1 is no node."""
        H = F.embedding(tokens.clamp(min=0), inputs)
        for number, layer in enumerate(self.layers, 1):
            H = layer(H, real, added, first=first if number == len(self.layers) else None)
        scores: Tensor = self.head(H)
        return scores

    def position(self) -> Tensor:
        """(n, pe_channels) the learned encoding: pairs (λ_i, φ_i[v]) through a Transformer, summed over i."""
        P = self.pair(torch.stack([self.eigenpairs[:, :, 0], self.eigenpairs[:, :, 1] * self.signs], dim=2))
        with sdpa_kernel(SDPBackend.MATH):  # n sequences of ten pairs: fused kernels are made for longer ones
            for layer in self.pe_layers:
                P = layer(P)
        summed: Tensor = P.sum(dim=1)
        return summed


def real_and_added(adjacent: Tensor, valid: Tensor | None = None) -> tuple[Pairs, Pairs]:
    """The edges, and the pairs without one, of (B, T, T) booleans; none leads to a token that is not valid.

    A node counts as its own neighbour, so that every node has one.
    """
    real = adjacent | torch.eye(adjacent.shape[2], dtype=torch.bool, device=adjacent.device)
    added = ~real if valid is None else ~real & valid[:, None, :]
    return Pairs.of(real), Pairs.of(added)


def eigenpairs(task: Task, count: int) -> Tensor:
    """(n, m, 2) eigenvalue and entry of the Laplacian's first m eigenvectors but the constant one.

    m is `count`, or what the graph has. Entries are scaled by √n: of unit length they would vanish on large graphs.
    """
    graph, n = task.graph, task.num_nodes
    vectors = laplacian_eigenvectors(graph, min(count, n - 2)).astype(np.float64)
    A = sp.csr_array((np.ones(graph.num_directed_edges), graph.indices, graph.indptr), shape=(n, n))
    A = sp.csr_array(A.maximum(A.T))
    scaled = vectors * np.maximum(np.diff(A.indptr), 1)[:, None] ** -0.5
    values = 1 - np.asarray(scaled * (A @ scaled)).sum(axis=0)  # φᵀ (I − D^-½ A D^-½) φ
    both = np.stack([np.broadcast_to(values, vectors.shape), vectors * np.sqrt(n)], axis=2)
    return torch.tensor(both, dtype=torch.float32, device=task.device)
