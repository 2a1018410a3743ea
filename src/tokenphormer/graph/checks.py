"""What people give for the parts of a graph, as arrays: checked, and refused in words that say what to do."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from tokenphormer.errors import InputError

Features = NDArray[np.float32] | sp.csr_array
MAX_NODES = 2**31 - 1
MAX_CLASSES = 1 << 20
"""Classes that are named by their numbers alone: each number below the highest is one."""


def check_edges(edge_index: ArrayLike, num_nodes: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """(E) the two ends of each edge, and the number of nodes."""
    edges = _as_array(edge_index, "edge_index: expected shape (2, E)")
    if edges.size == 0:
        edges = edges.astype(np.int64).reshape(2, 0)
    if edges.ndim != 2 or edges.shape[0] != 2:
        hint = "; one edge a row? transpose it" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise InputError(f"edge_index: expected shape (2, E), got {edges.shape}{hint}")
    if edges.dtype.kind not in "iu":
        hint = "; number the nodes from 0 on, and give their names as node_ids" if edges.dtype.kind in "OUST" else ""
        raise InputError(f"edge_index: expected integers, got {edges.dtype}{hint}")
    edges = edges.astype(np.int64, copy=False)
    highest = int(edges.max()) if edges.size else -1
    try:
        n = highest + 1 if num_nodes is None else index(num_nodes)
    except TypeError as error:
        raise InputError(f"num_nodes: {num_nodes!r}; expected a whole number") from error
    if n < 1:
        raise InputError("the graph has no node; give edges, or num_nodes of at least 1")
    if n > MAX_NODES:
        raise InputError(f"num_nodes: {n} is more than the {MAX_NODES} that a graph can hold")
    if edges.size and (edges.min() < 0 or highest >= n):
        bad = int(np.flatnonzero(((edges < 0) | (edges >= n)).any(axis=0))[0])
        raise InputError(
            f"edge_index, column {bad}: edge ({edges[0, bad]}, {edges[1, bad]}), but nodes are 0 to {n - 1}"
        )
    return edges[0], edges[1], n


def check_weights(edge_weight: ArrayLike | None, count: int) -> NDArray[np.float64] | None:
    """(E) the weights of the edges."""
    if edge_weight is None:
        return None
    try:
        refuse_lossy(edge_weight)
        weight = np.asarray(edge_weight, dtype=np.float64)
    except (ValueError, TypeError, RuntimeError) as error:  # the last is torch's, of tensors that ask for gradients
        raise InputError(f"edge_weight: expected numbers ({error})") from error
    if weight.shape != (count,):
        raise InputError(f"edge_weight: expected shape ({count},), one weight an edge, got {weight.shape}")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))
    if bad.size:
        raise InputError(
            f"edge_weight, entry {bad[0]}: {weight[bad[0]]}; weights must be positive and finite "
            f"({bad.size} are not; leave an edge of weight 0 out)"
        )
    return weight


def check_features(x: object, n: int) -> Features | None:
    """(n, F) the features of the nodes, dense or in compressed rows."""
    if x is None:
        return None
    if hasattr(x, "layout") and hasattr(x, "detach"):  # a torch tensor, without importing torch here
        x = _from_torch(x)
    matrix: Features
    given: Any = x
    try:
        refuse_lossy(given)
        with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused below
            matrix = as_rows(given).astype(np.float32) if sp.issparse(x) else np.array(given, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise InputError(f"x: expected numbers, one row a node ({error})") from error
    if not isinstance(matrix, np.ndarray):
        matrix.sum_duplicates()
    values = matrix if isinstance(matrix, np.ndarray) else matrix.data
    if matrix.ndim != 2:
        raise InputError(f"x: expected shape (nodes, features), got {matrix.shape}")
    if matrix.shape[0] != n:
        raise InputError(f"x: {matrix.shape[0]} rows, but the graph has {n} nodes")
    if not np.isfinite(values).all():
        row, column = _first_not_finite(matrix)
        raise InputError(f"x, row {row}, column {column}: not a finite float32 number")
    return matrix


def column_names(x: object) -> tuple[str, ...] | None:
    """The names of a pandas table's columns, if they are names and all differ."""
    names = list(getattr(x, "columns", ()))
    named = names and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return tuple(names) if named else None


