"""What a person sees while a training runs: a live line on a terminal, nothing elsewhere; TensorBoard on request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokenphormer import distributed
from tokenphormer.errors import InputError
from tokenphormer.sgpm import Pretrainer
from tokenphormer.training.loop import Trainer


class LiveProgress:
    """A context in which `after_epoch` shows how training goes. Of several processes only the first shows anything."""

    def __init__(self, max_epochs: int, tensorboard: Path | None = None) -> None:
        quiet = not distributed.is_first()
        tensorboard = None if quiet else tensorboard
        self.console = Console(stderr=True, quiet=quiet)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
        hidden = quiet or not sys.stderr.isatty()
        self.bar = Progress(*columns, console=self.console, disable=hidden, transient=True)
        self.task = self.bar.add_task("starting", total=max_epochs)
        self.writer: Any = None
        self._logged = 0
        self._make_writer: Callable[[], Any] | None = None
        if tensorboard is not None:
            try:
                from torch.utils.tensorboard.writer import SummaryWriter
            except ImportError as error:
                raise InputError("--tensorboard needs the package: pip install 'tokenphormer[tensorboard]'") from error
            self._make_writer = partial(SummaryWriter, str(tensorboard / "tensorboard"))

    def __enter__(self) -> LiveProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        if self.writer is not None:
            self.writer.close()

    def say(self, message: str) -> None:
        """A remark that stays on the screen."""
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def after_chunk(self, trainer: Pretrainer) -> None:
        """Show how a pre-training goes, and log its newest epoch."""
        p = trainer.progress
        done = f"epoch {p.epoch + 1}  {p.tokens / max(p.seconds, 1e-9):,.0f} tokens a second"
        if p.history:
            row = p.history[-1]
            done += f"  validation perplexity {row['val_perplexity']:.2f}, masked nodes right {row['val_accuracy']:.4f}"
        total = len(trainer.chunks(1)) * trainer.settings.epochs
        self.bar.update(self.task, description=done, completed=p.epoch * len(trainer.chunks(1)) + p.chunk, total=total)
        if p.history and p.epoch > self._logged and self._make_writer is not None:
            self.writer = self.writer or self._make_writer()
            for key in ("train_loss", "val_loss", "val_perplexity", "val_accuracy"):
                self.writer.add_scalar(f"pretraining/{key}", p.history[-1][key], p.epoch)
            self._logged = p.epoch

    def after_epoch(self, seed_number: int, trainer: Trainer) -> None:
        """Show and log the newest epoch."""
        p = trainer.progress
        if not p.history:
            return
        row = p.history[-1]
        text = (
            f"epoch {p.epoch}  train loss {row['train_loss']:.3f}  validation loss {row['val_loss']:.3f}  "
            f"accuracy {row['val_accuracy']:.4f}  best {p.best_accuracy:.4f} (epoch {p.best_epoch})"
        )
        # Early stopping usually ends it: the time left is to the end of patience, unless a better epoch comes.
        end = min(trainer.settings.max_epochs, p.best_epoch + trainer.settings.patience)
        self.bar.update(self.task, description=text, completed=p.epoch, total=end)
        if self.writer is None and self._make_writer is not None:
            self.writer = self._make_writer()  # not sooner: it makes files in a folder that is not ours before training
        if self.writer is not None:
            for key in ("train_loss", "val_loss", "val_accuracy", "learning_rate"):
                self.writer.add_scalar(f"seed {seed_number}/{key}", row[key], p.epoch)
