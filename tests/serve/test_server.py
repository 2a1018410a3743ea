"""The server as a process: it listens, answers, refuses, and ends when told to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.serve.conftest import write_run
from tests.test_cli import Cli, assert_refused, cli
from tests.tiny import tiny_graph
from tokenphormer.serve import connections, server
from tokenphormer.serve.server import listen
from tokenphormer.serve.settings import ServeSettings

__all__ = ["cli"]  # the fixture

ELSEWHERE = [
    "/static/../api.py",
    "/static/..%2fapi.py",
    "/static/%2e%2e/%2e%2e/cli.py",
    "/static/..\\..\\cli.py",
    "/static//etc/passwd",
    "/static/%00",
    "/static/",
    "/static",
    "/static/cytoscape/",
    "/static/cytoscape/LICENSE/../../../api.py",
    "/../../../../etc/passwd",
    "//etc/passwd",
    "/index.html",
    "/run.json",
    "/model.safetensors",
]


class Served:
    """A server in a process of its own, on any free port of this machine."""

    def __init__(self, run: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tokenphormer", "serve", str(run), "--port", "0", "--device", "cpu", *options],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | (environment or {}),
        )
        assert self.process.stderr is not None
        self.line = self.process.stderr.readline()
        assert " at http://" in self.line, self.line + self.process.stderr.read()
        self.url = self.line.split(" at ")[1].split()[0]
        self.port = int(self.url.split(":")[2].split("/")[0])

    def raw(self, request: bytes, hang_up: bool = False) -> bytes:
        """The answer to these very bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(request)
            if hang_up:
                connection.shutdown(socket.SHUT_WR)
            pieces = iter(lambda: connection.recv(1 << 16), b"")
            return b"".join(pieces)

    def get(self, path: str, *headers: str) -> tuple[int, bytes]:
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers, "", ""]
        head, _, body = self.raw("\r\n".join(lines).encode()).partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def wait_until_ready(self) -> None:
        until = time.monotonic() + 60
        while json.loads(self.get("/ready")[1]) != {"ready": True, "map": "ready"}:
            assert time.monotonic() < until
            time.sleep(0.1)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        _, self.rest = self.process.communicate(timeout=30)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture(scope="module")
def served(run_folder: Path) -> Iterator[Served]:
    with Served(run_folder) as made:
        made.wait_until_ready()
        yield made


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_can_be_ended_while_the_map_is_made(run_folder: Path, tmp_path: Path, number: int, code: int) -> None:
    """t-SNE is native code: a Python that ended normally would abort in it."""
    slow = tmp_path / "sitecustomize.py"
    slow.write_text(
        "import sys\n"
        "if 'serve' in sys.argv:\n"
        "    import time\n"
        "    from tokenphormer.serve.explorer import Explorer\n"
        "    Explorer.make_map = lambda self: time.sleep(60)\n"
    )
    run = shutil.copytree(run_folder, tmp_path / "run")
    with Served(run, environment={"PYTHONPATH": str(tmp_path)}) as made:
        assert made.process.stderr is not None
        assert made.process.stderr.readline() == "ready\n"
        made.process.send_signal(number)
        _, rest = made.process.communicate(timeout=30)
        assert made.process.returncode == code, rest
        assert "Traceback" not in rest


