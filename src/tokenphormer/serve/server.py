"""`serve`: open a run, listen, and load what takes time while health can be asked for already."""

from __future__ import annotations

import errno
import importlib.util
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.serve.settings import ServeSettings

if TYPE_CHECKING:
    from tokenphormer.serve.api import Service

MAX_CONNECTIONS = 512
log = logging.getLogger(__name__)


def serve(
    folder: Path,
    settings: ServeSettings,
    *,
    device: str = "auto",
    source: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a run folder until Ctrl-C. `source` is where the run's own graph is now, if it was moved."""
    check_extra()
    import uvicorn

    from tokenphormer.serve.api import create_app
    from tokenphormer.serve.connections import Connection
    from tokenphormer.serve.explorer import Explorer, open_run
    from tokenphormer.serve.guard import Guard

    explorer = Explorer(open_run(folder, device, source))
    with listen(settings) as listening:
        bound = replace(settings, port=listening.getsockname()[1])
        app = create_app(explorer, bound)
        config = uvicorn.Config(
            Guard(app, bound),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # an address that a client claims to have does not count
            ws="none",
            http=Connection,
            lifespan="off",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=5,
        )
        say(f"{folder}: {explorer.graph.name} at {bound.url} (Ctrl-C ends it)")
        server, failures = uvicorn.Server(config), list[Exception]()

        def work() -> None:
            try:
                load(app.state.service, say)
            except Exception as error:  # told by the main thread
                failures.append(error)
                server.should_exit = True

        Thread(target=work, daemon=True, name="loading").start()
        server.run(sockets=[listening])
        for failure in failures:
            raise failure


def load(service: Service, say: Callable[[str], None] = lambda _: None) -> None:
    """Predict all nodes, then place them on the map. Without a map the rest still works."""
    service.explorer.load()
    say("ready")
    try:
        service.explorer.make_map()
        service.map_bytes = service.explorer.map_columns()
    except Exception:
        service.map_failed = True
        log.exception("the map could not be made")


def check_extra() -> None:
    """Raise if what only the server needs is not installed."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"serve needs {' and '.join(missing)}: pip install 'tokenphormer[serve]'")


def listen(settings: ServeSettings) -> socket.socket:
    """A socket on the address that the settings name."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        # With its protocol: only then does asyncio send small answers at once, where the system would wait for 40 ms.
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"host: {settings.host!r} is no address ({error.strerror})") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # whoever is told the address now may come at once
    except OSError as error:
        listening.close()
        taken = "; take another with --port" if error.errno == errno.EADDRINUSE else ""
        raise ResourceError(f"cannot listen on {settings.host}:{settings.port} ({error.strerror}){taken}") from error
    return listening
