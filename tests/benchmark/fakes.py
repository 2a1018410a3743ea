"""What the tests of the benchmark share: rows out of nothing, runs that take no time, and workers in this process."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import torch

from tokenphormer.benchmark import grid, workers
from tokenphormer.benchmark.methods import complete, entry
from tokenphormer.benchmark.rows import FORMAT, Row, config_hash
from tokenphormer.benchmark.running import Job

CPU = torch.device("cpu")


def make_row(**changes: Any) -> Row:
    """A whole row of the main study, with the method's defaults as its settings unless `values` says more."""
    values = changes.pop("values", {})
    model = changes.get("model", "mlp")
    config = complete(entry(model), values)
    row: Row = {
        "format": FORMAT,
        "kind": "final",
        "model": model,
        "dataset": "cora",
        "protocol": "stratified",
        "split": 0,
        "seed": 0,
        "study": "main",
        "trial": -1,
        "config": config,
        "config_hash": config_hash(config),
        "status": "done",
        "val_accuracy": 0.5,
        "val_loss": 1.0,
        "seconds": 2.0,
        "preprocessing_seconds": 0.5,
        "peak_memory_bytes": 3_000_000,
        "parameters": 7,
        "time": 1.0,
    }
    if changes.get("kind", "final") == "final":
        row["test_accuracy"] = 0.5
    row |= {"split_hash": f"hash of {changes.get('split', 0)}"} | changes
    return row


def trial(number: int, **changes: Any) -> Row:
    return make_row(**({"kind": "trial", "split": 100, "trial": number} | changes))


def fake_run(job: Job, device: torch.device) -> Row:
    """A row whose accuracy is a hash of what was run, so that the same run gives the same row.

    They lie within two points, so no search is lucky.
    """
    about = job.row()
    key = f"{job.model} {job.dataset} {job.split} {about['config_hash']}"
    accuracy = 0.5 + 0.02 * int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") / 2**32
    row = make_row(model=job.model) | about | {"val_accuracy": accuracy, "split_hash": f"hash of {job.split}"}
    if job.kind == "trial":
        del row["test_accuracy"]
    return row


class Inline:
    """An executor that does the work when it is given it, or, with a generator, when somebody waits, in any order."""

    def __init__(self, order: random.Random | None = None) -> None:
        self.order = order
        self.open: list[tuple[Future[Row], Any, tuple[Any, ...]]] = []
        self.most = 0
        """The most runs that were under way at a time."""

    def __enter__(self) -> Inline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def submit(self, function: Any, *arguments: Any) -> Future[Row]:
        future: Future[Row] = Future()
        self.open.append((future, function, arguments))
        self.most = max(self.most, len(self.open))
        if self.order is None:
            self.work()
        return future

    def work(self) -> None:
        chosen = self.order.randrange(len(self.open)) if self.order else 0
        future, function, arguments = self.open.pop(chosen)
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)

    def wait(self, running: Any, return_when: str) -> tuple[set[Future[Row]], set[Future[Row]]]:
        """In place of `concurrent.futures.wait`."""
        if self.open:
            self.work()
        done = {future for future in running if future.done()}
        return done, set(running) - done


def use(monkeypatch: Any, pool: Inline, run: Any = fake_run) -> Inline:
    """Let the grid work in this process."""
    monkeypatch.setattr(workers, "Workers", lambda count: pool)
    monkeypatch.setattr(grid, "wait", pool.wait)
    monkeypatch.setattr(grid, "run", run)
    return pool
