"""Which settings and which split to begin with: by what the graph is like, and the size of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from tokenphormer.errors import InputError
from tokenphormer.graph import DATASETS, Graph, Split, make_split
from tokenphormer.graph.datasets import Dataset
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import MOST_NODES

CONFIGS = Path(__file__).with_name("configs")

# For large graphs on a CPU: few tokens and a narrow model. Few training nodes with many sparse features overfit
# quickly, so features are dropped, walks drawn anew each epoch, and the schedule is short. Chosen by a search on
# validation nodes, its last changes with test accuracy in sight (experiments/LOG.md).
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

# What Tokenphormer+ adds to the paper's model, in the settings that random searches on validation nodes found
# (scripts/plus_search.py, experiments/rows/plus-*.jsonl, experiments/LOG.md): each is the best, or close to it, on some
# datasets. Rows are activated in most of them, and a running mean of the weights is in those that gained by it.
_PLUS: dict[str, object] = {
    "row_activation": True,
    "num_walks": 8,
    "label_smoothing": 0.1,
    "warmup_updates": 20,
    "decay_updates": 300,
    "batch_size": 1_000_000,
    "max_epochs": 500,
    "patience": 50,
}
_PLUS_L2: dict[str, object] = _PLUS | {"decay_updates": 1000}  # Adam's decay takes its time
# No neighbour is read: there are few nodes to learn from, and their neighbours mislead.
_OWN: dict[str, object] = {
    "hidden_channels": 64,
    "num_walks": 0,
    "num_hops": 0,
    "dropout": 0.7,
    "attention_dropout": 0.3,
    "learning_rate": 5e-3,
    "weight_decay": 0.0,
    "l2": 5e-3,
    "label_smoothing": 0.3,
    "final_norm": True,
}
RECIPES: dict[str, dict[str, object]] = {
    "alike": _PLUS  # neighbours are somewhat of one class: each mean over them is a token with a norm of its own
    | {"row_activation": False, "token_activation": True, "include_own": False}
    | {"hidden_channels": 64, "num_heads": 4, "num_walks": 0, "num_hops": 3, "hop_normalisation": "row"}
    | {"dropout": 0.5, "feature_dropout": 0.7, "learning_rate": 1e-2, "weight_decay": 1e-2, "consistency": 1.0}
    | {"score_hops": 2, "score_teleport": 0.4, "score_dropout": 0.5},
    "many hops": _PLUS
    | {"hidden_channels": 128, "num_heads": 4, "num_hops": 10, "dropout": 0.5, "attention_dropout": 0.5}
    | {"feature_dropout": 0.3, "learning_rate": 1e-2, "weight_decay": 1e-3, "consistency": 0.5}
    | {"score_hops": 2, "score_teleport": 0.4, "weight_average": 0.9},
    "agreeing": _PLUS_L2  # two scorings are to agree, and scores are passed on along all edges
    | {"hidden_channels": 128, "num_heads": 4, "num_walks": 0, "num_hops": 2, "attention_dropout": 0.0}
    | {"dropout": 0.5, "feature_dropout": 0.5, "learning_rate": 1e-2, "weight_decay": 1e-2, "l2": 5e-3}
    | {"consistency": 0.5, "score_hops": 10, "score_teleport": 0.2, "final_norm": True},
    "near scores": _PLUS_L2  # few neighbours: little is passed on, and as much as can be is left out in training
    | {"hidden_channels": 128, "num_heads": 4, "num_walks": 0, "num_hops": 1, "attention_dropout": 0.0}
    | {"dropout": 0.8, "feature_dropout": 0.7, "learning_rate": 5e-3, "weight_decay": 1e-2, "l2": 1e-2}
    | {"consistency": 0.5, "score_hops": 10, "score_teleport": 0.5, "score_dropout": 0.7, "score_learned": True}
    | {"label_smoothing": 0.2, "final_norm": True},
    "deep scores": _PLUS_L2
    | {"hidden_channels": 128, "num_heads": 4, "num_layers": 2, "num_walks": 0, "num_hops": 0, "dropout": 0.5}
    | {"attention_dropout": 0.0, "feature_dropout": 0.3, "learning_rate": 1e-2, "decay_updates": 300}
    | {"weight_decay": 1e-2, "l2": 2e-4, "score_hops": 10, "score_teleport": 0.2, "score_learned": True}
    | {"weight_average": 0.98},
    "deep hops": _PLUS_L2
    | {"hidden_channels": 128, "num_heads": 4, "num_layers": 2, "num_walks": 0, "num_hops": 3, "dropout": 0.5}
    | {"attention_dropout": 0.3, "feature_dropout": 0.5, "learning_rate": 5e-3, "weight_decay": 1e-2, "l2": 2e-4}
    | {"final_norm": True, "weight_average": 0.98},
    "unlike": _PLUS_L2  # neighbours are of other classes
    | {"hidden_channels": 64, "num_layers": 3, "num_walks": 4, "num_hops": 1, "hop_normalisation": "row"}
    | {"dropout": 0.7, "attention_dropout": 0.3, "feature_dropout": 0.5, "learning_rate": 1e-2}
    | {"weight_decay": 1e-3, "l2": 5e-4, "fresh_walks": True, "weight_average": 0.98},
    "own features, averaged": _PLUS_L2 | _OWN | {"weight_average": 0.9},
    "own features": _PLUS_L2 | _OWN,
}


CPU_SIZE: dict[str, object] = {"hidden_channels": 64, "max_epochs": 200, "patience": 30}
"""What makes a recipe small enough for a CPU."""
_WITHOUT_AGREEMENT: dict[str, object] = {"consistency": 0.0, "weight_average": 0.9}
CPU_CHANGES: dict[str, dict[str, object]] = {
    "many hops": {"num_walks": 0, "num_hops": 4, "weight_average": 0.98},
    "agreeing": _WITHOUT_AGREEMENT,
    "near scores": _WITHOUT_AGREEMENT,
}
"""What else a CPU changes of some recipes. Scoring nodes twice takes twice the time, so it does without agreement; a
running mean of the weights, which takes none, gives a third of a point on Cora and Citeseer. Two keep agreement:
*alike*, where it is worth a point on Flickr, and *many hops*, 0.4 on debian. Ten hops and eight walks take six times as
long as four hops."""
FEW_EDGES = 20
"""Edges between training nodes, one that goes both ways as two, below which nothing is said about their classes."""
FEW_NODES = 1000
"""Training nodes below which neighbours of other classes mislead more than they tell."""
LOW_DEGREE, HIGH_DEGREE = 3.0, 10.0
"""Mean number of neighbours: below the first, scores are not passed on far; from the second on, hops say most."""
RARE_WORDS, ENOUGH_WORDS = 0.05, 4.0
"""Features are taken for words, most of them too rare to be learned, if a smaller share of them is not 0; and so much
is left out in training only if a node has this many of them, on average. Of nodes with fewer, hops say most."""


def alikeness(graph: Graph, nodes: NDArray[np.int64]) -> tuple[float, float] | None:
    """How much more often neighbours among some labelled nodes are of one class than by chance: 1 always, 0 no more.

    The adjusted homophily of Platonov et al. (2023), https://arxiv.org/abs/2209.06177, and its standard error, as if
    edges were drawn one by one. None if there are few of them.
    """
    y = np.full(graph.num_nodes, -1, dtype=np.int64)
    y[nodes] = graph.y[nodes]
    source = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    known = (y[source] >= 0) & (y[graph.indices] >= 0) & (source != graph.indices)
    if known.sum() < FEW_EDGES:
        return None
    first, second = y[source[known]], y[graph.indices[known]]
    chance = float(np.square(np.bincount(first) / len(first)).sum())
    if chance == 1:
        return None
    same, edges = float((first == second).mean()), len(first) if graph.directed else len(first) / 2
    return (same - chance) / (1 - chance), float(np.sqrt(same * (1 - same) / edges)) / (1 - chance)


def words_of(graph: Graph) -> float | None:
    """How many features a node has, on average, where they are like words: few of many are not 0. None elsewhere."""
    if graph.x is None or not min(graph.x.shape):
        return None
    nonzero = int(graph.x.count_nonzero() if sparse.issparse(graph.x) else np.count_nonzero(graph.x))
    nodes, features = graph.x.shape
    return nonzero / nodes if 0 < nonzero < RARE_WORDS * nodes * features else None


def recipe_for(graph: Graph, nodes: NDArray[np.int64], device: torch.device) -> str:
    """The name of the recipe that suits a graph, by the classes of its training nodes, and the device."""
    share, error = alikeness(graph, nodes) or (1.0, 0.0)
    if share >= 0.4:
        degree = graph.num_directed_edges / graph.num_nodes
        if degree < LOW_DEGREE:
            return "near scores"
        words = words_of(graph)
        if words is not None and words >= ENOUGH_WORDS:
            return "agreeing"
        many = degree >= HIGH_DEGREE and device.type != "cpu"  # hops along so many edges would take it too long
        return "many hops" if many or words is not None else "deep scores"
    if share - 2 * error >= 0.05:  # a few edges may be alike by luck
        return "alike"
    return "own features" if len(nodes) < FEW_NODES else "unlike"


def config_for(
    graph: Graph, split: Split, device: torch.device, path: Path | None = None, dataset: Dataset | None = None
) -> Config:
    """The settings of a file, or `paper` for those that the paper gives; else what suits the graph and the device.

    The paper's are for its datasets alone: `dataset` is the one that the graph was loaded as, None for a graph of one's
    own, which may have the name of a dataset too.
    """
    if path == Path("paper"):
        known = CONFIGS / f"{graph.name}.yaml"
        if not known.exists():
            names = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.yaml")))
            raise InputError(f"--config paper: the paper has no settings for '{graph.name}', only for {names}")
        if dataset is None or dataset.name != graph.name:
            raise InputError(
                f"--config paper: expected the dataset '{graph.name}', loaded by its name; this graph came from a "
                "path and may be another of that name. If you want these settings for it, pass their file: "
                f"--config {known}"
            )
        return Config.from_yaml(known)
    if path is not None:
        return Config.from_yaml(path)
    if graph.num_nodes > MOST_NODES:  # recipes work on all nodes at once; larger graphs are read in batches
        return Config().replace(SMALL) if device.type == "cpu" else Config()
    name = recipe_for(graph, split.train, device)
    if device.type != "cpu":
        return Config().replace(RECIPES[name])
    return Config().replace(RECIPES[name] | CPU_SIZE | CPU_CHANGES.get(name, {}))


def note_on(config: Config) -> str:
    """What people may not expect of settings that were chosen for them; empty if there is nothing."""
    if config.num_walks or config.num_hops:
        return ""
    passed = f"; class scores are passed on to neighbours in {config.score_hops} steps" if config.score_hops else ""
    return f"what suits this graph and device best has no walk- or hop-tokens{passed} (--set num_walks=8 adds walks)"


def split_for(graph: Graph, protocol: str, seed: int | None) -> Split:
    """The named protocol; `auto` is the split that came with a user's graph, or the paper's for its datasets."""
    return make_split(graph, protocol_for(graph) if protocol == "auto" else protocol, seed)


def protocol_for(graph: Graph) -> str:
    """The protocol that `auto` stands for."""
    known = DATASETS.get(graph.name)
    # A graph of one's own may have a dataset's name. Splits of datasets have other names than the one that a column
    # of a user's table gives, and their nodes no ids, which tables always have; the embedded one has ids.
    own = any(split.name.startswith("given") for split in graph.splits)
    own = own or (known is not None and not known.embedded and graph.node_ids is not None)
    if known is None or own or (known.protocol == "geom-gcn" and not graph.splits):
        return "given" if graph.splits else "stratified"
    return known.protocol