def test_ten_thousand_slow_connections(run_folder: Path) -> None:
    """Half a head each, never finished: others are answered meanwhile, and all are closed in the end."""
    resource = pytest.importorskip("resource", reason="what a process may open is told by Unix alone")
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = min(10_000, allowed - 1000)
    if count < 1000:
        pytest.skip(f"only {allowed} files may be open here")
    with Served(run_folder) as made, ExitStack() as slow:
        made.wait_until_ready()
        opened = []
        for number in range(count):
            try:
                opened.append(slow.enter_context(socket.create_connection(("127.0.0.1", made.port), timeout=5)))
                opened[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            except ConnectionError:  # closed by the server at once
                continue
            if number % 1000 == 999:
                began = time.monotonic()
                assert made.get("/health")[0] == 200
                assert time.monotonic() - began < 3
        assert len(opened) > 0.9 * count
        assert made.get("/api/nodes?limit=1")[0] == 200
        opened[-1].settimeout(connections.HEAD_SECONDS + 10)
        assert opened[-1].recv(1) == b""  # it was given up
        assert made.end() == 130


def test_connections_that_ask_are_not_given_up(served: Served) -> None:
    """One connection, several requests with pauses between, a head in two parts."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            time.sleep(0.3)
            connection.sendall(b"Host: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += connection.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 200")


def test_it_answers(served: Served) -> None:
    assert served.line.split(": ")[1].startswith("tiny at http://127.0.0.1:")
    assert served.get("/health") == (200, b'{"status":"ok"}')
    status, body = served.get("/api/nodes?limit=2")
    assert status == 200
    assert json.loads(body)["total"] == 60
    assert served.get("/")[1].startswith(b"<!doctype html>")


def test_it_listens_on_this_machine_only(served: Served) -> None:
    local = Path("/proc/net/tcp")
    if not local.exists():
        pytest.skip("where sockets listen is read from /proc")
    lines = [line.split() for line in local.read_text().splitlines()[1:]]
    mine = [line[1] for line in lines if line[1].endswith(f":{served.port:04X}") and line[3] == "0A"]
    assert mine == [f"0100007F:{served.port:04X}"]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_nothing_but_the_page_is_served(served: Served, path: str) -> None:
    """As it stands, byte by byte: clients tidy paths up before they send them."""
    status, body = served.get(path)
    assert status == 404
    assert json.loads(body)["error"]["status"] == 404


@pytest.mark.parametrize(
    "request_", [b"\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000]
)
def test_what_is_no_http_does_no_harm(served: Served, request_: bytes) -> None:
    assert b" 200 " not in served.raw(request_ + b"\r\n\r\n", hang_up=True)[:20]
    assert served.get("/health")[0] == 200


def test_a_graph_that_was_moved_a_token_and_ctrl_c(tmp_path: Path) -> None:
    run, token = write_run(tmp_path, tiny_graph()), "a-token-of-some-length"
    moved = (tmp_path / "graph.npz").rename(tmp_path / "moved.npz")
    with Served(run, "--graph", str(moved), environment={"TOKENPHORMER_TOKEN": token}) as made:
        made.wait_until_ready()
        assert made.url.endswith(f"/#token={token}")
        assert made.get("/api/run")[0] == 401
        assert made.get("/api/run", f"Authorization: Bearer {token}")[0] == 200
        assert made.end() == 130
    assert "Traceback" not in made.rest


# ---------------------------------------------------------------- what is refused before it listens


def test_folders_that_hold_no_run(cli: Cli, tmp_path: Path) -> None:
    assert_refused(cli("serve", tmp_path / "nowhere"), 2, "no such folder")
    (tmp_path / "empty").mkdir()
    assert_refused(cli("serve", tmp_path / "empty"), 2, "holds no finished run")


def test_a_graph_that_is_gone_or_another(cli: Cli, tmp_path: Path) -> None:
    run, graph = write_run(tmp_path, tiny_graph()), tmp_path / "graph.npz"
    graph.unlink()
    assert cli("serve", run).code == 2
    tiny_graph(seed=5).save(graph)
    assert_refused(cli("serve", run), 2, "is not the graph that the run was trained on")
    assert_refused(cli("serve", run, "--graph", graph), 2, "is not the graph")


def test_beyond_this_machine_it_takes_a_token(cli: Cli, run_folder: Path) -> None:
    assert_refused(cli("serve", run_folder, "--host", "0.0.0.0"), 2, "give a token")


def test_a_port_that_is_taken(cli: Cli, run_folder: Path) -> None:
    with listen(ServeSettings(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert_refused(
            cli("serve", run_folder, "--port", port),
            3,
            f"on 127.0.0.1:{port} (Address already in use); take another with --port",
        )


def test_small_answers_are_sent_at_once() -> None:
    """asyncio turns off the system's wait for more to send only where a socket knows its protocol."""
    with listen(ServeSettings(port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_a_host_that_is_none(cli: Cli, run_folder: Path) -> None:
    answer = cli("serve", run_folder, "--host", "256.1.1.1", "--token", "x" * 20)
    assert_refused(answer, 2, "is no address")


def test_without_the_extra(cli: Cli, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda _: None)
    message = "serve needs fastapi and uvicorn: pip install 'tokenphormer[serve]'"
    assert_refused(cli("serve", run_folder), 2, message)


def test_nothing_else_needs_the_extra() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['fastapi', 'uvicorn', 'starlette']))\n"  # any import fails
        "import tokenphormer.cli, tokenphormer.serve, tokenphormer.evaluation.runs\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"  # of the last import
    light = code.replace(", tokenphormer.evaluation.runs", "")
    done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_loading_that_fails_ends_the_server(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenphormer.errors import ResourceError
    from tokenphormer.serve.explorer import Explorer

    def no_memory(_: Explorer) -> None:
        raise ResourceError("not enough memory")

    monkeypatch.setattr(Explorer, "load", no_memory)
    with pytest.raises(ResourceError, match="not enough memory"):
        server.serve(run_folder, ServeSettings(port=0), device="cpu")