def check_labels(y: ArrayLike | None, class_names: Any, n: int) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(n) the classes of the nodes, −1 where there is none, and the names of the classes."""
    # In no order, or that of keys, or letters; or none at all.
    if class_names is not None and (
        isinstance(class_names, dict | set | frozenset | str | bytes) or not isinstance(class_names, Iterable)
    ):
        kind = type(class_names).__name__
        raise InputError(f"class_names: expected a tuple, the name of class 0 first, got a {kind}")
    given = None if class_names is None else tuple(map(str, class_names))
    if given is not None and len(set(given)) < len(given):
        twice = next(name for place, name in enumerate(given) if name in given[:place])
        raise InputError(f"class_names: {twice!r} stands for more than one class; expected every name once")
    if y is None:
        return np.full(n, -1, dtype=np.int64), given or ()
    labels = _as_array(y, "y: expected class numbers, one a node")
    if labels.shape != (n,):
        raise InputError(f"y: expected shape ({n},), one label a node, got {labels.shape}")
    if labels.dtype.kind not in "iu":
        raise InputError(
            f"y: expected class numbers (−1 = unlabelled), got {labels.dtype}; "
            "number the classes from 0 on, and give their names as class_names"
        )
    labels = labels.astype(np.int64)
    highest = int(labels.max())
    if given is None and highest >= MAX_CLASSES:
        raise InputError(f"y: class {highest}; number the classes from 0 on, or give their class_names")
    names = tuple(map(str, range(highest + 1))) if given is None else given
    if labels.min() < -1 or highest >= len(names):
        bad = int(np.flatnonzero((labels < -1) | (labels >= len(names)))[0])
        raise InputError(f"y, node {bad}: class {labels[bad]}; expected −1 (unlabelled) to {len(names) - 1}")
    return labels, names


def check_ids(node_ids: ArrayLike | None, n: int) -> NDArray[np.str_] | None:
    """(n) the names of the nodes."""
    if node_ids is None:
        return None
    given = _as_array(node_ids, "node_ids: expected strings, one a node")
    # As they were given: an array of strings takes a NUL at the end of one for its own padding, and drops it.
    names: Any = node_ids if isinstance(node_ids, list | tuple) else given.ravel().tolist()
    if any("\0" in str(name) for name in names):
        raise InputError("node_ids: an id has a NUL character, which an id may not have")
    gap = next((at for at, name in enumerate(names) if not isinstance(name, str) and is_missing(name)), None)
    if gap is not None:
        raise InputError(f"node_ids, entry {gap}: {names[gap]}; every node needs an id")
    try:
        ids = (given.astype(object) if given.dtype.kind == "T" else given).astype(np.str_)  # T: NumPy's own strings
    except UnicodeDecodeError as error:
        raise InputError(f"node_ids: expected strings, got bytes that are not ASCII ({error}); decode them") from error
    ids = ids.astype(ids.dtype.newbyteorder("<"), copy=False)  # as a graph on disk has them
    if ids.shape != (n,):
        raise InputError(f"node_ids: expected shape ({n},), one id a node, got {ids.shape}")
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) < n:
        raise InputError(f"node_ids: {str(unique[counts > 1][0])!r} stands for more than one node")
    return ids


def _as_array(values: ArrayLike, expected: str) -> NDArray[Any]:
    """What was given as an array; rows of different lengths, say, are none."""
    try:
        _refuse_masked(values)
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{expected} ({error})") from error


def as_rows(matrix: Any) -> sp.csr_array:
    """A sparse matrix in compressed rows; entries listed more than once add up, which 8 bits cannot hold for long."""
    return sp.csr_array(matrix.astype(np.float64) if matrix.dtype.kind in "iu" else matrix)


def refuse_lossy(values: Any) -> None:
    """Raise where NumPy would take the real parts alone, dates for counts, or what is masked for known."""
    if np.iscomplexobj(values):
        raise TypeError("these are complex")
    _refuse_masked(values)
    kind = getattr(getattr(values, "dtype", None), "kind", None)
    if (np.asarray(values).dtype.kind if kind is None else kind) in "mM":  # a missing one would be a huge number
        raise TypeError("these are dates or times; count days since the first, say")


def _refuse_masked(values: Any) -> None:
    if np.ma.is_masked(values):
        raise TypeError("some are masked; fill them in, or leave them out")


def is_missing(value: object) -> bool:
    """Whether a value is what Python, NumPy or pandas (which need not be installed) have for a missing value."""
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _first_not_finite(matrix: Features) -> tuple[int, int]:
    if isinstance(matrix, np.ndarray):
        row, column = np.argwhere(~np.isfinite(matrix))[0]
        return int(row), int(column)
    entry = int(np.flatnonzero(~np.isfinite(matrix.data))[0])
    return int(np.searchsorted(matrix.indptr, entry, side="right")) - 1, int(matrix.indices[entry])


def _from_torch(x: Any) -> object:
    x = x.detach().cpu()
    if str(x.layout) == "torch.strided":
        return x.float().numpy()
    coo = x.to_sparse_coo().coalesce()
    row, column = coo.indices().numpy()
    return sp.csr_array((coo.values().float().numpy(), (row, column)), shape=tuple(x.shape))
