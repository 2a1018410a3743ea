"""Does the SGPM-token help? The same splits and settings with it and without, and how well pre-training went."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tokenphormer.benchmark.grid import Plan, work_off
from tokenphormer.benchmark.rows import Row, append_row, origin, read_rows, row_key
from tokenphormer.benchmark.running import Job, dataset, values_tuple
from tokenphormer.files import atomic_path
from tokenphormer.hashing import digest
from tokenphormer.sgpm import PretrainedSGPM, Pretrainer, SGPMSettings
from tokenphormer.sgpm.bigram import bigram_accuracy
from tokenphormer.sgpm.pretrained import VECTOR_KINDS
from tokenphormer.training.fit import peak_memory

STUDY = "sgpm"
BASE: dict[str, object] = {
    "num_walks": 30,
    "hidden_channels": 128,
    "dropout": 0.5,
    "warmup_updates": 20,
    "decay_updates": 300,
}
"""Tokenphormer's settings in this study: the same with and without the SGPM-token."""


@dataclass
class Jobs:
    """A list of jobs, worked off in order."""

    jobs: list[Job]
    running: int = 0
    rows: list[Row] = field(default_factory=list)

    def next_job(self) -> Job | None:
        """The next one."""
        return self.jobs.pop(0) if self.jobs else None

    def take(self, row: Row) -> None:
        """Keep what was found."""
        self.rows.append(row)


def pretrain_for_study(name: str, settings: SGPMSettings, folder: Path, device: torch.device) -> Row:
    """Pre-train on a dataset and leave its node vectors in `folder`; a row with the history and the bigram's share."""
    graph = dataset(name)
    torch.set_num_threads(1)
    trainer = Pretrainer(graph, settings, device)
    began = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - began
    done = PretrainedSGPM.of(trainer, "study")
    for kind in VECTOR_KINDS:
        vectors = done.vectors(graph, kind, device)
        with atomic_path(folder / f"{name}-{settings.hash[:12]}-{kind}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, vectors)
    return {
        "kind": "pretrain",
        "study": STUDY,
        "model": "sgpm",
        "dataset": name,
        "config": settings.to_dict(),
        "config_hash": settings.hash,
        "seed": settings.seed,
        "history": trainer.progress.history,
        "bigram_accuracy": bigram_accuracy(trainer),
        "chance": 1 / graph.num_nodes,
        "tokens": trainer.progress.tokens,
        "seconds": seconds,
        "peak_memory_bytes": peak_memory(device),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "weights": digest((n, t.detach().cpu().numpy()) for n, t in sorted(trainer.model.state_dict().items())),
        "status": "done",
        **origin(),
    }


def sgpm_study(
    datasets: tuple[str, ...],
    settings: SGPMSettings,
    out: Path,
    device: torch.device,
    *,
    scratch: Path,
    splits: int = 10,
    workers: int = 1,
    kinds: tuple[str, ...] = VECTOR_KINDS,
    minutes: float = float("inf"),
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Pre-train on every dataset, all at once; then train on `splits` splits without and with each kind of vector."""
    path = out / "rows.jsonl"
    known = read_rows([path], say) if path.exists() else []
    end = time.monotonic() + 60 * minutes
    scratch.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(len(datasets), multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(pretrain_for_study, name, settings, scratch, device) for name in datasets]
        for future in futures:
            row = future.result()
            if row_key(row) not in {row_key(r) for r in known}:
                append_row(path, row)
            last = row["history"][-1]
            say(
                f"{row['dataset']}: {last['val_accuracy']:.4f} of masked nodes right, "
                f"bigram {row['bigram_accuracy']:.4f}, {row['seconds']:.0f} s"
            )
    plan = Plan(("tokenphormer",), datasets, splits)
    jobs = []
    for name in datasets:
        for split in range(splits):
            for kind in ("", *kinds):
                file = f"{scratch / f'{name}-{settings.hash[:12]}-{kind}.npy'}|{kind} {settings.hash}" if kind else ""
                job = Job(
                    "final", "tokenphormer", name, plan.protocol_of(name), split, values_tuple(BASE), split, STUDY,
                    sgpm=file,
                )  # fmt: skip
                jobs.append(job)
    done = {row_key(row) for row in known}
    missing = [job for job in jobs if row_key(job.row()) not in done]
    left = (end - time.monotonic()) / 60
    work_off([Jobs(missing)], path, device, workers=workers, minutes=left, say=say)
