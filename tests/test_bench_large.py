"""The figure of how time and memory grow, from rows of `benchmarks/bench_large.py`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from benchmarks.bench_large import (
    EACH,
    GPU_STEPS,
    WHOLE,
    Row,
    latest,
    microseconds_each,
    parse,
    plot,
    run_step,
    slope,
    steps,
    watched,
)

from tokenphormer.tokens.resident import VARIABLE

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "large.jsonl"


def test_slope() -> None:
    assert slope([1, 10, 100, 1000], [7.0, 2.0, 20.0, 200.0]) == pytest.approx(1)
    assert slope([1, 10, 100], [7.0, 3.0, 3.0]) == pytest.approx(0)


def test_the_last_row_with_the_same_work_counts() -> None:
    rows: list[Row] = [
        {"step": "train", "nodes": 10, "labelled": 2500, "epoch_cpu_seconds": 5.0},
        {"step": "train", "nodes": 10, "labelled": 2500, "epoch_cpu_seconds": 0.5},
        {"step": "train", "nodes": 10, "labelled": 100_000, "epoch_cpu_seconds": 9.0},
        {"step": "train", "nodes": 5, "labelled": 2500, "epoch_cpu_seconds": 0.25},
        {"step": "train", "nodes": 99},
        {"step": "hops", "nodes": 10, "cpu_seconds": 1.0},
    ]
    assert [row["nodes"] for row in latest(rows, "train")] == [5, 10]
    assert [microseconds_each(row) for row in latest(rows, "train")] == [100, 200]
    assert latest(rows, "hops") == rows[-1:]


def test_the_figure(tmp_path: Path) -> None:
    """From the rows that are kept: four sizes of graph for every step."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    for step in (*WHOLE, *EACH):
        assert [row["nodes"] for row in latest(rows, step)] == [10**4, 10**5, 10**6, 10**7]
    plot(RESULTS, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 20_000


def test_a_step_of_a_small_graph_takes_some_time() -> None:
    """What is worked out from its seconds is divided by them."""
    row: Row = {}
    with watched(row):
        time.sleep(1e-4)
    assert 1e-4 <= row["seconds"] < 1


def test_the_steps_of_a_gpu_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    words = f"{tmp_path} --rehearse --nodes 2000 --degree 30 --features 16 --float16 --train 300 --val 40 --test 50 "
    words += "--starts 100 --predicted 200 --set num_walks=2 --set hidden_channels=8"
    options = parse(words.split())
    rows: dict[str, Row] = {name: {} for name in GPU_STEPS}
    for name, row in rows.items():
        steps(options)[name](row)
    assert 50_000 < rows["generate"]["directed_edges"] < 60_000
    assert rows["walks"]["starts"] == 100
    assert rows["train"]["split"] == (300, 40, 50)
    assert rows["train"]["resident"]
    assert rows["train"]["largest_error"] < 2e-3
    assert rows["predict"]["predicted"] == 200
    assert json.dumps(rows)


def test_a_step_that_fails_is_a_row(tmp_path: Path) -> None:
    row = run_step("open", [str(tmp_path)], 60, False)
    assert row["error"] == "exit code 1"
    assert row["process_seconds"] > 0
    assert run_step("open", [str(tmp_path)], 0.01, False)["error"] == "ended after 0 s: the limit"
