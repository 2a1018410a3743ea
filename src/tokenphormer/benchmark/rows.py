"""Rows: one line of JSON for every run. They are added, never changed; files of several machines are just joined."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import parse_json

FORMAT = 1
"""Raised when rows of before and after must not be mixed in one table."""
Row = dict[str, Any]
KEY = (
    "kind",
    "model",
    "dataset",
    "protocol",
    "split",
    "config_hash",
    "seed",
    "study",
    "sgpm",
    "trial",
    "judged",
    "graph",
)
"""What makes two rows the same run. A search may come back to values it had: that is another trial."""
NEEDED: dict[str, Any] = dict.fromkeys(("kind", "model", "dataset", "study", "status"), str)
"""What every row has, whatever its kind."""
NUMBER = (int, float)
OF_RUNS: dict[str, Any] = {"protocol": str, "split": int, "trial": int, "config": dict, "config_hash": str}
"""What rows of trials and final runs have beside that; `DONE` if they came about, and `TESTED` if these are final."""
DONE: dict[str, Any] = {"val_accuracy": NUMBER, "val_loss": (*NUMBER, type(None))}
TESTED: dict[str, Any] = dict.fromkeys(("test_accuracy", "seconds", "preprocessing_seconds"), NUMBER)
TESTED |= dict.fromkeys(("peak_memory_bytes", "parameters"), int)
OPTIONAL: dict[str, Any] = {"time": NUMBER, "split_hash": str}


def row_key(row: Row) -> tuple[Any, ...]:
    """The identity of a run; two rows of one key are the same run done twice."""
    return tuple(row.get(name) for name in KEY)


def config_hash(values: dict[str, Any]) -> str:
    """SHA-256 of a set of values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=list).encode()).hexdigest()


def check_graphs(rows: Iterable[Row]) -> None:
    """Raise if rows of one dataset are of different graphs: people's own may share a name."""
    hashes: dict[str, str] = {}
    for row in rows:
        name, found = row["dataset"], str(row.get("graph", "a dataset"))
        if (first := hashes.setdefault(name, found)) != found:
            raise InputError(
                f"{name}: there are rows of two graphs of this name ({first[:12]} and {found[:12]}); "
                "make tables of each alone, or run one of them under another name"
            )


def append_row(path: Path, row: Row) -> None:
    """Add a row in one write; a line that a kill left unfinished is ended first, so that nothing is glued to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, sort_keys=True, default=list).encode() + b"\n"
    # Unbuffered, so that a row is one write at the file's end, and those of several processes stay apart.
    with path.open("ab+", buffering=0) as file:
        if file.tell() and _last_byte(file) != b"\n":
            line = b"\n" + line
        if file.write(line) != len(line):
            raise ResourceError(f"{path}: a row could be written in part only; is the disk full?")
        os.fsync(file.fileno())


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    last: bytes = file.read(1)
    return last


def read_rows(paths: Iterable[Path], say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """All rows of some files or folders of them, each run once; other formats are not mixed in.

    Of rows of one run the first counts, or the first that is done, if another machine could not do it.
    A line that is no row is left where it is and said: the last one of a file may have been cut off by a kill.
    """
    rows: dict[tuple[Any, ...], Row] = {}
    for path in _files(paths):
        others: Counter[str] = Counter()
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            row = _parse(line)
            if row is None:
                say(f"{path}, line {number}: not a whole row; it is kept in the file and not counted")
            elif row.get("format") != FORMAT:
                others[str(row.get("format"))] += 1
            elif fault := _fault(row):
                say(f"{path}, line {number}: a row {fault}; it is kept in the file and not counted")
            elif rows.setdefault(row_key(row), row)["status"] != "done" and row["status"] == "done":
                rows[row_key(row)] = row
        for found, count in others.items():
            say(f"{path}: {count} rows of format {found}, not {FORMAT}; they are not counted")
    return list(rows.values())


def _parse(line: bytes) -> Row | None:
    try:
        row = parse_json(line)
    except ValueError:  # bytes that are no text, too
        return None
    fine = isinstance(row, dict) and not any(isinstance(row.get(name), dict | list) for name in KEY)
    return row if fine else None


def _fault(row: Row) -> str:
    """Which field a row of its kind lacks, or has with something else than tables and searches read; empty if none."""
    needed = dict(NEEDED)
    if row.get("kind") in ("trial", "final"):
        needed |= OF_RUNS
        if row.get("status") != "done":
            needed |= {"reason": str}
        else:
            needed |= DONE | (TESTED if row["kind"] == "final" else {})
    if missing := [name for name in needed if name not in row]:
        return f"without '{missing[0]}'"
    for name, kinds in (needed | OPTIONAL).items():
        if name in row and (isinstance(row[name], bool) or not isinstance(row[name], kinds)):
            return f"whose '{name}' is {str(row[name])[:60]!r}"
    return ""


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
    hardware: Row = {"gpu": gpu, "cpu": _cpu(), "cores": os.cpu_count()}
    if gpu and torch.get_float32_matmul_precision() != "highest":  # such as TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 gives
        hardware["matmul_precision"] = torch.get_float32_matmul_precision()
    return {
        "format": FORMAT,
        "commit": os.environ.get("TOKENPHORMER_COMMIT") or _commit(),
        "versions": versions,
        "hardware": hardware,
    }


def _cpu() -> str:
    """The processor's name, where the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the source tree, marked if the package was changed since; None outside of one.

    Where the package is installed into an environment within somebody's repository, that repository does not hold it.
    """

    def git(*words: str) -> str:
        asked = ["git", *words]
        answer = subprocess.run(asked, cwd=package, capture_output=True, text=True, check=True, timeout=10)
        return answer.stdout.strip()

    try:
        if not git("ls-files", "--", "."):
            return None
        head, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+changes" if changed else "")
