"""A graph on disk: plain `.npy` arrays and a manifest. Opening maps them into memory and reads next to nothing.

graph.json          the manifest, written last: counts, dtypes, a SHA-256 of every array's bytes, the fingerprint, and a
                    SHA-256 of all that
indptr.npy          (n + 1) int64; indices.npy: (E) int32; edge_weight.npy: (E) float64, where there are weights
x.npy               (n, F) float32 or float16; sparse: x_indptr.npy, x_indices.npy, x_data.npy (float32)
y.npy               (n) int64, −1 = unlabelled
ids.npy             (n) the user's own ids, as wide as the longest; id_keys.npy, id_rows.npy: the ids by their hash
split0_train.npy …  the splits that came with the data
cache/              what training derives from the above; it may be deleted at any time

The fingerprint is `Graph.fingerprint` of the content, worked out once, when the folder is written. Opening takes
the manifest's word for it and compares only names, dtypes and sizes; `verify=True` reads and hashes everything.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import mmap
import os
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import scipy.sparse as sp
from numpy.typing import DTypeLike, NDArray

from tokenphormer.errors import InputError
from tokenphormer.files import parse_json
from tokenphormer.graph.checks import Features
from tokenphormer.graph.graph import Graph, Stored
from tokenphormer.graph.raw_files import user_cache
from tokenphormer.graph.splits import PARTS, Split

KIND = "tokenphormer graph"
FORMAT = 1
MANIFEST = "graph.json"
HEAD = 1 << 12
"""Bytes of a manifest in which it says what it is."""
PIECE = 1 << 24
"""Bytes that are read at a time when a whole array is gone through."""
INTEGERS: tuple[str, ...] = ("<i4", "<i8")


def is_graph_folder(folder: Path) -> bool:
    """Whether a folder says that it holds a graph on disk; a graph.json of another make beside tables says nothing."""
    path = folder / MANIFEST
    if not path.is_file() or not any((folder / f"nodes.{kind}").is_file() for kind in ("csv", "parquet")):
        return path.is_file()
    with suppress(OSError), path.open("rb") as file:
        return KIND.encode() in file.read(HEAD)
    return False


def open_graph(folder: str | Path, *, verify: bool = False) -> Graph:
    """Open a graph on disk, its arrays memory-mapped; with `verify`, read it all and compare every hash.

    Names, dtypes and sizes are always checked, so a truncated or exchanged file is refused. Contents of the right
    size are taken on trust without `verify`: verify what comes from others, since walks follow its indices.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        expected = _expected(manifest)
        counts = {name: int(manifest[name]) for name in ("num_self_loops", "num_features")}
        if counts["num_self_loops"] < 0:
            raise ValueError(f"{counts['num_self_loops']} self-loops")
        largest, spread = float(manifest["feature_max"]), float(manifest["feature_spread"])
        fingerprint, names = str(manifest["fingerprint"]), tuple(map(str, manifest["class_names"]))
        split_names, notes = list(map(str, manifest["splits"])), tuple(map(str, manifest["notes"]))
        name, directed = str(manifest["name"]), bool(manifest["directed"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(f"{folder / MANIFEST}: not a manifest of format {FORMAT} (at {error})") from error
    arrays: dict[str, Any] = {name: _map(folder, name, manifest["arrays"], *expected[name]) for name in expected}
    if verify:
        verify_arrays(folder, manifest)
    if arrays["indptr"][0] != 0 or arrays["indptr"][-1] != len(arrays["indices"]):
        raise InputError(f"{folder / 'indptr.npy'}: its rows do not end where indices.npy ends")
    graph = Graph(
        indptr=arrays["indptr"],
        indices=arrays["indices"],
        edge_weight=arrays.get("edge_weight"),
        x=_features(folder, arrays, counts["num_features"]),
        y=arrays["y"],
        node_ids=arrays.get("ids"),
        class_names=names,
        directed=directed,
        name=name,
        splits=tuple(
            Split(**{part: arrays[f"split{number}_{part}"] for part in PARTS}, name=split_name)
            for number, split_name in enumerate(split_names)
        ),
        notes=notes,
    )
    stored = Stored(
        folder.absolute(),  # whatever folder the process goes to
        fingerprint,
        counts["num_self_loops"],
        largest,
        spread,
        arrays.get("id_keys"),
        arrays.get("id_rows"),
        graph.content,
    )
    graph = dataclasses.replace(graph, stored=stored)
    for split in graph.splits:
        split.check(graph)
    return graph


def in_memory(graph: Graph) -> Graph:
    """A graph on disk as any other: nothing is left on disk on purpose, and features are in single precision."""
    x: Any = graph.x
    x = x if x is None or x.dtype == np.float32 else x.astype(np.float32)
    return dataclasses.replace(graph, x=x, stored=None)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a graph on disk, of this version."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        kind, version = manifest["kind"], manifest["format"]
    except FileNotFoundError as error:
        raise InputError(f"{folder}: holds no graph on disk ({MANIFEST} is missing)") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a manifest of a graph on disk ({error})") from error
    if kind != KIND or version != FORMAT:
        raise InputError(f"{path}: a {kind} of format {version}; this version reads a {KIND} of format {FORMAT}")
    if manifest.get("sha256", "") not in ("", manifest_hash(manifest)):
        raise InputError(f"{path}: its content does not match the hash inside it; the file was changed")
    return manifest


def manifest_hash(manifest: dict[str, Any]) -> str:
    """SHA-256 of what a manifest says, but for the hash itself."""
    said = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _expected(manifest: dict[str, Any]) -> dict[str, tuple[tuple[str, ...], tuple[int | None, ...]]]:
    """Dtypes and shape that every array of a manifest must have; None is a length that only the array itself knows."""
    n, edges, width = (manifest[name] for name in ("num_nodes", "num_directed_edges", "num_features"))
    whole = all(isinstance(count, int) for count in (n, edges, width))
    if not whole or n < 1 or edges < 0 or not 0 <= width < 2**63:
        raise ValueError(f"{n!r} nodes, {edges!r} edges, {width!r} features")
    names = manifest["arrays"]
    odd = [name for name, entry in names.items() if not isinstance(entry, dict)]
    if odd:
        raise ValueError(f"the array '{odd[0]}'")
    found: dict[str, tuple[tuple[str, ...], tuple[int | None, ...]]] = {
        "indptr": (("<i8",), (n + 1,)),
        "indices": (("<i4",), (edges,)),
        "y": (("<i8",), (n,)),
    }
    if "edge_weight" in names:
        found["edge_weight"] = (("<f8",), (edges,))
    if "ids" in names:
        found |= {"ids": (("<U",), (n,)), "id_keys": (("<u8",), (n,)), "id_rows": (("<i4",), (n,))}
    if "x_data" in names:
        found |= {"x_indptr": (INTEGERS, (n + 1,)), "x_indices": (INTEGERS, (None,)), "x_data": (("<f4",), (None,))}
    elif width:
        found["x"] = (("<f4", "<f2"), (n, width))
    for number in range(len(manifest["splits"])):
        found |= {f"split{number}_{part}": (("<i8",), (None,)) for part in PARTS}
    return found


def _map(
    folder: Path, name: str, entries: dict[str, Any], dtypes: tuple[str, ...], shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Map one array after comparing it with the manifest and with what the format asks for."""
    path = folder / f"{name}.npy"
    try:
        entry = entries[name]
        said_dtype, said_shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{folder / MANIFEST}: says nothing of {path.name} ({error})") from error
    try:
        with path.open("rb") as file:
            dtype, found, offset = read_header(file)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise InputError(f"{path}: is missing") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable array ({error})") from error
    if (dtype.str, found) != (said_dtype, said_shape):
        raise InputError(f"{path}: holds {dtype.str} {found}, but the manifest says {said_dtype} {said_shape}")
    fits = len(found) == len(shape) and all(b in (None, a) for a, b in zip(found, shape, strict=True))
    if not fits or not any(dtype.str == one or (one == "<U" and dtype.str.startswith(one)) for one in dtypes):
        raise InputError(f"{path}: holds {dtype.str} {found}; expected {' or '.join(dtypes)} {_show(shape)}")
    expected = offset + dtype.itemsize * int(np.prod(found))
    if size != expected:
        raise InputError(f"{path}: has {size:,} bytes, expected {expected:,}; it was cut off or changed")
    return map_array(path)


def _show(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('any' if length is None else str(length) for length in shape)})"


def read_header(file: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Dtype, shape, and where the data begin in a `.npy` file; ValueError for one that could not be mapped."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("not a .npy of version 1.0")
    try:
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:  # it is read as Python's own text
        raise ValueError(f"its header cannot be read: {error}") from error
    if (fortran and len(shape) > 1) or dtype.hasobject:
        raise ValueError("expected plain values in C order")
    return dtype, shape, file.tell()


def map_array(path: Path) -> NDArray[Any]:
    """A `.npy` file as a read-only array whose pages are read when they are touched."""
    with path.open("rb") as file:
        dtype, shape, offset = read_header(file)
    if 0 in shape:  # there is nothing to map
        return np.empty(shape, dtype)
    # A plain view: what subclasses of arrays add is not needed, and kernels are compiled for the plain ones.
    return np.asarray(np.memmap(path, dtype, "r", offset, shape))


def is_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> bool:
    """Whether a file of the cache holds such an array, whole: a copy of the folder may have been cut off."""
    try:
        with path.open("rb") as file:
            kind, found, offset = read_header(file)
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError):
        return False
    return (kind, found) == (np.dtype(dtype), shape) and size == offset + kind.itemsize * math.prod(shape)


def _features(folder: Path, arrays: dict[str, Any], width: int) -> Features | None:
    if "x" in arrays:
        dense: NDArray[np.float32] = arrays["x"]
        return dense
    if "x_data" not in arrays:
        return None
    try:
        return sparse_rows(arrays["x_data"], arrays["x_indices"], arrays["x_indptr"], width)
    except ValueError as error:
        raise InputError(f"{folder / 'x_indptr.npy'}: {error}") from error


def sparse_rows(data: NDArray[Any], indices: NDArray[Any], indptr: NDArray[Any], width: int) -> sp.csr_array:
    """A sparse matrix around arrays as they are; SciPy's constructor would read them through, and perhaps copy."""
    if not (len(data) == len(indices) == indptr[-1] and indptr[0] == 0 and indices.dtype == indptr.dtype):
        raise ValueError(
            f"{len(data)} values, {len(indices)} columns ({indices.dtype}), "
            f"rows from {indptr[0]} to {indptr[-1]} ({indptr.dtype}) do not fit together"
        )
    matrix: Any = sp.csr_array((len(indptr) - 1, width), dtype=np.float32)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    whole: sp.csr_array = matrix
    return whole


# -------------------------------------------------------------------- going through arrays


def row_blocks(indptr: NDArray[Any], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows with at most `most` entries each, or of one row that has more.

    >>> list(row_blocks(np.array([0, 2, 3, 9, 9, 10]), 4))
    [(0, 2), (2, 3), (3, 5)]
    """
    first, n = 0, len(indptr) - 1
    while first < n:
        last = int(np.searchsorted(indptr, indptr[first] + most, side="right")) - 1
        last = min(max(last, first + 1), n)
        yield first, last
        first = last


def release(array: NDArray[Any]) -> None:
    """Let go of the pages of a mapped array that were read; they come back when touched again."""
    _advise(array, "MADV_DONTNEED")


def expect_random_reads(arrays: list[NDArray[Any]]) -> None:
    """Read only the pages asked for of arrays larger than memory: their neighbours would push out others."""
    if sum(array.nbytes for array in arrays) > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2:
        for array in arrays:
            _advise(array, "MADV_RANDOM")


def _advise(array: NDArray[Any], advice: str) -> None:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, advice):
        base.madvise(getattr(mmap, advice))


def reserve(path: Path) -> None:
    """Take a file's whole space now: a disk found full later, through a mapping, would kill the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def cache_folder(stored: Stored) -> Path:
    """Where what is derived from a graph on disk is kept: beside it, or with the user's own if that is not allowed."""
    beside = stored.folder / "cache"  # perhaps another user's
    if os.access(beside if beside.exists() else stored.folder, os.W_OK):
        return beside
    return user_cache() / "stored" / stored.fingerprint[:16]


def cache_name(graph: Graph, *, features: bool) -> str:
    """What files begin with that are derived from the edges of a graph on disk, or from its edges and features.

    It is of the folder's fingerprint, unless a copy of the graph has other ones: then of theirs.
    """
    assert graph.stored is not None
    count = 4 if features else 3  # indptr, indices, edge_weight, x
    if all(a is b for a, b in zip(graph.content[:count], graph.stored.content[:count], strict=True)):
        return graph.stored.fingerprint[:16]
    x = graph.x if features else None
    return Graph(graph.indptr, graph.indices, graph.edge_weight, x, directed=graph.directed).fingerprint[:16]


def read_pieces(path: Path) -> Iterator[NDArray[Any]]:
    """The values of a `.npy` file in order, some at a time, through ordinary reads."""
    with path.open("rb") as file:
        dtype, shape, _ = read_header(file)
        left, most = int(np.prod(shape)), max(1, PIECE // dtype.itemsize)
        while left:
            piece = np.fromfile(file, dtype, min(left, most))
            if not len(piece):
                raise InputError(f"{path}: ends too early")
            left -= len(piece)
            yield piece


def _ahead(pieces: Iterator[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """The same pieces, each read while the one before is worked on."""
    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = reader.submit(next, pieces, None)
            yield piece


def content_fingerprint(folder: Path, manifest: dict[str, Any]) -> str:
    """`Graph.fingerprint` of the arrays in a folder, a piece at a time."""
    names = manifest["arrays"]
    sha = hashlib.sha256(json.dumps([manifest["directed"], manifest["class_names"]]).encode())

    def add(label: str, name: str, dtype: DTypeLike | None = None) -> None:
        if name in names:
            kind, shape = np.dtype(dtype or names[name]["dtype"]), tuple(names[name]["shape"])
            sha.update(f"|{label}:{kind.str}:{shape}|".encode())
            for piece in _ahead(read_pieces(folder / f"{name}.npy")):
                sha.update(piece.astype(kind, copy=False).data)

    for name in ("indptr", "indices", "edge_weight", "x"):
        add(name, name)
    for name in ("indptr", "indices"):
        add(f"x.{name}", f"x_{name}", np.int64)
    add("x.data", "x_data")
    if "x_data" in names:
        shape = np.asarray((manifest["num_nodes"], manifest["num_features"]))
        sha.update(f"|x.shape:{shape.dtype.str}:(2,)|".encode() + shape.tobytes())
    add("y", "y")
    if "ids" in names:  # as `Graph` packs them: a list in JSON
        length = sum(map(len, _json_pieces(folder / "ids.npy")))
        sha.update(f"|ids:|u1:({length},)|".encode())
        for text in _json_pieces(folder / "ids.npy"):
            sha.update(text.encode())
    return sha.hexdigest()


def _json_pieces(path: Path) -> Iterator[str]:
    start = "["
    for piece in read_pieces(path):
        yield start + json.dumps(piece.tolist())[1:-1]
        start = ", "
    yield "]"


def verify_arrays(folder: Path, manifest: dict[str, Any]) -> None:
    """Read everything: hashes as the manifest says, indices within the graph, numbers finite, the fingerprint."""
    n, classes, width = manifest["num_nodes"], len(manifest["class_names"]), manifest["num_features"]
    for name, entry in manifest["arrays"].items():
        sha = hashlib.sha256()
        with suppress(OSError, ValueError):  # then the hash is another
            for piece in read_pieces(folder / f"{name}.npy"):
                sha.update(piece.data)
        if sha.hexdigest() != entry.get("sha256"):
            raise InputError(f"{folder / name}.npy: its SHA-256 is not the manifest's; the file was changed")
    ranges = {"indices": (0, n), "y": (-1, classes), "x_indices": (0, width), "id_rows": (0, n)}
    for name, (low, high) in ranges.items():
        for piece in read_pieces(folder / f"{name}.npy") if name in manifest["arrays"] else ():
            if piece.min() < low or piece.max() >= high:
                raise InputError(f"{folder / name}.npy: holds values outside {low} … {high - 1}")
    for name in ("x", "x_data", "edge_weight"):
        for piece in read_pieces(folder / f"{name}.npy") if name in manifest["arrays"] else ():
            if not np.isfinite(piece).all() or (name == "edge_weight" and piece.min() <= 0):
                raise InputError(f"{folder / name}.npy: holds values that are not finite, or weights that are not > 0")
    for name in ("indptr", "x_indptr"):
        last = 0
        for piece in read_pieces(folder / f"{name}.npy") if name in manifest["arrays"] else ():
            if piece[0] < last or (np.diff(piece) < 0).any():
                raise InputError(f"{folder / name}.npy: its rows are not in order")
            last = int(piece[-1])
    if content_fingerprint(folder, manifest) != manifest["fingerprint"]:
        raise InputError(f"{folder}: its content does not match the fingerprint in {MANIFEST}")
