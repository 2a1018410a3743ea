"""To and from other libraries' graphs: PyTorch Geometric, NetworkX, SciPy."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph.checks import as_rows, is_missing, refuse_lossy
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.splits import PARTS, Split
from tokenphormer.graph.tables import sort_classes

if TYPE_CHECKING:
    import networkx as nx
    from torch_geometric.data.data import Data

# -------------------------------------------------------------------- PyTorch Geometric


def from_pyg(data: Data, *, name: str = "graph", directed: bool | None = None, self_loops: bool = False) -> Graph:
    """A graph from a PyG `Data`.

    `edge_weight`, or an `edge_attr` of width 1, gives the weights; `train_mask`, `val_mask`, `test_mask` the
    splits, as many as they have columns; `node_ids` and `class_names`, if there are any, the names.
    `directed` None means: undirected if every edge is there in both directions with the same weight.
    """
    if getattr(data, "edge_index", None) is None:
        raise InputError(f"from_pyg: expected a Data with an edge_index, got {type(data).__name__} without")
    edge_index, n = _to_numpy(data.edge_index), int(data.num_nodes or 0)
    weight, notes = _pyg_weight(data)
    graph = Graph.from_edges(
        edge_index,
        num_nodes=n,
        x=data.x,
        y=_pyg_labels(data),
        edge_weight=weight,
        directed=not _is_symmetric(edge_index, weight, n) if directed is None else directed,
        self_loops=self_loops,
        node_ids=getattr(data, "node_ids", None),
        class_names=getattr(data, "class_names", None),
        name=name,
        splits=_pyg_splits(data, n),
    )
    return dataclasses.replace(graph, notes=(*graph.notes, *notes))


def to_pyg(graph: Graph) -> Data:
    """A PyG `Data`: `x` (sparse stays sparse), `edge_index`, `y`, and where the graph has them `edge_weight`
    (float32), the masks of its splits (a column each if there are several), `node_ids` and `class_names`.
    """
    import torch
    from torch_geometric.data.data import Data

    rows = np.repeat(np.arange(graph.num_nodes), graph.degree)
    edge_index = torch.from_numpy(np.stack([rows, graph.indices.astype(np.int64)]))
    data = Data(edge_index=edge_index, num_nodes=graph.num_nodes)
    if isinstance(graph.x, np.ndarray):
        data.x = torch.from_numpy(graph.x.copy())
    elif graph.x is not None:
        coo = graph.x.tocoo()
        place = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        values = torch.from_numpy(coo.data.copy())
        data.x = torch.sparse_coo_tensor(place, values, graph.x.shape, check_invariants=False).coalesce()
    if graph.num_classes:
        data.y = torch.from_numpy(graph.y.copy())
        data.class_names = list(graph.class_names)
    if graph.edge_weight is not None:
        data.edge_weight = torch.from_numpy(graph.edge_weight.astype(np.float32))
    if graph.node_ids is not None:
        data.node_ids = graph.node_ids.tolist()
    for part in PARTS if graph.splits else ():
        mask = np.zeros((graph.num_nodes, len(graph.splits)), dtype=bool)
        for number, split in enumerate(graph.splits):
            mask[getattr(split, part), number] = True
        data[f"{part}_mask"] = torch.from_numpy(mask[:, 0].copy() if len(graph.splits) == 1 else mask)
    return data


def _pyg_weight(data: Data) -> tuple[NDArray[np.generic] | None, tuple[str, ...]]:
    weight, attribute = getattr(data, "edge_weight", None), getattr(data, "edge_attr", None)
    if weight is not None:
        return _column(weight), ()
    if attribute is None:
        return None, ()
    if attribute.dim() == 1 or tuple(attribute.shape[1:]) == (1,):
        return _column(attribute), ()
    return None, (f"edge_attr of shape {tuple(attribute.shape)} not used",)


def _column(tensor: Any) -> NDArray[np.generic]:
    """Numbers of any precision, bfloat16 too; of width 1 they are one row."""
    numbers = _to_numpy(tensor.double() if hasattr(tensor, "double") else tensor)
    return numbers[:, 0] if numbers.ndim == 2 and numbers.shape[1] == 1 else numbers


def _pyg_labels(data: Data) -> NDArray[np.generic] | None:
    y = getattr(data, "y", None)
    if y is None:
        return None
    labels = _to_numpy(y)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _pyg_splits(data: Data, n: int) -> tuple[Split, ...]:
    masks = {}
    for part in PARTS:
        given = getattr(data, f"{part}_mask", None)
        if given is None:
            continue
        mask = _to_numpy(given)
        mask = mask[:, None] if mask.ndim == 1 else mask
        if mask.ndim != 2 or len(mask) != n or mask.dtype.kind != "b":
            raise InputError(
                f"{part}_mask: expected booleans of shape ({n},) or ({n}, splits), "
                f"got {mask.dtype} of shape {tuple(given.shape)}"
            )
        masks[part] = mask
    widths = {mask.shape[1] for mask in masks.values()} - {1}
    if len(widths) > 1:
        shapes = ", ".join(f"{part}_mask {mask.shape[1]}" for part, mask in masks.items())
        raise InputError(f"the masks have different numbers of columns, one a split: {shapes}")
    if not masks:
        return ()
    count = next(iter(widths), 1)
    splits = []
    for number in range(count):
        # A mask of one column beside wider ones holds for all splits (WikiCS: one test set for twenty).
        columns = {part: mask[:, number % mask.shape[1]] for part, mask in masks.items()}
        train, val, test = (np.flatnonzero(columns.get(part, ())) for part in PARTS)
        splits.append(Split(train, val, test, name="given" if count == 1 else f"given-{number}"))
    return tuple(splits)


def _is_symmetric(edge_index: NDArray[np.generic], weight: NDArray[np.generic] | None, n: int) -> bool:
    if edge_index.size == 0:
        return True
    if edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.min() < 0 or edge_index.max() >= n:
        return False  # Graph.from_edges says what is wrong with it
    values = np.ones(edge_index.shape[1]) if weight is None else weight
    if values.shape != edge_index.shape[1:]:
        return False
    matrix = sp.csr_array((values, (edge_index[0], edge_index[1])), shape=(n, n))
    if weight is None:
        matrix.data[:] = 1
    return not (matrix - matrix.T).data.any()


def _to_numpy(tensor: Any) -> NDArray[np.generic]:
    return np.asarray(tensor.detach().cpu()) if hasattr(tensor, "detach") else np.asarray(tensor)


# -------------------------------------------------------------------- NetworkX


def from_networkx(
    nxgraph: nx.Graph[Any],
    *,
    features: str | None = None,
    label: str | None = None,
    weight: str | None = None,
    name: str | None = None,
    self_loops: bool = False,
) -> Graph:
    """A graph from a NetworkX one, directed if that is; parallel edges become one.

    `features`, `label` and `weight` are names of attributes: `features` a vector (or a number) on every node,
    `label` anything with a name, absent, None, an empty text or what pandas has for missing (NaN, NA, NaT) where
    unlabelled, `weight` a number, 1 where absent, but not on every edge. The nodes are named by `str`.
    """
    nodes = list(nxgraph.nodes)
    ids = [str(node) for node in nodes]
    if any("\0" in name for name in ids):
        raise InputError("from_networkx: a node's name has a NUL character, which an id may not have")
    gaps = [node for node in nodes if is_missing(node)]
    if gaps:
        raise InputError(f"from_networkx: a node is {gaps[0]}, as of a gap in a table of edges; every node needs an id")
    place = {node: number for number, node in enumerate(nodes)}
    edges = [(place[a], place[b]) for a, b in nxgraph.edges()]
    if weight is not None and edges and not any(weight in data for *_, data in nxgraph.edges(data=True)):
        raise InputError(f"from_networkx: no edge has the attribute '{weight}' for its weight")
    y, class_names = None, None
    if label is not None:
        labels = [nxgraph.nodes[node].get(label) for node in nodes]
        names = [None if is_missing(one) else str(one) or None for one in labels]
        class_names = sort_classes({one for one in names if one is not None})
        number_of = {name: number for number, name in enumerate(class_names)}
        y = np.array([-1 if one is None else number_of[one] for one in names], dtype=np.int64)
    return Graph.from_edges(
        np.array(edges, dtype=np.int64).reshape(-1, 2).T,
        num_nodes=len(nodes),
        x=None if features is None else _networkx_features(nxgraph, features),
        y=y,
        edge_weight=None if weight is None else [w for *_, w in nxgraph.edges(data=weight, default=1.0)],
        directed=nxgraph.is_directed(),
        self_loops=self_loops,
        node_ids=ids,
        class_names=class_names,
        name=name or str(nxgraph.name or "graph"),
    )


def to_networkx(
    graph: Graph, *, features: str | None = "x", label: str | None = "label", weight: str | None = "weight"
) -> nx.Graph[Any]:
    """A NetworkX `Graph` or `DiGraph`, its nodes named by their ids, its edges in the order of the rows.

    What the graph has becomes attributes of these names: a dense row of features, the class's name (absent
    where unlabelled), the weight. None leaves one out.
    """
    import networkx as nx

    ids = [graph.id_of(node) for node in range(graph.num_nodes)]
    out: nx.Graph[Any] = nx.DiGraph(name=graph.name) if graph.directed else nx.Graph(name=graph.name)
    out.add_nodes_from(ids)
    if features is not None and graph.x is not None:
        for node, name in enumerate(ids):
            row = graph.x[[node]]
            out.nodes[name][features] = (row if isinstance(row, np.ndarray) else row.toarray())[0]
    if label is not None:
        for node in np.flatnonzero(graph.y >= 0).tolist():
            out.nodes[ids[node]][label] = graph.class_names[graph.y[node]]
    rows = np.repeat(np.arange(graph.num_nodes), graph.degree)
    chosen = np.flatnonzero((rows <= graph.indices) | graph.directed)
    ends = [(ids[a], ids[b]) for a, b in zip(rows[chosen], graph.indices[chosen], strict=True)]
    if weight is None or graph.edge_weight is None:
        out.add_edges_from(ends)
    else:
        weights = graph.edge_weight[chosen].tolist()
        out.add_weighted_edges_from(((a, b, w) for (a, b), w in zip(ends, weights, strict=True)), weight=weight)
    return out


def _networkx_features(nxgraph: nx.Graph[Any], attribute: str) -> NDArray[np.float32]:
    rows: list[NDArray[np.float64]] = []
    for node in nxgraph.nodes:
        values = nxgraph.nodes[node].get(attribute)
        try:
            refuse_lossy(values)
            row = np.atleast_1d(np.asarray(values, dtype=np.float64))
        except (ValueError, TypeError) as error:
            raise InputError(f"node {node!r}, attribute '{attribute}': expected numbers ({error})") from error
        if values is None or row.ndim != 1 or (rows and row.shape != rows[0].shape):
            came = "nothing" if values is None else f"shape {row.shape}"
            wanted = f"a vector of length {len(rows[0])}, as before" if rows else "a vector"
            raise InputError(f"node {node!r}, attribute '{attribute}': expected {wanted}, got {came}")
        rows.append(row)
    if not rows:
        raise InputError("from_networkx: the graph has no node")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and refused by Graph.from_edges
        return np.stack(rows).astype(np.float32)


# -------------------------------------------------------------------- SciPy


def from_scipy(
    adjacency: Any,
    x: object = None,
    y: ArrayLike | None = None,
    directed: bool = False,
    *,
    name: str = "graph",
    self_loops: bool = False,
    node_ids: ArrayLike | None = None,
    class_names: tuple[str, ...] | None = None,
) -> Graph:
    """A graph from a square matrix, sparse or dense, row = source; entries are weights unless all are 1."""
    shape = np.shape(adjacency)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise InputError(f"adjacency: expected a square matrix, got shape {shape}")
    try:
        matrix = as_rows(sp.coo_array(adjacency))
    except (ValueError, TypeError) as error:
        raise InputError(f"adjacency: not a matrix of numbers ({error})") from error
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"adjacency: expected real numbers, got {matrix.dtype}")
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    coo = matrix.tocoo()
    return Graph.from_edges(
        np.stack([coo.row, coo.col]),
        num_nodes=shape[0],
        x=x,
        y=y,
        edge_weight=None if (coo.data == 1).all() else coo.data,
        directed=directed,
        self_loops=self_loops,
        node_ids=node_ids,
        class_names=class_names,
        name=name,
    )


def to_scipy(graph: Graph) -> sp.csr_array:
    """The (n, n) adjacency as float64: the weights, or ones; an undirected edge stands in it twice."""
    data = np.ones(graph.num_directed_edges) if graph.edge_weight is None else graph.edge_weight.copy()
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csr_array((data, graph.indices.copy(), graph.indptr.copy()), shape=shape)
