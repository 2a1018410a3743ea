"""Occlusion against the thing itself: sequences without tokens, graphs with blank nodes, walks that end early."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.explain.models import (
    CASES,
    CPU,
    ISOLATED,
    LEAF,
    added_to,
    awkward_graph,
    case_of,
    config_of,
    method_of,
)
from tokenphormer.explain import Explainer
from tokenphormer.explain.neighbours import hop_rows
from tokenphormer.explain.occlusion import (
    end_before,
    equal_tokens,
    group_drops,
    node_drops,
    score_drops,
    step_drops,
    token_drops,
)
from tokenphormer.explain.reading import Mixture, Reading, all_final_scores, project_rows, read
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix
from tokenphormer.training.loop import predict
from tokenphormer.training.tokenphormer import TokenphormerMethod

NODES = np.array([0, 3, LEAF, ISOLATED])
OWN = [case for case in CASES if "score_hops" not in case]  # whose scores come from the node's own tokens alone


def probabilities(method: TokenphormerMethod, inputs: torch.Tensor) -> np.ndarray:
    """(C) of one explicit sequence."""
    with torch.no_grad():
        return F.softmax(method.module.encode(inputs[None])[0][0], dim=0).double().numpy()


def mixture_of(graph: Graph, reading: Reading) -> Mixture:
    settings, (node,) = reading.settings, reading.nodes
    hops = hop_rows(graph, settings.hop_normalisation, int(node), settings.num_hops)
    return Mixture.of(reading, hops, np.arange(graph.num_nodes))


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize("case", OWN, ids=str)
def test_token_drops_one_by_one(case: dict[str, Any]) -> None:
    _, method = case_of(case)
    reading = read(method, NODES)
    drops = token_drops(reading)
    first = len(reading.kinds) - reading.num_walks
    for b in range(len(NODES)):
        full = probabilities(method, reading.inputs[b])
        for t, kind in enumerate(reading.kinds):
            equal = [t]
            if t >= first:
                walk = reading.walks[b, t - first]
                equal = [
                    s
                    for s in range(first, len(reading.kinds))
                    if reading.kinds[s] == kind and (reading.walks[b, s - first] == walk).all()
                ]
            left = [s for s in range(len(reading.kinds)) if s not in equal]
            expected = (full - probabilities(method, reading.inputs[b][left])) / len(equal) if t else 0
            np.testing.assert_allclose(drops[b, t], expected, rtol=0, atol=1e-5)
    if len(reading.kinds) > 1:
        assert np.abs(drops).max() > 2e-3  # far above the tolerance


def test_equal_walks_are_one() -> None:
    method = method_of(awkward_graph(), num_walks=12)
    groups = equal_tokens(read(method, np.array([LEAF, ISOLATED])))
    assert (groups[:, :3] == [0, 1, 2]).all()  # self and hops stand alone
    isolated = groups[1, 3:]
    assert len(set(isolated.tolist())) == 4  # one for each kind of walk: none can take a step
    assert 4 <= len(set(groups[0, 3:].tolist())) <= 12


def test_batch_mates_do_not_matter() -> None:
    method = method_of(awkward_graph())
    together = token_drops(read(method, np.arange(20)))
    alone = np.concatenate([token_drops(read(method, np.array([v]))) for v in range(20)])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)


def test_group_drops_leave_whole_groups_out() -> None:
    method = method_of(awkward_graph())
    reading = read(method, np.array([4]))
    groups = np.zeros((2, len(reading.kinds)), bool)
    groups[0, [1, 2]] = groups[1, 1:] = True
    found = group_drops(reading, groups)
    full = probabilities(method, reading.inputs[0])
    for drop, gone in zip(found, groups, strict=True):
        expected = full - probabilities(method, reading.inputs[0][torch.tensor(~gone)])
        np.testing.assert_allclose(drop, expected, rtol=0, atol=1e-5)


# ---------------------------------------------------------------- nodes


@pytest.mark.parametrize("case", [*OWN, {"row_activation": True}], ids=str)
def test_a_removed_node_is_a_blank_node(case: dict[str, Any]) -> None:
    """Exactly what the same model predicts on the graph in which that node's features are zero."""
    graph, method = case_of(case)
    changes = {key: value for key, value in case.items() if key != "graph"}
    everyone = np.arange(graph.num_nodes)
    blank_methods = []
    for u in everyone:
        assert isinstance(graph.x, np.ndarray)
        x = graph.x.copy()
        x[u] = 0
        blank = dataclasses.replace(graph, x=x)
        blank_methods.append(method_of(blank, weights=method.module.state_dict(), **changes))
    largest = 0.0
    for node in NODES:
        reading = read(method, np.array([node]))
        mixture, rows = mixture_of(graph, reading), project_rows(method, everyone)
        drops = node_drops(reading, mixture, rows, everyone)
        for u in everyone:
            expected = reading.probabilities[0] - predict(blank_methods[u], np.array([node]), config_of(), CPU)[0]
            np.testing.assert_allclose(drops[u], expected, rtol=0, atol=2e-5)
        largest = max(largest, np.abs(np.delete(drops, node, axis=0)).max())
        assert np.abs(drops[node]).max() > 1e-3  # its own features matter
    assert len(reading.kinds) == 1 or largest > 2e-3  # far above the tolerance


