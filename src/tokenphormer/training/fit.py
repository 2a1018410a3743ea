"""Train Tokenphormer on a graph and a split: what the classifier and the command line both call."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer import distributed
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.graph import Graph, Split
from tokenphormer.hashing import digest
from tokenphormer.signals import put_off_signals
from tokenphormer.tokens.source import check_width
from tokenphormer.training.calibration import HIGHEST, LOWEST, fit_temperature
from tokenphormer.training.checkpoint import load_checkpoint, save_checkpoint
from tokenphormer.training.loop import Labelled, Progress, Trainer, check_labels, predict
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import TokenphormerMethod

CHECKPOINT_SECONDS = 20.0
"""How often a training that has a checkpoint file writes it."""
NO_MEMORY = ("can't allocate memory", "Storage size calculation overflowed")
"""How torch words it on a CPU, where it raises nothing more exact than RuntimeError."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model and how it came about."""

    method: TokenphormerMethod
    progress: Progress
    seconds: float
    """Of a training that was resumed, its earlier epochs too."""
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

    With a `checkpoint` path the state is written there now and then, and an existing file is gone on from. Ctrl-C
    or SIGTERM then ends the epoch, writes the state and raises `InterruptedTrainingError`.
    """
    check_trainable(graph, split, config, say)
    if sgpm is None and config.sgpm_token != Config().sgpm_token:
        say(f"sgpm_token={config.sgpm_token} has no effect: no pre-trained SGPM was given, so there is no SGPM-token")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    try:
        method = TokenphormerMethod(graph, config, graph.num_classes, device, sgpm=sgpm)
        train, val = (_labelled(graph, part) for part in (split.train, split.val))
        trainer = Trainer(method, train, val, graph.num_classes, config, device, say)
        identity = {"config": config.hash, "split": split.hash, "graph": graph.fingerprint}
        if sgpm is not None:
            identity["sgpm"] = distributed.text_of_first(digest([("vectors", sgpm)]), device)  # a GPU may err by a bit
        distributed.check_same(identity, device)
        if checkpoint is None:
            progress = trainer.run(after_epoch)
        else:
            kept = distributed.file_of_first(checkpoint, device)
            if kept is not None:
                load_checkpoint(checkpoint, trainer, identity, kept)
                began -= sum(row["seconds"] for row in trainer.progress.history)
                say(f"going on after epoch {trainer.progress.epoch}")
            progress = _run_with_checkpoints(trainer, checkpoint, identity, after_epoch, say)
        if config.calibrate:
            _calibrate(method, val, config, device, say)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in NO_MEMORY):
            raise ResourceError(f"not enough memory: {str(error).splitlines()[0]}; use smaller settings") from error
        raise
    return Fitted(method, progress, time.perf_counter() - began, peak_memory(device))


def _calibrate(
    method: TokenphormerMethod, val: Labelled, config: Config, device: torch.device, say: Callable[[str], None]
) -> None:
    """Fit the method's temperature on the validation nodes, the same on all ranks."""
    found = fit_temperature(predict(method, val.nodes, config, device), val.classes)
    method.temperature = float(distributed.text_of_first(repr(found), device))
    if not 1.01 * LOWEST < method.temperature < 0.99 * HIGHEST:
        say(
            f"calibrate: the temperature is {method.temperature:.2f}, the end of what is looked at; the "
            f"{len(val.nodes)} validation nodes tell too little about how sure to be"
        )


def _run_with_checkpoints(
    trainer: Trainer,
    checkpoint: Path,
    identity: dict[str, str],
    after_epoch: Callable[[Trainer], None],
    say: Callable[[str], None],
) -> Progress:
    written, kept = time.monotonic(), trainer.progress.epoch

    def keep(trainer: Trainer) -> None:
        nonlocal written, kept
        due = distributed.is_first() and time.monotonic() - written > CHECKPOINT_SECONDS
        # All stop at the same epoch, and with the same signal.
        number, save = distributed.highest([signals[0] if signals else 0, int(due)], trainer.device)
        if number or save:
            if distributed.is_first():
                save_checkpoint(checkpoint, trainer, identity)
            written, kept = time.monotonic(), trainer.progress.epoch
        if number:
            raise InterruptedTrainingError(f"stopped after epoch {kept}; {checkpoint} holds it", number)

    def both(trainer: Trainer) -> None:
        after_epoch(trainer)
        keep(trainer)

    with put_off_signals(say) as signals:
        try:
            progress = trainer.run(both)
            keep(trainer)  # a signal may have come after the last epoch
        except KeyboardInterrupt as stop:  # the second one: at once
            state = f"{checkpoint} holds epoch {kept}" if kept else "nothing was kept yet"
            raise InterruptedTrainingError(f"stopped in epoch {trainer.progress.epoch + 1}; {state}") from stop
    return progress


def check_trainable(graph: Graph, split: Split, config: Config, say: Callable[[str], None] = lambda _: None) -> None:
    """Raise if a training would be refused for what its graph and split lack; say what people may not expect."""
    split.check(graph)
    if config.calibrate and not len(split.val):
        raise InputError("calibrate: a temperature is fitted on validation nodes, and the split has none")
    missing = np.setdiff1d(np.arange(graph.num_classes), graph.y[split.train])
    if missing.size and len(split.train):
        names = ", ".join(graph.class_names[c] for c in missing[:5])
        say(f"no training node is of class {names}: it cannot be learned, and will never be predicted with reason")
    check_labels(_labelled(graph, split.train), _labelled(graph, split.val), graph.num_classes)
    _check_features(graph, config, say)


def _labelled(graph: Graph, part: NDArray[np.int64]) -> Labelled:
    return Labelled(part, graph.y[part])


def _check_features(graph: Graph, config: Config, say: Callable[[str], None]) -> None:
    x: Any = graph.x
    check_width(graph, graph.num_features + config.laplacian_pe + config.walk_pe)
    if not graph.num_features:
        return
    if graph.stored is not None and x is graph.stored.content[3]:
        highest, spread = graph.stored.feature_max, graph.stored.feature_spread
    else:
        highest, spread = float(abs(x).max()), float((x.max(axis=0) - x.min(axis=0)).max())
    if spread == 0 and graph.num_nodes > 1:
        say("every node has the same features: only the graph's structure can tell nodes apart")
    if highest > 1e6 and not config.normalise_features:
        raise InputError(f"features reach {highest:.3g}; scale them (to about −10 … 10) before training")


def peak_memory(device: torch.device) -> int:
    """The highest use of memory so far, in bytes: on a GPU what torch had allocated, on a CPU the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Where Linux tells it: what `getrusage` says begins with the peak of the process that started this one.
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
