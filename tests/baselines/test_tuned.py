"""The tuned classics: each of the paper's additions is real, and together they are its formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import normalised, without_edges
from tokenphormer.baselines import load_baseline
from tokenphormer.benchmark.search import Search
from tokenphormer.errors import InputError

NAMES = ["gcn_tuned", "gat_tuned", "sage_tuned"]
PLAIN: dict[str, Any] = {"norm": "none", "residual": False, "input_linear": False, "jumping": False}


def test_mechanism_is_the_formula() -> None:
    graph = separable_graph()
    method = build("gcn_tuned", graph=graph, norm="layer", residual=True, input_linear=True, jumping=True).eval()
    H, total = method.input(method.task.x), torch.zeros(90, 16)
    for conv, skip, norm in zip(method.convs, method.skips, method.norms, strict=True):
        H = F.relu(norm(normalised(graph) @ H @ conv.lin.weight.t() + conv.bias + skip(H)))
        total = total + H
    torch.testing.assert_close(method(), method.output(total), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [{"norm": "layer"}, {"norm": "batch"}, {"residual": True}, {"jumping": True}])
def test_mechanism_each_addition_changes_the_output(name: str, change: dict[str, Any]) -> None:
    """With the same weights, as in training but without dropout; the weights of a residual come besides."""
    plain, changed = (build(name, dropout=0.0, **(PLAIN | more)) for more in ({}, change))
    assert not changed.load_state_dict(plain.state_dict(), strict=False).unexpected_keys
    assert not torch.allclose(changed(), plain(), atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_mechanism_edges_change_the_output(name: str) -> None:
    graph = separable_graph()
    alone = build(name, graph=without_edges(graph)).eval()
    assert not torch.allclose(build(name, graph=graph).eval()(), alone(), atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_residuals_and_norms_are_of_every_layer(name: str) -> None:
    method = build(name, num_layers=4, norm="layer", residual=True)
    assert len(method.convs) == len(method.skips) == len(method.norms) == 4
    assert sum("norms" in key for key, _ in method.named_parameters()) == 8
    assert build(name, **PLAIN).skips is None
    assert build(name, **PLAIN).input is None


def test_defaults_are_the_paper_s_for_photo() -> None:
    shapes = [load_baseline(name).settings_class() for name in NAMES]
    assert [s.hidden_channels for s in shapes] == [256, 64, 64]
    assert [s.num_layers for s in shapes] == [6, 3, 6]
    assert [s.dropout for s in shapes] == [0.5, 0.5, 0.2]
    assert all(s.norm == "layer" and s.residual for s in shapes)


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="norm: 'group'; expected one of layer, batch, none"):
        build("gcn_tuned", norm="group")
    with pytest.raises(InputError, match="hidden_channels: 9 cannot be shared by num_heads=2"):
        build("gat_tuned", hidden_channels=9)


def test_searches_begin_with_what_the_paper_publishes() -> None:
    """For Cora, Citeseer, Pubmed, Coauthor CS and Squirrel, in its own order: layers, width, dropout, rate, decay."""
    keys = ("num_layers", "hidden_channels", "dropout", "learning_rate", "l2")
    found = [[tuple(start[key] for key in keys) for start in load_baseline(name).starts] for name in NAMES]
    assert [starts[0] for starts in found] == [
        (3, 512, 0.7, 1e-3, 5e-4),
        (3, 512, 0.2, 1e-3, 5e-4),
        (3, 256, 0.7, 1e-3, 5e-4),
    ]
    assert [starts[3] for starts in found] == [
        (2, 512, 0.3, 1e-3, 5e-4),
        (1, 256, 0.3, 1e-3, 5e-4),
        (2, 512, 0.5, 1e-3, 5e-4),
    ]
    for name in NAMES:
        starts = load_baseline(name).starts
        assert [(start["norm"], start["residual"]) for start in starts[3:]] == [("layer", True), ("batch", True)]
        assert all(start["norm"] == "none" and start["weight_decay"] == 0.0 for start in starts[:3])
        search = Search(name, "cora", [])
        assert [search.ask(trial) for trial in range(6)] == [{}, *starts]
