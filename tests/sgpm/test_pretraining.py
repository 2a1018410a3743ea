"""Pre-training: it learns, looks at no label, reads every sentence once, and goes on bit for bit after a stop."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests.sgpm.graphs import assert_same_training, cycle, pieces, pretrained_trainer, quick, relabelled, weights
from tests.sgpm.test_softmax import Largest
from tests.tiny import CPU, contents, tiny_graph
from tests.training.test_checkpoint import handler
from tests.walks.graphs import directed_with_sinks, weighted
from tokenphormer.errors import InputError, InterruptedTrainingError
from tokenphormer.graph import Graph
from tokenphormer.sgpm import Pretrainer, SGPMSettings, pretraining, softmax
from tokenphormer.sgpm.bigram import bigram_accuracy
from tokenphormer.sgpm.masking import MaskedBatch
from tokenphormer.sgpm.model import CLS, MASK, SEP, UNK
from tokenphormer.sgpm.pretraining import GraphInputs, kept_epoch, learning_rate, run_with_checkpoints, unit_rows
from tokenphormer.tensor_files import load_tensors, save_tensors

LEARNS: dict[str, Any] = {
    "train_sentences": 60,
    "val_sentences": 10,
    "mean_length": 6.0,
    "hidden_channels": 32,
    "num_heads": 4,
    "epochs": 12,
    "patience": 12,
    "batch_size": 64,
    "learning_rate": 0.01,
    "dropout": 0.0,
}
IDENTITY = {"graph": "g", "settings": "s"}


@pytest.fixture
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph counts as one whose vocabulary is too large for a whole softmax."""
    monkeypatch.setattr(pretraining, "SPARSE_VOCABULARY", 3)


# ---------------------------------------------------------------- it learns


def test_it_learns_what_the_neighbouring_word_cannot_tell() -> None:
    """On a cycle a walk goes one way round; which way, a single neighbour does not say."""
    trainer = pretrained_trainer(cycle(), **LEARNS)
    best = max(row["val_accuracy"] for row in trainer.progress.history)
    bigram = bigram_accuracy(trainer)
    assert 0.4 < bigram < 0.6
    assert best > bigram + 0.2
    assert best > 0.75  # chance is 0.05
    losses = [row["train_loss"] for row in trainer.progress.history]
    assert losses[-1] < losses[0] / 2


@pytest.mark.usefixtures("_large")
def test_it_learns_with_a_sampled_softmax() -> None:
    trainer = pretrained_trainer(cycle(), **(LEARNS | {"negatives": 100}))
    assert trainer.sparse
    assert max(row["val_accuracy"] for row in trainer.progress.history) > 0.75


def test_it_learns_from_features_alone() -> None:
    """No vectors of nodes: who stands between two others can be told by their features."""
    graph = cycle()
    x = np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32)
    given = Graph.from_edges([np.arange(20), (np.arange(20) + 1) % 20], x=x)
    assert given.indices.tolist() == graph.indices.tolist()
    trainer = pretrained_trainer(given, **(LEARNS | {"use_tokens": False, "use_centrality": False, "epochs": 7}))
    assert max(row["val_accuracy"] for row in trainer.progress.history) > 0.3  # chance is 0.05


def test_labels_change_nothing() -> None:
    graph = tiny_graph()
    other = relabelled(graph, np.random.default_rng(0).permutation(graph.y))
    none = relabelled(graph, None)
    assert graph.fingerprint != other.fingerprint
    expected = pretrained_trainer(graph)
    assert_same_training(pretrained_trainer(other), expected)
    assert_same_training(pretrained_trainer(none), expected)


def test_the_same_seed_is_the_same_training_and_another_is_not() -> None:
    one = pretrained_trainer()
    torch.rand(5)  # what others did with torch's numbers does not matter
    assert_same_training(pretrained_trainer(), one)
    other = pretrained_trainer(seed=1)
    assert not torch.equal(other.model.table, one.model.table)


