"""Graphs and settings for the tests of SGPM: small enough to be pre-trained in a tenth of a second."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.tiny import CPU, tiny_graph
from tokenphormer.graph import Graph
from tokenphormer.sgpm import Pretrainer, SGPMSettings

QUICK: dict[str, Any] = {
    "train_sentences": 4,
    "val_sentences": 2,
    "hidden_channels": 8,
    "num_layers": 1,
    "num_heads": 2,
    "epochs": 2,
    "batch_size": 256,
    "learning_rate": 5e-3,
    "context_sentences": 2,
}


def quick(**changes: Any) -> SGPMSettings:
    return SGPMSettings(**(QUICK | changes))


def cycle(num_nodes: int = 20) -> Graph:
    """Walks go round without turning: any node but a lonely one follows from two others, half of them from one."""
    node = np.arange(num_nodes)
    return Graph.from_edges([node, (node + 1) % num_nodes], name="cycle")


def pieces() -> Graph:
    """A path of seven (radius 3), a star of five (radius 1), a pair (radius 1), and two nodes alone (radius 0)."""
    path = [(v, v + 1) for v in range(6)]
    star = [(7, v) for v in range(8, 12)]
    x = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    ids = [f"v{node}" for node in range(16)]
    return Graph.from_edges(np.array([*path, *star, (12, 13)]).T, 16, x=x, node_ids=ids, name="pieces")


RADII = [3] * 7 + [1] * 5 + [1] * 2 + [0] * 2
"""Of the components of `pieces`, node by node."""


def relabelled(graph: Graph, y: Any) -> Graph:
    """The same graph with other labels."""
    assert not graph.directed
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    return Graph.from_edges(
        [source, graph.indices], graph.num_nodes, x=graph.x, y=y, node_ids=graph.node_ids, name=graph.name
    )


def pretrained_trainer(graph: Graph | None = None, device: torch.device = CPU, **changes: Any) -> Pretrainer:
    """A pre-training that ran to its end."""
    trainer = Pretrainer(graph or tiny_graph(), quick(**changes), device)
    trainer.run()
    return trainer


def weights(trainer: Pretrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_same_training(one: Pretrainer, other: Pretrainer) -> None:
    """Bit for bit, but for the time it took."""
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name]), name
    for a, b in zip(one.progress.history, other.progress.history, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    ends = [
        (p.epoch, p.chunk, p.sentences, p.tokens, p.best_epoch, p.best_loss, p.stopped)
        for p in (one.progress, other.progress)
    ]
    assert ends[0] == ends[1]
