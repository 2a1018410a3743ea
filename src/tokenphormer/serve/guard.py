"""What stands before the API: who may ask, how often, how much; and the headers that every answer carries."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenphormer.serve.settings import LOCAL_NAMES, ServeSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

MAX_CLIENTS = 4096
"""Addresses whose requests are counted; of more, those that were quiet longest begin anew."""
LEAST_BURST = 60.0
"""Requests that an address may make at once, however low its rate: the page takes thirty to come up."""
OPEN = frozenset({"/health", "/ready"})
"""Always answered: whoever watches over the server asks these."""
NEED_TOKEN = "/api/"
"""Where the token is asked for; the page itself and the description of the API hold nothing of the run."""

POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
SECURITY: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]


def error_body(status: int, message: str, details: Sequence[dict[str, str]] = ()) -> bytes:
    """The JSON of every answer that is not a success. ASCII: ids may hold what no UTF-8 can."""
    return json.dumps({"error": {"status": status, "message": message, "details": list(details)}}).encode("ascii")


@dataclass(frozen=True)
class Refusal:
    """Why a request is not passed on."""

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class RateLimit:
    """A bucket of tokens for every address: `rate` come in each second, `burst` fit, a request takes one.

    >>> limit = RateLimit(1.0, 2.0, clock=lambda: 0.0)
    >>> [limit.wait("a"), limit.wait("a"), limit.wait("a"), limit.wait("b")]
    [0.0, 0.0, 1.0, 0.0]
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Seconds to wait before the next request; 0 if this one may pass, which it then has."""
        now = self._clock()
        tokens, since = self._buckets.get(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - since) * self.rate)
        passes = tokens >= 1
        self._buckets[client] = (tokens - passes, now)
        self._buckets.move_to_end(client)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - tokens) / self.rate


class Guard:
    """The outermost layer: checks, then reads the whole request, then passes it on."""

    def __init__(self, app: App, settings: ServeSettings) -> None:
        self.app, self.settings = app, settings
        self._limit = RateLimit(settings.rate, max(LEAST_BURST, 2 * settings.rate))
        self._hosts = LOCAL_NAMES | {settings.host} if settings.is_local else None
        self._expected = f"Bearer {settings.token}".encode() if settings.token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [pair for pair in message.get("headers", []) if pair[0] != b"server"]
                cache = [] if any(name == b"cache-control" for name, _ in own) else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*own, *SECURITY, *cache]}
            await send(message)

        body = b""
        refusal = self._check(scope)
        if refusal is None:
            try:
                body = await asyncio.wait_for(self._read(receive), self.settings.max_seconds)
            except TimeoutError:
                refusal = Refusal(408, f"the request did not arrive within {self.settings.max_seconds:g} s", _CLOSE)
            except _TooLargeError:
                refusal = self._too_large()
            except _GoneError:
                return
        if refusal is not None:
            await _answer(send_with_headers, refusal)
            return
        if scope.get("method") == "HEAD":  # what GET would answer; the server below leaves the body out
            scope = {**scope, "method": "GET"}
        await self.app(scope, _replay(body, receive), send_with_headers)

    def _check(self, scope: Scope) -> Refusal | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._hosts is not None and _name_of(headers.get(b"host", b"")) not in self._hosts:
            # A page elsewhere can have its own name lead here, and would then count as the same origin.
            return Refusal(403, "this server answers to its own address only")
        path: str = scope["path"]
        if path in OPEN:
            return None
        wait = self._limit.wait((scope.get("client") or ("",))[0])
        if wait:
            after = str(max(1, round(wait))).encode()
            return Refusal(429, f"more than {self.settings.rate:g} requests a second", ((b"retry-after", after),))
        if path.startswith(NEED_TOKEN):
            if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
                return Refusal(403, "pages of other sites may not ask")
            given = headers.get(b"authorization", b"")
            if self._expected is not None and not hmac.compare_digest(given, self._expected):
                message = "a token is needed: Authorization: Bearer TOKEN"
                return Refusal(401, message, ((b"www-authenticate", b"Bearer"),))
        if not scope.get("query_string", b"").isascii():  # of which the framework would make an error of its own
            return Refusal(400, "an address is ASCII: write other characters as %XX")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self.settings.max_body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the request is larger than {self.settings.max_body_bytes:,} bytes", _CLOSE)

    async def _read(self, receive: Receive) -> bytes:
        """The whole body, as long as it stays within its limit."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            body += message.get("body", b"")
            if len(body) > self.settings.max_body_bytes:
                raise _TooLargeError
            if not message.get("more_body", False):
                return bytes(body)


class _TooLargeError(Exception):
    pass


class _GoneError(Exception):
    pass


_CLOSE = ((b"connection", b"close"),)  # what is still to come is not read


def _name_of(host: bytes) -> str:
    """A Host header without its port."""
    text = host.decode("latin-1").lower()
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body again, and after it what else comes: that the client has gone."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _answer(send: Send, refusal: Refusal) -> None:
    body = error_body(refusal.status, refusal.message)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
