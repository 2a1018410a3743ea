"""Writing a graph on disk (`disk.py` says what it is), a piece at a time: the folder appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import atomic_path, partial_path
from tokenphormer.graph.checks import Features
from tokenphormer.graph.disk import FORMAT, KIND, MANIFEST, content_fingerprint, manifest_hash, release, row_blocks
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.id_table import text_keys, texts_of
from tokenphormer.graph.splits import PARTS, Split

BLOCK = 1 << 22
"""Numbers that are copied at a time."""
LARGE = 1 << 24
"""Bytes from which on a block is hashed while it is written."""
FeatureBlocks = Iterator[tuple[Features, Callable[[int, int], str]]]
"""Rows of features, all dense or all sparse, each with a function that says where its row and column came from."""


@contextmanager
def new_folder(out: str | Path) -> Iterator[Path]:
    """A hidden folder beside `out`; it becomes `out` when the block ends well, and vanishes if not."""
    out = Path(out)
    refuse_existing(out)
    temporary = partial_path(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        for path in temporary.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        refuse_existing(out)  # nobody took the name meanwhile
        temporary.rename(out)
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(out: Path) -> None:
    """Raise if there is anything of this name: a graph is never overwritten."""
    if out.exists() or out.is_symlink():
        raise InputError(f"{out}: exists already; choose the name of a new folder")


class ArrayWriter:
    """A `.npy` file that grows row by row; its header, of fixed length, is written again at the end."""

    def __init__(self, path: Path, dtype: DTypeLike, columns: int | None = None) -> None:
        self.path, self.dtype, self.columns = path, np.dtype(dtype), columns
        self.rows, self._sha = 0, hashlib.sha256()
        self._file = path.open("wb")
        self._write_header()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape so far."""
        return (self.rows,) if self.columns is None else (self.rows, self.columns)

    def append(self, block: NDArray[Any]) -> None:
        """Add rows behind those that are there."""
        assert block.shape[1:] == self.shape[1:]
        data = np.ascontiguousarray(block, dtype=self.dtype)
        if data.nbytes >= LARGE:  # a core of its own for the hash, which is slower than writing
            raw = data.view(np.uint8).data
            hashing = Thread(target=self._sha.update, args=(raw,))
            hashing.start()
            try:
                self._file.write(raw)
            finally:
                hashing.join()
        elif data.size:
            raw = data.view(np.uint8).data
            self._sha.update(raw)
            self._file.write(raw)
        self.rows += len(data)

    def close(self) -> dict[str, object]:
        """Finish the file; what the manifest says of it."""
        try:
            self._file.seek(0)
            self._write_header()
            self._file.close()
        except OSError:  # there was no room for what was still in memory
            self.abandon()
            raise
        return {"dtype": self.dtype.str, "shape": list(self.shape), "sha256": self._sha.hexdigest()}

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def abandon(self) -> None:
        """Close the file as it is; it is of no use any more."""
        with suppress(OSError):  # what could not be written cannot be written now
            self._file.close()

    def _write_header(self) -> None:
        # NumPy leaves room for the first length to grow to 21 digits, so the header's size does not change.
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        before = self._file.tell()
        np.lib.format.write_array_header_1_0(self._file, header)
        assert before == 0
        self.offset = self._file.tell()


