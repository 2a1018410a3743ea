"""The search behind Tokenphormer+'s defaults: random settings on validation nodes of splits that no table reports.

    python scripts/plus_search.py --out FOLDER --device cuda --minutes 5 --workers 15

Settings number i is the same on every dataset. All are tried on one split; the best quarter of each dataset (or
another share, `--keep`) on `--more` further ones. Every training is a row (experiments/rows/plus-*.jsonl), none of them
sees a test label. It can be stopped and gone on with anywhere. With `--show ROWS …` it trains nothing and says what the
rows tell. A space that begins with a recipe draws nothing: its settings are all combinations, or, of eight choices of
two, the sixteen of `--fraction`; of these it says what each choice is worth.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import torch

from tokenphormer.benchmark.grid import only_writer, usual_protocol, work_off
from tokenphormer.benchmark.methods import entry
from tokenphormer.benchmark.rows import Row, read_rows
from tokenphormer.benchmark.running import SEARCH_SPLITS, Job, values_tuple
from tokenphormer.graph import DATASETS
from tokenphormer.training.presets import RECIPES

FIRST: dict[str, tuple[object, ...]] = {
    "hidden_channels": (64, 128),
    "num_heads": (1, 4, 8),
    "num_layers": (1, 1, 2),
    "num_walks": (0, 8, 16),
    "walk_length": (2, 4, 8),
    "walk_ratios": ((0.25, 0.25, 0.25, 0.25), (0.3, 0.05, 0.6, 0.05), (1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.5, 0.5)),
    "num_hops": (2, 3, 6, 10),
    "hop_normalisation": ("symmetric", "row"),
    "dropout": (0.3, 0.5, 0.7),
    "attention_dropout": (0.1, 0.5),
    "feature_dropout": (0.0, 0.3, 0.5, 0.7),
    "learning_rate": (2e-3, 5e-3, 1e-2),
    "decay_updates": (300, 600),
    "weight_decay": (1e-3, 1e-2, 1e-1),
    "row_activation": (False, True),
    "consistency": (0.0, 0.0, 0.5, 1.0),
    "score_hops": (0, 0, 2, 10),
    "score_teleport": (0.1, 0.2, 0.4),
    "fresh_walks": (False, True),
    "label_smoothing": (0.0, 0.1),
    "normalise_features": (False, True),
    "final_norm": (False, True),
}
"""Values that occur twice are drawn twice as often."""
SECOND: dict[str, tuple[object, ...]] = FIRST | {
    "hidden_channels": (32, 64, 128),
    "num_heads": (1, 4),
    "num_layers": (1,),
    "num_walks": (0, 4, 8),
    "walk_length": (2, 4),
    "walk_ratios": ((0.25, 0.25, 0.25, 0.25), (1.0, 0.0, 0.0, 0.0)),
    "num_hops": (1, 2, 4),
    "dropout": (0.3, 0.5, 0.7, 0.8),
    "attention_dropout": (0.1,),
    "feature_dropout": (0.3, 0.5, 0.7, 0.8),
    "row_activation": (False, True, True),
    "consistency": (0.0,),
    "score_hops": (0, 4, 10),
    "score_teleport": (0.1, 0.2, 0.5, 0.8),
    "score_dropout": (0.0, 0.5, 0.8),
    "score_learned": (False, True),
}
"""With edges left out of the steps of scores; smaller, for small graphs."""
UNLIKE: dict[str, tuple[object, ...]] = {
    "num_walks": (0, 0, 4),
    "walk_length": (2, 4),
    "num_hops": (0, 0, 1, 2),
    "hop_normalisation": ("row", "none"),
    "hidden_channels": (64, 128, 256),
    "num_heads": (1, 4),
    "dropout": (0.3, 0.5, 0.7),
    "attention_dropout": (0.0, 0.3),
    "feature_dropout": (0.0, 0.3, 0.5, 0.7),
    "learning_rate": (5e-3, 1e-2),
    "decay_updates": (100, 300),
    "weight_decay": (0.1, 0.5, 1.0, 2.0),
    "row_activation": (False, True),
    "consistency": (0.0,),
    "score_hops": (0,),
    "label_smoothing": (0.0, 0.1, 0.3),
    "normalise_features": (False, True),
    "fresh_walks": (True,),
    "final_norm": (False, True),
}
"""For graphs whose neighbours tell little: few tokens, and weights drawn to zero far more strongly."""
SCORES: dict[str, tuple[object, ...]] = {
    "num_walks": (0, 0, 4),
    "num_hops": (0, 1, 2, 3),
    "hidden_channels": (64, 128),
    "num_heads": (4,),
    "dropout": (0.3, 0.5, 0.7),
    "attention_dropout": (0.0,),
    "feature_dropout": (0.3, 0.5, 0.7),
    "learning_rate": (5e-3, 1e-2),
    "weight_decay": (1e-2, 1e-1, 0.5),
    "row_activation": (False, True, True),
    "consistency": (0.0, 0.0, 0.5),
    "score_hops": (10,),
    "score_teleport": (0.05, 0.1, 0.2, 0.5),
    "score_dropout": (0.3, 0.5, 0.7),
    "score_learned": (False, False, True),
    "label_smoothing": (0.0, 0.1),
    "normalise_features": (False, True),
    "final_norm": (False, True),
}
"""For graphs whose neighbours are alike: scores that go far."""
UNLIKE_L2: dict[str, tuple[object, ...]] = UNLIKE | {
    "num_walks": (0, 0, 4),
    "num_hops": (0, 0, 0, 1, 2),
    "decay_updates": (300, 1000),
    "weight_decay": (0.0, 0.1),
    "l2": (5e-4, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2),
}
SCORES_L2: dict[str, tuple[object, ...]] = SCORES | {
    "num_walks": (0, 4),
    "feature_dropout": (0.0, 0.3, 0.5, 0.7),
    "decay_updates": (300, 1000),
    "weight_decay": (0.0, 1e-2),
    "l2": (5e-4, 2e-3, 5e-3, 1e-2, 2e-2),
    "row_activation": (False, True),
    "score_dropout": (0.0, 0.3, 0.5, 0.7),
}
"""The same two with Adam's own decay, which lets weights of rare words go."""
ALIKE_REFINED: dict[str, tuple[object, ...]] = {
    "num_walks": (0, 0, 4),
    "fresh_walks": (True,),
    "num_hops": (0, 1, 2),
    "hidden_channels": (128, 256),
    "num_heads": (4,),
    "dropout": (0.5, 0.7, 0.8),
    "attention_dropout": (0.0,),
    "feature_dropout": (0.3, 0.5, 0.7),
    "learning_rate": (5e-3, 1e-2),
    "decay_updates": (1000,),
    "weight_decay": (0.0, 1e-2),
    "l2": (2e-3, 5e-3, 1e-2, 2e-2),
    "row_activation": (True,),
    "consistency": (0.5, 0.5, 1.0),
    "score_hops": (10,),
    "score_teleport": (0.1, 0.2, 0.3, 0.5),
    "score_dropout": (0.5, 0.7, 0.8),
    "score_learned": (False, False, True),
    "label_smoothing": (0.0, 0.1, 0.2),
    "normalise_features": (False,),
    "final_norm": (True,),
}
UNLIKE_REFINED: dict[str, tuple[object, ...]] = {
    "num_walks": (0, 2, 4, 8),
    "walk_length": (2, 4),
    "fresh_walks": (True,),
    "num_hops": (0, 0, 1, 2),
    "hop_normalisation": ("row",),
    "hidden_channels": (64, 128),
    "num_heads": (1,),
    "dropout": (0.3, 0.5, 0.7),
    "attention_dropout": (0.3,),
    "feature_dropout": (0.0, 0.3, 0.5),
    "learning_rate": (5e-3, 1e-2),
    "decay_updates": (1000,),
    "weight_decay": (0.1, 0.5),
    "l2": (5e-3, 1e-2, 2e-2, 5e-2),
    "row_activation": (False,),
    "consistency": (0.0, 0.0, 0.5),
    "score_hops": (0,),
    "label_smoothing": (0.0, 0.1, 0.3),
    "normalise_features": (False, True),
    "final_norm": (False, True),
}
LARGE_REFINED: dict[str, tuple[object, ...]] = {
    "num_walks": (0, 8),
    "fresh_walks": (True,),
    "num_hops": (0, 2, 3, 6),
    "hop_normalisation": ("symmetric", "row"),
    "hidden_channels": (128, 256),
    "num_heads": (4, 8),
    "num_layers": (1, 1, 2),
    "dropout": (0.3, 0.5),
    "attention_dropout": (0.0, 0.3),
    "feature_dropout": (0.3, 0.5),
    "learning_rate": (5e-3, 1e-2),
    "decay_updates": (300, 1000),
    "weight_decay": (0.0, 1e-2),
    "l2": (0.0, 2e-4, 5e-4, 2e-3),
    "row_activation": (True,),
    "consistency": (0.0, 0.5),
    "score_hops": (0, 2, 10),
    "score_teleport": (0.2, 0.4),
    "score_dropout": (0.0,),
    "score_learned": (False, True),
    "label_smoothing": (0.0, 0.1),
    "normalise_features": (False, True),
    "final_norm": (False, True),
}
"""Around what the searches before them had found best, for three sorts of graphs."""
LIGHT: dict[str, tuple[object, ...]] = ALIKE_REFINED | {
    "num_walks": (0, 0, 4, 8),
    "num_hops": (0, 1, 2, 3),
    "hidden_channels": (64, 128),
    "dropout": (0.3, 0.5, 0.6),
    "attention_dropout": (0.0, 0.3),
    "feature_dropout": (0.0, 0.3, 0.5, 0.7),
    "decay_updates": (1000, 3000),
    "l2": (2e-4, 5e-4, 1e-3),
    "row_activation": (False, True),
    "consistency": (0.0, 0.5, 1.0),
    "score_teleport": (0.1, 0.2, 0.3),
    "score_dropout": (0.3, 0.5, 0.7),
    "label_smoothing": (0.0, 0.1),
    "normalise_features": (False, True),
    "final_norm": (False, True),
}
"""As little decay as APPNP's and GPR-GNN's best trials on Cora and DBLP have."""
DEEP: dict[str, tuple[object, ...]] = UNLIKE_REFINED | {
    "num_walks": (0, 4, 8),
    "num_hops": (0, 1, 2, 3),
    "num_layers": (1, 2, 3),
    "hidden_channels": (64, 128),
    "dropout": (0.5, 0.7),
    "weight_decay": (1e-3, 0.1),
    "l2": (0.0, 5e-4, 5e-3, 2e-2),
    "row_activation": (False, True),
    "consistency": (0.0,),
    "label_smoothing": (0.0, 0.1),
}
"""Several layers and more dropout instead of decay, as in Gapformer's best trial on Actor."""
RECIPE = "recipe"
AVERAGED: dict[str, tuple[object, ...]] = {RECIPE: tuple(RECIPES), "weight_average": (0.0, 0.9, 0.95, 0.98)}
"""Every recipe with every running mean of the weights."""
CPU: dict[str, tuple[object, ...]] = {
    RECIPE: ("many hops",),
    "num_walks": (0,),
    "max_epochs": (200,),
    "patience": (30,),
    "weight_average": (0.98,),
    "hidden_channels": (64, 128),
    "num_hops": (4, 6),
    "consistency": (0.0, 0.5),
}
"""What *many hops* can be on a CPU, where ten hops and eight walks take too long."""
CPU_DEEP: dict[str, tuple[object, ...]] = {
    RECIPE: ("deep hops", "deep scores"),
    "max_epochs": (200,),
    "patience": (30,),
    "hidden_channels": (64, 128),
}
"""Its rivals there: two layers, and few tokens or none."""
CPU_HOPS: dict[str, tuple[object, ...]] = {
    RECIPE: ("many hops",),
    "num_walks": (0,),
    "max_epochs": (300,),
    "hidden_channels": (64,),
    "num_hops": (4, 10),
    "consistency": (0.0, 0.5),
    "patience": (30, 50),
    "weight_average": (0.9, 0.98),
}
"""What it can be at the small width, with more patience and a shorter mean."""
WIDE: dict[str, tuple[object, ...]] = {
    RECIPE: ("agreeing",),
    "hidden_channels": (256, 128),
    "dropout": (0.7, 0.5),
    "l2": (5e-3, 1e-2, 2e-2),
    "num_hops": (1, 2),
    "score_teleport": (0.2, 0.4),
    "score_dropout": (0.7,),
}
"""*Agreeing*, wider and with more decay: the three best of `plus-alike-refined` on DBLP, on two splits, were so."""
AGREEMENT: dict[str, tuple[object, ...]] = {
    RECIPE: ("alike",),
    "num_walks": (0, 8),
    "consistency": (1.0, 2.0, 3.0, 4.0),
    "score_hops": (10, 2),
    "score_teleport": (0.2, 0.4),
}
"""*Alike* with more agreement and fewer steps of scores: both helped a lean model on Flickr (experiments/LOG.md)."""
AGREEMENT_SIZE: dict[str, tuple[object, ...]] = {
    RECIPE: ("alike",),
    "consistency": (3.0,),
    "score_hops": (2,),
    "score_teleport": (0.4,),
    "hidden_channels": (128, 256),
    "weight_average": (0.0, 0.9),
}
"""The same at one weight, wider and with a running mean of the weights."""
AGREEMENT_HOPS: dict[str, tuple[object, ...]] = {
    RECIPE: ("many hops",),
    "consistency": (0.5, 1.0, 2.0, 3.0),
    "hidden_channels": (128, 256),
    "feature_dropout": (0.3, 0.5),
}
"""*Many hops* with more agreement, for Photo."""
TOKENS: dict[str, tuple[object, ...]] = {
    RECIPE: ("alike",),
    "hop_normalisation": ("row",),
    "score_hops": (2,),
    "score_teleport": (0.4,),
    "row_activation": (False, True),
    "token_activation": (True, False),
    "include_own": (False, True),
    "num_hops": (3, 5),
    "num_walks": (0, 8),
}
"""*Alike* with means of three hops or more in place of two symmetric ones, each token with a norm of its own, and few
steps of scores: on Flickr a narrow one on a CPU gained most of a point by it (experiments/LOG.md)."""
TOKENS_SIZE: dict[str, tuple[object, ...]] = {
    RECIPE: ("alike",),
    "hop_normalisation": ("row",),
    "score_hops": (2,),
    "score_teleport": (0.4,),
    "row_activation": (False,),
    "token_activation": (True,),
    "include_own": (False,),
    "num_hops": (3,),
    "num_walks": (0,),
    "hidden_channels": (128, 64, 256),
    "dropout": (0.5, 0.3),
    "consistency": (1.0, 2.0),
    "weight_average": (0.0, 0.9),
}
"""The same without walks, in other sizes."""
TOKENS_WIDE: dict[str, tuple[object, ...]] = {
    RECIPE: ("alike",),
    "hidden_channels": (64, 128, 256),
    "num_hops": (3, 5),
    "dropout": (0.5, 0.3),
    "weight_average": (0.0, 0.9),
}
"""*Alike* as it is since then, wider, with more hops, less dropout or a running mean of the weights."""
PLAIN: dict[str, tuple[object, ...]] = {
    RECIPE: ("agreeing",),
    "num_hops": (1,),
    "dropout": (0.7,),
    "score_dropout": (0.7, 0.0),
    "label_smoothing": (0.1, 0.0),
    "final_norm": (True, False),
    "l2": (5e-3, 0.0),
}
"""*Agreeing* without what gave nothing when it was taken away alone (`tables/additions.md`)."""
AGREEING: dict[str, tuple[object, ...]] = {
    RECIPE: ("agreeing",),
    "score_dropout": (0.0,),
    "hidden_channels": (128, 256),
    "num_hops": (1, 2),
    "l2": (5e-4, 5e-3),
    "score_teleport": (0.1, 0.3),
    "consistency": (0.5, 1.0),
    "weight_average": (0.0, 0.9),
    "dropout": (0.7, 0.5),
    "final_norm": (True, False),
}
"""*Agreeing* with all edges, as `plus-plain` found it better on DBLP: eight choices of two. Of the 256 combinations 16
tell what each choice is worth: `--fraction` takes those."""
NEAR: dict[str, tuple[object, ...]] = {
    RECIPE: ("near scores",),
    "score_dropout": (0.7, 0.0),
    "num_hops": (1, 2),
    "l2": (1e-2, 2e-2),
    "score_teleport": (0.5, 0.3),
    "label_smoothing": (0.2, 0.1),
    "feature_dropout": (0.7, 0.5),
    "dropout": (0.8, 0.6),
    "final_norm": (True, False),
}
"""*Near scores*, for Citeseer, in the same way."""
HOPS: dict[str, tuple[object, ...]] = {
    RECIPE: ("many hops",),
    "hidden_channels": (128, 256),
    "num_hops": (10, 6),
    "num_walks": (8, 0),
    "dropout": (0.5, 0.3),
    "feature_dropout": (0.3, 0.5),
    "consistency": (0.5, 1.0),
    "weight_average": (0.9, 0.98),
    "score_teleport": (0.4, 0.2),
}
"""*Many hops*, for Photo and debian, in the same way."""
APART: dict[str, tuple[object, ...]] = {
    RECIPE: ("unlike",),
    "hidden_channels": (64, 128),
    "num_layers": (3, 1),
    "num_walks": (4, 0),
    "l2": (5e-4, 5e-3),
    "feature_dropout": (0.5, 0.3),
    "label_smoothing": (0.1, 0.3),
    "weight_average": (0.98, 0.9),
    "learning_rate": (1e-2, 5e-3),
}
"""*Unlike*, for Actor, in the same way."""
OWN: dict[str, tuple[object, ...]] = {
    RECIPE: ("own features",),
    "hidden_channels": (64, 128),
    "num_layers": (1, 2),
    "l2": (5e-3, 1e-2),
    "feature_dropout": (0.0, 0.3),
    "label_smoothing": (0.3, 0.1),
    "dropout": (0.7, 0.5),
    "normalise_features": (False, True),
    "final_norm": (True, False),
}
"""*Own features*, for Wisconsin and Cornell, in the same way."""
OWN_SIZE: dict[str, tuple[object, ...]] = {
    RECIPE: ("own features",),
    "l2": (5e-3, 1e-2, 2e-2),
    "hidden_channels": (64, 128),
    "num_layers": (1, 2),
}
"""Around the best of them, for Wisconsin."""
CPU_AGREEING: dict[str, tuple[object, ...]] = {
    RECIPE: ("agreeing",),
    "hidden_channels": (64,),
    "max_epochs": (200,),
    "patience": (30,),
    "consistency": (0.0,),
    "weight_average": (0.9,),
    "num_hops": (1, 2),
    "dropout": (0.7, 0.5),
    "score_dropout": (0.7, 0.0),
}
"""*Agreeing* at its size for a CPU, before it changed (number 0) and since (7)."""
SPACES = {
    "plus-cpu-agreeing": CPU_AGREEING,
    "plus-near": NEAR,
    "plus-hops": HOPS,
    "plus-apart": APART,
    "plus-own": OWN,
    "plus-own-size": OWN_SIZE,
    "plus-agreeing": AGREEING,
    "plus-tokens-wide": TOKENS_WIDE,
    "plus-plain": PLAIN,
    "plus-tokens": TOKENS,
    "plus-tokens-size": TOKENS_SIZE,
    "plus-agreement": AGREEMENT,
    "plus-agreement-size": AGREEMENT_SIZE,
    "plus-agreement-hops": AGREEMENT_HOPS,
    "plus-wide": WIDE,
    "plus-cpu": CPU,
    "plus-cpu-hops": CPU_HOPS,
    "plus-cpu-deep": CPU_DEEP,
    "plus-averaged": AVERAGED,
    "plus-light": LIGHT,
    "plus-deep": DEEP,
    "plus-alike-refined": ALIKE_REFINED,
    "plus-unlike-refined": UNLIKE_REFINED,
    "plus-large-refined": LARGE_REFINED,
    "plus-search": FIRST,
    "plus-search-2": SECOND,
    "plus-unlike": UNLIKE,
    "plus-scores": SCORES,
    "plus-unlike-l2": UNLIKE_L2,
    "plus-scores-l2": SCORES_L2,
}

