"""Conversions: there and back without loss, and what each library's own habits become."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data.data import Data

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.convert import from_networkx, from_pyg, from_scipy, to_networkx, to_pyg, to_scipy

X = np.array([[1, 0, 0], [0, 0, 2], [0, 0, 0], [0, 3, 0]], np.float32)
RICH: dict[str, Any] = {
    "edge_index": [[0, 1, 2, 3], [1, 2, 3, 3]],
    "num_nodes": 4,
    "x": X,
    "y": [1, 0, -1, 1],
    "edge_weight": [0.5, 2.0, 1.0, 4.0],
    "self_loops": True,
    "node_ids": ["a", "ü", "c\n", "007"],
    "class_names": ("no", "yes"),
    "splits": (Split([0], [1], [3]),),
}
CASES: dict[str, dict[str, Any]] = {
    "undirected": {},
    "directed": {"directed": True},
    "sparse": {"x": sp.csr_array(X)},
    "unweighted": {"edge_weight": None},
    "several splits": {"splits": (Split([0], [1], [3]), Split([1], [3], []), Split([3], [], [0]))},
    "no edges": {"edge_index": [[], []], "edge_weight": None},
}


@pytest.fixture(params=list(CASES))
def graph(request: pytest.FixtureRequest) -> Graph:
    return Graph.from_edges(**(RICH | CASES[request.param]))


# ---------------------------------------------------------------- PyTorch Geometric


def test_pyg_there_and_back(graph: Graph) -> None:
    back = from_pyg(to_pyg(graph), self_loops=True)
    assert back.fingerprint == graph.fingerprint
    assert [split.hash for split in back.splits] == [split.hash for split in graph.splits]


def test_pyg_of_a_bare_graph() -> None:
    graph = Graph.from_edges([[0], [1]], num_nodes=3)
    data = to_pyg(graph)
    assert (data.num_nodes, data.x, data.y, "train_mask" in data, "node_ids" in data) == (3, None, None, False, False)
    assert from_pyg(data).fingerprint == graph.fingerprint


def test_to_pyg_is_what_pyg_expects() -> None:
    data = to_pyg(Graph.from_edges(**RICH))
    data.validate()
    assert (data.edge_index.dtype, data.y.dtype) == (torch.int64, torch.int64)
    assert data.edge_weight.dtype == data.x.dtype == torch.float32
    assert data.train_mask.tolist() == [True, False, False, False]
    data.x[0, 0] = 7  # it is the caller's own copy


def test_pyg_direction_is_seen_and_can_be_set() -> None:
    one_way = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    assert from_pyg(one_way).directed
    assert not from_pyg(one_way, directed=False).directed
    assert from_pyg(one_way, directed=False).num_edges == 2
    both = Data(edge_index=torch.tensor([[0, 1, 0], [1, 0, 1]]), num_nodes=2)
    assert not from_pyg(both).directed
    both.edge_weight = torch.tensor([1.0, 2.0, 3.0])
    assert from_pyg(both).directed
    both.edge_weight = torch.tensor([1.0, 4.0, 3.0])
    assert not from_pyg(both).directed


def test_pyg_edge_attributes() -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    for attribute in (torch.tensor([2.0]), torch.tensor([[2.0]])):
        data.edge_attr = attribute
        weight = from_pyg(data).edge_weight
        assert weight is not None
        assert weight.tolist() == [2.0]
    for given in (torch.tensor([[2.0]]), torch.tensor([2.0], dtype=torch.bfloat16), torch.tensor([2]).half()):
        weight = from_pyg(Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, edge_weight=given)).edge_weight
        assert weight is not None
        assert weight.tolist() == [2.0]
    data.edge_attr = torch.ones(1, 3)
    graph = from_pyg(data)
    assert graph.edge_weight is None
    assert graph.notes[-1] == "edge_attr of shape (1, 3) not used"


def test_pyg_masks_of_several_columns() -> None:
    """WikiCS: twenty training masks, one test mask."""
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=3, y=torch.tensor([[0], [1], [0]]))
    data.train_mask = torch.tensor([[True, False], [False, True], [False, False]])
    data.test_mask = torch.tensor([False, False, True])
    graph = from_pyg(data)
    assert [(s.train.tolist(), s.val.tolist(), s.test.tolist()) for s in graph.splits] == [
        ([0], [], [2]),
        ([1], [], [2]),
    ]
    assert [s.name for s in graph.splits] == ["given-0", "given-1"]
    assert graph.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": None}, "expected a Data with an edge_index, got Data without"),
        ({"edge_index": torch.tensor([[0, 3], [1, 0]])}, "nodes are 0 to 2"),
        ({"y": torch.zeros(3, 2, dtype=torch.int64)}, "one label a node"),
        ({"y": torch.zeros(3)}, "expected class numbers"),
        ({"x": torch.tensor([[1.0], [2.0], [torch.nan]])}, "row 2, column 0"),
        ({"train_mask": torch.tensor([True, False])}, r"train_mask: expected booleans of shape \(3,\)"),
        ({"train_mask": torch.tensor([0, 1, 2])}, "train_mask: expected booleans"),
        ({"val_mask": torch.tensor([True, False, False])}, "stands in it twice"),
        ({"test_mask": torch.ones(3, 2).bool(), "val_mask": torch.ones(3, 3).bool()}, "different numbers of columns"),
        ({"y": torch.tensor([-1, 0, 0])}, "has no label"),
        ({"edge_weight": torch.tensor([1.0, 2.0])}, "one weight an edge"),
        ({"edge_weight": torch.ones(1, 2)}, "one weight an edge"),
        ({"class_names": {1: "b", 0: "a"}}, "class_names: expected a tuple, .* got a dict"),
    ],
)
def test_bad_pyg_data(changes: dict[str, Any], message: str) -> None:
    data = Data(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1, 0]), num_nodes=3)
    data.train_mask = torch.tensor([True, False, False])
    for name, value in changes.items():
        data[name] = value
    with pytest.raises(InputError, match=message):
        from_pyg(data)


# ---------------------------------------------------------------- NetworkX


def test_networkx_there_and_back(graph: Graph) -> None:
    other = to_networkx(graph)
    assert list(other.nodes) == ["a", "ü", "c\n", "007"]
    assert (other.is_directed(), other.number_of_edges()) == (graph.directed, graph.num_edges)
    weight = None if graph.edge_weight is None else "weight"
    back = from_networkx(other, features="x", label="label", weight=weight, self_loops=True)
    x: Any = graph.x
    assert isinstance(back.x, np.ndarray)
    assert np.array_equal(back.x, x if isinstance(x, np.ndarray) else x.toarray())
    assert (back.class_names, back.y.tolist()) == (graph.class_names, graph.y.tolist())
    assert np.array_equal(to_scipy(back).toarray(), to_scipy(graph).toarray())
    assert back.directed == graph.directed


def test_networkx_of_anything() -> None:
    other: nx.MultiGraph[Any] = nx.MultiGraph(name="club")
    other.add_edge((0, 1), "x", w=2)
    other.add_edge((0, 1), "x", w=3)
    other.add_edge("x", "x")
    other.add_node(7, colour=10)
    other.nodes["x"]["colour"] = 9
    graph = from_networkx(other, label="colour", weight="w")
    assert graph.node_ids is not None
    assert graph.edge_weight is not None
    assert (graph.node_ids.tolist(), graph.name) == (["(0, 1)", "x", "7"], "club")
    assert (graph.class_names, graph.y.tolist()) == (("9", "10"), [-1, 0, 1])
    assert graph.edge_weight.tolist() == [5.0, 5.0]
    assert "dropped 1 self-loops" in graph.notes
    assert from_networkx(other).edge_weight is None


@pytest.mark.parametrize(
    "missing",
    [None, "", float("nan"), np.float32("nan"), np.datetime64("NaT"), np.timedelta64("NaT"), pd.NA, pd.NaT],
    ids=lambda missing: f"{type(missing).__name__} {missing}",
)
def test_a_missing_label_in_networkx_is_no_class(missing: object) -> None:
    mine = nx.path_graph(4)
    nx.set_node_attributes(mine, {0: "b", 1: missing, 2: "a", 3: "nan"}, "label")
    graph = from_networkx(mine, label="label")
    assert graph.class_names == ("a", "b", "nan")
    assert graph.y.tolist() == [1, -1, 0, 2]


def test_labels_of_a_pandas_column_with_a_gap() -> None:
    mine = nx.path_graph(3)
    nx.set_node_attributes(mine, pd.Series(["b", np.nan, "a"]).to_dict(), "label")
    graph = from_networkx(mine, label="label")
    assert graph.class_names == ("a", "b")
    assert graph.y.tolist() == [1, -1, 0]


def test_networkx_of_a_known_graph() -> None:
    graph = from_networkx(nx.karate_club_graph(), label="club", weight="weight")
    assert (graph.num_nodes, graph.num_edges, graph.class_names) == (34, 78, ("Mr. Hi", "Officer"))


def test_to_networkx_leaves_out_what_is_not_wanted() -> None:
    other = to_networkx(Graph.from_edges(**RICH), features=None, label=None, weight=None)
    assert not any(data for _, data in other.nodes(data=True))
    assert not any(data for *_, data in other.edges(data=True))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({1: [1.0], "1": [2.0]}, "'1' stands for more than one node"),
        ({"a": [1.0], "b": None}, "node 'b', attribute 'x': expected a vector of length 1, as before, got nothing"),
        ({"a": [1.0], "b": [1.0, 2.0]}, r"node 'b', attribute 'x': .* got shape \(2,\)"),
        ({"a": "red"}, "node 'a', attribute 'x': expected numbers"),
        ({"a": np.datetime64("NaT")}, r"node 'a', attribute 'x': expected numbers \(these are dates"),
        ({"a": [[1.0]]}, r"got shape \(1, 1\)"),
        ({"a": [1e300]}, "row 0, column 0: not a finite float32"),
        ({"a\0": [1.0]}, "NUL"),
        ({"a": [1.0], float("nan"): [2.0]}, "a node is nan, .*; every node needs an id"),
        ({"a": [1.0], pd.NA: [2.0]}, "a node is <NA>, .*; every node needs an id"),
        ({}, "no node"),
    ],
)
def test_bad_networkx_graphs(nodes: dict[Any, Any], message: str) -> None:
    other: nx.Graph[Any] = nx.Graph()
    for node, x in nodes.items():
        other.add_node(node, **({} if x is None else {"x": x}))
    with pytest.raises(InputError, match=message):
        from_networkx(other, features="x")


def test_bad_networkx_weights() -> None:
    other: nx.Graph[Any] = nx.Graph()
    for weight, message in ((0, "must be positive"), ("heavy", "expected numbers")):
        other.add_edge("a", "b", weight=weight)
        with pytest.raises(InputError, match=message):
            from_networkx(other, weight="weight")
    with pytest.raises(InputError, match="from_networkx: no edge has the attribute 'wieght'"):
        from_networkx(other, weight="wieght")
    other.add_edge("b", "c")
    other["a"]["b"]["weight"] = 2
    weights = from_networkx(other, weight="weight").edge_weight
    assert weights is not None
    assert weights.tolist() == [2, 2, 1, 1]
    assert from_networkx(nx.empty_graph(2), weight="weight").num_edges == 0


# ---------------------------------------------------------------- SciPy


def test_scipy_there_and_back(graph: Graph) -> None:
    matrix = to_scipy(graph)
    assert matrix.shape == (4, 4)
    back = from_scipy(
        matrix, graph.x, graph.y, graph.directed, self_loops=True, node_ids=graph.node_ids, class_names=("no", "yes")
    )
    assert back.fingerprint == graph.fingerprint
    matrix.data[:] = 0  # it is the caller's own copy
    assert graph.edge_weight is None or (graph.edge_weight > 0).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float32])
def test_entries_of_few_bits_add_up(dtype: Any) -> None:
    rows, columns = np.zeros(256, np.int64), np.ones(256, np.int64)
    graph = from_scipy(sp.coo_array((np.ones(256, dtype), (rows, columns)), shape=(2, 2)))
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [256, 256]


def test_scipy_entries() -> None:
    coo = sp.coo_array(([1, 1, 0, 1], ([0, 0, 1, 2], [1, 1, 2, 2])), shape=(3, 3))
    graph = from_scipy(coo, directed=True)
    assert graph.edge_weight is not None
    assert (graph.num_edges, graph.edge_weight.tolist(), graph.notes) == (1, [2.0], ("dropped 1 self-loops",))
    assert coo.nnz == 4  # the caller's matrix is as it was
    assert from_scipy(coo.astype(bool), directed=True).edge_weight is None
    assert from_scipy(np.array([[0, 1], [1, 0]])).num_edges == 1
    assert from_scipy(sp.csr_matrix(np.array([[0, 2], [4, 0]]))).edge_weight.tolist() == [3, 3]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (sp.csr_array((2, 3)), r"expected a square matrix, got shape \(2, 3\)"),
        (np.ones(4), r"got shape \(4,\)"),
        (np.array([["a", "b"], ["c", "d"]]), "adjacency: "),
        (np.array([[0, 1j], [1j, 0]]), "expected real numbers, got complex128"),
        (np.array([[0, -1], [0, 0]]), "weights must be positive"),
        (np.array([[0, np.nan], [0, 0]]), "weights must be positive and finite"),
        (sp.csr_array((0, 0)), "no node"),
    ],
)
def test_bad_matrices(matrix: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_scipy(matrix)
