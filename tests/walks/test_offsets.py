"""Graphs with more than 2³¹ directed edges: their offsets do not fit 32 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.walks.graphs import random_graph
from tokenphormer.graph import Graph
from tokenphormer.walks import KINDS, Kind, sample_walks
from tokenphormer.walks import sampling as module


@pytest.mark.parametrize("kind", KINDS)
def test_wide_offsets_give_the_same_walks(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(6)
    expected = sample_walks(graph, kind, 5, 5).numpy()
    indptr, indices, running = module.csr_arrays(graph)
    assert indptr.dtype == np.int32
    monkeypatch.setitem(module._arrays, graph, (graph.indptr, indices, running))
    for backend in ("numba", "portable", "triton"):
        if backend == "triton":
            pytest.importorskip("triton", reason="triton has no wheel for this platform")
        monkeypatch.setitem(module._tensors, graph, {})
        walks = sample_walks(graph, kind, 5, 5, backend=backend).numpy()
        np.testing.assert_array_equal(walks, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_two_to_the_31_edges(kind: Kind, tmp_path: Path) -> None:
    """The file is sparse: all but its last page is a hole, so neither disk nor memory is needed."""
    hole = 2**31 + 10
    cycle = np.array([2, 3, 4, 1], np.int32)  # 1 → 2 → 3 → 4 → 1, behind the endless row of node 0
    indices = np.memmap(tmp_path / "indices", dtype=np.int32, mode="w+", shape=(hole + 4,))
    indices[hole:] = cycle
    indptr = np.array([0, *range(hole, hole + 5)], np.int64)
    graph = Graph(indptr, indices, directed=True)
    walks = sample_walks(graph, kind, 3, 6, nodes=[1, 3], jump_radius=1).numpy()
    assert walks[:, 0].tolist() == [[1, 2, 3, 4, 1, 2, 3], [3, 4, 1, 2, 3, 4, 1]]
