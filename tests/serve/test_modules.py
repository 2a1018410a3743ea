"""Modules of the page on their own, in Node where there is one: what a browser would have to be very quick for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.test_files import WEB

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no Node here to run the page's modules")

BROKEN_OFF = """
import { createServer } from "node:http";
globalThis.sessionStorage = { getItem: () => null };
const { ask } = await import(process.argv[2]);
const given = new AbortController();
const server = createServer((request, answer) => {
  answer.writeHead(request.url === "/error" ? 500 : 200, { "content-type": "application/json" });
  answer.write('{"nodes": ['); // the head is there, the rest is not
  setTimeout(() => (request.url === "/given-up" ? given.abort() : answer.destroy()), 500);
});
server.listen(0, "127.0.0.1", async () => {
  for (const path of ["/given-up", "/cut", "/error"]) {
    const signal = path === "/given-up" ? given.signal : undefined;
    const found = await ask(`http://127.0.0.1:${server.address().port}${path}`, {}, { signal }).catch((error) => error);
    console.log(found.name ?? typeof found, found.status ?? "", found.message ?? "");
  }
  server.close();
  server.closeAllConnections();
});
"""


def run(script: str, tmp_path: Path) -> list[str]:
    """What a script prints that is told where the page's `api.js` is."""
    assert NODE is not None
    for name in ("api.js", "script.mjs"):
        (tmp_path / name).write_text(script if name == "script.mjs" else (WEB / name).read_text(encoding="utf-8"))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    command = [NODE, str(tmp_path / "script.mjs"), (tmp_path / "api.js").as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def test_an_answer_that_breaks_off_is_none(tmp_path: Path) -> None:
    """One that was given up is passed over; an empty one in its place would be drawn, and fail."""
    given_up, cut, error = run(BROKEN_OFF, tmp_path)
    assert given_up.startswith("AbortError")
    assert cut == "Error 0 The server's answer broke off. Is it still running?"
    assert error == "Error 500 The server answered 500."
