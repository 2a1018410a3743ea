"""Graphs on disk: they come back to the bit, opening reads next to nothing, and nothing damaged is taken for whole."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph, Split, load_graph
from tokenphormer.graph import disk as disk_module
from tokenphormer.graph.disk import MANIFEST, cache_folder, map_array, open_graph, row_blocks
from tokenphormer.graph.disk_writer import ArrayWriter, new_folder, write_graph
from tokenphormer.graph.id_table import IdTable, find_stored, text_key, text_keys, texts_of
from tokenphormer.walks import sample_walks

DENSE = np.array([[1, 0, 0], [0, 0, 2], [0, 0, 0], [0, 3, 0], [-4, 0, 1]], np.float32)


def unsealed(folder: Path) -> dict[str, Any]:
    """A manifest to be changed by hand: without the hash that would give it away."""
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    del manifest["sha256"]
    return manifest


def rich_graph(**changes: Any) -> Graph:
    given: dict[str, Any] = {
        "edge_index": [[0, 1, 2, 3, 1], [1, 2, 3, 0, 1]],
        "num_nodes": 5,
        "x": DENSE,
        "y": [0, 1, 0, 1, -1],
        "edge_weight": [0.1, 1 / 3, 1e-300, 1e300, 2],
        "self_loops": True,
        "node_ids": ["plain", "Zürich", "two\nlines\r\n", "𝔘nicode \ud800", " 007"],
        "class_names": ("NA", "yes, or no"),
        "splits": (Split([0, 1], [2], [3]), Split([3], [], [], name="other")),
        "name": "rich",
    }
    return Graph.from_edges(**(given | changes))


def same(a: Graph, b: Graph) -> bool:
    """Equal to the bit: arrays, dtypes, names, splits, notes."""
    for name in ("indptr", "indices", "edge_weight", "y", "node_ids"):
        one, two = getattr(a, name), getattr(b, name)
        assert (one is None) == (two is None), name
        assert one is None or (one.dtype == two.dtype and np.array_equal(one, two)), name
    x, z = a.x, b.x
    assert type(x) is type(z)
    if isinstance(x, sp.csr_array) and isinstance(z, sp.csr_array):
        assert np.array_equal(x.indices, z.indices)  # of any integers
        assert np.array_equal(x.indptr, z.indptr)
        x, z = x.data, z.data
    assert x is None or z is None or (x.dtype == z.dtype and np.array_equal(x, z))
    assert [(s.name, s.hash) for s in a.splits] == [(s.name, s.hash) for s in b.splits]
    assert (a.name, a.notes, a.class_names, a.directed) == (b.name, b.notes, b.class_names, b.directed)
    return a.fingerprint == b.fingerprint


def written(tmp_path: Path, graph: Graph | None = None, **options: Any) -> Path:
    write_graph(graph or rich_graph(), tmp_path / "g", **options)
    return tmp_path / "g"


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_graph(folder, **options)
    return str(caught.value)


# ---------------------------------------------------------------- what comes back


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"directed": True},
        {"edge_weight": None, "self_loops": False},
        {"x": sp.csr_array(DENSE)},
        {"x": sp.csr_array((5, 3), dtype=np.float32)},
        {"x": None, "splits": ()},
        {"node_ids": None},
        {"y": None, "class_names": None, "splits": ()},
        {"edge_index": np.zeros((2, 0), np.int64), "edge_weight": None},
        {"edge_index": [[0], [0]], "num_nodes": 1, "x": None, "y": [0], "edge_weight": None, "node_ids": ["a"]}
        | {"splits": ()},
    ],
    ids=lambda changes: " ".join(changes) or "all",
)
def test_it_comes_back_to_the_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    graph = rich_graph(**changes)
    found = load_graph(written(tmp_path, graph), verify=True)
    assert same(graph, found)
    assert found.num_self_loops == graph.num_self_loops
    assert repr(found) == repr(graph)
    assert found.stored is not None
    # What the manifest says is what the content gives.
    assert dataclasses.replace(found, stored=None).fingerprint == found.fingerprint


def test_arrays_are_mapped_and_read_only(tmp_path: Path) -> None:
    graph = open_graph(written(tmp_path))
    assert isinstance(graph.x, np.ndarray)
    assert graph.node_ids is not None
    for array in (graph.indptr, graph.indices, graph.x, graph.y, graph.node_ids):
        assert type(array) is np.ndarray  # kernels are compiled for plain arrays
        assert isinstance(array.base, np.memmap)
        assert not array.flags.writeable


def test_half_precision(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    found = load_graph(written(tmp_path, rich_graph(x=x), half=True), verify=True)
    assert isinstance(found.x, np.ndarray)
    assert found.x.dtype == np.float16
    assert np.array_equal(found.x, x.astype(np.float16))
    assert found.fingerprint != rich_graph(x=x).fingerprint
    with pytest.raises(InputError, match=r"x, row 1, column 2: 70000.0; expected a finite float16 number"):
        write_graph(rich_graph(x=np.where(DENSE == 2, 70000, DENSE)), tmp_path / "h", half=True)
    assert not (tmp_path / "h").exists()


@pytest.mark.parametrize(("x", "largest", "spread"), [(DENSE, 4, 5), (sp.csr_array(DENSE), 4, 5), (None, 0, 0)])
def test_the_manifest_knows_the_range_of_features(tmp_path: Path, x: Any, largest: float, spread: float) -> None:
    stored = open_graph(written(tmp_path, rich_graph(x=x))).stored
    assert stored is not None
    assert (stored.feature_max, stored.feature_spread) == (largest, spread)


def test_other_labels_are_another_graph(tmp_path: Path) -> None:
    graph = open_graph(written(tmp_path))
    hidden = dataclasses.replace(graph, y=np.full(5, -1, dtype=np.int64), splits=())
    assert hidden.fingerprint == rich_graph(y=[-1] * 5, splits=()).fingerprint
    assert dataclasses.replace(graph, name="other").fingerprint == graph.fingerprint


def test_other_ids_are_found_by_their_names(tmp_path: Path) -> None:
    graph = open_graph(written(tmp_path))
    names = np.array([f"new {node}" for node in range(graph.num_nodes)])
    other = dataclasses.replace(graph, node_ids=names)
    assert [other.index_of(name) for name in names] == list(range(graph.num_nodes))
    with pytest.raises(InputError, match="has no node"):
        other.index_of(graph.id_of(0))


def test_another_working_folder_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    graph = open_graph("g")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    expected = sample_walks(graph, "uniform", backend="reference")
    assert (sample_walks(graph, "uniform", backend="portable") == expected).all()
    assert graph.stored is not None
    assert cache_folder(graph.stored) == tmp_path / "g" / "cache"


def test_opening_reads_next_to_nothing(tmp_path: Path) -> None:
    """A graph with 4 GB of features, all of them a hole in the file."""
    n, width = 1_000_000, 1024
    folder = written(tmp_path, Graph.from_edges([[0], [n - 1]], num_nodes=n, y=np.zeros(n, int)))
    manifest = unsealed(folder)
    writer = ArrayWriter(folder / "x.npy", np.float32, width)
    writer.rows = n
    manifest["arrays"]["x"], manifest["num_features"] = writer.close(), width
    os.truncate(folder / "x.npy", writer.offset + 4 * n * width)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    began = time.perf_counter()
    graph = load_graph(folder)
    assert graph.x is not None
    assert graph.x[[0, n - 1]].sum() == 0
    assert graph.fingerprint == manifest["fingerprint"]
    assert time.perf_counter() - began < 1


# ---------------------------------------------------------------- ids


def test_ids_are_found_without_reading_them_all(tmp_path: Path) -> None:
    graph = open_graph(written(tmp_path))
    assert [graph.index_of(graph.id_of(node)) for node in range(5)] == list(range(5))
    assert "_index_by_id" not in graph.__dict__
    with pytest.raises(InputError, match="has no node 'Zurich'; nearest: Zürich"):
        graph.index_of("Zurich")


def test_equal_hashes_are_told_apart(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    stored = open_graph(written(tmp_path, Graph.from_edges([[0], [1]], num_nodes=3, node_ids=names))).stored
    assert stored is not None
    key = np.full(3, text_key(b"b"), dtype=np.uint64)
    clash = dataclasses.replace(stored, id_keys=key, id_rows=np.array([2, 0, 1], np.int32))
    assert find_stored(clash, np.array(names), "b") == 1
    assert find_stored(clash, np.array(names), "x") is None
    table = IdTable.of(texts_of(["a", "b", "c", "b"]), np.zeros(4, dtype=np.uint64))
    assert table.repetition() == (3, 1)
    assert IdTable.of(texts_of(names), np.zeros(3, dtype=np.uint64)).repetition() is None


def test_the_id_table_finds_what_a_dict_finds() -> None:
    rng = np.random.default_rng(0)
    names = [f"n{number}" for number in rng.permutation(20_000)[:5000]] + ["", "ä", "n" * 999]
    keys = text_keys(*texts_of(names))
    assert keys.tolist()[:50] == [text_key(name.encode()) for name in names[:50]]
    asked = [f"n{number}" for number in rng.integers(0, 25_000, 3000)] + ["", "ä", "a", "n" * 999]
    place = {name: row for row, name in enumerate(names)}
    assert IdTable.of(texts_of(names), keys).find(texts_of(asked)).tolist() == [place.get(one, -1) for one in asked]


def test_numbers_are_their_own_ids(tmp_path: Path) -> None:
    graph = open_graph(written(tmp_path, Graph.from_edges([[0], [9]])))
    assert (graph.id_of(7), graph.index_of("7")) == ("7", 7)
    with pytest.raises(InputError, match="no node '10'"):
        graph.index_of("10")


# ---------------------------------------------------------------- damage

ARRAYS = ("indptr", "indices", "edge_weight", "x", "y", "ids", "id_keys", "id_rows", "split0_train")


@pytest.mark.parametrize("name", ARRAYS)
def test_every_array_is_needed_whole(tmp_path: Path, name: str) -> None:
    path = written(tmp_path) / f"{name}.npy"
    content = path.read_bytes()
    for length in (0, 5, 60, len(content) - 1):
        path.write_bytes(content[:length])
        assert path.name in refused(path.parent)
    path.write_bytes(content + b"\0")
    assert "it was cut off or changed" in refused(path.parent)
    path.unlink()
    assert f"{path.name}: is missing" in refused(path.parent)


@pytest.mark.parametrize("name", [*ARRAYS, "x_data", "x_indices", "x_indptr"])
def test_a_changed_bit_is_seen_when_verifying(tmp_path: Path, name: str) -> None:
    graph = rich_graph(x=sp.csr_array(DENSE)) if name.startswith("x_") else rich_graph()
    path = written(tmp_path, graph) / f"{name}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert f"{path.name}: " in refused(path.parent, verify=True)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("indices", np.zeros(10, np.int64)),
        ("indptr", np.zeros(6, np.int32)),
        ("x", DENSE.astype(np.float64)),
        ("x", np.asfortranarray(DENSE)),
        ("y", np.zeros(5, np.float64)),
        ("y", np.zeros(5, ">i8")),
        ("ids", np.zeros(5, "S4")),
        ("id_rows", np.zeros(5, np.int64)),
    ],
)
def test_dtypes_are_those_of_the_format(tmp_path: Path, name: str, array: Any) -> None:
    folder = written(tmp_path)
    np.save(folder / f"{name}.npy", array)
    assert f"{name}.npy" in refused(folder)
    manifest = unsealed(folder)
    manifest["arrays"][name] |= {"dtype": array.dtype.str, "shape": list(array.shape)}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert f"{name}.npy" in refused(folder)  # though the manifest agrees


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    folder = written(tmp_path)
    with (folder / "y.npy").open("wb") as file:
        np.lib.format.write_array(file, np.array([{}] * 5, dtype=object))
    assert "y.npy: not a readable array" in refused(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "of format 2; this version reads a tokenphormer graph of format 1"),
        ({"kind": "map"}, "a map of format 1; this version reads"),
        ({"num_nodes": 0}, "not a manifest of format 1"),
        ({"num_nodes": "many"}, "not a manifest of format 1"),
        ({"num_nodes": 6}, "indptr.npy: holds <i8 (6,); expected <i8 (7)"),
        ({"num_directed_edges": 8}, "indices.npy: holds <i4 (9,); expected <i4 (8)"),
        ({"arrays": {}}, "says nothing of"),
        ({"class_names": None}, "not a manifest"),
        ({"directed": None, "name": None, "notes": None}, "not a manifest"),
        ({"splits": ["a", "b", "c"]}, "says nothing of split2_train.npy"),
        ({"fingerprint": None, "feature_max": None}, "not a manifest"),
    ],
)
def test_manifests_of_another_make(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = written(tmp_path)
    manifest = unsealed(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest | change))
    assert message in refused(folder)


@pytest.mark.parametrize(
    "change", [{"num_nodes": "5"}, {"num_features": "3"}, {"num_features": 2**70}, {"num_features": None}, {"more": 3}]
)
@pytest.mark.parametrize("verify", [False, True])
def test_counts_of_a_manifest_are_whole_numbers(tmp_path: Path, change: dict[str, Any], verify: bool) -> None:
    folder = written(tmp_path, rich_graph(x=sp.csr_array(DENSE)))
    manifest = unsealed(folder)
    manifest["arrays"] |= {"junk": 3} if "more" in change else {}
    (folder / MANIFEST).write_text(json.dumps(manifest | change))
    assert "graph.json: not a manifest of format 1" in refused(folder, verify=verify)


@pytest.mark.parametrize("text", ["", "[]", "{}", "no json", "[1", '{"kind": 1}'])
def test_what_is_no_manifest(tmp_path: Path, text: str) -> None:
    folder = written(tmp_path)
    (folder / MANIFEST).write_text(text)
    assert "graph.json: not a manifest of a graph on disk" in refused(folder)


def test_another_graph_json_beside_tables(tmp_path: Path) -> None:
    """Exports for drawings are often called so."""
    (tmp_path / "nodes.csv").write_text("id\na\nb\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    (tmp_path / "graph.json").write_text('{"nodes": [], "links": []}')
    assert load_graph(tmp_path).num_edges == 1
    folder = written(tmp_path)
    (folder / "nodes.csv").write_text("id\na\nb\n")
    assert load_graph(folder).stored is not None


def test_hand_made_content_is_seen_when_verifying(tmp_path: Path) -> None:
    """Right hashes, and indices that a walk would follow out of memory."""
    import hashlib

    for name, value, message in (
        ("indices", 99, "outside 0 … 4"),
        ("y", 7, "outside -1 … 1"),
        ("x", np.nan, "not finite"),
        ("edge_weight", 0.0, "not > 0"),
        ("indptr", -1, "not in order"),
    ):
        folder = written(tmp_path / name)
        array: Any = np.load(folder / f"{name}.npy")
        array.flat[1] = value
        np.save(folder / f"{name}.npy", array)
        manifest = unsealed(folder)
        manifest["arrays"][name]["sha256"] = hashlib.sha256(array.tobytes()).hexdigest()
        (folder / MANIFEST).write_text(json.dumps(manifest))
        load_graph(folder)
        assert message in refused(folder, verify=True)
    folder = written(tmp_path / "fingerprint")
    manifest = unsealed(folder)
    (folder / MANIFEST).write_text(json.dumps(manifest | {"fingerprint": "0" * 64}))
    assert "does not match the fingerprint" in refused(folder, verify=True)


def test_a_directed_reading_needs_directions(tmp_path: Path) -> None:
    assert "holds an undirected graph" in refused(written(tmp_path), directed=True)
    assert load_graph(written(tmp_path / "d", rich_graph(directed=True)), directed=True).directed


# ---------------------------------------------------------------- writing


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(error: Exception) -> None:
        with new_folder(tmp_path / "g") as folder:
            (folder / "y.npy").write_bytes(b"half")
            raise error

    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ResourceError, match=r"cannot write .*g: No space left on device"):
        fail(OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_there_is_left_alone(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "folder":
        out.mkdir()
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists already; choose the name of a new folder"):
        write_graph(rich_graph(), out)
    assert list(tmp_path.iterdir()) == [out]


def test_arrays_grow(tmp_path: Path) -> None:
    writer = ArrayWriter(tmp_path / "a.npy", np.int16, 2)
    for rows in (0, 1, 70_000, 3):
        writer.append(np.full((rows, 2), rows))
    entry = writer.close()
    found = np.load(tmp_path / "a.npy")
    assert found.shape == (70_004, 2)
    assert found.sum() == 2 * (1 + 70_000 * np.int64(np.int16(4464)) + 9)
    assert (entry["shape"], entry["dtype"]) == ([70_004, 2], "<i2")
    assert np.array_equal(map_array(tmp_path / "a.npy"), found)


def test_blocks_of_rows_cover_all_rows() -> None:
    indptr = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(0, 9, 100))])
    for most in (1, 5, 20, 10_000):
        blocks = list(row_blocks(indptr, most))
        assert blocks[0][0] == 0
        assert blocks[-1][1] == 100
        assert all(a[1] == b[0] for a, b in pairwise(blocks))
        assert all(last - first == 1 or indptr[last] - indptr[first] <= most for first, last in blocks)


def test_the_cache_lies_beside_the_graph_or_with_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = open_graph(written(tmp_path)).stored
    assert stored is not None
    assert cache_folder(stored) == tmp_path / "g" / "cache"
    monkeypatch.setattr(disk_module.os, "access", lambda *_: False)
    assert cache_folder(stored).is_relative_to(os.environ["XDG_CACHE_HOME"])


def test_a_cache_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = open_graph(written(tmp_path)).stored
    assert stored is not None
    (tmp_path / "g" / "cache").mkdir()
    monkeypatch.setattr(disk_module.os, "access", lambda path, _: Path(path).name != "cache")
    assert cache_folder(stored).is_relative_to(os.environ["XDG_CACHE_HOME"])


def test_arrays_larger_than_memory_are_read_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = open_graph(written(tmp_path))
    advised: list[str] = []
    monkeypatch.setattr(disk_module, "_advise", lambda _, advice: advised.append(advice))
    disk_module.expect_random_reads([graph.indptr, graph.indices])
    assert advised == []
    monkeypatch.setattr(disk_module.os, "sysconf", lambda _: 10)
    disk_module.expect_random_reads([graph.indptr, graph.indices])
    assert advised == ["MADV_RANDOM", "MADV_RANDOM"]
    monkeypatch.undo()
    disk_module._advise(graph.indices, "MADV_RANDOM")
    disk_module.release(graph.indices)
    assert graph.indices.tolist() == rich_graph().indices.tolist()
