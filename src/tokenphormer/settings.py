"""`Settings`: a frozen dataclass that is read from YAML, from `key=value` texts or from Python, and checked.

A key that nothing reads is an error, and so is a value of the wrong type.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import reprlib
import types
import typing
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import yaml

from tokenphormer.errors import InputError

MAX_INT = 2**63 - 1
LONGEST = 1 << 15
"""Characters; all settings take some two thousand, and PyYAML's time can grow with the square."""


@dataclass(frozen=True)
class Settings:
    """What all settings can do. A subclass calls `super().__post_init__()` before it checks its own values."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(type(self)).items():
            object.__setattr__(self, name, _convert(name, getattr(self, name), kind))

    def replace(self, values: Mapping[str, object]) -> Self:
        """The same settings with some values changed; texts are read as YAML would."""
        return dataclasses.replace(self, **self.read(values))

    @classmethod
    def read(cls, values: Mapping[str, object]) -> dict[str, Any]:
        """Values of some settings as those settings have them, each on its own; texts are read as YAML would."""
        cls.check_keys(values, "settings")
        kinds = typing.get_type_hints(cls)
        return {key: _convert(key, _read(key, v) if isinstance(v, str) else v, kinds[key]) for key, v in values.items()}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or YAML."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}

    @property
    def hash(self) -> str:
        """SHA-256 of all values."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_yaml(self) -> str:
        """The settings as YAML."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a YAML file of settings; what it does not name keeps its default."""
        try:
            with Path(path).open(encoding="utf-8") as file:
                text = file.read(LONGEST + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error})") from error
        values = _read(str(path), text)
        if values is None:
            return cls()
        if not isinstance(values, dict):
            raise InputError(f"{path}: expected lines of 'key: value', got a {type(values).__name__}")
        cls.check_keys(values, str(path))
        try:
            return cls().replace(values)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def check_keys(cls, values: Mapping[Any, object], where: str) -> None:
        """Raise if a key is no setting, offering the nearest ones."""
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=3)
                offer = f"; nearest: {', '.join(near)}" if near else ""
                raise InputError(f"{where}: {key!r} is no setting{offer}")

    @classmethod
    def parse_overrides(cls, pairs: list[str]) -> dict[str, str]:
        """`key=value` texts of the command line."""
        result = {}
        for pair in pairs:
            key, sign, value = pair.partition("=")
            if not sign or not key.strip():
                raise InputError(f"--set {pair!r}: expected key=value")
            result[key.strip()] = value
        cls.check_keys(result, "--set")
        return result


def _read(name: str, text: str) -> Any:
    if len(text) > LONGEST:
        raise InputError(f"{name}: longer than the {LONGEST:,} characters that settings may have")
    try:
        _check_once(yaml.compose(text, yaml.SafeLoader))
        return yaml.safe_load(text)
    # Besides its own errors, PyYAML lets out those of dates, huge numbers, odd tags and deep nesting.
    except Exception as error:
        raise InputError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error


def _check_once(node: yaml.Node | None) -> None:
    """Raise if a key stands twice: YAML would pass over the first."""
    if isinstance(node, yaml.MappingNode):
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, times in keys.items() if times > 1]:
            raise ValueError(f"{twice[0]!r} stands in it twice")


def _convert(name: str, value: object, kind: Any) -> object:
    """Take `value` as the field's type, or say why not. An int is a fine float; 1 is no bool."""
    if isinstance(value, np.generic):  # as searches over arrays of values give them; YAML cannot write them
        value = value.item()
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
        raise InputError(f"{name}: {_show(value)}; expected {len(arguments)} values, in brackets and with commas")
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
