"""The processes that runs are worked off in.

Importing torch and PyG takes as long as ten runs on a small graph. So nothing of it is imported here: the first worker
begins with it while the process that started it still does so itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any

from tokenphormer.errors import InputError


class Workers(ProcessPoolExecutor):
    """So many processes; they end with this one, and at once if it fails."""

    def __init__(self, count: int) -> None:
        check_workers(count)
        self._others = multiprocessing.active_children()
        super().__init__(count, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(count,))
        self._first = self.submit(_import)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As of any executor; the process that it may start is never hit by Ctrl-C or SIGTERM."""
        with _signals_held():
            return super().submit(fn, *args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Wait for what is under way; but not after an error, nor for a worker that was not needed."""
        if kind is not None or not self._first.done():
            for worker in set(multiprocessing.active_children()) - set(self._others):
                worker.kill()
        return super().__exit__(kind, error, trace)


def check_workers(count: int) -> None:
    """Raise unless there is at least one."""
    if count < 1:
        raise InputError(f"--workers {count}: expected at least 1")


def _import() -> None:
    for name in ("tokenphormer.benchmark.running", "torch_geometric.nn"):
        import_module(name)


@contextmanager
def _signals_held() -> Iterator[None]:
    """What is started now begins with Ctrl-C and SIGTERM blocked, so that it is not hit while it still imports."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(count: int) -> None:
    """A worker leaves Ctrl-C to the process that writes, ends with it, and takes its share of the cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)  # or it would hold its memory, a GPU's too, for ever

    threading.Thread(target=follow, daemon=True).start()
    import torch

    torch.set_num_threads(max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // count)))
