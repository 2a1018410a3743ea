"""`tokenphormer benchmark`: fill a grid of methods × datasets, in slices of any length, several runs at a time.

For each cell: a search of `budget` trials, then the best values on every reported split. This process alone writes
rows, each as soon as its run is over, so nothing is lost or doubled when the work is stopped; the next slice goes on
from the rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from tokenphormer.benchmark import workers as processes
from tokenphormer.benchmark.methods import complete, current_rows, entry, offer
from tokenphormer.benchmark.rows import Row, append_row, config_hash, read_rows
from tokenphormer.benchmark.running import SEARCH_SPLITS, Job, OwnGraph, dataset, run, split_of, values_tuple
from tokenphormer.benchmark.search import (
    AGAIN,
    LUCKY,
    Search,
    best_trial,
    find_optuna,
    luck,
    rows_by_trial,
    values_of,
)
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.files import NO_LOCKS
from tokenphormer.graph.datasets import DATASETS, load_graph, passed_over
from tokenphormer.graph.splits import PROTOCOLS
from tokenphormer.signals import put_off_signals

STUDY = "main"
RENAME = "rename its folder, or save it as dataclasses.replace(graph, name=…)"


def check_dataset(name: str, own: Collection[str] = (), hint: str = "") -> None:
    """Raise unless there is a dataset or a graph of one's own of that name, and offer others."""
    if name not in DATASETS and name not in own:
        raise InputError(f"{name!r} is no dataset; {offer(name, list(dict.fromkeys([*DATASETS, *own])))}{hint}")


def usual_protocol(dataset: str) -> str:
    """geom-gcn where the paper has it, stratified elsewhere."""
    return "geom-gcn" if dataset in DATASETS and DATASETS[dataset].protocol == "geom-gcn" else "stratified"


def find_graphs(
    given: Iterable[str], say: Callable[[str], None] = lambda _: None
) -> tuple[tuple[str, ...], dict[str, OwnGraph]]:
    """The names of datasets and of people's own graphs, which are given as paths; and these graphs by name."""
    found: list[str] = []
    own: dict[str, OwnGraph] = {}
    for each in given:
        if each in DATASETS or not Path(each).exists():
            check_dataset(each, hint=". A graph of your own is a path: to a folder, or an .npz")
            found.append(each)
            if note := passed_over(each):
                say(note)
            continue
        graph = load_graph(Path(each))
        if not re.fullmatch(r"[\w.+-][\w .+-]*", graph.name):  # it stands in tables and in names of files
            raise InputError(f"{each}: its name, {graph.name!r}, is not of letters, digits, spaces and .+-_; {RENAME}")
        if graph.name.lower() in DATASETS:
            raise InputError(f"{each}: its name, {graph.name!r}, is that of a dataset; {RENAME}")
        if graph.name in own:
            raise InputError(f"{each}: its name, {graph.name!r}, is that of {own[graph.name].path} too; {RENAME}")
        if graph.notes:
            say(f"{graph.name}: {'; '.join(graph.notes)}")
        found.append(graph.name)
        own[graph.name] = OwnGraph.of(graph, str(Path(each).resolve()))
    return tuple(found), own


@dataclass(frozen=True)
class Plan:
    """What the grid is to hold."""

    models: tuple[str, ...]
    datasets: tuple[str, ...]
    splits: int = 10
    budget: int = 10
    """Trials of each search."""
    search_splits: int = 1
    """Splits on whose validation nodes each trial is judged; the mean counts. Lucky searches go on to `AGAIN`."""
    protocol: str = "auto"
    """`auto`: geom-gcn where the paper has it, what came with a graph of one's own, stratified elsewhere."""
    judged: str = ""
    """How trials are judged, as in `Job`: empty or `held-out`."""
    own: Mapping[str, OwnGraph] = field(default_factory=dict)
    """Those of the datasets that are people's own graphs (`find_graphs`)."""

    def __post_init__(self) -> None:
        for model in self.models:
            entry(model)
        for name in self.datasets:
            check_dataset(name, self.own)
        if self.protocol not in ("auto", *PROTOCOLS):
            raise InputError(f"--protocol {self.protocol}: expected auto or one of {', '.join(PROTOCOLS)}")
        if not 1 <= self.splits <= SEARCH_SPLITS:
            raise InputError(f"--splits {self.splits}: expected 1 to {SEARCH_SPLITS}; those after are for searches")
        if self.budget < 1:
            raise InputError(f"--budget {self.budget}: expected at least 1")
        if not 1 <= self.search_splits <= SEARCH_SPLITS:
            raise InputError(f"--search-splits {self.search_splits}: expected 1 to {SEARCH_SPLITS}")

    def protocol_of(self, dataset: str) -> str:
        """The split protocol of a dataset."""
        if self.protocol != "auto":
            return self.protocol
        return self.own[dataset].protocol if dataset in self.own else usual_protocol(dataset)

    def cells(self) -> Iterator[tuple[str, str]]:
        """Every (model, dataset), dataset by dataset."""
        for name in self.datasets:
            for model in self.models:
                yield model, name


