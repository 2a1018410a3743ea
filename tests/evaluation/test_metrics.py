"""Metrics against scikit-learn, against hand-made cases and against a loop too plain to be wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import sklearn.metrics as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.evaluation import Metrics, evaluate
from tokenphormer.evaluation.metrics import calibration_bins

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def random_predictions(seed: int, m: int, classes: int, sharpness: float = 2.0) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, size=m)
    scores = rng.normal(size=(m, classes))
    scores[np.arange(m), labels] += sharpness
    exponentials = np.exp(scores)
    return exponentials / exponentials.sum(axis=1, keepdims=True), labels


def slow_calibration_error(probabilities: Floats, labels: Ints, bins: int = 15) -> float:
    total = 0.0
    for number in range(bins):
        low, high = number / bins, (number + 1) / bins
        inside = [i for i in range(len(labels)) if low < max(probabilities[i]) <= high]
        if inside:
            confidence = sum(max(probabilities[i]) for i in inside) / len(inside)
            accuracy = sum(int(np.argmax(probabilities[i])) == labels[i] for i in inside) / len(inside)
            total += len(inside) / len(labels) * abs(confidence - accuracy)
    return total


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_against_scikit_learn(seed: int, classes: int) -> None:
    probabilities, labels = random_predictions(seed, 60, classes)
    found, predicted = evaluate(probabilities, labels), probabilities.argmax(axis=1)
    everything = np.arange(classes)
    assert found.count == 60
    assert found.accuracy == pytest.approx(reference.accuracy_score(labels, predicted))
    assert found.macro_f1 == pytest.approx(reference.f1_score(labels, predicted, average="macro"))
    assert found.balanced_accuracy == pytest.approx(reference.balanced_accuracy_score(labels, predicted))
    assert np.array_equal(found.confusion, reference.confusion_matrix(labels, predicted, labels=everything))
    assert found.log_loss == pytest.approx(reference.log_loss(labels, probabilities, labels=everything))
    assert found.calibration_error == pytest.approx(slow_calibration_error(probabilities, labels))
    if classes == 2:
        assert found.roc_auc == pytest.approx(reference.roc_auc_score(labels, probabilities[:, 1]))
        assert found.pr_auc == pytest.approx(reference.average_precision_score(labels, probabilities[:, 1]))
    else:
        assert found.roc_auc is None
        assert found.pr_auc is None


def test_by_hand() -> None:
    probabilities = np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1]])
    found = evaluate(probabilities, np.array([0, 1, 1, 0]))
    # Class 2 occurs neither among labels nor predictions: no recall, and no part of the mean F1.
    assert found.recall == (1.0, 0.5, None)
    assert found.confusion == ((2, 0, 0), (1, 1, 0), (0, 0, 0))
    assert found.accuracy == 0.75
    assert found.macro_f1 == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found.balanced_accuracy == 0.75
    assert found.log_loss == pytest.approx(-(math.log(0.7) + math.log(0.4) + math.log(0.8) + math.log(0.6)) / 4)
    # 0.5, 0.6, 0.7 and 0.8 lie in bins of their own: |0.5 − 0| + |0.6 − 1| + |0.7 − 1| + |0.8 − 1|.
    assert found.calibration_error == pytest.approx((0.5 + 0.4 + 0.3 + 0.2) / 4)


def test_a_class_that_is_predicted_but_never_true_lowers_macro_f1() -> None:
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    found = evaluate(probabilities, np.array([0, 0]))
    assert found.macro_f1 == pytest.approx((2 / 3 + 0) / 2)
    assert found.recall == (0.5, None)
    assert found.roc_auc is None
    assert found.pr_auc is None


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_one_node(classes: int) -> None:
    found = evaluate(np.eye(classes)[:1], np.array([0]))
    assert (found.count, found.accuracy, found.macro_f1, found.log_loss) == (1, 1.0, 1.0, 0.0)
    assert found.calibration_error == 0.0
    assert found.roc_auc is None


def test_certain_and_wrong_is_finite() -> None:
    found = evaluate(np.array([[1.0, 0.0]]), np.array([1]))
    assert found.log_loss == pytest.approx(52 * math.log(2))
    assert found.calibration_error == 1.0


def test_confidence_on_an_edge_belongs_to_the_lower_bin() -> None:
    bins = calibration_bins(np.array([[0.6, 0.4], [0.8, 0.2], [1.0, 0.0]]), np.zeros(3, np.int64), num_bins=5)
    assert bins.count.tolist() == [0, 0, 1, 1, 1]
    assert np.isnan(bins.accuracy[0])


def test_json_holds_plain_types_only() -> None:
    probabilities, labels = random_predictions(0, 30, 3)
    found = evaluate(probabilities.astype(np.float32), labels).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert set(found) == set(Metrics.__dataclass_fields__)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 6), st.floats(0, 6))
@settings(max_examples=60, deadline=None)
def test_bounds_and_twins(seed: int, m: int, classes: int, sharpness: float) -> None:
    probabilities, labels = random_predictions(seed, m, classes, sharpness)
    found = evaluate(probabilities, labels)
    for value in (found.accuracy, found.macro_f1, found.balanced_accuracy, found.calibration_error):
        assert 0 <= value <= 1
    assert found.log_loss >= 0
    assert found.calibration_error == pytest.approx(slow_calibration_error(probabilities, labels), abs=1e-12)
    counts = np.asarray(found.confusion)
    assert counts.sum() == m
    assert np.trace(counts) / m == pytest.approx(found.accuracy)
    assert [value is None for value in found.recall] == (counts.sum(axis=1) == 0).tolist()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.floats(0.9, 1.0))
@settings(max_examples=40, deadline=None)
def test_perfect_and_confident(labels: list[int], confidence: float) -> None:
    truth = np.asarray(labels)
    probabilities = np.full((len(labels), 5), (1 - confidence) / 4)
    probabilities[np.arange(len(labels)), truth] = confidence
    found = evaluate(probabilities, truth)
    assert (found.accuracy, found.macro_f1, found.balanced_accuracy) == (1.0, 1.0, 1.0)
    assert found.calibration_error == pytest.approx(1 - confidence, abs=1e-12)


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (np.empty((0, 3)), np.empty(0, np.int64), "no predictions"),
        (np.ones(3), np.zeros(3, np.int64), "shape"),
        (np.ones((3, 1)), np.zeros(2, np.int64), "shape"),
        (np.full((2, 2), 0.5), np.array([0, 2]), "0 to 1"),
        (np.full((2, 2), 0.5), np.array([0, -1]), "leave unlabelled nodes out"),
        (np.full((2, 2), 0.5), np.array([0.0, 1.0]), "class numbers"),
        (np.array([[0.5, 0.5], [3.0, -2.0]]), np.array([0, 1]), "row 1"),
        (np.array([[0.5, 0.9]]), np.array([0]), "sum to 1"),
        (np.array([[np.nan, 1.0]]), np.array([0]), "row 0"),
    ],
)
def test_bad_input_is_refused(probabilities: Floats, labels: Ints, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(probabilities, labels)