# ---------------------------------------------------------------- what it reads


@pytest.mark.parametrize("size", [64, 1 << 16])
def test_an_epoch_reads_every_sentence_once(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(pretraining, "CHUNK", size)
    trainer = Pretrainer(pieces(), quick(unknown_share=0.0, train_sentences=9, batch_size=5), CPU)
    read: list[tuple[int, ...]] = []

    def note(batch: MaskedBatch) -> None:
        whole = batch.words.scatter(1, batch.places, batch.targets)
        assert set(whole[:, 0].tolist()) == {16 + CLS}
        assert set(whole[:, -1].tolist()) == {16 + SEP}
        assert len(whole) <= 5
        read.extend(tuple(row) for row in whole[:, 1:-1].tolist())

    monkeypatch.setattr(trainer, "step", note)
    trainer.run()
    document = trainer.document
    expected = [
        tuple(walk[:count])
        for number in range(9)
        for drawn in [document.sentences(number, CPU)]
        for walk, count in zip(drawn.walks.tolist(), drawn.counts.tolist(), strict=True)
    ]
    each = 9 * 16
    assert len(read) == 2 * each
    for epoch in (0, 1):
        assert sorted(read[epoch * each : (epoch + 1) * each]) == sorted(expected)
    assert read[:each] != read[each:]
    assert trainer.progress.sentences == 2 * each
    assert trainer.progress.tokens == 2 * sum(len(sentence) + 2 for sentence in expected)


def test_validation_is_the_mean_over_the_masked_positions_of_its_own_sentences() -> None:
    trainer = pretrained_trainer()
    n, model = trainer.graph.num_nodes, trainer.model
    losses, right, sentences = [], [], 0
    for batch in trainer.validation_batches():
        sentences += len(batch.words)
        projected, rows, bins = trainer.inputs.features(model, batch.nodes, torch.float32)
        states = model(batch.words, rows, projected, bins, torch.float32)
        for row, places in enumerate(batch.places.tolist()):
            guess = model.guess(states[row, places])
            loss, correct = softmax.plain(guess, model.table[:n], model.output_bias[:, 0], batch.targets[row])
            losses += loss.tolist()
            right += correct.tolist()
    assert sentences == 2 * n
    loss, accuracy = trainer.validate()
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert accuracy == pytest.approx(np.mean(right))
    best = trainer.progress.history[trainer.progress.best_epoch - 1]
    assert (loss, accuracy) == (best["val_loss"], best["val_accuracy"])  # the best weights are in the model
    assert best["val_perplexity"] == pytest.approx(math.exp(loss))


def test_validation_has_the_same_masks_each_time_and_takes_no_random_numbers() -> None:
    trainer = Pretrainer(tiny_graph(), quick(), CPU)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    one = list(trainer.validation_batches())
    assert torch.equal(torch.rand(3), expected)
    two = list(trainer.validation_batches())  # torch's numbers have moved on
    for a, b in zip(one, two, strict=True):
        assert all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))


def test_batches_are_masked_anew_each_epoch() -> None:
    trainer = Pretrainer(tiny_graph(), quick(), CPU)
    found = []
    for epoch in (1, 2):
        seen: list[MaskedBatch] = []
        trainer.progress.epoch, trainer.progress.chunk = epoch - 1, 0
        original, trainer.step = trainer.step, seen.append  # type: ignore[method-assign]
        trainer._chunk()
        trainer.step = original  # type: ignore[method-assign]
        found.append(sorted(tuple(row) for batch in seen for row in batch.words.tolist()))
    assert found[0] != found[1]


