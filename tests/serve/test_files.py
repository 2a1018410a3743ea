"""The page's files come from the package alone, and nothing in a request ever reaches the file system."""

from __future__ import annotations

import hashlib
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.serve.client import Client
from tests.serve.test_api import NEW
from tests.serve.test_bad_input import NODE, STRANGE
from tokenphormer.serve.static import static_files

WEB = Path(str(files("tokenphormer.serve"))) / "web"
SOURCES = sorted(path for path in WEB.rglob("*") if path.is_file())
OURS = [path for path in SOURCES if path.parent == WEB]

opened: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if opened is not None and event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove"):
        opened.append(f"{event} {arguments[0]}")


sys.addaudithook(_watch)  # for good; it looks on only while a test asks it to


def test_no_request_reaches_the_file_system(client: Client) -> None:
    def everything(names: list[str]) -> None:
        for name in names:
            for path in ("predict", "explain", "neighbourhood"):
                client.get(f"/api/{path}", params={"id": name, "walks": "2"})
            client.get("/api/nodes", params={"query": name, "truth": name})
            client.get("/" + quote(name))
        client.post("/api/predict", json={"ids": names})
        client.post("/api/predict/new", json=NEW)
        for path in ("/", "/docs", "/static/main.js", "/openapi.json", "/api/map", "/api/run", "/api/confusion"):
            assert client.get(path).status_code == 200

    global opened
    everything([NODE])  # what is imported and compiled on first use is read from disk, once
    opened = []
    try:
        everything([NODE, *STRANGE])
        with Path(__file__).open():
            pass  # so that we know that it does look
        assert [each for each in opened if each != f"open {__file__}"] == []
        assert opened
    finally:
        opened = None


def test_every_file_is_served_as_it_is(client: Client) -> None:
    served = static_files()
    assert {"/", "/docs", "/static/main.js", "/static/cytoscape/cytoscape.esm.min.mjs"} <= served.keys()
    names = {"/": "index.html", "/docs": "docs.html"}
    for path in served:
        answer = client.get(path)
        assert answer.content == (WEB / names.get(path, path.removeprefix("/static/"))).read_bytes()
        again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, headers={"if-none-match": '"old"'}).status_code == 200
    types = {path.rpartition(".")[2]: client.get(path).headers["content-type"] for path in served if "." in path}
    assert types["mjs"] == types["js"] == "text/javascript; charset=utf-8"
    assert types["css"] == "text/css; charset=utf-8"


def test_what_is_linked_is_there(client: Client) -> None:
    """Every script, style and import of the page leads to a file of the package."""
    linked = set()
    for path in OURS:
        text = path.read_text(encoding="utf-8")
        linked |= set(re.findall(r'(?:src|href)="(/static/[^"]+)"', text))
        linked |= {f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', text)}
    assert len(linked) > 10
    for path in linked:
        assert client.get(path).status_code == 200, path
    unused = {f"/static/{path.relative_to(WEB)}" for path in SOURCES} - linked
    assert unused == {"/static/index.html", "/static/docs.html", "/static/cytoscape/LICENSE"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    addresses = set(re.findall(r"\w+://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(r"\bimport\(|@import|url\(", text)


@pytest.mark.parametrize("path", [path for path in OURS if path.suffix == ".html"], ids=lambda path: path.name)
def test_nothing_is_inline(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", text)


@pytest.mark.parametrize("path", [path for path in OURS if path.suffix == ".js"], ids=lambda path: path.name)
def test_no_text_becomes_html(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser", text
    )


def test_what_is_not_ours_has_its_licence_beside_it() -> None:
    licence = (WEB / "cytoscape" / "LICENSE").read_text(encoding="utf-8")
    assert "The Cytoscape Consortium" in licence
    assert "Permission is hereby granted, free of charge" in licence


def test_what_is_not_ours_is_as_it_was_published() -> None:
    """cytoscape 3.34.4, dist/cytoscape.esm.min.mjs of the npm package, byte for byte; a new version has a new hash."""
    content = (WEB / "cytoscape" / "cytoscape.esm.min.mjs").read_bytes()
    assert b'version="3.34.4"' in content
    published = "0d7e373a706f0f01d6fb7a6ccf04988c01307cee1c2f9bcc7b068e9f6b431e3f"
    assert hashlib.sha256(content).hexdigest() == published
