"""Hop features of a graph on disk: Âᵏ X (`hops.py`), worked out once, in passes over the edges, and kept beside it.

A hop-token needs one row of Âᵏ X, and the nodes that this row reads grow with k as the graph does. So all rows are
worked out, a few columns at a time: X's columns are held in memory, each hop reads the edges once from beginning to
end, and every result goes to a memory-mapped file that training then reads a few rows of. Sparse features are
multiplied a block of rows at a time and stay sparse. The numbers are those of `propagate`, to the bit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba import njit, prange
from numpy.typing import NDArray

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import NO_LOCKS, atomic_path, partial_path
from tokenphormer.graph import Graph
from tokenphormer.graph.checks import Features
from tokenphormer.graph.disk import (
    cache_folder,
    cache_name,
    is_array,
    map_array,
    release,
    reserve,
    row_blocks,
    sparse_rows,
)
from tokenphormer.graph.disk_writer import ArrayWriter
from tokenphormer.hops import TOO_LARGE, Normalisation
from tokenphormer.threads import launch

Scale = NDArray[np.float64] | None
COLUMN_BYTES = 3 << 30
"""Memory for the columns at hand: those of one hop and of the next. Every further round of columns reads all edges
and writes every page of the result once more."""
EDGES_AT_ONCE = 1 << 26
"""Edges that a pass reads before it lets go of them."""
ROWS_AT_ONCE = 1 << 16
HALF_LIMIT = 65520.0
"""Numbers from here on are rounded to infinity in half precision."""


def stored_hops(graph: Graph, normalisation: Normalisation, hops: int, *, normalise: bool = False) -> list[Features]:
    """The features after 1 … `hops` hops, memory-mapped; made if they are not there yet, or not whole.

    `normalise` scales every node's features to sum 1 first. They are stored in the precision of the features.
    """
    stored, x = graph.stored, graph.x
    assert stored is not None
    if x is None or not hops:
        return []
    paths = _paths(graph, normalisation, hops, normalise)
    with _one_at_a_time(cache_folder(stored)):
        if isinstance(x, np.ndarray):
            _write_dense(graph, x, normalisation, normalise, [path.with_suffix(".npy") for path in paths])
            return [map_array(path.with_suffix(".npy")) for path in paths]
        found: list[Features] = []
        before = row_normalised(x) if normalise else x
        for path in paths:
            if not _is_whole(path, graph.num_nodes):
                shutil.rmtree(path, ignore_errors=True)
                _write_sparse(graph, before, normalisation, path)
            data, indices, indptr = (map_array(path / f"{name}.npy") for name in ("data", "indices", "indptr"))
            before = sparse_rows(data, indices, indptr, graph.num_features)
            found.append(before)
        return found


def hop_bytes(graph: Graph, normalisation: Normalisation, hops: int, *, normalise: bool = False) -> int:
    """How much disk `stored_hops` would still take for dense features; for sparse ones at least."""
    stored, x = graph.stored, graph.x
    if stored is None or x is None:
        return 0
    paths = _paths(graph, normalisation, hops, normalise)
    if isinstance(x, np.ndarray):
        return sum(x.nbytes for path in paths if not is_array(path.with_suffix(".npy"), x.dtype, x.shape))
    return sum(x.nnz * 12 for path in paths if not _is_whole(path, graph.num_nodes))


def _paths(graph: Graph, normalisation: Normalisation, hops: int, normalise: bool) -> list[Path]:
    assert graph.stored is not None
    kind = f"{normalisation}-scaled" if normalise else normalisation
    folder, name = cache_folder(graph.stored), cache_name(graph, features=True)
    return [folder / f"{name}-{kind}-hop{k}" for k in range(1, hops + 1)]


def propagate_in_memory(
    graph: Graph, normalisation: Normalisation, x: NDArray[np.float32], hops: int
) -> list[NDArray[np.float32]]:
    """The same for columns that are in memory: positional encodings."""
    left, right = _scales(graph, normalisation)
    result = []
    for _ in range(hops):
        out = np.empty_like(x)
        _one_hop(graph, left, right, normalisation == "symmetric", x, out)
        x = out
        result.append(x)
    return result


def row_normalised(x: Features) -> Features:
    """Every row divided by the sum of its absolute values, as float32; empty rows stay empty."""
    x = x.astype(np.float32, copy=False)  # sums in half precision would be rounded to it, or end at infinity
    size: Any = abs(x)
    total: NDArray[np.float64] = np.asarray(size.sum(axis=1)).ravel()
    scale = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0).astype(np.float32)
    return x * scale[:, None] if isinstance(x, np.ndarray) else sp.csr_array(sp.diags_array(scale) @ x)


# -------------------------------------------------------------------- one hop


@njit(cache=True)
def _row_sums(indptr: Any, weight: Any, indices: Any, own: Any) -> Any:
    """The sum of every row of A, or of A + I, from left to right."""
    sums = np.zeros(len(indptr) - 1)
    for row in range(len(sums)):
        placed = not own
        for at in range(indptr[row], indptr[row + 1]):
            value = weight[at]
            if not placed and indices[at] >= row:
                placed = True
                if indices[at] == row:
                    value += 1.0
                else:
                    sums[row] += 1.0
            sums[row] += value
        if not placed:
            sums[row] += 1.0
    return sums


@njit(cache=True, inline="always")
def _add(row: Any, column: Any, value: Any, left: Any, right: Any, x: Any, out: Any) -> None:
    if left is not None:
        value = left[row] * value
    if right is not None:
        value = value * right[column]
    entry = np.float32(value)
    for c in range(x.shape[1]):
        out[row, c] += entry * x[column, c]


@njit(cache=True, parallel=True, nogil=True)
def _hop_rows(
    indptr: Any, indices: Any, weight: Any, left: Any, right: Any, own: Any, x: Any, out: Any, first: Any, last: Any
) -> None:
    """Rows `first` … `last` − 1 of diag(left) (A, or A + I if `own`) diag(right) x, summed in the columns' order."""
    for row in prange(first, last):
        out[row] = 0
        placed = not own
        for at in range(indptr[row], indptr[row + 1]):
            column = indices[at]
            value = 1.0 if weight is None else weight[at]
            if not placed and column >= row:
                placed = True
                if column == row:
                    value += 1.0
                else:
                    _add(row, row, 1.0, left, right, x, out)
            _add(row, column, value, left, right, x, out)
        if not placed:
            _add(row, row, 1.0, left, right, x, out)