class GraphWriter:
    """The arrays of one graph on disk while they are written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writers: dict[str, ArrayWriter] = {}
        self.feature_max = 0.0
        self._low: NDArray[np.float64] | None = None
        self._high: NDArray[np.float64] | None = None

    def __enter__(self) -> GraphWriter:
        return self

    def __exit__(self, *_: object) -> None:  # `finish` has closed all of them, unless something went wrong
        for writer in self._writers.values():
            writer.abandon()

    def array(self, name: str, dtype: DTypeLike, columns: int | None = None) -> ArrayWriter:
        """A new array of the folder."""
        assert name not in self._writers
        self._writers[name] = ArrayWriter(self.folder / f"{name}.npy", dtype, columns)
        return self._writers[name]

    def write(self, name: str, values: NDArray[Any], dtype: DTypeLike | None = None) -> None:
        """A whole array, copied a piece at a time."""
        writer = self.array(name, dtype or values.dtype)
        for first in range(0, len(values), BLOCK):
            writer.append(values[first : first + BLOCK])
        release(values)

    # ---------------------------------------------------------------- parts of a graph

    def features(
        self,
        blocks: FeatureBlocks,
        *,
        half: bool = False,
        index: DTypeLike = np.int64,
    ) -> int:
        """Write rows of features; returns their number.

        `half` stores dense ones as float16; `index` is the integer for sparse ones, wide enough to count their entries.
        """
        width = 0
        for x, where in blocks:
            width = int(x.shape[1])
            values = x if isinstance(x, np.ndarray) else x.data
            with np.errstate(over="ignore"):
                kept = values.astype(np.float16) if half and isinstance(x, np.ndarray) else values
            if not np.isfinite(kept).all():
                at = int(np.flatnonzero(~np.isfinite(kept.reshape(-1)))[0])
                row, column = divmod(at, width) if isinstance(x, np.ndarray) else _place(x, at)
                value = values.reshape(-1)[at]
                raise InputError(f"{where(row, column)}: {value}; expected a finite {kept.dtype} number")
            self._measure(x)
            if isinstance(x, np.ndarray):
                self._dense(width, kept.dtype).append(kept)
            else:
                self._sparse(x, np.dtype(index))
        return width

    def _dense(self, width: int, dtype: DTypeLike) -> ArrayWriter:
        return self._writers.get("x") or self.array("x", dtype, width)

    def _sparse(self, x: sp.csr_array, index: np.dtype[Any]) -> None:
        if "x_data" not in self._writers:
            self.array("x_data", np.float32)
            self.array("x_indices", index)  # of the same type as the rows, or SciPy copies them
            self.array("x_indptr", index).append(np.zeros(1, index))
        so_far = self._writers["x_data"].rows
        self._writers["x_data"].append(x.data)
        self._writers["x_indices"].append(x.indices)
        self._writers["x_indptr"].append(x.indptr[1:].astype(np.int64) + so_far)

    def _measure(self, x: Features) -> None:
        if 0 in x.shape:
            return
        plain: Any = x
        low, high = (
            np.asarray(extreme if isinstance(extreme, np.ndarray) else extreme.toarray(), np.float64).ravel()
            for extreme in (plain.min(axis=0), plain.max(axis=0))
        )
        self.measured(low, high)

    def measured(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        """Note the least and the greatest value of every feature in some rows."""
        self._low = low if self._low is None else np.minimum(self._low, low)
        self._high = high if self._high is None else np.maximum(self._high, high)
        self.feature_max = max(self.feature_max, float(np.maximum(-low, high).max()))

    def ids(self, keys: NDArray[np.uint64], rows: NDArray[np.int32]) -> None:
        """What finds a node by its id: all hashes in order, and whose they are."""
        self.write("id_keys", keys)
        self.write("id_rows", rows)

    def finish(
        self,
        *,
        name: str,
        directed: bool,
        class_names: tuple[str, ...],
        splits: tuple[Split, ...],
        notes: tuple[str, ...],
        num_self_loops: int = 0,
        num_features: int = 0,
    ) -> None:
        """Write the splits and, last of all, the manifest."""
        for number, split in enumerate(splits):
            for part in PARTS:
                self.write(f"split{number}_{part}", getattr(split, part))
        entries = {name: writer.close() for name, writer in self._writers.items()}
        spread = 0.0 if self._low is None or self._high is None else float((self._high - self._low).max())
        manifest: dict[str, Any] = {
            "kind": KIND,
            "format": FORMAT,
            "name": name,
            "num_nodes": self._writers["y"].rows,
            "num_directed_edges": self._writers["indices"].rows,
            "num_self_loops": num_self_loops,
            "num_features": num_features,
            "directed": directed,
            "class_names": list(class_names),
            "splits": [split.name for split in splits],
            "notes": list(notes),
            "feature_max": self.feature_max,
            "feature_spread": spread,
            "arrays": entries,
        }
        manifest["fingerprint"] = content_fingerprint(self.folder, manifest)
        manifest["sha256"] = manifest_hash(manifest)
        with atomic_path(self.folder / MANIFEST) as temporary:
            temporary.write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _place(x: sp.csr_array, entry: int) -> tuple[int, int]:
    """Row and column of a stored value."""
    return int(np.searchsorted(x.indptr, entry, side="right")) - 1, int(x.indices[entry])


def write_graph(graph: Graph, out: str | Path, *, half: bool = False) -> None:
    """Write a graph that is open already as a graph on disk, in a folder that must be new.

    `half` stores dense features as float16: half the disk and cache, three decimal digits.
    """
    with new_folder(out) as folder, GraphWriter(folder) as writer:
        writer.write("indptr", graph.indptr, np.int64)
        writer.write("indices", graph.indices, np.int32)
        if graph.edge_weight is not None:
            writer.write("edge_weight", graph.edge_weight)
        writer.write("y", graph.y, np.int64)
        if graph.x is not None:
            writer.features(feature_blocks(graph.x), half=half, index=index_type(graph.x))
        if graph.node_ids is not None:
            writer.write("ids", graph.node_ids)
            keys = text_keys(*texts_of(graph.node_ids.tolist()))
            rows = np.argsort(keys, kind="stable").astype(np.int32)
            writer.ids(keys[rows], rows)
        writer.finish(
            name=graph.name,
            directed=graph.directed,
            class_names=graph.class_names,
            splits=graph.splits,
            notes=graph.notes,
            num_self_loops=graph.num_self_loops,
            num_features=graph.num_features,
        )


def index_type(x: Features) -> DTypeLike:
    """The integer that can count the entries of sparse features."""
    return np.int64 if not isinstance(x, np.ndarray) and x.nnz >= 2**31 else np.int32


def feature_blocks(x: Features, name: str = "x") -> FeatureBlocks:
    """Features in pieces, as `GraphWriter.features` takes them."""
    if isinstance(x, np.ndarray):
        step = max(1, BLOCK // max(1, x.shape[1]))
        ranges = [(first, min(first + step, len(x))) for first in range(0, len(x), step)]
    else:
        ranges = list(row_blocks(x.indptr, BLOCK))
    for first, last in ranges:
        yield x[first:last], partial(cell, name, first)
    for array in [x] if isinstance(x, np.ndarray) else [x.data, x.indices]:
        release(array)


def cell(name: str, first: int, row: int, column: int) -> str:
    """Where a feature of a block that begins at row `first` stands in `name`."""
    return f"{name}, row {first + row}, column {column}"
