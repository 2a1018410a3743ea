"""The figure of how time and memory grow, from rows of `benchmarks/bench_large.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.bench_large import EACH, WHOLE, Row, latest, microseconds_each, plot, slope

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
