"""Every method of the benchmark by name: how it is built from a flat set of values, and what a search may choose."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer.baselines import BASELINES, FULL_GRAPH_TRAINING, Task, load_baseline
from tokenphormer.benchmark.rows import Row, config_hash
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph
from tokenphormer.training.loop import Method
from tokenphormer.training.presets import RECIPES
from tokenphormer.training.settings import Config, TrainingSettings
from tokenphormer.training.tokenphormer import TokenphormerMethod

Values = Mapping[str, Any]

STOPPING: dict[str, object] = {"max_epochs": 500, "patience": 50}
"""The stopping rule of every method: epochs at most, and epochs without a better validation result."""
PREPROCESSING: dict[str, tuple[object, ...]] = {"normalise_features": (False, True)}
"""The one choice there is about the features before a method gets them; every search has it."""
FEATURELESS = ("label_propagation",)
"""Methods that read no features and have no weights."""
REGULARISATION: dict[str, tuple[object, ...]] = {"l2": (0.0, 5e-4, 5e-3, 2e-2)}
"""Adam's decay. What most originals call weight decay is this one; `weight_decay` here is AdamW's."""
SHARED = PREPROCESSING | REGULARISATION
"""What every search may choose."""
FIRST_TRIALS = 6
"""Trials of a search without `l2`: the method's defaults, what it wants tried first, and random points of its space."""
COMPILE: dict[str, object] = {"compile": "no"}
"""Compiling takes longer than most of these trainings."""

PAPER_SPACE: dict[str, tuple[object, ...]] = {
    "hidden_channels": (64, 128, 256, 512),
    "num_heads": (1, 4, 8),
    "num_walks": (10, 30, 100),
    "walk_length": (2, 4, 8),
    "walk_ratios": ((0.25, 0.25, 0.25, 0.25), (0.3, 0.05, 0.6, 0.05), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5)),
    "walk_pooling": ("mean", "sum"),
    "num_hops": (3, 6, 10),
    "hop_normalisation": ("symmetric", "row", "none"),
    "dropout": (0.1, 0.3, 0.5, 0.7),
    "attention_dropout": (0.1, 0.5),
    "learning_rate": (1e-3, 2e-3, 5e-3),
    "weight_decay": (1e-5, 1e-3, 1e-2, 1e-1),
    "decay_updates": (300, 1000),
} | SHARED
PLUS_SPACE: dict[str, tuple[object, ...]] = {
    "hidden_channels": (64, 128, 256),
    "num_heads": (1, 4, 8),
    "num_layers": (1, 2, 3),
    "final_norm": (False, True),
    "num_walks": (0, 4, 8, 16),
    "walk_length": (2, 4, 8),
    "walk_ratios": PAPER_SPACE["walk_ratios"],
    "num_hops": (0, 1, 2, 3, 6, 10),
    "hop_normalisation": ("symmetric", "row"),
    "dropout": (0.3, 0.5, 0.7),
    "attention_dropout": (0.0, 0.1, 0.5),
    "feature_dropout": (0.3, 0.5, 0.7),
    "learning_rate": (2e-3, 5e-3, 1e-2),
    "weight_decay": (1e-3, 1e-2, 1e-1),
    "row_activation": (False, True),
    "token_activation": (False, True),
    "include_own": (True, False),
    "consistency": (0.0, 0.5, 1.0),
    "score_hops": (0, 2, 10),
    "score_teleport": (0.1, 0.2, 0.5),
    "score_dropout": (0.0, 0.5, 0.8),
    "score_learned": (False, True),
    "fresh_walks": (False, True),
    "label_smoothing": (0.0, 0.1),
    "weight_average": (0.0, 0.9, 0.98),
} | SHARED
"""What Tokenphormer+ adds to the paper's model is among these; docs/benchmark.md names each."""
PLUS_BASE: dict[str, object] = {
    "row_activation": True, "num_walks": 8, "label_smoothing": 0.1, "warmup_updates": 20, "decay_updates": 300,
    "batch_size": 1_000_000, "hidden_channels": 128, "num_heads": 4, "num_hops": 2, "dropout": 0.5,
    "feature_dropout": 0.7, "learning_rate": 1e-2, "weight_decay": 1e-2, "consistency": 1.0, "score_hops": 10,
    "score_teleport": 0.2, "score_dropout": 0.5,
}  # fmt: skip
"""What a row of Tokenphormer+ names besides its differences: *alike* as it was when the first rows were written.
Recipes may change, this may not: rows that are there would be taken for runs of other settings."""
START: dict[str, object] = {"num_walks": 30, "hidden_channels": 128, "warmup_updates": 20, "decay_updates": 300}


@dataclass(frozen=True)
class Entry:
    """A method of the benchmark."""

    name: str
    title: str
    paper: str
    defaults: Mapping[str, object]
    """Values it starts from; the first trial of a search is these alone, unless it has others (`first`)."""
    space: Mapping[str, tuple[object, ...]]
    starts: tuple[Mapping[str, object], ...] = ()
    """What the next trials of a search change of the defaults, before any are drawn from the space."""
    first: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """What the first trial changes of the defaults."""

    @property
    def fixed(self) -> dict[str, object]:
        """The defaults that no search changes, such as the stopping rule."""
        searched = self.space.keys() | {key for start in (self.first, *self.starts) for key in start}
        return {key: value for key, value in self.defaults.items() if key not in searched}


def _changes(defaults: Values, values: Values) -> dict[str, object]:
    """What turns one set of values into another; what only the first has goes back to the setting's own default."""
    plain = {key: getattr(Config(), key) for key in defaults}
    wanted = plain | dict(values)
    return {key: value for key, value in wanted.items() if defaults.get(key, object()) != value}


