"""Pre-training for the studies: vectors of every kind and one row, on a graph of a few dozen nodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.benchmark.fakes import CPU
from tokenphormer.benchmark import sgpm_study as module
from tokenphormer.benchmark.sgpm_study import Pretraining, pretrain_for_study
from tokenphormer.errors import ResourceError
from tokenphormer.graph import Graph
from tokenphormer.sgpm import SGPMSettings
from tokenphormer.sgpm.pretrained import VECTOR_KINDS

SMALL = SGPMSettings(
    train_sentences=2, val_sentences=1, hidden_channels=8, num_layers=1, num_heads=1, epochs=2, batch_size=64
)


def test_vectors_and_a_row(tiny_datasets: Graph, tmp_path: Path) -> None:
    job = Pretraining("cora", SMALL, tmp_path / "vectors")
    assert not job.done
    row = pretrain_for_study(job, CPU)
    assert job.done
    assert sorted(path.name for path in job.folder.iterdir()) == sorted(job.file(kind).name for kind in VECTOR_KINDS)
    for kind in VECTOR_KINDS:
        assert np.load(job.file(kind), allow_pickle=False).shape == (tiny_datasets.num_nodes, 8)
    json.dumps(row)
    about = (row["kind"], row["study"], row["model"], row["dataset"], row["config_hash"], row["status"])
    assert about == ("pretrain", "sgpm", "sgpm", "cora", SMALL.hash, "done")
    assert row["val_accuracy"] == min(row["history"], key=lambda epoch: epoch["val_loss"])["val_accuracy"]
    assert len(row["history"]) == 2
    assert 0 <= row["bigram_accuracy"] <= 1
    assert row["chance"] == 1 / tiny_datasets.num_nodes


@pytest.mark.usefixtures("tiny_datasets")
def test_the_row_tells_of_the_weights_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the lowest validation loss, not the last ones: judged again, they guess as many right."""
    validate, losses, judged = module.Pretrainer.validate, iter([3.0, 2.0, 2.5]), []

    def scripted(trainer: module.Pretrainer) -> tuple[float, float]:
        judged.append((trainer, validate(trainer)[1]))
        return next(losses), judged[-1][1]

    monkeypatch.setattr(module.Pretrainer, "validate", scripted)
    enough = {"epochs": 3, "train_sentences": 10, "val_sentences": 4, "batch_size": 16, "learning_rate": 0.02}
    settings = SMALL.replace(enough)
    row = pretrain_for_study(Pretraining("cora", settings, tmp_path / "vectors"), CPU)
    shares = [share for _, share in judged]
    assert len(set(shares)) == 3
    assert row["val_accuracy"] == shares[1] == validate(judged[0][0])[1]


@pytest.mark.usefixtures("tiny_datasets")
def test_a_pretraining_is_not_charged_with_the_memory_of_what_was_before(tmp_path: Path) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("only Linux can forget a process's peak")
    settings = SMALL.replace({"epochs": 1, "train_sentences": 1})
    large = np.ones(40_000_000)
    assert large.sum() > 0
    held = pretrain_for_study(Pretraining("cora", settings, tmp_path / "one"), CPU)["peak_memory_bytes"]
    del large
    assert pretrain_for_study(Pretraining("cora", settings, tmp_path / "two"), CPU)["peak_memory_bytes"] < held - 200e6


def test_a_token_names_its_file_and_its_making(tmp_path: Path) -> None:
    job = Pretraining("cora", SMALL, tmp_path)
    file, _, made = job.token("static").partition("|")
    assert Path(file) == job.file("static")
    assert made == f"static {SMALL.hash}"
    assert job.file("static") != Pretraining("cora", SMALL.replace({"seed": 1}), tmp_path).file("static")


def test_no_memory_is_one_line(tiny_datasets: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    monkeypatch.setattr(module.Pretrainer, "run", full)
    with pytest.raises(ResourceError, match=r"pre-training on cora: CUDA out of memory\.; use fewer workers"):
        pretrain_for_study(Pretraining("cora", SMALL, tmp_path / "vectors"), CPU)
    assert not (tmp_path / "vectors").exists()
