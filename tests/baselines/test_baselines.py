"""One test case for every baseline; `test_<name>.py` beside it tests what makes the method that method."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.baselines.build import build, separable_graph
from tokenphormer.baselines import BASELINES, FULL_GRAPH_TRAINING, Task, load_baseline
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.training.loop import Labelled, Trainer, predict
from tokenphormer.training.settings import TrainingSettings

DEFAULTS: dict[str, dict[str, Any]] = {
    "gcn": {"hidden_channels": 64, "num_layers": 2, "dropout": 0.5},
    "gat": {"hidden_channels": 64, "num_heads": 8, "output_heads": 1, "num_layers": 2, "dropout": 0.6},
    "sage": {"hidden_channels": 128, "num_layers": 2, "dropout": 0.5, "unit_length": True},
    "appnp": {"hidden_channels": 64, "num_hops": 10, "alpha": 0.1, "dropout": 0.5},
    "jknet": {"hidden_channels": 32, "num_layers": 6, "mode": "cat", "dropout": 0.5},
    "gprgnn": {"hidden_channels": 64, "num_hops": 10, "alpha": 0.1, "dropout": 0.5, "propagation_dropout": 0.5},
    "gatv2": {"hidden_channels": 64, "num_heads": 8, "output_heads": 1, "num_layers": 2, "dropout": 0.6},
    "grand_plus": {
        "propagation": "ppr",
        "order": 20,
        "alpha": 0.2,
        "top_k": 32,
        "r_max": 1e-05,
        "num_views": 2,
        "dropnode": 0.5,
        "unlabelled_pool": 10000,
        "unlabelled_batch": 100,
        "consistency": 1.5,
        "warmup_epochs": 100,
        "temperature": 0.1,
        "hidden_channels": 64,
        "num_layers": 2,
        "batch_norm": False,
        "input_dropout": 0.5,
        "dropout": 0.7,
    },
    "gt": {
        "hidden_channels": 64,
        "num_layers": 4,
        "num_heads": 8,
        "laplacian_pe": 10,
        "dropout": 0.2,
        "running_statistics": False,
    },
    "graphormer": {
        "hidden_channels": 64,
        "num_heads": 8,
        "num_layers": 3,
        "max_distance": 5,
        "max_degree": 512,
        "dropout": 0.1,
        "max_full_nodes": 8192,
        "fan_out": 6,
    },
    "san": {
        "hidden_channels": 64,
        "num_heads": 8,
        "num_layers": 3,
        "gamma": 0.1,
        "num_eigenvectors": 10,
        "pe_channels": 16,
        "pe_layers": 1,
        "dropout": 0.1,
        "max_full_nodes": 8192,
        "fan_out": 6,
    },
    "gophormer": {
        "hidden_channels": 64,
        "num_heads": 8,
        "num_layers": 2,
        "fan_out": 7,
        "second_fan_out": 2,
        "num_global_nodes": 4,
        "proximity_order": 1,
        "num_samples": 2,
        "consistency": 0.5,
        "temperature": 0.5,
        "dropout": 0.3,
    },
    "ans_gt": {
        "hidden_channels": 128,
        "num_heads": 8,
        "num_layers": 4,
        "num_sampled": 14,
        "num_super_nodes": 1,
        "num_global_nodes": 1,
        "num_powers": 6,
        "num_similar": 64,
        "coarsening": 0.1,
        "restart": 0.15,
        "update_period": 5,
        "bandit_rate": 2.0,
        "least_share": 0.05,
        "dropout": 0.3,
    },
    "graphgps": {
        "hidden_channels": 64,
        "num_layers": 2,
        "num_heads": 4,
        "laplacian_pe": 10,
        "walk_pe": 0,
        "dropout": 0.5,
        "running_statistics": False,
    },
    "exphormer": {
        "hidden_channels": 64,
        "num_layers": 4,
        "num_heads": 2,
        "expander_degree": 3,
        "virtual_nodes": 1,
        "dropout": 0.4,
        "attention_dropout": 0.0,
        "running_statistics": False,
    },
    "gapformer": {
        "hidden_channels": 64,
        "num_heads": 4,
        "num_layers": 2,
        "pooling": "local",
        "num_pooled": 32,
        "num_hops": 3,
        "dropout": 0.5,
    },
    "nagphormer": {
        "hidden_channels": 512,
        "num_layers": 1,
        "num_heads": 8,
        "num_hops": 3,
        "laplacian_pe": 3,
        "dropout": 0.1,
        "attention_dropout": 0.1,
    },
    "mlp": {"hidden_channels": 64, "num_layers": 2, "dropout": 0.5},
    "label_propagation": {"num_layers": 50, "alpha": 0.9},
    "gcn_tuned": {
        "hidden_channels": 256,
        "num_layers": 6,
        "dropout": 0.5,
        "norm": "layer",
        "residual": True,
        "input_linear": False,
        "jumping": False,
    },
    "gat_tuned": {
        "hidden_channels": 64,
        "num_layers": 3,
        "dropout": 0.5,
        "norm": "layer",
        "residual": True,
        "input_linear": False,
        "jumping": False,
        "num_heads": 1,
    },
    "sage_tuned": {
        "hidden_channels": 64,
        "num_layers": 6,
        "dropout": 0.2,
        "norm": "layer",
        "residual": True,
        "input_linear": False,
        "jumping": False,
    },
}

HERE = Path(__file__).parent
WITHOUT_WEIGHTS = {"label_propagation"}
LEARNED = [name for name in BASELINES if name not in WITHOUT_WEIGHTS]


def first_scores(name: str, nodes: Tensor, **changes: Any) -> Tensor:
    method = build(name, **changes)
    method.eval()
    method.begin_prediction(0)
    with torch.no_grad():
        return method.scores(nodes)


@pytest.mark.parametrize("name", BASELINES)
def test_shapes(name: str) -> None:
    scores = first_scores(name, torch.arange(7))
    assert scores.shape == (7, 3)
    assert scores.dtype == torch.float32
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", BASELINES)
def test_a_batch_of_one(name: str) -> None:
    nodes = torch.arange(7)
    together, alone = first_scores(name, nodes), first_scores(name, nodes[3:4])
    assert alone.shape == (1, 3)
    torch.testing.assert_close(alone[0], together[3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BASELINES)
def test_isolated_nodes_have_numbers(name: str) -> None:
    edges = [[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 0]]  # and nodes 7 … 11 alone
    x = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    graph = Graph.from_edges(edges, num_nodes=12, x=x, y=np.arange(12) % 3, class_names=("a", "b", "c"))
    assert torch.isfinite(first_scores(name, torch.arange(12), graph=graph)).all()


@pytest.mark.parametrize("name", LEARNED)
def test_the_gradient_reaches_every_parameter(name: str) -> None:
    method = build(name)
    method.train()
    nodes = torch.tensor(method.task.train_nodes)
    classes = torch.tensor(method.task.train_classes)
    reached: dict[str, bool] = {}
    for epoch in (1, 2, 3):  # some are drawn and may miss a rare row once
        method.begin_epoch(epoch)
        method.zero_grad()
        torch.autograd.backward(method.loss(nodes, lambda s: F.cross_entropy(s, classes, reduction="sum")))
        for key, parameter in method.named_parameters():
            gradient = parameter.grad
            assert gradient is None or torch.isfinite(gradient).all(), key
            reached[key] = reached.get(key, False) or (gradient is not None and bool(gradient.abs().sum() > 0))
    assert [key for key, fine in reached.items() if not fine] == []


def train(name: str, seed: int = 0, epochs: int = 60) -> tuple[float, np.ndarray]:
    graph = separable_graph()
    cls = load_baseline(name)
    values = FULL_GRAPH_TRAINING | dict(cls.schedule) | {"max_epochs": epochs, "patience": 50, "seed": seed}
    values["warmup_updates"] = min(5, int(str(values.get("warmup_updates", 0))))
    settings = TrainingSettings(**values)  # type: ignore[arg-type]
    train_nodes, val_nodes, test_nodes = np.arange(60), np.arange(60, 75), np.arange(75, 90)
    method = build(name, graph=graph, train_nodes=train_nodes, seed=seed)
    parts = [Labelled(nodes, graph.y[nodes]) for nodes in (train_nodes, val_nodes)]
    if name not in WITHOUT_WEIGHTS:
        Trainer(method, *parts, graph.num_classes, settings, torch.device("cpu")).run()
    probabilities = predict(method, test_nodes, settings, torch.device("cpu"))
    return float((probabilities.argmax(axis=1) == graph.y[test_nodes]).mean()), probabilities


@pytest.mark.parametrize("name", BASELINES)
def test_learns_a_separable_graph_and_repeats_itself(name: str) -> None:
    accuracy, probabilities = train(name)
    assert accuracy >= 0.9
    # GraphGPS: twice among some two hundred trainings, on a machine with other work, the last digit differed. Neither
    # its attention nor its eigenvectors did in thousands of repetitions each; the reason is not known.
    np.testing.assert_allclose(train(name)[1], probabilities, rtol=0, atol=2e-7 if name == "graphgps" else 0)


def test_what_rows_do_not_name_is_what_it_was() -> None:
    """A row names the values that its search has changed; of others it would not be seen that they were different."""
    assert {name: dataclasses.asdict(load_baseline(name).settings_class()) for name in BASELINES} == DEFAULTS


@pytest.mark.parametrize("name", BASELINES)
def test_the_search_space_is_made_of_settings(name: str) -> None:
    cls = load_baseline(name)
    own = set(cls.settings_class.__dataclass_fields__)
    training = set(TrainingSettings.__dataclass_fields__) | {"normalise_features"}
    assert set(cls.schedule) <= training
    assert set(cls.space) <= own | training
    for key, choices in cls.space.items():
        assert len(set(map(str, choices))) == len(choices) >= 2, key
        for choice in choices:
            if key in own:
                cls.settings_class(**{key: choice})
    assert cls.title
    assert cls.paper.startswith("https://")


@pytest.mark.parametrize("name", BASELINES)
def test_no_label_is_within_reach(name: str) -> None:
    assert (build(name).task.graph.y == -1).all()


def scaled(graph: Graph) -> Tensor:
    return Task.of(graph, np.arange(2), torch.device("cpu"), normalise_features=True).x


def test_scaled_features_of_half_precision_have_numbers() -> None:
    """As graphs on disk may have them: their sums go beyond it, and 1e-12 is 0 there."""
    x = np.array([[1, 3], [60_000, 60_000], [0, 0]], np.float16)
    graph = Graph.from_edges([[0, 1], [1, 2]], x=x, y=[0, 1, 0])
    halved = scaled(dataclasses.replace(graph, x=x))
    assert halved.dtype == torch.float32
    assert halved.tolist() == scaled(graph).tolist() == [[0.25, 0.75], [0.5, 0.5], [0, 0]]


def test_degrees_in_the_place_of_features_are_not_scaled() -> None:
    graph = Graph.from_edges([[0, 0, 1], [1, 2, 3]], num_nodes=5, y=[0, 1, 0, 1, 0])
    torch.testing.assert_close(scaled(graph)[:, 0], torch.tensor([2.0, 2, 1, 1, 0]).log1p())


@pytest.mark.parametrize("name", BASELINES)
def test_the_essential_mechanism_has_a_test(name: str) -> None:
    stem = BASELINES[name].partition(".")[0]
    path = HERE / f"test_{stem}.py"
    assert path.is_file(), f"{path.name} is to hold a test named test_mechanism…"
    names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    assert any(function.startswith("test_mechanism") for function in names)


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(InputError, match="grand_plus"):
        load_baseline("grandplus")


@pytest.mark.parametrize("name", ["gt", "graphgps", "exphormer", "gcn_tuned", "gat_tuned", "sage_tuned"])
def test_predictions_have_the_statistics_of_the_nodes_that_training_has(name: str) -> None:
    """Running ones would lag behind, and early stopping would not wait for them."""
    method: Any = build(name, dropout=0.0, **({"norm": "batch"} if "tuned" in name else {}))
    assert any(isinstance(module, torch.nn.BatchNorm1d) for module in method.modules())
    trained = method.train().forward()
    if name in ("gt", "graphgps"):  # training sees positions with other signs
        method.positions.flipped = method.positions.columns
        trained = method.forward()
    torch.testing.assert_close(method.eval().forward(), trained)


@pytest.mark.parametrize("name", ["gt", "graphgps", "exphormer"])
def test_or_running_ones_as_published(name: str) -> None:
    own, running = (build(name, dropout=0.0, running_statistics=choice) for choice in (False, True))
    assert not any("running_mean" in key for key in own.state_dict())
    running.train().forward()
    running.load_state_dict(own.state_dict(), strict=False)
    assert sum(bool(value.abs().max() > 0) for key, value in running.state_dict().items() if "running_mean" in key) > 1
    assert not torch.allclose(running.eval().forward(), own.eval().forward(), atol=1e-3)