# ---------------------------------------------------------------- steps


@pytest.mark.parametrize("case", OWN, ids=str)
def test_a_removed_step_ends_walks(case: dict[str, Any]) -> None:
    """Against tokens made one by one from features, with walks cut by hand."""
    graph, method = case_of(case)
    settings = method.source.settings
    own, other = project_rows(method, np.arange(graph.num_nodes))
    largest = 0.0
    for node in NODES:
        reading = read(method, np.array([node]))
        walks = reading.walks[0]
        pairs = {(int(a), int(b)) for walk in walks for a, b in pairwise(walk) if b >= 0}
        steps = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        drops = step_drops(reading, mixture_of(graph, reading), other, steps, graph.directed)
        first = len(reading.kinds) - len(walks)
        for step, drop in zip(steps.tolist(), drops, strict=True):
            inputs = reading.inputs[0].clone()
            for t, walk in enumerate(walks.tolist(), first):
                kept = [walk[0]]
                for a, b in pairwise(walk):
                    if b < 0 or [a, b] == step or (not graph.directed and [b, a] == step):
                        break
                    kept.append(b)
                pooled = kept if settings.include_start else kept[1:]
                tau = sum((other[u] for u in pooled), start=torch.zeros(other.shape[1]))
                if settings.walk_pooling == "mean":
                    tau = tau / max(1, len(pooled))
                inputs[t] = tau + added_to(method, own[node])[t]
            expected = reading.probabilities[0] - probabilities(method, inputs)
            np.testing.assert_allclose(drop, expected, rtol=0, atol=2e-5)
            largest = max(largest, float(np.abs(drop).max()))
    assert not settings.num_walks or largest > 2e-3  # far above the tolerance


def test_undirected_steps_count_both_ways() -> None:
    walks = np.array([[0, 1, 2, 1], [0, 2, 1, -1]])
    step = np.array([[1, 2]])
    assert end_before(walks, step, directed=True).tolist() == [[[0, 1, -1, -1], [0, 2, 1, -1]]]
    assert end_before(walks, step, directed=False).tolist() == [[[0, 1, -1, -1], [0, 2, -1, -1]]]


# ---------------------------------------------------------------- scores that are passed on


def test_tokens_with_scores_that_are_passed_on() -> None:
    """Removing a token changes the node's own scores; the final ones follow by the passing matrix."""
    graph = awkward_graph()
    method = method_of(graph, score_hops=2, score_teleport=0.3)
    hop = torch.tensor(propagation_matrix(graph).toarray())
    passing = torch.eye(20)
    for _ in range(2):
        passing = 0.7 * hop @ passing + 0.3 * torch.eye(20)
    explainer = Explainer(method, graph, graph.class_names)
    method.module.eval()
    with torch.no_grad():
        own = method.own_scores(torch.arange(20))
        for node in NODES:
            reading = explainer.read(np.array([node]))
            drops = group_drops(reading, np.eye(len(reading.kinds), dtype=bool)[1:])
            for t, drop in enumerate(drops, 1):
                left = [s for s in range(len(reading.kinds)) if s != t]
                changed = own.clone()
                changed[node] = method.module.encode(reading.inputs[:, left])[0][0]
                before, after = (F.softmax((passing @ scores)[node], dim=0) for scores in (own, changed))
                np.testing.assert_allclose(drop, before - after, rtol=0, atol=1e-5)
            assert np.abs(drops).max() > 1e-3


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_added_scores_are_taken_away_before_the_temperature(temperature: float) -> None:
    method = method_of(awkward_graph(), score_hops=2)
    method.temperature = temperature
    reading = read(method, np.array([0]), final_scores=all_final_scores(method, 0))
    added = torch.tensor([[0.0, 0.0, 0.0], [1.0, -0.5, 0.2]])
    drops = score_drops(reading, added)
    left = F.softmax((reading.final_scores - added[1]) / temperature, dim=1).numpy()
    np.testing.assert_allclose(drops[0], 0, atol=1e-6)
    np.testing.assert_allclose(drops[1], (reading.probabilities - left)[0], atol=1e-6)
