"""Weights of a graph on disk as the kernels read them: made once, a block of rows at a time, and kept beside it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenphormer.files import atomic_path
from tokenphormer.graph import Graph
from tokenphormer.walks.reference import integer_weights

EDGES_AT_ONCE = 1 << 22


def stored_integer_weights(graph: Graph) -> NDArray[np.int64] | None:
    """`integer_weights` of a graph on disk, memory-mapped; None without weights."""
    # Imported here, since only graphs on disk need them.
    from tokenphormer.graph.disk import cache_folder, cache_name, is_array, map_array, release, row_blocks
    from tokenphormer.graph.disk_writer import ArrayWriter

    if graph.edge_weight is None:
        return None
    assert graph.stored is not None
    path = cache_folder(graph.stored) / f"{cache_name(graph, features=False)}-weights.npy"
    if not is_array(path, np.int64, graph.edge_weight.shape):
        with atomic_path(path) as temporary, ArrayWriter(temporary, np.int64) as writer:
            for first, last in row_blocks(graph.indptr, EDGES_AT_ONCE):
                start, end = graph.indptr[first], graph.indptr[last]
                weight = graph.edge_weight[start:end]
                running = integer_weights(
                    Graph(graph.indptr[first : last + 1] - start, graph.indices[start:end], weight)
                )
                assert running is not None
                writer.append(running)
                release(graph.edge_weight)
    return map_array(path)
