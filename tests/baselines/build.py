"""What the tests of the baselines share: a small graph, and a method built on it in one line."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from tokenphormer.baselines import Baseline, Task, load_baseline
from tokenphormer.graph import Graph

SMALL: dict[str, Any] = {"hidden_channels": 16, "num_heads": 2}
"""Of the settings a method has, these are made small."""


def separable_graph(num_nodes: int = 90, num_features: int = 6) -> Graph:
    """Three classes that features tell and edges follow."""
    rng = np.random.default_rng(0)
    y = np.arange(num_nodes) % 3
    pairs = rng.integers(0, num_nodes, (2, 8 * num_nodes))
    pairs = pairs[:, (y[pairs[0]] == y[pairs[1]]) & (pairs[0] != pairs[1])]
    centres = np.random.default_rng(99).normal(0, 2, (3, num_features))
    x = (centres[y] + rng.normal(0, 0.5, (num_nodes, num_features))).astype(np.float32)
    return Graph.from_edges(pairs, num_nodes=num_nodes, x=x, y=y, class_names=("a", "b", "c"))


def build(
    name: str,
    graph: Graph | None = None,
    train_nodes: Any = None,
    seed: int = 0,
    device: str = "cpu",
    **settings: Any,
) -> Baseline:
    """A baseline on a graph, small, in training mode."""
    graph = graph or separable_graph()
    train_nodes = np.arange(min(60, graph.num_nodes)) if train_nodes is None else train_nodes
    cls = load_baseline(name)
    known = {field.name for field in dataclasses.fields(cls.settings_class)}
    values = {key: value for key, value in SMALL.items() if key in known} | settings
    task = Task.of(graph, train_nodes, torch.device(device), seed=seed)
    made: Any = cls
    method: Baseline = made(task, cls.settings_class(**values)).to(device)
    return method


def without_norms(method: Baseline) -> Baseline:
    """The same without BatchNorm, through which every node hears of all others."""
    for module in list(method.modules()):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.BatchNorm1d):
                setattr(module, name, torch.nn.Identity())
    return method
