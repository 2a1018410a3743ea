"""Temperature scaling: right on numbers made for it, the same everywhere, and never a change of a prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from tests.test_cli import Cli, cli
from tests.tiny import CPU, TINY, tiny_config, tiny_graph, tiny_split, write_folder
from tokenphormer import TokenphormerClassifier
from tokenphormer.errors import InputError
from tokenphormer.evaluation.metrics import evaluate
from tokenphormer.evaluation.run_folder import load_run
from tokenphormer.graph import Split
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.training import fit
from tokenphormer.training.calibration import HIGHEST, LOWEST, fit_temperature, soften
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.loop import predict

__all__ = ["cli"]  # the fixture

GRAPH = tiny_graph(num_nodes=120)
SPLIT = tiny_split(GRAPH)
KNOWN = 3.0
"""A temperature that no fit would find by accident."""


def test_classes_that_are_a_hair_apart_keep_their_order() -> None:
    """In float32 a high temperature makes them the same number, of which the first class would be the prediction."""
    close = np.array([[0.49999997, 0.5], [0.25, 0.75], [0.5, 0.5]], dtype=np.float32)
    for temperature in (3.0, HIGHEST):
        softened = soften(close, temperature)
        assert softened.argmax(axis=1).tolist() == close.argmax(axis=1).tolist() == [1, 1, 0]
        assert softened.dtype == np.float32
        assert softened.sum(axis=1) == pytest.approx(1)


def drawn(
    count: int = 20_000, temperature: float = 1.0, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Scores, and labels drawn from the probabilities that they have at a temperature."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 3, (count, 4))
    chances = softmax(scores / temperature, axis=1)
    labels = (chances.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1)
    return scores, np.minimum(labels, 3)


# ---------------------------------------------------------------- the numbers


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 7.0])
def test_softening_is_a_division_of_the_scores(temperature: float) -> None:
    scores, _ = drawn(50)
    found = soften(softmax(scores, axis=1), temperature)
    assert found == pytest.approx(softmax(scores / temperature, axis=1))
    assert soften(found, 1 / temperature) == pytest.approx(softmax(scores, axis=1))


def test_softening_keeps_type_order_and_zeros() -> None:
    given = np.array([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]], np.float32)
    assert soften(given, 1.0) is given
    for temperature in (LOWEST, 2.0, HIGHEST):
        found = soften(given, temperature)
        assert found.dtype == np.float32
        assert found.sum(axis=1) == pytest.approx(1, abs=1e-6)
        assert (np.argsort(-found, axis=1, kind="stable") == np.argsort(-given, axis=1, kind="stable")).all()
    assert soften(np.zeros((0, 3), np.float32), 2.0).shape == (0, 3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 4.0])
def test_the_temperature_is_found_again(temperature: float) -> None:
    scores, labels = drawn(temperature=temperature)
    given = softmax(scores, axis=1).astype(np.float32)
    found = fit_temperature(given, labels)
    assert found == pytest.approx(temperature, rel=0.05)
    before, after = (evaluate(each, labels) for each in (given, soften(given, found)))
    assert after.accuracy == before.accuracy
    assert after.log_loss <= before.log_loss
    assert after.calibration_error < 0.015
    if temperature != 1.0:
        assert before.calibration_error > 2 * after.calibration_error


def test_nobody_becomes_certain() -> None:
    """Ten nodes, all right: the lowest loss is at 0."""
    assert (LOWEST, HIGHEST) == (0.2, 10)  # as docs/calibration.md has them
    given = np.tile(np.array([[0.9, 0.1]], np.float32), (10, 1))
    assert fit_temperature(given, np.zeros(10, np.int64)) == pytest.approx(LOWEST, rel=0.01)
    assert fit_temperature(given, np.ones(10, np.int64)) == pytest.approx(HIGHEST, rel=0.01)


def test_where_nothing_is_better_nothing_changes() -> None:
    given = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert fit_temperature(given, np.array([0, 1])) == 1.0
    assert fit_temperature(np.full((4, 2), 0.5, np.float32), np.array([0, 1, 0, 1])) == 1.0


def test_a_class_that_was_ruled_out_is_no_accident() -> None:
    given = np.array([[1.0, 0.0], [1.0, 0.0], [0.9, 0.1]], np.float32)
    assert LOWEST < fit_temperature(given, np.array([0, 1, 0])) <= HIGHEST


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("votes", [1, 3])
def test_accuracy_does_not_change(votes: int) -> None:
    plain, calibrated = (
        fit_tokenphormer(GRAPH, SPLIT, tiny_config(votes=votes, calibrate=wanted), CPU) for wanted in (False, True)
    )
    assert plain.method.temperature == 1.0
    assert calibrated.method.temperature != 1.0
    nodes = np.arange(GRAPH.num_nodes)
    raw = predict(plain.method, nodes, tiny_config(votes=votes), CPU)
    found = predict(calibrated.method, nodes, tiny_config(votes=votes), CPU)
    assert (raw.argmax(axis=1) == found.argmax(axis=1)).all()
    assert not np.allclose(raw, found, atol=1e-3)
    assert found == pytest.approx(soften(raw, calibrated.method.temperature), abs=1e-6)
    y = GRAPH.y[SPLIT.val]
    assert evaluate(found[SPLIT.val], y).log_loss < evaluate(raw[SPLIT.val], y).log_loss


def test_only_validation_nodes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        seen.append((probabilities, labels))
        return KNOWN

    monkeypatch.setattr(fit, "fit_temperature", watched)
    fitted = fit_tokenphormer(GRAPH, SPLIT, tiny_config(calibrate=True), CPU)
    assert fitted.method.temperature == KNOWN
    ((probabilities, labels),) = seen
    assert probabilities.shape == (len(SPLIT.val), 3)
    assert (labels == GRAPH.y[SPLIT.val]).all()


def test_without_validation_nodes() -> None:
    with pytest.raises(
        InputError, match="calibrate: a temperature is fitted on validation nodes, and the split has none"
    ):
        fit_tokenphormer(GRAPH, Split(SPLIT.train, [], SPLIT.test), tiny_config(calibrate=True), CPU)


def test_validation_nodes_that_tell_nothing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    easy = Split(SPLIT.train, SPLIT.val[:2], SPLIT.test)
    monkeypatch.setattr(fit, "fit_temperature", lambda *_: LOWEST)
    fit_tokenphormer(GRAPH, easy, tiny_config(calibrate=True), CPU, say=said.append)
    assert said == [
        "calibrate: the temperature is 0.20, the end of what is looked at; the 2 validation nodes tell too little "
        "about how sure to be"
    ]


# ---------------------------------------------------------------- the classifier


@pytest.fixture
def hot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fit finds the same, large temperature, so that nobody can forget it unnoticed."""
    monkeypatch.setattr(fit, "fit_temperature", lambda *_: KNOWN)


