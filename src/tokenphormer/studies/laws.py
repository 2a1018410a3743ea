"""Exact laws of the four walks: where a walk is after t steps, and every walk with its probability.

Two tools. `position_laws` carries the law of the position along in float64, on graphs of thousands of nodes; a
non-backtracking walk is a chain of (previous, current) pairs, as in the paper's P̃. `walk_law` lists all walks of a
small graph with their probabilities as fractions, straight from the definitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.walks import Kind

Law = NDArray[np.float64]
Walk = tuple[int, ...]
NON_BACKTRACKING: tuple[Kind, ...] = ("non_backtracking", "non_backtracking_jump")


# -------------------------------------------------------------------- positions


def transition_matrix(graph: Graph) -> sp.csr_array:
    """(n, n) P: the law of one uniform step, by weight where there are weights; empty where there is no way."""
    weight = np.ones(graph.num_directed_edges) if graph.edge_weight is None else graph.edge_weight
    rows = np.repeat(np.arange(graph.num_nodes), graph.degree)
    total = np.bincount(rows, weight, graph.num_nodes)
    return sp.csr_array((weight / total[rows], graph.indices, graph.indptr), shape=(graph.num_nodes,) * 2)


def step_law(graph: Graph, kind: Kind, jump_radius: int = 3) -> sp.csr_array:
    """(n, n) the law of a walk's first step: P, or (P + … + Pᵏ)/k without its diagonal, renormalised."""
    P = transition_matrix(graph)
    if kind in ("uniform", "non_backtracking"):
        return P
    power, jump = P, P
    for _ in range(jump_radius - 1):
        power = sp.csr_array(power @ P)
        jump = sp.csr_array(jump + power)
    jump = sp.csr_array(jump - sp.diags_array(jump.diagonal()))
    jump.eliminate_zeros()
    jump.sort_indices()
    jump.data /= np.repeat(np.asarray(jump.sum(axis=1)).ravel(), np.diff(jump.indptr))
    return jump


def position_laws(graph: Graph, kind: Kind, start: Law, length: int, jump_radius: int = 3) -> Iterator[Law]:
    """(n) the law of the position after 0 … `length` steps; a walk that ended is nowhere."""
    if graph.directed:
        raise InputError(f"graph '{graph.name}' is directed; these laws are for undirected graphs")
    J = step_law(graph, kind, jump_radius)
    if kind in NON_BACKTRACKING:
        yield from _pair_laws(J, start, length)
        return
    yield start
    for _ in range(length):
        start = start @ J
        yield start


def _pair_laws(J: sp.csr_array, start: Law, length: int) -> Iterator[Law]:
    """The same for walks that do not go back: the law of (previous u, current v) is carried along.

    From (u, v) the next node is y ≠ u with J_vy / (1 − J_vu); where v leads to u alone, it is u.
    """
    n = J.shape[0]
    rows, columns = np.repeat(np.arange(n), np.diff(J.indptr)), J.indices
    twin = np.lexsort((rows, columns))  # of the entry (u, v) the entry (v, u): the pattern is symmetric
    alone = np.diff(J.indptr) == 1
    onward = np.where(alone[columns], np.inf, 1 - J.data[twin])  # 1 − J_vu for the entry (u, v)
    pairs = start[rows] * J.data
    yield start
    for _ in range(length):
        yield np.bincount(columns, pairs, n).astype(np.float64)
        share = pairs / onward
        arriving = np.bincount(columns, share, n)
        fresh = J.data * np.maximum(arriving[rows] - share[twin], 0)  # rounding may leave a hair below 0
        pairs = np.where(alone[rows], pairs[twin], fresh)


def degree_law(graph: Graph) -> Law:
    """(n) dᵢ / 2|E|, or with weights Σₖ wᵢₖ / ΣᵢΣₖ wᵢₖ: the paper's limit of a graph document."""
    weight = np.ones(graph.num_directed_edges) if graph.edge_weight is None else graph.edge_weight
    total = np.bincount(np.repeat(np.arange(graph.num_nodes), graph.degree), weight, graph.num_nodes)
    law: Law = total / total.sum()
    return law


def jump_limit(graph: Graph, jump_radius: int = 3) -> Law:
    """(n) ∝ dᵢ (1 − Kᵢᵢ) with K = (P + … + Pᵏ)/k: the law that the jump walk leaves unchanged.

    K is reversible under dᵢ: dᵢ Kᵢⱼ = dⱼ Kⱼᵢ. Removing the diagonal and renormalising divides row i by 1 − Kᵢᵢ, so
    that the flows stay equal both ways under dᵢ (1 − Kᵢᵢ) instead.
    """
    P = transition_matrix(graph)
    power, returning = P, P.diagonal()
    for _ in range(jump_radius - 1):
        power = sp.csr_array(power @ P)
        returning = returning + power.diagonal()
    law = degree_law(graph) * (1 - returning / jump_radius)
    normalised: Law = law / law.sum()
    return normalised


