"""Train Tokenphormer on a graph and a split: what the classifier and the command line both call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, Split
from tokenphormer.training.checkpoint import load_checkpoint, save_checkpoint
from tokenphormer.training.loop import InterruptedTrainingError, Labelled, Progress, Trainer
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import TokenphormerMethod

CHECKPOINT_SECONDS = 20.0
"""How often a training that has a checkpoint file writes it."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model and how it came about."""

    method: TokenphormerMethod
    progress: Progress
    seconds: float
    peak_memory_bytes: int
    """On a GPU the most that torch had allocated, on a CPU the process's resident memory."""


def fit_tokenphormer(
    graph: Graph,
    split: Split,
    config: Config,
    device: torch.device,
    *,
    sgpm: NDArray[np.float32] | None = None,
    checkpoint: Path | None = None,
    after_epoch: Callable[[Trainer], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """Train until early stopping. Test labels are not looked at.

    With a `checkpoint` path the state is written there now and then, and an existing file is gone on from.
    """
    split.check(graph)
    missing = np.setdiff1d(np.arange(graph.num_classes), graph.y[split.train])
    if missing.size and len(split.train):
        names = ", ".join(graph.class_names[c] for c in missing[:5])
        say(f"no training node is of class {names}: it cannot be learned, and will never be predicted with reason")
    _check_features(graph, say)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    method = TokenphormerMethod(graph, config, graph.num_classes, device, sgpm=sgpm)
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    trainer = Trainer(method, train, val, graph.num_classes, config, device, say)
    identity = {"config": config.hash, "split": split.hash, "graph": graph.fingerprint}
    if checkpoint is not None and checkpoint.exists():
        load_checkpoint(checkpoint, trainer, identity)
        say(f"going on after epoch {trainer.progress.epoch}")
    written = time.monotonic()

    def keep(trainer: Trainer) -> None:
        nonlocal written
        after_epoch(trainer)
        if checkpoint is not None and time.monotonic() - written > CHECKPOINT_SECONDS:
            save_checkpoint(checkpoint, trainer, identity)
            written = time.monotonic()

    try:
        progress = trainer.run(keep)
    except KeyboardInterrupt as stop:
        # Ctrl-C may come in the middle of an epoch; what is on disk is the end of an earlier one, which is enough.
        where = f"; {checkpoint} holds it" if checkpoint is not None and checkpoint.exists() else ""
        raise InterruptedTrainingError(f"stopped after epoch {trainer.progress.epoch}{where}") from stop
    return Fitted(method, progress, time.perf_counter() - began, peak_memory(device))


def _check_features(graph: Graph, say: Callable[[str], None]) -> None:
    x: Any = graph.x
    if x is None:
        return
    highest, spread = float(abs(x).max()), float((x.max(axis=0) - x.min(axis=0)).max())
    if spread == 0 and graph.num_nodes > 1:
        say("every node has the same features: only the graph's structure can tell nodes apart")
    if highest > 1e6:
        raise InputError(f"features reach {highest:.3g}; scale them (to about −10 … 10) before training")


def peak_memory(device: torch.device) -> int:
    """The highest use of memory so far, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
