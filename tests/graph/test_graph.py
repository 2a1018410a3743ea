"""`Graph`: what `from_edges` does to edges, what the fingerprint covers, and that a damaged file is never taken."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import atomic_path, load_arrays
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.graph.tables import read_node_list

IDS = ["plain", "Zürich", "two\nlines", "雪", 'quote " and, comma', "\ud800 lone surrogate"]


def edges_of(graph: Graph) -> dict[tuple[int, int], float]:
    rows = np.repeat(np.arange(graph.num_nodes), graph.degree).tolist()
    weights = np.ones(len(rows)) if graph.edge_weight is None else graph.edge_weight
    return dict(zip(zip(rows, graph.indices.tolist(), strict=True), weights.tolist(), strict=True))


def rich_graph(x: object = None, **changes: Any) -> Graph:
    given: dict[str, Any] = {
        "edge_index": [[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]],
        "num_nodes": 6,
        "x": np.arange(18, dtype=np.float32).reshape(6, 3) if x is None else x,
        "y": [0, 1, 0, 1, -1, 0],
        "edge_weight": [1.0, 2.0, 0.5, 0.25, 3.0],
        "node_ids": IDS,
        "class_names": ("no", "yes"),
        "name": "rich",
        "splits": (Split([0, 1], [2], [3]), Split([3], [1], [0], name="other")),
    }
    return Graph.from_edges(**(given | changes))


# ---------------------------------------------------------------- building


def test_undirected_edges_are_stored_twice_and_counted_once() -> None:
    graph = Graph.from_edges([[2, 0], [0, 1]], num_nodes=4)
    assert edges_of(graph) == {(0, 1): 1, (1, 0): 1, (0, 2): 1, (2, 0): 1}
    assert (graph.num_edges, graph.num_directed_edges) == (2, 4)
    assert graph.notes == ("2 edges were listed from one end only",)
    assert graph.neighbours(3).size == 0


def test_directed_edges_are_stored_once() -> None:
    graph = Graph.from_edges([[2, 0], [0, 1]], num_nodes=3, directed=True)
    assert edges_of(graph) == {(2, 0): 1, (0, 1): 1}
    assert (graph.num_edges, graph.notes) == (2, ())


def test_both_ends_listed_is_one_edge() -> None:
    graph = Graph.from_edges([[0, 1], [1, 0]])
    assert graph.num_edges == 1
    assert graph.notes == ("both ends listed",)


def test_repeated_edges_become_one() -> None:
    graph = Graph.from_edges([[0, 0, 0], [1, 1, 2]], directed=True)
    assert edges_of(graph) == {(0, 1): 1, (0, 2): 1}
    assert graph.notes == ("merged 1 repeated edges",)


def test_weights_of_one_direction_add_up() -> None:
    graph = Graph.from_edges([[0, 0], [1, 1]], edge_weight=[1.5, 2.0], directed=True)
    assert edges_of(graph) == {(0, 1): 3.5}


def test_weights_of_both_ends_are_averaged_after_adding() -> None:
    graph = Graph.from_edges([[0, 1, 1, 1], [1, 0, 0, 2]], edge_weight=[1.0, 2.0, 4.0, 8.0])
    assert edges_of(graph) == {(0, 1): 3.5, (1, 0): 3.5, (1, 2): 8.0, (2, 1): 8.0}


def test_self_loops_are_dropped_with_their_weights() -> None:
    graph = Graph.from_edges([[0, 1, 1], [0, 1, 0]], edge_weight=[9.0, 9.0, 2.0])
    assert edges_of(graph) == {(0, 1): 2.0, (1, 0): 2.0}
    assert "dropped 2 self-loops" in graph.notes


def test_self_loops_are_kept_on_request() -> None:
    graph = Graph.from_edges([[0, 1], [0, 0]], edge_weight=[9.0, 2.0], self_loops=True)
    assert edges_of(graph) == {(0, 0): 9.0, (0, 1): 2.0, (1, 0): 2.0}
    assert graph.num_edges == 2


def test_no_edges() -> None:
    graph = Graph.from_edges([], num_nodes=3, edge_weight=[])
    assert (graph.num_edges, graph.degree.tolist(), graph.notes) == (0, [0, 0, 0], ())


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.floats(0.1, 10)), max_size=20),
            st.booleans(),
            st.booleans(),
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_from_edges_agrees_with_a_dense_matrix(case: tuple[int, list[tuple[int, int, float]], bool, bool]) -> None:
    n, edges, directed, loops = case
    dense = np.zeros((n, n))
    for a, b, w in edges:
        dense[a, b] += w if loops or a != b else 0
    if not directed:
        both = (dense > 0) & (dense.T > 0)
        dense = np.where(both, (dense + dense.T) / 2, dense + dense.T)
    pairs = np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2).T
    graph = Graph.from_edges(pairs, n, edge_weight=[e[2] for e in edges], directed=directed, self_loops=loops)
    expected = {(int(a), int(b)): dense[a, b] for a, b in np.argwhere(dense)}
    assert edges_of(graph) == pytest.approx(expected)
    for node in range(n):
        assert (np.diff(graph.neighbours(node)) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"edge_index": [[0, 5], [1, 1]]}, r"column 1: edge \(5, 1\), but nodes are 0 to 2"),
        ({"edge_index": [[0, -1], [1, 1]]}, r"column 1: edge \(-1, 1\)"),
        ({"edge_index": [[0.5], [1.0]]}, "expected integers, got float64"),
        ({"edge_index": [[0, 1], [1, 2], [0, 2]]}, r"expected shape \(2, E\), got \(3, 2\); one edge a row\?"),
        ({"edge_index": [["a"], ["b"]]}, "expected integers, got <U1; number the nodes .* as node_ids"),
        ({"edge_index": [[0, 1, 2]]}, r"expected shape \(2, E\), got \(1, 3\)"),
        ({"edge_index": [], "num_nodes": 0}, "no node"),
        ({"edge_index": [], "num_nodes": 2**31}, "more than"),
        ({"num_nodes": 3.9}, r"num_nodes: 3\.9; expected a whole number"),
        ({"num_nodes": "many"}, "num_nodes: 'many'; expected a whole number"),
        ({"edge_weight": [1.0, 2.0]}, r"expected shape \(1,\)"),
        ({"edge_weight": [0.0]}, "entry 0: 0.0; weights must be positive"),
        ({"edge_weight": [float("nan")]}, "entry 0: nan"),
        ({"edge_weight": ["heavy"]}, "edge_weight: expected numbers"),
        ({"edge_weight": torch.ones(1, requires_grad=True)}, r"edge_weight: expected numbers .*detach\(\)"),
        ({"edge_index": [[0, 0], [1, 1]], "edge_weight": [1e308, 1e308]}, "add up to infinity"),
        ({"x": [[1.0], [2.0]]}, "2 rows, but the graph has 3 nodes"),
        ({"x": [1.0, 2.0, 3.0]}, r"expected shape \(nodes, features\)"),
        ({"x": sp.coo_array(np.ones(3))}, r"expected shape \(nodes, features\), got \(3,\)"),
        ({"x": [["a"], ["b"], ["c"]]}, "x: expected numbers"),
        ({"x": [[1j], [2.0], [3.0]]}, r"x: expected numbers, one row a node \(these are complex\)"),
        ({"x": sp.csr_array(np.eye(3) * 1j)}, "these are complex"),
        ({"x": np.array([["2020-01-01"], ["NaT"], ["2020-01-03"]], "M8[D]")}, r"x: .*\(these are dates or times"),
        ({"x": pd.DataFrame({"since": pd.to_datetime(["2020-01-01", None, "2020-01-03"])})}, "dates or times"),
        ({"x": np.ma.masked_array(np.ones((3, 1)), [[0], [1], [0]])}, r"x: .*\(some are masked; fill them in"),
        ({"y": np.ma.masked_array([0, 1, 0], [0, 1, 0])}, r"y: .*\(some are masked; fill them in"),
        ({"edge_weight": np.array([3], "m8[D]")}, "edge_weight: .* dates or times"),
        ({"edge_weight": [1j, 1.0]}, r"edge_weight: expected numbers \(these are complex\)"),
        ({"y": [0, 0, 0], "splits": Split([0], [1], [2])}, r"splits: expected several, got one; give \(split,\)"),
        ({"x": [[1.0], [2.0, 3.0], [1.0]]}, "x: expected numbers"),
        ({"x": [[0, 0], [0, 1e300], [0, 0]]}, "row 1, column 1: not a finite float32"),
        ({"x": sp.csr_array(([np.inf], ([2], [1])), shape=(3, 2))}, "row 2, column 1: not a finite float32"),
        ({"y": [0, 1]}, r"expected shape \(3,\)"),
        ({"y": [0.0, 1.0, 1.0]}, "expected class numbers"),
        ({"y": ["a", "b", "b"]}, "expected class numbers .* got <U1; number the classes .* as class_names"),
        ({"y": [0, -2, 1]}, "node 1: class -2"),
        ({"y": [0, 2, 1], "class_names": ("a", "b")}, "node 1: class 2"),
        ({"node_ids": ["a", "b"]}, r"expected shape \(3,\)"),
        ({"node_ids": ["a", None, "b"]}, "node_ids, entry 1: None; every node needs an id"),
        ({"node_ids": pd.Series(["a", "b", None])}, "node_ids, entry 2: nan; every node needs an id"),
        ({"node_ids": pd.array(["a", None, "b"], "string")}, "node_ids, entry 1: <NA>; every node needs an id"),
        ({"node_ids": [1.0, float("nan"), 2.0]}, "node_ids, entry 1: nan; every node needs an id"),
        ({"node_ids": ["a", "b", "a"]}, "'a' stands for more than one node"),
        ({"node_ids": ["a", "b\0", "c"]}, "an id has a NUL character"),
        ({"node_ids": [b"a", b"\xff", b"c"]}, "expected strings, got bytes that are not ASCII .*; decode them"),
        ({"node_ids": [["a"], ["b", "c"], ["d"]]}, "node_ids: expected strings, one a node"),
        ({"edge_index": [[0, 1], [1]]}, r"edge_index: expected shape \(2, E\)"),
        ({"y": [[0], [1, 2], [0]]}, "y: expected class numbers"),
        ({"y": [0, 1, 2], "class_names": ("a", "b", "a")}, "class_names: 'a' stands for more than one class"),
        ({"y": [0, 1, 0], "class_names": {1: "b", 0: "a"}}, "class_names: expected a tuple, .* 0 first, got a dict"),
        ({"y": [0, 1, 0], "class_names": {"b", "a"}}, "class_names: expected a tuple, .* 0 first, got a set"),
        ({"y": [0, 1, 0], "class_names": frozenset("ab")}, "class_names: expected a tuple, .* got a frozenset"),
        ({"y": [0, 1, 0], "class_names": b"ab"}, "class_names: expected a tuple, .* got a bytes"),
        ({"y": [0, 1, 0], "class_names": 2}, "class_names: expected a tuple, .* got a int"),
        ({"y": [0, 1, 0], "class_names": "ab"}, "class_names: expected a tuple, .* 0 first, got a str"),
        ({"y": [0, -1, 0], "splits": (Split([0], [1], [2]),)}, "part 'val': node '1' has no label"),
        ({"y": [0, 0, 0], "splits": (Split([0], [1], [3]),)}, "node index 3"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Graph.from_edges(**{"edge_index": [[0], [1]], "num_nodes": 3, **arguments})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float32])
@pytest.mark.parametrize("kind", ["coo", "csr", "csc"])
def test_sparse_features_of_few_bits_add_up(dtype: Any, kind: Any) -> None:
    coo = sp.coo_array((np.ones(256, dtype), (np.zeros(256, np.int64), np.ones(256, np.int64))), shape=(2, 2))
    csr = sp.csr_array((coo.data, coo.col, [0, 256, 256]), shape=(2, 2))
    given = csr if kind == "csr" else sp.csc_array((coo.data, coo.row, [0, 0, 256]), shape=(2, 2))
    x = Graph.from_edges([[0], [1]], x=coo if kind == "coo" else given).x
    assert sp.issparse(x)
    assert x.toarray().tolist() == [[0, 256], [0, 0]]


def test_torch_features_dense_sparse_and_half() -> None:
    dense = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    for x in (dense, dense.bfloat16(), dense.double()):
        features = Graph.from_edges([[0], [1]], x=x).x
        assert isinstance(features, np.ndarray)
        assert np.array_equal(features, dense.numpy())
    sparse = Graph.from_edges([[0], [1]], x=dense.to_sparse()).x
    assert sp.issparse(sparse)
    assert np.array_equal(sparse.toarray(), dense.numpy())


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("sparse", [False, True])
def test_copies_are_read_only_too(again: Callable[[Graph], Graph], sparse: bool) -> None:
    """Their fingerprint and degrees were worked out before."""
    graph = rich_graph(x=sp.csr_array(np.eye(6, dtype=np.float32)) if sparse else np.eye(6))
    assert graph.degree.sum() == graph.num_directed_edges
    twin = again(graph)
    assert twin.fingerprint == graph.fingerprint
    x: Any = twin.x.data if sp.issparse(twin.x) else twin.x
    parts = [split.train for split in twin.splits]
    arrays = [twin.indptr, twin.indices, twin.edge_weight, twin.y, twin.node_ids, twin.degree, x, *parts]
    for array in arrays:
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[:1] = array[:1]


def test_degrees_are_read_only() -> None:
    graph = rich_graph()
    with pytest.raises(ValueError, match="read-only"):
        graph.degree.sort()
    assert graph.degree.tolist() == np.diff(graph.indptr).tolist()


def test_arrays_are_read_only_and_the_callers_stay_writeable() -> None:
    x, y, weight = np.ones((2, 2), np.float32), np.array([0, 1]), np.array([2.0])
    ids, edges = np.array(["a", "b"]), np.array([[0], [1]])
    graph = Graph.from_edges(edges, x=x, y=y, edge_weight=weight, node_ids=ids, directed=True)
    for array in (graph.indptr, graph.indices, graph.edge_weight, graph.x, graph.y, graph.node_ids):
        assert isinstance(array, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[0]
    for array in (x, y, weight, ids, edges):
        array[0] = array[0]
    matrix = sp.csr_array(x)
    sparse = Graph.from_edges(edges, x=matrix).x
    assert sp.issparse(sparse)
    with pytest.raises(ValueError, match="read-only"):
        sparse.data[0] = 5
    matrix.data[0] = 5
    assert sparse.data[0] == 1


def test_ids_and_indices() -> None:
    graph = rich_graph()
    assert [graph.index_of(name) for name in IDS] == list(range(6))
    assert graph.id_of(1) == "Zürich"
    with pytest.raises(InputError, match="no node 'Zurich'; nearest: Zürich"):
        graph.index_of("Zurich")
    plain = Graph.from_edges([[0], [1]])
    assert (plain.index_of("1"), plain.id_of(1)) == (1, "1")
    for unknown in ("2", "-1", "x", "", "01", "+1", "1 "):
        with pytest.raises(InputError, match="no node"):
            plain.index_of(unknown)


def test_a_list_of_ids_ends_its_lines_where_files_do(tmp_path: Path) -> None:
    names = ["a\u2028b", "c\x85d", "e\x0cf", " g "]
    graph = Graph.from_edges([[0], [1]], num_nodes=4, node_ids=names)
    (tmp_path / "ids.txt").write_bytes("\ufeff{}\r\n\n{}\n{}\n{}".format(*names).encode())
    assert read_node_list(tmp_path / "ids.txt", graph) == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [">U3", object, np.dtypes.StringDType()])
def test_ids_of_any_array_of_strings(tmp_path: Path, dtype: Any) -> None:
    graph = Graph.from_edges([[0], [1]], node_ids=np.array(["a", "Zü\u2028"], dtype=dtype))
    assert graph.fingerprint == Graph.from_edges([[0], [1]], node_ids=["a", "Zü\u2028"]).fingerprint
    write_graph(graph, tmp_path / "g")
    assert open_graph(tmp_path / "g", verify=True).index_of("Zü\u2028") == 1


def test_a_number_of_nodes_of_another_library() -> None:
    for number in (np.int8(4), np.array(4), torch.tensor(4)):
        assert Graph.from_edges([[0], [1]], num_nodes=number).num_nodes == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("directed", [np.True_, 1, np.any([1, 0])])
def test_a_direction_of_any_kind_is_saved_and_loaded(tmp_path: Path, directed: Any) -> None:
    graph = Graph.from_edges([[0], [1]], directed=directed)
    assert graph.fingerprint == Graph.from_edges([[0], [1]], directed=True).fingerprint
    graph.save(tmp_path / "g.npz")
    assert Graph.load(tmp_path / "g.npz").directed is True


def test_splits_may_come_one_by_one() -> None:
    splits: Any = (Split([node], [], []) for node in range(2))
    assert len(Graph.from_edges([[0], [1]], y=[0, 1], splits=splits).splits) == 2


def test_names_of_classes_are_strings() -> None:
    assert Graph.from_edges([[0], [1]], y=[0, 1], class_names=(7, 8)).class_names == ("7", "8")  # type: ignore[arg-type]


# ---------------------------------------------------------------- identity


def test_fingerprint_knows_every_change_of_content_and_no_name() -> None:
    x = np.arange(18, dtype=np.float32).reshape(6, 3)
    changes: list[dict[str, Any]] = [
        {},
        {"edge_index": [[0, 1, 2, 3, 4], [1, 2, 3, 4, 1]]},
        {"edge_weight": [1.0, 2.0, 0.5, 0.25, 3.5]},
        {"edge_weight": None},
        {"x": x + np.eye(6, 3, dtype=np.float32)},
        {"x": x.reshape(6, 3)[:, :2]},
        {"x": sp.csr_array(x)},
        {"x": sp.csr_array((x.ravel(), (np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6))), shape=(6, 4))},
        {"y": [0, 1, 0, 1, 0, 0]},
        {"node_ids": None},
        {"node_ids": [*IDS[:5], "other"]},
        {"class_names": ("yes", "no")},
        {"class_names": ("no", "yes", "maybe")},
        {"directed": True},
    ]
    prints = [rich_graph(**change).fingerprint for change in changes]
    assert len(set(prints)) == len(changes)
    assert rich_graph(name="another", splits=()).fingerprint == prints[0]
    assert all(len(one) == 64 for one in prints)


# ---------------------------------------------------------------- one file


def same(a: Graph, b: Graph) -> bool:
    """Equal in everything, the parts outside the fingerprint too."""
    splits = [[(s.name, s.hash) for s in graph.splits] for graph in (a, b)]
    return a.fingerprint == b.fingerprint and (a.name, a.notes, splits[0]) == (b.name, b.notes, splits[1])


@pytest.mark.parametrize(
    "graph",
    [
        rich_graph(),
        rich_graph(x=sp.random_array((6, 40), density=0.2, rng=np.random.default_rng(0)), directed=True),
        rich_graph(x=sp.csr_array((6, 4), dtype=np.float32)),
        Graph.from_edges([], num_nodes=1),
    ],
    ids=["dense", "sparse", "no entries", "one node"],
)
def test_save_and_load(graph: Graph, tmp_path: Path) -> None:
    graph.save(tmp_path / "deep" / "graph.npz")
    loaded = Graph.load(tmp_path / "deep" / "graph.npz")
    assert same(loaded, graph)
    assert loaded.class_names == graph.class_names
    assert (loaded.node_ids is None) == (graph.node_ids is None)
    assert [loaded.id_of(i) for i in range(graph.num_nodes)] == [graph.id_of(i) for i in range(graph.num_nodes)]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["graph.npz"]


@pytest.fixture(scope="module")
def large_graph() -> Graph:
    """Big enough that its arrays are read in several pieces, where checksums come late."""
    rng = np.random.default_rng(1)
    order = rng.permutation(6000)
    return Graph.from_edges(
        rng.integers(0, 6000, (2, 9000)),
        num_nodes=6000,
        x=sp.random_array((6000, 50), density=0.05, rng=rng),
        y=rng.integers(0, 3, 6000),
        edge_weight=rng.random(9000) + 0.1,
        splits=(Split(order[:4000], order[4000:5000], order[5000:]),),
    )


def test_truncated_files_are_refused(large_graph: Graph, tmp_path: Path) -> None:
    path, cut = tmp_path / "graph.npz", tmp_path / "cut.npz"
    for graph, lengths in ((rich_graph(), 1), (large_graph, 10)):
        graph.save(path)
        content = path.read_bytes()
        for length in range(0, len(content), max(1, len(content) // (lengths * 60))):
            cut.write_bytes(content[:length])
            with pytest.raises(InputError, match=r"cut\.npz"):
                Graph.load(cut)


def test_flipped_bits_never_give_another_graph(large_graph: Graph, tmp_path: Path) -> None:
    path, flipped = tmp_path / "graph.npz", tmp_path / "flipped.npz"
    rng = np.random.default_rng(2)
    for graph, count in ((rich_graph(), 400), (large_graph, 60)):
        graph.save(path)
        content = path.read_bytes()
        refused = 0
        for position in rng.integers(0, 8 * len(content), count):
            damaged = bytearray(content)
            damaged[position // 8] ^= 1 << (position % 8)
            flipped.write_bytes(damaged)
            try:
                loaded = Graph.load(flipped)
            except InputError:
                refused += 1
            else:  # dates and the like in the archive's headers carry nothing of the graph
                assert same(loaded, graph)
        assert refused > count / 2


def test_a_header_that_hides_part_of_an_array_is_refused(tmp_path: Path) -> None:
    """numpy.load would stop at the shape in the header and never come to the checksum."""
    path = tmp_path / "x.npz"
    np.savez(path, x=np.arange(5000))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(5000,)", b"(4000,)"))
    assert len(np.load(path)["x"]) == 4000
    with pytest.raises(InputError, match=r"not a readable \.npz"):
        load_arrays(path)


def rewrite(path: Path, **changes: Any) -> None:
    """Change arrays of a graph file and give it the fingerprint that fits."""
    arrays = {name: array.copy() for name, array in load_arrays(path).items()} | changes
    meta = json.loads(arrays["meta"].tobytes())
    graph = rich_graph(splits=())
    parts = {name: arrays[name].astype(getattr(graph, name).dtype) for name in ("indptr", "indices", "y")}
    parts |= {name: changes[name] for name in ("x", "edge_weight") if name in changes}
    if "x" in parts:
        arrays = {name: array for name, array in arrays.items() if not name.startswith("x_")}
    meta["sha256"] = dataclasses.replace(graph, **parts).fingerprint
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez(path, **arrays)


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": np.full(10, 6)},
        {"indices": np.full(10, -1)},
        {"indptr": np.array([0, 2, 1, 6, 8, 10, 10])},
        {"indptr": np.array([0, 2, 4, 6, 8, 10, 99])},
        {"y": np.array([0, 1, 0, 1, -1, 2])},
        {"y": np.array([0, 1, 0, 1, -1])},
        {"split0_train": np.array([0, 4])},
        {"split0_train": np.array([0, 6])},
        {"edge_weight": np.full(10, "heavy")},
        {"edge_weight": np.full(10, 1j)},
        {"x": np.ones(6, np.float32)},
        {"x": np.ones((6, 1, 1), np.float32)},
        {"x": np.full((6, 2), np.nan, np.float32)},
        {"x": np.full((6, 2), "much")},
    ],
)
def test_a_forged_file_with_a_right_fingerprint_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "graph.npz"
    rich_graph().save(path)
    rewrite(path)
    assert same(Graph.load(path), rich_graph())
    rewrite(path, **changes)
    with pytest.raises(InputError):
        Graph.load(path)


def test_changed_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    rich_graph().save(path)
    arrays: dict[str, Any] = dict(load_arrays(path))
    np.savez(path, **(arrays | {"y": np.zeros(6, np.int16)}))
    with pytest.raises(InputError, match="fingerprint"):
        Graph.load(path)


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, indptr=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for load in (Graph.load, Split.load, load_arrays):
        with pytest.raises(InputError, match="pickled"):
            load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not an .npz"), (b"PK", "not a readable"), (b"id,label\n", "not an .npz"), (None, "no such file")],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "graph.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Graph.load(path)


def test_archives_of_other_things_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("meta.npy", b"no array")
    (tmp_path / "graph.npz").write_bytes(buffer.getvalue())
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(InputError, match="not a readable"):
        Graph.load(tmp_path / "graph.npz")
    with pytest.raises(InputError, match="lacks the array 'indptr'; it holds x"):
        Graph.load(tmp_path / "other.npz")
    with pytest.raises(InputError):
        Graph.load(tmp_path)


# ---------------------------------------------------------------- writing files


def write_half(path: Path, error: Exception) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize(("error", "raised"), [(KeyError("x"), KeyError), (OSError(28, "disk full"), ResourceError)])
def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(
    tmp_path: Path, error: Exception, raised: type[Exception]
) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(raised):
        write_half(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_good_write_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    for text in ("one", "two"):
        with atomic_path(path) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == "one"
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"), atomic_path(tmp_path):
        pass


def test_a_name_that_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine: expected a name that ends in \.npz"):
        rich_graph().save(tmp_path / "mine")
    assert not list(tmp_path.iterdir())
