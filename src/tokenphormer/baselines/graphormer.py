"""Graphormer: Do Transformers Really Perform Bad for Graph Representation? (NeurIPS 2021), https://arxiv.org/abs/2106.05234."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor, nn

from tokenphormer.baselines.base import Baseline, Task, at_least, attention_dtype, check_heads, shares
from tokenphormer.baselines.biased_transformer import BiasedLayer, hide
from tokenphormer.baselines.ego_graphs import EgoGraphs, draw_key, read_in_groups
from tokenphormer.graph import Graph
from tokenphormer.threads import launch


@dataclass(frozen=True)
class GraphormerSettings:
    """Published for molecules: 12 layers of 80 channels (slim); here the size used for nodes of one graph."""

    hidden_channels: int = 64
    num_heads: int = 8
    num_layers: int = 3
    max_distance: int = 5
    """Steps up to which distances have a bias of their own; all beyond, and no path at all, share one."""
    max_degree: int = 512
    """Degrees up to which there is an embedding of its own, as published."""
    dropout: float = 0.1
    max_full_nodes: int = 8192
    """Nodes up to which all attend to all; larger graphs are read as ego-graphs of `fan_out`² nodes and more."""
    fan_out: int = 6
    """Neighbours drawn in an ego-graph, of the centre and of each of these."""

    def __post_init__(self) -> None:
        at_least(1, hidden_channels=self.hidden_channels, num_heads=self.num_heads, num_layers=self.num_layers)
        at_least(1, max_distance=self.max_distance, max_degree=self.max_degree, fan_out=self.fan_out)
        at_least(0, max_full_nodes=self.max_full_nodes)
        check_heads(self.hidden_channels, self.num_heads)
        shares(dropout=self.dropout)


class Graphormer(Baseline):
    """Transformer with degree embeddings at the input and a learned attention bias for every distance.

    The paper's edge encoding needs edge features and its virtual node serves whole-graph tasks; neither is here.
    Ego-graphs have the distances within themselves, as in the papers that ran Graphormer on large graphs.
    Distances are steps, degrees count edges and neighbours are drawn alike: edge weights are ignored.
    """

    title = "Graphormer"
    paper = "https://arxiv.org/abs/2106.05234"
    settings_class = GraphormerSettings
    # A small graph is one sequence, whatever the batch: few batches, few passes over all nodes.
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 2e-3, "weight_decay": 1e-3, "batch_size": 5000}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "hidden_channels": (64, 128),
        "num_layers": (2, 3, 6),
        "max_distance": (2, 5),
        "max_full_nodes": (0, 8192),
        "dropout": (0.1, 0.3, 0.5),
        "learning_rate": (2e-4, 1e-3, 2e-3),
        "weight_decay": (1e-5, 1e-3, 1e-2),
    }

    def __init__(self, task: Task, settings: GraphormerSettings) -> None:
        super().__init__(task)
        s, h = settings, settings.hidden_channels
        self.settings = s
        self.project, self.centrality = nn.Linear(task.x.shape[1], h), nn.Embedding(s.max_degree + 1, h)
        self.distance_bias = nn.Parameter(torch.randn(s.max_distance + 2, s.num_heads) * 0.02)
        self.layers = nn.ModuleList(BiasedLayer(h, s.num_heads, s.dropout) for _ in range(s.num_layers))
        self.head = nn.Sequential(nn.LayerNorm(h), nn.Linear(h, task.num_classes))
        self.degree = torch.tensor(np.minimum(task.graph.degree, s.max_degree), device=task.device)
        self.full = task.num_nodes <= s.max_full_nodes
        if self.full:
            self.distances = all_distances(task.graph, s.max_distance).to(task.device)
        else:
            self.egos = EgoGraphs(task)
            self.micro_batch = 1024
        self.key = draw_key(task.seed, 0, prediction=True)

    @property
    def scores_all(self) -> bool:
        """Whether every pass scores all nodes: of graphs that are read as one sequence."""
        return self.full

    @classmethod
    def bytes_needed(cls, graph: Graph, settings: Any, device: torch.device) -> int:
        """The bias, its gradient, and a copy that the fused attention makes in every layer, all (heads, n, n).

        On a CPU the distances in bytes, and masks and bits while they are found.
        """
        n = graph.num_nodes
        in_bytes = device.type == "cpu" and distance_dtype(settings.max_distance) == torch.uint8
        pair = 5 if in_bytes else 4 * settings.num_heads * (settings.num_layers + 2)
        return int(pair * n * n) if n <= settings.max_full_nodes else 0

    def begin_epoch(self, epoch: int) -> None:
        """New ego-graphs."""
        self.key = draw_key(self.task.seed, epoch, prediction=False)

    def begin_prediction(self, draw: int) -> None:
        """The ego-graphs of a vote."""
        self.key = draw_key(self.task.seed, draw, prediction=True)

    def forward(self) -> Tensor:
        """(n, C) class scores of all nodes from one sequence of all nodes."""
        everyone = torch.arange(self.task.num_nodes, device=self.task.device)[None]
        return self.read(everyone, self.project(self.task.x), self.distances[None], None)[0]

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores."""
        if self.full:
            lean = not nodes.is_cuda and self.distances.dtype == torch.uint8
            return self.read_all(nodes) if lean else super().scores(nodes)
        tokens = self.egos.sample(nodes, (self.settings.fan_out, self.settings.fan_out), self.key)
        inputs = self.project(self.task.x)

        def read(tokens: Tensor) -> Tensor:
            steps = distances(self.egos.adjacent(tokens).float(), self.settings.max_distance)
            return self.read(tokens, inputs, steps, first=1)[:, 0]

        return read_in_groups(tokens, read)

    def read_all(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores from one sequence of all nodes, as `forward` has them, on a CPU: no (n, n) floats."""
        H = (self.project(self.task.x) + self.centrality(self.degree))[None]
        bias = self.distance_bias.t()
        layers: list[Any] = list(self.layers)
        for layer in layers[:-1]:
            H = layer.among_all(H, bias, self.distances)
        scores: Tensor = self.head(layers[-1].among_all(H, bias, self.distances[nodes], nodes)[0])
        return scores

    def read(self, tokens: Tensor, inputs: Tensor, steps: Tensor, first: int | None) -> Tensor:
        """(B, first, C) class scores of the first of (B, T) nodes that are `steps` (B, T, T) apart; −1 is no node.

        `inputs` are the projected features of all nodes.
        """
        there = tokens.clamp(min=0)
        H = F.embedding(there, inputs) + self.centrality(self.degree[there])
        bias = self.bias(steps)
        bias = (bias if self.full else hide(bias, tokens >= 0)).to(attention_dtype(bias.device))  # once for all layers
        for number, layer in enumerate(self.layers, 1):
            H = layer(H, bias, first=first if number == len(self.layers) else None)
        scores: Tensor = self.head(H)
        return scores

    def bias(self, steps: Tensor) -> Tensor:
        """(B, heads, T, T) the learned number of each distance, the same in all layers.

        On a GPU a sum over the few distances: the gradient of a lookup would sort n² indices there.
        """
        if not steps.is_cuda:
            return F.embedding(steps.int(), self.distance_bias).permute(0, 3, 1, 2)
        total = torch.zeros((), device=steps.device)
        for distance, weights in enumerate(self.distance_bias):
            total = total + weights[:, None, None] * (steps[:, None] == distance)
        return total


def distances(adjacency: Tensor, cap: int) -> Tensor:
    """(…, T, T) steps on the shortest path from row to column; cap + 1 where it is longer, or there is none."""
    reached = torch.eye(adjacency.shape[-1], device=adjacency.device).expand_as(adjacency)
    result = torch.where(reached > 0, 0, cap + 1)
    for step in range(1, cap + 1):
        reached = ((reached @ adjacency + reached) > 0).float()
        result = torch.where((result > step) & (reached > 0), step, result)
    return result.to(torch.int16)


def distance_dtype(cap: int) -> torch.dtype:
    """What holds distances up to cap + 1 between all nodes: bytes, where they suffice."""
    return torch.uint8 if cap < 255 else torch.int16


def all_distances(graph: Graph, cap: int) -> Tensor:
    """(n, n) the same of all nodes of a graph; a bit a pair while they are found."""
    n = graph.num_nodes
    result = torch.full((n, n), cap + 1, dtype=distance_dtype(cap))
    reached = np.packbits(np.eye(n, -(-n // 64) * 64, dtype=bool), axis=1).view(np.uint64)
    launch()
    for step in range(cap + 1):
        within = torch.from_numpy(np.unpackbits(reached.view(np.uint8), axis=1, count=n)) > 0
        result[within & (result > step)] = step
        if step < cap:
            reached = _one_step_more(graph.indptr, graph.indices, reached)
    return result


@njit(cache=True, parallel=True)
def _one_step_more(indptr: Any, indices: Any, reached: Any) -> Any:
    """(n, words) the bits of every node, and of those that its edges lead to."""
    more = reached.copy()
    for node in prange(len(reached)):
        for at in range(indptr[node], indptr[node + 1]):
            more[node] |= reached[indices[at]]
    return more
