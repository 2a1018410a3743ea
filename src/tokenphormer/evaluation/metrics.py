"""How good predicted class probabilities are: accuracy, F1, recall, confusion, log loss, calibration, ranking."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError

CALIBRATION_BINS = 15
SUM_TOLERANCE = 1e-2
"""How far a row of probabilities may be from summing to one: half-precision outputs are."""

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Metrics:
    """What `evaluate` found."""

    count: int
    """Number of nodes."""
    accuracy: float
    macro_f1: float
    """Mean F1 over the classes that occur in the labels or in the predictions."""
    recall: tuple[float | None, ...]
    """Share of each class that was found; None for a class that no label names."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows: the true class. Columns: the predicted one."""
    log_loss: float
    """Mean −log of the probability given to the true class, at least 2⁻⁵² each."""
    calibration_error: float
    """Expected calibration error: |confidence − accuracy| in 15 bins of the top class's probability, weighted."""
    roc_auc: float | None
    """Area under the ROC curve of class 1; None unless there are two classes and both occur."""
    pr_auc: float | None
    """Average precision of class 1; None unless there are two classes and both occur."""

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that occur in the labels."""
        return float(np.mean([value for value in self.recall if value is not None]))

    def to_json(self) -> dict[str, Any]:
        """The fields as plain numbers and lists."""
        lists = {"recall": list(self.recall), "confusion": [list(row) for row in self.confusion]}
        return asdict(self) | lists


@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """Nodes grouped by the probability of their predicted class, in bins of equal width."""

    edges: NDArray[np.float64]
    """(bins + 1) a bin holds its upper edge, not its lower one."""
    count: Ints
    """(bins) number of nodes."""
    confidence: NDArray[np.float64]
    """(bins) mean probability of the predicted class; NaN in an empty bin."""
    accuracy: NDArray[np.float64]
    """(bins) share predicted rightly; NaN in an empty bin."""

    @property
    def error(self) -> float:
        """The expected calibration error."""
        held = self.count > 0
        gaps = np.abs(self.confidence[held] - self.accuracy[held])
        return float((gaps * self.count[held]).sum() / self.count.sum())


def evaluate(probabilities: Floats, labels: Ints) -> Metrics:
    """Compare (m, C) probabilities with (m) class numbers; the prediction is the first most probable class.

    >>> found = evaluate(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.array([0, 1, 1]))
    >>> round(found.accuracy, 3), found.confusion, found.recall, found.roc_auc
    (0.667, ((1, 0), (1, 1)), (1.0, 0.5), 1.0)
    """
    from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

    probabilities = check_predictions(probabilities, labels)
    num_classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    # Not scikit-learn's confusion_matrix: it warns of a lone class even when told of it. The others are given the
    # classes and the value of 0 / 0, and asked for areas only where they exist, so that they have nothing to warn of.
    confusion = np.bincount(labels.astype(np.int64) * num_classes + predicted, minlength=num_classes**2).reshape(
        num_classes, -1
    )
    present = np.union1d(labels, predicted)
    macro_f1 = f1_score(labels, predicted, labels=present, average="macro", zero_division=0)
    truth = confusion.sum(axis=1)
    of_the_truth = np.clip(probabilities[np.arange(len(labels)), labels], np.finfo(np.float64).eps, 1)
    ranked = num_classes == 2 and bool((truth > 0).all())
    return Metrics(
        count=len(labels),
        accuracy=float((predicted == labels).mean()),
        macro_f1=float(macro_f1),
        recall=tuple(float(confusion[c, c] / truth[c]) if truth[c] else None for c in range(num_classes)),
        confusion=tuple(tuple(int(cell) for cell in row) for row in confusion),
        log_loss=float(-np.log(of_the_truth).mean()) + 0.0,  # + 0.0: a perfect score is 0, not −0
        calibration_error=calibration_bins(probabilities, labels).error,
        roc_auc=float(roc_auc_score(labels, probabilities[:, 1])) if ranked else None,
        pr_auc=float(average_precision_score(labels, probabilities[:, 1])) if ranked else None,
    )


def calibration_bins(probabilities: Floats, labels: Ints, num_bins: int = CALIBRATION_BINS) -> CalibrationBins:
    """Group nodes by the probability of their predicted class (Guo et al.: On calibration, ICML 2017)."""
    probabilities = check_predictions(probabilities, labels)
    confidence = probabilities.max(axis=1)
    correct = probabilities.argmax(axis=1) == labels
    edges = np.arange(num_bins + 1) / num_bins
    place = np.searchsorted(edges[1:-1], confidence, side="left")
    count = np.bincount(place, minlength=num_bins)
    held = np.where(count > 0, count, np.nan)
    mean_confidence = np.bincount(place, weights=confidence, minlength=num_bins) / held
    return CalibrationBins(edges, count, mean_confidence, np.bincount(place, correct, num_bins) / held)


def check_predictions(probabilities: Floats, labels: Ints) -> NDArray[np.float64]:
    """Raise unless these are (m, C) probabilities and (m) class numbers, m ≥ 1; return float64 in [0, 1]."""
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise InputError(
            "expected probabilities of shape (nodes, classes) and one label a node, "
            f"got shapes {probabilities.shape} and {labels.shape}"
        )
    if not probabilities.size:
        raise InputError("there are no predictions to evaluate: the part of the split is empty")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= probabilities.shape[1]:
        raise InputError(
            f"labels: expected class numbers 0 to {probabilities.shape[1] - 1}, got {labels.dtype} from "
            f"{labels.min()} to {labels.max()}; leave unlabelled nodes out"
        )
    exact = probabilities.astype(np.float64)
    # Written so that NaN fails too.
    good = (exact >= 0).all(axis=1) & (np.abs(exact.sum(axis=1) - 1) <= SUM_TOLERANCE)
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise InputError(
            f"probabilities, row {row}: expected numbers from 0 that sum to 1, got {_short(exact[row])} "
            f"({int((~good).sum())} such rows); give softmax outputs, not logits"
        )
    return np.minimum(exact, 1.0)


def _short(row: NDArray[np.float64]) -> str:
    shown = ", ".join(f"{value:.4g}" for value in row[:5])
    return f"[{shown}{', …' if len(row) > 5 else ''}]"