def offer(name: str, known: Sequence[str]) -> str:
    """What to say of an unknown name: the nearest of those that there are, or all if none is near.

    >>> offer("gnc", ["gcn", "mlp"]), offer("zzz", ["gcn", "mlp"])
    ('nearest: gcn', 'there are: gcn, mlp')
    """
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"nearest: {', '.join(near)}" if near else f"there are: {', '.join(known)}"


@cache
def entry(name: str) -> Entry:
    """The method of that name; unknown names are an error that offers others."""
    paper = "https://arxiv.org/abs/2412.15302"
    if name == "tokenphormer":
        found = Entry(name, "Tokenphormer", paper, START | STOPPING | COMPILE, PAPER_SPACE)
    elif name == "tokenphormer+":
        base = PLUS_BASE | STOPPING | COMPILE
        first, *others = (_changes(base, recipe | STOPPING | COMPILE) for recipe in RECIPES.values())
        found = Entry(name, "Tokenphormer+", paper, base, PLUS_SPACE, tuple(others), first)
    elif name in BASELINES:
        cls = load_baseline(name)
        shared = {} if name in FEATURELESS else SHARED
        defaults = FULL_GRAPH_TRAINING | dict(cls.schedule) | STOPPING
        found = Entry(name, cls.title, cls.paper, defaults, dict(cls.space) | shared, cls.starts)
    else:
        raise InputError(f"{name!r} is no method of the benchmark; {offer(name, METHODS)}")
    _check_keys(found, found.space, "its search space names")
    for start in (found.first, *found.starts):
        _check_keys(found, start, "a trial of its search names")
    return found


METHODS = ("tokenphormer", "tokenphormer+", *BASELINES)


@cache
def unnamed_values(name: str) -> dict[str, Any]:
    """The values of a method's settings where none are named: its own, those of training, `normalise_features`."""
    if name.startswith("tokenphormer"):
        return dataclasses.asdict(Config())
    own = dataclasses.asdict(load_baseline(name).settings_class())
    return own | dataclasses.asdict(TrainingSettings()) | {"normalise_features": False}


def _check_keys(method: Entry, keys: Iterable[str], where: str) -> None:
    known = unnamed_values(method.name)
    for key in keys:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3)
            raise InputError(
                f"{method.name}: {where} {key!r}, a setting it has not; nearest: {', '.join(near) or 'none'}"
            )


def complete(method: Entry, values: Values) -> dict[str, Any]:
    """All values of a run: the defaults and what a search changed; a key that the method has not is an error."""
    _check_keys(method, values, "was given")
    return dict(method.defaults) | dict(values)


def of_this_version(row: Row) -> bool:
    """Whether a row's settings could still be run: its method has them all, and starts from no others by now."""
    try:
        method = entry(row["model"])
        config = complete(method, row.get("config", {})) | method.fixed
    except InputError:
        return False
    return config_hash(config) == str(row.get("config_hash"))


def current_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows that are `of_this_version`, each fixed first trial of a search under the number that it has now.

    Such a trial is the same run wherever it stands among the others, so rows outlive a change of their order. One that
    has left the list does not count: its number belongs to another by now.
    """
    found = []
    for row in rows:
        if not of_this_version(row):
            continue
        fixed = _fixed_trials(row["model"])
        if row["kind"] == "trial" and fixed:
            number = fixed.get(str(row["config_hash"]), row["trial"] if row["trial"] >= len(fixed) else None)
            if number is None:
                continue
            row = row | {"trial": number}
        found.append(row)
    return found


@cache
def _fixed_trials(name: str) -> dict[str, int]:
    """The number of each trial that a search begins with, by the hash of its settings; none without `starts`."""
    method = entry(name)
    starts = (method.first, *method.starts) if method.starts else ()
    return {config_hash(complete(method, start)): number for number, start in enumerate(starts)}


def build(
    name: str,
    graph: Graph,
    num_classes: int,
    train_nodes: NDArray[np.int64],
    train_classes: NDArray[np.int64],
    values: Values,
    device: torch.device,
    seed: int,
    sgpm: NDArray[np.float32] | None = None,
) -> tuple[Method, TrainingSettings]:
    """A method ready to train, and how it is trained. `graph` has no labels."""
    values = complete(entry(name), values) | {"seed": seed}
    if name.startswith("tokenphormer"):
        config = Config().replace(values)
        return TokenphormerMethod(graph, config, num_classes, device, sgpm=sgpm), config
    cls: Any = load_baseline(name)
    own = {field.name for field in dataclasses.fields(cls.settings_class)}
    training = {field.name for field in dataclasses.fields(TrainingSettings)}
    settings = cls.settings_class(**{key: v for key, v in values.items() if key in own})
    needed, there = cls.bytes_needed(graph, settings, device), _memory(device)
    if needed > there:
        raise ResourceError(f"needs about {needed / 2**30:.1f} GiB, there are {there / 2**30:.1f}")
    task = Task(
        graph,
        num_classes,
        train_nodes,
        train_classes,
        device,
        seed,
        normalise_features=bool(values.get("normalise_features", False)),
    )
    chosen: Any = {key: v for key, v in values.items() if key in training}
    method: Method = cls(task, settings).to(device)
    return method, TrainingSettings(**chosen)


def _memory(device: torch.device) -> float:
    """Bytes that a run can hope for: what is free on a GPU, all there is on a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not hasattr(os, "sysconf"):
        return float("inf")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
