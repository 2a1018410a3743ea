"""Propagated features for the hop-tokens: the decoupled message passing Hᵏ = Âᵏ X (the paper's "Hop-token").

The paper writes A without saying how it is normalised; the authors' code takes the raw adjacency. Here the
default is GCN's D̃^-½ (A + I) D̃^-½, and the authors' form is `normalisation="none"`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.graph.checks import Features

Normalisation = Literal["symmetric", "row", "none"]
NORMALISATIONS: tuple[Normalisation, ...] = ("symmetric", "row", "none")
TOO_LARGE = (
    "hop features grow beyond 65,504, the largest number in half precision; set hop_normalisation=row or num_hops "
    "lower, or convert the graph without --float16"
)
"""Of graphs on disk, whose hop features are kept in the precision of their features."""


def propagation_matrix(graph: Graph, normalisation: Normalisation = "symmetric") -> sp.csr_array:
    """(n, n) the matrix of one hop.

    `symmetric`: D̃^-½ (A + I) D̃^-½. `row`: D^-1 A, the mean over neighbours; empty rows stay empty. `none`: A.

    >>> path = Graph.from_edges([[0], [1]])
    >>> propagation_matrix(path, "row").toarray().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    n = graph.num_nodes
    weight = np.ones(graph.num_directed_edges) if graph.edge_weight is None else graph.edge_weight
    adjacency = sp.csr_array((weight, graph.indices, graph.indptr), shape=(n, n))
    if normalisation == "none":
        return adjacency.astype(np.float32)
    if normalisation == "row":
        degree: NDArray[np.float64] = np.asarray(adjacency.sum(axis=1)).ravel()
        inverse = np.divide(1.0, degree, out=np.zeros(n), where=degree > 0)
        return sp.csr_array(sp.diags_array(inverse) @ adjacency).astype(np.float32)
    if normalisation == "symmetric":
        with_self = sp.csr_array(adjacency + sp.eye_array(n))
        root = 1.0 / np.sqrt(np.asarray(with_self.sum(axis=1)).ravel())
        return sp.csr_array(sp.diags_array(root) @ with_self @ sp.diags_array(root)).astype(np.float32)
    raise InputError(f"hop_normalisation: {normalisation!r}; expected one of {', '.join(NORMALISATIONS)}")


def propagate(matrix: sp.csr_array, x: Features, hops: int) -> list[Features]:
    """[(n, F)] the features after 1 … `hops` hops of `matrix`; sparse features stay sparse."""
    result: list[Features] = []
    for _ in range(hops):
        product = matrix @ x
        x = sp.csr_array(product) if sp.issparse(product) else np.asarray(product, dtype=np.float32)
        result.append(x)
    return result
