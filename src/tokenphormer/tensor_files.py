"""Tensors and a JSON value in one safetensors file, written atomically, with a hash of both inside."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file
from torch import Tensor

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import atomic_path, parse_json
from tokenphormer.hashing import digest

FORMAT = 1


def save_tensors(path: str | Path, tensors: dict[str, Tensor], meta: dict[str, object]) -> None:
    """Write tensors and a JSON value, atomically, with a hash of both."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"format": FORMAT, **meta})
    with atomic_path(path) as temporary:
        try:
            # One entry for both: of several, safetensors writes now this one first and now that one.
            save_file(plain, temporary, metadata={"tokenphormer": f"{_hash(plain, text)} {text}"})
        except SafetensorError as error:
            raise ResourceError(f"cannot write {path}: {error}") from error


def _hash(tensors: dict[str, Tensor], text: str) -> str:
    return digest(((name, tensors[name].numpy()) for name in sorted(tensors)), text)


def load_tensors(path: str | Path, content: bytes | None = None) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Read what `save_tensors` wrote, or such a file's `content`; a truncated, changed or foreign file is refused."""
    path = Path(path)
    if content is None and not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if content is None:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
        else:
            size = int.from_bytes(content[:8], "little")
            metadata = parse_json(content[8 : 8 + size]).get("__metadata__", {})
            tensors = load(content)
        expected, _, text = metadata["tokenphormer"].partition(" ")
        meta = parse_json(text)
        changed = _hash(tensors, text) != expected
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a readable file of weights, perhaps truncated ({error})") from error
    if changed or not isinstance(meta, dict):
        raise InputError(f"{path}: its content does not match the hash inside it; the file was changed")
    if meta.get("format") != FORMAT:
        raise InputError(f"{path}: format {meta.get('format')}; this version reads format {FORMAT}")
    return tensors, meta
