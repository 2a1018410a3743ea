"""Who may ask, how often and how much; and the headers of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.serve.conftest import ClientWith
from tests.serve.test_bad_input import JSON, NODE, assert_refused
from tokenphormer.errors import InputError
from tokenphormer.serve.guard import MAX_CLIENTS, POLICY, Guard, RateLimit
from tokenphormer.serve.settings import ServeSettings

TOKEN = "correct-horse-battery"
ASK = {"id": NODE}


# ---------------------------------------------------------------- headers


@pytest.mark.parametrize("path", ["/", "/docs", "/static/main.js", "/health", "/api/run", "/nothing", "/openapi.json"])
def test_every_answer_has_the_headers(client_with: ClientWith, path: str) -> None:
    headers = client_with().get(path).headers
    assert headers["content-security-policy"] == POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "server" not in headers
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/api/run", "/api/predict?id=nobody", "/api/predict/new"])
def test_the_head_of_every_answer_can_be_had_alone(client_with: ClientWith, path: str) -> None:
    client = client_with()
    whole, head = client.get(path), client.request("HEAD", path)
    assert (head.status_code, head.headers) == (whole.status_code, whole.headers)
    assert head.content == b""


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == "'self'"
    assert rules["frame-ancestors"] == "'none'"
    assert set(rules.values()) == {"'self'", "'none'"}  # nothing inline, nothing evaluated, no other host


# ---------------------------------------------------------------- who


def test_a_token_is_asked_for(client_with: ClientWith) -> None:
    client = client_with(token=TOKEN)
    for given in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"bearer {TOKEN}"},
    ):
        answer = client.get("/api/predict", params=ASK, headers=given)
        assert_refused(answer, 401, "token")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert_refused(client.post("/api/predict/new", content="{", headers=given | JSON), 401)
    right = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/predict", params=ASK, headers=right).status_code == 200
    # The page has to come before it can send anything, and holds nothing of the run.
    for path in ("/", "/docs", "/static/main.js", "/openapi.json", "/health", "/ready"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "tiny" not in answer.text


def test_a_token_in_the_address_does_not_count(client_with: ClientWith) -> None:
    assert client_with(token=TOKEN).get("/api/run", params={"token": TOKEN}).status_code == 401


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8000", True),
        ("LOCALHOST:1", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost@evil.example", False),
        ("", False),
    ],
)
def test_other_names_do_not_lead_here(client_with: ClientWith, host: str, fine: bool) -> None:
    answer = client_with().get("/api/run", headers={"host": host})
    if fine:
        assert answer.status_code == 200
    else:
        assert_refused(answer, 403, "its own address")


def test_beyond_this_machine_any_name_does_with_the_token(client_with: ClientWith) -> None:
    client = client_with(host="0.0.0.0", token=TOKEN)
    right = {"host": "lab.example", "authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/run", headers=right).status_code == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_pages_of_other_sites_may_not_ask(client_with: ClientWith, site: str, status: int) -> None:
    assert client_with().get("/api/run", headers={"sec-fetch-site": site}).status_code == status


# ---------------------------------------------------------------- how often


def test_the_rate_is_limited(client_with: ClientWith) -> None:
    client = client_with(rate=0.5)
    answers = [client.get("/api/predict", params=ASK) for _ in range(70)]
    assert [answer.status_code for answer in answers[:60]] == [200] * 60
    assert_refused(answers[-1], 429, "more than 0.5 requests a second")
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert client.get("/health").status_code == 200
    assert client.get("/ready").status_code == 200


def test_buckets_fill_again_and_are_apart() -> None:
    now = 0.0
    limit = RateLimit(10, 20, clock=lambda: now)
    assert sum(limit.wait("a") == 0 for _ in range(100)) == 20
    assert limit.wait("b") == 0
    assert limit.wait("a") == pytest.approx(0.1)
    now = 0.55
    assert sum(limit.wait("a") == 0 for _ in range(100)) == 5
    now = 1000.0
    assert sum(limit.wait("a") == 0 for _ in range(100)) == 20


def test_buckets_do_not_grow_without_end() -> None:
    limit = RateLimit(1, 2)
    for number in range(MAX_CLIENTS + 500):
        limit.wait(f"10.0.{number // 256}.{number % 256}")
    assert len(limit._buckets) == MAX_CLIENTS


# ---------------------------------------------------------------- how much


def test_large_requests_are_refused(client_with: ClientWith) -> None:
    client = client_with(max_body_bytes=1000)
    fits, more = b'{"ids": ["x"]}'.ljust(1000), b'{"ids": ["x"]}'.ljust(1001)
    assert client.post("/api/predict", content=fits, headers=JSON).status_code == 404
    assert_refused(client.post("/api/predict", content=more, headers=JSON), 413, "1,000 bytes")

    async def in_pieces() -> AsyncIterator[bytes]:  # no length is told beforehand
        for _ in range(100):
            yield b" " * 100

    assert_refused(client.post("/api/predict", content=in_pieces(), headers=JSON), 413)
    for length in ("-1", "1e3", "9" * 500, "nine"):
        answer = client.post("/api/predict", content=fits, headers=JSON | {"content-length": length})
        assert_refused(answer, 413)


def guarded(messages: list[dict[str, Any]], wait: float = 0.0, **settings: Any) -> list[dict[str, Any]]:
    """What the guard sends, given what comes in; the app behind it answers with what it was given."""
    sent: list[dict[str, Any]] = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def receive() -> Any:
        await asyncio.sleep(wait)
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/api/x", "headers": [(b"host", b"localhost")], "client": ("1.2.3.4", 5)}
    asyncio.run(Guard(app, ServeSettings(**settings))(scope, receive, send))
    return sent


def piece(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_requests_that_come_in_pieces_are_put_together() -> None:
    sent = guarded([piece(b"ab", True), piece(b"", True), piece(b"c", False)])
    assert sent[1]["body"] == b"abc"


def test_slow_requests_are_given_up() -> None:
    sent = guarded([piece(b"x", True)] * 100, wait=0.02, max_seconds=0.1)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_client_that_has_gone_gets_no_answer() -> None:
    assert guarded([piece(b"x", True), {"type": "http.disconnect"}]) == []


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"host": "0.0.0.0"}, "can be reached from other machines; give a token"),
        ({"host": "::"}, "give a token"),
        ({"host": "192.168.1.5"}, "give a token"),
        ({"host": "example.org"}, "give a token"),
        ({"token": "short"}, "at least 16"),
        ({"token": "sixteen letters ü!"}, "at least 16 letters"),
        ({"port": 70000}, "port"),
        ({"port": -1}, "port"),
        ({"rate": 0.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"max_seconds": -1.0}, "max_seconds"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ServeSettings(**values)


def test_addresses() -> None:
    assert ServeSettings().url == "http://127.0.0.1:8000/"
    assert ServeSettings(host="::1", port=80).url == "http://[::1]:80/"
    assert ServeSettings(host="0.0.0.0", token=TOKEN).url == f"http://0.0.0.0:8000/#token={TOKEN}"
    assert ServeSettings(host="127.0.0.5").is_local
