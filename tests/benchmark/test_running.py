"""One run: what is in its row, and that no test label is within reach of anything that trains or tunes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.benchmark.fakes import CPU
from tests.tiny import TINY
from tokenphormer.baselines import BASELINES, load_baseline
from tokenphormer.baselines.mlp import MLP
from tokenphormer.benchmark import methods, running
from tokenphormer.benchmark.methods import METHODS, entry
from tokenphormer.benchmark.rows import FORMAT
from tokenphormer.benchmark.running import SEARCH_SPLITS, Job, blind, halves, run, split_of, values_tuple
from tokenphormer.errors import DatasetMissingError, InputError, ResourceError
from tokenphormer.evaluation.metrics import evaluate
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.splits import PROTOCOLS
from tokenphormer.training.loop import predict

SHORT: dict[str, Any] = {"max_epochs": 3}


def job(kind: str = "final", model: str = "mlp", split: int = 0, protocol: str = "stratified", **values: Any) -> Job:
    trial = 0 if kind == "trial" else -1
    return Job(kind, model, "cora", protocol, split, values_tuple(SHORT | values), seed=split, trial=trial)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A method called `spy` that keeps what it is given."""
    seen: list[Any] = []

    class Spy(MLP):
        def __init__(self, task: Any, settings: Any) -> None:
            super().__init__(task, settings)
            seen.append(task)

        def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
            seen.append(nodes)
            return super().loss(nodes, criterion)

    monkeypatch.setitem(BASELINES, "spy", "")
    monkeypatch.setattr(methods, "load_baseline", lambda name: Spy if name == "spy" else load_baseline(name))
    return seen


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize("kind", ["trial", "final"])
def test_a_method_sees_training_labels_alone(tiny_datasets: Graph, spy: list[Any], kind: str) -> None:
    row = run(job(kind, "spy"), CPU)
    assert row["status"] == "done"
    split = split_of(tiny_datasets, "stratified", 0)
    task, *batches = spy
    assert (task.graph.y == -1).all()
    assert task.graph.splits == ()
    assert task.train_nodes.tolist() == split.train.tolist()
    assert task.train_classes.tolist() == tiny_datasets.y[split.train].tolist()
    assert len(batches) == 3
    assert all(set(nodes.tolist()) == set(split.train.tolist()) for nodes in batches)
    arrays = [v for v in vars(task).values() if isinstance(v, np.ndarray)]
    assert all(len(array) == len(split.train) for array in arrays)  # nothing else that could hold a label