def test_history() -> None:
    trainer = pretrained_trainer(epochs=3)
    assert [row["epoch"] for row in trainer.progress.history] == [1, 2, 3]
    assert trainer.progress.stopped == "all 3 epochs are done"
    for number, row in enumerate(trainer.progress.history, 1):
        assert set(row) == {
            *("epoch", "train_loss", "val_loss", "val_perplexity", "val_accuracy"),
            *("sentences", "tokens", "seconds"),
        }
        assert row["sentences"] == number * 4 * 60
        assert 0 <= row["val_accuracy"] <= 1
    seconds = [row["seconds"] for row in trainer.progress.history]
    assert seconds == sorted(seconds)


def test_the_learning_rate_rises_and_falls_in_lines() -> None:
    s = quick(learning_rate=2.0, warmup_share=0.25)
    assert [learning_rate(done, s) for done in (0.0, 0.125, 0.25, 0.625, 1.0)] == [0.0, 1.0, 2.0, 1.0, 0.0]
    assert learning_rate(1.0001, s) == 0.0
    assert learning_rate(0.5, quick(learning_rate=2.0, warmup_share=0.0)) == 1.0


def test_every_step_has_the_rate_of_its_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Pretrainer(cycle(), quick(epochs=2, train_sentences=4), CPU)
    rates: list[tuple[int, float]] = []

    def note(_: MaskedBatch) -> None:
        (group, other) = trainer.optimisers[0].param_groups
        assert group["lr"] == other["lr"]
        rates.append((trainer.progress.sentences, group["lr"]))

    monkeypatch.setattr(trainer, "step", note)
    trainer.run()
    assert rates[-1] == (2 * 4 * 20, 0.0)
    for sentences, rate in rates:
        assert rate == pytest.approx(learning_rate(sentences / 160, trainer.settings))


def test_matrices_are_decayed_and_nothing_else() -> None:
    trainer = Pretrainer(tiny_graph(), quick(), CPU)
    decayed, others = trainer.optimisers[0].param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    found = {names[id(p)] for p in others["params"]}
    assert {"table", "positions", "centrality", "input_norm.weight", "layers.0.widen.bias"} <= found
    assert not {"features.weight", "layers.0.widen.weight", "transform.0.weight"} & found
    assert len(decayed["params"]) + len(others["params"]) == len(names)


# ---------------------------------------------------------------- stopping


def scripted(trainer: Pretrainer, losses: list[float]) -> Pretrainer:
    """Validation finds these losses, one after the other."""
    given = iter(losses)
    trainer.validate = lambda: (next(given), 0.5)  # type: ignore[method-assign]
    return trainer


def test_early_stopping_keeps_the_best_weights() -> None:
    trainer = scripted(Pretrainer(cycle(), quick(epochs=9, patience=2), CPU), [3.0, 2.0, 2.5, 2.0, 1.0])
    seen: list[dict[str, torch.Tensor]] = []
    trainer.run(lambda t: seen.append(weights(t)))
    assert trainer.progress.stopped == "no lower validation loss for 2 epochs"
    assert (trainer.progress.epoch, trainer.progress.best_epoch, trainer.progress.best_loss) == (4, 2, 2.0)
    assert kept_epoch(trainer.progress.history)["epoch"] == 2
    assert all(torch.equal(tensor, seen[1][name]) for name, tensor in weights(trainer).items())
    assert not torch.equal(seen[1]["table"], seen[3]["table"])


def test_a_loss_that_is_no_number_ends_it() -> None:
    trainer = scripted(Pretrainer(cycle(), quick(), CPU), [math.nan])
    with pytest.raises(InputError, match=r"no weights to keep: the validation loss was nan after epoch 1; lower"):
        trainer.run()
    trainer = scripted(Pretrainer(cycle(), quick(), CPU), [2.0, math.inf])
    assert trainer.run().stopped == "the validation loss was inf after epoch 2"
    assert trainer.progress.best_epoch == 1  # what was good stays


def test_a_training_loss_that_is_no_number_ends_it() -> None:
    trainer = Pretrainer(cycle(), quick(), CPU)
    with torch.no_grad():
        trainer.model.table[3] = math.inf
    with pytest.raises(InputError, match=r"no weights to keep: the loss was nan in epoch 1; lower learning_rate"):
        trainer.run()


