"""Two yardsticks on the same split: logistic regression on the features alone, and a two-layer GCN."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from tokenphormer.baselines.gcn import GCNMethod
from tokenphormer.graph import Graph, Split
from tokenphormer.training.loop import Labelled, Trainer, predict
from tokenphormer.training.settings import TrainingSettings

PENALTIES = (0.1, 1.0, 10.0)


def yardsticks(graph: Graph, split: Split, device: torch.device) -> list[tuple[str, float]]:
    """Names and test accuracies. Both are chosen on validation, as everything is."""
    if graph.x is None or not len(split.test):
        return []
    return [
        ("logistic regression on features", _logistic_regression(graph, split)),
        ("two-layer GCN", _gcn(graph, split, device)),
    ]


def _logistic_regression(graph: Graph, split: Split) -> float:
    from sklearn.linear_model import LogisticRegression

    x, y = graph.x, graph.y
    assert x is not None
    best = (-1.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a regression that has not quite converged is a fine yardstick
        for penalty in PENALTIES:
            fitted = LogisticRegression(C=penalty, max_iter=300).fit(x[split.train], y[split.train])
            val, test = (float(fitted.score(x[part], y[part])) for part in (split.val, split.test))
            best = max(best, (val, test), key=lambda pair: pair[0])
    return best[1]


def _gcn(graph: Graph, split: Split, device: torch.device) -> float:
    settings = TrainingSettings(
        learning_rate=1e-2, warmup_updates=0, decay_updates=10**9, weight_decay=5e-4, batch_size=graph.num_nodes,
        max_epochs=300, patience=50,
    )  # fmt: skip
    method = GCNMethod(graph, graph.num_classes, device)
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    Trainer(method, train, val, graph.num_classes, settings, device).run()
    probabilities = predict(method, split.test, settings, device)
    return float(np.mean(probabilities.argmax(axis=1) == graph.y[split.test]))
