"""Other people's random walks behind one signature, to be timed side by side with ours.

`PEERS[name].prepare(indptr, indices, starts, length, seed)` converts the graph, which is not to be timed, and
returns a closure whose call is. The closure returns one row per walk, so `len(run()) * length` is the
number of steps. Each peer keeps its own rule for a node without neighbours; see its docstring.

Threads are the caller's business: `torch.set_num_threads` for the torch peers, and the environment variable
RAYON_NUM_THREADS, set before the first import, for ensmallen.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Rows = tuple[NDArray[np.int64], NDArray[np.int32]]
Run = Callable[[], Sized]
Prepare = Callable[[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], int, int], Run]


@dataclass(frozen=True)
class Peer:
    """One way to sample walks."""

    name: str
    kind: Literal["uniform", "non_backtracking"]
    prepare: Prepare
    available: Callable[[], str | None]
    """Returns None, or the reason why this peer cannot run here."""
    max_walks: int
    """More starts than this take too long or too much memory; compare steps per second instead."""
    note: str = ""
    """What a table that shows this peer has to say about it."""


def torch_cluster_uniform(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], starts: NDArray[np.int64], length: int, seed: int
) -> Run:
    """torch-cluster's compiled loop, one walk after the other; a walk with no step to take stays in place."""
    return _torch_cluster(indptr, indices, starts, length, seed, p=1.0)


def torch_cluster_non_backtracking(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], starts: NDArray[np.int64], length: int, seed: int
) -> Run:
    """torch-cluster's node2vec walk with return parameter p = 1e9, which is meant never to turn back.

    Version 1.6.3 does turn back: a rejected return falls through to the test against 1/q, which accepts it.
    The seed has no effect, because this walk draws from the C library's `rand`.
    """
    return _torch_cluster(indptr, indices, starts, length, seed, p=1e9)


def _torch_cluster(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    starts: NDArray[np.int64],
    length: int,
    seed: int,
    p: float,
) -> Run:
    import torch

    importlib.import_module("torch_cluster")
    rowptr, col, start = _tensor(indptr), _tensor(indices), _tensor(starts)
    # The operator itself: torch_cluster.random_walk would sort the edges again on every call.
    walk: Any = torch.ops.torch_cluster.random_walk

    def run() -> Sized:
        torch.manual_seed(seed)
        nodes: torch.Tensor = walk(rowptr, col, start, length, p, 1.0)[0]
        return nodes

    return run


def torch_vectorised_uniform(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], starts: NDArray[np.int64], length: int, seed: int
) -> Run:
    """All walks at once, a few tensor operations per step, on the CPU; stays in place like torch-cluster."""
    import torch

    rowptr, col = (_tensor(array) for array in _with_loops(indptr, indices))
    start = _tensor(starts)

    def run() -> Sized:
        torch.manual_seed(seed)
        nodes = torch.empty(len(start), length + 1, dtype=torch.int64)
        nodes[:, 0] = current = start
        for step in range(1, length + 1):
            first = rowptr[current]
            degree = rowptr[current + 1] - first
            current = col[first + (torch.rand(len(start)) * degree).long()]
            nodes[:, step] = current
        return nodes

    return run


def python_loop_uniform(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], starts: NDArray[np.int64], length: int, seed: int
) -> Run:
    """The obvious loop over walks and steps in Python; a walk with no step to take ends early."""
    neighbours: list[list[int]] = [row.tolist() for row in np.split(indices, indptr[1:-1])]
    start_nodes: list[int] = starts.tolist()

    def run() -> Sized:
        generator = random.Random(seed)
        walks = []
        for node in start_nodes:
            walk = [node]
            for _ in range(length):
                if not neighbours[walk[-1]]:
                    break
                walk.append(generator.choice(neighbours[walk[-1]]))
            walks.append(walk)
        return walks

    return run


