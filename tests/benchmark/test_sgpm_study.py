"""The SGPM study: the same splits with every kind of vector and without, each once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.benchmark.fakes import CPU, Inline, fake_run, use
from tokenphormer.benchmark import sgpm_study as module
from tokenphormer.benchmark.rows import Row, origin, read_rows, row_key
from tokenphormer.benchmark.running import Job
from tokenphormer.graph import Graph
from tokenphormer.sgpm import SGPMSettings

SETTINGS = SGPMSettings(seed=4)


def fake_pretraining(name: str, settings: SGPMSettings, folder: Path, device: object) -> Row:
    row = {"kind": "pretrain", "study": "sgpm", "model": "sgpm", "dataset": name, "config_hash": settings.hash}
    history = [{"val_accuracy": 0.5}]
    row |= {"seed": settings.seed, "status": "done", "history": history, "bigram_accuracy": 0.1, "seconds": 1.0}
    return row | origin()


@pytest.fixture
def study(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Row]]:
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda *_: Inline())
    monkeypatch.setattr(module, "pretrain_for_study", fake_pretraining)

    def run(job: Job, device: Any) -> Row:
        return fake_run(job, device)

    use(monkeypatch, Inline(), run)

    def call(splits: int) -> list[Row]:
        module.sgpm_study(
            ("cora", "photo"),
            SETTINGS,
            tmp_path / "out",
            CPU,
            scratch=tmp_path / "scratch",
            splits=splits,
            kinds=("a", "b"),
        )
        return read_rows([tmp_path / "out"])

    return call


def test_every_split_with_and_without(study: Callable[..., list[Row]]) -> None:
    rows = study(2)
    assert [row["dataset"] for row in rows if row["kind"] == "pretrain"] == ["cora", "photo"]
    finals = [row for row in rows if row["kind"] == "final"]
    found = [(row["dataset"], row["split"], row.get("sgpm", "")) for row in finals]
    kinds = ("", f"a {SETTINGS.hash}", f"b {SETTINGS.hash}")
    assert sorted(found) == sorted(
        (name, split, kind) for name in ("cora", "photo") for split in (0, 1) for kind in kinds
    )
    assert {row["study"] for row in rows} == {"sgpm"}
    assert len({row["config_hash"] for row in finals}) == 1  # the token alone makes the difference


def test_gone_on_with_nothing_is_doubled(study: Callable[..., list[Row]], tmp_path: Path) -> None:
    first = study(1)
    rows = study(2)
    assert len(first) == 2 + 2 * 3
    assert len(rows) == 2 + 4 * 3
    assert len({row_key(row) for row in rows}) == len(rows)
    assert len((tmp_path / "out" / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == len(rows)
