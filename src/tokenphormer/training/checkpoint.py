"""Checkpoints: everything a training needs to go on, in one safetensors file, written atomically."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import atomic_path
from tokenphormer.hashing import digest
from tokenphormer.training.loop import Progress, Trainer

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


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Read what `save_tensors` wrote; a truncated, changed or foreign file is refused."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with safe_open(path, framework="pt") as file:
            expected, _, text = (file.metadata() or {})["tokenphormer"].partition(" ")
            meta = json.loads(text)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
        changed = _hash(tensors, text) != expected
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a readable file of weights, perhaps truncated ({error})") from error
    if changed or not isinstance(meta, dict):
        raise InputError(f"{path}: its content does not match the hash inside it; the file was changed")
    if meta.get("format") != FORMAT:
        raise InputError(f"{path}: format {meta.get('format')}; this version reads format {FORMAT}")
    return tensors, meta


def save_checkpoint(path: str | Path, trainer: Trainer, identity: dict[str, str]) -> None:
    """Write a training's state. `identity` says what it belongs to: config, split, graph."""
    tensors = {f"model.{name}": tensor for name, tensor in trainer.method.module.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in trainer.best.items()}
    for index, state in trainer.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    progress = dataclasses.asdict(trainer.progress)
    save_tensors(path, tensors, {"identity": identity, "progress": progress, "micro_batch": trainer.micro_batch})


def load_checkpoint(path: str | Path, trainer: Trainer, identity: dict[str, str]) -> None:
    """Bring a training to the state that `save_checkpoint` wrote; refused if it belongs to something else."""
    try:
        tensors, meta = load_tensors(path)
    except InputError as error:
        raise InputError(f"{error}. Delete this checkpoint to train from the beginning") from error
    found = meta.get("identity")
    if found != identity:
        known = found if isinstance(found, dict) else {}
        other = [key for key, value in identity.items() if known.get(key) != value]
        raise InputError(
            f"{path}: is the checkpoint of another run: it has another {', '.join(other) or 'origin'}. "
            "Use the settings it was begun with, or another folder"
        )
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimiser": {}}
    try:
        for name, tensor in tensors.items():
            group, _, rest = name.partition(".")
            groups[group][rest] = tensor
        trainer.method.module.load_state_dict(groups["model"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups["optimiser"].items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        whole = trainer.optimiser.state_dict()
        trainer.optimiser.load_state_dict({**whole, "state": state})
        progress = meta["progress"]
        assert isinstance(progress, dict)
        trainer.progress = Progress(**progress)
        trainer.micro_batch = int(str(meta["micro_batch"]))
    except (RuntimeError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(f"{path}: does not fit this training ({error})") from error
    trainer.best = {name: tensor.to(trainer.device) for name, tensor in groups["best"].items()}
