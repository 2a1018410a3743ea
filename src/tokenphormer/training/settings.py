"""How training goes, and `Config`: all settings of a run in one flat, frozen value.

Values come from a YAML file, from `--set key=value`, or from Python; a key that nothing reads is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import reprlib
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from tokenphormer.errors import InputError
from tokenphormer.model import ModelSettings
from tokenphormer.tokens import TokenSettings

MAX_INT = 2**63 - 1


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
    """AdamW's: how strongly weights are drawn to zero."""
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
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on GPUs and float32 elsewhere."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """torch.compile; `auto` where a long run on a GPU makes up for the minute it takes."""
    deterministic: bool = False
    """Only deterministic algorithms, also on GPUs."""
    seed: int = 0
    """Of weights, walks, dropout and the order of batches; splits have their own."""

    def __post_init__(self) -> None:
        at_least = {"batch_size": 1, "max_epochs": 1, "patience": 1, "votes": 1, "warmup_updates": 0}
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise InputError(f"{name}: {getattr(self, name)!r}; expected at least {least}")
        for name in ("learning_rate", "end_learning_rate", "weight_decay", "gradient_clip", "decay_power"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name}: {getattr(self, name)!r}; expected a number of at least 0")
        if self.decay_updates < self.warmup_updates:
            raise InputError(
                f"decay_updates: {self.decay_updates}; expected at least warmup_updates={self.warmup_updates}"
            )
        if not 0 <= self.label_smoothing < 1:
            raise InputError(f"label_smoothing: {self.label_smoothing!r}; expected a share from 0 to below 1")


@dataclass(frozen=True)
class Config(TokenSettings, ModelSettings, TrainingSettings):
    """Every setting of a run.

    >>> config = Config(num_walks=30).replace({"dropout": "0.5"})
    >>> config.num_walks, config.dropout
    (30, 0.5)
    """

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(Config).items():
            object.__setattr__(self, name, _convert(name, getattr(self, name), kind))
        TokenSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        TrainingSettings.__post_init__(self)

    def replace(self, values: Mapping[str, object]) -> Config:
        """The same config with some values changed; texts are read as YAML would."""
        check_keys(values, "settings")
        read = {key: _read(key, v) if isinstance(v, str) else v for key, v in values.items()}
        return dataclasses.replace(self, **read)  # type: ignore[arg-type]  # each value is checked on creation

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}

    @property
    def hash(self) -> str:
        """SHA-256 of all values."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        """The config as YAML."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Config:
        """Read a YAML file of settings; what it does not name keeps its default."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from error
        values = _read(str(path), text)
        if values is None:
            return cls()
        if not isinstance(values, dict):
            raise InputError(f"{path}: expected lines of 'key: value', got a {type(values).__name__}")
        check_keys(values, str(path))
        try:
            return cls().replace(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def check_keys(values: Mapping[Any, object], where: str) -> None:
    """Raise if a key is no setting, offering the nearest ones."""
    known = [field.name for field in dataclasses.fields(Config)]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=3)
            offer = f"; nearest: {', '.join(near)}" if near else ""
            raise InputError(f"{where}: {key!r} is no setting{offer}")


def parse_overrides(pairs: list[str]) -> dict[str, str]:
    """`key=value` texts of the command line."""
    result = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise InputError(f"--set {pair!r}: expected key=value")
        result[key.strip()] = value
    check_keys(result, "--set")
    return result


def _read(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    # Besides its own errors, PyYAML lets out those of dates, huge numbers, odd tags and deep nesting.
    except Exception as error:
        raise InputError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error


def _convert(name: str, value: object, kind: Any) -> object:
    """Take `value` as the field's type, or say why not. An int is a fine float; 1 is no bool."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        value = (
            {True: "yes", False: "no"}.get(value, value) if "yes" in arguments and isinstance(value, bool) else value
        )
        if value in arguments:
            return value
        raise InputError(f"{name}: {_show(value)}; expected one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        if isinstance(value, list | tuple) and len(value) == len(arguments):
            return tuple(_convert(name, v, k) for v, k in zip(value, arguments, strict=True))
        raise InputError(f"{name}: {_show(value)}; expected {len(arguments)} values")
    assert not isinstance(kind, types.UnionType), f"{name}: a type that no rule here reads"
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):  # YAML reads 1e-3 as a text
        with suppress(ValueError, OverflowError):
            value = float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name}: {_show(value)}; expected a value of type {kind.__name__}")
    if isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
        raise InputError(f"{name}: {_show(value)}; expected a whole number of at most 63 bits")
    return value


def _show(value: object) -> str:
    """A value in a message, cut short: a line of YAML can stand for gigabytes."""
    text = reprlib.repr(value)
    return text if len(text) <= 200 else f"{text[:200]} …"
