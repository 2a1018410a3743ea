"""Training and prediction on graphs on disk: the same answers as in memory, from the few rows that batches visit."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tokenphormer.classifier import TokenphormerClassifier
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.tokens.stored_hops import stored_hops
from tokenphormer.training.estimate import estimate
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.loop import predict
from tokenphormer.training.presets import config_for
from tokenphormer.training.tokenphormer import TokenphormerMethod, activation_bytes
from tokenphormer.walks import KINDS, sample_walks
from tokenphormer.walks.sampling import csr_arrays


def on_disk(tmp_path: Path, graph: Graph, name: str = "g", **options: Any) -> Graph:
    write_graph(graph, tmp_path / name, **options)
    return open_graph(tmp_path / name)


# ---------------------------------------------------------------- walks


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_walks_are_those_of_memory(tmp_path: Path, kind: Any, weighted: bool) -> None:
    rng = np.random.default_rng(0)
    weight = rng.random(900) + 0.01 if weighted else None
    graph = Graph.from_edges(rng.integers(0, 300, (2, 900)), num_nodes=300, edge_weight=weight)
    stored = on_disk(tmp_path, graph)
    assert torch.equal(sample_walks(stored, kind, 5, 6), sample_walks(graph, kind, 5, 6))
    indptr, indices, running = csr_arrays(stored)
    assert indptr is stored.indptr  # neither copied nor narrowed
    assert indices is stored.indices
    assert running is None or isinstance(running.base, np.memmap)


def test_weights_that_were_cut_off_are_made_anew(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(rng.integers(0, 30, (2, 90)), num_nodes=30, edge_weight=rng.random(90) + 0.01)
    expected = sample_walks(on_disk(tmp_path, graph), "uniform", 5, 6)
    (kept,) = (tmp_path / "g" / "cache").glob("*-weights.npy")
    kept.write_bytes(kept.read_bytes()[:-8])
    assert torch.equal(sample_walks(open_graph(tmp_path / "g"), "uniform", 5, 6), expected)


# ---------------------------------------------------------------- the same answers


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_hops": 3, "hop_normalisation": "row"},
        {"num_hops": 2, "normalise_features": True},
        {"num_hops": 0},
        {"num_walks": 0},
        {"walk_pe": 3, "num_hops": 2},
        {"laplacian_pe": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("sparse", [False, True])
def test_predictions_are_those_of_memory(tmp_path: Path, sparse: bool, changes: dict[str, Any]) -> None:
    graph = tiny_graph()
    if sparse:
        graph = dataclasses.replace(graph, x=sp.csr_array(np.where(np.asarray(graph.x) > 0, graph.x, 0)))
    config = tiny_config(**changes)
    fitted = fit_tokenphormer(graph, tiny_split(graph), config, CPU)
    weights = fitted.method.module.state_dict()
    stored = TokenphormerMethod(on_disk(tmp_path, graph), config, 3, CPU, weights=weights)
    assert not stored.source.whole
    everyone = np.arange(graph.num_nodes)
    expected = predict(fitted.method, everyone, config, CPU)
    assert np.allclose(predict(stored, everyone, config, CPU), expected, atol=1e-5)


def test_half_precision_is_near(tmp_path: Path) -> None:
    graph = tiny_graph()
    config = tiny_config(num_hops=2)
    fitted = fit_tokenphormer(graph, tiny_split(graph), config, CPU)
    half = on_disk(tmp_path, graph, half=True)
    stored = TokenphormerMethod(half, config, 3, CPU, weights=fitted.method.module.state_dict())
    expected = predict(fitted.method, np.arange(60), config, CPU)
    assert np.allclose(predict(stored, np.arange(60), config, CPU), expected, atol=0.02)


def test_training_learns(tmp_path: Path) -> None:
    graph = on_disk(tmp_path, tiny_graph())
    classifier = TokenphormerClassifier(**tiny_config(max_epochs=20).__dict__, device="cpu")
    assert classifier.fit(graph, tiny_split(graph)).score() > 0.6


def test_a_checkpoint_of_memory_goes_on_from_disk(tmp_path: Path) -> None:
    """The fingerprint is that of the content, wherever it lies."""
    graph = tiny_graph()
    assert on_disk(tmp_path, graph).fingerprint == graph.fingerprint


# ---------------------------------------------------------------- only what is visited


class Watched(np.ndarray[Any, np.dtype[np.float32]]):
    """Features that note which rows are taken, and refuse to be gone through."""

    rows: ClassVar[set[int]] = set()

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError(f"{index} is not a list of rows")

    def take(self, indices: Any, axis: Any = None, **_: Any) -> Any:
        Watched.rows.update(indices.tolist())
        return self.view(np.ndarray).take(indices, axis)

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("all features are gone through")


def test_only_rows_that_walks_visit_are_read(tmp_path: Path) -> None:
    graph = on_disk(tmp_path, tiny_graph(num_nodes=3000))
    split = Split(range(20), range(20, 30), range(30, 40))
    config = tiny_config(num_walks=3, walk_length=2, num_hops=2)
    stored_hops(graph, config.hop_normalisation, 2)
    x: Any = np.asarray(graph.x).view(Watched)
    assert graph.stored is not None
    content = (*graph.content[:3], x, *graph.content[4:])  # it is the folder's own, so hops are those that are there
    watched = dataclasses.replace(graph, x=x, stored=dataclasses.replace(graph.stored, content=content))
    Watched.rows.clear()
    method = TokenphormerMethod(watched, config, 3, CPU)
    assert not Watched.rows, "nothing is read before the first batch"
    walks = method.source.walks(torch.arange(40)).numpy()
    fit_tokenphormer(watched, split, config, CPU)
    assert Watched.rows <= set(walks[:30].ravel().tolist())
    assert len(Watched.rows) > 30
    predict(method, np.arange(30, 40), config, CPU)
    assert Watched.rows <= set(walks.ravel().tolist())


def test_the_manifest_warns_of_features(tmp_path: Path) -> None:
    graph = tiny_graph()
    high = on_disk(tmp_path, dataclasses.replace(graph, x=np.asarray(graph.x) * np.float32(1e8)))
    with pytest.raises(InputError, match="features reach"):
        fit_tokenphormer(high, tiny_split(graph), tiny_config(), CPU)
    said: list[str] = []
    flat = on_disk(tmp_path, dataclasses.replace(graph, x=np.ones((60, 5), np.float32)), "flat")
    fit_tokenphormer(flat, tiny_split(graph), tiny_config(max_epochs=1), CPU, say=said.append)
    assert any("every node has the same features" in line for line in said)


# ---------------------------------------------------------------- estimates


def test_the_estimate_counts_the_disk(tmp_path: Path) -> None:
    graph = on_disk(tmp_path, tiny_graph())
    split, config = tiny_split(graph), tiny_config(num_hops=3)
    before = estimate(graph, split, config, CPU)
    assert (before.disk_bytes, before.gpu_bytes) == (3 * 60 * 5 * 4, 0)
    assert before.prepare_seconds > 0
    fit_tokenphormer(graph, split, config, CPU)
    written = sum(path.stat().st_size for path in (tmp_path / "g" / "cache").glob("*.npy"))
    assert written == before.disk_bytes + 3 * 128  # headers
    after = estimate(graph, split, config, CPU)
    assert (after.disk_bytes, after.prepare_seconds) == (0, 0)
    assert estimate(tiny_graph(), split, config, CPU).disk_bytes == 0


def test_the_estimate_grows_with_the_work(tmp_path: Path) -> None:
    graph = on_disk(tmp_path, tiny_graph(num_nodes=600))
    split = tiny_split(graph)

    def guess(**changes: Any) -> Any:
        return estimate(graph, split, tiny_config(**changes), CPU)

    base = guess()
    assert guess(hidden_channels=512).host_bytes > base.host_bytes
    assert guess(num_walks=200).host_bytes > base.host_bytes
    assert guess(num_walks=200, hidden_channels=64).epoch_seconds > guess(num_walks=2, hidden_channels=64).epoch_seconds
    assert guess(max_epochs=300).longest_seconds > base.longest_seconds
    wide = on_disk(tmp_path, tiny_graph(num_nodes=600, num_features=500), "wide")
    assert estimate(wide, split, tiny_config(), CPU).disk_bytes == 100 * base.disk_bytes
    assert any("hop features" in line for line in base.lines())


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize(
    "changes", [{}, {"consistency": 1.0}, {"score_hops": 2}, {"score_hops": 2, "consistency": 1.0}, {"batch_size": 7}]
)
def test_the_estimate_counts_the_nodes_that_an_epoch_scores(
    changes: dict[str, Any], pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the training part alone: all of them where scores are passed on, and twice for consistency."""
    graph = tiny_graph()
    split, config = tiny_split(graph), tiny_config(max_epochs=1, num_walks=0, **changes)
    monkeypatch.setattr("tokenphormer.training.tokenphormer.activation_bytes", lambda *_: 1)
    monkeypatch.setattr("tokenphormer.training.tokenphormer.CPU_BYTES", graph.num_nodes // pieces)
    monkeypatch.setattr("tokenphormer.training.estimate._matrix_rate", lambda *_: 1.0)
    forward, backward = 0, 0
    own_scores = TokenphormerMethod.own_scores

    def counted(method: TokenphormerMethod, nodes: torch.Tensor) -> torch.Tensor:
        nonlocal forward
        forward += len(nodes)  # first, since what is worked out again ends with the last number that is needed
        scores = own_scores(method, nodes)
        if scores.requires_grad:
            scores.register_hook(back)
        return scores

    def back(gradient: torch.Tensor) -> None:
        nonlocal backward
        backward += len(gradient)

    def seconds_of_a_node() -> float:
        """From an epoch that scores one node: to train and to validate on it."""
        one = Split(split.train[:1], split.train[:0], split.test, "one")
        return estimate(graph, one, tiny_config(num_walks=0), CPU).epoch_seconds / 3

    monkeypatch.setattr(TokenphormerMethod, "own_scores", counted)
    fit_tokenphormer(graph, split, config, CPU)
    seconds = estimate(graph, split, config, CPU).epoch_seconds
    assert seconds / seconds_of_a_node() == pytest.approx(forward + 2 * backward)


def test_the_estimate_counts_all_that_an_update_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes where scores are passed on; nodes twice, and as many others, where scorings are to agree."""
    graph = tiny_graph(num_nodes=600)
    split = tiny_split(graph)
    train, val, _ = split.sizes
    one = activation_bytes(tiny_config(), tokens=4, width=4)
    monkeypatch.setattr("tokenphormer.training.estimate._matrix_rate", lambda *_: 1e9)

    def guess(**changes: Any) -> Any:
        return estimate(graph, split, tiny_config(**changes), CPU)

    plain, agreeing = guess(), guess(consistency=1.0)
    passed, both = guess(score_hops=2), guess(score_hops=2, consistency=1.0)
    assert passed.host_bytes - plain.host_bytes >= (600 - train) * one
    assert both.host_bytes - passed.host_bytes >= 600 * one
    assert agreeing.host_bytes - plain.host_bytes >= 3 * train * one
    assert guess(score_hops=2, batch_size=8).host_bytes == passed.host_bytes
    assert agreeing.epoch_seconds / plain.epoch_seconds == pytest.approx((12 * train + val) / (3 * train + val))
    assert both.epoch_seconds / passed.epoch_seconds == pytest.approx((6 + 1) / (3 + 1))

    monkeypatch.setattr("tokenphormer.training.tokenphormer.CPU_BYTES", 100 * one)  # in pieces, one after another
    pieces = guess(score_hops=2, consistency=1.0).host_bytes
    assert pieces == guess(score_hops=2).host_bytes < passed.host_bytes


def test_half_precision_takes_no_less_where_the_model_takes_the_graph_whole(tmp_path: Path) -> None:
    """Its features are in single precision there."""
    graph = tiny_graph(num_nodes=600, num_features=500)
    write_graph(graph, tmp_path / "half", half=True)
    split, config = tiny_split(graph), tiny_config(row_activation=True, score_hops=2, num_hops=1)
    half = estimate(open_graph(tmp_path / "half"), split, config, CPU)
    assert half.host_bytes == estimate(graph, split, config, CPU).host_bytes


def test_a_moment_of_other_work_does_not_mislead_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that take 1 ms; at first, while another program has the cores, four times as long."""
    graph = tiny_graph()

    def guess(disturbed: int) -> float:
        ticks = [0.0]
        for number in range(10_000):
            ticks += [ticks[-1] + (0.004 if number < disturbed else 0.001)] * 2
        monkeypatch.setattr("tokenphormer.training.estimate.time.perf_counter", iter(ticks).__next__)
        seconds = estimate(graph, tiny_split(graph), tiny_config(), CPU).epoch_seconds
        monkeypatch.undo()
        return seconds

    assert guess(disturbed=20) == pytest.approx(guess(disturbed=0))
    assert guess(disturbed=10_000) == pytest.approx(4 * guess(disturbed=0))


def test_what_takes_a_graph_whole_holds_a_small_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights and predictions as from memory, also in half precision; a large one is refused, not read."""
    graph, config = tiny_graph(), tiny_config(row_activation=True, score_hops=2, num_hops=1)
    split, everyone = tiny_split(graph), np.arange(graph.num_nodes)
    wanted = predict(fit_tokenphormer(graph, split, config, CPU).method, everyone, config, CPU)
    for half, near in ((False, 1e-6), (True, 1e-2)):
        stored = on_disk(tmp_path, graph, str(half), half=half)
        found = fit_tokenphormer(stored, split, config, CPU).method
        assert found.source.whole
        np.testing.assert_allclose(predict(found, everyone, config, CPU), wanted, atol=near)
    assert config_for(stored, split, CPU) == config_for(graph, split, CPU)
    monkeypatch.setattr("tokenphormer.training.tokenphormer.MOST_NODES", graph.num_nodes - 1)
    with pytest.raises(InputError, match=r"row_activation: '.*' \(\d+ nodes\) is too large to be projected whole"):
        fit_tokenphormer(stored, split, config, CPU)
