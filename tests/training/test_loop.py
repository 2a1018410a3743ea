"""The training loop against plain torch, and what it does when memory, numbers or labels fail."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tests.training.methods import (
    CLASSES,
    BreakingMethod,
    LinearMethod,
    ScriptedMethod,
    linear_settings,
    linear_trainer,
)
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.training.fit import Fitted, fit_tokenphormer
from tokenphormer.training.loop import Labelled, Trainer, learning_rate, predict
from tokenphormer.training.tokenphormer import TokenphormerMethod


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=tolerance)


# ---------------------------------------------------------------- schedule


@pytest.mark.parametrize(
    ("update", "rate"), [(1, 0.1), (5, 0.5), (10, 1.0), (11, 0.829), (15, 0.325), (19, 0.109), (20, 0.1), (999, 0.1)]
)
def test_schedule(update: int, rate: float) -> None:
    settings = linear_settings(
        learning_rate=1.0, end_learning_rate=0.1, warmup_updates=10, decay_updates=20, decay_power=2.0
    )
    assert learning_rate(update, settings) == pytest.approx(rate)


@pytest.mark.parametrize(("warmup", "decay"), [(0, 0), (0, 1), (5, 5)])
def test_schedules_without_a_slope(warmup: int, decay: int) -> None:
    settings = linear_settings(learning_rate=1.0, end_learning_rate=0.1, warmup_updates=warmup, decay_updates=decay)
    rates = [learning_rate(update, settings) for update in range(1, 9)]
    assert rates == [pytest.approx(u / 5) if u <= warmup else 0.1 for u in range(1, 9)]


def test_the_schedule_counts_updates_and_reaches_the_optimiser() -> None:
    rates: list[tuple[float, float]] = []
    trainer = linear_trainer(LinearMethod(), warmup_updates=20, decay_updates=40, batch_size=5, max_epochs=3)
    trainer.run(lambda t: rates.append((t.progress.history[-1]["learning_rate"], t.optimiser.param_groups[0]["lr"])))
    assert trainer.progress.updates == 12  # 16 nodes in batches of 5
    assert rates == [(pytest.approx(0.05 * u / 20),) * 2 for u in (4, 8, 12)]


# ---------------------------------------------------------------- stopping


SCRIPT = [(2, 1.0), (6, 1.0), (6, 0.9), (5, 9.0), (6, 1.3), (6, 1.3), (6, 9.0), (6, 1.2), (0, 1.0), (0, 1.0), (8, 1.0)]


@pytest.mark.parametrize(
    ("patience", "last", "best", "stopped"),
    [
        (2, 4, 2, "no better validation result for 2 epochs"),
        (3, 8, 5, "no better validation result for 3 epochs"),
        (6, 11, 11, "all 11 epochs are done"),
    ],
)
def test_accuracy_first_then_loss_decides(patience: int, last: int, best: int, stopped: str) -> None:
    """Epoch 5 is as accurate as epoch 2 with a lower loss; epoch 6 only equals it."""
    trainer = linear_trainer(ScriptedMethod(SCRIPT), patience=patience, max_epochs=11)
    seen: list[dict[str, Tensor]] = []
    progress = trainer.run(lambda t: seen.append(weights(t.method.module)))
    assert (progress.epoch, progress.best_epoch, progress.stopped) == (last, best, stopped)
    assert [row["val_accuracy"] for row in progress.history] == [right / 8 for right, _ in SCRIPT[:last]]
    assert progress.best_accuracy == progress.history[best - 1]["val_accuracy"]
    assert_equal(weights(trainer.method.module), seen[best - 1])


def test_validation_is_a_prediction_and_each_epoch_begins_anew() -> None:
    """With the walks and signs of a first vote, not with those that the epoch was trained on."""
    calls: list[str] = []

    class Telling(LinearMethod):
        def begin_epoch(self, epoch: int) -> None:
            calls.append(f"epoch {epoch}")

        def begin_prediction(self, draw: int) -> None:
            calls.append(f"vote {draw}")

        def scores(self, nodes: Tensor) -> Tensor:
            calls.append("trains" if self.module.training else "predicts")
            return super().scores(nodes)

    linear_trainer(Telling(), max_epochs=2).run()
    assert calls == [call for n in (1, 2) for call in (f"epoch {n}", "trains", "vote 0", "predicts")]


def test_the_best_weights_are_a_copy() -> None:
    trainer = linear_trainer(ScriptedMethod([(8, 1.0), (0, 1.0)]), max_epochs=3)
    trainer.run()
    kept = copy.deepcopy(trainer.best)
    with torch.no_grad():
        for parameter in trainer.method.module.parameters():
            parameter.add_(1.0)
    assert_equal(trainer.best, kept)


def test_dropout_is_another_in_every_epoch_and_with_every_seed() -> None:
    runs: list[list[float]] = []

    class Drawing(LinearMethod):
        def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
            runs[-1].append(float(torch.rand(())))
            return super().loss(nodes, criterion)

    for seed in (0, 1, 0):
        runs.append([])
        linear_trainer(Drawing(), max_epochs=4, seed=seed).run()
    assert runs[0] == runs[2]
    assert len({*runs[0], *runs[1]}) == 8


# ---------------------------------------------------------------- one update, against plain torch


BALANCED = torch.tensor([16 / (3 * 6), 16 / (3 * 5), 16 / (3 * 5)], dtype=torch.float32)  # nodes 0 to 15: 6, 5 and 5


@pytest.mark.parametrize("micro_batch", [1000, 16, 5, 1])
@pytest.mark.parametrize(
    ("changes", "weight", "smoothing", "clip"),
    [
        ({}, None, 0.0, 0.0),
        ({"label_smoothing": 0.3}, None, 0.3, 0.0),
        ({"class_weights": "balanced"}, BALANCED, 0.0, 0.0),
        ({"class_weights": "balanced", "label_smoothing": 0.3}, BALANCED, 0.3, 0.0),
        ({"gradient_clip": 0.01}, None, 0.0, 0.01),
        ({"gradient_clip": 100.0}, None, 0.0, 0.0),
    ],
)
def test_an_update_is_that_of_plain_torch(
    micro_batch: int, changes: dict[str, object], weight: Tensor | None, smoothing: float, clip: float
) -> None:
    method = LinearMethod(micro_batch)
    plain = copy.deepcopy(method.module)
    optimiser = torch.optim.AdamW(plain.parameters(), lr=learning_rate(1, linear_settings()), weight_decay=0.1)
    scores = plain(method.x[:16])
    loss = F.cross_entropy(scores, CLASSES[:16], weight, label_smoothing=smoothing)
    loss.backward()  # type: ignore[no-untyped-call]
    if clip:
        torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
    optimiser.step()

    # AdamW's first step barely depends on the size of a gradient, so gradients are compared too.
    trainer = linear_trainer(method, max_epochs=1, **changes)
    trainer._update(trainer._pieces("train", torch.arange(16)))
    for ours, theirs in zip(method.module.parameters(), plain.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-7)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert [len(nodes) for nodes in method.seen] == {1000: [16], 16: [16], 5: [4] * 4, 1: [1] * 16}[micro_batch]


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_l2_is_adams_own_decay(clip: float) -> None:
    method = LinearMethod(1000)
    plain = copy.deepcopy(method.module)
    optimiser = torch.optim.Adam(plain.parameters(), weight_decay=0.2)
    trainer = linear_trainer(method, max_epochs=1, weight_decay=0.0, l2=0.2, gradient_clip=clip)
    for update in (1, 2, 3):
        optimiser.param_groups[0]["lr"] = learning_rate(update, linear_settings())
        optimiser.zero_grad()
        F.cross_entropy(plain(method.x[:16]), CLASSES[:16]).backward()  # type: ignore[no-untyped-call]
        if clip:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        optimiser.step()
        trainer._update(trainer._pieces("train", torch.arange(16)))
    for ours, theirs in zip(method.module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_the_running_mean_is_judged_and_kept_and_training_goes_on_from_the_last_weights(share: float) -> None:
    """Against sums by hand; the weights that are trained are to the bit those of a training without a mean."""
    changes = {"batch_size": 5, "max_epochs": 3, "warmup_updates": 2}  # four updates an epoch
    seen: list[dict[str, Tensor]] = []
    plain = linear_trainer(LinearMethod(), **changes)
    step = plain._update

    def watched(pieces: list[Tensor]) -> Tensor:
        loss = step(pieces)
        seen.append(weights(plain.method.module))
        return loss

    plain._update = watched  # type: ignore[method-assign]
    plain.run()
    last: list[dict[str, Tensor]] = []
    trainer = linear_trainer(LinearMethod(), weight_average=share, **changes)
    trainer.run(lambda t: last.append(weights(t.method.module)))
    assert_equal(last[-1], seen[-1])

    means, ends = dict(seen[0]), []
    for update, now in enumerate(seen[1:], start=2):
        kept = min(share, (update - 1) / (update + 3))
        means = {name: kept * means[name] + (1 - kept) * now[name] for name in means}
        if update % 4 == 0:
            ends.append(means)
    assert_equal(trainer.best, ends[trainer.progress.best_epoch - 1], 1e-6)
    assert_equal(weights(trainer.method.module), trainer.best)
    assert any(not torch.allclose(trainer.best[name], end[name]) for end in seen for name in end)
    for row, end in zip(trainer.progress.history, ends, strict=True):
        module = copy.deepcopy(trainer.method.module)
        module.load_state_dict(end)
        loss = F.cross_entropy(module(trainer.method.x[trainer.val_nodes]), trainer.labels[trainer.val_nodes])  # type: ignore[attr-defined]
        assert row["val_loss"] == pytest.approx(loss.item(), abs=1e-5)


def test_options_of_the_loss_change_it() -> None:
    """The comparison above would be empty if the plain side ignored an option as well."""
    options = [{}, {"label_smoothing": 0.3}, {"class_weights": "balanced"}, {"gradient_clip": 0.01}]
    norms = []
    for changes in options:
        trainer = linear_trainer(LinearMethod(), **changes)
        trainer._update([torch.arange(16)])
        gradients = [p.grad.flatten() for p in trainer.method.module.parameters() if p.grad is not None]
        norms.append(round(float(torch.cat(gradients).norm()), 6))
    assert len(set(norms)) == len(options)
    assert norms[-1] == 0.01


@pytest.mark.parametrize("changes", [{"label_smoothing": 0.3}, {"class_weights": "balanced"}])
def test_validation_is_judged_by_the_plain_loss(changes: dict[str, object]) -> None:
    trainer = linear_trainer(LinearMethod(), max_epochs=1, **changes)
    trainer.run()
    with torch.no_grad():
        scores = trainer.method.scores(trainer.val_nodes)
    expected = F.cross_entropy(scores, CLASSES[16:]).item()
    assert trainer.progress.history[0]["val_loss"] == pytest.approx(expected, abs=1e-6)


def test_weights_of_absent_classes_and_even_ones() -> None:
    nodes = np.arange(4)
    labelled = Labelled(nodes, np.array([0, 0, 0, 2]))
    settings = linear_settings(class_weights="balanced")
    trainer = Trainer(LinearMethod(), labelled, labelled, 3, settings, CPU)
    torch.testing.assert_close(trainer.class_weight, torch.tensor([4 / 6, 0.0, 2.0]))
    assert torch.equal(linear_trainer(LinearMethod()).class_weight, torch.ones(3))


def test_every_batch_of_an_epoch_is_new_and_whole() -> None:
    method = LinearMethod(micro_batch=3)
    trainer = linear_trainer(method, batch_size=7, max_epochs=1)
    epochs = [[torch.cat(batch).tolist() for batch in trainer._training_batches(epoch)] for epoch in (1, 2, 1)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [7, 7, 2]
        assert sorted(node for batch in batches for node in batch) == list(range(16))
    assert epochs[0] == epochs[2]
    assert epochs[0] != epochs[1]
    another = linear_trainer(method, batch_size=7, max_epochs=1, seed=1)
    assert epochs[0] != [torch.cat(batch).tolist() for batch in another._training_batches(1)]


def test_micro_batches_of_the_real_method_add_up() -> None:
    graph = tiny_graph()
    split = tiny_split(graph)
    config = tiny_config(dropout=0.0, attention_dropout=0.0, num_walks=4)
    gradients = []
    for size in (1000, 7):
        method = TokenphormerMethod(graph, config, 3, CPU)
        method.micro_batch = size
        train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
        trainer = Trainer(method, train, val, 3, config, CPU)
        trainer._gradients(trainer._pieces("train", torch.tensor(split.train)))
        gradients.append({n: p.grad.clone() for n, p in method.module.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 10
    assert_equal(gradients[0], gradients[1], 1e-6)


# ---------------------------------------------------------------- memory


def test_running_out_of_memory_halves_the_batch_and_changes_nothing_else() -> None:
    said: list[str] = []
    plenty, little = LinearMethod(), LinearMethod(memory=3)
    expected = linear_trainer(plenty).run()
    found = linear_trainer(little, said.append).run()
    assert said == [f"out of memory: the batch is now worked off {n} nodes at a time" for n in (8, 4, 2)]
    assert max(map(len, little.seen)) <= 3
    assert_equal(weights(little.module), weights(plenty.module), 1e-6)
    assert [row["val_accuracy"] for row in found.history] == [row["val_accuracy"] for row in expected.history]
    nodes = np.arange(24)
    np.testing.assert_allclose(*(predict(m, nodes, linear_settings(), CPU) for m in (plenty, little)), atol=1e-6)


def test_memory_may_run_out_in_validation_alone() -> None:
    said: list[str] = []
    method = LinearMethod(memory=4)
    trainer = linear_trainer(method, said.append, batch_size=4)
    trainer.run()
    assert said == ["out of memory: the batch is now worked off 4 nodes at a time"]
    assert_equal(weights(method.module), _trained_with_plenty(batch_size=4), 1e-6)


def _trained_with_plenty(**changes: object) -> dict[str, Tensor]:
    trainer = linear_trainer(LinearMethod(), **changes)
    trainer.run()
    return weights(trainer.method.module)


def test_no_memory_for_one_node() -> None:
    method = LinearMethod(memory=0)
    with pytest.raises(ResourceError, match=r"out of memory with a single node at a time \(1 nodes do not fit\)"):
        linear_trainer(method).run()
    with pytest.raises(ResourceError, match="out of memory with a single node"):
        predict(method, np.arange(5), linear_settings(), CPU)


class WholeMethod(LinearMethod):
    """Every pass is over all nodes, in pieces of at most `memory`, which cannot be smaller than `least`."""

    scores_all = True

    def __init__(self, memory: int, least: int) -> None:
        super().__init__()
        self.piece, self.fits, self.least = len(self.x), memory, least

    def shrink(self) -> int:
        self.piece = self.piece // 2 if self.piece >= 2 * self.least else 0
        return self.piece

    def scores(self, nodes: Tensor) -> Tensor:
        if self.piece > self.fits:
            raise torch.OutOfMemoryError(f"{self.piece} nodes do not fit")
        return super().scores(nodes)


def test_what_scores_all_nodes_makes_its_own_pieces_smaller() -> None:
    said: list[str] = []
    method = WholeMethod(memory=6, least=1)
    linear_trainer(method, said.append).run()
    assert said == [f"out of memory: all nodes of the graph are now scored {n} nodes at a time" for n in (12, 6)]
    assert max(map(len, method.seen)) == max(map(len, _seen_with_plenty())), "batches stay as large as they were"
    assert_equal(weights(method.module), _trained_with_plenty(), 1e-6)


def _seen_with_plenty() -> list[list[int]]:
    method = LinearMethod()
    linear_trainer(method).run()
    return method.seen


def test_what_scores_all_nodes_and_cannot_do_with_less_says_so() -> None:
    said: list[str] = []
    told = r"out of memory \(24 nodes do not fit\): every pass scores all nodes of the graph; use smaller settings"
    with pytest.raises(ResourceError, match=told):
        linear_trainer(WholeMethod(memory=6, least=24), said.append).run()
    assert said == []
    with pytest.raises(ResourceError, match=told):
        predict(WholeMethod(memory=6, least=24), np.arange(5), linear_settings(), CPU)


def test_what_scores_all_nodes_predicts_with_less_memory() -> None:
    """A model that was loaded may never have been trained on this machine."""
    method, nodes = WholeMethod(memory=6, least=1), np.arange(24)
    found = predict(method, nodes, linear_settings(), CPU)
    assert method.piece == 6
    np.testing.assert_allclose(found, predict(LinearMethod(), nodes, linear_settings(), CPU), atol=1e-6)


def test_scores_that_are_passed_on_are_worked_out_in_smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_graph()
    config = tiny_config(score_hops=2, consistency=0.5, dropout=0.0, attention_dropout=0.0, max_epochs=3)
    expected = fit_tokenphormer(graph, tiny_split(graph), config, CPU)
    whole, sizes, said = TokenphormerMethod.own_scores, [], []

    def own_scores(self: TokenphormerMethod, nodes: Tensor) -> Tensor:
        if len(nodes) > 20:
            raise torch.OutOfMemoryError("too many")
        sizes.append(len(nodes))
        return whole(self, nodes)

    monkeypatch.setattr(TokenphormerMethod, "own_scores", own_scores)
    found = fit_tokenphormer(graph, tiny_split(graph), config, CPU, say=said.append)
    assert said == [f"out of memory: all nodes of the graph are now scored {n} nodes at a time" for n in (30, 15)]
    assert set(sizes) == {15}
    assert_equal(weights(found.method.module), weights(expected.method.module), 1e-5)


def test_settings_beyond_any_memory() -> None:
    graph = tiny_graph()
    for width in (10**12, 10**18):
        with pytest.raises(ResourceError, match=r"not enough memory: .*; use smaller settings"):
            fit_tokenphormer(graph, tiny_split(graph), tiny_config(hidden_channels=width), CPU)


# ---------------------------------------------------------------- numbers that are none


def test_a_loss_that_breaks_keeps_the_last_good_weights() -> None:
    said: list[str] = []
    good: list[dict[str, Tensor]] = []
    method = BreakingMethod(update=7)  # two updates an epoch: the first of epoch 4
    trainer = linear_trainer(method, said.append, batch_size=8, max_epochs=9)
    progress = trainer.run(lambda t: good.append(weights(t.method.module)))
    assert progress.stopped == "the loss was nan at update 7 of epoch 4"
    assert said == [f"stopped: {progress.stopped}; the best weights, of epoch {progress.best_epoch}, are kept"]
    assert progress.epoch == 3
    assert len(progress.history) == 3
    assert_equal(weights(method.module), good[progress.best_epoch - 1])
    assert torch.isfinite(method.module.weight).all()


def test_a_validation_that_breaks_keeps_the_last_good_weights() -> None:
    """Scores that are no numbers name class 0, which can be the best accuracy so far."""
    said: list[str] = []
    method = BreakingMethod(validation=3)
    progress = linear_trainer(method, said.append, max_epochs=9).run()
    assert progress.stopped == "the validation loss was nan after update 3 of epoch 3"
    assert progress.best_epoch in (1, 2)
    assert len(said) == 1


@pytest.mark.parametrize("method", [BreakingMethod(update=1), BreakingMethod(validation=1)])
def test_numbers_that_break_at_once(method: BreakingMethod) -> None:
    said: list[str] = []
    with pytest.raises(InputError, match=r"found no weights to keep: .* update 1 of epoch 1; lower learning_rate"):
        linear_trainer(method, said.append).run()
    assert said == []


# ---------------------------------------------------------------- labels


def fit(graph: Graph, split: Split, said: list[str] | None = None, **changes: object) -> Fitted:
    remarks: list[str] = [] if said is None else said
    return fit_tokenphormer(graph, split, tiny_config(**changes), CPU, say=remarks.append)


def test_parts_without_nodes() -> None:
    graph = tiny_graph()
    with pytest.raises(InputError, match="part 'train' has no labelled node"):
        fit(graph, Split([], [1, 2], [3]))
    with pytest.raises(InputError, match=r"part 'val' has no labelled node.*label more nodes.*column 'split'"):
        fit(graph, Split([1, 2], [], [3]))
    with pytest.raises(InputError, match=r"part 'train': node 'n,\"59\" ü' has no label"):
        fit(tiny_graph(unlabelled=1), Split([0, 1, 59], [2], []))


def test_one_class() -> None:
    with pytest.raises(InputError, match="there is 1 class; telling classes apart takes at least 2"):
        fit(tiny_graph(y=np.zeros(60, int), class_names=("only",)), Split(range(30), range(30, 60), []))
    with pytest.raises(InputError, match="all training nodes are of one class"):
        fit(tiny_graph(), Split(range(0, 30, 3), range(30, 60), []))


@pytest.mark.parametrize("weighing", ["none", "balanced"])
def test_a_class_that_training_never_sees_is_said(weighing: str) -> None:
    graph = tiny_graph()
    said: list[str] = []
    train = [node for node in range(30) if graph.y[node] != 1]
    fitted = fit(graph, Split(train, range(30, 60), []), said, class_weights=weighing)
    assert [line.split(":")[0] for line in said] == [f"no training node is of class {graph.class_names[1]}"]
    assert np.isfinite(predict(fitted.method, np.arange(60), tiny_config(), CPU)).all()


def test_test_labels_are_not_looked_at() -> None:
    graph = tiny_graph()
    split = tiny_split(graph)
    y = graph.y.copy()
    y[split.test] = (y[split.test] + 1) % 3
    one, other = (fit(g, split).method.module.state_dict() for g in (graph, tiny_graph(y=y)))
    assert_equal(one, other)


# ---------------------------------------------------------------- the same again


def test_the_same_seed_gives_the_same_weights() -> None:
    graph = tiny_graph()
    split = tiny_split(graph)
    changes = {"fresh_walks": True, "batch_size": 16, "max_epochs": 4}
    first, second, third = (fit(graph, split, seed=seed, **changes) for seed in (5, 5, 6))
    assert_equal(first.method.module.state_dict(), second.method.module.state_dict())
    assert not torch.equal(first.method.module.head[0].weight, third.method.module.head[0].weight)
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in f.progress.history] for f in (first, second)]
    assert rows[0] == rows[1]


def test_what_ran_before_does_not_matter() -> None:
    graph = tiny_graph()
    first = fit(graph, tiny_split(graph))
    torch.manual_seed(12345)
    torch.rand(100)
    assert_equal(first.method.module.state_dict(), fit(graph, tiny_split(graph)).method.module.state_dict())


def test_threads_change_nothing_that_counts() -> None:
    graph = tiny_graph(num_nodes=150)
    split = tiny_split(graph)
    config = tiny_config(hidden_channels=32, max_epochs=5)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            fitted = fit_tokenphormer(graph, split, config, CPU)
            found.append((fitted.progress.best_accuracy, predict(fitted.method, np.arange(150), config, CPU)))
        finally:
            torch.set_num_threads(1)
    assert found[0][0] == pytest.approx(found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-4)


def test_deterministic_is_on_in_training_only() -> None:
    graph = tiny_graph()
    seen: list[bool] = []
    fit_tokenphormer(
        graph,
        tiny_split(graph),
        tiny_config(deterministic=True),
        CPU,
        after_epoch=lambda _: seen.append(torch.are_deterministic_algorithms_enabled()),
    )
    assert seen == [True] * 3
    assert not torch.are_deterministic_algorithms_enabled()


# ---------------------------------------------------------------- prediction


def test_votes_are_averaged() -> None:
    graph = tiny_graph()
    fitted = fit(graph, tiny_split(graph))
    nodes = np.array([3, 50, 7])
    method = fitted.method
    draws = []
    for draw in range(3):
        method.begin_prediction(draw)
        with torch.no_grad():
            draws.append(F.softmax(method.scores(torch.tensor(nodes)), dim=1).numpy())
    assert not np.allclose(draws[0], draws[1])
    np.testing.assert_allclose(predict(method, nodes, tiny_config(votes=3), CPU), np.mean(draws, axis=0), atol=1e-6)
    np.testing.assert_allclose(predict(method, nodes, tiny_config(), CPU), draws[0], atol=1e-7)


def test_prediction_of_no_nodes_and_in_pieces() -> None:
    method = LinearMethod(micro_batch=5)
    whole = predict(LinearMethod(), np.arange(24), linear_settings(), CPU)
    np.testing.assert_allclose(predict(method, np.arange(24), linear_settings(votes=2), CPU), whole, atol=1e-6)
    assert method.draws == [0, 1]
    assert [len(nodes) for nodes in method.seen] == [5, 5, 5, 5, 4] * 2
    assert predict(method, np.array([], np.int64), linear_settings(), CPU).shape == (0, 3)


def test_features_are_looked_at_before_training() -> None:
    said: list[str] = []
    graph = tiny_graph(x=np.ones((60, 2)))
    fit(graph, tiny_split(graph), said)
    assert said == ["every node has the same features: only the graph's structure can tell nodes apart"]
    wide = tiny_graph(x=np.full((60, 2), 1e7) * np.arange(1, 61)[:, None])
    with pytest.raises(InputError, match=r"features reach 6e\+08; scale them"):
        fit(wide, tiny_split(wide))
    fit(wide, tiny_split(wide), normalise_features=True)
    for x in (None, np.zeros((60, 0))):
        bare = tiny_graph(x=x)
        with pytest.raises(InputError, match="graph 'tiny' has no features"):
            fit(bare, tiny_split(bare))
        assert fit(bare, tiny_split(bare), walk_pe=4).progress.epoch == 3


def test_features_that_were_scaled_after_opening_a_graph_on_disk(tmp_path: Path) -> None:
    x = np.full((60, 2), 1e7) * np.arange(1, 61)[:, None]
    write_graph(tiny_graph(x=x), tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    with pytest.raises(InputError, match=r"features reach 6e\+08; scale them"):
        fit(graph, tiny_split(graph))
    scaled = dataclasses.replace(graph, x=(x / 1e8).astype(np.float32))
    assert fit(scaled, tiny_split(scaled)).progress.epoch == 3


def test_time_and_memory_are_measured() -> None:
    graph = tiny_graph()
    fitted = fit(graph, tiny_split(graph))
    assert 0 < sum(row["seconds"] for row in fitted.progress.history) <= fitted.seconds < 60
    assert 10e6 < fitted.peak_memory_bytes < 100e9
