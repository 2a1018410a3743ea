"""Ctrl-C and SIGTERM while something is going on that should end in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def put_off_signals(say: Callable[[str], None], piece: str = "epoch") -> Iterator[list[int]]:
    """A list that a first Ctrl-C or SIGTERM is noted in; a second one does what it always does."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only there Python lets handlers be set
        yield noted
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        del frame
        noted.append(number)
        restore()
        with suppress(RuntimeError):  # the signal came while something else was being said
            say(f"stopping at the end of this {piece}; once more to stop at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) not in (None, signal.SIG_IGN):  # who ignores a signal wants it ignored
            before[number] = signal.signal(number, note)
    try:
        yield noted
    finally:
        restore()
