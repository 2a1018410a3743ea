"""A client that asks the application itself, without a network between."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI

from tokenphormer.serve.guard import Guard
from tokenphormer.serve.settings import ServeSettings

ADDRESS = "http://127.0.0.1"


class Client:
    """httpx's client with a loop of its own. Errors of the server are answers, as over the network."""

    def __init__(self, app: FastAPI, **settings: Any) -> None:
        self.guard = Guard(app, ServeSettings(**({"rate": 1e9} | settings)))
        transport = httpx.ASGITransport(self.guard, raise_app_exceptions=False)  # type: ignore[arg-type]
        self._client = httpx.AsyncClient(transport=transport, base_url=ADDRESS)
        self._runner = asyncio.Runner()

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, **arguments))

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        return self.request("GET", path, **arguments)

    def post(self, path: str, **arguments: Any) -> httpx.Response:
        return self.request("POST", path, **arguments)

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()
