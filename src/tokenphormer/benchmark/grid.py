"""`tokenphormer benchmark`: fill a grid of methods × datasets, in slices of any length, several runs at a time.

For each cell: a search of `budget` trials, then the best values on every reported split. This process alone writes
rows, each as soon as its run is over, so nothing is lost or doubled when the work is stopped; the next slice goes on
from the rows.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from tokenphormer.benchmark.methods import entry
from tokenphormer.benchmark.rows import Row, append_row, config_hash, read_rows
from tokenphormer.benchmark.running import SEARCH_SPLITS, Job, run, values_tuple
from tokenphormer.benchmark.search import Search, best_values
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph.datasets import DATASETS

STUDY = "main"


@dataclass(frozen=True)
class Plan:
    """What the grid is to hold."""

    models: tuple[str, ...]
    datasets: tuple[str, ...]
    splits: int = 10
    budget: int = 10
    """Trials of each search."""
    protocol: str = "auto"
    """`auto`: geom-gcn where the paper has it, stratified elsewhere."""

    def __post_init__(self) -> None:
        for model in self.models:
            entry(model)
        for name in self.datasets:
            if name not in DATASETS:
                import difflib

                near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.4)
                raise InputError(f"{name!r} is no dataset; nearest: {', '.join(near or DATASETS)}")
        for name, value in (("splits", self.splits), ("budget", self.budget)):
            if value < 1:
                raise InputError(f"--{name} {value}: expected at least 1")

    def protocol_of(self, dataset: str) -> str:
        """The split protocol of a dataset."""
        if self.protocol != "auto":
            return self.protocol
        return "geom-gcn" if DATASETS[dataset].protocol == "geom-gcn" else "stratified"

    def cells(self) -> Iterator[tuple[str, str]]:
        """Every (model, dataset), dataset by dataset."""
        for dataset in self.datasets:
            for model in self.models:
                yield model, dataset


class Cell:
    """What is done and what is next for one method on one dataset."""

    def __init__(self, model: str, dataset: str, plan: Plan, rows: list[Row]) -> None:
        self.model, self.dataset, self.plan = model, dataset, plan
        self.protocol = plan.protocol_of(dataset)
        mine = [r for r in rows if (r["model"], r["dataset"], r["protocol"]) == (model, dataset, self.protocol)]
        self.trials = [r for r in mine if r["kind"] == "trial" and r["study"] == STUDY]
        self.finals = [r for r in mine if r["kind"] == "final" and r["study"] == STUDY]
        self.search = Search(model, dataset, self.trials)
        self.running = 0
        self.claimed: set[int] = set()

    @property
    def tried(self) -> set[int]:
        """Numbers of the trials that are over."""
        return {int(row["trial"]) for row in self.trials}

    def next_job(self) -> Job | None:
        """The next run, or None if there is nothing to do (now)."""
        missing = [trial for trial in range(self.plan.budget) if trial not in self.tried | self.claimed]
        if missing:
            if self.running:  # a search learns from each trial before the next
                return None
            trial = missing[0]
            self.claimed.add(trial)
            asked = values_tuple(self.search.ask(trial))
            return Job("trial", self.model, self.dataset, self.protocol, SEARCH_SPLITS, asked, 0, STUDY, trial)
        if len(self.tried) < self.plan.budget:
            return None
        values = best_values(self.model, self.trials, self.plan.budget)
        if values is None:
            return None
        for split in range(self.plan.splits):
            job = Job("final", self.model, self.dataset, self.protocol, split, values_tuple(values), split, STUDY)
            wanted = config_hash(job.row()["config"])
            done = {int(row["split"]) for row in self.finals if row["config_hash"] == wanted}
            if split not in done and SEARCH_SPLITS + split + 1 not in self.claimed:
                self.claimed.add(SEARCH_SPLITS + split + 1)
                return job
        return None

    def take(self, row: Row) -> None:
        """A run of this cell is over."""
        if row["kind"] == "trial":
            self.trials.append(row)
            self.search.tell(row)
        else:
            self.finals.append(row)


def fill(
    plan: Plan,
    out: Path,
    device: torch.device,
    *,
    workers: int = 1,
    minutes: float = float("inf"),
    merge: tuple[Path, ...] = (),
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run what is missing until the grid is full or the time is up; how many runs were added to `out`/rows.jsonl."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    rows = read_rows([p for p in (path, *merge) if p.exists()], say)
    cells = [Cell(model, dataset, plan, rows) for model, dataset in plan.cells()]
    return work_off(cells, path, device, workers=workers, minutes=minutes, say=say)


class Source(Protocol):
    """Where jobs come from."""

    running: int
    """Jobs under way."""

    def next_job(self) -> Job | None:
        """The next run, or None if there is nothing to do (now)."""

    def take(self, row: Row) -> None:
        """A run is over."""


def work_off(
    sources: Sequence[Source],
    path: Path,
    device: torch.device,
    *,
    workers: int = 1,
    minutes: float = float("inf"),
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run the jobs of some sources, `workers` at a time, until there are none or the time is up; how many were run."""
    end, added = time.monotonic() + 60 * minutes, 0
    with _pool(workers) as pool:
        running: dict[Future[Row], Source] = {}
        while True:
            for source in sources:
                while len(running) < workers and time.monotonic() < end and (job := source.next_job()) is not None:
                    source.running += 1
                    running[pool.submit(run, job, device)] = source
            if not running:
                return added
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                source = running.pop(future)
                try:
                    row = future.result()
                except BrokenProcessPool as error:
                    raise ResourceError(
                        f"a worker died (out of memory?) after {added} runs; their rows are in {path}, run it again"
                    ) from error
                append_row(path, row)
                source.running -= 1
                source.take(row)
                added += 1
                say(_line(row))


def _line(row: Row) -> str:
    found = f"{row['val_accuracy']:.4f} validation" if row["status"] == "done" else f"{row['status']}: {row['reason']}"
    which = f"trial {row['trial']}" if row["kind"] == "trial" else f"split {row['split']}"
    return f"{row['dataset']} {row['model']} {which}: {found} {row.get('seconds', 0):.1f} s"


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_quiet)


def _quiet() -> None:
    """Several runs share the machine: each takes one core."""
    if (os.cpu_count() or 1) > 2:
        torch.set_num_threads(1)
