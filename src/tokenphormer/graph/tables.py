"""A user's own graph as a folder of tables: edges, nodes and, if need be, a file of features.

- `edges.csv` or `edges.parquet`: columns source, target, optional weight
- `nodes.csv` or `nodes.parquet`: columns id, optional label, optional split (train, val, test or empty),
  further columns are numeric features
- `features.npz` instead of such columns: what `scipy.sparse.save_npz` or `numpy.savez` wrote, rows in the
  order of the nodes table
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.files import atomic_path, load_arrays
from tokenphormer.graph.checks import Features, as_rows
from tokenphormer.graph.columns import Column, Table, arrow, meant, read_table
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.splits import PARTS, Split

EXPECTED = (
    "expected edges.csv or edges.parquet (columns source, target, optional weight) and nodes.csv or "
    "nodes.parquet (columns id, optional label, optional split, further numeric columns = features), "
    "optionally features.npz"
)
LONGEST_ID = 1000
"""Characters; ids are held in one array as wide as the longest of them."""
MISSING = ("", "NaN", "nan", "NA", "N/A", "n/a", "#N/A", "<NA>", "None", "null", "NULL")
"""Labels, without blanks around them, that were perhaps meant as none."""

SLIPS: dict[str, Callable[[str], str]] = {
    "blanks": str.strip,
    "capitals": str.casefold,
    "how a number is written": lambda name: re.sub(r"^([+-]?[0-9]+)\.0+$", r"\1", name),
}
"""In what labels differ that were perhaps meant as one, and what is left without it."""


def read_folder(folder: str | Path, *, directed: bool = False, self_loops: bool = False) -> Graph:
    """Read the graph of a folder of tables (the head of this file says which).

    Ids and class names are strings, taken as they stand: "007" is not "7", "NA" is a name like any other,
    only an empty cell is missing (`notes` says so where a class looks like a slip). Classes are numbered in
    sorted order, by value if all are whole numbers. Edges are treated as `Graph.from_edges` treats them, and
    `notes` says what was done. `feature_names` are the names of the feature columns; a features.npz has none.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is not a' if folder.exists() else 'no such'} folder; {EXPECTED}")
    nodes, edges = read_table(folder, "nodes"), read_table(folder, "edges")
    if nodes is None or edges is None:
        raise InputError(f"{folder}: has no {'nodes' if nodes is None else 'edges'} table; {EXPECTED}")
    ids = _read_ids(nodes)
    y, class_names = _read_labels(nodes)
    edge_index, weight = _read_edges(edges, nodes, ids)
    (x, feature_names), splits = _read_features(nodes), _read_split(nodes, y)
    try:
        graph = Graph.from_edges(
            edge_index,
            num_nodes=nodes.num_rows,
            x=x,
            y=y,
            edge_weight=weight,
            directed=directed,
            self_loops=self_loops,
            node_ids=ids.to_pylist(),
            class_names=class_names,
            name=folder.resolve().name or "graph",
            splits=splits,
        )
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error
    return dataclasses.replace(graph, notes=_notes(nodes, edges, graph), feature_names=feature_names)


def write_folder(
    graph: Graph, folder: str | Path, table: Literal["csv", "parquet"] = "csv", split: Split | None = None
) -> None:
    """Write a graph as the folder that `read_folder` reads; the folder must be new or empty.

    An undirected edge is written once. Read a directed graph back with `directed=True`, and one with
    self-loops with `self_loops=True`. The nodes table holds one split: `split`, or the graph's only one.
    Classes go by their names, so that they may be numbered anew when read. Features go to features.npz, which has no
    place for `feature_names`.
    """
    folder = Path(folder)
    if table not in ("csv", "parquet"):
        raise InputError(f"table: expected 'csv' or 'parquet', got {table!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already and not an empty folder; give the name of a new one")
    nodes = _nodes_to_write(graph, split)
    edges = _edges_to_write(graph)
    _write_table(folder / f"edges.{table}", edges)
    if graph.x is not None and graph.num_features:  # features of no width are none, and no file of theirs is read
        with atomic_path(folder / "features.npz") as temporary, temporary.open("wb") as file:
            if isinstance(graph.x, np.ndarray):
                np.savez_compressed(file, x=graph.x)
            else:
                sp.save_npz(file, graph.x)
    # Last, because a folder without it is refused: one that was cut short is not taken for whole.
    _write_table(folder / f"nodes.{table}", nodes)


# -------------------------------------------------------------------- reading


