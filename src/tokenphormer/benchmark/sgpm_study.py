"""Pre-training for the studies: node vectors of every kind left in a folder, and a row on how well it went."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tokenphormer.benchmark.rows import Row, origin
from tokenphormer.benchmark.running import OwnGraph, dataset, forget_peak
from tokenphormer.errors import ResourceError
from tokenphormer.files import atomic_path
from tokenphormer.hashing import digest
from tokenphormer.sgpm import PretrainedSGPM, Pretrainer, SGPMSettings
from tokenphormer.sgpm.bigram import bigram_accuracy
from tokenphormer.sgpm.pretrained import VECTOR_KINDS
from tokenphormer.sgpm.pretraining import kept_epoch
from tokenphormer.training.fit import peak_memory

STUDY = "sgpm"


@dataclass(frozen=True)
class Pretraining:
    """An SGPM of one dataset, and where its vectors are kept."""

    dataset: str
    base: SGPMSettings
    folder: Path
    left_out: str = ""
    """A part of the input that it goes without: `tokens`, `positions`, `features` or `centrality`."""
    own: OwnGraph | None = None
    """The graph, if it is no dataset; `dataset` is its name."""

    @property
    def settings(self) -> SGPMSettings:
        """All of its settings."""
        return self.base.replace({f"use_{self.left_out}": False}) if self.left_out else self.base

    @property
    def files(self) -> set[str]:
        """Where its vectors are kept."""
        return {str(self.file(kind)) for kind in VECTOR_KINDS}

    def file(self, kind: str) -> Path:
        """The vectors of a kind, one a node (.npy)."""
        name = f"{self.dataset}-{self.own.hash[:12]}" if self.own else self.dataset
        return self.folder / f"{name}-{self.settings.hash[:12]}-{kind}.npy"

    def token(self, kind: str) -> str:
        """The `sgpm` of a `Job` that reads them."""
        return f"{self.file(kind)}|{kind} {self.settings.hash}"

    @property
    def done(self) -> bool:
        """Whether all vectors are there."""
        return all(self.file(kind).exists() for kind in VECTOR_KINDS)


def pretrain_for_study(job: Pretraining, device: torch.device) -> Row:
    """Pre-train and leave the vectors in the folder; a row with the history and the bigram's share."""
    graph, settings = dataset(job.own or job.dataset), job.settings
    forget_peak(device)
    try:
        trainer = Pretrainer(graph, settings, device)
        began = time.perf_counter()
        trainer.run()
        seconds = time.perf_counter() - began
        done = PretrainedSGPM.of(trainer, "study")
        vectors = {kind: done.vectors(graph, kind, device) for kind in VECTOR_KINDS}
    except torch.OutOfMemoryError as error:
        raise ResourceError(
            f"pre-training on {job.dataset}: {str(error).splitlines()[0]}; use fewer workers"
        ) from error
    job.folder.mkdir(parents=True, exist_ok=True)
    for kind, values in vectors.items():
        with atomic_path(job.file(kind)) as temporary, temporary.open("wb") as file:
            np.save(file, values)
    return {
        "kind": "pretrain",
        "study": STUDY,
        "model": "sgpm",
        "dataset": job.dataset,
        "config": settings.to_dict(),
        "config_hash": settings.hash,
        "seed": settings.seed,
        "history": trainer.progress.history,
        "val_accuracy": kept_epoch(trainer.progress.history)["val_accuracy"],
        "bigram_accuracy": bigram_accuracy(trainer),
        "chance": 1 / graph.num_nodes,
        "tokens": trainer.progress.tokens,
        "seconds": seconds,
        "peak_memory_bytes": peak_memory(device),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "weights": digest((n, t.detach().cpu().numpy()) for n, t in sorted(trainer.model.state_dict().items())),
        "status": "done",
        **({"graph": job.own.hash} if job.own else {}),
        **origin(),
    }
