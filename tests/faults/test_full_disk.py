"""A disk that is full, or may only be read: told in one line, nothing half-written, gone on with when there is room.

A real file system of a given size (tmpfs) is mounted, which takes root's rights; elsewhere these tests are skipped.
Others (tests/evaluation/test_runs.py, tests/graph/test_external.py, …) make the same faults by hand, everywhere.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tiny import CPU, contents, tiny_config, tiny_graph, tiny_split, write_folder
from tokenphormer.benchmark.rows import append_row
from tokenphormer.errors import ResourceError, exit_code
from tokenphormer.evaluation.runs import predict_run, train_run
from tokenphormer.graph import load_graph
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.external import convert
from tokenphormer.sgpm.pretrain_run import pretrain
from tokenphormer.sgpm.settings import SMALL, SGPMSettings

SGPM = SGPMSettings().replace(SMALL | {"num_layers": 1, "epochs": 1, "train_sentences": 2})


def write_for_ever(number: int, size: int) -> None:
    while os.write(number, bytes(size)):
        pass


class Disk:
    """A file system of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder))

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount a file system here: {done.stderr.strip() or 'no rights'}")

    def change(self, options: str) -> None:
        self._run("mount", "-o", f"remount,{options}", str(self.folder))

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Without room for anything more."""
        filler = self.folder / "filler"
        number = os.open(filler, os.O_CREAT | os.O_WRONLY)
        try:
            for size in (65536, 4096, 1):
                with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                    write_for_ever(number, size)
            yield
        finally:
            os.close(number)
            filler.unlink()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if shutil.which("mount") is None or not hasattr(os, "geteuid") or os.geteuid():
        pytest.skip("mounting a small file system takes root's rights")
    made = Disk(tmp_path / "disk")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def tables(tmp_path: Path) -> str:
    graph = tiny_graph()
    return str(write_folder(graph, tmp_path / "tables", tiny_split(graph)))


def train(source: str, out: Path, resume: bool = False) -> None:
    graph = load_graph(source)
    config = tiny_config(hidden_channels=64)
    train_run(graph, source, graph.splits[0], config, out, CPU, resume=resume)


def refused(work: Callable[[], object], reason: str) -> None:
    """As the command line would have it: code 3 and one line."""
    with pytest.raises((ResourceError, OSError), match=reason) as found:
        work()
    assert exit_code(found.value) == 3


def test_a_run_goes_on_when_there_is_room(disk: Disk, tables: str) -> None:
    refused(lambda: train(tables, disk.folder / "run"), "No space left on device")
    assert not (disk.folder / "run" / "run.json").exists()
    assert not list(disk.folder.rglob("*.partial"))
    disk.change("size=8m")
    train(tables, disk.folder / "run", resume=True)
    assert (disk.folder / "run" / "run.json").exists()


def test_a_pretraining_goes_on_when_there_is_room(disk: Disk) -> None:
    graph = tiny_graph()
    refused(lambda: pretrain(graph, SGPM, disk.folder / "sgpm", CPU), "No space left on device")
    assert not (disk.folder / "sgpm" / "sgpm.json").exists()
    disk.change("size=8m")
    pretrain(graph, SGPM, disk.folder / "sgpm", CPU, resume=True)
    assert (disk.folder / "sgpm" / "sgpm.json").exists()


def test_nothing_is_left_where_there_is_no_room_or_no_right(disk: Disk, tables: str, tmp_path: Path) -> None:
    train(tables, tmp_path / "run")
    out, rows = disk.folder / "predictions.csv", disk.folder / "rows.jsonl"
    append_row(rows, {"kind": "trial", "trial": 0})
    before = contents(disk.folder)
    works: list[Callable[[], object]] = [
        lambda: convert(tables, disk.folder / "graph"),
        lambda: predict_run(tmp_path / "run", None, out, None, "cpu", False, False),
        lambda: train(tables, disk.folder / "run"),
        lambda: append_row(rows, {"kind": "trial", "trial": 1, "text": "x" * 10_000}),
    ]
    with disk.filled():
        for work in works:
            refused(work, r"No space left on device|is the disk full\?")
    lines = rows.read_bytes().split(b"\n")
    assert lines[0] == before["rows.jsonl"].strip(), "a row that did not fit may be cut short, the others stay"
    rows.write_bytes(before["rows.jsonl"])
    assert contents(disk.folder) == before
    disk.change("ro")
    for work in works:
        refused(work, "Read-only file system")
    disk.change("rw,size=8m")
    assert contents(disk.folder) == before
    for work in works:
        work()
    assert open_graph(disk.folder / "graph", verify=True).num_nodes == 60
