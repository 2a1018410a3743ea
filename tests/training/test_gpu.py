"""Training on a real GPU: the same seed gives the same weights where that is promised, and CPU and GPU agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import tiny_graph, tiny_split
from tokenphormer.training.loop import Labelled, Trainer, predict
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import TokenphormerMethod

pytestmark = pytest.mark.gpu

SIZES: dict[str, Any] = {
    "hidden_channels": 64,
    "num_heads": 4,
    "num_walks": 8,
    "max_epochs": 12,
    "warmup_updates": 3,
    "batch_size": 40,
    "compile": "no",
}
PLUS: dict[str, Any] = {"row_activation": True, "consistency": 0.5, "score_hops": 3, "feature_dropout": 0.3}


def trained(device: str, **changes: Any) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    graph = tiny_graph(150)
    split, config = tiny_split(graph), Config(**(SIZES | changes))
    method = TokenphormerMethod(graph, config, 3, torch.device(device))
    parts = [Labelled(nodes, graph.y[nodes]) for nodes in (split.train, split.val)]
    Trainer(method, *parts, 3, config, torch.device(device)).run()
    probabilities = predict(method, np.arange(graph.num_nodes), config, torch.device(device))
    return {name: tensor.cpu() for name, tensor in method.module.state_dict().items()}, probabilities


@pytest.mark.parametrize("changes", [{}, PLUS, {"hidden_channels": 512, "num_heads": 1}], ids=["paper", "plus", "wide"])
def test_deterministic_trainings_are_equal_to_the_bit(changes: dict[str, Any]) -> None:
    first, second = (trained("cuda", deterministic=True, **changes) for _ in range(2))
    for name, tensor in first[0].items():
        assert torch.equal(tensor, second[0][name]), name
    assert np.array_equal(first[1], second[1])


@pytest.mark.parametrize("changes", [{}, PLUS], ids=["paper", "plus"])
def test_a_gpu_predicts_what_a_cpu_does(changes: dict[str, Any]) -> None:
    """Without dropout and in float32, rounding alone differs; stated tolerance: 0.02 of probability."""
    none = {"dropout": 0.0, "attention_dropout": 0.0, "feature_dropout": 0.0, "precision": "float32"}
    steady = SIZES | changes | none | {"max_epochs": 5}
    found = {device: trained(device, **steady)[1] for device in ("cpu", "cuda")}
    np.testing.assert_allclose(found["cuda"], found["cpu"], atol=0.02)
