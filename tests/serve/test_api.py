"""Every endpoint answers with what the model says, in the form that the schema promises."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from tests.serve.client import Client
from tests.serve.conftest import ClientWith, Wanted
from tests.tiny import CLASS_NAMES
from tokenphormer.explain import METHODS, Explanation
from tokenphormer.graph import Split
from tokenphormer.serve import schemas as s
from tokenphormer.serve.api import Json, create_app
from tokenphormer.serve.explorer import Explorer
from tokenphormer.serve.settings import ServeSettings

NEW = {
    "nodes": [{"id": "new ✓", "features": [1, 0, -2.5, 0, 0]}, {"id": "other", "features": [3.0], "indices": [4]}],
    "edges": [{"source": "new ✓", "target": 'n,"3" ü'}, {"source": "other", "target": "new ✓"}],
}


# ---------------------------------------------------------------- state


def test_health_and_readiness(explorer: Explorer, client_with: ClientWith) -> None:
    unloaded = create_app(Explorer(explorer.run), ServeSettings())
    client = client_with(unloaded)
    assert client.get("/health").json() == {"status": "ok"}
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "map": "being made"})
    for path in ("/api/run", "/api/predict?id=0", "/api/map"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "still being loaded" in answer.json()["error"]["message"]
    unloaded.state.service.explorer.load()
    assert client.get("/ready").json() == {"ready": True, "map": "being made"}
    assert client.get("/api/run").status_code == 200
    assert client.get("/api/map").status_code == 503
    unloaded.state.service.map_failed = True
    assert client.get("/ready").json()["map"] == "failed"
    assert "could not be made" in client.get("/api/map").json()["error"]["message"]


def test_the_forms_are_as_promised(client: Client, explorer: Explorer) -> None:
    node = explorer.graph.id_of(3)
    asked: list[tuple[str, str, dict[str, Any], type[BaseModel]]] = [
        ("GET", "/ready", {}, s.Readiness),
        ("GET", "/api/run", {}, s.About),
        ("GET", "/api/nodes", {"params": {"limit": "7"}}, s.Found),
        ("GET", "/api/confusion", {"params": {"part": "all"}}, s.Confusion),
        ("GET", "/api/map", {}, s.MapColumns),
        ("GET", "/api/predict", {"params": {"id": node}}, s.OnePrediction),
        ("POST", "/api/predict", {"json": {"ids": [node]}}, s.Predicted),
        ("POST", "/api/predict/new", {"json": NEW}, s.NewPredicted),
        ("GET", "/api/neighbourhood", {"params": {"id": node, "walks": "3"}}, s.Surroundings),
    ]
    for verb, path, arguments, form in asked:
        answer = client.request(verb, path, **arguments)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        # Round-tripped without loss: no field is missing, none is there that the schema does not know.
        assert form.model_validate(answer.json()).model_dump(mode="json") == answer.json()
    spec = client.get("/openapi.json").json()
    described = {(verb.upper(), path) for path, verbs in spec["paths"].items() for verb in verbs}
    assert described == {(verb, path) for verb, path, *_ in asked} | {("GET", "/health"), ("GET", "/api/explain")}


# ---------------------------------------------------------------- predictions


def test_predictions_are_the_models(get: Wanted, client: Client, explorer: Explorer) -> None:
    graph = explorer.graph
    expected = explorer.run.classifier.predict_proba(graph)
    ids = [graph.id_of(node) for node in (5, 0, 59, 5)]
    answer = client.post("/api/predict", json={"ids": ids}).json()
    assert answer["classes"] == list(CLASS_NAMES)
    assert [each["id"] for each in answer["predictions"]] == ids
    np.testing.assert_allclose([p["probabilities"] for p in answer["predictions"]], expected[[5, 0, 59, 5]], atol=1e-6)
    one = get("/api/predict", id=ids[0])
    assert one == {"classes": answer["classes"], **answer["predictions"][0]}
    assert one["predicted"] == CLASS_NAMES[expected[5].argmax()]
    assert one["probability"] == max(one["probabilities"])
    first, second = sorted(one["probabilities"])[:-3:-1]
    assert one["margin"] == pytest.approx(first - second, abs=2e-6)
    assert one["degree"] == graph.degree[5]


def test_labels_and_parts(get: Wanted, explorer: Explorer) -> None:
    graph, split = explorer.graph, explorer.run.split
    for node in range(graph.num_nodes):
        found = get("/api/predict", id=graph.id_of(node))
        truth = graph.y[node]
        assert found["label"] == (CLASS_NAMES[truth] if truth >= 0 else None)
        expected = "unlabelled" if truth < 0 else "right" if found["predicted"] == found["label"] else "wrong"
        assert found["outcome"] == expected
        assert found["part"] == next((part for part in ("train", "val", "test") if node in getattr(split, part)), None)
        assert found["uncertain"] == (found["margin"] < 0.2)


# ---------------------------------------------------------------- finding


def everyone(get: Wanted) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = get("/api/nodes", limit=1000)["nodes"]
    assert len(nodes) == 60
    return nodes


def test_filters_keep_what_they_say(get: Wanted) -> None:
    nodes = everyone(get)
    statuses = ("all", "right", "wrong", "uncertain", "unlabelled")
    seen = 0
    for status, part, truth in itertools.product(statuses, ("", "train", "test", "none"), ("", *CLASS_NAMES)):
        asked = {name: value for name, value in (("part", part), ("truth", truth)) if value}
        found = get("/api/nodes", status=status, limit=1000, **asked)
        expected = [
            node
            for node in nodes
            if (status == "all" or (node["uncertain"] if status == "uncertain" else node["outcome"] == status))
            and (not part or (node["part"] or "none") == part)
            and (not truth or node["label"] == truth)
        ]
        assert found["nodes"] == expected
        assert found["total"] == len(expected)
        seen += 0 < len(expected) < 60
    assert seen > 10
    found = get("/api/nodes", predicted=CLASS_NAMES[1], limit=1000)["nodes"]
    assert found == [node for node in nodes if node["predicted"] == CLASS_NAMES[1]]


def test_counts_agree_with_filters(get: Wanted) -> None:
    run = get("/api/run")
    for status, number in run["counts"].items():
        assert get("/api/nodes", status=status)["total"] == number
    assert run["nodes"] == 60
    assert run["split"]["train"] + run["split"]["val"] + run["split"]["test"] == 54


def test_order_and_pages(get: Wanted) -> None:
    sure = get("/api/nodes", order="sure", limit=60)["nodes"]
    shares = [node["probability"] for node in sure]
    assert shares == sorted(shares, reverse=True)
    unsure = get("/api/nodes", order="unsure", limit=60)["nodes"]
    assert [node["probability"] for node in unsure] == sorted(shares)
    pages = [get("/api/nodes", order="sure", offset=first, limit=25)["nodes"] for first in (0, 25, 50, 75)]
    assert [len(page) for page in pages] == [25, 25, 10, 0]
    assert list(itertools.chain(*pages)) == sure


def test_search_finds_parts_of_ids_whatever_their_case(get: Wanted) -> None:
    found = get("/api/nodes", query='N,"5', limit=60)
    assert [node["id"] for node in found["nodes"]] == [f'n,"{i}" ü' for i in (5, *range(50, 60))]
    assert [node["id"] for node in get("/api/nodes", query='n,"7" Ü')["nodes"]] == ['n,"7" ü']
    assert get("/api/nodes", query='n,"7" ü', status="unlabelled")["total"] == 0
    assert get("/api/nodes", query="nobody")["nodes"] == []


def test_exact_hits_come_before_leading_ones_and_those_before_others() -> None:
    from tests.tiny import tiny_graph
    from tokenphormer.serve.predictions import Predictions, Wanted

    names = ["xab", "abc", "ab", "zz", "ABD", "cab"]
    graph = tiny_graph(6, node_ids=names, edge_index=[[0], [1]])
    found = Predictions(graph, Split([0], [1], [2]), np.full((6, 3), 1 / 3, np.float32)).find(Wanted(query="ab"))
    assert [names[node] for node in found] == ["ab", "abc", "ABD", "xab", "cab"]


def test_neighbours_are_listed(get: Wanted, explorer: Explorer) -> None:
    graph = explorer.graph
    found = get("/api/nodes", neighbour_of=graph.id_of(4), limit=1000)
    assert [node["id"] for node in found["nodes"]] == [graph.id_of(int(node)) for node in graph.neighbours(4)]
    assert found["total"] > 1


@pytest.mark.parametrize("part", ["train", "val", "test", "none", "all"])
def test_confusion_counts_what_the_list_lists(get: Wanted, part: str) -> None:
    found = get("/api/confusion", part=part)
    total = right = 0
    for truth, predicted in itertools.product(range(3), range(3)):
        asked = {"truth": CLASS_NAMES[truth], "predicted": CLASS_NAMES[predicted]} | (
            {} if part == "all" else {"part": part}
        )
        assert get("/api/nodes", **asked)["total"] == found["confusion"][truth][predicted]
        total += found["confusion"][truth][predicted]
        right += found["confusion"][truth][predicted] * (truth == predicted)
    assert found["accuracy"] == (pytest.approx(right / total) if total else None)
    assert (total == 0) == (part == "none")


def test_the_map_has_every_node(get: Wanted, explorer: Explorer) -> None:
    found = get("/api/map")
    graph, predictions = explorer.graph, explorer.predictions
    assert found["id"] == [graph.id_of(node) for node in range(60)]
    assert found["predicted"] == predictions.predicted.tolist()
    assert found["label"] == graph.y.tolist()
    assert found["part"] == predictions.part.tolist()
    assert min(found["x"] + found["y"]) >= 0
    assert max(found["x"] + found["y"]) <= found["side"]
    assert len(set(zip(found["x"], found["y"], strict=True))) > 50


# ---------------------------------------------------------------- explanations


@pytest.mark.parametrize("method", METHODS)
def test_explanations_are_the_explainers(get: Wanted, explorer: Explorer, method: Any) -> None:
    expected = explorer.explainer.explain(7, method)
    found = get("/api/explain", id=explorer.graph.id_of(7), method=method)
    assert Explanation.from_json(found) == expected
    assert [token["importance"] for token in found["tokens"]] == sorted(
        (t.importance for t in expected.tokens), reverse=True
    )


def test_explanations_are_kept(get: Wanted, explorer: Explorer, app: FastAPI) -> None:
    before = explorer._explanations.made
    first = get("/api/explain", id=explorer.graph.id_of(8))
    assert explorer._explanations.made == before + 1
    assert get("/api/explain", id=explorer.graph.id_of(8)) == first
    get("/api/neighbourhood", id=explorer.graph.id_of(8), walks=4)
    assert explorer._explanations.made == before + 1
    get("/api/explain", id=explorer.graph.id_of(8), method="attention")
    assert explorer._explanations.made == before + 2


def test_a_neighbourhood_with_walks(get: Wanted, explorer: Explorer) -> None:
    node = explorer.graph.id_of(9)
    found = get("/api/neighbourhood", id=node, hops=1, limit=5, walks=4)
    names = [each["id"] for each in found["nodes"]]
    assert names[0] == node
    assert len(set(names)) == len(names)
    heaviest = [token for token in explorer.explainer.explain(9, "occlusion").tokens if token.path][:4]
    assert [tuple(names[place] for place in walk["path"]) for walk in found["walks"]] == [t.path for t in heaviest]
    assert [walk["importance"] for walk in found["walks"]] == [token.importance for token in heaviest]
    indices = [explorer.predictions.index_of(name) for name in names]
    for a, b in found["edges"]:
        assert indices[b] in explorer.graph.neighbours(indices[a])
    assert get("/api/neighbourhood", id=node)["walks"] == []


# ---------------------------------------------------------------- new nodes


def test_new_nodes_change_nothing_for_others(client: Client, get: Wanted, explorer: Explorer) -> None:
    before = get("/api/nodes", limit=1000)
    first = client.post("/api/predict/new", json=NEW).json()
    assert client.post("/api/predict/new", json=NEW).json() == first
    assert [each["id"] for each in first["predictions"]] == ["new ✓", "other"]
    assert [each["degree"] for each in first["predictions"]] == [2, 1]
    assert get("/api/nodes", limit=1000) == before
    assert client.get("/api/predict", params={"id": "other"}).status_code == 404
    for each in first["predictions"]:
        assert sum(each["probabilities"]) == pytest.approx(1, abs=1e-5)


def test_a_new_node_alone(client: Client) -> None:
    answer = client.post("/api/predict/new", json={"nodes": [{"id": "alone", "features": [0, 0, 0, 0, 0]}]})
    assert answer.status_code == 200
    assert answer.json()["predictions"][0]["degree"] == 0


def test_answers_hold_any_id() -> None:
    """Ids of people's files may hold half a surrogate pair, which UTF-8 cannot."""
    assert json.loads(Json({"id": "half \ud800"}).body) == {"id": "half \ud800"}
