"""The grid: stopped anywhere and gone on with, it ends with the rows of one go; none lost, none doubled."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmark.fakes import CPU, Inline, fake_run, make_row, trial, use
from tests.test_cli import Cli, cli
from tokenphormer.benchmark import grid
from tokenphormer.benchmark.grid import Plan, fill, only_writer, usual_protocol
from tokenphormer.benchmark.methods import FIRST_TRIALS
from tokenphormer.benchmark.rows import Row, append_row, read_rows, row_key
from tokenphormer.benchmark.running import SEARCH_SPLITS, Job
from tokenphormer.benchmark.search import AGAIN, Search, best_trial, trials_by_number
from tokenphormer.benchmark.tables import cell_results, notes
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.files import NO_LOCKS
from tokenphormer.graph import Graph

__all__ = ["cli"]  # the fixture

PLAN = Plan(("mlp", "gcn", "label_propagation"), ("cora", "cornell"), splits=3, budget=4)
WHOLE = 6 * (4 + 3)
"""Rows of the plan."""


class KilledError(BaseException):
    """As good as a kill: nothing in the package handles it."""


def rows_of(out: Path) -> list[Row]:
    return [json.loads(line) for line in (out / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def in_one_go(monkeypatch: pytest.MonkeyPatch, out: Path, plan: Plan = PLAN) -> list[Row]:
    use(monkeypatch, Inline())
    fill(plan, out, CPU)
    return rows_of(out)


def same(rows: list[Row]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


# ---------------------------------------------------------------- what is run


def test_a_search_and_then_the_best_on_every_split(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = in_one_go(monkeypatch, tmp_path)
    assert len(rows) == WHOLE
    assert len({row_key(row) for row in rows}) == WHOLE
    for model, dataset in PLAN.cells():
        mine = [row for row in rows if (row["model"], row["dataset"]) == (model, dataset)]
        trials, finals = mine[:4], mine[4:]
        assert [(row["kind"], row["trial"], row["split"]) for row in trials] == [("trial", n, 100) for n in range(4)]
        assert [(row["kind"], row["split"], row["seed"]) for row in finals] == [("final", n, n) for n in range(3)]
        best = max(trials, key=lambda row: row["val_accuracy"])
        assert {row["config_hash"] for row in finals} == {best["config_hash"]}
        assert {row["protocol"] for row in mine} == {"geom-gcn" if dataset == "cornell" else "stratified"}
        assert {row["study"] for row in mine} == {"main"}


@pytest.mark.parametrize("workers", [1, 4])
def test_many_workers_find_the_same(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int
) -> None:
    expected = in_one_go(monkeypatch, tmp_path / "one")
    pool = use(monkeypatch, Inline(random.Random(1)))
    assert fill(PLAN, tmp_path / "many", CPU, workers=workers) == WHOLE
    assert same(rows_of(tmp_path / "many")) == same(expected)
    assert pool.most == workers


def test_final_runs_wait_for_the_whole_budget(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Inline(random.Random(2)))
    fill(PLAN, tmp_path, CPU, workers=5)
    tried: dict[tuple[str, str], list[int]] = {}
    for row in rows_of(tmp_path):
        cell = tried.setdefault((row["model"], row["dataset"]), [])
        if row["kind"] == "trial":
            cell.append(row["trial"])
        else:
            assert sorted(cell) == [0, 1, 2, 3]


def test_a_trial_out_of_turn_does_not_start_the_finals(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number in (0, 7, 8):  # three rows, but not the first three
        append_row(tmp_path / "rows.jsonl", trial(number, val_accuracy=0.0))
    use(monkeypatch, Inline(random.Random(0)))
    fill(Plan(("mlp",), ("cora",), splits=1, budget=3), tmp_path, CPU, workers=3)
    trials = [row["trial"] for row in rows_of(tmp_path)]
    assert (trials[:3], sorted(trials[3:5]), trials[5:]) == ([0, 7, 8], [1, 2], [-1])


def test_stopped_anywhere_it_goes_on_to_the_same_rows(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = same(in_one_go(monkeypatch, tmp_path / "one"))
    rng = random.Random(5)
    for attempt in range(4):
        out, killed = tmp_path / f"stopped-{attempt}", 0
        while True:
            pool = use(monkeypatch, Inline(rng))
            left = rng.randrange(1, 12)

            def wait(*given: Any, pool: Inline = pool, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise KilledError
                return pool.wait(*given, **named)

            monkeypatch.setattr(grid, "wait", wait)
            try:
                fill(PLAN, out, CPU, workers=3)
                break
            except KilledError:
                killed += 1
                with (out / "rows.jsonl").open("ab") as file:  # and the write of a row was cut off
                    file.write(b'{"kind": "tri')
        assert killed > 2
        lines = (out / "rows.jsonl").read_text(encoding="utf-8").splitlines()
        assert lines.count('{"kind": "tri') == killed
        assert same([json.loads(line) for line in lines if line != '{"kind": "tri']) == expected


def test_a_full_grid_runs_nothing(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_one_go(monkeypatch, tmp_path)
    before = (tmp_path / "rows.jsonl").read_bytes()

    def never(job: Job, device: torch.device) -> Row:
        raise AssertionError(job)

    use(monkeypatch, Inline(), never)
    assert fill(PLAN, tmp_path, CPU) == 0
    assert (tmp_path / "rows.jsonl").read_bytes() == before


def test_more_splits_and_a_larger_budget_add_what_is_missing(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small, large = (Plan(("mlp",), ("cora",), splits, budget) for splits, budget in ((2, 3), (4, 9)))
    first = in_one_go(monkeypatch, tmp_path / "grown", small)
    grown = in_one_go(monkeypatch, tmp_path / "grown", large)
    assert grown[: len(first)] == first
    whole = in_one_go(monkeypatch, tmp_path / "whole", large)
    assert set(same(whole)) <= set(same(grown))
    assert len({row_key(row) for row in grown}) == len(grown)


def test_rows_from_elsewhere_are_not_run_again(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = in_one_go(monkeypatch, tmp_path / "one")
    half = Plan(PLAN.models, ("cora",), splits=3, budget=4)
    assert len(in_one_go(monkeypatch, tmp_path / "there", half)) == WHOLE / 2
    strange = {"kind": "pretrain", "study": "sgpm", "model": "sgpm", "dataset": "cora", "status": "done", "format": 1}
    append_row(tmp_path / "there" / "other.jsonl", strange)
    use(monkeypatch, Inline())
    assert fill(PLAN, tmp_path / "here", CPU, merge=(tmp_path / "there",)) == WHOLE / 2
    main = [row for row in read_rows([tmp_path / "here", tmp_path / "there"]) if row["study"] == "main"]
    assert same(main) == same(expected)


def test_what_did_not_run_is_over(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def too_large(job: Job, device: torch.device) -> Row:
        row = fake_run(job, device)
        return row | {"status": "did not run", "reason": "needs 99 GiB"} if job.model == "gcn" else row

    said: list[str] = []
    use(monkeypatch, Inline(), too_large)
    fill(Plan(("gcn", "mlp"), ("cora",), 2, 3), tmp_path, CPU, say=said.append)
    assert [(row["model"], row["kind"]) for row in rows_of(tmp_path)] == [("gcn", "trial")] * 3 + [
        *[("mlp", "trial")] * 3,
        *[("mlp", "final")] * 2,
    ]
    assert said[0].startswith("cora gcn trial 0: did not run: needs 99 GiB")
    assert fill(Plan(("gcn", "mlp"), ("cora",), 2, 3), tmp_path, CPU) == 0


def test_a_final_that_did_not_run_is_not_tried_for_ever(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def sometimes(job: Job, device: torch.device) -> Row:
        row = fake_run(job, device)
        return row | {"status": "did not run", "reason": "x"} if job.kind == "final" and job.split == 1 else row

    use(monkeypatch, Inline(), sometimes)
    plan = Plan(("mlp",), ("cora",), 3, 1)
    assert fill(plan, tmp_path, CPU) == 4
    assert fill(plan, tmp_path, CPU) == 0


def test_rows_of_other_defaults_do_not_count_and_this_is_said(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = trial(0, val_accuracy=1.0)
    old["config"] = {key: value for key, value in old["config"].items() if key != "patience"}
    append_row(tmp_path / "rows.jsonl", old | {"config_hash": "0" * 64})
    said: list[str] = []
    use(monkeypatch, Inline())
    assert fill(Plan(("mlp",), ("cora",), 1, 2), tmp_path, CPU, say=said.append) == 3
    assert said[0] == "cora mlp: 1 rows are of other defaults; they do not count"


def test_rows_of_other_studies_and_protocols_do_not_count(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    append_row(tmp_path / "rows.jsonl", trial(0, study="ablation"))
    append_row(tmp_path / "rows.jsonl", trial(0, protocol="two-stage"))
    use(monkeypatch, Inline())
    assert fill(Plan(("mlp",), ("cora",), 1, 1), tmp_path, CPU) == 2


# ---------------------------------------------------------------- the end of a slice


def test_after_the_time_no_run_begins(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()

    def slow(job: Job, device: torch.device) -> Row:
        clock.now += 25
        return fake_run(job, device)

    monkeypatch.setattr(grid, "time", clock)
    use(monkeypatch, Inline(), slow)
    assert fill(PLAN, tmp_path, CPU, minutes=1) == 3  # begun at 0, 25 and 50 s; the last is waited for
    assert len(rows_of(tmp_path)) == 3
    assert fill(PLAN, tmp_path, CPU, minutes=0) == 0
    assert fill(PLAN, tmp_path, CPU) == WHOLE - 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_runs_end_and_keeps_their_rows(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    def stopping(job: Job, device: torch.device) -> Row:
        if job.trial == 2:
            signal.raise_signal(number)
        return fake_run(job, device)

    before = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler)  # where a test run in the background has it ignored
    said: list[str] = []
    try:
        use(monkeypatch, Inline(), stopping)
        with pytest.raises(InterruptedTrainingError, match=r"stopped; 3 runs were added to .*rows\.jsonl") as stop:
            fill(PLAN, tmp_path, CPU, say=said.append)
    finally:
        signal.signal(number, before)
    assert stop.value.signal == number
    assert "stopping at the end of this run; once more to stop at once" in said
    assert len(rows_of(tmp_path)) == 3


def test_a_worker_that_dies_is_an_error_and_the_other_rows_are_kept(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dies(job: Job, device: torch.device) -> Row:
        if (job.model, job.trial) == ("gcn", 1):
            raise BrokenProcessPool("A process in the process pool was terminated abruptly")
        return fake_run(job, device)

    use(monkeypatch, Inline(random.Random(3)), dies)
    with pytest.raises(ResourceError, match=r"a worker died \(out of memory\?\); \d+ runs were added to .*; the same"):
        fill(PLAN, tmp_path, CPU, workers=4)
    kept = len(rows_of(tmp_path))
    assert kept > 0
    use(monkeypatch, Inline())
    assert fill(PLAN, tmp_path, CPU) == WHOLE - kept


def test_a_pool_that_broke_while_idle_is_the_same_error(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Broken(Inline):
        def submit(self, function: Any, *arguments: Any) -> Future[Row]:
            raise BrokenProcessPool("broken")

    use(monkeypatch, Broken())
    with pytest.raises(ResourceError, match="a worker died"):
        fill(PLAN, tmp_path, CPU)


def test_an_error_of_a_method_comes_out_after_the_rows_under_way(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wrong(job: Job, device: torch.device) -> Row:
        if job.model == "mlp":
            raise ZeroDivisionError("mlp")
        return fake_run(job, device)

    pool = use(monkeypatch, Inline(), wrong)
    with pytest.raises(ZeroDivisionError, match="mlp"):
        fill(PLAN, tmp_path / "alone", CPU)
    assert rows_of(tmp_path / "alone") == []

    pool = use(monkeypatch, Inline(random.Random(0)), wrong)
    pool.order = None
    with pytest.raises(ZeroDivisionError):
        fill(PLAN, tmp_path / "many", CPU, workers=12)
    assert {row["model"] for row in rows_of(tmp_path / "many")} == {"gcn", "label_propagation"}


def test_two_cannot_fill_one_file(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, Inline())
    with only_writer(tmp_path / "rows.jsonl"):
        with pytest.raises(InputError, match=r"rows\.jsonl: another process is filling it; give each its own --out"):
            fill(PLAN, tmp_path, CPU)
        assert rows_of(tmp_path) == []
    assert fill(PLAN, tmp_path, CPU) == WHOLE


@pytest.mark.parametrize("method", ["mkdir", "open"])
def test_a_folder_that_cannot_be_written(method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, method, refuse)
    message = r"^cannot write .*rows\.jsonl: Permission denied$"
    with pytest.raises(ResourceError, match=message), only_writer(tmp_path / "rows.jsonl"):
        pass


def test_an_error_of_the_work_is_not_one_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), only_writer(tmp_path / "rows.jsonl"):
        raise FileNotFoundError("something else")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_disks_without_locks(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(number, "what the system says")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = tmp_path / "rows.jsonl"
    if number in NO_LOCKS:
        with only_writer(path):
            assert path.exists()
    else:
        with pytest.raises(ResourceError, match=r"cannot write .*rows\.jsonl: what the system says"), only_writer(path):
            pass


def test_trials_of_two_machines_that_differ_are_gone_on_with_by_the_earlier_ones(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each has tried other values on the first split; then there is a second one."""
    use(monkeypatch, Inline())
    plan = dataclasses.replace(PLAN, models=("gcn",), datasets=("cora",), budget=3, splits=1)
    fill(plan, tmp_path / "a", CPU)
    monkeypatch.setattr(Search, "ask", lambda self, trial: {"hidden_channels": 7 + trial} if trial else {})
    fill(plan, tmp_path / "b", CPU)
    ours, theirs = ([row for row in rows_of(tmp_path / name) if row["kind"] == "trial"] for name in "ab")
    assert [a["config_hash"] == b["config_hash"] for a, b in zip(ours, theirs, strict=True)] == [True, False, False]
    for first in ("a", "b"):
        both = tmp_path / f"both, {first} first"
        shutil.copytree(tmp_path / first, both)
        fill(dataclasses.replace(plan, search_splits=2), both, CPU, merge=(tmp_path / ("b" if first == "a" else "a"),))
        rows = [*rows_of(both), *rows_of(tmp_path / ("b" if first == "a" else "a"))]
        trials = [row for row in rows if row["kind"] == "trial"]
        assert sorted(trials_by_number(trials, 2)) == [0, 1, 2]
        assert fill(dataclasses.replace(plan, search_splits=2), both, CPU, merge=(tmp_path / "a", tmp_path / "b")) == 0