# ---------------------------------------------------------------- graphs of every kind


def bare(graph: Graph) -> Graph:
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    return Graph.from_edges([source, graph.indices], graph.num_nodes, name="bare")


def sparse_features() -> Graph:
    graph = tiny_graph()
    source = np.repeat(np.arange(60), graph.degree)
    x = sp.random_array((60, 30), density=0.1, format="csr", rng=np.random.default_rng(0), dtype=np.float32)
    return Graph.from_edges([source, graph.indices], 60, x=x, name="sparse")


GRAPHS = {
    "pieces": pieces(),
    "no features": bare(pieces()),
    "sparse features": sparse_features(),
    "directed with sinks": directed_with_sinks(),
    "weighted": weighted(),
    "one edge": Graph.from_edges([[0], [1]]),
    "one node and its loop": Graph.from_edges([[0], [0]], self_loops=True),
    "one edge, many alone": Graph.from_edges([[0], [1]], 30),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_no_nan_anywhere(name: str) -> None:
    trainer = pretrained_trainer(GRAPHS[name])
    assert all(tensor.isfinite().all() for tensor in weights(trainer).values())
    assert all(math.isfinite(value) for row in trainer.progress.history for value in row.values())


@pytest.mark.usefixtures("_large")
@pytest.mark.parametrize("name", ["pieces", "no features", "sparse features", "directed with sinks"])
def test_no_nan_anywhere_when_the_softmax_is_sampled(name: str) -> None:
    trainer = pretrained_trainer(GRAPHS[name], negatives=3)
    assert trainer.sparse
    assert all(tensor.isfinite().all() for tensor in weights(trainer).values())


@pytest.mark.parametrize("kind", ["degree", "pagerank", "core"])
def test_kinds_of_centrality(kind: str) -> None:
    trainer = pretrained_trainer(centrality=kind)
    assert trainer.model.centrality is not None
    assert len(trainer.model.centrality) == len(trainer.edges) + 1 == len(set(trainer.inputs.bins.tolist()))


def test_a_graph_without_edges_is_refused() -> None:
    with pytest.raises(InputError, match=r"graph 'bare' has no edges: there is nothing to walk on"):
        Pretrainer(Graph.from_edges(np.zeros((2, 0), int), 4, name="bare"), quick(), CPU)


# ---------------------------------------------------------------- large vocabularies


@pytest.mark.usefixtures("_large")
def test_only_rows_in_use_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = cycle(500)
    trainer = Pretrainer(graph, quick(mean_length=3.0, negatives=5, batch_size=4), CPU)
    batch = next(iter(trainer.validation_batches()))
    batch = MaskedBatch(*(getattr(batch, field.name)[:4] for field in dataclasses.fields(batch)))
    drawn: list[torch.Tensor] = []
    randint = torch.randint

    def note(*arguments: Any, **options: Any) -> torch.Tensor:
        drawn.append(randint(*arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(torch, "randint", note)
    for group in (group for optimiser in trainer.optimisers for group in optimiser.param_groups):
        group["lr"] = 0.1
    before = weights(trainer)
    trainer.step(batch)
    (others,) = drawn
    compared = set(others.tolist()) | set(batch.targets.flatten().tolist())
    changed = (trainer.model.table.detach() != before["table"]).any(dim=1).nonzero().flatten().tolist()
    assert set(changed) == compared | set(batch.words.flatten().tolist())
    biased = (trainer.model.output_bias.detach() != before["output_bias"]).any(dim=1).nonzero().flatten().tolist()
    assert set(biased) == compared
    again = weights(trainer)
    trainer.step(batch)
    still = (trainer.model.table.detach() == again["table"]).all(dim=1)
    assert int(still.sum()) > 450


def gradients(trainer: Pretrainer) -> dict[str, torch.Tensor]:
    """Copies, whole also where they are sparse."""
    found = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    return {name: grad.to_dense().clone() for name, grad in found.items()}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.9, 2.0])
def test_all_gradients_are_clipped_together(monkeypatch: pytest.MonkeyPatch, large: bool, share: float) -> None:
    """As torch clips whole ones; also those of the table and the biases where they are sparse."""
    if large:
        monkeypatch.setattr(pretraining, "SPARSE_VOCABULARY", 3)
    found = []
    for clip in (0.0, 1.0):
        limit = clip and share * found[0][1]
        trainer = Pretrainer(cycle(500), quick(mean_length=3.0, negatives=5, dropout=0.0, gradient_clip=limit), CPU)
        assert trainer.sparse == large
        batch = next(iter(trainer.validation_batches()))
        for group in (group for optimiser in trainer.optimisers for group in optimiser.param_groups):
            group["lr"] = 1e-9
        torch.manual_seed(0)
        trainer.step(batch)
        each = gradients(trainer)
        norm = torch.cat([grad.flatten() for grad in each.values()]).norm().item()
        found.append((each, norm))
    (before, whole), (after, clipped) = found
    assert before["table"].norm() > 0.1 * whole
    assert before["output_bias"].norm() > 0
    assert clipped == pytest.approx(min(share, 1.0) * whole, rel=1e-4)
    twins = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in before.values()]
    for twin, grad in zip(twins, before.values(), strict=True):
        twin.grad = grad
    torch.nn.utils.clip_grad_norm_(twins, share * whole)
    for (name, grad), twin in zip(after.items(), twins, strict=True):
        assert twin.grad is not None
        torch.testing.assert_close(grad, twin.grad, msg=name)


