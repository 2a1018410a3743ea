"""How training goes, and `Config`: all settings of a run in one flat, frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenphormer.errors import InputError
from tokenphormer.model import ModelSettings
from tokenphormer.settings import Settings
from tokenphormer.tokens import TokenSettings


@dataclass(frozen=True)
class TrainingSettings:
    """How weights are found. Defaults are the authors'."""

    learning_rate: float = 5e-3
    """The highest, reached after the warm-up."""
    end_learning_rate: float = 1e-4
    """The lowest, from `decay_updates` on."""
    warmup_updates: int = 400
    """Updates of the weights over which the learning rate rises from 0, in a line."""
    decay_updates: int = 1000
    """Update at which the polynomial decay has come down to `end_learning_rate`."""
    decay_power: float = 1.0
    """Shape of the decay; 1 is a line."""
    weight_decay: float = 1e-5
    """AdamW's: how strongly weights are drawn to zero, all at the same rate."""
    l2: float = 0.0
    """Adam's: so much of each weight is added to its gradient, and weights that the loss hardly needs go to zero."""
    weight_average: float = 0.0
    """Judged and kept is a running mean of the weights, of which this share stays at each update; 0: the last ones."""
    batch_size: int = 2000
    """Training nodes to one update; memory does not limit it, since a batch is worked off in pieces."""
    max_epochs: int = 2000
    """Passes over the training nodes at most."""
    patience: int = 50
    """Epochs without a better validation accuracy (or an equal one with a lower loss) before stopping."""
    label_smoothing: float = 0.0
    """Share of the label that is spread over all classes."""
    class_weights: Literal["none", "balanced"] = "none"
    """`balanced` weighs each class by the inverse of its share of the training nodes."""
    gradient_clip: float = 0.0
    """Highest norm of the gradient; 0 is no limit."""
    votes: int = 1
    """Draws of walks whose probabilities are averaged at prediction."""
    calibrate: bool = False
    """Fit a temperature on the validation nodes after training, by which probabilities are softened or sharpened."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on GPUs and float32 elsewhere."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """torch.compile; `auto` where a long run on a GPU makes up for the minute it takes."""
    deterministic: bool = False
    """Only deterministic algorithms, also on GPUs; on CPUs with one thread, so that their number changes nothing."""
    seed: int = 0
    """Of weights, walks, dropout and the order of batches; splits have their own."""

    def __post_init__(self) -> None:
        at_least = {"batch_size": 1, "max_epochs": 1, "patience": 1, "votes": 1, "warmup_updates": 0}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}: {getattr(self, name)!r}; expected at least {least}")
        for name in ("learning_rate", "end_learning_rate", "weight_decay", "l2", "gradient_clip", "decay_power"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name}: {getattr(self, name)!r}; expected a number of at least 0")
        if self.decay_updates < self.warmup_updates:
            raise InputError(
                f"decay_updates: {self.decay_updates}; expected at least warmup_updates={self.warmup_updates}"
            )
        for name in ("label_smoothing", "weight_average"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)!r}; expected a share from 0 to below 1")


@dataclass(frozen=True)
class Config(TokenSettings, ModelSettings, TrainingSettings, Settings):
    """Every setting of a run.

    >>> config = Config(num_walks=30).replace({"dropout": "0.5"})
    >>> config.num_walks, config.dropout
    (30, 0.5)
    """

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        TokenSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        TrainingSettings.__post_init__(self)