def _scales(graph: Graph, normalisation: Normalisation) -> tuple[Scale, Scale]:
    """What the rows and the columns of the adjacency are multiplied with."""
    if normalisation == "none":
        return None, None
    own = normalisation == "symmetric"
    if graph.edge_weight is None:
        sums = np.diff(graph.indptr) + float(own)
    else:
        sums = _row_sums(graph.indptr, graph.edge_weight, graph.indices, own)
    if own:
        root = 1.0 / np.sqrt(sums)
        return root, root
    return np.divide(1.0, sums, out=np.zeros(len(sums)), where=sums > 0), None


def _one_hop(
    graph: Graph, left: Scale, right: Scale, own: bool, x: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    launch()
    for first, last in row_blocks(graph.indptr, EDGES_AT_ONCE):
        _hop_rows(graph.indptr, graph.indices, graph.edge_weight, left, right, own, x, out, first, last)
        release(graph.indices)
        if graph.edge_weight is not None:
            release(graph.edge_weight)


# -------------------------------------------------------------------- dense features


def _write_dense(
    graph: Graph, x: NDArray[np.float32], normalisation: Normalisation, normalise: bool, paths: list[Path]
) -> None:
    missing = [path for path in paths if not is_array(path, x.dtype, x.shape)]
    if not missing:
        return
    _check_room(missing[0].parent, x.nbytes * len(missing))
    n, width = x.shape
    left, right = _scales(graph, normalisation)
    most = max(1, COLUMN_BYTES // (8 * n))
    step = -(-width // -(-width // most))  # as few rounds as there can be, all about as wide
    with _all_or_none(missing) as temporary:
        for path in temporary.values():
            file = np.lib.format.open_memmap(path, mode="w+", dtype=x.dtype, shape=(n, width))
            del file
            reserve(path)
        for begin in range(0, width, step):
            now = _columns(x, begin, min(begin + step, width), normalise)
            following = np.empty_like(now)
            for path in paths:
                _one_hop(graph, left, right, normalisation == "symmetric", now, following)
                now, following = following, now
                if path in temporary:
                    _put(temporary[path], now, begin)
            del now, following  # before the next columns are read, or they would take as much again


def _columns(x: NDArray[np.float32], begin: int, end: int, normalise: bool) -> NDArray[np.float32]:
    """Some columns as float32, in memory; they are scaled by their whole rows."""
    columns = np.empty((len(x), end - begin), dtype=np.float32)
    for first in range(0, len(x), ROWS_AT_ONCE):
        rows = np.asarray(x[first : first + ROWS_AT_ONCE], dtype=np.float32)
        scaled: Any = row_normalised(rows) if normalise else rows
        columns[first : first + len(rows)] = scaled[:, begin:end]
        release(x)
    return columns


def _put(path: Path, columns: NDArray[np.float32], begin: int) -> None:
    file = np.lib.format.open_memmap(path, mode="r+")
    for first in range(0, len(columns), ROWS_AT_ONCE):
        rows = columns[first : first + ROWS_AT_ONCE]
        if file.dtype == np.float16 and np.abs(rows).max() >= HALF_LIMIT:
            raise InputError(TOO_LARGE)
        file[first : first + len(rows), begin : begin + columns.shape[1]] = rows
        release(file)


@contextmanager
def _all_or_none(paths: list[Path]) -> Iterator[dict[Path, Path]]:
    """A temporary path for each of several; they become the paths together, when the block ends well."""
    if not paths:
        yield {}
        return
    with atomic_path(paths[0]) as first, _all_or_none(paths[1:]) as others:
        yield {paths[0]: first, **others}


# -------------------------------------------------------------------- sparse features


def _write_sparse(graph: Graph, x: Any, normalisation: Normalisation, path: Path) -> None:
    """One hop of sparse features, a block of rows at a time."""
    left, right = _scales(graph, normalisation)
    partial = partial_path(path)
    try:
        partial.mkdir(parents=True)
        with (
            ArrayWriter(partial / "data.npy", np.float32) as data,
            ArrayWriter(partial / "indices.npy", np.int64) as indices,
            ArrayWriter(partial / "indptr.npy", np.int64) as indptr,
        ):
            indptr.append(np.zeros(1, np.int64))
            for first, last in row_blocks(graph.indptr, EDGES_AT_ONCE >> 8):
                rows = sp.csr_array(_matrix_rows(graph, normalisation, left, right, first, last) @ x)
                indptr.append(rows.indptr[1:].astype(np.int64) + data.rows)
                data.append(rows.data)
                indices.append(rows.indices)
        for array in partial.iterdir():
            with array.open("rb") as file:
                os.fsync(file.fileno())
        try:
            partial.rename(path)
        except OSError:  # where there are no locks, another process may have been quicker
            if not _is_whole(path, graph.num_nodes):
                raise
    except OSError as error:
        raise ResourceError(
            f"cannot write {path}: {error.strerror or error}; hop features of sparse features can grow large, "
            "so set num_hops lower"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_whole(path: Path, n: int) -> bool:
    """Whether a folder holds one hop of sparse features of n nodes."""
    if not is_array(path / "indptr.npy", np.int64, (n + 1,)):
        return False
    entries = (int(map_array(path / "indptr.npy")[-1]),)
    return is_array(path / "data.npy", np.float32, entries) and is_array(path / "indices.npy", np.int64, entries)


def _matrix_rows(
    graph: Graph, normalisation: Normalisation, left: Scale, right: Scale, first: int, last: int
) -> sp.csr_array:
    """Rows of `propagation_matrix`."""
    start, end = graph.indptr[first], graph.indptr[last]
    weight = np.ones(end - start) if graph.edge_weight is None else np.array(graph.edge_weight[start:end])
    parts = (weight, np.array(graph.indices[start:end]), graph.indptr[first : last + 1] - start)
    rows: Any = sp.csr_array(parts, shape=(last - first, graph.num_nodes))
    if normalisation == "symmetric":
        rows = sp.csr_array(rows + sp.eye_array(last - first, graph.num_nodes, k=first))
    if left is not None:
        rows.data = np.repeat(left[first:last], np.diff(rows.indptr)) * rows.data
    if right is not None:
        rows.data = rows.data * right[rows.indices]
    matrix: sp.csr_array = rows.astype(np.float32)
    return matrix


# -------------------------------------------------------------------- files


def _check_room(folder: Path, needed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ResourceError(
            f"{folder}: hop features need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; set num_hops lower, "
            "or convert the graph with --float16"
        )


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Processes that train on the same graph at once make its hop features once."""
    try:
        import fcntl
    except ImportError:  # without locks each makes its own, and one of them stays
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise ResourceError(f"cannot write {folder}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
