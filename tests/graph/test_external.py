"""Tables larger than memory: what comes out is what `read_folder` makes of them, to the bit, or the same refusal."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.graph.test_disk import same
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph, blocks, external, load_graph, read_folder
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import GraphWriter, new_folder
from tokenphormer.graph.edge_sort import BYTES_A_WEIGHTED_ENTRY, BYTES_AN_ENTRY, EdgeSorter
from tokenphormer.graph.external import convert, parse_memory
from tokenphormer.graph.feature_file import _plain_member

NODES = "id,label,split,size,old\na,cat,train,1,true\nb,dog,val,2.5,False\nc,cat,test,-3e2,TRUE\nd,,, 4 ,false\n"
EDGES = "source,target\na,b\nb,c\nc,d\n"
Table = dict[str, Any]


def folder_of(tmp_path: Path, nodes: str | bytes | None = NODES, edges: str | bytes | None = EDGES) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir(exist_ok=True)
    for name, content in (("nodes.csv", nodes), ("edges.csv", edges)):
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def converted(folder: Path, out: str = "disk", **options: Any) -> Graph:
    graph = convert(folder, folder.parent / out, **options)
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []
    return open_graph(folder.parent / out, verify=True) if graph.stored else graph


def refused(folder: Path, **options: Any) -> str:
    before = sorted(folder.parent.iterdir())
    with pytest.raises(InputError) as caught:
        convert(folder, folder.parent / "disk", **options)
    assert sorted(folder.parent.iterdir()) == before, "something is left behind"
    return str(caught.value)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are read a few rows at a time."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 700)
    monkeypatch.setattr(blocks, "max", min, raising=False)  # so few rows of a Parquet file, too


# ---------------------------------------------------------------- the same graph


def tables(seed: int, n: int = 200, m: int = 900) -> tuple[Table, Table]:
    """Loops, repetitions, edges from both ends; ids and names of the kind that breaks tables."""
    rng = np.random.default_rng(seed)
    ids = [f'n,"{node}" ü{"𝔘" * (node % 3)}' if node % 2 else str(node) for node in rng.permutation(n)]
    label = rng.choice(["10", "9", "b, c", ""], n)
    part = np.where(label == "", "", rng.choice(["train", "val", "test", ""], n))
    nodes = {"id": ids, "label": label, "split": part}
    nodes |= {"height": rng.normal(size=n), "old": rng.random(n) < 0.5, "many": rng.integers(-9, 9, n)}
    ends = rng.integers(0, n, (2, m)) ** 2 // n  # some nodes have many edges, some none
    edges = {"source": [ids[v] for v in ends[0]], "target": [ids[v] for v in ends[1]], "since": rng.integers(0, 9, m)}
    return nodes, edges


def save(folder: Path, nodes: Table, edges: Table, kind: str) -> Path:
    folder.mkdir(parents=True)
    for stem, table in (("nodes", nodes), ("edges", edges)):
        frame = pd.DataFrame(table)
        if kind == "csv":
            frame.to_csv(folder / f"{stem}.csv", index=False)
        else:
            frame.to_parquet(folder / f"{stem}.parquet", index=False, row_group_size=100)
    return folder


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_equals_read_folder(tmp_path: Path, kind: str, directed: bool, weighted: bool) -> None:
    nodes, edges = tables(seed=directed + 2 * weighted)
    if weighted:
        edges["weight"] = np.exp(np.random.default_rng(5).normal(size=len(edges["source"])))
    folder = save(tmp_path / "mine", nodes, edges, kind)
    assert same(read_folder(folder, directed=directed), converted(folder, directed=directed))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("form", ["columns", "nothing", "dense", "doubles", "fortran", "csr", "csc", "coo", "zipped"])
def test_features_from_anywhere(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenphormer.graph.feature_file.PIECE", 100)
    nodes, edges = tables(seed=1)
    if form != "columns":
        nodes = {name: nodes[name] for name in ("id", "label")}
    folder = save(tmp_path / "mine", nodes, edges, "csv")
    x: Any = np.random.default_rng(0).normal(size=(200, 7)).astype(np.float32)
    if form in ("csr", "csc", "coo"):
        x[x < 1] = 0
        sp.save_npz(folder / "features.npz", sp.csr_array(x).asformat(form))
    elif form in ("dense", "doubles", "fortran"):
        make: Callable[[Any], Any] = {"dense": np.array, "doubles": np.float64, "fortran": np.asfortranarray}[form]
        np.savez(folder / "features.npz", x=make(x))
    elif form == "zipped":
        np.savez_compressed(folder / "features.npz", x)
    graph = converted(folder)
    assert same(read_folder(folder), graph)
    assert graph.num_features == {"columns": 3, "nothing": 0}.get(form, 7)


def test_sparse_features_in_any_order_are_the_same_graph(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "id\na\nb\n", "source,target\na,b\n")
    parts = np.array([1, 2, 4, 8], np.float32), np.array([2, 0, 1, 1]), np.array([0, 2, 4])
    sp.save_npz(folder / "features.npz", sp.csr_array(parts, shape=(2, 3)))
    graph = converted(folder)
    assert same(read_folder(folder), graph)
    assert sp.csr_array(graph.x).toarray().tolist() == [[2, 0, 1], [0, 12, 0]]


def test_strings_of_any_parquet_type(tmp_path: Path) -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary()):
        folder = tmp_path / str(kind)
        folder.mkdir()
        nodes = {"id": ["a", "longer than twelve"], "label": ["x", None]}
        edges = {"source": ["a"], "target": ["longer than twelve"]}
        for name, table in (("nodes", nodes), ("edges", edges)):
            columns = {column: pa.array(cells, pa.string()).cast(kind) for column, cells in table.items()}
            pa.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
        graph = read_folder(folder)
        assert (graph.id_of(1), graph.class_names, graph.num_edges) == ("longer than twelve", ("x",), 1)
        assert same(graph, converted(folder, f"{kind} on disk"))


def test_numbers_as_ids(tmp_path: Path) -> None:
    nodes = {"id": [10, 2, 7], "label": pd.Series([3, None, 20], dtype="Int64")}
    nodes["split"] = pd.Series(["train", None, "test"], dtype="category")
    folder = save(tmp_path / "mine", nodes, {"source": [10, 7], "target": [2, 10]}, "parquet")
    graph = converted(folder)
    assert same(read_folder(folder), graph)
    assert graph.index_of("7") == 2


@pytest.mark.parametrize(
    ("nodes", "edges"),
    [
        (NODES, EDGES),
        (NODES.replace("\n", "\r\n"), "\ufeff" + EDGES),
        ('\ufeff"id"\n"a"\n"b"\n"c"\n"d"\n', '"source","target"\n"a","b"\n'),
        ("id\na\nb\n", "source,target\n"),
        ("id\na\n", "source,target\na,a\n"),
        ("id,split\na,\nb,\n", "source,target\nb,a\na,b\n"),
        ("id,label\na,\nb,\n", "target,source\nb,a\n"),
        ('id\n"a ""b"""\n"c\nd"\n', 'source,target\n"a ""b""","c\nd"\n'),
        (" id , size \na,1\n\nb,2\n", "source,target\n\na,b\n\n"),
        ('id\n5" disk\nb\n', 'source,target\n5" disk,b\n'),
    ],
)
def test_small_and_odd_tables(tmp_path: Path, nodes: str, edges: str) -> None:
    folder = folder_of(tmp_path, nodes, edges)
    assert same(read_folder(folder), converted(folder))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.text('ab01,"\n\r é', max_size=40), seed=st.integers(0, 10**9))
