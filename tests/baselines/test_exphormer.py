"""Exphormer: attention along an expander and virtual nodes besides the graph's edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from tests.baselines.build import build, separable_graph, without_norms
from tests.baselines.dense import without_edges
from tokenphormer.baselines.exphormer import expander_edges


def as_matrix(edges: np.ndarray, num_nodes: int) -> csr_array:
    return csr_array((np.ones(edges.shape[1]), edges), shape=(num_nodes, num_nodes))


@pytest.mark.parametrize("degree", [1, 3])
def test_mechanism_the_expander_is_regular_and_connected(degree: int) -> None:
    matrix = as_matrix(expander_edges(200, degree, np.random.default_rng(0)), 200)
    assert (matrix.sum(axis=1) == 2 * degree).all()
    assert (matrix != matrix.T).nnz == 0
    assert matrix.diagonal().sum() == 0
    assert connected_components(matrix)[0] == 1


def test_mechanism_the_expander_mixes() -> None:
    """Its second eigenvalue is near the least possible, 2√(d − 1); that of a ring of the same degree is near d."""
    eigenvalues = np.linalg.eigvalsh(as_matrix(expander_edges(400, 3, np.random.default_rng(0)), 400).toarray())
    assert eigenvalues[-1] == pytest.approx(6)
    assert max(eigenvalues[-2], -eigenvalues[0]) < 2 * np.sqrt(5) + 0.3


def test_the_expander_is_a_function_of_the_seed() -> None:
    same, again, other = (build("exphormer", seed=seed).sparse.edges for seed in (0, 0, 1))
    assert torch.equal(same, again)
    assert not torch.equal(same, other)


def test_the_pattern_of_edges() -> None:
    method = build("exphormer", expander_degree=2, virtual_nodes=2)
    sparse, real = method.sparse, method.task.edge_index
    sizes = [real.shape[1], 4 * 90, 90, 90, 90, 90]
    assert sparse.kinds.sum(dim=0).tolist() == sizes
    graph, _, into_first, into_second, from_first, from_second = torch.split(sparse.edges, sizes, dim=1)
    assert torch.equal(graph, real)
    for inward, outward, hub in ((into_first, from_first, 90), (into_second, from_second, 91)):
        assert inward.tolist() == [list(range(90)), [hub] * 90]
        assert outward.tolist() == [[hub] * 90, list(range(90))]


def reaches(**settings: int) -> bool:
    """Whether a change of one node's features is seen at another, in a graph without edges."""
    graph = without_edges(separable_graph())
    method = without_norms(build("exphormer", graph=graph, num_layers=6, **settings)).eval()
    before = method()[5]
    method.task.x[70] += 3.0
    return not torch.equal(method()[5], before)


def test_mechanism_the_expander_and_virtual_nodes_join_all_nodes() -> None:
    assert not reaches(expander_degree=0, virtual_nodes=0)
    assert reaches(expander_degree=3, virtual_nodes=0)
    assert reaches(expander_degree=0, virtual_nodes=1)


def test_mechanism_each_kind_of_edge_changes_the_output() -> None:
    method = build("exphormer", virtual_nodes=1).eval()
    before = method()
    for kind in range(4):
        kept = method.edge_kinds.data[kind].clone()
        method.edge_kinds.data[kind] = kept + 5 * torch.randn(16)
        assert not torch.allclose(method(), before, atol=1e-5), kind
        method.edge_kinds.data[kind] = kept
    assert torch.equal(method(), before)


def test_mechanism_removing_the_expander_changes_the_output() -> None:
    """The same weights, with the expander's edges taken away."""
    method = build("exphormer").eval()
    before = method()
    sparse, kept = method.sparse, method.sparse.kinds[:, 1] == 0
    method.sparse = type(sparse)(sparse.graph_edges, sparse.edges[:, kept], sparse.kinds[kept])
    assert not torch.allclose(method(), before, atol=1e-3)


def test_attention_dropout_is_for_training() -> None:
    method = build("exphormer", dropout=0.0, attention_dropout=0.8)
    assert not torch.equal(method(), method())
    method.eval()
    assert torch.equal(method(), method())