def test_tokenphormer_is_given_a_blind_graph(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Watched(methods.TokenphormerMethod):
        def __init__(self, graph: Graph, *others: Any, **named: Any) -> None:
            seen.append(graph)
            super().__init__(graph, *others, **named)

    monkeypatch.setattr(methods, "TokenphormerMethod", Watched)
    assert run(job(model="tokenphormer", **TINY), CPU)["status"] == "done"
    assert [(set(graph.y.tolist()), graph.splits) for graph in seen] == [({-1}, ())]


def test_blind_takes_the_labels_and_nothing_else(tiny_datasets: Graph) -> None:
    hidden = blind(tiny_datasets)
    assert (hidden.y == -1).all()
    assert hidden.x is tiny_datasets.x
    assert hidden.indices is tiny_datasets.indices
    assert (tiny_datasets.y >= 0).all()


@pytest.mark.parametrize("model", METHODS)
def test_test_labels_change_nothing_but_the_test_accuracy(
    tiny_datasets: Graph, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every method twice, the second time with all test labels wrong: whatever it learns and reports stays the same."""
    split = split_of(tiny_datasets, "stratified", 0)
    wrong = tiny_datasets.y.copy()
    wrong[split.test] = (wrong[split.test] + 1) % 3
    small = TINY if model.startswith("tokenphormer") else {}
    rows = []
    for y in (tiny_datasets.y, wrong):
        graph = dataclasses.replace(tiny_datasets, y=y)
        monkeypatch.setattr(running, "dataset", lambda name, graph=graph: graph)
        monkeypatch.setattr(running, "split_of", lambda *_: split)
        epochs = 30 if model == "tokenphormer+" else 2  # so that it tells classes apart at all
        rows.append(run(job(model=model, **small | {"max_epochs": epochs}), CPU))
    right, changed = rows
    assert right["status"] == "done", right
    same = ("val_accuracy", "val_loss", "epochs", "best_epoch", "parameters", "split_hash", "config_hash")
    assert {name: right[name] for name in same} == {name: changed[name] for name in same}
    assert right["test_accuracy"] != changed["test_accuracy"]


def test_validation_labels_do_count(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    split = split_of(tiny_datasets, "stratified", 0)
    before = run(job(), CPU)
    wrong = tiny_datasets.y.copy()
    wrong[split.val] = (wrong[split.val] + 1) % 3
    monkeypatch.setattr(running, "dataset", lambda name: dataclasses.replace(tiny_datasets, y=wrong))
    monkeypatch.setattr(running, "split_of", lambda *_: split)
    assert run(job(), CPU)["val_loss"] != before["val_loss"]


def test_trials_have_no_test_accuracy(tiny_datasets: Graph) -> None:
    trial, final = run(job("trial", split=SEARCH_SPLITS), CPU), run(job("final"), CPU)
    assert not [name for name in trial if "test" in name]
    assert {"test_accuracy", "test_macro_f1"} <= final.keys()


def test_held_out_nodes_judge_and_do_not_stop(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of the half that judges change what is said, and nothing in training; those of the other half do."""
    split = split_of(tiny_datasets, "stratified", SEARCH_SPLITS)
    stopping, judging = halves(split, SEARCH_SPLITS)
    assert set(stopping) | set(judging) == set(split.val)
    assert not set(stopping) & set(judging)
    assert abs(len(stopping) - len(judging)) <= 1
    asked = dataclasses.replace(job("trial", split=SEARCH_SPLITS), judged="held-out")
    found = {}
    for name, changed in {"none": split.val[:0], "judging": judging, "stopping": stopping, "test": split.test}.items():
        y = tiny_datasets.y.copy()
        y[changed] = (y[changed] + 1) % 3
        monkeypatch.setattr(running, "dataset", lambda _, y=y: dataclasses.replace(tiny_datasets, y=y))
        monkeypatch.setattr(running, "split_of", lambda *_: split)
        row = run(asked, CPU)
        assert row["judged"] == "held-out"
        found[name] = (row["val_accuracy"], row["val_loss"])
    assert found["test"] == found["none"]
    assert found["judging"][1] == found["none"][1]
    assert found["judging"][0] != found["none"][0]
    assert found["stopping"][1] != found["none"][1]
    assert "judged" not in run(job("trial", split=SEARCH_SPLITS), CPU)


def test_halves_are_those_of_the_rows_and_others_on_every_split() -> None:
    """Rows of one split are of one machine and of another, of then and of now."""
    drawn = [[half.tolist() for half in halves(Split([0], range(1, 10), [10]), number)] for number in (100, 101)]
    assert drawn == [[[9, 4, 8, 1, 6], [3, 7, 2, 5]], [[3, 9, 4, 5, 1], [2, 8, 6, 7]]]


# ---------------------------------------------------------------- splits


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_search_splits_are_none_of_the_reported_ones(tiny_datasets: Graph, protocol: str) -> None:
    reported = {split_of(tiny_datasets, protocol, number).hash for number in range(10)}
    searched = {split_of(tiny_datasets, protocol, SEARCH_SPLITS + number).hash for number in range(3)}
    assert len(reported) == 10
    assert len(searched) == 3
    assert not reported & searched


@pytest.mark.parametrize("protocol", ["geom-gcn", "given"])
def test_searches_beside_fixed_splits_have_the_same_shares(tiny_datasets: Graph, protocol: str) -> None:
    fixed, drawn = (split_of(tiny_datasets, protocol, number).sizes for number in (0, SEARCH_SPLITS))
    assert np.abs(np.subtract(fixed, drawn)).max() <= 3  # rounding, once a class


def test_where_one_split_was_given_every_run_takes_it(tiny_datasets: Graph) -> None:
    graph = dataclasses.replace(tiny_datasets, splits=tiny_datasets.splits[:1])
    assert {split_of(graph, "given", number).hash for number in range(10)} == {graph.splits[0].hash}
    assert split_of(graph, "given", 100).hash != split_of(graph, "given", 101).hash, "searches have their own"


def test_where_one_split_was_given_no_search_sees_a_label_of_its_test_nodes(tiny_datasets: Graph) -> None:
    given = tiny_datasets.splits[0]
    graph = dataclasses.replace(tiny_datasets, splits=(given,))
    for number in range(SEARCH_SPLITS, SEARCH_SPLITS + 5):
        drawn = split_of(graph, "given", number)
        known = np.concatenate([drawn.train, drawn.val])
        assert np.array_equal(np.sort(known), np.sort(np.concatenate([given.train, given.val])))
        assert np.array_equal(drawn.test, given.test), "they are not read in a search"
        changed = np.array(graph.y)
        changed[given.test] = (changed[given.test] + 1) % graph.num_classes
        assert split_of(dataclasses.replace(graph, y=changed), "given", number).hash == drawn.hash


def test_two_stage_splits_begin_with_the_papers(tiny_datasets: Graph) -> None:
    assert split_of(tiny_datasets, "two-stage", 0).name == "two-stage-2021"
    assert split_of(tiny_datasets, "two-stage", 3).name == "two-stage-2024"


# ---------------------------------------------------------------- rows


def test_a_row_says_everything(tiny_datasets: Graph) -> None:
    row = run(job("final", split=2, dropout=0.2), CPU)
    split = split_of(tiny_datasets, "stratified", 2)
    assert json.loads(json.dumps(row)) == row
    about = {"kind": "final", "model": "mlp", "dataset": "cora", "protocol": "stratified", "split": 2, "seed": 2}
    about |= {"study": "main", "trial": -1, "status": "done", "format": FORMAT, "device": "cpu"}
    assert {name: row[name] for name in about} == about
    assert row["split_hash"] == split.hash
    assert row["config"] == {**entry("mlp").defaults, **SHORT, "dropout": 0.2}
    assert {"commit", "versions", "hardware", "config_hash", "time"} <= row.keys()
    assert 0 < row["preprocessing_seconds"] < row["seconds"]
    assert row["parameters"] == 5 * 64 + 64 + 64 * 3 + 3
    assert (row["epochs"], 1 <= row["best_epoch"] <= 3) == (3, True)
    assert row["peak_memory_bytes"] > 1e6


def test_the_same_job_gives_the_same_numbers(tiny_datasets: Graph) -> None:
    first, second = (run(job(), CPU) for _ in range(2))
    measured = {"time", "seconds", "preprocessing_seconds", "peak_memory_bytes"}
    assert {k: v for k, v in first.items() if k not in measured} == {
        k: v for k, v in second.items() if k not in measured
    }
    other = run(job(split=1), CPU)
    assert (other["split_hash"], other["val_loss"]) != (first["split_hash"], first["val_loss"])


def test_votes_are_the_mean_of_what_each_would_say(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    def keep(*given: Any) -> Any:
        said.append(predict(*given))
        return said[-1]

    monkeypatch.setattr(running, "predict", keep)
    alone = [run(dataclasses.replace(job(), seed=seed), CPU) for seed in (3, 1003, 2003)]
    assert len({probabilities.tobytes() for probabilities in said}) == 3
    row = run(dataclasses.replace(job(), seed=3, voters=3), CPU)
    assert [one.tolist() for one in said[:3]] == [one.tolist() for one in said[3:]]
    split = split_of(tiny_datasets, "stratified", 0)
    mean = np.mean(said[:3], axis=0)[len(split.val) :]
    assert row["test_accuracy"] == evaluate(mean, tiny_datasets.y[split.test]).accuracy
    assert (row["voters"], row["parameters"]) == (3, 3 * alone[0]["parameters"])
    assert row["epochs"] == sum(one["epochs"] for one in alone)
    assert row["val_loss"] == pytest.approx(np.mean([one["val_loss"] for one in alone]))
    assert "voters" not in alone[0]


def test_a_method_without_parameters_is_not_trained(tiny_datasets: Graph) -> None:
    row = run(job(model="label_propagation"), CPU)
    assert (row["status"], row["parameters"], row["epochs"], row["val_loss"]) == ("done", 0, 1, None)
    assert row["test_accuracy"] > 0.5


def test_a_run_is_not_charged_with_the_memory_of_the_one_before(tiny_datasets: Graph) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("only Linux can forget a process's peak")
    large = np.ones(40_000_000)
    assert large.sum() > 0
    held = run(job(model="label_propagation"), CPU)["peak_memory_bytes"]
    del large
    assert run(job(model="label_propagation"), CPU)["peak_memory_bytes"] < held - 200e6


def test_a_process_is_not_charged_with_the_memory_of_the_one_that_started_it() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("elsewhere the system does not tell")
    command = "import torch; from tokenphormer.training.fit import peak_memory as p; print(p(torch.device('cpu')))"
    alone = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    large = np.ones(int(alone.stdout) // 4)  # twice as much
    started = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert large.nbytes > 1.9 * int(alone.stdout)
    assert int(started.stdout) < 1.3 * int(alone.stdout)


def test_vectors_for_the_sgpm_token_arrive(tiny_datasets: Graph, tmp_path: Path) -> None:
    file = tmp_path / "vectors.npy"
    np.save(file, np.random.default_rng(0).normal(size=(tiny_datasets.num_nodes, 4)).astype(np.float32))
    plain = job(model="tokenphormer", **TINY)
    with_token = dataclasses.replace(plain, sgpm=f"{file}|embedding 0f0f")
    rows = [run(each, CPU) for each in (plain, with_token)]
    assert "sgpm" not in rows[0]
    assert rows[1]["sgpm"] == "embedding 0f0f"
    assert str(file) not in json.dumps(rows[1])
    assert rows[1]["parameters"] > rows[0]["parameters"]


# ---------------------------------------------------------------- what does not run


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ResourceError("needs about 99 GiB\nand more"), "did not run", "needs about 99 GiB"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried …"), "did not run", "CUDA out of memory. Tried …"),
        (MemoryError(), "did not run", "MemoryError"),
        (RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory"), "did not run", "[enforce fail]"),
        (InputError("the loss was nan " + "x" * 500), "failed", "the loss was nan x"),
    ],
)
def test_what_could_not_run_is_a_row_with_its_reason(
    tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str, reason: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(running, "build", fail)
    row = run(job(), CPU)
    assert row["status"] == status
    assert row["reason"].startswith(reason)
    assert len(row["reason"]) <= 300
    assert {"split_hash", "config_hash", "format", "time", "commit"} <= row.keys()
    assert not {"val_accuracy", "test_accuracy", "seconds"} & row.keys()


def test_a_broken_method_is_no_row(tiny_datasets: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(running, "build", fail)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run(job(), CPU)


def test_a_dataset_that_is_not_there_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Graph:
        raise DatasetMissingError(f"dataset '{name}': not on disk")

    monkeypatch.setattr(running, "dataset", missing)
    with pytest.raises(DatasetMissingError):
        run(job(), CPU)


def test_a_split_that_is_not_there_is_no_row(tiny_datasets: Graph) -> None:
    with pytest.raises(InputError, match="has geom-gcn splits 0 to 9, not 10"):
        run(job(split=10, protocol="geom-gcn"), CPU)


def test_values_can_be_sent_to_another_process() -> None:
    values = values_tuple({"walk_ratios": [1.0, 0.0], "dropout": 0.5})
    assert values == (("dropout", 0.5), ("walk_ratios", (1.0, 0.0)))
    hash(values)


def test_a_split_is_what_its_hash_says() -> None:
    assert Split([0], [1], [2]).hash != Split([0], [2], [1]).hash
