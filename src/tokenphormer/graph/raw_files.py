"""The raw files of a named dataset: where they lie, whether they are the known ones, how to get them.

Nothing is ever written beside a user's raw files. Planetoid's files are pickles, which run code when they are read,
so they are handed to PyG only if their SHA-256 is the known one (`checksums.txt`); of an unknown `.npz` that a user
put there, only the plain arrays are handed on. What is downloaded must be the known file. What was hashed is what is
read: the bytes are kept, not the path.
"""

from __future__ import annotations

import hashlib
import io
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from tokenphormer.errors import DatasetMissingError, InputError, ResourceError

if TYPE_CHECKING:
    from tokenphormer.graph.datasets import Dataset

DOWNLOAD_TIMEOUT = 30.0
"""Seconds a silent server is waited for."""
LARGEST_DENSE = 1 << 25
"""Features that PyG is let make dense from an unknown file; of the known ones the largest has 29 million."""


class RawFile(NamedTuple):
    """One file's bytes, ready to be read, and the SHA-256 of the file on disk."""

    content: bytes
    sha256: str
    note: str = ""


def user_cache() -> Path:
    """The per-user cache folder: `$XDG_CACHE_HOME/tokenphormer`, or `~/.cache/tokenphormer`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenphormer"


def data_root(root: str | Path | None = None) -> Path:
    """The folder of raw datasets: `root`, else `$TOKENPHORMER_DATA`, else the per-user cache."""
    return Path(root or os.environ.get("TOKENPHORMER_DATA") or user_cache())


def missing_files(dataset: Dataset, root: Path) -> list[str]:
    """Names of the dataset's raw files that are not under `root`."""
    return [file for file in dataset.files if not (root / dataset.folder / "raw" / file).is_file()]


def where_to_put(dataset: Dataset, root: Path) -> str:
    """The folder and the missing files, in words."""
    missing = missing_files(dataset, root)
    shown = ", ".join(missing[:12]) + (f" and {len(missing) - 12} more" if len(missing) > 12 else "")
    return f"put {shown} into {root / dataset.folder / 'raw'}"


def read_raw_files(dataset: Dataset, root: Path) -> dict[str, RawFile]:
    """Read and verify every raw file of a dataset, downloading what is not there."""
    if missing_files(dataset, root):
        _fetch(dataset, root)
    relative = {file: f"{dataset.folder}/raw/{file}" for file in dataset.files}
    return {file: _read(root / path, path) for file, path in relative.items()}


def read_optional(root: Path, relative: str) -> RawFile | None:
    """Read and verify one further file of the data root; None if it is not there."""
    path = root / relative
    return _read(path, relative) if path.is_file() else None


def _read(path: Path, relative: str) -> RawFile:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror or error}") from error
    return verify(content, relative, path)


def verify(content: bytes, relative: str, path: Path, *, downloaded: bool = False) -> RawFile:
    """Accept the known file, the plain arrays of a user's own `.npz`, or anything if the user says so."""
    found, expected = hashlib.sha256(content).hexdigest(), known_hashes().get(relative)
    if found == expected:
        return RawFile(content, found)
    note = f"{path.name} is not the known file (SHA-256 {found[:12]}…)"
    if path.suffix == ".npz" and not downloaded:
        return RawFile(_plain_arrays(content, path), found, note)
    if os.environ.get("TOKENPHORMER_UNVERIFIED") == "1":
        return RawFile(content, found, note)
    danger = " (it is a pickle: loading it runs code that the file brings along)" if _is_pickle(path) else ""
    what = "what was downloaded is" if downloaded else "the file is"
    advice = "Try again" if downloaded else "Delete it to download it again"
    raise InputError(
        f"{path}: SHA-256 is {found}, expected {expected}; {what} corrupt or another version. "
        f"{advice}, or set TOKENPHORMER_UNVERIFIED=1 to load it as it is{danger}"
    )


@cache
def known_hashes() -> dict[str, str]:
    """SHA-256 of every known raw file, by its path under the data root."""
    lines = Path(__file__).with_name("checksums.txt").read_text(encoding="utf-8").splitlines()
    return {path: sha256 for sha256, path in (line.split(maxsplit=1) for line in lines)}


def _is_pickle(path: Path) -> bool:
    return path.name.startswith("ind.") and not path.name.endswith(".test.index")


def _plain_arrays(content: bytes, path: Path) -> bytes:
    """The same archive without pickled members; published files hold some that nobody needs."""
    plain: dict[str, Any] = {}
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            for name in archive.files:
                try:
                    array = archive[name]
                except ValueError as error:
                    if "pickle" not in str(error).lower():
                        raise
                    continue
                if isinstance(array, np.ndarray):
                    plain[name] = array
        _check_sparse(plain)
    # As in `files.load_arrays`: a damaged archive fails in ways whose list has no end.
    except Exception as error:
        raise InputError(f"{path}: not a readable .npz, perhaps truncated ({error})") from error
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **plain)
    return buffer.getvalue()


def _check_sparse(arrays: dict[str, Any]) -> None:
    """Raise if sparse matrices point outside of themselves: who makes dense ones of them would write there too."""
    for prefix in ("", "adj_", "attr_"):
        names = [f"{prefix}{part}" for part in ("data", "indices", "indptr", "shape")]
        if any(name not in arrays for name in names):
            continue
        data, indices, indptr, shape = (arrays[name] for name in names)
        rows, columns = (int(length) for length in shape)
        if rows * columns > LARGEST_DENSE and prefix == "attr_":
            raise ValueError(f"{prefix}shape: {rows} × {columns} features; expected at most {LARGEST_DENSE:,} numbers")
        sp.csr_array((data, indices, indptr), shape=(rows, columns)).check_format(full_check=True)


def _fetch(dataset: Dataset, root: Path) -> None:
    """Download into a hidden folder beside the target; only whole, verified files move into place."""
    raw = root / dataset.folder / "raw"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as scratch:
            download(dataset, Path(scratch))
            fetched = Path(scratch) / dataset.folder / "raw"
            for file in dataset.files:
                verify((fetched / file).read_bytes(), f"{dataset.folder}/raw/{file}", raw / file, downloaded=True)
            raw.mkdir(parents=True, exist_ok=True)
            for file in missing_files(dataset, root):
                (fetched / file).replace(raw / file)
    except InputError:
        raise
    except Exception as error:  # PyG's downloads raise whatever their transport raises
        reason = str(error).strip() or type(error).__name__
        count = f"{len(missing_files(dataset, root))} of its {len(dataset.files)} raw files"
        raise DatasetMissingError(
            f"dataset '{dataset.name}': {count} are not on disk and could not be downloaded ({reason}); "
            f"{where_to_put(dataset, root)}, or name another data folder with TOKENPHORMER_DATA"
        ) from error


def download(dataset: Dataset, folder: Path) -> None:
    """Let PyG download a dataset's raw files to `folder/<dataset folder>/raw`, and read none of them."""
    before = socket.getdefaulttimeout()
    with quiet():
        pyg_datasets = import_module("torch_geometric.datasets")

        class _DownloadedError(Exception):
            pass

        def stop(_: object) -> None:
            raise _DownloadedError

        # PyG reads (and unpickles) what it has downloaded at once; `process` is where to stop it.
        pyg_class = getattr(pyg_datasets, dataset.pyg_class)
        download_only = type(dataset.pyg_class, (pyg_class,), {"process": stop})
        socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
        try:
            download_only(**dataset.pyg_arguments(folder))
        except _DownloadedError:
            pass
        finally:
            socket.setdefaulttimeout(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep PyG's progress lines and other libraries' warnings from the user's terminal."""
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
