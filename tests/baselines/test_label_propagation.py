"""Label propagation: the iteration, and what it does not need."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import normalised
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph


@pytest.mark.parametrize(("alpha", "num_layers"), [(0.9, 1), (0.5, 7)])
def test_mechanism_is_the_iteration(alpha: float, num_layers: int) -> None:
    graph = separable_graph()
    train_nodes = np.arange(0, 90, 7)
    method = build("label_propagation", graph=graph, train_nodes=train_nodes, alpha=alpha, num_layers=num_layers)
    hat = normalised(graph).numpy()
    first = np.zeros((90, 3), dtype=np.float32)
    first[train_nodes, graph.y[train_nodes]] = 1
    mass = first
    for _ in range(num_layers):
        mass = alpha * hat @ mass + (1 - alpha) * first
    np.testing.assert_allclose(np.exp(method.scores(torch.arange(90)).numpy()), mass, rtol=1e-4, atol=1e-6)


def test_mechanism_stops_where_labels_do() -> None:
    """On a path the label of one end arrives after as many steps as there are edges, and not before."""
    path = Graph.from_edges([[0, 1, 2], [1, 2, 3]], x=np.eye(4), y=[1, 0, 0, 0], class_names=("a", "b"))
    shares = {}
    for steps in (2, 3):
        method = build("label_propagation", graph=path, train_nodes=np.array([0]), num_layers=steps)
        shares[steps] = F.softmax(method.scores(torch.tensor([3])), dim=1)[0].tolist()
    assert shares[2] == [0.5, 0.5]
    assert shares[3][1] > 0.99


def test_there_is_nothing_to_train() -> None:
    method = build("label_propagation")
    assert not list(method.parameters())
    method.train()
    before = method.scores(torch.arange(90))
    assert torch.equal(method.eval().scores(torch.arange(90)), before)


def test_bad_settings() -> None:
    with pytest.raises(InputError, match=r"alpha: 1\.0"):
        build("label_propagation", alpha=1.0)
    with pytest.raises(InputError, match="num_layers: 0"):
        build("label_propagation", num_layers=0)
