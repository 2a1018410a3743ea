"""The page's own files, read from the package once: no request ever leads to the file system."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
PAGES = {"index.html": "/", "docs.html": "/docs"}
"""Where pages are found; everything else is found under /static/ by its name."""


@dataclass(frozen=True)
class StaticFile:
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


def static_files() -> dict[str, StaticFile]:
    """Every file of the page by its path in the address; licences stay where they are."""
    return {path: _read(source) for path, source in _walk(files(__package__) / "web", "")}


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, Traversable]]:
    found = []
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        name = f"{prefix}{each.name}"
        if each.is_dir():
            found += _walk(each, f"{name}/")
        elif each.name.rpartition(".")[2] in TYPES:
            found.append((PAGES.get(name, f"/static/{name}"), each))
    return found


def _read(source: Traversable) -> StaticFile:
    content = source.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return StaticFile(content, TYPES[source.name.rpartition(".")[2]], etag)
