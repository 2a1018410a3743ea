"""Two yardsticks on the same split: logistic regression on the features alone, and a two-layer GCN."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch

from tokenphormer.baselines.base import FULL_GRAPH_TRAINING, Task
from tokenphormer.baselines.gcn import GCN, GCNSettings
from tokenphormer.graph import Graph, Split
from tokenphormer.training.loop import Labelled, Trainer, predict
from tokenphormer.training.settings import TrainingSettings

PENALTIES = (0.1, 1.0, 10.0)


def yardsticks(
    graph: Graph, split: Split, device: torch.device, say: Callable[[str], None] = lambda _: None
) -> list[tuple[str, float]]:
    """Names and test accuracies. Both are chosen on validation, as everything is. None where that cannot be."""
    if not graph.num_features or not len(split.test):
        lacking = "the split has no test nodes" if graph.num_features else f"graph '{graph.name}' has no features"
        say(f"--compare: {lacking}, so there is nothing to compare with")
        return []
    say("--compare: logistic regression on features")
    regression = _logistic_regression(graph, split)
    say("--compare: a two-layer GCN")
    return [("logistic regression on features", regression), ("two-layer GCN", _gcn(graph, split, device))]


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
    settings = TrainingSettings(**FULL_GRAPH_TRAINING | {"max_epochs": 300, "patience": 50})  # type: ignore[arg-type]
    method = GCN(Task.of(graph, split.train, device), GCNSettings())
    method.to(device)
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    Trainer(method, train, val, graph.num_classes, settings, device).run()
    probabilities = predict(method, split.test, settings, device)
    return float(np.mean(probabilities.argmax(axis=1) == graph.y[split.test]))
