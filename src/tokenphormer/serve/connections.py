"""HTTP as uvicorn speaks it, but nobody holds a connection for long without asking for something.

uvicorn waits for the end of a request's head as long as the client likes, and counts such connections against its
limit: some hundred of them would keep everybody out.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""How long a client may take from connecting, or from a request's first byte, to the end of its head."""
MOST_WAITING = 256
"""Connections without a whole request; when there are more, the one that has waited longest is closed."""


class Connection(H11Protocol):
    """A connection of a client."""

    waiting: ClassVar[dict[Connection, asyncio.TimerHandle]] = {}
    """Those from which a request is still to come, in the order they came in."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client has come; if too many wait already, the first of them has to go."""
        super().connection_made(transport)
        self._wait()
        if len(self.waiting) > MOST_WAITING:
            next(iter(self.waiting)).give_up()

    def data_received(self, data: bytes) -> None:
        """A part of a request has come."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._wait_no_more()
        elif not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._wait_no_more()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection, unanswered."""
        self._wait_no_more()
        self.transport.close()

    def _wait(self) -> None:
        if self not in self.waiting:
            self.waiting[self] = self.loop.call_later(HEAD_SECONDS, self.give_up)

    def _wait_no_more(self) -> None:
        timer: Any = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()
