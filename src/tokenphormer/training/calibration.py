"""Temperature scaling: one number, fitted on validation nodes, that makes probabilities as sure as they are right.

On Calibration of Modern Neural Networks (ICML 2017), https://arxiv.org/abs/1706.04599, section 4.2.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = 0.2, 10.0
"""Where a temperature is looked for. Of few nodes, all predicted rightly, the best would be 0: certainty."""

Probabilities = TypeVar("Probabilities", NDArray[np.float32], NDArray[np.float64])


def soften(probabilities: Probabilities, temperature: float) -> Probabilities:
    """softmax(log p / T), row by row: what dividing the class scores by T would give. The order of classes stays.

    >>> soften(np.array([[0.8, 0.2]]), 2.0).round(3).tolist()
    [[0.667, 0.333]]
    """
    if temperature == 1.0:
        return probabilities
    least = np.finfo(np.float32).tiny  # of a softmax in float32, what is 0 was too small for it
    scores = np.log(np.maximum(probabilities, least).astype(np.float64)) / temperature
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Probabilities = (shares / shares.sum(axis=1, keepdims=True)).astype(probabilities.dtype)
    # Two classes that were a hair apart may now be the same number, and another one the first of them.
    first = probabilities.argmax(axis=1)
    tied = np.flatnonzero(result.argmax(axis=1) != first)
    result[tied, first[tied]] = np.nextafter(result[tied].max(axis=1), result.dtype.type(2))
    return result


def fit_temperature(probabilities: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The temperature from `LOWEST` to `HIGHEST` with the lowest cross-entropy on some nodes; 1 if none is better."""
    from scipy.optimize import minimize_scalar

    exact = probabilities.astype(np.float64)
    rows = np.arange(len(labels))

    def loss(log_temperature: float) -> float:
        softened = soften(exact, math.exp(log_temperature))
        return float(-np.log(np.maximum(softened[rows, labels], np.finfo(np.float64).tiny)).mean())

    found: Any = minimize_scalar(
        loss, bounds=(math.log(LOWEST), math.log(HIGHEST)), method="bounded", options={"xatol": 1e-5}
    )
    return math.exp(float(found.x)) if float(found.fun) < loss(0.0) else 1.0
