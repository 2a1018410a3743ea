"""Yardsticks: learned on training nodes, chosen on validation nodes, judged on test nodes, and on nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.tiny import CPU, tiny_graph, tiny_split
from tokenphormer.evaluation import compare
from tokenphormer.evaluation.compare import PENALTIES, yardsticks
from tokenphormer.graph import Graph, Split
from tokenphormer.training.loop import Labelled, Trainer

NAMES = ["logistic regression on features", "two-layer GCN"]


def relabelled(graph: Graph, nodes: Any) -> Graph:
    y = graph.y.copy()
    y[nodes] = (y[nodes] + 1) % graph.num_classes
    return dataclasses.replace(graph, y=y)


def test_the_regression_is_that_of_the_penalty_which_validation_prefers() -> None:
    """Of ten splits on which penalties differ, on some the best for test is another one."""
    noise = np.random.default_rng(0).normal(size=(60, 40))
    graph = tiny_graph(x=noise + np.eye(3, 40)[np.arange(60) % 3])
    x: Any = graph.x
    misleading = 0
    for seed in range(10):
        order = np.random.default_rng(seed).permutation(60)
        split = Split(order[:20], order[20:40], order[40:])
        scores = []
        for penalty in PENALTIES:
            fitted = LogisticRegression(C=penalty, max_iter=300).fit(x[split.train], graph.y[split.train])
            scores.append([fitted.score(x[part], graph.y[part]) for part in (split.val, split.test)])
        val, test = np.array(scores).T
        assert compare._logistic_regression(graph, split) == test[val.argmax()]
        misleading += test[val.argmax()] < test.max()
    assert misleading


@pytest.mark.parametrize("number", [0, 1])
def test_test_labels_are_looked_at_once_all_is_chosen(number: int) -> None:
    """With every label of the test nodes another one, what was right is wrong, and nothing else is otherwise."""
    graph = tiny_graph()
    split = tiny_split(graph)
    name, right = yardsticks(graph, split, CPU)[number]
    wrong = yardsticks(relabelled(graph, split.test), split, CPU)[number][1]
    assert name == NAMES[number]
    assert 0.6 < right <= 1 - wrong


def test_the_gcn_has_two_layers_and_validation_nodes_end_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = tiny_graph()
    split = tiny_split(graph)
    seen: list[Any] = []

    class Watched(Trainer):
        def __init__(self, method: Any, train: Labelled, val: Labelled, *others: Any) -> None:
            seen.append((method, train, val))
            super().__init__(method, train, val, *others)

    monkeypatch.setattr(compare, "Trainer", Watched)
    yardsticks(graph, split, CPU)
    ((method, train, val),) = seen
    assert len(method.convs) == 2
    for part, nodes in ((train, split.train), (val, split.val)):
        assert part.nodes.tolist() == nodes.tolist()
        assert part.classes.tolist() == graph.y[nodes].tolist()


def test_what_is_learned_is_what_training_nodes_say() -> None:
    """With every label of the training nodes another one, next to nothing is right."""
    graph = tiny_graph()
    split = tiny_split(graph)
    for number, name in enumerate(NAMES):
        learned = yardsticks(relabelled(graph, split.train), split, CPU)[number]
        assert learned[0] == name
        assert learned[1] < 0.3
