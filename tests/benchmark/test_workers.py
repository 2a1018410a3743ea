"""The processes that runs are worked off in: they begin early, and never outlive or hold up the command."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokenphormer.benchmark.workers import Workers
from tokenphormer.errors import InputError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and processes as POSIX has them")


def _where() -> tuple[int, bool]:
    return os.getpid(), "tokenphormer.benchmark.running" in sys.modules


def test_the_first_worker_has_imported_what_runs_need_and_what_is_under_way_is_waited_for() -> None:
    with Workers(1) as pool:
        pid, ready = pool.submit(_where).result()
        slow = pool.submit(time.sleep, 0.3)
    assert pid != os.getpid()
    assert ready
    assert slow.done()
    assert slow.exception() is None


def _fails() -> None:
    with Workers(2) as pool:
        pool.submit(time.sleep, 600)
        raise ZeroDivisionError


def test_none_are_left_after_an_error_and_nobody_waits_for_imports() -> None:
    before = set(multiprocessing.active_children())
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        _fails()
    assert time.monotonic() - began < 60
    assert not any(worker.is_alive() for worker in set(multiprocessing.active_children()) - before)


def test_nobody_waits_for_a_worker_that_was_not_needed() -> None:
    with Workers(1) as pool:
        first = pool._first
    assert first.done()
    assert first.exception() is not None, "it was still importing, and killed"


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one(count: int) -> None:
    with pytest.raises(InputError, match=f"--workers {count}: expected at least 1"):
        Workers(count)


def test_starting_them_imports_nothing_heavy() -> None:
    """Or the first worker could not begin before the command itself has."""
    code = "import sys, tokenphormer.benchmark.workers; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert told.stdout.strip() == "[]"
