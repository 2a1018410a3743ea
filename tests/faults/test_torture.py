"""`make torture` in short: commands killed at random moments end in the same result (docs/faults.md)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.scripts import ROOT, load_script
from tests.tiny import tiny_graph
from tokenphormer.graph.disk_writer import write_graph

torture = load_script("torture")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "torture.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@forks
def test_a_few_kills() -> None:
    """Pre-training and the benchmark are killed in their own tests; here they would take too long."""
    done = run("--kills", "4", "--commands", "convert,train")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended with the result of the whole run" in done.stdout.splitlines()[-1]


@forks
@pytest.mark.slow
def test_many_kills() -> None:
    done = run("--kills", "40")
    assert done.returncode == 0, done.stdout + done.stderr


# ---------------------------------------------------------------- the script itself


def test_times_do_not_count() -> None:
    row = {"seconds": 1.0, "epoch": 2, "inner": [{"time": 3, "loss": 0.5}]}
    assert torture.timeless(row) == {"epoch": 2, "inner": [{"loss": 0.5}]}


def test_what_looks_whole_must_be_whole(tmp_path: Path) -> None:
    convert = torture.JOBS[0]
    write_graph(tiny_graph(), tmp_path / "disk")
    whole = convert.result(tmp_path)
    torture.check(convert, tmp_path, whole, set(), {})
    write_graph(tiny_graph(seed=1), tmp_path / "other")
    shutil.rmtree(tmp_path / "disk")
    (tmp_path / "other").rename(tmp_path / "disk")
    with pytest.raises(torture.Wrong, match=r"looks finished after a kill, but differs: .*x\.npy"):
        torture.check(convert, tmp_path, whole, set(), {})


@pytest.mark.parametrize("name", ["run/seeds/0/checkpoint.safetensors", "run/metrics.json", "run/split.npz"])
def test_half_a_file_is_noticed(tmp_path: Path, name: str) -> None:
    train = torture.JOBS[2]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    hidden = path.with_name(f".{path.name}.abc.partial")
    hidden.write_bytes(b'{"half":')
    torture.check(train, tmp_path, {}, set(), {})
    hidden.rename(path)
    with pytest.raises(ValueError, match=r"."):
        torture.check(train, tmp_path, {}, set(), {})


def test_lost_and_doubled_rows_are_noticed(tmp_path: Path) -> None:
    benchmark = torture.JOBS[4]
    path = tmp_path / "bench" / "rows.jsonl"
    path.parent.mkdir()
    path.write_text('{"kind": "trial", "trial": 0}\n{"kind": "trial", "tri')
    rows: dict[object, object] = {}
    torture.check(benchmark, tmp_path, {}, set(), rows)
    assert len(rows) == 1
    path.write_text('{"kind": "trial", "trial": 1}\n')
    with pytest.raises(torture.Wrong, match="lost or changed"):
        torture.check(benchmark, tmp_path, {}, set(), rows)
    path.write_text('{"kind": "trial", "trial": 0}\n' * 2)
    with pytest.raises(torture.Wrong, match="twice"):
        torture.check(benchmark, tmp_path, {}, set(), rows)
