"""How a run is served: where, to whom, and what a client may ask of the machine."""

from __future__ import annotations

import ipaddress
import string
from dataclasses import dataclass

from tokenphormer.errors import InputError

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
SHORTEST_TOKEN = 16
TOKEN_CHARACTERS = frozenset(string.ascii_letters + string.digits + "-._~+/=")


@dataclass(frozen=True)
class ServeSettings:
    """Defaults are for one person on their own machine."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 is any that is free."""
    token: str = ""
    """What clients must send as `Authorization: Bearer …`; empty: nothing. Required beyond this machine."""
    rate: float = 1000.0
    """Requests a second that one address may make; it may save up two seconds' worth, and 60 in any case."""
    max_body_bytes: int = 2 << 20
    """Largest request; parsing more would keep others waiting."""
    max_seconds: float = 30.0
    """Longest that a request may take to arrive, and its answer to be worked out."""
    max_waiting: int = 8
    """Explanations and predictions of new nodes, begun or waiting; further ones are turned away."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise InputError(f"port: {self.port}; expected 0 to {2**16 - 1}")
        for name in ("rate", "max_body_bytes", "max_seconds", "max_waiting"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: {getattr(self, name)}; expected more than 0")
        if self.token and (len(self.token) < SHORTEST_TOKEN or not set(self.token) <= TOKEN_CHARACTERS):
            raise InputError(f"token: expected at least {SHORTEST_TOKEN} letters, digits or any of -._~+/=")
        if not self.is_local and not self.token:
            raise InputError(f"host: {self.host} can be reached from other machines; give a token too")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """Where a browser finds the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        # Behind the #, so that no server, log or other page ever sees the token.
        return f"http://{host}:{self.port}/" + (f"#token={self.token}" if self.token else "")
