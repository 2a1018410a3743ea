"""Whatever comes in, the answer is JSON that says what is wrong; nothing breaks."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.client import Client
from tests.serve.conftest import ClientWith
from tokenphormer.serve import schemas as s

JSON = {"content-type": "application/json"}
NODE = 'n,"3" ü'
STRANGE = [
    "",
    "-1",
    "nobody",
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "file:///etc/passwd",
    "C:\\Windows\\win.ini",
    "run.json",
    'n,"3" ü\0',
    "ＮＡＮ",
    "💥" * 200,
    "\u202e\u0000\ufeff",
    "'; DROP TABLE nodes; --",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "9" * 1000,
]


def assert_refused(answer: httpx.Response, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["status"] == status
    assert error["message"]
    text = json.dumps(error)
    for word in words:
        assert word in text


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_strange_ids_are_unknown(client: Client, name: str) -> None:
    for path in ("predict", "explain", "neighbourhood"):
        assert_refused(client.get(f"/api/{path}", params={"id": name}), 404, "no node")
    assert_refused(client.get("/api/nodes", params={"neighbour_of": name}), 404, "neighbour_of")
    assert_refused(client.post("/api/predict", json={"ids": [NODE, name]}), 404, "ids.1")
    assert client.get("/api/nodes", params={"query": name}).status_code == 200
    edge = {"source": "new", "target": name}
    body = {"nodes": [{"id": "new", "features": [0] * 5}], "edges": [edge]}
    assert_refused(client.post("/api/predict/new", json=body), 422, "edges.0.target")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/api/predict", "query.id"),
        (f"/api/predict?id={'x' * 1001}", "query.id"),
        (f"/api/explain?id={NODE}&method=guess", "query.method"),
        (f"/api/neighbourhood?id={NODE}&hops=4", "query.hops"),
        (f"/api/neighbourhood?id={NODE}&hops=-1", "query.hops"),
        (f"/api/neighbourhood?id={NODE}&limit=301", "query.limit"),
        (f"/api/neighbourhood?id={NODE}&walks=21", "query.walks"),
        (f"/api/neighbourhood?id={NODE}&walks=NaN", "query.walks"),
        ("/api/nodes?limit=0", "query.limit"),
        ("/api/nodes?limit=1001", "query.limit"),
        ("/api/nodes?offset=-1", "query.offset"),
        (f"/api/nodes?offset={'9' * 40}", "query.offset"),
        ("/api/nodes?status=strange", "query.status"),
        ("/api/nodes?part=all", "query.part"),
        ("/api/nodes?order=random", "query.order"),
        ("/api/confusion?part=both", "query.part"),
    ],
)
def test_wrong_parameters_are_named(client: Client, path: str, where: str) -> None:
    assert_refused(client.get(path), 422, where)


def test_unknown_classes_are_named(client: Client) -> None:
    assert_refused(client.get("/api/nodes", params={"truth": "green"}), 422, "truth", "green")
    assert_refused(client.get("/api/nodes", params={"predicted": "../x"}), 422, "predicted")


def new(**changes: Any) -> str:
    body = {"nodes": [{"id": "new", "features": [0, 0, 0, 0, 0]}], "edges": []} | changes
    return json.dumps(body)


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("predict", '{"ids": []}', "body.ids"),
        ("predict", '{"ids": [3]}', "body.ids.0"),
        ("predict", '{"ids": "n"}', "body.ids"),
        ("predict", '{"ids": null}', "body.ids"),
        ("predict", '{"id": ["x"]}', "body.id"),
        ("predict", json.dumps({"ids": ["x"] * 1001}), "body.ids"),
        ("predict", json.dumps({"ids": ["x" * 1001]}), "body.ids.0"),
        ("predict", '{"ids": ["\\ud800"]}', "body.ids.0"),
        ("predict", "[]", "body"),
        ("predict", "", "body"),
        ("predict", "{", "body"),
        ("predict/new", new(nodes=[]), "body.nodes"),
        ("predict/new", new(nodes=[{"id": "new"}]), "body.nodes.0.features"),
        ("predict/new", new(nodes=[{"id": "", "features": [0] * 5}]), "body.nodes.0.id"),
        ("predict/new", new(nodes=[{"id": "a", "features": [0] * 4}]), "nodes.0.features"),
        ("predict/new", new(nodes=[{"id": "a", "features": [float("nan")] * 5}]), "body.nodes.0.features.0"),
        ("predict/new", new(nodes=[{"id": "a", "features": [float("inf")] * 5}]), "body.nodes.0.features.0"),
        ("predict/new", new(nodes=[{"id": "a", "features": [1e39] * 5}]), "body.nodes.0.features.0"),
        ("predict/new", '{"nodes": [{"id": "a", "features": [1e999, 0, 0, 0, 0]}]}', "body.nodes.0.features.0"),
        ("predict/new", new(nodes=[{"id": "a", "features": ["1"] * 5}]), "body.nodes.0.features.0"),
        ("predict/new", new(nodes=[{"id": "a", "features": [True] * 5}]), "body.nodes.0.features.0"),
        ("predict/new", new(nodes=[{"id": "a", "features": [1], "indices": [-1]}]), "body.nodes.0.indices.0"),
        ("predict/new", new(nodes=[{"id": "a", "features": [1], "indices": [10**30]}]), "indices"),
        ("predict/new", new(nodes=[{"id": "a", "features": [1], "indices": [5]}]), "nodes.0.indices"),
        ("predict/new", new(nodes=[{"id": "a", "features": [0] * 5, "label": 1}]), "body.nodes.0.label"),
        ("predict/new", new(nodes=[{"id": f"{i}", "features": [0] * 5} for i in range(101)]), "body.nodes"),
        ("predict/new", new(edges=[["new", NODE]]), "body.edges.0"),
        ("predict/new", new(edges=[{"source": "new", "target": NODE, "weight": 1}]), "edges.0.weight"),
        ("predict/new", new(edges=[{"source": "new", "target": NODE, "weight": -1}]), "body.edges.0.weight"),
        ("predict/new", new(edges=[{"source": "new", "target": NODE}] * 10_001), "body.edges"),
    ],
)
def test_wrong_bodies_are_named(client: Client, path: str, body: str, where: str) -> None:
    assert_refused(client.post(f"/api/{path}", content=body, headers=JSON), 422, where)


@pytest.mark.parametrize(
    "body",
    [b"\xff\xfe\x00", b"[" * 200_000, b'{"a":' * 200_000, b"9" * 100_000, b"\x1f\x8b\x08", "{}".encode("utf-16")],
    ids=["binary", "deep lists", "deep objects", "long number", "gzip", "utf-16"],
)
def test_what_is_no_json_is_refused(client: Client, body: bytes) -> None:
    answer = client.post("/api/predict", content=body, headers=JSON)
    assert_refused(answer, answer.status_code)
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "image/png"]
)
def test_other_content_types_are_refused(client: Client, kind: str) -> None:
    body = json.dumps({"ids": [NODE]})
    answer = client.post("/api/predict", content=body, headers={"content-type": kind})
    assert_refused(answer, 422, "body")
    assert "content-type: application/json" in answer.json()["error"]["message"]
    right = client.post("/api/predict", content="[]", headers={"content-type": "application/json; charset=utf-8"})
    assert "content-type" not in right.json()["error"]["message"]


def test_numbers_too_large_to_predict_from(client: Client) -> None:
    answer = client.post("/api/predict/new", json={"nodes": [{"id": "wide", "features": [3e38, 3e38, -3e38, 0, 0]}]})
    assert answer.status_code == 422
    assert "class scores are not finite" in answer.json()["error"]["message"]


def test_errors_do_not_repeat_what_was_given(client: Client) -> None:
    answer = client.post("/api/predict", content=json.dumps({"ids": [1] * 1000, "x" * 50_000: 1}), headers=JSON)
    assert_refused(answer, 422)
    assert len(answer.content) < 20_000
    assert len(answer.json()["error"]["details"]) == 20
    assert "the first 20 of 1001" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("verb", "path", "status"), [
    ("POST", "/api/explain", 405),
    ("DELETE", "/api/nodes", 405),
    ("PUT", "/", 405),
    ("GET", "/api/predict/new", 405),
    ("GET", "/api", 404),
    ("GET", "/api/", 404),
    ("GET", "/nothing", 404),
    ("OPTIONS", "/api/predict", 405),
])  # fmt: skip
def test_wrong_paths_and_verbs(client: Client, verb: str, path: str, status: int) -> None:
    assert_refused(client.request(verb, path), status)


def test_what_breaks_inside_is_not_told(app: FastAPI, client_with: ClientWith, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the secret of somebody")

    monkeypatch.setattr(app.state.service.explorer, "explain", broken)
    monkeypatch.setattr(app.state.service.explorer, "kept_explanation", lambda *_: None)
    answer = client_with().get("/api/explain", params={"id": NODE})
    assert_refused(answer, 500, "something went wrong here")
    assert "secret" not in answer.text
    assert answer.headers["content-security-policy"]


# ---------------------------------------------------------------- anything at all

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["ids", "nodes", "edges", "id", "features", "indices", "source"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)
IN_TESTS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@IN_TESTS
@given(body=ANY_JSON, path=st.sampled_from(["/api/predict", "/api/predict/new"]))
def test_any_body(client: Client, body: object, path: str) -> None:
    answer = client.post(path, content=json.dumps(body), headers=JSON)
    assert answer.status_code in (200, 404, 422)
    if answer.status_code != 200:
        s.ErrorBody.model_validate(answer.json())


@IN_TESTS
@given(
    path=st.sampled_from(["predict", "explain", "neighbourhood", "nodes", "confusion"]),
    values=st.dictionaries(
        st.sampled_from(
            ["id", "query", "status", "part", "truth", "order", "offset", "limit", "hops", "walks", "method"]
        ),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.integers().map(str),
        max_size=4,
    ),
)
def test_any_query(client: Client, path: str, values: dict[str, str]) -> None:
    answer = client.get(f"/api/{path}", params=values)
    assert answer.status_code in (200, 404, 422), answer.text
    if answer.status_code != 200:
        s.ErrorBody.model_validate(answer.json())


@IN_TESTS
@given(path=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_path(client: Client, path: str) -> None:
    from urllib.parse import quote

    answer = client.get("/" + quote(path.lstrip("/")))
    assert answer.status_code in (200, 404)
