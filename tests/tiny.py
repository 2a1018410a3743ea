"""What the tests of training share: graphs of a few dozen nodes, and settings that train on them in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pandas as pd
import torch

from tokenphormer.graph import Graph, Split, make_split
from tokenphormer.threads import launch
from tokenphormer.training.settings import Config

# As for torch in conftest.py: on graphs this small, threads only wait for each other.
launch()  # else starting them would give torch all cores again
numba.set_num_threads(1)

CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "hidden_channels": 8,
    "num_walks": 2,
    "walk_length": 2,
    "num_hops": 1,
    "max_epochs": 3,
    "warmup_updates": 0,
    "learning_rate": 0.02,
}
CLASS_NAMES = ('red, "dark"', "blaß\u2009✓", "<b>plain</b>")


def tiny_config(**changes: Any) -> Config:
    return Config(**(TINY | changes))


def tiny_graph(num_nodes: int = 60, num_features: int = 5, seed: int = 0, unlabelled: int = 0, **changes: Any) -> Graph:
    """Three classes that features and edges both tell; ids and class names are of the kind that breaks tables."""
    rng = np.random.default_rng(seed)
    y = np.arange(num_nodes) % 3
    pairs = rng.integers(0, num_nodes, (2, 8 * num_nodes))
    keep = (y[pairs[0]] == y[pairs[1]]) | (rng.random(pairs.shape[1]) < 0.1)
    centres = np.random.default_rng(99).normal(0, 2, (3, num_features))
    labels = np.where(np.arange(num_nodes) < num_nodes - unlabelled, y, -1)
    values: dict[str, Any] = {
        "edge_index": pairs[:, keep],
        "num_nodes": num_nodes,
        "x": (centres[y] + rng.normal(0, 1, (num_nodes, num_features))).astype(np.float32),
        "y": labels,
        "node_ids": [f'n,"{node}" ü' for node in range(num_nodes)],
        "class_names": CLASS_NAMES,
        "name": "tiny",
    }
    return Graph.from_edges(**(values | changes))


def tiny_split(graph: Graph) -> Split:
    return make_split(graph, seed=1)


def write_folder(graph: Graph, folder: Path, split: Split | None = None) -> Path:
    """The graph as a person would have it: nodes.csv and edges.csv."""
    assert isinstance(graph.x, np.ndarray)
    folder.mkdir(parents=True)
    ids = [graph.id_of(node) for node in range(graph.num_nodes)]
    nodes: dict[str, Any] = {"id": ids, "label": np.array([*graph.class_names, ""])[graph.y]}
    if split is not None:
        parts = {int(node): part for part in ("train", "val", "test") for node in getattr(split, part)}
        nodes["split"] = [parts.get(node, "") for node in range(graph.num_nodes)]
    nodes |= {f"x{column}": graph.x[:, column] for column in range(graph.num_features)}
    pd.DataFrame(nodes).to_csv(folder / "nodes.csv", index=False)
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    edges = {"source": [ids[v] for v in source], "target": [ids[v] for v in graph.indices]}
    pd.DataFrame(edges).to_csv(folder / "edges.csv", index=False)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