@pytest.mark.usefixtures("_large")
def test_a_sampled_step_makes_nothing_as_large_as_the_graph() -> None:
    n = 50_000
    trainer = Pretrainer(cycle(n), quick(mean_length=3.0, negatives=7, batch_size=16), CPU)
    batch = next(iter(trainer.validation_batches()))
    with Largest() as largest:
        trainer._sampled_losses(batch).mean().backward()
        pretraining.clip_gradients([], [trainer.model.table, trainer.model.output_bias], 1e-3)
    assert trainer.model.table.grad is not None
    assert trainer.model.table.grad.is_sparse
    assert not [shape for shape in largest.shapes if max(shape, default=0) >= n]
    assert largest.numel < n
    assert (batch.targets.numel(), 7) in largest.shapes


@pytest.mark.usefixtures("_large")
def test_on_large_graphs_fewer_sentences_are_judged_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "LARGE_VALIDATION", 20)
    trainer = Pretrainer(cycle(500), quick(val_sentences=4), CPU)
    starts = [sentence[0] for part in trainer._validation_sentences() for sentence in part.walks.tolist()]
    assert len(starts) == 20
    assert len(set(starts)) == 5
    assert {0, 499} <= set(starts)


@pytest.mark.usefixtures("_large")
def test_many_sentences_to_judge_by_are_of_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "LARGE_VALIDATION", 100)
    trainer = Pretrainer(cycle(500), quick(val_sentences=300), CPU)
    starts = [sentence[0] for part in trainer._validation_sentences() for sentence in part.walks.tolist()]
    assert len(starts) == 100
    assert len(set(starts)) == 10


