"""New nodes: the graph with them in it is the one that a person would have built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tests.serve.conftest import write_run
from tests.tiny import tiny_graph
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.serve.explorer import Explorer, open_run
from tokenphormer.serve.new_nodes import NewEdge, NewNode, extended

ONES = [1.0] * 5


def by_name(graph: Graph, node_id: str) -> int | None:
    return next((node for node in range(graph.num_nodes) if graph.id_of(node) == node_id), None)


def extend(graph: Graph, nodes: list[NewNode], edges: list[NewEdge] | None = None) -> Graph:
    return extended(graph, lambda name: by_name(graph, name), nodes, edges or [])


def all_edges(graph: Graph) -> tuple[list[int], list[int]]:
    return np.repeat(np.arange(graph.num_nodes), graph.degree).tolist(), graph.indices.tolist()


def test_the_graph_with_new_nodes() -> None:
    graph = tiny_graph()
    made = extend(
        graph,
        [NewNode("a", [1, 2, 3, 4, 5]), NewNode("b", [7.0], [2])],
        [NewEdge("a", graph.id_of(3)), NewEdge("b", "a")],
    )
    source, target = all_edges(graph)
    x = np.vstack([graph.x, [1, 2, 3, 4, 5], [0, 0, 7, 0, 0]])
    expected = tiny_graph(
        edge_index=[[*source, 60, 61], [*target, 3, 60]],
        num_nodes=62,
        x=x,
        y=[*graph.y, -1, -1],
        node_ids=[*graph.node_ids, "a", "b"] if graph.node_ids is not None else None,
    )
    assert made.fingerprint == expected.fingerprint


def test_a_long_id_does_not_widen_all_others() -> None:
    """Ids are held in an array as wide as the longest, so that a request could ask for 4 kB a node."""
    graph = tiny_graph()
    names = ["x" * 1000, "y" * 1000, "short"]
    found = extend(graph, [NewNode(name, ONES) for name in names], [NewEdge(names[0], graph.id_of(0))])
    assert found.node_ids is not None
    assert found.node_ids.nbytes <= 4 * 40 * found.num_nodes
    assert found.id_of(62) == "short"
    assert found.neighbours(60).tolist() == [0]


def test_directed_edges_keep_their_direction() -> None:
    graph = tiny_graph(directed=True)
    made = extend(graph, [NewNode("a", ONES)], [NewEdge("a", graph.id_of(3))])
    assert made.neighbours(60).tolist() == [3]
    assert 60 not in made.neighbours(3)
    assert made.num_edges == graph.num_edges + 1


def test_weights_are_kept_and_asked_for() -> None:
    edges = np.array([[0, 1], [1, 2]])
    graph = tiny_graph(edge_index=edges, edge_weight=[2.0, 3.0])
    made = extend(graph, [NewNode("a", ONES)], [NewEdge("a", graph.id_of(0), 5.0)])
    assert made.edge_weight is not None
    assert dict(zip(made.neighbours(0).tolist(), made.edge_weight[made.indptr[0] : made.indptr[1]], strict=True)) == {
        1: 2.0,
        60: 5.0,
    }
    with pytest.raises(InputError, match=r"edges\.0\.weight: expected one, as the graph has weights"):
        extend(graph, [NewNode("a", ONES)], [NewEdge("a", graph.id_of(0))])
    with pytest.raises(InputError, match=r"edges\.0\.weight: expected none"):
        extend(tiny_graph(), [NewNode("a", ONES)], [NewEdge("a", graph.id_of(0), 1.0)])


def test_sparse_features_stay_sparse_and_self_loops_stay() -> None:
    dense = tiny_graph()
    source, target = all_edges(dense)
    graph = Graph.from_edges([[*source, 2], [*target, 2]], 60, x=sp.csr_array(dense.x), y=dense.y, self_loops=True)
    made = extend(graph, [NewNode("new", [9.0], [1])], [NewEdge("new", "2")])
    assert isinstance(made.x, sp.csr_array)
    assert made.x[[60]].toarray().tolist() == [[0, 9, 0, 0, 0]]
    assert made.num_self_loops == 1
    assert made.node_ids is None


@pytest.mark.parametrize(
    ("node", "edge", "message"),
    [
        (NewNode("a", [1.0]), None, r"nodes\.0\.features: 1 numbers; expected 5"),
        (NewNode("a", [1.0], [1, 2]), None, r"nodes\.0\.features: 1 numbers for 2 indices"),
        (NewNode("a", [1.0], [5]), None, r"nodes\.0\.indices: expected column numbers from 0 to 4"),
        (NewNode("a", [1.0, 2.0], [3, 3]), None, r"nodes\.0\.indices: a column stands there twice"),
        (NewNode('n,"3" ü', ONES), None, r"nodes\.0\.id: .* is the id of a node of the graph"),
        (NewNode("a", ONES), NewEdge("a", "who"), r"edges\.0\.target: 'who' is neither"),
        (NewNode("a", ONES), NewEdge("a", "a"), r"edges\.0: leads from a node to itself"),
        (NewNode("a", ONES), NewEdge('n,"3" ü', 'n,"4" ü'), r"edges\.0: both ends are nodes of the graph"),
    ],
)
def test_what_does_not_fit_is_named(node: NewNode, edge: NewEdge | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        extend(tiny_graph(), [node], [] if edge is None else [edge])


def test_two_new_nodes_of_one_name() -> None:
    with pytest.raises(InputError, match=r"nodes\.1\.id: 'a' is the id of another new node"):
        extend(tiny_graph(), [NewNode("a", ONES), NewNode("a", ONES)])


@pytest.mark.parametrize("changes", [{}, {"walk_pe": 2}, {"votes": 2}, {"score_hops": 2}], ids=str)
def test_they_are_predicted_as_on_any_graph(tmp_path: Path, changes: dict[str, Any]) -> None:
    graph = tiny_graph()
    explorer = Explorer(open_run(write_run(tmp_path, graph, max_epochs=2, **changes), "cpu"))
    explorer.load()
    nodes, edges = [NewNode("a", [3, -2, 1, 0, 2])], [NewEdge("a", graph.id_of(3)), NewEdge(graph.id_of(8), "a")]
    found = explorer.predict_new(nodes, edges)
    expected = explorer.run.classifier.predict_proba(extend(graph, nodes, edges), [60])
    np.testing.assert_allclose(found[0]["probabilities"], expected[0], atol=1e-6)
    everyone = explorer.run.classifier.predict_proba(graph)
    np.testing.assert_allclose(explorer.predictions.probabilities, everyone, atol=1e-6)