def test_any_table_is_read_or_refused_alike(tmp_path: Path, content: str, seed: int) -> None:
    parent = tmp_path / str(seed)
    parent.mkdir(exist_ok=True)
    text = "id,label\n" + content
    folder = folder_of(parent, text, "source,target\n")
    try:
        expected, words = read_folder(folder), ""
    except InputError as error:
        expected, words = None, str(error)
    if expected is None:
        assert refused(folder) == words
    else:
        assert same(expected, converted(folder))
    for path in sorted(parent.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


def test_other_sources(tmp_path: Path) -> None:
    debian = load_graph("debian")
    first = convert("debian", tmp_path / "a")
    assert same(debian, first)
    assert same(debian, convert(tmp_path / "a", tmp_path / "b"))
    debian.save(tmp_path / "c.npz")
    assert same(debian, convert(tmp_path / "c.npz", tmp_path / "c"))


# ---------------------------------------------------------------- sorting


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 5)), max_size=60),
    directed=st.booleans(),
    weighted=st.booleans(),
    entries=st.integers(1, 40),
    piece=st.integers(1, 30),
)
def test_sorting_in_little_memory(
    tmp_path: Path, pairs: list[Any], directed: bool, weighted: bool, entries: int, piece: int
) -> None:
    array = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    weight = array[:, 2] / 3 if weighted else None
    graph = Graph.from_edges(array[:, :2].T, num_nodes=7, edge_weight=weight, directed=directed)
    each = BYTES_A_WEIGHTED_ENTRY if weighted else BYTES_AN_ENTRY
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    with new_folder(out) as folder, GraphWriter(folder) as writer:
        (scratch := folder / "scratch").mkdir()
        with EdgeSorter(scratch, 7, directed=directed, weighted=weighted, memory=entries * each) as sorter:
            for first in range(0, len(array), piece):
                some = array[first : first + piece]
                sorter.add(some[:, 0], some[:, 1], None if weight is None else weight[first : first + piece])
            notes = sorter.write(writer)
        scratch.rmdir()
        writer.write("y", np.full(7, -1, dtype=np.int64))
        writer.finish(name="graph", directed=directed, class_names=(), splits=(), notes=notes)
    assert same(graph, open_graph(out))


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Half a million edges in buckets of some thousand: no array of all of them is ever made."""
    rng = np.random.default_rng(0)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    memory = BYTES_AN_ENTRY * 8192
    with (
        GraphWriter(tmp_path) as writer,
        EdgeSorter(scratch, 1000, directed=False, weighted=False, memory=memory) as sorter,
    ):
        for _ in range(50):
            sorter.add(*rng.integers(0, 1000, (2, 10_000)))
        assert len(sorter._bounds()) > 100
        largest = max(entries for *_, entries in sorter._bounds())
        sorter.write(writer)
    assert largest <= 8192


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "nodes",
    [
        "",
        "\n \n",
        "id\n",
        "name,label\na,x\n",
        "id;label\na;x\n",
        "id,label\na,x\nb\n",
        "id,label\n\n\na,x,y\n",
        'id,label\n"a\nb",x\nc\n',
        'id,label\na,"x\nb,y\nc,z\n',
        'id,label\na,x\nb,"y"z\n',
        b"id,label\na,x\n\xff,y\n",
        "id,label\n".encode("utf-16"),
        "id,id\na,b\n",
        ",id\n0,a\n",
        "id,Unnamed: 0\na,0\n",
        "id,label\na,x\n\nb,y\na,z\n",
        "id,label\na,x\n,y\n",
        "id\na\0\n",
        f"id\n{'a' * 1001}\n",
        "id,split\na,train\n",
        "id,label,split\na,x,train\nb,,val\n",
        "id,label,split\na,x,Train\n",
        "id,size\na,1\nb,red\n",
        "id,size\na,1\nb,\n",
        "id,size\na,1\nb,nan\n",
        "id,size\na,-inf\n",
        "id,size\na,1e300\n",
        None,
    ],
)
def test_bad_nodes_are_refused_in_the_same_words(tmp_path: Path, nodes: str | bytes | None) -> None:
    folder = folder_of(tmp_path, nodes, "source,target\n")
    with pytest.raises(InputError) as expected:
        read_folder(folder)
    assert refused(folder) == str(expected.value)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ("", "edges.csv: is empty"),
        ("from,to\na,b\n", "lacks the column 'source'; its columns are 'from', 'to'; name the columns in"),
        (",".join(map(str, range(99))), "'11' and 87 more; name the columns in its first line"),
        ("source,to\na,b\n", "lacks the column 'target'"),
        ("source,target\na,b\n\nb,z\nq,r\n", "edges.csv, line 5, column 'source': 'q' is no id of nodes.csv"),
        ("source,target\na,b\n\nb,z\nc,r\n", "line 4, column 'target': 'z' is no id of nodes.csv"),
        ("source,target\na, b\n", "line 2, column 'target': ' b' is no id"),
        ("source,target\na,\n", "line 2, column 'target': '' is no id"),
        ("source,target,weight\na,b,1\nb,c,0\n", "edges.csv, line 3, column 'weight': 0.0; weights must be positive"),
        ("source,target,weight\na,b,nan\n", "line 2, column 'weight': nan"),
        ("source,target,weight\na,b,heavy\n", "line 2, column 'weight': expected a number, found 'heavy'"),
        ("source,target,weight\na,b,1e308\na,b,1e308\n", "mine: edge_weight: the weights of an edge"),
        ("source,target\na,b,c\n", "edges.csv, line 2: 3 columns"),
        (None, "has no edges table"),
    ],
)
def test_bad_edges(tmp_path: Path, edges: str | None, message: str) -> None:
    assert message in refused(folder_of(tmp_path, edges=edges))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_faults_far_down_are_found_where_they_are(tmp_path: Path, kind: str) -> None:
    nodes: Table = {"id": [f"n{node}" for node in range(200)], "size": np.arange(200.0)}
    edges: Table = {"source": ["n1"] * 300, "target": ["n2"] * 300}
    place = "line 152" if kind == "csv" else "row 150 (counted from 0)"
    changes: list[tuple[str, str, Any, str]] = [
        ("nodes", "id", "n3", f"{place}, column 'id': 'n3' is a node already in"),
        ("nodes", "size", np.inf, f"{place}, column 'size': inf; expected a finite float32 number"),
        ("edges", "target", "x9", f"{place}, column 'target': 'x9' is no id of nodes.{kind}"),
    ]
    for number, (table, column, value, message) in enumerate(changes):
        both = {"nodes": {k: list(v) for k, v in nodes.items()}, "edges": {k: list(v) for k, v in edges.items()}}
        both[table][column][150] = value
        folder = save(tmp_path / str(number) / "mine", both["nodes"], both["edges"], kind)
        assert message in refused(folder)


def test_damaged_parquet(tmp_path: Path) -> None:
    folder = save(tmp_path / "mine", *tables(seed=0), kind="parquet")
    for name in ("nodes.parquet", "edges.parquet"):
        content = (folder / name).read_bytes()
        for length in range(0, len(content), len(content) // 10):
            (folder / name).write_bytes(content[:length])
            assert f"{name}: not a readable Parquet file" in refused(folder)
        (folder / name).write_bytes(content)
    assert same(read_folder(folder), converted(folder))


def test_damaged_features(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "id\na\nb\nc\nd\n")
    np.savez(folder / "features.npz", np.arange(4000.0).reshape(4, -1))
    content = bytearray((folder / "features.npz").read_bytes())
    content[9000] ^= 1
    (folder / "features.npz").write_bytes(content)
    assert "features.npz: not a readable .npz, perhaps truncated (Bad CRC-32" in refused(folder)
    (folder / "features.npz").write_bytes(content[:5000])
    assert "features.npz: not a readable .npz" in refused(folder)
    np.savez_compressed(folder / "features.npz", np.random.default_rng(0).random((4, 500)))
    content = bytearray((folder / "features.npz").read_bytes())
    for place in range(40, 80):  # the archive's header, and the beginning of what is compressed
        changed = content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
        (folder / "features.npz").write_bytes(changed)
        with suppress(InputError):
            read_folder(folder)
            continue
        assert "features.npz: not a readable .npz" in refused(folder)
    np.savez(folder / "features.npz", np.where(np.eye(4), np.nan, 1))
    assert "features.npz, row 0, column 0: nan; expected a finite float32 number" in refused(folder)
    np.savez(folder / "features.npz", np.ones((3, 2)))
    assert "shape (3, 2); expected 4 rows" in refused(folder)


def test_too_little_memory_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path)
    assert "expected at least 64 MB" in refused(folder, memory=1000)
    monkeypatch.setattr(external, "BYTES_A_NODE", 1 << 30)
    with pytest.raises(ResourceError, match="4 nodes take 5,461 MB of memory, and --memory allows 2,048 MB"):
        convert(folder, tmp_path / "disk")
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("text", ["", "2 apples", "-1GB", "GB", "1e3", "2GBs"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="expected a size such as 500MB or 2GB"):
        parse_memory(text)


@pytest.mark.parametrize("most", [100, 5_000, 20_000])
def test_a_full_disk_leaves_nothing(tmp_path: Path, most: int) -> None:
    """Files of this process may not grow beyond a limit: the write fails as on a full disk."""
    folder = save(tmp_path / "mine", *tables(seed=0, n=500, m=5000), kind="csv")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        with pytest.raises(ResourceError, match=r"cannot write .*disk"):
            convert(folder, tmp_path / "disk")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [folder]
    assert same(read_folder(folder), converted(folder))


def test_features_in_an_archive_that_python_cannot_unpack(tmp_path: Path) -> None:
    """Compression it does not know is left to the reader of whole files, which says what is wrong."""
    path = tmp_path / "features.npz"
    np.savez(path, x=np.ones((3, 2)))
    assert _plain_member(path, 3) == ("x.npy", np.dtype(np.float64), 2)
    raw = bytearray(path.read_bytes())
    directory = raw.index(b"PK\x01\x02")
    raw[8:10] = raw[directory + 10 : directory + 12] = (97).to_bytes(2, "little")
    path.write_bytes(raw)
    assert _plain_member(path, 3) is None
