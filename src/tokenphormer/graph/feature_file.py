"""`features.npz` of a folder of tables, copied to a graph on disk: a dense array in pieces, others whole."""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tokenphormer.errors import InputError
from tokenphormer.graph.disk_writer import FeatureBlocks, GraphWriter, cell, feature_blocks, index_type
from tokenphormer.graph.tables import _read_features_file

PIECE = 1 << 20
"""Values that are copied at a time."""


def write_features_file(path: Path, n: int, writer: GraphWriter, half: bool) -> int:
    """Copy the file, if there is one, and return the number of features; 0 without."""
    if not path.exists():
        return 0
    member = _plain_member(path, n)
    if member is not None:
        return writer.features(_member_blocks(path, *member), half=half)
    x = _read_features_file(path, n)
    return writer.features(feature_blocks(x, str(path)), half=half, index=index_type(x))


def _plain_member(path: Path, n: int) -> tuple[str, np.dtype[Any], int] | None:
    """Name, dtype and width of the only array of an archive, if it is a plain table of n rows."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = archive.namelist()
            with archive.open(name) as file:
                if np.lib.format.read_magic(file) != (1, 0):
                    return None
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception:  # a damaged archive fails in any way; `_read_features_file` says what is wrong with it
        return None
    plain = len(shape) == 2 and shape[0] == n and shape[1] > 0 and not fortran and dtype.kind in "biuf"
    return (name, dtype, shape[1]) if plain else None


def _member_blocks(path: Path, name: str, dtype: np.dtype[Any], width: int) -> FeatureBlocks:
    first, step = 0, max(1, PIECE // width)
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            np.lib.format.read_magic(file)
            (n, _), _, _ = np.lib.format.read_array_header_1_0(file)
            while first < n:
                rows = min(step, n - first)
                content = file.read(rows * width * dtype.itemsize)
                with np.errstate(over="ignore"):
                    x = np.frombuffer(content, dtype).reshape(rows, width).astype(np.float32)
                yield x, partial(cell, str(path), first)
                first += rows
            if file.read(1):  # at its end, the checksum is compared
                raise ValueError(f"member '{name}' is longer than its array")
    # As in `files.load_arrays`: a damaged archive fails in ways whose list has no end.
    except Exception as error:
        raise InputError(f"{path}: not a readable .npz, perhaps truncated ({error})") from error