def _read_ids(nodes: Table) -> Column:
    pc = arrow().compute
    nodes.require("id")
    if nodes.num_rows == 0:
        raise InputError(f"{nodes.path}: has no rows; expected at least one node")
    ids = nodes.strings("id")
    _refuse(nodes, "id", pc.equal(ids, ""), "empty; every node needs an id")
    _refuse(nodes, "id", pc.match_substring(ids, "\0"), "has a NUL character, which an id may not have")
    too_long = pc.greater(pc.utf8_length(ids), LONGEST_ID)
    _refuse(nodes, "id", too_long, f"longer than the {LONGEST_ID} characters that an id may have")
    # The dictionary holds ids in the order of their first appearance, so the first code that is not its own
    # row is the first repetition, and names the row it repeats.
    codes = np.asarray(ids.combine_chunks().dictionary_encode().indices)
    again = np.flatnonzero(codes != np.arange(len(codes)))
    if again.size:
        row = int(again[0])
        first = nodes.where(int(codes[row])).removeprefix(f"{nodes.path}, ")
        raise InputError(f"{nodes.where(row, 'id')}: {ids[row].as_py()!r} is a node already in {first}")
    return ids


def _read_labels(nodes: Table) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if "label" not in nodes.columns:
        return np.full(nodes.num_rows, -1, dtype=np.int64), ()
    labels = nodes.strings("label")
    names = sort_classes(name for name in labels.unique().to_pylist() if name)
    return _index_in(labels, names), names


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Class names in order: by value if all are whole numbers, else as text.

    >>> sort_classes(["10", "9", "-1"]), sort_classes(["10", "9", "b"])
    (('-1', '9', '10'), ('10', '9', 'b'))
    """
    names = sorted(names)
    if all(re.fullmatch(r"[+-]?[0-9]{1,18}", name) for name in names):
        names.sort(key=int)
    return tuple(names)


def label_notes(class_names: Sequence[str]) -> list[str]:
    """Notes on names of classes that are perhaps not meant as such: classes are taken as they stand.

    >>> label_notes(("a", "a ", "nan"))[0]
    "the labels 'a' and 'a ' differ only in blanks and are separate classes"
    """
    notes = []
    for what, key in SLIPS.items():
        twins = []
        first: dict[str, str] = {}
        for name in dict.fromkeys(map(str.strip, class_names)) if what != "blanks" else class_names:
            if first.setdefault(key(name), name) != name:
                twins.append((first[key(name)], name))
        if twins:
            more = f" ({len(twins)} such pairs)" if len(twins) > 1 else ""
            one, other = twins[0]
            notes.append(f"the labels {one!r} and {other!r} differ only in {what} and are separate classes{more}")
    missing = [name for name in class_names if name.strip() in MISSING]
    if missing and len(missing) < len(class_names):
        labels = f"the label {missing[0]!r} is a class of its own"
        if len(missing) > 1:
            labels = f"the labels {', '.join(map(repr, missing))} are classes of their own"
        notes.append(f"{labels}; leave the cell empty where a node has no label")
    return notes


def _read_split(nodes: Table, y: NDArray[np.int64]) -> tuple[Split, ...]:
    if "split" not in nodes.columns:
        return ()
    column = nodes.strings("split")
    part = _index_in(column, (*PARTS, ""))
    bad = np.flatnonzero(part < 0)
    if bad.size:
        row = int(bad[0])
        found = column[row].as_py()
        raise InputError(f"{nodes.where(row, 'split')}: {found!r}; expected train, val, test or nothing")
    bare = np.flatnonzero((part < len(PARTS)) & (y < 0))
    if bare.size:
        row = int(bare[0])
        raise InputError(
            f"{nodes.where(row)}: split is {PARTS[part[row]]!r}, but the node has no label "
            f"({bare.size} such nodes); a split may hold labelled nodes only"
        )
    if (part == len(PARTS)).all():
        return ()
    train, val, test = (np.flatnonzero(part == number) for number in range(len(PARTS)))
    return (Split(train, val, test, name="given"),)


def _read_edges(edges: Table, nodes: Table, ids: Column) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    edges.require("source", "target")
    ends = []
    for name in ("source", "target"):
        column = edges.strings(name)
        end = _index_in(column, ids)
        unknown = np.flatnonzero(end < 0)
        if unknown.size:
            row = int(unknown[0])
            raise InputError(
                f"{edges.where(row, name)}: {column[row].as_py()[:60]!r} is no id of {nodes.path.name} "
                f"({unknown.size} such cells in this column; ids are compared exactly, spaces included)"
            )
        ends.append(end)
    if "weight" not in edges.columns:
        return np.stack(ends), None
    weight = edges.numbers("weight")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))
    if bad.size:
        row = int(bad[0])
        raise InputError(
            f"{edges.where(row, 'weight')}: {weight[row]}; weights must be positive and finite "
            f"({bad.size} are not; leave an edge of weight 0 out)"
        )
    return np.stack(ends), weight


def _read_features(nodes: Table) -> tuple[Features | None, tuple[str, ...] | None]:
    """The features, and their names where they are columns."""
    names = [name for name in nodes.columns if name not in ("id", "label", "split")]
    path = nodes.path.with_name("features.npz")
    if path.exists():
        if names:
            raise InputError(
                f"{nodes.path}: has the feature column '{names[0]}' ({len(names)} such columns), "
                "and there is features.npz too; keep one of the two"
            )
        return _read_features_file(path, nodes.num_rows), None
    if not names:
        return None, None
    x = np.empty((nodes.num_rows, len(names)), dtype=np.float32)
    for number, name in enumerate(names):
        values = nodes.numbers(name)
        with np.errstate(over="ignore"):
            x[:, number] = values
        bad = np.flatnonzero(~np.isfinite(x[:, number]))
        if bad.size:
            row = int(bad[0])
            hint = "; fill in what is missing, or drop the column" if np.isnan(values[row]) else ""
            raise InputError(f"{nodes.where(row, name)}: {values[row]}; expected a finite float32 number{hint}")
    return x, tuple(names)


def _read_features_file(path: Path, n: int) -> Features:
    arrays: dict[str, Any] = dict(load_arrays(path))
    sparse = "format" in arrays
    if not sparse and len(arrays) != 1:
        raise InputError(
            f"{path}: holds the arrays {', '.join(arrays) or 'none'}; expected one, written by numpy.savez, "
            "or what scipy.sparse.save_npz writes"
        )
    try:
        x: Any = _sparse(arrays) if sparse else next(iter(arrays.values()))
        values = x.data if sparse else x
        if x.ndim != 2 or values.dtype.kind not in "biuf":
            raise ValueError(f"expected numbers in two dimensions, got {values.dtype} of shape {x.shape}")
        if x.shape[0] != n or x.shape[1] == 0:
            raise ValueError(f"shape {x.shape}; expected {n} rows, as in the nodes table, and some columns")
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
            if sparse:  # columns in order, each once, as a graph has them: products of matrices are saved otherwise
                x.sum_duplicates()
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise InputError(f"{path}: not a matrix of features: {error}") from error
    bad = np.argwhere(~np.isfinite(x.data if sparse else x))
    if bad.size:
        row, column = (index[bad[0, 0]] for index in x.tocoo().coords) if sparse else bad[0]
        raise InputError(f"{path}, row {row}, column {column}: not a finite float32 number")
    features: Features = x
    return features


def _sparse(arrays: dict[str, Any]) -> sp.csr_array:
    """What `scipy.sparse.save_npz` wrote, by hand: every index is checked before scipy relies on it."""
    kind = np.asarray(arrays["format"]).item()
    rows, columns = map(int, arrays["shape"])
    kind = kind.decode("ascii") if isinstance(kind, bytes) else kind
    if kind == "coo":
        return as_rows(sp.coo_array((arrays["data"], (arrays["row"], arrays["col"])), shape=(rows, columns)))
    if kind not in ("csr", "csc"):
        raise ValueError(f"sparse format {kind!r}; save it as csr, csc or coo")
    build = sp.csr_array if kind == "csr" else sp.csc_array
    matrix = build((arrays["data"], arrays["indices"], arrays["indptr"]), shape=(rows, columns))
    matrix.check_format(full_check=True)
    return sp.csr_array(matrix)


def _notes(nodes: Table, edges: Table, graph: Graph) -> tuple[str, ...]:
    notes = [f"{nodes.num_rows} nodes from {nodes.path.name}, {edges.num_rows} edges from {edges.path.name}"]
    notes += [f"edges taken as {'directed' if graph.directed else 'undirected'}", *graph.notes]
    notes += column_notes(nodes.columns, edges.columns, edges.path.name)
    bare = int((graph.y < 0).sum())
    notes += [f"{bare} nodes have no label"] if bare and graph.num_classes else []
    return (*notes, *label_notes(graph.class_names))


def column_notes(nodes: Iterable[str], edges: Iterable[str], edges_file: str) -> list[str]:
    """Notes on columns that are not used, and on features that are called nearly as what is no feature.

    >>> column_notes(["id", "Label"], ["source", "target", "Weight"], "edges.csv")[1]
    "columns of edges.csv not used: 'Weight' (weights are read from 'weight')"
    """
    nodes, edges = list(nodes), list(edges)
    near = [(name, meant(name, nodes, "nodes")) for name in nodes]
    notes = [f"the column '{name}' is taken for a feature, not for '{known}'" for name, known in near if known]
    unused = [name for name in edges if name not in ("source", "target", "weight")]
    if unused:
        near_weight = any(meant(name, edges, "edges") == "weight" for name in unused)
        listed = ", ".join(f"'{name}'" for name in unused)
        weights = " (weights are read from 'weight')" if near_weight else ""
        notes.append(f"columns of {edges_file} not used: {listed}{weights}")
    return notes


def _index_in(column: Column, values: Sequence[str] | Column) -> NDArray[np.int64]:
    """Where each string stands among `values`; −1 where it does not."""
    pa = arrow()
    if not isinstance(values, pa.ChunkedArray):
        values = pa.array(values, pa.large_string())
    found = pa.compute.index_in(column, value_set=values).fill_null(-1).to_numpy()
    return np.asarray(found, dtype=np.int64)


def _refuse(table: Table, column: str, bad: Column, why: str) -> None:
    rows = np.flatnonzero(bad.to_numpy())
    if rows.size:
        raise InputError(f"{table.where(int(rows[0]), column)}: {why}")


# -------------------------------------------------------------------- writing


def _nodes_to_write(graph: Graph, split: Split | None) -> dict[str, Sequence[Any]]:
    ids = [graph.id_of(node) for node in range(graph.num_nodes)]
    if "" in ids:
        raise InputError(f"graph '{graph.name}', node {ids.index('')}: its id is empty, which no table can hold")
    columns: dict[str, Sequence[Any]] = {"id": ids}
    half = next((name for name in (*ids, *graph.class_names) if not _is_text(name)), None)
    if half is not None:
        raise InputError(f"graph '{graph.name}': {half!r} holds half a surrogate pair, which no table can hold")
    if graph.num_classes:
        if "" in graph.class_names:
            raise InputError(f"graph '{graph.name}': a class has an empty name, which no table can hold")
        columns["label"] = [graph.class_names[label] if label >= 0 else "" for label in graph.y.tolist()]
    if split is None and len(graph.splits) > 1:
        raise InputError(
            f"graph '{graph.name}' comes with {len(graph.splits)} splits and a nodes table holds one; "
            "say which: split=graph.splits[0]"
        )
    if split is None and graph.splits:
        split = graph.splits[0]
    if split is not None:
        split.check(graph)
        parts = np.full(graph.num_nodes, "", dtype="<U5")
        for part in PARTS:
            parts[getattr(split, part)] = part
        columns["split"] = parts.tolist()
    return columns


def _is_text(name: str) -> bool:
    """Whether UTF-8 can hold a name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _edges_to_write(graph: Graph) -> dict[str, Sequence[Any]]:
    rows = np.repeat(np.arange(graph.num_nodes), graph.degree)
    chosen = np.ones(len(rows), dtype=bool) if graph.directed else rows <= graph.indices
    names = np.arange(graph.num_nodes).astype(str) if graph.node_ids is None else graph.node_ids
    columns = {"source": names[rows[chosen]].tolist(), "target": names[graph.indices[chosen]].tolist()}
    return columns if graph.edge_weight is None else columns | {"weight": graph.edge_weight[chosen].tolist()}


def _write_table(path: Path, columns: dict[str, Sequence[Any]]) -> None:
    with atomic_path(path) as temporary:
        if path.suffix == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(columns)
                writer.writerows(zip(*columns.values(), strict=True))
            return
        pa = arrow()
        kinds = {"weight": pa.float64()}
        arrays = {name: pa.array(cells, kinds.get(name, pa.string())) for name, cells in columns.items()}
        pa.parquet.write_table(pa.table(arrays), temporary, write_page_checksum=True)


def read_node_list(path: Path, graph: Graph) -> list[int]:
    """The nodes whose ids stand in a file, one a line."""
    try:
        # Not splitlines, which also ends lines at characters that an id may have: form feeds, U+0085, U+2028 …
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text, one node id a line ({error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found += [graph.index_of(line)] if line else []
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
    return found
