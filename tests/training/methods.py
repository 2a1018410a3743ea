"""Small methods for the training loop to train, with faults built in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.tiny import CPU
from tokenphormer.training.loop import Labelled, Trainer
from tokenphormer.training.settings import TrainingSettings

CLASSES = torch.arange(24) % 3


class LinearMethod:
    """A linear map of fixed features; batches of more than `memory` nodes do not fit."""

    def __init__(self, micro_batch: int = 1000, memory: int = 10**9) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(24, 4, generator=generator)
        self.module = nn.Linear(4, 3)
        with torch.no_grad():
            self.module.weight.copy_(torch.randn(3, 4, generator=generator))
            self.module.bias.zero_()
        self.micro_batch, self.memory = micro_batch, memory
        self.seen: list[list[int]] = []
        self.draws: list[int] = []

    scores_all = False

    def shrink(self) -> int:
        raise AssertionError("it works on batches")

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def begin_prediction(self, draw: int) -> None:
        self.draws.append(draw)

    def scores(self, nodes: Tensor) -> Tensor:
        if len(nodes) > self.memory:
            raise torch.OutOfMemoryError(f"{len(nodes)} nodes do not fit")
        self.seen.append(nodes.tolist())
        out: Tensor = self.module(self.x[nodes])
        return out

    def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
        return criterion(self.scores(nodes))


class BreakingMethod(LinearMethod):
    """Its scores are no numbers from a certain training update on, or in a certain epoch's validation."""

    def __init__(self, update: int = 10**9, validation: int = 10**9) -> None:
        super().__init__()
        self.update, self.validation, self.updates = update, validation, 0

    def scores(self, nodes: Tensor) -> Tensor:
        if self.module.training:
            self.updates += 1
            return super().scores(nodes) * (float("nan") if self.updates >= self.update else 1.0)
        return super().scores(nodes) * (float("nan") if self.epoch >= self.validation else 1.0)


class ScriptedMethod(LinearMethod):
    """In epoch e, `script[e - 1]` = (nodes of validation that are right, by which margin)."""

    def __init__(self, script: list[tuple[int, float]]) -> None:
        super().__init__()
        self.script = script

    def scores(self, nodes: Tensor) -> Tensor:
        if self.module.training:
            return super().scores(nodes)
        right, margin = self.script[min(self.epoch, len(self.script)) - 1]
        truth = torch.nn.functional.one_hot(CLASSES[nodes], 3).float()
        sign = torch.where(torch.arange(len(nodes)) < right, 1.0, -1.0)
        return truth * margin * sign[:, None]


def linear_settings(**changes: Any) -> TrainingSettings:
    values = {"learning_rate": 0.05, "warmup_updates": 0, "decay_updates": 10**6, "max_epochs": 4, "weight_decay": 0.1}
    return TrainingSettings(**(values | changes))


def linear_trainer(method: LinearMethod, say: Any = lambda _: None, **changes: Any) -> Trainer:
    """Nodes 0 to 15 are for training, 16 to 23 for validation."""
    nodes = np.arange(24)
    train, val = (Labelled(part, CLASSES.numpy()[part]) for part in (nodes[:16], nodes[16:]))
    return Trainer(method, train, val, 3, linear_settings(**changes), CPU, say)
