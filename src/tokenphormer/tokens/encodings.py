"""Positional encodings: columns that tell a node's place in the graph, appended to its features."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix

DENSE_BELOW = 600
"""Graphs with fewer nodes are decomposed whole, which is exact and quick."""

DENSE_ABOVE = 0.1
"""Rows of Pʲ with a larger share of entries are stored dense."""


def laplacian_eigenvectors(graph: Graph, count: int) -> NDArray[np.float32]:
    """(n, count) eigenvectors of I − D^-½ A D^-½ with the smallest eigenvalues but the first.

    A direction of edges is ignored. Signs are fixed so that each column's largest entry is positive: an eigenvector
    and its negative are the same thing, and training flips them at random.
    """
    n = graph.num_nodes
    if not 0 < count < n - 1:
        room = f"1 to {n - 2} eigenvectors" if n > 2 else "no eigenvector; set it to 0"
        raise InputError(f"laplacian_pe: {count}; a graph of {n} nodes has room for {room}")
    adjacency = sp.csr_array((np.ones(graph.num_directed_edges), graph.indices, graph.indptr), shape=(n, n))
    adjacency = sp.csr_array(adjacency.maximum(adjacency.T))
    degree: NDArray[np.float64] = np.asarray(adjacency.sum(axis=1)).ravel()
    root = np.divide(1.0, np.sqrt(degree), out=np.zeros(n), where=degree > 0)
    normal = sp.csr_array(sp.diags_array(root) @ adjacency @ sp.diags_array(root))
    if n < DENSE_BELOW:
        _, vectors = np.linalg.eigh(normal.toarray())
    elif not normal.nnz:  # which Lanczos cannot begin with; any vectors would do, these are those of `eigh`
        vectors = np.eye(n, count + 1, count + 1 - n)
    else:
        # The smallest of the Laplacian are the largest of the normalised adjacency, which Lanczos finds quickly.
        start = np.random.RandomState(0).rand(n)
        _, vectors = eigsh(normal, k=count + 1, which="LA", v0=start, tol=1e-6)
    chosen = vectors[:, ::-1][:, 1 : count + 1]
    largest = chosen[np.abs(chosen).argmax(axis=0), np.arange(count)]
    signed: NDArray[np.float32] = (chosen * np.where(largest < 0, -1.0, 1.0)).astype(np.float32)
    return signed


def return_probabilities(graph: Graph, steps: int) -> NDArray[np.float32]:
    """(n, steps) the chance that a uniform walk is back at its start after 1 … `steps` steps, exactly.

    Computed a block of rows of Pʲ at a time, so the memory is that of a block of the steps-hop neighbourhood. A block
    that fills up, as it soon does around hubs, is a dense one from then on, which is many times as fast.
    """
    if steps < 1:
        raise InputError(f"walk_pe: {steps}; expected at least 1 step")
    P = propagation_matrix(graph, "row").astype(np.float64)
    n = graph.num_nodes
    result = np.zeros((n, steps), dtype=np.float32)
    for first in range(0, n, 1024):
        rows = np.arange(first, min(first + 1024, n))
        block: Any = sp.csr_array((np.ones(len(rows)), (np.arange(len(rows)), rows)), shape=(len(rows), n))
        for step in range(steps):
            block = block @ P
            if isinstance(block, sp.csr_array) and block.nnz > DENSE_ABOVE * len(rows) * n:
                block = block.toarray()
            result[rows, step] = np.asarray(block[np.arange(len(rows)), rows]).ravel()
    return result
