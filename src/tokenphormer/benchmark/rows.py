"""Rows: one line of JSON for every run. They are added, never changed; files of several machines are just joined."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tokenphormer.errors import InputError

FORMAT = 1
"""Raised when rows of before and after must not be mixed in one table."""
Row = dict[str, Any]
KEY = ("kind", "model", "dataset", "protocol", "split", "config_hash", "seed", "study", "sgpm")
"""What makes two rows the same run."""


def row_key(row: Row) -> tuple[Any, ...]:
    """The identity of a run; two rows of one key are the same run done twice."""
    return tuple(row.get(name) for name in KEY)


def config_hash(values: dict[str, Any]) -> str:
    """SHA-256 of a set of values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=list).encode()).hexdigest()


def append_row(path: Path, row: Row) -> None:
    """Add a row in one write; a line that a kill left unfinished is ended first, so that nothing is glued to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, sort_keys=True, default=list) + "\n"
    with path.open("ab+") as file:
        if file.tell() and _last_byte(file) != b"\n":
            line = "\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    last: bytes = file.read(1)
    return last


def read_rows(paths: Iterable[Path], say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """All rows of some files or folders of them, each run once (its first row); other formats are not mixed in.

    A line that is no JSON is left where it is and said: the last one of a file may have been cut off by a kill.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    for path in _files(paths):
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("not an object")
            except ValueError:
                say(f"{path}, line {number}: not a whole row; it is kept in the file and not counted")
                continue
            if row.get("format") != FORMAT:
                say(f"{path}, line {number}: a row of format {row.get('format')}, not {FORMAT}; it is not counted")
                continue
            rows.setdefault(row_key(row), row)
    return list(rows.values())


def _files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(path.rglob("*.jsonl"))
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"{path}: no such file or folder of rows")
    return files


@cache
def origin() -> Row:
    """Commit, versions and hardware: the same for all rows of a process."""
    packages = ("torch", "torch-geometric", "numpy", "scipy", "numba", "optuna")
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    from tokenphormer import __version__

    versions["tokenphormer"] = __version__
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "format": FORMAT,
        "commit": os.environ.get("TOKENPHORMER_COMMIT") or _commit(),
        "versions": versions,
        "hardware": {"gpu": gpu, "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
    }


def _commit() -> str | None:
    """The commit of the source tree, marked if it was changed since; None outside of one."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--", "."],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if changed else "")
