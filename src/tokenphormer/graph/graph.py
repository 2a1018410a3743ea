"""`Graph`: a frozen graph in compressed sparse rows, with features, labels, ids and a content fingerprint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from tokenphormer.errors import InputError
from tokenphormer.files import atomic_path, load_arrays, parse_json
from tokenphormer.graph.checks import (
    Features,
    check_edges,
    check_features,
    check_ids,
    check_labels,
    check_weights,
    column_names,
)
from tokenphormer.graph.splits import PARTS, Split
from tokenphormer.hashing import digest

FORMAT = 1
NAMES_COMPARED = 200_000
"""Ids among which the nearest to an unknown one are looked for."""


@dataclass(frozen=True, eq=False)
class Stored:
    """Where a graph on disk lies, and what its manifest says, so that the arrays need not be read for it."""

    folder: Path
    fingerprint: str
    num_self_loops: int
    feature_max: float
    """Greatest absolute value of a feature."""
    feature_spread: float
    """Greatest difference between two values of the same feature."""
    id_keys: NDArray[np.uint64] | None
    """(n) hashes of the ids, ascending."""
    id_rows: NDArray[np.int32] | None
    """(n) the nodes that have them."""
    content: tuple[object, ...]
    """`Graph.content` as it was opened: a copy with other labels, say, is not what the manifest speaks of."""


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """A graph of `num_nodes` nodes; the neighbours of v are `indices[indptr[v]:indptr[v + 1]]`, ascending.

    An undirected edge is stored in both directions. No row holds a neighbour twice. Arrays are read-only.
    Build one with `Graph.from_edges`, `load_graph` or a conversion; the constructor itself checks nothing
    that takes time.

    >>> g = Graph.from_edges([[0, 1, 1], [1, 2, 2]], num_nodes=4)
    >>> g
    Graph(nodes=4, edges=2, undirected, no features, no labels)
    >>> g.neighbours(1).tolist(), g.degree.tolist()
    ([0, 2], [1, 2, 1, 0])
    """

    indptr: NDArray[np.int64]
    """(n + 1) where each row of `indices` starts."""
    indices: NDArray[np.int32]
    """(E) targets of the directed edges."""
    edge_weight: NDArray[np.float64] | None = None
    """(E) positive weights, or None."""
    x: Features | None = None
    """(n, F) features, dense float32 or sparse."""
    y: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """(n) class numbers, −1 = unlabelled; left out: all unlabelled."""
    node_ids: NDArray[np.str_] | None = None
    """(n) the user's own names of the nodes; None means 0 … n−1."""
    class_names: tuple[str, ...] = ()
    directed: bool = False
    name: str = "graph"
    splits: tuple[Split, ...] = ()
    """Splits that came with the data."""
    notes: tuple[str, ...] = ()
    """What was done to the input while building: one short line each."""
    stored: Stored | None = None
    """Of a graph on disk (`disk.py`): where it lies. Its arrays are memory-mapped."""
    feature_names: tuple[str, ...] | None = None
    """(F) names of the features, of a graph read from tables with feature columns or made with a pandas table as `x`;
    dropped if `x` is replaced by one of another width. They are not part of the fingerprint, and no file of a graph
    keeps them: neither `save` nor `tokenphormer convert` nor `write_folder` writes them."""

    def __post_init__(self) -> None:
        if not len(self.y):
            object.__setattr__(self, "y", np.full(self.num_nodes, -1, dtype=np.int64))
        if self.feature_names is not None and len(self.feature_names) != self.num_features:
            object.__setattr__(self, "feature_names", None)
        self._freeze()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """For pickle and copy, which make arrays that can be written to; what is known of them would stay as it is."""
        self.__dict__.update(state)
        self._freeze()

    def _freeze(self) -> None:
        arrays: list[NDArray[Any] | None] = [self.indptr, self.indices, self.edge_weight, self.y, self.node_ids]
        if isinstance(self.x, np.ndarray):
            arrays.append(self.x)
        elif self.x is not None:
            arrays += [self.x.data, self.x.indices, self.x.indptr]
        for array in [*arrays, self.__dict__.get("degree")]:
            if array is not None:
                array.flags.writeable = False

    # ---------------------------------------------------------------- sizes

    @property
    def num_nodes(self) -> int:
        """Number of nodes, n."""
        return len(self.indptr) - 1

    @property
    def num_directed_edges(self) -> int:
        """Number of stored edges; an undirected edge counts twice."""
        return len(self.indices)

    @cached_property
    def num_edges(self) -> int:
        """Number of edges as a person counts them: an undirected edge counts once."""
        if self.directed:
            return self.num_directed_edges
        return (self.num_directed_edges - self.num_self_loops) // 2 + self.num_self_loops

    @cached_property
    def num_self_loops(self) -> int:
        """Number of edges from a node to itself; 0 unless they were asked for."""
        if self.stored is not None and self.indices is self.stored.content[1]:
            return self.stored.num_self_loops
        loops = 0
        for first in range(0, self.num_nodes, 1 << 20):  # in pieces: a large graph must not need E more integers
            rows = np.arange(first, min(first + (1 << 20), self.num_nodes))
            here = self.indices[self.indptr[first] : self.indptr[rows[-1] + 1]]
            loops += int((np.repeat(rows, self.degree[rows]) == here).sum())
        return loops

    @property
    def num_features(self) -> int:
        """Width of the features; 0 without."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """(n) out-degrees."""
        degree = np.diff(self.indptr)
        degree.flags.writeable = False
        return degree

    def neighbours(self, node: int) -> NDArray[np.int32]:
        """Targets of the edges that leave `node`."""
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def __repr__(self) -> str:
        parts = [f"nodes={self.num_nodes}", f"edges={self.num_edges}"]
        parts += ["directed" if self.directed else "undirected"]
        parts += ["weighted"] if self.edge_weight is not None else []
        kind = "sparse " if sp.issparse(self.x) else ""
        parts += [f"{kind}features={self.num_features}" if self.x is not None else "no features"]
        parts += [f"classes={self.num_classes}" if self.num_classes else "no labels"]
        return f"Graph({', '.join(parts)})"

    # ---------------------------------------------------------------- ids

    def id_of(self, node: int) -> str:
        """The user's own name of a node index."""
        return str(node) if self.node_ids is None else str(self.node_ids[node])

    def index_of(self, node_id: str) -> int:
        """The node index of a user's own name; unknown names are an error that offers the nearest ones."""
        if self.node_ids is None:
            found = _as_index(node_id)
        elif self.stored is not None and self.node_ids is self.stored.content[5]:
            from tokenphormer.graph.id_table import find_stored

            found = find_stored(self.stored, self.node_ids, str(node_id))
        else:
            found = self._index_by_id.get(str(node_id))
        if found is None or not 0 <= found < self.num_nodes:
            import difflib

            names = range(self.num_nodes) if self.node_ids is None else self.node_ids
            near = difflib.get_close_matches(str(node_id), list(map(str, names[:NAMES_COMPARED])), n=3)
            offer = f"; nearest: {', '.join(near)}" if near else ""
            raise InputError(f"graph '{self.name}' has no node {node_id!r}{offer}")
        return found

    @cached_property
    def _index_by_id(self) -> dict[str, int]:
        assert self.node_ids is not None
        return {str(name): index for index, name in enumerate(self.node_ids)}

    # ---------------------------------------------------------------- identity

    @property
    def content(self) -> tuple[object, ...]:
        """All that the fingerprint depends on."""
        arrays = (self.indptr, self.indices, self.edge_weight, self.x, self.y, self.node_ids)
        return (*arrays, self.class_names, self.directed)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the content: edges, weights, features, labels, ids, class names, direction. Not the name."""
        if self.stored is not None and all(a is b for a, b in zip(self.content, self.stored.content, strict=True)):
            return self.stored.fingerprint
        x = self.x
        if x is None or isinstance(x, np.ndarray):
            features: list[tuple[str, Any]] = [("x", x)]
        else:
            features = [("x.indptr", x.indptr.astype(np.int64)), ("x.indices", x.indices.astype(np.int64))]
            features += [("x.data", x.data), ("x.shape", np.asarray(x.shape))]
        ids = None if self.node_ids is None else _pack(self.node_ids)
        edges: list[tuple[str, Any]] = [("indptr", self.indptr), ("indices", self.indices)]
        edges.append(("edge_weight", self.edge_weight))
        return digest([*edges, *features, ("y", self.y), ("ids", ids)], json.dumps([self.directed, self.class_names]))

    # ---------------------------------------------------------------- building

    @classmethod
    def from_edges(
        cls,
        edge_index: ArrayLike,
        num_nodes: int | None = None,
        x: object = None,
        y: ArrayLike | None = None,
        edge_weight: ArrayLike | None = None,
        directed: bool = False,
        *,
        self_loops: bool = False,
        node_ids: ArrayLike | None = None,
        class_names: tuple[str, ...] | None = None,
        name: str = "graph",
        splits: tuple[Split, ...] = (),
    ) -> Graph:
        """Build a graph from a (2, E) array of node indices.

        Edges listed more than once become one: weights of the same direction are added, and an undirected
        edge listed from both ends takes the mean of its two weights. Self-loops are dropped unless
        `self_loops`. `notes` says what was done. Of a pandas table `x`, the names of its columns are kept.
        """
        source, target, n = check_edges(edge_index, num_nodes)
        weight = check_weights(edge_weight, len(source))
        if isinstance(splits, Split):
            raise InputError("splits: expected several, got one; give (split,)")
        directed, splits = bool(directed), tuple(splits)  # NumPy's truth has no place in a fingerprint
        notes = []
        loops = source == target
        if loops.any() and not self_loops:
            source, target = source[~loops], target[~loops]
            weight = None if weight is None else weight[~loops]
            notes.append(f"dropped {int(loops.sum())} self-loops")
        key, weight, doubles = _merge(source * n + target, weight)
        if doubles:
            notes.append(f"merged {doubles} repeated edges")
        if not directed:
            key, weight, one_way = _symmetrise(key, weight, n)
            if len(key):
                notes.append(f"{one_way} edges were listed from one end only" if one_way else "both ends listed")
        if weight is not None and not np.isfinite(weight).all():
            raise InputError("edge_weight: the weights of an edge listed more than once add up to infinity")
        rows = key // n if n else key
        indptr = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=n), out=indptr[1:])
        labels, names = check_labels(y, class_names, n)
        graph = cls(
            indptr=indptr,
            indices=(key - rows * n).astype(np.int32),
            edge_weight=weight,
            x=check_features(x, n),
            y=labels,
            node_ids=check_ids(node_ids, n),
            class_names=names,
            directed=directed,
            name=name,
            splits=splits,
            notes=tuple(notes),
            feature_names=column_names(x),
        )
        for split in splits:
            split.check(graph)
        return graph

    # ---------------------------------------------------------------- one file

    def save(self, path: str | Path) -> None:
        """Write the graph as one compressed `.npz` (plain arrays, no pickles), atomically; without `feature_names`."""
        if Path(path).suffix != ".npz":
            raise InputError(f"{path}: expected a name that ends in .npz, by which load_graph knows such a file")
        arrays: dict[str, NDArray[Any]] = {"indptr": self.indptr, "indices": self.indices}
        # Small graphs only need small integers on disk; `load` widens them again.
        arrays["y"] = self.y.astype(np.int16) if self.num_classes < 2**15 else self.y
        if self.edge_weight is not None:
            arrays["edge_weight"] = self.edge_weight
        if isinstance(self.x, np.ndarray):
            arrays["x"] = self.x
        elif self.x is not None:
            arrays |= {"x_data": self.x.data, "x_indices": self.x.indices, "x_indptr": self.x.indptr}
        if self.node_ids is not None:
            arrays["node_ids"] = _pack(self.node_ids)
        for number, split in enumerate(self.splits):
            arrays |= {f"split{number}_{part}": getattr(split, part) for part in PARTS}
        meta = {
            "format": FORMAT,
            "name": self.name,
            "directed": self.directed,
            "class_names": self.class_names,
            "num_features": self.num_features,
            "splits": [split.name for split in self.splits],
            "notes": self.notes,
            "sha256": self.fingerprint,
        }
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read a graph that `save` wrote; a changed or truncated file is refused by its fingerprint."""
        arrays: dict[str, Any] = dict(load_arrays(path, required=("indptr", "indices", "y", "meta")))
        try:
            meta = parse_json(arrays["meta"].tobytes())
            x: Features | None = arrays.get("x")
            n = len(arrays["indptr"]) - 1
            if "x_data" in arrays:
                x = sp.csr_array(
                    (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]),
                    shape=(n, meta["num_features"]),
                )
                x.check_format(full_check=True)
            graph = cls(
                indptr=arrays["indptr"].astype(np.int64),
                indices=arrays["indices"].astype(np.int32),
                edge_weight=arrays.get("edge_weight"),
                x=x,
                y=arrays["y"].astype(np.int64),
                node_ids=_unpack(arrays["node_ids"]) if "node_ids" in arrays else None,
                class_names=tuple(meta["class_names"]),
                directed=bool(meta["directed"]),
                name=str(meta["name"]),
                splits=tuple(
                    Split(**{part: arrays[f"split{i}_{part}"] for part in PARTS}, name=str(split_name))
                    for i, split_name in enumerate(meta["splits"])
                ),
                notes=tuple(meta["notes"]),
            )
            fingerprint = graph.fingerprint
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(f"{path}: not a graph file of format {FORMAT} ({error})") from error
        if fingerprint != meta.get("sha256"):
            raise InputError(f"{path}: its content does not match the fingerprint inside it; the file was changed")
        _check_loaded(graph, path)
        return graph