@pytest.mark.usefixtures("hot")
@pytest.mark.parametrize("votes", [1, 2])
def test_classifier_explanations_and_files(tmp_path: Path, votes: int) -> None:
    plain, classifier = (
        TokenphormerClassifier(**TINY, votes=votes, calibrate=wanted, device="cpu").fit(GRAPH, SPLIT)
        for wanted in (False, True)
    )
    expected = soften(plain.predict_proba(), KNOWN)
    assert classifier.predict_proba() == pytest.approx(expected, abs=1e-6)
    assert (classifier.predict() == plain.predict()).all()
    assert classifier.score() == plain.score()
    other = tiny_graph(num_nodes=30, seed=7)
    assert classifier.predict_proba(other) == pytest.approx(soften(plain.predict_proba(other), KNOWN), abs=1e-6)
    explained = classifier.explain(5)
    assert explained.probabilities == pytest.approx(expected[5], abs=1e-5)
    assert explained.predicted == plain.explain(5).predicted
    classifier.save_pretrained(tmp_path)
    loaded = TokenphormerClassifier.from_pretrained(tmp_path, device="cpu")
    assert loaded.calibrate
    assert loaded.predict_proba(GRAPH) == pytest.approx(expected, abs=1e-6)
    assert loaded.explain(5, GRAPH).probabilities == pytest.approx(expected[5], abs=1e-5)


@pytest.mark.usefixtures("hot")
def test_occlusion_is_about_the_calibrated_probability() -> None:
    classifier = TokenphormerClassifier(**TINY, calibrate=True, device="cpu").fit(GRAPH, SPLIT)
    explainer = classifier.explainer()
    reading = explainer.read(np.array([5]))
    raw = TokenphormerClassifier(**TINY, device="cpu").fit(GRAPH, SPLIT).explainer().read(np.array([5]))
    keep = np.ones((1, len(reading.kinds)), bool)
    keep[0, -1] = False
    owner = np.zeros(1, np.int64)
    assert reading.of_kept(owner, keep) == pytest.approx(soften(raw.of_kept(owner, keep), KNOWN), abs=1e-6)


