"""The one thread that uses the model: a short queue, a limit on time, and nothing lost."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.serve.conftest import ClientWith
from tests.serve.test_bad_input import NODE, assert_refused
from tokenphormer.serve.jobs import BusyError, Recent, SlowError, Worker


def test_jobs_are_worked_off_one_at_a_time() -> None:
    worker, running, most = Worker(8, 10.0), 0, 0

    def job(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1
        return number

    async def ask() -> list[int]:
        return await asyncio.gather(*(worker.run(lambda n=n: job(n)) for n in range(8)))

    assert asyncio.run(ask()) == list(range(8))
    assert most == 1
    assert asyncio.run(ask()) == list(range(8))  # all places are free again


def test_too_many_are_turned_away_until_there_is_room() -> None:
    worker, free = Worker(2, 10.0), threading.Event()

    async def ask() -> None:
        jobs = [asyncio.ensure_future(worker.run(free.wait)) for _ in range(2)]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError, match="try again"):
            await worker.run(free.wait)
        free.set()
        assert await asyncio.gather(*jobs) == [True, True]
        assert await worker.run(lambda: 3) == 3

    asyncio.run(ask())


def test_slow_jobs_are_given_up_but_keep_their_place() -> None:
    worker, free = Worker(1, 0.05), threading.Event()

    async def ask() -> None:
        with pytest.raises(SlowError, match=r"not ready after 0\.05 s"):
            await worker.run(free.wait)
        with pytest.raises(BusyError):
            await worker.run(lambda: 1)
        free.set()
        await asyncio.sleep(0.1)
        assert await worker.run(lambda: 2) == 2

    asyncio.run(ask())


def test_what_is_still_going_on_at_the_end_is_told() -> None:
    """The server then cancels what it waits for; as it is, that would be a traceback and no answer."""
    worker, free = Worker(1, 10.0), threading.Event()

    async def ask() -> None:
        job = asyncio.ensure_future(worker.run(free.wait))
        await asyncio.sleep(0.05)
        job.cancel()
        with pytest.raises(BusyError, match="the server is being ended"):
            await job
        free.set()

    asyncio.run(ask())


def test_errors_of_jobs_come_back() -> None:
    worker = Worker(1, 1.0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(worker.run(lambda: 1 // 0))


def test_over_the_api(app: FastAPI, client_with: ClientWith, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(app.state.service, "worker", Worker(1, 0.05))
    monkeypatch.setattr(app.state.service.explorer, "neighbourhood", lambda *_: free.wait() and {})
    client = client_with()
    assert_refused(client.get("/api/neighbourhood", params={"id": NODE}), 504, "not ready")
    busy = client.get("/api/neighbourhood", params={"id": NODE})
    assert_refused(busy, 503, "waiting")
    assert busy.headers["retry-after"] == "1"
    assert client.get("/api/predict", params={"id": NODE}).status_code == 200  # these need no model any more
    free.set()


def test_the_values_used_last_are_kept() -> None:
    recent, made = Recent[str](2), list[str]()

    def get(key: str) -> str:
        return recent.get(key, lambda: made.append(key) or key * 2)  # type: ignore[func-returns-value]

    assert [get(key) for key in "abab"] == ["aa", "bb", "aa", "bb"]
    get("c")  # a was used longest ago
    assert recent.peek("a") is None
    assert recent.peek("b") == "bb"
    get("a")
    assert made == ["a", "b", "c", "a"]


def test_what_fails_is_not_kept() -> None:
    recent = Recent[Any](2)
    with pytest.raises(ZeroDivisionError):
        recent.get("a", lambda: 1 // 0)
    assert recent.get("a", lambda: Path()) == Path()
