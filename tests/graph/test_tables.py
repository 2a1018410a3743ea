"""A user's own folder: what is read, what is refused and where it says the fault is, and that it comes back."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.external import convert
from tokenphormer.graph.tables import read_folder, write_folder

NODES = "id,label,split,size,old\na,cat,train,1,true\nb,dog,val,2.5,False\nc,cat,test,-3e2,TRUE\nd,,, 4 ,false\n"
EDGES = "source,target\na,b\nb,c\nc,d\n"


def folder_of(tmp_path: Path, nodes: str | bytes | None = NODES, edges: str | bytes | None = EDGES) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    for name, content in (("nodes.csv", nodes), ("edges.csv", edges)):
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def dense(graph: Graph) -> NDArray[np.float32]:
    x: Any = graph.x
    return np.asarray(x if isinstance(x, np.ndarray) else x.toarray())


def refused(folder: Path, **options: bool) -> str:
    with pytest.raises(InputError) as caught:
        read_folder(folder, **options)
    return str(caught.value)


# ---------------------------------------------------------------- what is read


def test_everything_in_its_place(tmp_path: Path) -> None:
    graph = read_folder(folder_of(tmp_path))
    assert graph.node_ids is not None
    assert graph.node_ids.tolist() == ["a", "b", "c", "d"]
    assert graph.class_names == ("cat", "dog")
    assert graph.y.tolist() == [0, 1, 0, -1]
    assert np.array_equal(dense(graph), np.array([[1, 1], [2.5, 0], [-300, 1], [4, 0]], np.float32))
    assert graph.feature_names == ("size", "old")
    (split,) = graph.splits
    assert (split.train.tolist(), split.val.tolist(), split.test.tolist(), split.name) == ([0], [1], [2], "given")
    assert graph.neighbours(1).tolist() == [0, 2]
    assert (graph.name, graph.directed, graph.edge_weight) == ("mine", False, None)
    assert not any(str(tmp_path) in note for note in graph.notes)


def test_names_of_features_are_no_part_of_the_content(tmp_path: Path) -> None:
    graph = read_folder(folder_of(tmp_path))
    other = read_folder(folder_of(tmp_path, NODES.replace("size,old", "height,new")))
    assert other.feature_names == ("height", "new")
    assert other.fingerprint == graph.fingerprint == dataclasses.replace(graph, feature_names=None).fingerprint
    assert dataclasses.replace(graph, x=np.ones((4, 3), np.float32)).feature_names is None  # they are not of these
    graph.save(tmp_path / "g.npz")
    assert Graph.load(tmp_path / "g.npz").feature_names is None
    bare = folder_of(tmp_path, "id\na\nb\nc\nd\n")
    assert read_folder(bare).feature_names is None
    np.savez(bare / "features.npz", x=np.ones((4, 2)))
    assert read_folder(bare).feature_names is None


def test_notes_say_what_was_done(tmp_path: Path) -> None:
    edges = "source,target,since\na,b,1999\na,b,2000\na,a,2001\nb,a,2002\nc,d,2003\n"
    assert read_folder(folder_of(tmp_path, edges=edges)).notes == (
        "4 nodes from nodes.csv, 5 edges from edges.csv",
        "edges taken as undirected",
        "dropped 1 self-loops",
        "merged 1 repeated edges",
        "1 edges were listed from one end only",
        "columns of edges.csv not used: 'since'",
        "1 nodes have no label",
    )
    graph = read_folder(folder_of(tmp_path, edges=edges), directed=True, self_loops=True)
    assert graph.notes[1:3] == ("edges taken as directed", "merged 1 repeated edges")
    assert graph.num_edges == 4


def test_weights(tmp_path: Path) -> None:
    graph = read_folder(folder_of(tmp_path, edges="weight,source,target\n0.5,a,b\n2,b,a\n3,c,d\n"))
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [1.25, 1.25, 3, 3]


def test_names_are_strings_as_they_stand(tmp_path: Path) -> None:
    ids = [
        "007",
        "7",
        "7.0",
        "NA",
        "null",
        "nan",
        "None",
        " x",
        "x ",
        "true",
        "Zürich",
        'a "b", c',
        "two\nlines",
        "1e3",
    ]
    rows = ['"' + name.replace('"', '""') + '"' for name in ids]
    nodes = "id,label\n" + "".join(f"{row},{label}\n" for row, label in zip(rows, ["NA", "null"] * 7, strict=True))
    edges = "source,target\n" + "".join(f"{row},007\n" for row in rows)
    graph = read_folder(folder_of(tmp_path, nodes, edges))
    assert graph.node_ids is not None
    assert graph.node_ids.tolist() == ids
    assert graph.class_names == ("NA", "null")
    assert graph.degree.tolist() == [13] + 13 * [1]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["p:a", "p:a ", "q"], ("the labels 'p:a' and 'p:a ' differ only in blanks and are separate classes",)),
        (
            ["a", " a", "b", "b ", "\tb"],
            ("the labels ' a' and 'a' differ only in blanks and are separate classes (3 such pairs)",),
        ),
        (["a", "NaN", ""], ("the label 'NaN' is a class of its own; leave the cell empty where a node has no label",)),
        (
            ["a", "N/A", "null", " "],
            ("the labels ' ', 'N/A', 'null' are classes of their own; leave the cell empty where a node has no label",),
        ),
        (["NA", "null", "NA"], ()),  # nothing else is a label here, so these are meant
        (["a", "Na", "nano", "b c"], ()),
        (["a ", "b ", ""], ()),  # nothing would be merged
    ],
)
def test_labels_that_look_like_slips_are_kept_and_noted(
    tmp_path: Path, labels: list[str], expected: tuple[str, ...]
) -> None:
    nodes = "id,label\n" + "".join(f'{number},"{label}"\n' for number, label in enumerate(labels))
    folder = folder_of(tmp_path, nodes, "source,target\n")
    graph = read_folder(folder)
    assert [graph.class_names[label] if label >= 0 else "" for label in graph.y] == labels
    assert tuple(note for note in graph.notes if "label" in note and "have no label" not in note) == expected
    assert convert(folder, tmp_path / "disk").notes == graph.notes


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "a"], ("10", "9", "a")),
        (["1.0", "10", "2"], ("1.0", "10", "2")),
        (["b", "B", "ä"], ("B", "b", "ä")),
        (["", "", ""], ()),
    ],
)
def test_classes_are_sorted(tmp_path: Path, labels: list[str], expected: tuple[str, ...]) -> None:
    nodes = "id,label\n" + "".join(f"{number},{label}\n" for number, label in enumerate(labels))
    graph = read_folder(folder_of(tmp_path, nodes, "source,target\n"))
    assert graph.class_names == expected
    assert [expected[label] if label >= 0 else "" for label in graph.y] == labels


@pytest.mark.parametrize(
    "nodes",
    [
        "\ufeffid,label\na,x\nb,y\n",
        "id,label\r\na,x\r\nb,y\r\n",
        "id,label\ra,x\rb,y",
        "\n\nid,label\n\na,x\n\n\nb,y",
        "id, label\na,x\nb,y\n",
        '"id","label"\n"a","x"\n"b","y"\n',
    ],
    ids=["byte order mark", "crlf", "cr", "blank lines", "space in header", "quoted"],
)
def test_kinds_of_csv(tmp_path: Path, nodes: str) -> None:
    graph = read_folder(folder_of(tmp_path, nodes, "source,target\na,b\n"))
    assert (graph.num_nodes, graph.num_edges, graph.class_names) == (2, 1, ("x", "y"))


def test_only_ids_and_no_edges(tmp_path: Path) -> None:
    graph = read_folder(folder_of(tmp_path, "id\na\nb\n", "source,target\n"))
    assert (graph.num_nodes, graph.num_edges, graph.x, graph.num_classes, graph.splits) == (2, 0, None, 0, ())


def test_a_split_column_without_entries_is_no_split(tmp_path: Path) -> None:
    assert read_folder(folder_of(tmp_path, "id,split\na,\nb,\n", "source,target\n")).splits == ()


# ---------------------------------------------------------------- what is refused, and where


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("", "nodes.csv: is empty"),
        ("\n \n", "nodes.csv: is empty"),
        ("id\n", "nodes.csv: has no rows"),
        ("name,label\na,x\n", "lacks the column 'id'; its columns are 'name', 'label'"),
        ("id;label\na;x\n", "'id;label'; separate the columns with commas"),
        (
            "id;label;x;y\na;p;1,5;2,0\n",
            "nodes.csv, line 2: 3 columns, but the first line has 1, 'id;label;x;y'; separate the columns with commas, "
            "and write decimals with points",
        ),
        ("id\tx\na\t1,5\n", "line 2: 2 columns, but the first line has 1, 'id\\tx'; separate the columns with commas"),
        (
            'id;x\n"a";1\n',
            "in the row after line 1: not a readable CSV (',' expected after '\"'); separate the columns",
        ),
        ('"id";"x"\n"a";1\n', "in the row after line 0: not a readable CSV (',' expected after '\"'); separate the"),
        ('"id"x,";"\na,b\n', "in the row after line 0: not a readable CSV (',' expected after '\"')\n"),
        ("id,label\na,x\nb\n", "nodes.csv, line 3: 1 columns, but the first line has 2"),
        ("id,label\n\n\na,x,y\n", "nodes.csv, line 4: 3 columns, but the first line has 2"),
        ('id,label\n"a\nb",x\nc\n', "nodes.csv, line 4: 1 columns"),
        ('id,label\na,"x\nb,y\nc,z\n', "nodes.csv, in the row after line 1: not a readable CSV (unexpected end"),
        ('id,label\na,x\nb,"y"z\n', "nodes.csv, in the row after line 2: not a readable CSV"),
        (b"id,label\na,x\n\xff,y\n", "nodes.csv, line 3: not UTF-8 text"),
        ("id,label\n".encode("utf-16"), "nodes.csv, line 1: not UTF-8 text"),
        ("id,id\na,b\n", "more than one column 'id'"),
        (",id\n0,a\n", "column 1 has no name, which looks like a saved pandas index"),
        ("id,Unnamed: 0\na,0\n", "column 2 is called 'Unnamed: 0', which looks like"),
        ("id,label\na,x\n\nb,y\na,z\n", "nodes.csv, line 5, column 'id': 'a' is a node already in line 2"),
        ("id,label\na,x\n,y\n", "nodes.csv, line 3, column 'id': empty"),
        ("id\na\0\n", "nodes.csv, line 2, column 'id': has a NUL"),
        (f"id\n{'a' * 1001}\n", "line 2, column 'id': longer than the 1000 characters"),
        ("id,split\na,train\n", "nodes.csv, line 2: split is 'train', but the node has no label"),
        ("id,label,split\na,x,train\nb,,val\n", "nodes.csv, line 3: split is 'val', but the node has no label"),
        ("id,label,split\na,x,Train\n", "line 2, column 'split': 'Train'; expected train, val, test or nothing"),
        ("id,size\na,1\nb,red\n", "nodes.csv, line 3, column 'size': expected a number, found 'red'"),
        ("id,size\na,1\nb,\n", "nodes.csv, line 3, column 'size': expected a number, found an empty cell"),
        ("id,size\na,1_0\n", "expected a number, found '1_0'"),
        ("id,size\na,1\nb,nan\n", "nodes.csv, line 3, column 'size': nan; expected a finite"),
        ("id,size\na,-inf\n", "column 'size': -inf; expected a finite"),
        ("id,size\na,1e300\n", "column 'size': 1e+300; expected a finite float32"),
        ("id,colour\na,red\n", "column 'colour': expected a number, found 'red'; mend the cell, drop the column, or"),
        (None, "has no nodes table; expected edges.csv or edges.parquet (columns source, target, optional weight)"),
    ],
)
def test_bad_nodes(tmp_path: Path, nodes: str | bytes | None, message: str) -> None:
    assert message in refused(folder_of(tmp_path, nodes, "source,target\n")) + "\n"


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("", "edges.csv: is empty"),
        ("a,b\nb,c\n", "lacks the column 'source'; its columns are 'a', 'b'; name the columns in its first line"),
        ("source,to\na,b\n", "lacks the column 'target'"),
        ("source,target\na,b\n\nb,z\nq,r\n", "edges.csv, line 5, column 'source': 'q' is no id of nodes.csv"),
        ("source,target\na,b\n\nb,z\nc,r\n", "line 4, column 'target': 'z' is no id of nodes.csv (2 such cells"),
        ("source,target\na, b\n", "line 2, column 'target': ' b' is no id"),
        ("source,target\na,\n", "line 2, column 'target': '' is no id"),
        ("source,target,weight\na,b,1\nb,c,0\n", "edges.csv, line 3, column 'weight': 0.0; weights must be positive"),
        ("source,target,weight\na,b,-1\n", "line 2, column 'weight': -1.0"),
        ("source,target,weight\na,b,nan\n", "line 2, column 'weight': nan"),
        ("source,target,weight\na,b,heavy\n", "line 2, column 'weight': expected a number, found 'heavy'"),
        ("source,target,weight\na,b,\n", "line 2, column 'weight': expected a number, found an empty cell"),
        ("source,target,weight\na,b,1e308\na,b,1e308\n", "mine: edge_weight: the weights of an edge"),
        ("source,target\na,b,c\n", "edges.csv, line 2: 3 columns"),
        (None, "has no edges table"),
    ],
)
def test_bad_edges(tmp_path: Path, edges: str | None, message: str) -> None:
    assert message in refused(folder_of(tmp_path, edges=edges))


def test_no_folder(tmp_path: Path) -> None:
    assert "no such folder; expected edges.csv or" in refused(tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(tmp_path / "file")


@pytest.mark.skipif(os.name != "posix", reason="reads from a named pipe")
@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (b"id,size\na,1\nb,red\n", "nodes.csv, data row 2, column 'size': expected a number, found 'red'"),
        (b"id,label\na,x\n\xff,y\n", "nodes.csv, line 3: not UTF-8 text"),
        (b'"id";"x"\n"a";1\n', "not a readable CSV (',' expected after '\"'); separate the columns with commas"),
    ],
)
def test_a_bad_table_through_a_pipe(tmp_path: Path, nodes: bytes, message: str) -> None:
    folder = folder_of(tmp_path, nodes=None, edges="source,target\n")
    os.mkfifo(folder / "nodes.csv")
    said: list[str] = []
    write = Thread(target=(folder / "nodes.csv").write_bytes, args=(nodes,), daemon=True)
    read = Thread(target=lambda: said.append(refused(folder)), daemon=True)  # which must not wait for more
    write.start()
    read.start()
    read.join(timeout=30)
    assert message in "".join(said)


def test_both_kinds_of_table_are_ambiguous(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    pd.DataFrame({"source": ["a"], "target": ["b"]}).to_parquet(folder / "edges.parquet")
    assert "has both edges.csv and edges.parquet" in refused(folder)


# ---------------------------------------------------------------- Parquet


def parquet_folder(tmp_path: Path, nodes: dict[str, Any], edges: dict[str, Any] | None = None) -> Path:
    folder = tmp_path / "columns=1"  # a name that readers of partitioned data take for a column
    folder.mkdir()
    pd.DataFrame(nodes).to_parquet(folder / "nodes.parquet")
    pd.DataFrame(edges or {"source": nodes["id"][:1], "target": nodes["id"][1:2]}).to_parquet(folder / "edges.parquet")
    return folder


def test_parquet(tmp_path: Path) -> None:
    nodes = {
        "id": [10, 2, 7],
        "label": pd.Series([3, None, 20], dtype="Int64"),
        "split": pd.Series(["train", None, "test"], dtype="category"),
        "flag": [True, False, True],
        "small": np.array([1, 2, 3], dtype=np.uint8),
        "wide": [2**60, 0, 1],
    }
    edges = {"source": [10, 7], "target": [2, 10], "weight": np.array([0.5, 2], np.float32)}
    graph = read_folder(parquet_folder(tmp_path, nodes, edges))
    assert graph.node_ids is not None
    assert graph.edge_weight is not None
    assert (graph.node_ids.tolist(), graph.class_names, graph.y.tolist()) == (["10", "2", "7"], ("3", "20"), [0, -1, 1])
    assert np.array_equal(dense(graph), np.array([[1, 1, 2**60], [0, 2, 0], [1, 3, 1]], np.float32))
    assert graph.splits[0].sizes == (1, 0, 1)
    assert graph.edge_weight.tolist() == [0.5, 2, 0.5, 2]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"id": [1.0, 2.0]}, "nodes.parquet, column 'id': expected strings or integers, got double"),
        ({"id": [True, False]}, "expected strings or integers, got bool"),
        ({"id": ["a", None]}, "nodes.parquet, row 1 (counted from 0), column 'id': empty"),
        ({"id": ["a", "a"]}, "row 1 (counted from 0), column 'id': 'a' is a node already in row 0"),
        ({"id": ["a", "b"], "label": [0.0, None]}, "column 'label': expected strings or integers, got double"),
        ({"id": ["a", "b"], "size": [0.0, None]}, "row 1 (counted from 0), column 'size': nan; expected a finite"),
        ({"id": ["a", "b"], "colour": ["red", "1"]}, "'colour': expected numbers, got"),
        ({"id": ["a", "b"], "when": pd.to_datetime(["2020", "2021"])}, "'when': expected numbers, got timestamp"),
        ({"id": ["a", "b"], "__index_level_0__": [0, 1]}, "looks like a saved pandas index"),
    ],
)
def test_bad_parquet(tmp_path: Path, nodes: dict[str, Any], message: str) -> None:
    assert message in refused(parquet_folder(tmp_path, nodes))


def test_damaged_parquet(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_edges(rng.integers(0, 50, (2, 80)), num_nodes=50, y=rng.integers(0, 3, 50))
    write_folder(graph, tmp_path / "g", table="parquet")
    intact = read_folder(tmp_path / "g")
    for name in ("nodes.parquet", "edges.parquet"):
        content = (tmp_path / "g" / name).read_bytes()
        for length in range(0, len(content), 97):
            (tmp_path / "g" / name).write_bytes(content[:length])
            assert name in refused(tmp_path / "g")
        for position in rng.integers(0, 8 * len(content), 150):
            flipped = bytearray(content)
            flipped[position // 8] ^= 1 << (position % 8)
            (tmp_path / "g" / name).write_bytes(flipped)
            try:
                read_folder(tmp_path / "g")
            except InputError:
                continue
        (tmp_path / "g" / name).write_bytes(content)
    assert read_folder(tmp_path / "g").fingerprint == intact.fingerprint


# ---------------------------------------------------------------- features.npz


DENSE = np.array([[1, 0, 0], [0, 0, 2], [0, 0, 0], [0, 3, 0]], np.float32)


def feature_folder(tmp_path: Path) -> Path:
    return folder_of(tmp_path, "id\na\nb\nc\nd\n")


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
def test_sparse_features(tmp_path: Path, kind: Any) -> None:
    folder = feature_folder(tmp_path)
    matrix: Any = sp.csr_array(DENSE.astype(np.float64))
    sp.save_npz(folder / "features.npz", matrix.asformat(kind))
    graph = read_folder(folder)
    assert sp.issparse(graph.x)
    assert np.array_equal(dense(graph), DENSE)


def test_sparse_features_of_few_bits_add_up(tmp_path: Path) -> None:
    folder = feature_folder(tmp_path)
    counts = sp.coo_array((np.ones(256, np.uint8), (np.zeros(256, int), np.ones(256, int))), shape=(4, 3))
    sp.save_npz(folder / "features.npz", counts)
    assert dense(read_folder(folder)).tolist() == [[0, 256, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", [np.float64, np.int8, bool])
def test_dense_features(tmp_path: Path, dtype: Any) -> None:
    folder = feature_folder(tmp_path)
    np.savez(folder / "features.npz", DENSE.astype(dtype))
    assert np.array_equal(dense(read_folder(folder)), DENSE.astype(dtype).astype(np.float32))


CSR: dict[str, Any] = {
    "format": np.array(b"csr"),
    "shape": np.array([4, 3]),
    "data": np.array([1.0, 2.0]),
    "indices": np.array([0, 2]),
    "indptr": np.array([0, 1, 2, 2, 2]),
}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": DENSE[:3]}, "shape (3, 3); expected 4 rows"),
        ({"x": DENSE[:, :0]}, "shape (4, 0)"),
        ({"x": DENSE[:, 0]}, "in two dimensions"),
        ({"x": DENSE.astype(str)}, "expected numbers"),
        ({"x": DENSE.astype(complex)}, "expected numbers"),
        ({"x": np.where(DENSE == 2, np.nan, DENSE)}, "features.npz, row 1, column 2: not a finite"),
        ({"x": np.where(DENSE == 3, 1e300, DENSE.astype(float))}, "features.npz, row 3, column 1: not a finite"),
        ({"x": DENSE, "y": DENSE}, "holds the arrays x, y; expected one"),
        ({}, "holds the arrays none"),
        (CSR | {"data": np.array([1.0, np.inf])}, "features.npz, row 1, column 2: not a finite"),
        (CSR | {"indices": np.array([0, 3])}, "not a matrix of features"),
        (CSR | {"indices": np.array([0, -1])}, "not a matrix of features"),
        (CSR | {"indptr": np.array([0, 2, 1, 2, 2])}, "not a matrix of features"),
        (CSR | {"indptr": np.array([0, 1, 2, 2, 9])}, "not a matrix of features"),
        (CSR | {"shape": np.array([4])}, "not a matrix of features"),
        (CSR | {"shape": np.array([2**62, 2**62])}, "not a matrix of features"),
        (CSR | {"format": np.array(b"dia")}, "save it as csr, csc or coo"),
        (CSR | {"format": np.array(b"coo")}, "not a matrix of features"),
        (CSR | {"format": np.array([1, 2])}, "not a matrix of features"),
        (CSR | {"data": np.array(["a", "b"])}, "not a matrix of features"),
    ],
)
def test_bad_features_file(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    folder = feature_folder(tmp_path)
    np.savez(folder / "features.npz", **arrays)
    assert message in refused(folder)


def test_pickled_features_are_refused(tmp_path: Path) -> None:
    folder = feature_folder(tmp_path)
    np.savez(folder / "features.npz", x=np.array([{}], dtype=object))
    assert "pickled" in refused(folder)


def test_features_come_from_one_place(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    np.savez(folder / "features.npz", DENSE)
    assert "has the feature column 'size' (2 such columns), and there is features.npz too" in refused(folder)


# ---------------------------------------------------------------- and back


def rich_graph(**changes: Any) -> Graph:
    given: dict[str, Any] = {
        "edge_index": [[0, 1, 2, 3, 1], [1, 2, 3, 0, 1]],
        "num_nodes": 5,
        "x": DENSE[[0, 1, 2, 3, 0]],
        "y": [0, 1, 0, 1, -1],
        "edge_weight": [0.1, 1 / 3, 1e-300, 1e300, 2],
        "self_loops": True,
        "node_ids": ["plain", "Zürich", "two\nlines\r\n", 'a "quoted", id', " 007"],
        "class_names": ("NA", "yes, or no"),
        "splits": (Split([0, 1], [2], [3]),),
    }
    return Graph.from_edges(**(given | changes))


@pytest.mark.parametrize("table", ["csv", "parquet"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"directed": True},
        {"x": sp.csr_array(DENSE[[0, 1, 2, 3, 0]])},
        {"x": None, "y": None, "class_names": None, "splits": (), "edge_weight": None},
        {"edge_index": [[], []], "edge_weight": None},
    ],
    ids=["undirected", "directed", "sparse", "bare", "no edges"],
)
def test_written_and_read_back(tmp_path: Path, table: Any, changes: dict[str, Any]) -> None:
    graph = rich_graph(**changes)
    write_folder(graph, tmp_path / "out", table=table)
    back = read_folder(tmp_path / "out", directed=graph.directed, self_loops=True)
    assert back.fingerprint == graph.fingerprint
    assert [split.hash for split in back.splits] == [split.hash for split in graph.splits]


def test_undirected_edges_are_written_once(tmp_path: Path) -> None:
    write_folder(Graph.from_edges([[0, 1, 1], [1, 0, 2]]), tmp_path / "out")
    assert (tmp_path / "out" / "edges.csv").read_text().split() == ["source,target", "0,1", "1,2"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (tmp_path / "file").write_text("mine")
    for target in (folder, tmp_path / "file"):
        with pytest.raises(InputError, match="is there already and not an empty folder"):
            write_folder(rich_graph(), target)
    assert (folder / "nodes.csv").read_text() == NODES
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_folder_cannot_hold(tmp_path: Path) -> None:
    splits = (Split([0], [1], [2]), Split([1], [2], [0]))
    graph = rich_graph(splits=splits)
    with pytest.raises(InputError, match="comes with 2 splits"):
        write_folder(graph, tmp_path / "out")
    write_folder(graph, tmp_path / "out", split=splits[1])
    assert read_folder(tmp_path / "out").splits[0].hash == splits[1].hash
    for name, message in (("", "empty"), ("\ud800", "half a surrogate pair")):
        for changes in ({"class_names": (name, "b")}, {"node_ids": [name, *"abcd"]}):
            with pytest.raises(InputError, match=message):
                write_folder(rich_graph(**changes), tmp_path / "other")
    with pytest.raises(InputError, match="expected 'csv' or 'parquet'"):
        write_folder(rich_graph(), tmp_path / "other", table="json")  # type: ignore[arg-type]  # what is tested
    assert not (tmp_path / "other").exists()


def test_a_large_graph_takes_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n, m = 100_000, 1_000_000
    ids = np.char.add("node-", rng.permutation(n).astype(str))
    folder = folder_of(tmp_path, None, None)
    pd.DataFrame({"id": ids, "label": rng.integers(0, 9, n)}).to_csv(folder / "nodes.csv", index=False)
    ends = rng.integers(0, n, (2, m))
    pd.DataFrame({"source": ids[ends[0]], "target": ids[ends[1]]}).to_csv(folder / "edges.csv", index=False)
    start = time.perf_counter()
    graph = read_folder(folder)
    assert time.perf_counter() - start < 10  # about one on two cores; a loop over the rows takes many
    assert graph.num_nodes == n


# ---------------------------------------------------------------- any bytes at all


CELLS = st.sampled_from(
    [
        "a",
        "b",
        "1",
        "-1.5",
        "",
        '"',
        '""',
        '"a,b"',
        "\n",
        "train",
        "nan",
        "\0",
        "ü",
        "\u2028",
        "\r",
        " ",
        "1e999",
        "x" * 70,
    ]
)
HEADERS = st.sampled_from(["id", "label", "split", "source", "target", "weight", "f", "", " ", '"', "id;label", "\0"])
ROWS = st.lists(st.lists(CELLS, max_size=4), max_size=5)
TABLES = st.builds(
    lambda header, rows, end: end.join(",".join(row) for row in [header, *rows]).encode(),
    st.one_of(st.lists(HEADERS, max_size=4), st.just(["id", "label"]), st.just(["source", "target"])),
    ROWS,
    st.sampled_from(["\n", "\r\n", "\r"]),
)
CONTENT = st.one_of(TABLES, st.binary(max_size=60), st.builds(lambda a, b: a + b, TABLES, st.binary(max_size=5)))
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_or_refuse(folder: Path) -> None:
    try:
        graph = read_folder(folder)
    except InputError as error:
        says_where = "mine" in str(error)
    else:
        assert graph.node_ids is not None
        assert len(set(graph.node_ids.tolist())) == graph.num_nodes >= 1
        return
    assert says_where


@FUZZ
@example(b"id\n\x00\n")
@example(b'id,label\na,"')
@example(b"id\r\r\na\r")
@example(b"\xef\xbb\xbf\xef\xbb\xbfid\na\n")
@given(CONTENT)
def test_any_nodes_table_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    read_or_refuse(folder_of(tmp_path, content, "source,target\n"))


@FUZZ
@given(CONTENT)
def test_any_edges_table_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    read_or_refuse(folder_of(tmp_path, "id\na\nb\n1\n", content))


@FUZZ
@given(st.data())
def test_any_features_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = feature_folder(tmp_path)
    path = folder / "features.npz"
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(st.binary(max_size=100)))
    else:
        np.savez(path, **(CSR if data.draw(st.booleans()) else {"x": DENSE}))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, 2 * len(content)))])
    read_or_refuse(folder)