FRACTIONS = ("plus-agreeing", "plus-near", "plus-hops", "plus-apart", "plus-own")
"""Spaces of eight choices of two, for `--fraction`."""


def values_of(study: str, number: int) -> dict[str, Any]:
    """Settings number `number` of a search; 0 is the defaults, but where all combinations are tried."""
    space = SPACES[study]
    if RECIPE in space:
        keys, combinations = tuple(space), list(product(*space.values()))
        return dict(zip(keys, combinations[number % len(combinations)], strict=True))
    rng = random.Random(number)
    return {key: rng.choice(choices) for key, choices in space.items()} if number else {}


def changes_of(study: str, number: int) -> dict[str, Any]:
    """The same as changes of the method's defaults: a recipe's name stands for its settings."""
    values = values_of(study, number)
    method = entry("tokenphormer+")
    start = (method.first, *method.starts)[list(RECIPES).index(values.pop(RECIPE))] if RECIPE in values else {}
    return {**start, **values}


def fraction(study: str) -> list[int]:
    """Sixteen of the combinations of eight choices of two: no choice is mixed up with another, nor with any two.

    Box and Hunter's design of resolution IV: each of the last four choices is the product of three of the first four.
    """
    space = SPACES[study]
    places = [key for key, values in space.items() if len(values) == 2]
    assert len(places) == 8
    found = []
    for number, combination in enumerate(product(*space.values())):
        level = [space[key].index(value) for key, value in zip(space, combination, strict=True) if key in places]
        a, b, c, d, *others = level
        if others == [(b + c + d) % 2, (a + c + d) % 2, (a + b + c) % 2, (a + b + d) % 2]:
            found.append(number)
    return found


