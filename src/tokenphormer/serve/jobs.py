"""`Worker`: the one thread that uses the model, with a short queue and a limit on time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import Generic, TypeVar

from tokenphormer.errors import ResourceError

T = TypeVar("T")


class BusyError(ResourceError):
    """Too much is waiting already."""


class SlowError(ResourceError):
    """An answer took longer than it may."""


class Worker:
    """Works jobs off one at a time: the tokens of a graph keep state, and more threads would not be faster."""

    def __init__(self, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._room, self._seconds = Semaphore(waiting), seconds

    async def run(self, job: Callable[[], T]) -> T:
        """The job's result. A job that is too slow works on to its end, and has its place in the queue till then."""
        if not self._room.acquire(blocking=False):
            raise BusyError("too many explanations or predictions of new nodes are waiting; try again in a moment")
        future = self._pool.submit(job)
        future.add_done_callback(lambda _: self._room.release())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            raise SlowError(f"the answer was not ready after {self._seconds:g} s") from None
        except asyncio.CancelledError:  # by uvicorn, which has waited long enough for what is still going on
            raise BusyError("the server is being ended") from None


class Recent(Generic[T]):
    """The values used last, at most so many.

    >>> recent = Recent(2)
    >>> [recent.get(key, lambda: key.upper()) for key in "abca"], recent.made
    (['A', 'B', 'C', 'A'], 4)
    """

    def __init__(self, most: int) -> None:
        self._values: OrderedDict[object, T] = OrderedDict()
        self._most = most
        self.made = 0
        """How often a value was not there."""

    def get(self, key: object, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not there. To be called from one thread."""
        if key not in self._values:
            self.made += 1
            self._values[key] = make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]

    def peek(self, key: object) -> T | None:
        """The value of a key if it is there; from any thread."""
        return self._values.get(key)
