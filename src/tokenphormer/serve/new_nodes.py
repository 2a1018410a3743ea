"""New nodes that come with a request: the run's graph with them in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph

LEAST_ROOM = 40
"""Characters that ids of new nodes may have in any case."""


@dataclass(frozen=True)
class NewNode:
    """A node that the graph does not have: all its features, or only some, the others being 0."""

    id: str
    features: Sequence[float]
    indices: Sequence[int] | None = None
    """The columns of `features`; None: all of them in order."""


@dataclass(frozen=True)
class NewEdge:
    """An edge with a new node at one end or both."""

    source: str
    target: str
    weight: float | None = None


def extended(
    graph: Graph, index_of: Callable[[str], int | None], nodes: Sequence[NewNode], edges: Sequence[NewEdge]
) -> Graph:
    """The graph with the new nodes behind its own; what does not fit is an error that says where."""
    n = graph.num_nodes
    place: dict[str, int] = {}
    for number, node in enumerate(nodes):
        if node.id in place or index_of(node.id) is not None:
            whose = "another new node" if node.id in place else "a node of the graph"
            raise InputError(f"nodes.{number}.id: {node.id[:100]!r} is the id of {whose}")
        place[node.id] = n + number

    def find(where: str, node_id: str) -> int:
        found = place.get(node_id, index_of(node_id))
        if found is None:
            raise InputError(f"{where}: {node_id[:100]!r} is neither a new node nor one of the graph")
        return found

    pairs = np.empty((2, len(edges)), np.int64)
    for number, edge in enumerate(edges):
        pairs[:, number] = find(f"edges.{number}.source", edge.source), find(f"edges.{number}.target", edge.target)
        if pairs[:, number].max() < n:
            raise InputError(f"edges.{number}: both ends are nodes of the graph; at least one must be new")
        if edge.source == edge.target:
            raise InputError(f"edges.{number}: leads from a node to itself")
        if (edge.weight is None) != (graph.edge_weight is None):
            expected = "none, as the graph has none" if graph.edge_weight is None else "one, as the graph has weights"
            raise InputError(f"edges.{number}.weight: expected {expected}")
    own = np.stack([np.repeat(np.arange(n), graph.degree), graph.indices])
    weights = None
    if graph.edge_weight is not None:
        weights = np.concatenate([graph.edge_weight, [edge.weight for edge in edges]])
    return Graph.from_edges(
        np.concatenate([own, pairs], axis=1),
        n + len(nodes),
        x=_features(graph, nodes),
        y=np.concatenate([graph.y, np.full(len(nodes), -1)]),
        edge_weight=weights,
        directed=graph.directed,
        self_loops=graph.num_self_loops > 0,
        node_ids=None if graph.node_ids is None else _ids(graph.node_ids, place),
        class_names=graph.class_names,
        name=graph.name,
    )


def _ids(own: NDArray[np.str_], new: Iterable[str]) -> list[str]:
    """All ids; of a new one longer than those of the graph, a hash stands in for it.

    They are held in an array as wide as the longest: one of a thousand characters would take 4 kB for every node.
    """
    room = max(LEAST_ROOM, own.dtype.itemsize // 4)
    return [*map(str, own), *(name if len(name) <= room else _hash(name) for name in new)]


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:LEAST_ROOM]


def _features(graph: Graph, nodes: Sequence[NewNode]) -> Any:
    """The features of the graph with a row for every new node."""
    width = graph.num_features
    rows: NDArray[np.float32] = np.zeros((len(nodes), width), np.float32)
    for number, node in enumerate(nodes):
        if node.indices is None:
            if len(node.features) != width:
                raise InputError(f"nodes.{number}.features: {len(node.features)} numbers; expected {width}")
            rows[number] = node.features
            continue
        if len(node.features) != len(node.indices):
            given = f"{len(node.features)} numbers for {len(node.indices)} indices"
            raise InputError(f"nodes.{number}.features: {given}; expected one each")
        columns = np.array(node.indices, dtype=np.int64)
        if columns.size and (columns.min() < 0 or columns.max() >= width):
            raise InputError(f"nodes.{number}.indices: expected column numbers from 0 to {width - 1}")
        if len(np.unique(columns)) < len(columns):
            raise InputError(f"nodes.{number}.indices: a column stands there twice")
        rows[number, columns] = node.features
    if graph.x is None:
        return None
    if isinstance(graph.x, np.ndarray):
        return np.concatenate([graph.x, rows])
    return sp.vstack([graph.x, sp.csr_array(rows)], format="csr")
