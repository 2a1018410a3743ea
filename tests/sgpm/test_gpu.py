"""Pre-training on a real GPU: recorded steps are the steps, dropout is drawn anew, and it learns as on a CPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.sgpm.graphs import cycle, pieces, pretrained_trainer, quick
from tests.sgpm.test_pretrained import grown
from tests.sgpm.test_pretraining import LEARNS, kept, raise_at
from tests.tiny import CPU, tiny_graph
from tokenphormer.errors import InterruptedTrainingError
from tokenphormer.sgpm import PretrainedSGPM, Pretrainer, pretraining, softmax
from tokenphormer.sgpm.bigram import bigram_accuracy
from tokenphormer.sgpm.masking import MaskedBatch

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
STEADY: dict[str, Any] = {
    "train_sentences": 40,
    "mean_length": 4.0,
    "length_deviation": 0.0,
    "batch_size": 64,
    "dropout": 0.0,
    "precision": "float32",
    "hidden_channels": 32,
}
"""Sentences of one length, so that most batches are whole and of one shape."""


def first_batch(trainer: Pretrainer) -> MaskedBatch:
    numbers = trainer.document.training_numbers(1)
    torch.manual_seed(0)
    return next(b for b in trainer._batches(numbers, random.Random(0)) if len(b.words) == trainer.settings.batch_size)


def losses_of_steps(trainer: Pretrainer, count: int) -> list[float]:
    """The losses of steps on one and the same batch."""
    assert trainer._graphs is not None
    batch, found = first_batch(trainer), []
    trainer.model.train()
    for group in trainer.optimisers[0].param_groups:
        group["lr"] = trainer.rate
    for _ in range(count):
        trainer.loss_sum.zero_()
        trainer._graphs.step(batch)
        found.append(trainer.loss_sum.item())
    return found


def test_recorded_steps_are_the_steps() -> None:
    recorded, eager = (Pretrainer(tiny_graph(), quick(**STEADY), GPU) for _ in range(2))
    assert recorded._graphs is not None
    eager._graphs = None
    for trainer in (recorded, eager):
        trainer.run()
    assert len(recorded._graphs.recorded) == 1
    assert recorded._graphs.seen > 2 * 30
    for one, other in zip(recorded.progress.history, eager.progress.history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)
        assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-3)
    torch.testing.assert_close(recorded.model.table, eager.model.table, rtol=0.05, atol=2e-3)


def test_dropout_is_drawn_anew_at_each_replay() -> None:
    still = quick(**(STEADY | {"dropout": 0.5, "learning_rate": 0.0}))  # weights stay, so only dropout differs
    found = losses_of_steps(Pretrainer(tiny_graph(), still, GPU), 12)
    assert len(set(found)) == 12
    without = quick(**(STEADY | {"learning_rate": 0.0}))
    found = losses_of_steps(Pretrainer(tiny_graph(), without, GPU), 12)
    assert max(found) == pytest.approx(min(found), rel=1e-5)


def test_the_learning_rate_reaches_recorded_steps() -> None:
    trainer = Pretrainer(tiny_graph(), quick(**STEADY), GPU)
    losses_of_steps(trainer, 5)  # recorded with a rate of 0
    before = trainer.model.table.detach().clone()
    assert trainer._graphs is not None
    trainer._graphs.step(first_batch(trainer))
    assert torch.equal(trainer.model.table, before)
    trainer.rate.fill_(0.1)
    trainer._graphs.step(first_batch(trainer))
    assert not torch.equal(trainer.model.table, before)


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_it_learns(precision: str) -> None:
    trainer = pretrained_trainer(cycle(), GPU, **(LEARNS | {"precision": precision, "epochs": 20, "patience": 20}))
    assert trainer.dtype == (torch.bfloat16 if precision == "auto" else torch.float32)
    best = max(row["val_accuracy"] for row in trainer.progress.history)
    assert best > 0.75
    assert best > bigram_accuracy(trainer) + 0.2


def test_it_learns_with_a_sampled_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "SPARSE_VOCABULARY", 3)
    settings = LEARNS | {"negatives": 100, "epochs": 20, "patience": 20, "precision": "float32"}
    trainer = pretrained_trainer(cycle(), GPU, **settings)
    assert trainer.sparse
    assert max(row["val_accuracy"] for row in trainer.progress.history) > 0.75


def test_no_nan_on_pieces_and_nodes_alone() -> None:
    trainer = pretrained_trainer(pieces(), GPU)
    assert all(tensor.isfinite().all() for tensor in trainer.model.state_dict().values())


def test_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "GPU_CHUNK", 600)
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(pretraining, "CHECKPOINT_SHARE", 1e9)
    whole = pretrained_trainer(None, GPU, **STEADY)
    path = tmp_path / "c.safetensors"
    with pytest.raises(InterruptedTrainingError):
        kept(Pretrainer(tiny_graph(), quick(**STEADY), GPU), path, raise_at(5))
    resumed = kept(Pretrainer(tiny_graph(), quick(**STEADY), GPU), path)
    for one, other in zip(resumed.progress.history, whole.progress.history, strict=True):
        assert one["sentences"] == other["sentences"]
        assert one["val_loss"] == pytest.approx(other["val_loss"], rel=1e-3)  # atomic sums are in any order


@pytest.mark.parametrize("kind", ["static", "contextual"])
def test_vectors_are_those_of_a_cpu(tmp_path: Path, kind: Any) -> None:
    there = PretrainedSGPM.of(pretrained_trainer(None, GPU), "test")
    there.save(tmp_path / "s.safetensors")
    here = PretrainedSGPM.load(tmp_path / "s.safetensors", CPU)
    for graph in (tiny_graph(), grown()):
        np.testing.assert_allclose(
            there.vectors(graph, kind, GPU), here.vectors(graph, kind, CPU), rtol=1e-2, atol=5e-3
        )


@pytest.mark.parametrize("piece", [500, 1 << 26])
def test_the_softmax_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(softmax, "PIECE_ELEMENTS", piece)
    torch.manual_seed(0)
    states = torch.randn(30, 64, device=GPU, dtype=torch.bfloat16, requires_grad=True)
    table, bias = torch.randn(500, 64, device=GPU, requires_grad=True), torch.randn(500, device=GPU, requires_grad=True)
    target = torch.randint(500, (30,), device=GPU)
    found, plain = softmax.exact(states, table, bias, target), softmax.plain(states, table, bias, target)
    torch.testing.assert_close(found[0], plain[0], rtol=1e-3, atol=1e-3)
    gradients = [torch.autograd.grad(loss.sum(), (states, table, bias)) for loss, _ in (found, plain)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.05, atol=0.02)