class Cell:
    """What is done and what is next for one method on one dataset."""

    def __init__(self, model: str, dataset: str, plan: Plan, rows: list[Row]) -> None:
        self.model, self.dataset, self.plan = model, dataset, plan
        self.protocol = plan.protocol_of(dataset)
        here = (STUDY, model, dataset, self.protocol)
        mine = [r for r in rows if (r["study"], r["model"], r["dataset"], r.get("protocol")) == here]
        everything, mine = len(mine), current_rows(mine)
        self.outdated = everything - len(mine)
        self.trials = [r for r in mine if r["kind"] == "trial" and r.get("judged", "") == plan.judged]
        self.finals = [r for r in mine if r["kind"] == "final"]
        self.search = Search(model, dataset, self.trials, plan.search_splits)
        self.claimed: set[tuple[str, int, int]] = set()

    def next_job(self) -> Job | None:
        """The next run, or None if there is nothing to do (now)."""
        job = self._search_and_finals(self.plan.search_splits)
        if job is None and self.plan.search_splits < AGAIN and self._was_lucky():
            return self._search_and_finals(AGAIN)
        return job

    def _search_and_finals(self, search_splits: int) -> Job | None:
        """The next run of the trials, each on so many splits, and then of what was best in them."""
        splits = range(SEARCH_SPLITS, SEARCH_SPLITS + search_splits)
        tried = rows_by_trial(self.trials)
        missing = [(t, split) for t in range(self.plan.budget) for split in splits if split not in tried.get(t, {})]
        for trial, split in missing:
            if ("trial", trial, split) not in self.claimed:
                if trial not in tried and not self.search.ready(trial):
                    break
                known = next(iter(tried.get(trial, {}).values()), None)
                values = self.search.ask(trial) if known is None else values_of(known)
                return self._claim("trial", trial, split, values)
        chosen = None if missing else best_trial(self.trials, self.plan.budget, search_splits)
        if chosen is None:
            return None
        done = {int(row["split"]) for row in self._finals_of(chosen)}
        for split in range(self.plan.splits):
            if split not in done and ("final", int(chosen["trial"]), split) not in self.claimed:
                return self._claim("final", int(chosen["trial"]), split, values_of(chosen))
        return None

    def _finals_of(self, chosen: Row) -> list[Row]:
        wanted = config_hash(complete(entry(self.model), values_of(chosen)))
        return [row for row in self.finals if row["config_hash"] == wanted]

    def _was_lucky(self) -> bool:
        """Whether the final runs are over and far below what the search saw: all its trials are judged again then."""
        chosen = best_trial(self.trials, self.plan.budget, self.plan.search_splits)
        finals = self._finals_of(chosen) if chosen else []
        if not set(range(self.plan.splits)) <= {int(row["split"]) for row in finals}:
            return False
        seen = luck(self.trials, finals, self.plan.budget, self.plan.search_splits)
        return seen is not None and seen > LUCKY

    def _claim(self, kind: str, trial: int, split: int, values: dict[str, Any]) -> Job:
        self.claimed.add((kind, trial, split))
        # A seed a split, in searches too: settings that train from one start alone are not to win.
        seed, number = (split - SEARCH_SPLITS, trial) if kind == "trial" else (split, -1)
        about = (kind, self.model, self.dataset, self.protocol, split, values_tuple(values), seed, STUDY, number)
        judged = self.plan.judged if kind == "trial" else ""
        return Job(*about, judged=judged, own=self.plan.own.get(self.dataset))

    def take(self, row: Row) -> None:
        """A run of this cell is over."""
        if row["kind"] == "trial":
            self.trials.append(row)
            self.search.tell(row)
        else:
            self.finals.append(row)