def test_features_of_large_graphs_are_read_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    for graph in (tiny_graph(), sparse_features()):
        settings = quick()
        trainer = Pretrainer(graph, settings, CPU)
        nodes = torch.tensor([[-1, 5, 59, 5, -1], [-1, -1, 0, 7, -1]])
        monkeypatch.setattr(pretraining, "SPARSE_VOCABULARY", 3)
        rowwise = GraphInputs(graph, settings, trainer.edges, CPU)
        monkeypatch.undo()
        found = []
        for inputs in (trainer.inputs, rowwise):
            projected, rows, bins = inputs.features(trainer.model, nodes, torch.float32)
            assert projected is not None
            assert torch.equal(rows < 0, nodes < 0)
            place = rows.clamp(min=0)
            shown = (rows >= 0)[..., None]
            found.append((projected[place] * shown, bins[place] * shown[..., 0], len(projected)))
        torch.testing.assert_close(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])
        assert (found[0][2], found[1][2]) == (60, 4)  # nodes 0, 5, 7 and 59


# ---------------------------------------------------------------- stopped and gone on with


RESUMED: dict[str, Any] = {"dropout": 0.2, "fresh_sentences": True, "mean_length": 3.0, "length_deviation": 0.5}
CHUNKS = 8


def fresh(**changes: Any) -> Pretrainer:
    return Pretrainer(tiny_graph(), quick(**(RESUMED | changes)), CPU)


def kept(
    trainer: Pretrainer,
    path: Path,
    stop: Callable[[int], None] = lambda _: None,
    said: list[str] | None = None,
    identity: dict[str, str] = IDENTITY,
) -> Pretrainer:
    """Run with checkpoints, `stop` called with the number of chunks done after each."""

    def after(trainer: Pretrainer) -> None:
        stop(4 * trainer.progress.epoch + trainer.progress.chunk)

    run_with_checkpoints(trainer, path, identity, after, (lambda _: None) if said is None else said.append)
    return trainer


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chunks an epoch."""
    monkeypatch.setattr(pretraining, "CHUNK", 64)


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch, _small_chunks: None) -> None:
    """And a checkpoint after each."""
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(pretraining, "CHECKPOINT_SHARE", 1e9)


def raise_at(*chunks: int) -> Callable[[int], None]:
    def stop(chunk: int) -> None:
        if chunk in chunks:
            raise KeyboardInterrupt

    return stop


@pytest.fixture(scope="module")
def unbroken() -> Pretrainer:
    """Tests do not change it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "CHUNK", 64)
        trainer = fresh()
        assert len(trainer.chunks(1)) == CHUNKS // 2
        trainer.run()
    return trainer


@pytest.mark.usefixtures("_often")
def test_stopped_at_any_chunk_and_resumed(tmp_path: Path, unbroken: Pretrainer) -> None:
    for chunk in range(1, CHUNKS + 1):
        path, said = tmp_path / f"{chunk}.safetensors", list[str]()
        state = "nothing was kept yet" if chunk == 1 else r"\.safetensors holds an earlier state"
        with pytest.raises(InterruptedTrainingError, match=rf"^stopped at once; .*{state}$"):
            kept(fresh(), path, raise_at(chunk))
        assert path.exists() == (chunk > 1)  # stopped before that chunk was written
        assert_same_training(kept(fresh(), path, said=said), unbroken)
        epoch, done = divmod(chunk - 1, 4)
        assert said == ([f"going on after epoch {epoch}, chunk {done}"] if chunk > 1 else [])


@pytest.mark.usefixtures("_often")
def test_stopped_again_and_again(tmp_path: Path, unbroken: Pretrainer) -> None:
    for chunk in range(2, CHUNKS + 1):
        with pytest.raises(InterruptedTrainingError):
            kept(fresh(), tmp_path / "c.safetensors", raise_at(chunk))
    assert_same_training(kept(fresh(), tmp_path / "c.safetensors"), unbroken)


@pytest.mark.usefixtures("_often", "_large")
def test_with_a_sampled_softmax_too(tmp_path: Path) -> None:
    unbroken = fresh(negatives=9)
    unbroken.run()
    for chunk in (2, 5):
        path = tmp_path / f"{chunk}.safetensors"
        with pytest.raises(InterruptedTrainingError):
            kept(fresh(negatives=9), path, raise_at(chunk))
        assert_same_training(kept(fresh(negatives=9), path), unbroken)