def test_trials_whose_values_are_known_do_not_wait_for_one_another(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was drawn for one search split is run on others side by side; the rows are those of one after the other."""
    use(monkeypatch, Inline())
    plan = dataclasses.replace(PLAN, models=("gcn",), datasets=("cora",), budget=5, splits=1)
    fill(plan, tmp_path / "first", CPU)
    found = {}
    for workers in (1, 8):
        pool = use(monkeypatch, Inline(random.Random(0)))
        shutil.copytree(tmp_path / "first", tmp_path / str(workers))
        fill(dataclasses.replace(plan, search_splits=3), tmp_path / str(workers), CPU, workers=workers)
        found[workers] = same(rows_of(tmp_path / str(workers)))
        assert pool.most == workers
    assert found[1] == found[8]


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"models": ("gnc",)}, "'gnc' is no method of the benchmark; nearest: gcn"),
        ({"datasets": ("coraa",)}, "'coraa' is no dataset; nearest: cora"),
        ({"datasets": ("zzz",)}, "'zzz' is no dataset; there are: cora, citeseer, pubmed"),
        ({"splits": 0}, "--splits 0: expected 1 to 100; those after are for searches"),
        ({"splits": 101}, "--splits 101: expected 1 to 100"),
        ({"budget": 0}, "--budget 0: expected at least 1"),
        ({"protocol": "random"}, "--protocol random: expected auto or one of stratified, two-stage"),
    ],
)
def test_bad_plans(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Plan(**({"models": ("mlp",), "datasets": ("cora",)} | given))


def test_protocols() -> None:
    assert {name: usual_protocol(name) for name in ("cora", "dblp", "cornell", "debian")} == {
        "cora": "stratified",
        "dblp": "stratified",
        "cornell": "geom-gcn",
        "debian": "stratified",
    }
    assert Plan((), ("cornell",), protocol="two-stage").protocol_of("cornell") == "two-stage"


def test_what_the_data_lacks_is_said_before_anything_runs(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Inline())
    with pytest.raises(InputError, match="has geom-gcn splits 0 to 9, not 10"):
        fill(Plan(("mlp",), ("cornell",), splits=11), tmp_path / "out", CPU)
    with pytest.raises(InputError, match="--workers 0: expected at least 1"):
        fill(PLAN, tmp_path / "out", CPU, workers=0)
    with pytest.raises(InputError, match="nowhere: no such file or folder of rows"):
        fill(PLAN, tmp_path / "out", CPU, merge=(tmp_path / "nowhere",))
    assert not (tmp_path / "out").exists()


def test_the_search_split_is_never_reported() -> None:
    assert Plan(("mlp",), ("cora",), splits=100).splits <= SEARCH_SPLITS


# ---------------------------------------------------------------- real workers


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_killed_and_gone_on_with_it_equals_one_go_without_workers(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ["benchmark", "--models", "label_propagation", "--datasets", "debian", "--splits", "2", "--budget", "3"]
    command += ["--device", "cpu", "--out", str(tmp_path / "killed")]
    with subprocess.Popen([sys.executable, "-m", "tokenphormer", *command], stderr=subprocess.PIPE) as running:
        try:
            assert running.stderr is not None
            assert b"debian label_propagation trial 0: 0." in running.stderr.readline()
            workers = children_of(running.pid)
            assert workers
        finally:
            running.kill()
            wait_until_gone(workers)  # it holds the other end of the pipe
    kept = len((tmp_path / "killed" / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert kept >= 1

    answer = cli(*command)
    assert answer.code == 0, answer
    assert "rows.jsonl: " in answer.out
    found = read_rows([tmp_path / "killed"])
    assert len(found) == 5

    from tokenphormer.benchmark.running import run

    use(monkeypatch, Inline(), run)
    fill(Plan(("label_propagation",), ("debian",), 2, 3), tmp_path / "one", CPU)
    numbers = (
        "kind",
        "trial",
        "split",
        "config_hash",
        "split_hash",
        "val_accuracy",
        "test_accuracy",
        "commit",
        "status",
    )
    rows = [[{name: row.get(name) for name in numbers} for row in some] for some in (found, rows_of(tmp_path / "one"))]
    assert same(rows[0]) == same(rows[1])


def children_of(pid: int) -> list[int]:
    """The workers of a process: what it has spawned."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(encoding="utf-8").rpartition(")")[2].split()
            line = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"spawn_main" in line:
            found.append(int(status.parent.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    """A worker must not outlive the process that it works for."""
    end = time.monotonic() + 20
    for pid in pids:
        while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
            assert time.monotonic() < end, f"worker {pid} lives on"
            time.sleep(0.05)


def test_searches_judged_in_two_ways_are_two(
    tmp_path: Path, tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials of one are none of the other's; final runs of the same settings are shared."""
    use(monkeypatch, Inline(), fake_run)
    plain = Plan(("mlp",), ("cora",), 2, 3)
    held_out = dataclasses.replace(plain, judged="held-out")
    assert fill(plain, tmp_path, CPU) == 5
    assert fill(held_out, tmp_path, CPU) == 3, "as the same settings win, its final runs are there"
    assert fill(held_out, tmp_path, CPU) == fill(plain, tmp_path, CPU) == 0
    trials = [row for row in read_rows([tmp_path]) if row["kind"] == "trial"]
    assert [row.get("judged") for row in trials] == [None] * 3 + ["held-out"] * 3
    assert all("judged" not in row for row in read_rows([tmp_path]) if row["kind"] == "final")


def test_rows_made_by_hand_are_like_those_of_runs(tiny_datasets: Graph) -> None:
    """The other tests lean on `make_row`; it has to have what a run's row has."""
    from tokenphormer.benchmark.running import run, values_tuple

    job = Job("final", "mlp", "cora", "stratified", 0, values_tuple({"max_epochs": 2}))
    assert make_row().keys() <= run(job, CPU).keys()


def test_trials_on_several_splits(tmp_path: Path, tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every trial has the same values on all of them, the mean decides, and what one split gave is used again."""
    use(monkeypatch, Inline(random.Random(1)), fake_run)
    one, three = (Plan(("mlp", "tokenphormer+"), ("cora",), 2, FIRST_TRIALS, splits) for splits in (1, 3))
    fill(one, tmp_path, CPU, workers=4)
    before = read_rows([tmp_path])
    fill(three, tmp_path, CPU, workers=4)
    rows = read_rows([tmp_path])
    assert [row for row in rows if row in before] == before
    for model in three.models:
        mine = [row for row in rows if row["model"] == model]
        tried = {(row["trial"], row["split"]): row for row in mine if row["kind"] == "trial"}
        assert set(tried) == {(number, split) for number in range(FIRST_TRIALS) for split in (100, 101, 102)}
        means = {}
        for number in range(FIRST_TRIALS):
            here = [tried[number, split] for split in (100, 101, 102)]
            assert len({row["config_hash"] for row in here}) == 1
            assert [row["seed"] for row in here] == [0, 1, 2], "settings that train from one start alone must not win"
            means[here[0]["config_hash"]] = sum(row["val_accuracy"] for row in here) / 3
        best = max(means, key=means.__getitem__)
        assert {row["split"] for row in mine if row["kind"] == "final" and row["config_hash"] == best} == {0, 1}
        assert best_trial([row for row in mine if row["kind"] == "trial"], FIRST_TRIALS, 3)["config_hash"] == best
    assert fill(three, tmp_path, CPU) == 0
    again = tmp_path / "again"
    fill(three, again, CPU, workers=1)
    assert {row_key(row) for row in read_rows([again])} <= {row_key(row) for row in rows}


def lucky_run(job: Job, device: torch.device) -> Row:
    """Trial 1 is the best by far on the first search split, and fails on all others; trial 2 never fails."""
    row = fake_run(job, device)
    if job.model != "mlp":
        return row
    fails = row["config"]["dropout"] == 0.5 and job.split != SEARCH_SPLITS
    accuracy = 0.1 if fails else {0.2: 0.4, 0.5: 0.9, 0.7: 0.6}[row["config"]["dropout"]]
    return row | {"val_accuracy": accuracy}


def lucky_values(self: Search, number: int) -> dict[str, Any]:
    return {"dropout": (0.2, 0.5, 0.7)[number]}


LUCK = Plan(("mlp",), ("cora",), splits=2, budget=3)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_search_that_was_lucky_is_judged_again_on_more_splits(
    workers: int, tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every trial, on the splits that were not seen, and the final runs of what is best then; all rows are kept."""
    use(monkeypatch, Inline(random.Random(1)), lucky_run)
    monkeypatch.setattr(Search, "ask", lucky_values)
    plan = dataclasses.replace(LUCK, models=("mlp", "gcn"))
    fill(plan, tmp_path, CPU, workers=workers)
    assert fill(plan, tmp_path, CPU) == 0
    both = rows_of(tmp_path)
    rows = [row for row in both if row["model"] == "mlp"]
    assert len(both) - len(rows) == plan.budget + plan.splits, "no luck, no second look"
    tried = sorted((row["trial"], row["split"]) for row in rows if row["kind"] == "trial")
    assert tried == [(number, 100 + split) for number in range(3) for split in range(AGAIN)]
    finals = sorted((row["config"]["dropout"], row["split"], row["trial"]) for row in rows if row["kind"] == "final")
    assert finals == [(0.5, 0, -1), (0.5, 1, -1), (0.7, 0, -1), (0.7, 1, -1)]
    assert [row["kind"] for row in rows[:5]] == ["trial"] * 3 + ["final"] * 2, "first as always"
    cell, other = cells = cell_results(both, ("cora",), plan.models)
    assert (cell.mean, cell.n, cell.trials, cell.search_splits, cell.short, cell.lucky) == (50, 2, 3, AGAIN, "", False)
    assert (other.search_splits, other.again) == (1, False)
    assert f"MLP on cora: judged on {AGAIN} splits, for what was chosen on fewer was lucky" in notes(cells)
    assert (
        "cora: stratified splits; search of 3 trials a method, on validation of a split that is not reported"
        in notes(cells)
    )


def test_a_search_that_was_lucky_is_gone_on_with_after_any_stop(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Inline(), lucky_run)
    monkeypatch.setattr(Search, "ask", lucky_values)
    fill(LUCK, tmp_path / "one go", CPU)
    whole = rows_of(tmp_path / "one go")
    for stop in range(len(whole)):
        out = tmp_path / str(stop)
        for row in whole[:stop]:
            append_row(out / "rows.jsonl", row)
        assert fill(LUCK, out, CPU) == len(whole) - stop
        assert same(rows_of(out)) == same(whole)


@pytest.mark.parametrize("changes", [{"search_splits": AGAIN}, {"splits": 1, "budget": 1}])
def test_a_search_on_as_many_splits_or_without_luck_is_not_judged_again(
    changes: dict[str, int], tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, Inline(), lucky_run)
    monkeypatch.setattr(Search, "ask", lucky_values)
    plan = dataclasses.replace(LUCK, **changes)
    fill(plan, tmp_path, CPU)
    assert len(rows_of(tmp_path)) == plan.budget * plan.search_splits + plan.splits