def ensmallen_uniform(
    indptr: NDArray[np.int64], indices: NDArray[np.int32], starts: NDArray[np.int64], length: int, seed: int
) -> Run:
    """GRAPE's Rust engine, which chooses the start nodes itself.

    Where `starts` holds every node equally often it walks from every node as often, leaving out those without
    neighbours; otherwise it draws as many random starts. An edge into a node without a way out is an error.
    """
    graph = _ensmallen_graph(indptr, indices)
    num_nodes = len(indptr) - 1
    times = np.bincount(starts, minlength=num_nodes)
    # Its length counts nodes, ours steps.
    options = {"walk_length": length + 1, "random_state": seed}

    def run_complete() -> Sized:
        walks: NDArray[np.uint32] = graph.complete_walks(iterations=int(times[0]), **options)
        return walks

    def run_random() -> Sized:
        walks: NDArray[np.uint32] = graph.random_walks(quantity=len(starts), **options)
        return walks

    return run_complete if times.min() == times.max() else run_random


def _ensmallen_graph(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Any:
    """Hand the graph over as a sorted list of edges; ensmallen reads files, not arrays."""
    import pandas as pd

    num_nodes = len(indptr) - 1
    rows = np.repeat(np.arange(num_nodes), np.diff(indptr))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "edges.csv"
        pd.DataFrame({"source": rows, "target": indices}).to_csv(path, index=False, header=False)
        graph = importlib.import_module("ensmallen").Graph.from_csv(
            directed=True,
            edge_path=str(path),
            edge_list_separator=",",
            edge_list_header=False,
            sources_column_number=0,
            destinations_column_number=1,
            edge_list_numeric_node_ids=True,
            numeric_node_ids=True,
            minimum_node_id=0,
            number_of_nodes=num_nodes,
            number_of_edges=len(indices),
            edge_list_is_sorted=True,
            edge_list_is_correct=True,
            edge_list_may_contain_duplicates=False,
            may_have_singletons=True,
            verbose=False,
            name="benchmark",
        )
    # Its own switch for faster walks.
    graph.enable(vector_sources=True)
    return graph


def _tensor(array: NDArray[Any]) -> Any:
    """Copy into an int64 tensor; the copy because torch warns of read-only arrays."""
    import torch

    return torch.from_numpy(array.astype(np.int64))


def _with_loops(indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Rows:
    """Give every node without neighbours a loop, so that a step from it needs no test."""
    degree = np.diff(indptr)
    empty = np.flatnonzero(degree == 0)
    looped = np.insert(indices, indptr[empty], empty)
    return np.concatenate([[0], np.cumsum(np.maximum(degree, 1))]), looped


def _importable(module: str, package: str) -> Callable[[], str | None]:
    def reason() -> str | None:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            return f"{package} is not installed ({error})"
        except (ImportError, OSError, ValueError) as error:
            # A wheel built against another torch, or for another processor.
            return f"{package} cannot be loaded: {error}"
        return None

    return reason


def _always() -> None:
    return None


_ALL = (
    Peer(
        "torch_cluster_uniform",
        "uniform",
        torch_cluster_uniform,
        _importable("torch_cluster", "torch-cluster"),
        max_walks=20_000_000,
    ),
    Peer(
        "torch_cluster_non_backtracking",
        "non_backtracking",
        torch_cluster_non_backtracking,
        _importable("torch_cluster", "torch-cluster"),
        max_walks=1_000_000,
        note="node2vec with p = 1e9; version 1.6.3 still turns back, as often as a uniform walk",
    ),
    Peer("torch_vectorised_uniform", "uniform", torch_vectorised_uniform, _always, max_walks=20_000_000),
    Peer("python_loop_uniform", "uniform", python_loop_uniform, _always, max_walks=20_000),
    Peer(
        "ensmallen_uniform",
        "uniform",
        ensmallen_uniform,
        _importable("ensmallen", "ensmallen"),
        max_walks=20_000_000,
        note="chooses its own start nodes",
    ),
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}
