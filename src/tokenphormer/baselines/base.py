"""What every baseline is given (`Task`) and what it offers to the training loop (`Baseline`); one file a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hashing import GOLDEN, mix64


@dataclass(frozen=True, eq=False)
class Task:
    """A graph on a device and the labels that may be learned from. No other label is within reach."""

    graph: Graph
    """Its labels are taken away: `graph.y` is −1 everywhere."""
    num_classes: int
    train_nodes: NDArray[np.int64]
    train_classes: NDArray[np.int64]
    device: torch.device
    seed: int = 0
    normalise_features: bool = False
    """Scale every node's features to sum 1, as many of the originals do; degrees in their place stay as they are."""

    @classmethod
    def of(cls, graph: Graph, train_nodes: NDArray[np.int64], device: torch.device, **others: Any) -> Task:
        """The task of a labelled graph: the classes of `train_nodes` are kept, all others hidden."""
        hidden = dataclasses.replace(graph, y=np.full(graph.num_nodes, -1, dtype=np.int64), splits=())
        return cls(hidden, graph.num_classes, train_nodes, graph.y[train_nodes], device, **others)

    @cached_property
    def x(self) -> Tensor:
        """(n, F) features on the device, dense float32; a graph without features has the log of the degrees."""
        x: Any = self.graph.x
        if x is None:  # scaled to sum 1, they would all be 1
            return torch.tensor(np.log1p(self.graph.degree)[:, None], dtype=torch.float32, device=self.device)
        # Graphs on disk may have half precision, in which sums overflow and 1e-12 is 0.
        dense: NDArray[np.float32] = np.asarray(x if isinstance(x, np.ndarray) else x.toarray(), dtype=np.float32)
        if self.normalise_features:
            dense = dense / np.maximum(np.abs(dense).sum(axis=1, keepdims=True), 1e-12)
        return torch.tensor(dense, dtype=torch.float32, device=self.device)

    @property
    def ends(self) -> Tensor:
        """(2, E) the node that each directed edge leaves, and the one it leads to, in the order of the graph's rows."""
        leaves = np.repeat(np.arange(self.graph.num_nodes), self.graph.degree)
        both = np.stack([leaves, self.graph.indices.astype(np.int64)])
        return torch.tensor(both, device=self.device)

    @cached_property
    def edge_index(self) -> Tensor:
        """(2, E) the edges as PyG passes messages, from row 0 to row 1: each node reads those that its edges lead to.

        That is what walks and `propagation_matrix` do. So directed edges are turned round here; undirected ones stand
        in it twice, as they are.
        """
        return self.ends.flip(0) if self.graph.directed else self.ends

    @cached_property
    def edge_weight(self) -> Tensor | None:
        """(E) the weight of each edge of `edge_index`, float32; None where the graph has no weights."""
        weight = self.graph.edge_weight
        return None if weight is None else torch.tensor(weight, dtype=torch.float32, device=self.device)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.graph.num_nodes


class Baseline(nn.Module):
    """A module that knows its graph, and all that the training loop asks of a method.

    As it stands nothing is drawn and `forward()` scores all nodes in one pass over the graph; a method that works on
    batches overrides `scores`, one that samples `begin_epoch` and `begin_prediction`, one with a loss of its own
    `loss`. What has to survive with the best weights but is no parameter is a buffer; data of the graph is neither.
    """

    title: ClassVar[str]
    """The name in tables."""
    paper: ClassVar[str]
    """Where the method was published."""
    settings_class: ClassVar[type[Any]]
    """A frozen dataclass: the settings of the method itself, defaults as published."""
    schedule: ClassVar[Mapping[str, object]] = {}
    """How the method is trained by default, where that differs from `FULL_GRAPH_TRAINING`."""
    space: ClassVar[Mapping[str, tuple[object, ...]]]
    """The values a search may choose from: keys are settings of the method, of training, or `normalise_features`."""
    starts: ClassVar[tuple[Mapping[str, object], ...]] = ()
    """What the first trials of a search change of the defaults, before any are drawn from the space."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        torch.manual_seed(task.seed)
        self.task = task
        self.micro_batch = task.num_nodes

    @property
    def module(self) -> nn.Module:
        """What has the weights: itself."""
        return self

    @property
    def scores_all(self) -> bool:
        """Whether every pass scores all nodes: what overrides `scores` works on batches."""
        return type(self).scores is Baseline.scores

    def shrink(self) -> int:
        """One pass over a graph cannot be made smaller."""
        return 0

    @classmethod
    def bytes_needed(cls, graph: Graph, settings: Any, device: torch.device) -> int:
        """About how much memory a training step takes, of methods whose need grows faster than the graph; else 0."""
        del graph, settings, device
        return 0

    def begin_epoch(self, epoch: int) -> None:
        """Before each training epoch: 1, 2, …"""

    def begin_prediction(self, draw: int) -> None:
        """Before predictions; `draw` numbers the votes, 0 first."""

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores."""
        scores: Tensor = self()[nodes]
        return scores

    def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
        """The loss of a batch, summed over its nodes; `criterion` is the cross-entropy of (B, C) scores, summed too.

        What is added to it (a consistency loss, say) is to be multiplied with the number of nodes.
        """
        return criterion(self.scores(nodes))

    def generator(self, epoch: int) -> np.random.Generator:
        """The random numbers of an epoch, or those drawn before the first (0): a function of the seed and the epoch."""
        return np.random.default_rng(mix64(mix64(mix64(self.task.seed) + GOLDEN * epoch) ^ 1))


FULL_GRAPH_TRAINING: dict[str, object] = {
    "learning_rate": 1e-2,
    "warmup_updates": 0,
    "decay_updates": 10**9,
    "weight_decay": 5e-4,
    "batch_size": 10**9,
    "max_epochs": 1000,
    "patience": 100,
}
"""Full-batch training with a constant learning rate; one update an epoch. The stopping rule is the same for all."""


def node_norm(channels: int, running_statistics: bool = False) -> nn.BatchNorm1d:
    """BatchNorm over all nodes, in predictions too, or with running statistics there.

    The latter lag behind: where an epoch is one step they take some sixty to arrive, and validation in between may
    stop a training that goes well. On small graphs this very delay may help.
    """
    return nn.BatchNorm1d(channels, track_running_stats=running_statistics)


def attention_dtype(device: torch.device) -> torch.dtype:
    """Of queries, keys, values and biases of attention: bfloat16 on GPUs, as Tokenphormer is trained there.

    Fused attention is then several times as fast. Weights, sums and everything else are float32.
    """
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless a setting is one of its choices."""
    if value not in choices:
        raise InputError(f"{name}: {value!r}; expected one of {', '.join(map(str, choices))}")


def at_least(least: float, **values: float) -> None:
    """Raise unless every named setting is `least` or more."""
    for name, value in values.items():
        if not value >= least:
            raise InputError(f"{name}: {value!r}; expected at least {least}")


def shares(**values: float) -> None:
    """Raise unless every named setting is a share from 0 to below 1."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise InputError(f"{name}: {value!r}; expected a share from 0 to below 1")


def check_heads(hidden_channels: int, num_heads: int) -> None:
    """Raise unless the heads can share the channels equally."""
    at_least(1, hidden_channels=hidden_channels, num_heads=num_heads)
    if hidden_channels % num_heads:
        raise InputError(f"hidden_channels: {hidden_channels} cannot be shared by num_heads={num_heads}")
