"""One bit is another, or the clock is: what was kept is refused or means the same."""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import time
from pathlib import Path

import pytest

import tokenphormer
from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tokenphormer.benchmark.rows import append_row, read_rows
from tokenphormer.errors import InputError
from tokenphormer.evaluation.run_folder import load_run
from tokenphormer.evaluation.runs import train_run
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph

SOURCE = Path(tokenphormer.__file__).parent
STAMPS = {"benchmark/running.py", "tuning.py"}


def flip(content: bytes, draw: random.Random) -> bytes:
    """The same with one bit changed."""
    at = draw.randrange(8 * len(content))
    return bytes([*content[: at // 8], content[at // 8] ^ (1 << at % 8), *content[at // 8 + 1 :]])


def test_a_bit_of_a_graphs_manifest(tmp_path: Path) -> None:
    """Opening takes the manifest's word for much, so its own hash is compared even where no array is read."""
    graph = tiny_graph(splits=(tiny_split(tiny_graph()),))
    write_graph(graph, tmp_path / "g")
    path, draw, refused = tmp_path / "g" / "graph.json", random.Random(0), 0
    whole = path.read_bytes()
    expected = open_graph(tmp_path / "g")
    for _ in range(300):
        path.write_bytes(flip(whole, draw))
        try:
            found = open_graph(tmp_path / "g")
        except InputError:
            refused += 1
        else:  # the bit was one of the hash's own name
            assert (found.class_names, found.notes, found.name) == (expected.class_names, expected.notes, expected.name)
            assert found.fingerprint == expected.fingerprint
    assert refused > 280
    path.write_bytes(whole)
    assert open_graph(tmp_path / "g", verify=True).fingerprint == graph.fingerprint


def test_a_bit_of_a_runs_manifest(tmp_path: Path) -> None:
    """The weights have their hash in it; what else `predict` takes from it is compared with the graph."""
    graph = tiny_graph()
    train_run(graph, "tiny", tiny_split(graph), tiny_config(max_epochs=1), tmp_path / "run", CPU)
    path, draw = tmp_path / "run" / "run.json", random.Random(1)
    whole = path.read_bytes()
    weights = load_run(tmp_path / "run", device="cpu")[0].weights_
    for _ in range(60):
        path.write_bytes(flip(whole, draw))
        try:
            found = load_run(tmp_path / "run", device="cpu")[0].weights_
        except InputError:
            continue
        assert all(found[name].equal(tensor) for name, tensor in weights.items())


# ---------------------------------------------------------------- the clock


def clocks(source: str) -> list[str]:
    """Where a source asks for the time of day, or for the time of a file."""
    wanted = {"time.time", "time.time_ns", "datetime.now", "datetime.today", "datetime.utcnow"}
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and (node.attr in ("st_mtime", "st_ctime") or ast.unparse(node) in wanted):
            found.append(ast.unparse(node))
    return found


def test_nothing_rests_on_the_time_of_day() -> None:
    """Only rows say when they were made, and nobody reads that."""
    found = {str(path.relative_to(SOURCE)): clocks(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    assert {name: uses for name, uses in found.items() if uses and name not in STAMPS} == {}
    assert found["benchmark/running.py"] == ["time.time"]
    assert clocks("x = path.stat().st_mtime\ny = time.time()") == ["path.stat().st_mtime", "time.time"]


def test_a_clock_that_goes_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_graph()
    split, config = tiny_split(graph), tiny_config(max_epochs=2)
    train_run(graph, "tiny", split, config, tmp_path / "one", CPU, seeds=2)
    back = itertools.count(2e9, -86_400.0)
    monkeypatch.setattr(time, "time", lambda: next(back))
    train_run(graph, "tiny", split, config, tmp_path / "two", CPU, seeds=1)
    (tmp_path / "two" / "run.json").unlink()  # as if it had been stopped before its second seed
    for number, path in enumerate(sorted((tmp_path / "two").rglob("*"))):
        os.utime(path, (4e9 - 1e9 * (number % 4),) * 2)
    train_run(graph, "tiny", split, config, tmp_path / "two", CPU, seeds=2, resume=True)
    assert (tmp_path / "one/predictions.csv").read_bytes() == (tmp_path / "two/predictions.csv").read_bytes()
    row = {"kind": "pretrain", "model": "mlp", "dataset": "debian", "study": "main", "status": "done", "format": 1}
    for trial in range(3):
        append_row(tmp_path / "rows.jsonl", row | {"trial": trial, "time": time.time()})
        append_row(tmp_path / "rows.jsonl", row | {"trial": trial, "time": time.time(), "again": True})
    assert [(r["trial"], "again" in r) for r in read_rows([tmp_path / "rows.jsonl"])] == [(t, False) for t in range(3)]
    assert json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[-1])["time"] < 2e9