@pytest.mark.parametrize("value", [torch.tensor(0.0), torch.tensor(float("nan")), torch.ones(2)])
def test_a_temperature_that_is_none_is_refused(tmp_path: Path, value: torch.Tensor) -> None:
    classifier = TokenphormerClassifier(**TINY, calibrate=True, device="cpu").fit(GRAPH, SPLIT)
    classifier.save_pretrained(tmp_path)
    weights, meta = load_tensors(tmp_path / "model.safetensors")
    save_tensors(tmp_path / "model.safetensors", weights | {"temperature": value}, meta)
    with pytest.raises(InputError, match="the weights do not fit the settings: a temperature of"):
        TokenphormerClassifier.from_pretrained(tmp_path, device="cpu").predict(GRAPH)


# ---------------------------------------------------------------- runs


@pytest.mark.usefixtures("hot")
def test_train_predict_and_what_is_written(cli: Cli) -> None:
    write_folder(GRAPH, Path("mine"), Split(range(60), range(60, 90), range(90, 120)))
    quick = [f"--set={key}={value}" for key, value in TINY.items()]
    answers = {}
    for name, more in (("plain", []), ("calibrated", ["--set", "calibrate=true"])):
        answers[name] = cli("train", "mine", *quick, *more, "--device", "cpu", "--out", name, "--seeds", 2)
        assert answers[name].code == 0, answers[name]
    lines = answers["calibrated"].out.splitlines()
    assert lines[0] == answers["plain"].out.splitlines()[0]  # the accuracy
    assert lines[1].startswith("temperature 3.000: test calibration error ")
    assert "temperature" not in answers["plain"].out

    before, after = (_json(f"{name}/metrics.json") for name in ("plain", "calibrated"))
    found: dict[str, Any] = after.pop("calibration")
    assert "calibration" not in before
    assert after["test_accuracy"] == before["test_accuracy"]
    assert found["temperature"] == KNOWN
    for name, key in (("plain", "before"), ("calibrated", "after")):
        seed = _json(f"{name}/seeds/{after['best_seed']}/metrics.json")
        for part in ("train", "val", "test"):
            assert found[key][part] == pytest.approx(seed["metrics"][part]["calibration_error"], abs=1e-5)
    assert _json(f"calibrated/seeds/{after['best_seed']}/metrics.json")["calibration"] == found

    report = Path("calibrated/report.html").read_text(encoding="utf-8")
    assert "before temperature scaling" in report
    assert "A temperature of 3.00, fitted on validation nodes, took the error from" in report
    assert "temperature scaling" not in Path("plain/report.html").read_text(encoding="utf-8")
    assert "Calibrated on validation nodes: temperature 3.000: test" in Path("calibrated/model_card.md").read_text(
        "utf-8"
    )

    written = pd.read_csv("calibrated/predictions.csv")["probability"]
    assert cli("predict", "calibrated", "--out", "p.csv", "--device", "cpu").code == 0
    assert pd.read_csv("p.csv")["probability"].tolist() == pytest.approx(written.tolist(), abs=1e-6)
    raw = pd.read_csv("plain/predictions.csv")["probability"]
    assert not np.allclose(raw, written, atol=0.01)
    classifier, _ = load_run("calibrated", device="cpu")
    assert float(classifier.weights_["temperature"]) == KNOWN


@pytest.mark.usefixtures("hot")
def test_served_probabilities_are_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenphormer.evaluation.runs import train_run
    from tokenphormer.serve.explorer import Explorer, open_run

    write_folder(GRAPH, tmp_path / "mine")
    from tokenphormer.graph import load_graph

    graph = load_graph(str(tmp_path / "mine"))
    split = tiny_split(graph)
    train_run(graph, str(tmp_path / "mine"), split, tiny_config(calibrate=True), tmp_path / "run", CPU)
    explorer = Explorer(open_run(tmp_path / "run", device="cpu"))
    explorer.load()
    expected, _ = load_run(tmp_path / "run", device="cpu")
    assert explorer.predictions.probabilities == pytest.approx(expected.predict_proba(graph), abs=1e-6)
    assert explorer.method.temperature == KNOWN


def _json(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return found