def check_data(plan: Plan, numbers: Sequence[int]) -> None:
    """Raise if a dataset cannot be split as planned: what the data lacks is said before anything runs."""
    for name in plan.datasets:
        graph, protocol = dataset(plan.own.get(name, name)), plan.protocol_of(name)
        if graph.num_classes < 2:
            raise InputError(f"{name}: expected nodes of at least 2 classes, found {graph.num_classes}; label more")
        if protocol == "given" and 1 < len(graph.splits) < plan.splits:
            came = f"{name} came with {len(graph.splits)} splits"
            raise InputError(f"--splits {plan.splits}: {came}; say --splits {len(graph.splits)} or another --protocol")
        for number in numbers:
            try:
                train, val, test = split_of(graph, protocol, number).sizes
            except InputError as error:
                raise InputError(f"{name}, {protocol} split {number}: {error}") from error
            least = 2 if plan.judged and number >= SEARCH_SPLITS else 1
            if not (train and val >= least and test):
                raise InputError(
                    f"{name}, {protocol} split {number}: {train} nodes for training, {val} for validation and {test} "
                    "for test; expected some for each: label more nodes, or take another --protocol"
                )


def check_rows(plan: Plan, rows: Iterable[Row]) -> None:
    """Raise if there are rows of another graph that has the name of one of the plan's own graphs."""
    for row in rows:
        name = row["dataset"]
        if name in plan.own and row.get("graph") != plan.own[name].hash:
            raise InputError(
                f"{plan.own[name].path}: there are rows of another graph called {name!r}, or of this one before it or "
                f"its splits were changed; give another --out, leave out --merge, or {RENAME}"
            )


def fill(
    plan: Plan,
    out: Path,
    device: torch.device,
    *,
    workers: int = 1,
    minutes: float = float("inf"),
    merge: tuple[Path, ...] = (),
    pool: Executor | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run what is missing until the grid is full or the time is up; how many runs were added to `out`/rows.jsonl."""
    processes.check_workers(workers)
    find_optuna()  # before a file is made
    check_data(plan, (*range(plan.splits), *range(SEARCH_SPLITS, SEARCH_SPLITS + max(plan.search_splits, AGAIN))))
    path, elsewhere = out / "rows.jsonl", read_rows(merge, say)
    check_rows(plan, elsewhere)
    with only_writer(path):
        rows = [*read_rows([path], say), *elsewhere]
        check_rows(plan, rows)
        cells = [Cell(model, name, plan, rows) for model, name in plan.cells()]
        for cell in cells:
            if cell.outdated:
                say(f"{cell.dataset} {cell.model}: {cell.outdated} rows are of other defaults; they do not count")
        return work_off(cells, path, device, workers=workers, minutes=minutes, pool=pool, say=say)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Two processes that fill one file would do the same runs twice: the second is refused, where the system can."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror or error}") from error
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            pass
        except BlockingIOError:
            raise InputError(f"{path}: another process is filling it; give each its own --out and merge") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise ResourceError(f"cannot write {path}: {error.strerror or error}") from error
        yield


class Source(Protocol):
    """Where jobs come from."""

    def next_job(self) -> Any:
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
    do: Callable[[Any, torch.device], Row] | None = None,
    pool: Executor | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run the jobs of some sources, `workers` at a time, until there are none or the time is up; how many were run.

    In a worker of `pool`, `do` makes a row of a job; without it jobs are `Job`s, and `run` does. After Ctrl-C, SIGTERM
    or an error no run is begun, and the rows of those under way are still written.
    """
    end, added = time.monotonic() + 60 * minutes, 0
    failure: Exception | None = None
    with put_off_signals(say, "run") as signals, nullcontext(pool) if pool else processes.Workers(workers) as pool:
        running: dict[Future[Row], Source] = {}
        while True:
            for source in sources:
                while len(running) < workers and not (failure or signals) and time.monotonic() < end:
                    job = source.next_job()
                    if job is None:
                        break
                    try:
                        running[pool.submit(do or run, job, device)] = source
                    except BrokenProcessPool as error:
                        failure = error
                        break
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                source = running.pop(future)
                if (fault := future.exception()) is None:
                    row = future.result()
                    append_row(path, row)
                    source.take(row)
                    added += 1
                    say(_line(row))
                else:
                    assert isinstance(fault, Exception)
                    failure = failure or fault
    kept = f"{added} runs were added to {path}; the same command goes on"
    if isinstance(failure, BrokenProcessPool):
        raise ResourceError(f"a worker died (out of memory?); {kept}") from failure
    if failure:
        raise failure
    if signals:
        raise InterruptedTrainingError(f"stopped; {kept}", signals[0])
    return added


def _line(row: Row) -> str:
    found = f"{row['val_accuracy']:.4f} validation" if row["status"] == "done" else f"{row['status']}: {row['reason']}"
    names = {"trial": f"trial {row.get('trial')}", "pretrain": "pre-training"}
    which = names.get(row["kind"], f"split {row.get('split')}")
    study = "" if row["study"] == STUDY or row["kind"] == "pretrain" else f"{row['study']}, "
    return f"{row['dataset']} {row['model']} {study}{which}: {found} {row.get('seconds', 0):.1f} s"