@pytest.mark.usefixtures("_often")
def test_the_checkpoint_of_a_pretraining_that_is_over(tmp_path: Path, unbroken: Pretrainer) -> None:
    kept(fresh(), tmp_path / "c.safetensors")
    chunks: list[int] = []
    assert_same_training(kept(fresh(), tmp_path / "c.safetensors", chunks.append), unbroken)
    assert chunks == []


@pytest.mark.usefixtures("_small_chunks")
def test_checkpoints_are_written_now_and_then(
    tmp_path: Path, unbroken: Pretrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.safetensors"
    assert_same_training(kept(fresh(), path), unbroken)
    assert not path.exists()  # a minute was not over
    written: list[Path] = []
    monkeypatch.setattr(Pretrainer, "save", lambda _, path, __: written.append(path))
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", -1.0)
    kept(fresh(), path)
    assert written[0] == path
    slow: list[Path] = []

    def save(_: Pretrainer, path: Path, __: object) -> None:
        slow.append(path)
        clock[0] += 10

    clock = [0.0]
    monkeypatch.setattr(Pretrainer, "save", save)
    monkeypatch.setattr(pretraining.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(pretraining, "CHECKPOINT_SECONDS", 60.0)

    def tick(_: int) -> None:
        clock[0] += 61

    kept(fresh(), path, tick)
    assert len(slow) == 2  # after 61 s, and not before 200 more: writing takes a twentieth of the time at most


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("chunk", [1, 4, 8])
def test_a_first_signal_ends_the_chunk_and_saves(tmp_path: Path, unbroken: Pretrainer, number: int, chunk: int) -> None:
    path, said = tmp_path / "c.safetensors", list[str]()

    def stop(done: int) -> None:
        if done == chunk:
            os.kill(os.getpid(), number)

    with handler(signal.SIGINT, signal.default_int_handler):
        before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(
            InterruptedTrainingError, match=r"^stopped; .*c\.safetensors holds what was lear"
        ) as stopped:
            kept(fresh(), path, stop, said)
        assert stopped.value.signal == number
        assert said == ["stopping at the end of this chunk; once more to stop at once"]
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert_same_training(kept(fresh(), path), unbroken)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.usefixtures("_small_chunks")
def test_a_signal_after_the_last_chunk_is_not_lost(tmp_path: Path, unbroken: Pretrainer) -> None:
    path, trainer = tmp_path / "c.safetensors", fresh()
    load = trainer.model.load_state_dict

    def late(state: Any) -> Any:  # the best weights are put back when all chunks are done
        os.kill(os.getpid(), signal.SIGTERM)
        return load(state)

    trainer.model.load_state_dict = late  # type: ignore[method-assign,assignment]
    with handler(signal.SIGTERM, signal.SIG_DFL), pytest.raises(InterruptedTrainingError, match=r"^stopped; "):
        kept(trainer, path)
    assert_same_training(kept(fresh(), path), unbroken)


@pytest.mark.usefixtures("_small_chunks")
def test_in_another_thread(tmp_path: Path, unbroken: Pretrainer) -> None:
    found: list[Pretrainer] = []
    thread = threading.Thread(target=lambda: found.append(kept(fresh(), tmp_path / "c.safetensors")))
    thread.start()
    thread.join(60)
    assert_same_training(found[0], unbroken)


# ---------------------------------------------------------------- a checkpoint of something else, or of nothing


@pytest.fixture
def checkpoint(tmp_path: Path, _often: None) -> Path:
    path = tmp_path / "c.safetensors"
    with pytest.raises(InterruptedTrainingError):
        kept(fresh(), path, raise_at(6))
    return path


@pytest.mark.parametrize("what", ["graph", "settings"])
def test_the_checkpoint_of_another_pretraining(checkpoint: Path, what: str) -> None:
    before = checkpoint.read_bytes()
    with pytest.raises(InputError, match=rf"is the checkpoint of another pre-training: it has another {what}\. Use"):
        kept(fresh(), checkpoint, identity=IDENTITY | {what: "other"})
    assert checkpoint.read_bytes() == before


def test_damaged_checkpoints(checkpoint: Path) -> None:
    whole = checkpoint.read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    for damaged in (b"", whole[:10], whole[: len(whole) // 2], whole[:-1], bytes(flipped), b"junk" * 100):
        checkpoint.write_bytes(damaged)
        with pytest.raises(InputError, match=r"Delete this checkpoint to begin anew$"):
            kept(fresh(), checkpoint)
        assert checkpoint.read_bytes() == damaged


def test_checkpoints_that_do_not_fit(checkpoint: Path) -> None:
    tensors, meta = load_tensors(checkpoint)
    progress: Any = meta["progress"]
    short = {name: tensor for name, tensor in tensors.items() if name != "model.table"}
    cases: list[tuple[dict[str, torch.Tensor], dict[str, object]]] = [
        (tensors | {"model.table": torch.zeros(3, 8)}, meta),
        (short, meta),
        (tensors, {key: value for key, value in meta.items() if key != "progress"}),
        (tensors, meta | {"progress": progress | {"mood": 1}}),
        (tensors, meta | {"progress": [1]}),
    ]
    for changed, about in cases:
        save_tensors(checkpoint, changed, about)
        with pytest.raises(InputError, match="does not fit this pre-training"):
            kept(fresh(), checkpoint)


def test_a_checkpoint_of_other_people(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "c.safetensors"
    save_file({"table": torch.zeros(2)}, path)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=r"not a readable file of weights.*Delete this checkpoint to begin anew$"):
        kept(fresh(), path)
    assert contents(tmp_path) == before


def test_masks_and_unknown_words_are_really_there() -> None:
    """What the other tests rest on: the settings of these tests do mask, and show unknown words."""
    trainer = Pretrainer(tiny_graph(), SGPMSettings(**(LEARNS | {"unknown_share": 0.1})), CPU)
    words = torch.cat([batch.words.flatten() for batch in trainer.validation_batches()])
    assert {60 + MASK, 60 + UNK} <= set(words.tolist())


# ---------------------------------------------------------------- features


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_unit_rows(kind: Callable[[Any], Any]) -> None:
    x = np.array([[3.0, -4.0], [0.0, 0.0], [0.0, 2.0]], dtype=np.float32)
    found = unit_rows(kind(x))
    assert type(found) is type(kind(x))
    assert found.dtype == np.float32
    dense = found if isinstance(found, np.ndarray) else found.toarray()
    np.testing.assert_allclose(dense, [[0.6, -0.8], [0, 0], [0, 1]], rtol=1e-6)


@pytest.mark.parametrize("large", [False, True])
def test_with_unit_features_the_size_of_a_row_changes_nothing(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    if large:
        monkeypatch.setattr(pretraining, "SPARSE_VOCABULARY", 3)
    graph = tiny_graph()
    longer = dataclasses.replace(graph, x=(8 * np.asarray(graph.x)).astype(np.float32))
    first, second = (pretrained_trainer(each) for each in (graph, longer))
    for name, weight in weights(first).items():
        torch.testing.assert_close(weights(second)[name], weight, msg=name)
    plain = [weights(pretrained_trainer(each, unit_features=False)) for each in (graph, longer)]
    assert any(not torch.equal(weight, plain[1][name]) for name, weight in plain[0].items())


def test_nothing_is_collected_during_a_recording() -> None:
    class Freed:
        """Garbage in a circle, as a trainer with its recorded steps is."""

        seen: bool | None = None

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            Freed.seen = gc.isenabled()

    Freed()
    with suppress(RuntimeError), pretraining._garbage_kept():
        assert Freed.seen is True, "what lies about is collected before"
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled(), "after an error too"