def _check_loaded(graph: Graph, path: str | Path) -> None:
    """A file made by hand can carry a right fingerprint and indices that a kernel would follow out of memory."""
    n, columns = graph.num_nodes, graph.indices
    ok = n >= 1 and graph.indptr[0] == 0 and graph.indptr[-1] == len(columns) and (graph.degree >= 0).all()
    ok = ok and (not columns.size or (columns.min() >= 0 and columns.max() < n))
    ok = ok and graph.y.shape == (n,) and graph.y.min() >= -1 and graph.y.max() < graph.num_classes
    weight, x = graph.edge_weight, graph.x
    ok = ok and (weight is None or (weight.shape == columns.shape and _are_finite(weight) and (weight > 0).all()))
    ok = ok and (graph.node_ids is None or graph.node_ids.shape == (n,))
    ok = ok and (x is None or (x.ndim == 2 and x.shape[0] == n))
    ok = ok and (x is None or _are_finite(x if isinstance(x, np.ndarray) else x.data))
    ok = ok and all(isinstance(name, str) for name in graph.class_names)
    if not ok:
        raise InputError(f"{path}: its arrays do not make a graph of {n} nodes and {len(columns)} edges")
    for split in graph.splits:
        split.check(graph)


def _are_finite(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iuf" and bool(np.isfinite(values).all())


def _merge(
    key: NDArray[np.int64], weight: NDArray[np.float64] | None
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None, int]:
    """Sort edges by key and make repeated ones one, their weights added."""
    if weight is None:
        key = np.sort(key)
        first = np.ones(len(key), dtype=bool)
        np.not_equal(key[1:], key[:-1], out=first[1:])
        merged = key if first.all() else key[first]
        return merged, None, len(key) - len(merged)
    order = np.argsort(key, kind="stable")
    merged, start = np.unique(key[order], return_index=True)
    with np.errstate(over="ignore"):  # infinity is refused by the caller
        weight = np.add.reduceat(weight[order], start) if len(merged) else weight
    return merged, weight, len(key) - len(merged)


def _symmetrise(
    key: NDArray[np.int64], weight: NDArray[np.float64] | None, n: int
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None, int]:
    """Store every edge in both directions; weights of the two directions are averaged where both came."""
    reverse = (key % n) * n + key // n
    both = np.concatenate([key, reverse])
    if weight is None:
        merged, _, _ = _merge(both, None)
        return merged, None, len(merged) - len(key)
    order = np.argsort(both, kind="stable")
    merged, start, count = np.unique(both[order], return_index=True, return_counts=True)
    doubled = np.concatenate([weight, weight])[order]
    with np.errstate(over="ignore"):
        mean = np.add.reduceat(doubled, start) / count if len(merged) else doubled
    return merged, mean, len(merged) - len(key)


def _as_index(node_id: str) -> int | None:
    """The number that a text is, written as `id_of` writes it: 07 is no node's name."""
    text = str(node_id)
    plain = text.isascii() and text.isdecimal() and len(text) < 20
    return int(text) if plain and str(int(text)) == text else None


def _pack(strings: NDArray[np.str_]) -> NDArray[np.uint8]:
    """Strings as bytes: JSON keeps any character, lone surrogates too, and no pickle is needed."""
    return np.frombuffer(json.dumps(strings.tolist()).encode(), np.uint8)


def _unpack(packed: NDArray[np.uint8]) -> NDArray[np.str_]:
    return np.asarray(parse_json(packed.tobytes().decode()), dtype=np.str_)
