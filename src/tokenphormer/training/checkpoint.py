"""Checkpoints: everything a training needs to go on, in one safetensors file, written atomically."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.training.loop import Progress, Trainer


def save_checkpoint(path: str | Path, trainer: Trainer, identity: dict[str, str]) -> None:
    """Write a training's state. `identity` says what it belongs to: config, split, graph."""
    tensors = {f"model.{name}": tensor for name, tensor in trainer.method.module.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in trainer.best.items()}
    tensors |= {f"average.{index}": tensor for index, tensor in enumerate(trainer.averages)}
    for index, state in trainer.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    progress = dataclasses.asdict(trainer.progress)
    save_tensors(path, tensors, {"identity": identity, "progress": progress, "micro_batch": trainer.micro_batch})


def load_checkpoint(path: str | Path, trainer: Trainer, identity: dict[str, str], content: bytes | None = None) -> None:
    """Bring a training to the state that `save_checkpoint` wrote; refused if it belongs to something else.

    `content` is what the file holds, if that was read already.
    """
    try:
        tensors, meta = load_tensors(path, content)
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
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "average": {}, "optimiser": {}}
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
        averages = [groups["average"][str(index)].to(trainer.device) for index in range(len(groups["average"]))]
        progress = meta["progress"]
        assert isinstance(progress, dict)
        trainer.progress = Progress(**progress)
        trainer.micro_batch = int(str(meta["micro_batch"]))
    except (RuntimeError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(f"{path}: does not fit this training ({error})") from error
    trainer.averages = averages
    trainer.best = {name: tensor.to(trainer.device) for name, tensor in groups["best"].items()}