class Stages:
    """All settings on the first split, then a share of each dataset's best on `more` others."""

    def __init__(
        self,
        study: str,
        datasets: list[str],
        numbers: list[int],
        more: int,
        rows: list[Row],
        keep: float,
        judged: str = "",
        protocol: str = "",
    ) -> None:
        self.study, self.datasets, self.numbers, self.more = study, datasets, numbers, more
        self.kept, self.judged, self.protocol = round(len(numbers) * keep), judged, protocol
        self.rows = [row for row in rows if row["study"] == study]
        self.begun = {(row["dataset"], row["trial"], row["split"]) for row in self.rows}

    def next_job(self) -> Job | None:
        """A training that has not begun yet."""
        for number in self.numbers:
            for name in self.datasets:
                if (name, number, SEARCH_SPLITS) not in self.begun:
                    return self._begin(name, number, SEARCH_SPLITS)
        for split in range(SEARCH_SPLITS + 1, SEARCH_SPLITS + 1 + self.more):
            for name in self.datasets:
                for number in self._best(name):
                    if (name, number, split) not in self.begun:
                        return self._begin(name, number, split)
        return None

    def _best(self, name: str) -> list[int]:
        mine = [row for row in self.rows if row["dataset"] == name and row["trial"] in self.numbers]
        first = [row for row in mine if row["split"] == SEARCH_SPLITS]
        done = sorted((row for row in first if row["status"] == "done"), key=lambda row: -row["val_accuracy"])
        return [row["trial"] for row in done[: self.kept]] if len(first) >= len(self.numbers) else []

    def _begin(self, name: str, number: int, split: int) -> Job:
        self.begun.add((name, number, split))
        values, seed = values_tuple(changes_of(self.study, number)), split - SEARCH_SPLITS
        protocol = self.protocol or usual_protocol(name)
        about = ("trial", "tokenphormer+", name, protocol, split, values, seed, self.study, number)
        return Job(*about, judged=self.judged)

    def take(self, row: Row) -> None:
        """A training is over."""
        self.rows.append(row)