def total_variation(a: Law, b: Law) -> float:
    """Half the sum of the absolute differences: the largest difference in the chance of any event.

    To 12 digits: what is less is rounding, and not the same on every machine.
    """
    return round(0.5 * float(np.abs(a - b).sum()), 12)


# -------------------------------------------------------------------- all walks of a small graph


def next_law(graph: Graph, kind: Kind, node: int, previous: int | None, jump_radius: int = 3) -> dict[int, Fraction]:
    """The law of the next node as fractions; empty where the walk ends. For graphs without weights."""
    assert graph.edge_weight is None, "fractions are counted for graphs without weights"
    if kind in ("uniform", "non_backtracking"):
        law = dict.fromkeys(graph.neighbours(node).tolist(), Fraction(1))
    else:
        law, here = {}, {node: Fraction(1)}
        for _ in range(jump_radius):
            ahead: dict[int, Fraction] = {}
            for v, mass in here.items():
                for u in graph.neighbours(v).tolist():
                    ahead[u] = ahead.get(u, Fraction(0)) + mass / int(graph.degree[v])
            here = ahead
            law = {v: law.get(v, Fraction(0)) + here.get(v, Fraction(0)) for v in law | here}
        law.pop(node, None)
    if kind in NON_BACKTRACKING and previous in law and len(law) > 1:
        del law[previous]
    total = sum(law.values(), Fraction(0))
    return {v: mass / total for v, mass in law.items()}


def walk_law(graph: Graph, kind: Kind, start: int, length: int, jump_radius: int = 3) -> dict[Walk, Fraction]:
    """Every walk of `length` steps from `start` with its probability; a walk that ends is shorter.

    >>> path = Graph.from_edges([[0, 1], [1, 2]])
    >>> walk_law(path, "uniform", 0, 2)
    {(0, 1, 0): Fraction(1, 2), (0, 1, 2): Fraction(1, 2)}
    >>> walk_law(path, "non_backtracking", 0, 2)
    {(0, 1, 2): Fraction(1, 1)}
    """
    law: dict[Walk, Fraction] = {(start,): Fraction(1)}
    for step in range(length):
        longer: dict[Walk, Fraction] = {}
        for walk, mass in law.items():
            previous = walk[-2] if len(walk) > 1 else None
            ahead = next_law(graph, kind, walk[-1], previous, jump_radius) if len(walk) == step + 1 else {}
            for node, share in ahead.items():
                longer[(*walk, node)] = mass * share
            if not ahead:
                longer[walk] = mass
        law = longer
    return law


def common_base(graphs: Sequence[Graph]) -> int:
    """A number that every node's number of ways onward divides, turning back or not."""
    degrees = np.unique(np.concatenate([graph.degree for graph in graphs]))
    return math.lcm(*degrees.tolist(), *np.maximum(degrees - 1, 1).tolist())


def weighted_walks(
    graph: Graph, kind: Kind, start: int, length: int, base: int
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """(W, length + 1) all uniform or non-backtracking walks from `start`, and (W) their probabilities × baseˡᵉⁿᵍᵗʰ.

    The fast twin of `walk_law` for graphs of fewer than 128 nodes, none of them isolated; `base` is a `common_base`.
    """
    assert kind in ("uniform", "non_backtracking")
    assert graph.degree.min() > 0
    assert graph.num_nodes < 128
    assert base**length < 2**63, "the weights of the walks do not fit 64 bits"
    walks, weight = np.array([[start]], dtype=np.int8), np.ones(1, dtype=np.int64)
    for step in range(length):
        ways = graph.degree[walks[:, -1]]
        row = np.repeat(np.arange(len(walks)), ways)
        within = np.arange(len(row)) - np.repeat(np.cumsum(ways) - ways, ways)
        ahead = graph.indices[graph.indptr[walks[row, -1]] + within].astype(np.int8)
        ways = ways[row]
        if kind == "non_backtracking" and step:
            kept = (ahead != walks[row, -2]) | (ways == 1)
            row, ahead, ways = row[kept], ahead[kept], np.maximum(ways[kept] - 1, 1)
        walks = np.concatenate([walks[row], ahead[:, None]], axis=1)
        weight = weight[row] * (base // ways)
    return walks, weight
