"""Whole explanations: names, sums, votes, limits, new graphs, errors, JSON."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from tests.explain.models import CASES, CPU, ISOLATED, LEAF, awkward_graph, case_of, config_of, method_of
from tests.tiny import tiny_config, tiny_graph, tiny_split
from tokenphormer.classifier import TokenphormerClassifier
from tokenphormer.errors import InputError
from tokenphormer.evaluation.explanations.summary import summarise_attention
from tokenphormer.explain import METHODS, Explainer, Explanation, explainer
from tokenphormer.explain.attention import attention_rollout, readout_attention
from tokenphormer.explain.explanation import Edge, Node, Part, Token
from tokenphormer.explain.neighbours import Ints, distances, hop_rows
from tokenphormer.explain.reading import Mixture, Reading
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix
from tokenphormer.training.loop import predict
from tokenphormer.walks import KINDS


def explainer_of(case: dict[str, Any], votes: int = 1) -> Explainer:
    graph, method = case_of(case)
    return Explainer(method, graph, graph.class_names, votes)


# ---------------------------------------------------------------- every case


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_every_node_of_every_case(case: dict[str, Any], method: Any) -> None:
    found = explainer_of(case)
    kinds = found.method.source.token_kinds[1:]
    for node in (0, 3, LEAF, ISOLATED):
        e = found.explain(node, method)
        assert e.node == found.graph.id_of(node)
        assert e.method == method
        assert {token.kind for token in e.tokens} == set(kinds)
        assert sum(token.count for token in e.tokens) == len(kinds)
        assert {part.name: part.tokens for part in e.parts}.items() >= {k: kinds.count(k) for k in kinds}.items()
        if kinds:
            assert sum(token.attention for token in e.tokens) == pytest.approx(1, abs=1e-6)
        for each in (*e.tokens, *e.parts, *e.nodes, *e.edges):
            assert np.isfinite(each.importance)
            assert (each.runner_up is None) == (method != "occlusion")
        for items in (e.tokens, e.parts, e.nodes, e.edges):
            assert all(a.importance >= b.importance for a, b in pairwise(items))
        for token in e.tokens:
            assert (token.kind in KINDS) == bool(token.path)
            assert not token.path or token.path[0] == e.node
        assert [n.distance for n in e.nodes if n.id == e.node] == [0]
        assert Explanation.from_json(json.loads(json.dumps(e.to_json()))) == e


def test_auto_is_occlusion() -> None:
    found = explainer_of({})
    assert found.explain(0) == found.explain(0, "occlusion")


# ---------------------------------------------------------------- what the numbers are


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("votes", [1, 3])
def test_probabilities_are_those_of_predict(votes: int, temperature: float) -> None:
    found = explainer_of({}, votes)
    found.method.temperature = temperature
    for node in (0, LEAF, ISOLATED):
        e = found.explain(node)
        expected = predict(found.method, np.array([node]), config_of(votes=votes), CPU)[0]
        np.testing.assert_allclose(e.probabilities, expected, rtol=0, atol=1e-6)
        ranked = sorted(e.classes, key=e.probability, reverse=True)
        assert [e.predicted, e.runner_up] == ranked[:2]
        assert e.votes == votes


class OneDraw(Explainer):
    """Explains by one draw of walks alone, whichever it is."""

    def __init__(self, whole: Explainer, draw: int) -> None:
        super().__init__(whole.method, whole.graph, whole.classes)
        self._draw = draw

    def read(self, nodes: Ints, draw: int = 0) -> Reading:
        assert draw == 0
        return super().read(nodes, self._draw)


def by_name(explanation: Explanation) -> dict[object, Token | Part | Node | Edge]:
    """All that is told to be important, by what it is; steps whichever way they are told."""
    e = explanation
    named: list[tuple[object, Token | Part | Node | Edge]] = [((t.kind, t.path), t) for t in e.tokens]
    named += [((type(each), each.name), each) for each in e.parts] + [((type(each), each.id), each) for each in e.nodes]
    named += [(frozenset([step.source, step.target]), step) for step in e.edges]
    return dict(named)


@pytest.mark.parametrize("case", [{"num_layers": 2}, {"score_hops": 3}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_everything_is_the_mean_over_the_draws(case: dict[str, Any], method: Any) -> None:
    """How many walks are so, or step there, is the sum."""
    found = explainer_of(case, votes=3)
    whole, draws = found.explain(0, method), [OneDraw(found, draw).explain(0, method) for draw in range(3)]
    assert {(e.predicted, e.runner_up) for e in (whole, *draws)} == {(whole.predicted, whole.runner_up)}
    parts = [by_name(e) for e in draws]
    assert by_name(whole).keys() == set().union(*parts)
    for name, each in by_name(whole).items():
        there = [part[name] for part in parts if name in part]
        for field in ("importance", "runner_up", "attention"):
            if getattr(each, field, None) is not None:
                assert getattr(each, field) == pytest.approx(sum(getattr(one, field) for one in there) / 3, abs=1e-6)
        if isinstance(each, Token):
            assert each.count == (sum(one.count for one in there) if each.path else 1)  # type: ignore[union-attr]
        if isinstance(each, Node):
            assert each.visits == sum(one.visits for one in there)  # type: ignore[union-attr]
        if isinstance(each, Edge):
            assert each.walks == sum(one.walks for one in there)  # type: ignore[union-attr]
    assert not by_name(whole).keys() <= parts[0].keys()  # the others have more


@pytest.mark.parametrize("method", METHODS)
def test_parts_have_the_attention_of_their_tokens(method: Any) -> None:
    e = explainer_of({"num_layers": 2}).explain(0, method)
    for part in e.parts:
        tokens = [t for t in e.tokens if part.name in (t.kind, "all tokens", "all walks" if t.path else "all hops")]
        assert part.attention == pytest.approx(sum(token.attention for token in tokens), abs=1e-6)
        if method != "occlusion":
            assert part.importance == pytest.approx(sum(token.importance for token in tokens), abs=1e-6)
    (everything,) = [part for part in e.parts if part.name == "all tokens"]
    assert (everything.importance < 0.9) == (method != "attention")  # the self token has some of what is rolled


def test_no_part_is_told_twice() -> None:
    changes = {"num_hops": 1, "walk_ratios": (1.0, 0.0, 0.0, 0.0)}
    assert {part.name for part in explainer_of(changes).explain(0).parts} == {"hop 1", "uniform", "all tokens"}
    assert [part.name for part in explainer_of(changes | {"num_walks": 0}).explain(0).parts] == ["hop 1"]


def test_importance_by_occlusion_of_parts_is_exact() -> None:
    """Left without any token, the self token alone is read: the same model with no hops and no walks."""
    graph = awkward_graph()
    method = method_of(graph)
    bare = method_of(graph, num_hops=0, num_walks=0, weights=method.module.state_dict())
    for node in (0, LEAF):
        e = Explainer(method, graph, graph.class_names).explain(node)
        alone = predict(bare, np.array([node]), config_of(), CPU)[0]
        (everything,) = [part for part in e.parts if part.name == "all tokens"]
        for name, drop in ((e.predicted, everything.importance), (e.runner_up, everything.runner_up)):
            assert drop == pytest.approx(e.probability(name) - alone[e.classes.index(name)], abs=1e-5)


@pytest.mark.parametrize(("name", "changes"), [("all hops", {"num_hops": 0}), ("all walks", {"num_walks": 0})])
def test_parts_are_left_out_whole(name: str, changes: dict[str, int]) -> None:
    graph = awkward_graph()
    method = method_of(graph)
    without = method_of(graph, weights=method.module.state_dict(), **changes)
    e = Explainer(method, graph, graph.class_names).explain(5)
    left = predict(without, np.array([5]), config_of(), CPU)[0][e.classes.index(e.predicted)]
    (part,) = [part for part in e.parts if part.name == name]
    assert part.importance == pytest.approx(e.probability(e.predicted) - left, abs=1e-5)


@pytest.mark.parametrize("method", ["attention", "rollout"])
def test_attention_is_spread_over_what_is_read(method: Any) -> None:
    """All that tokens have is handed on to the nodes they read and to the steps of walks."""
    found = explainer_of({})
    compute = {"attention": readout_attention, "rollout": attention_rollout}[method]
    for node in (0, LEAF):
        e = found.explain(node, method)
        weights = compute(found.read(np.array([node])))[0]
        assert sum(token.importance for token in e.tokens) == pytest.approx(weights[1:].sum(), abs=1e-6)
        assert sum(n.importance for n in e.nodes) == pytest.approx(1, abs=1e-5)
        walks = sum(token.importance for token in e.tokens if token.path)
        assert sum(edge.importance for edge in e.edges) == pytest.approx(walks, abs=1e-6)


def test_walks_with_the_same_steps_are_one() -> None:
    e = explainer_of({"num_walks": 24}).explain(LEAF)
    walks = [(token.kind, token.path) for token in e.tokens if token.path]
    assert len(set(walks)) == len(walks) < 24
    assert max(token.count for token in e.tokens) > 1


def test_an_isolated_node() -> None:
    e = explainer_of({}).explain(ISOLATED)
    assert {token.path for token in e.tokens if token.kind in KINDS} == {(e.node,)}
    assert [n.id for n in e.nodes] == [e.node]
    assert e.edges == ()


def test_steps_are_edges_or_jumps() -> None:
    found = explainer_of({"num_walks": 24})
    e = found.explain(0)
    g = found.graph
    for edge in e.edges:
        source, target = g.index_of(edge.source), g.index_of(edge.target)
        assert edge.jump == (target not in g.neighbours(source))
    taken = [set(map(frozenset, pairwise(t.path))) for t in e.tokens for _ in range(t.count) if t.path]
    ways = [step for t in e.tokens for _ in range(t.count) for step in pairwise(t.path)]
    for edge in e.edges:
        assert edge.walks == sum(frozenset([edge.source, edge.target]) in steps for steps in taken)
        assert ways.count((edge.source, edge.target)) >= ways.count((edge.target, edge.source))
    assert any(g.index_of(edge.source) > g.index_of(edge.target) for edge in e.edges)
    assert {edge.jump for edge in e.edges} == {True, False}
    own = found.explain(3)
    assert any(edge.source == edge.target for edge in own.edges)  # it has an edge to itself


def test_directed_steps_keep_their_direction() -> None:
    found = explainer_of({"graph": {"directed": True}, "num_walks": 24})
    e = found.explain(0)
    steps = {step for token in e.tokens for step in pairwise(token.path)}
    assert {(edge.source, edge.target) for edge in e.edges} == steps


def test_visits_and_labels() -> None:
    found = explainer_of({"num_walks": 24})
    e = found.explain(0)
    visits = {n.id: 0 for n in e.nodes}
    for token in e.tokens:
        for step in token.path[1:]:
            visits[step] += token.count
    assert {n.id: n.visits for n in e.nodes} == visits
    labels = {n.id: n.label for n in e.nodes}
    assert labels[e.node] == "red"
    assert labels.get(found.graph.id_of(7), "") == ""
    far = distances(found.graph, 0, np.arange(20))
    assert {n.id: n.distance for n in e.nodes} == {id_: far[found.graph.index_of(id_)] for id_ in visits}
    assert max(n.distance for n in e.nodes) > 1


@pytest.mark.parametrize("method", METHODS)
def test_only_so_many_nodes_and_steps(monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    whole = explainer_of({}).explain(0, method)
    monkeypatch.setattr(explainer, "MAX_NODES", 4)
    monkeypatch.setattr(explainer, "MAX_STEPS", 5)
    e = explainer_of({}).explain(0, method)
    assert len(e.nodes) == 4
    assert e.nodes_left_out == len(whole.nodes) - 4 > 0
    assert e.node in {n.id for n in e.nodes}
    before = {n.id: n.importance for n in whole.nodes}
    assert {n.id: n.importance for n in e.nodes} == pytest.approx({n.id: before[n.id] for n in e.nodes}, abs=1e-6)
    assert len(e.edges) == 5
    assert e.edges_left_out == len(whole.edges) - 5 > 0
    assert sorted(edge.walks for edge in e.edges) == sorted(edge.walks for edge in whole.edges)[-5:]
    assert [token.path for token in e.tokens] == [token.path for token in whole.tokens]


@pytest.mark.parametrize("walks", [0, 8])
@pytest.mark.parametrize("method", METHODS)
def test_nodes_that_are_read_most_are_kept(monkeypatch: pytest.MonkeyPatch, method: Any, walks: int) -> None:
    """By their shares in all tokens together; those of the others are not handed to them."""
    found = explainer_of({"num_walks": walks, "hop_normalisation": "none", "graph": {"weighted": True}})
    whole, reading = found.explain(0, method), found.read(np.array([0]))
    mixture = Mixture.of(reading, hop_rows(found.graph, "none", 0, 2), np.arange(20))
    read = np.delete(mixture.matrix.sum(axis=0), 0)
    kept = 1 + np.argsort(-read)[:3]
    assert np.sort(read)[-3] > np.sort(read)[-4]
    monkeypatch.setattr(explainer, "MAX_NODES", 4)
    e = found.explain(0, method)
    assert {n.id for n in e.nodes} == {found.graph.id_of(int(v)) for v in (0, *kept)}
    before = {n.id: n.importance for n in whole.nodes}
    assert {n.id: n.importance for n in e.nodes} == pytest.approx({n.id: before[n.id] for n in e.nodes}, abs=1e-6)


def test_neighbours_scores_are_a_part() -> None:
    graph = awkward_graph()
    method = method_of(graph, score_hops=3)
    e = Explainer(method, graph, graph.class_names).explain(0)
    plain = method_of(graph, weights=method.module.state_dict())
    own = predict(plain, np.array([0]), config_of(), CPU)[0][e.classes.index(e.predicted)]
    (part,) = [part for part in e.parts if part.name == "scores of neighbours"]
    assert part.importance == pytest.approx(e.probability(e.predicted) - own, abs=1e-5)


@pytest.mark.parametrize("learned", [False, True])
def test_a_node_without_neighbours_has_no_scores_of_theirs(learned: bool) -> None:
    """Learned weights need not sum to 1, so that its own scores are others than without passing any on."""
    graph = awkward_graph()
    method = method_of(graph, score_hops=3, score_learned=learned)
    e = Explainer(method, graph, graph.class_names).explain(ISOLATED)
    assert "scores of neighbours" not in {part.name for part in e.parts}
    assert e.neighbours == ()


@pytest.mark.parametrize("votes", [1, 2])
@pytest.mark.parametrize("learned", [False, True])
def test_scores_of_each_neighbour(learned: bool, votes: int) -> None:
    """Against the whole matrix by which scores are passed on, one column of it blank."""
    graph = awkward_graph()
    method = method_of(graph, score_hops=3, score_learned=learned)
    explain = Explainer(method, graph, graph.class_names, votes)
    gamma, hop = method.score_weights.detach().numpy(), propagation_matrix(graph, "symmetric").toarray()
    passing = sum(weight * np.linalg.matrix_power(hop, k) for k, weight in enumerate(gamma))
    reached = 0
    for node in range(graph.num_nodes):
        e = explain.explain(node)
        first, second = (e.classes.index(name) for name in (e.predicted, e.runner_up))
        own = []
        for draw in range(votes):
            method.begin_prediction(draw)
            with torch.no_grad():
                own.append(method.own_scores(torch.arange(graph.num_nodes)).double().numpy())
        expected = {}
        for other in set(np.flatnonzero(passing[node])) - {node}:
            blank = passing.copy()
            blank[node, other] = 0
            pairs = [tuple(softmax((m @ scores)[node]) for m in (passing, blank)) for scores in own]
            expected[graph.id_of(int(other))] = np.mean([whole - less for whole, less in pairs], axis=0)
        assert {n.id for n in e.neighbours} == set(expected)
        for n in e.neighbours:
            assert (n.importance, n.runner_up) == pytest.approx(tuple(expected[n.id][[first, second]]), abs=1e-5)
            place = graph.index_of(n.id)
            assert n.weight == pytest.approx(passing[node, place], abs=1e-6)
            assert n.distance == distances(graph, node, np.array([place]))[place]
            assert n.label == explain.label_of(place)
            assert n.says == e.classes[np.mean([softmax(scores[place]) for scores in own], axis=0).argmax()]
        reached += len(e.neighbours)
        assert Explanation.from_json(json.loads(json.dumps(e.to_json()))) == e
    assert reached > graph.num_nodes
    assert explain.explain(0, "attention").neighbours == ()


@pytest.mark.parametrize("learned", [False, True])
def test_only_so_many_neighbours(monkeypatch: pytest.MonkeyPatch, learned: bool) -> None:
    """Learned weights may be negative, and weigh as much."""
    found = explainer_of({"score_hops": 3, "score_learned": learned})
    if learned:
        with torch.no_grad():
            found.method.score_weights.copy_(torch.tensor([1.0, -1.0, 0.6, 0.1]))
    whole = found.explain(0)
    assert any(n.weight < 0 for n in whole.neighbours) == learned
    monkeypatch.setattr(explainer, "MAX_NODES", 2)
    e = found.explain(0)
    assert (len(e.neighbours), e.neighbours_left_out) == (2, len(whole.neighbours) - 2)
    kept = sorted(whole.neighbours, key=lambda n: -abs(n.weight))[:2]
    assert {n.id for n in e.neighbours} == {n.id for n in kept}


def test_explanations_from_before_neighbours_were_told_are_read() -> None:
    e = explainer_of({}).explain(0)
    old = {key: value for key, value in e.to_json().items() if not key.startswith("neighbours")}
    assert Explanation.from_json(json.loads(json.dumps(old))) == e


# ---------------------------------------------------------------- who is asked for


def test_nodes_by_id_and_by_index() -> None:
    found = explainer_of({})
    assert found.explain(found.graph.id_of(4)) == found.explain(4) == found.explain(np.int64(4))  # type: ignore[arg-type]
    numbered = dataclasses.replace(found.graph, node_ids=None)
    assert Explainer(found.method, numbered, numbered.class_names).explain("4").node == "4"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("node <4> & u", r"graph 'awkward' has no node 'node <4> & u'; nearest: node <4> & ü"),
        (20, "node: 20, but the graph has nodes 0 to 19"),
        (-1, "node: -1, but the graph has nodes 0 to 19"),
        (1.5, r"node: 1\.5; expected an id"),
    ],
)
def test_unknown_nodes(node: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        explainer_of({}).explain(node)


@pytest.mark.parametrize("method", METHODS)
def test_numbers_too_large_for_the_model(method: Any) -> None:
    graph = awkward_graph(x=np.full((20, 4), 3e38, np.float32))
    found = Explainer(method_of(graph), graph, graph.class_names)
    with pytest.raises(InputError, match=r"node 4 \(counted from 0\): its class scores are not finite \(1 of"):
        found.explain(4, method)
    with pytest.raises(InputError, match=r"its class scores are not finite \(20 of 20 nodes\)"):
        summarise_attention(found)


def test_unknown_methods() -> None:
    with pytest.raises(InputError, match="method: 'gradient'; expected auto, attention, rollout, occlusion"):
        explainer_of({}).explain(0, "gradient")  # type: ignore[arg-type]


# ---------------------------------------------------------------- the classifier


@pytest.fixture(scope="module")
def trained() -> TokenphormerClassifier:
    graph = tiny_graph()
    return TokenphormerClassifier(**tiny_config(votes=2).__dict__, device="cpu").fit(graph, tiny_split(graph))


def test_the_classifier_explains(trained: TokenphormerClassifier, tmp_path: Path) -> None:
    e = trained.explain(3)
    assert e.predicted == trained.predict(nodes=[3])[0]
    np.testing.assert_allclose(e.probabilities, trained.predict_proba(nodes=[3])[0], atol=1e-6)
    trained.save_pretrained(tmp_path)
    loaded = TokenphormerClassifier.from_pretrained(tmp_path, device="cpu")
    again = loaded.explain(e.node, trained.graph_)
    np.testing.assert_allclose(again.probabilities, e.probabilities, atol=1e-6)
    assert again.tokens[0].path == e.tokens[0].path
    with pytest.raises(InputError, match="has no graph with it"):
        loaded.explain(3)


def test_new_graphs(trained: TokenphormerClassifier) -> None:
    """A graph it has never seen, with other ids, unlabelled nodes and other classes' names."""
    other = tiny_graph(25, seed=8, node_ids=[f"new {v}" for v in range(25)], y=None, class_names=None)
    assert isinstance(other, Graph)
    e = trained.explain("new 7", other)
    assert e.predicted == trained.predict(other, [7])[0]
    np.testing.assert_allclose(e.probabilities, trained.predict_proba(other, [7])[0], atol=1e-6)
    assert all(name.startswith("new ") for token in e.tokens for name in token.path)
    assert {e.label, *(n.label for n in e.nodes)} == {""}


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "spoil", [lambda v: v.pop("tokens"), lambda v: v["nodes"][0].pop("id"), lambda v: v.update(x=1)]
)
def test_other_json_is_refused(spoil: Any) -> None:
    values = explainer_of({}).explain(0).to_json()
    spoil(values)
    with pytest.raises(InputError, match="not the JSON of an explanation"):
        Explanation.from_json(values)