def effects(study: str, rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Of each of eight choices of two, the points from its first to its second value, and their standard error.

    From the splits on which all sixteen settings of the fraction were run; the error is that of a mean over splits.
    """
    on: dict[int, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row["status"] == "done":
            on[row["trial"]][row["split"]] = 100 * row["val_accuracy"]
    numbers = fraction(study)
    splits = sorted(set.intersection(*(set(on[number]) for number in numbers)))
    found = {}
    for key, values in SPACES[study].items():
        if len(values) == 2 and len(splits) > 1:
            signs = [2 * values.index(values_of(study, number)[key]) - 1 for number in numbers]
            told = [
                sum(sign * on[number][split] for sign, number in zip(signs, numbers, strict=True)) / 8
                for split in splits
            ]
            found[key] = statistics.mean(told), statistics.stdev(told) / len(told) ** 0.5
    return found


def show(study: str, rows: list[Row]) -> None:
    """The best settings of each dataset, and the mean of each value among the better half of all settings."""
    by: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["study"] == study and row["status"] == "done":
            by[row["dataset"]][row["trial"]].append(row)
    for name, trials in by.items():
        most = max(len(found) for found in trials.values())
        ranked = sorted(
            (statistics.mean(row["val_accuracy"] for row in found), number)
            for number, found in trials.items()
            if len(found) == most
        )[::-1]
        print(f"\n{name}: {len(trials)} settings, {len(ranked)} of them on {most} splits")
        for accuracy, number in ranked[:6]:
            print(f"  {100 * accuracy:.2f} {number} {values_of(study, number)}")
        if study in FRACTIONS:
            for key, (points, error) in effects(study, [row for found in trials.values() for row in found]).items():
                before, after = SPACES[study][key]
                print(f"    {key:20} {before} -> {after}: {points:+.2f} ± {error:.2f}")
            continue
        rows_of = {number: {row["split"]: row for row in found} for number, found in trials.items()}
        first = [(on[SEARCH_SPLITS]["val_accuracy"], number) for number, on in rows_of.items() if SEARCH_SPLITS in on]
        middle = statistics.median([accuracy for accuracy, _ in first] or [0.0])
        drawn = [
            each for each in first if each[1] or RECIPE in SPACES[study]
        ]  # else 0 is the defaults, not of the space
        good = [(accuracy, number) for accuracy, number in drawn if accuracy >= middle]
        for key, choices in SPACES[study].items():
            told = []
            for value in dict.fromkeys(choices):
                mine = [accuracy for accuracy, number in good if values_of(study, number)[key] == value]
                told.append(f"{value}: {100 * statistics.mean(mine):.2f} ({len(mine)})" if mine else f"{value}: none")
            print(f"    {key:20} " + ", ".join(told))


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search", choices=SPACES, default="plus-search")
    parser.add_argument("--datasets", nargs="*", default=[name for name in DATASETS if name != "texas"])
    parser.add_argument("--count", type=int, default=48, help="settings that are tried")
    parser.add_argument("--numbers", type=int, nargs="*", help="which settings; those from 0 to --count otherwise")
    parser.add_argument("--fraction", action="store_true", help="the sixteen settings of eight choices of two that do")
    parser.add_argument("--more", type=int, default=2, help="splits that the best quarter is tried on besides")
    parser.add_argument("--keep", type=float, default=0.25, help="the share of settings that is tried on those")
    parser.add_argument("--held-out", action="store_true", help="half of the validation nodes stop, the others judge")
    parser.add_argument("--protocol", default="", help="of the splits; the usual one of a dataset otherwise")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--merge", nargs="*", type=Path, default=[])
    parser.add_argument("--show", nargs="*", type=Path)
    options = parser.parse_args()
    if options.show:
        show(options.search, read_rows(options.show))
        return
    path = options.out / "rows.jsonl"
    with only_writer(path):
        rows = read_rows([*options.merge, path])
        judged = "held-out" if options.held_out else ""
        numbers = options.numbers or (fraction(options.search) if options.fraction else list(range(options.count)))
        about = (options.search, options.datasets, numbers, options.more, rows, options.keep)
        stages = Stages(*about, judged, options.protocol)
        work_off(
            [stages], path, torch.device(options.device), workers=options.workers, minutes=options.minutes, say=print
        )


if __name__ == "__main__":
    main()
