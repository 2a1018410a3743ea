"""`sample_walks`: checks what is asked, chooses the version of the engine that fits the device, and runs it."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph
from tokenphormer.walks.reference import KINDS, Kind, Walker, base_key, integer_weights
from tokenphormer.walks.stored_weights import stored_integer_weights

if TYPE_CHECKING:
    import torch

    from tokenphormer.walks.portable import Csr

Backend = Literal["auto", "reference", "portable", "numba", "triton"]
STORED: tuple[Literal["indptr"], Literal["indices"]] = ("indptr", "indices")
MOST = 2**31 - 1
"""The highest number of walks, of steps and of hops that can be asked for."""
MOST_STEPS = 2**59
"""Steps of all walks together: four bytes each, and the starts beside them, stay below 2⁶³ bytes."""
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "portable", "numba", "triton")

Rows = tuple[NDArray[np.signedinteger], NDArray[np.int32], NDArray[np.int64] | None]
_arrays: WeakKeyDictionary[Graph, Rows] = WeakKeyDictionary()
_tensors: WeakKeyDictionary[Graph, dict[str, Csr]] = WeakKeyDictionary()


def sample_walks(
    graph: Graph,
    kind: Kind,
    num_walks: int = 10,
    length: int = 4,
    nodes: ArrayLike | None = None,
    jump_radius: int = 3,
    seed: int = 0,
    device: str = "cpu",
    *,
    backend: Backend = "auto",
) -> torch.Tensor:
    """Draw `num_walks` random walks of `length` steps from each of `nodes` (all nodes by default).

    Returns an int32 tensor (len(nodes), num_walks, length + 1) on `device`; column 0 is the start, −1 stands
    where no step is possible. The same seed gives the same walks on any device, with any number of threads, for
    any subset of nodes: see `walks/README.md`. `backend` other than "auto" is for tests and comparisons.

    >>> path = Graph.from_edges([[0, 1, 2], [1, 2, 3]], num_nodes=5)
    >>> sample_walks(path, "non_backtracking", num_walks=1, length=3, nodes=[0, 4]).tolist()
    [[[0, 1, 2, 3]], [[4, -1, -1, -1]]]
    """
    import torch

    starts = check_request(graph, kind, num_walks, length, nodes, jump_radius, seed, backend)
    num_walks, length, jump_radius, seed = map(int, (num_walks, length, jump_radius, seed))  # NumPy's overflow
    where = check_device(device)
    shape = (graph.num_nodes if starts is None else len(starts), num_walks, length + 1)
    if backend == "auto":
        backend = "numba" if where.type == "cpu" else _gpu_backend(where)
    if backend in ("numba", "reference"):
        walks = np.empty(shape, dtype=np.int32)
        sample_into(walks, graph, kind, starts, jump_radius, seed, backend)
        return torch.from_numpy(walks).to(where)
    begin = None if starts is None else torch.from_numpy(starts).to(where)
    return _on_device(graph, kind, num_walks, length, begin, where, jump_radius, seed, backend)


def walks_from(
    graph: Graph, kind: Kind, num_walks: int, length: int, nodes: torch.Tensor, jump_radius: int, seed: int
) -> torch.Tensor:
    """`sample_walks` from nodes (int64) that lie on a GPU already, and are known to be nodes: it is not waited for."""
    where = nodes.device
    return _on_device(graph, kind, num_walks, length, nodes, where, jump_radius, seed, _gpu_backend(where))


def _on_device(
    graph: Graph,
    kind: Kind,
    num_walks: int,
    length: int,
    begin: torch.Tensor | None,
    where: torch.device,
    jump_radius: int,
    seed: int,
    backend: Backend,
) -> torch.Tensor:
    """The walks of the engine's versions on tensors."""
    import torch

    count = graph.num_nodes if begin is None else len(begin)
    out = torch.empty((count, num_walks, length + 1), dtype=torch.int32, device=where)
    csr, base = csr_tensors(graph, where), base_key(seed, kind)
    flat = out.view(-1, length + 1)
    if backend == "triton":
        from tokenphormer.walks import triton_kernel

        triton_kernel.sample(csr, kind, begin, num_walks, length, jump_radius, base, flat)
    else:
        from tokenphormer.walks import portable

        portable.sample(csr, kind, begin, num_walks, length, jump_radius, base, flat)
    # Without weights and self-loops a jump's attempts do not run out (README), and looking would stop the GPU.
    if "jump" in kind and (csr.running is not None or graph.num_self_loops) and bool((out == -2).any()):
        walks = out.cpu().numpy()
        _finish(walks, graph, kind, None if begin is None else begin.cpu().numpy(), jump_radius, seed)
        out = torch.from_numpy(walks).to(where)
    return out


def sample_into(
    walks: NDArray[np.int32],
    graph: Graph,
    kind: Kind,
    starts: NDArray[np.int64] | None,
    jump_radius: int,
    seed: int,
    backend: Backend = "numba",
) -> None:
    """Fill `walks` (len(starts), num_walks, length + 1) on the CPU; it may be a memory-mapped file."""
    _, num_walks, length = walks.shape
    length -= 1
    starts = np.arange(graph.num_nodes) if starts is None else starts
    if backend == "reference":
        walker = Walker(graph, kind, jump_radius, seed)
        for row, node in enumerate(starts.tolist()):
            for index in range(num_walks):
                walks[row, index] = walker.walk(node, index, length)
        return
    if not graph.num_directed_edges:  # the kernels read before they ask whether there is anything
        walks[:, :, 0], walks[:, :, 1:] = starts[:, None], -1
        return
    from tokenphormer.walks import numba_kernel

    rows = csr_arrays(graph)
    flat = walks.reshape(-1, length + 1)
    assert flat.base is not None, "walks must be contiguous, or the result would go into a copy"
    base, here = np.uint64(base_key(seed, kind)), numba_kernel.here
    if kind == "uniform":
        here(numba_kernel.uniform)(*rows, starts, num_walks, length, base, flat)
    elif kind == "non_backtracking":
        here(numba_kernel.non_backtracking)(*rows, starts, num_walks, length, base, flat)
    elif here(numba_kernel.jump)(*rows, starts, num_walks, length, base, flat, jump_radius, kind == "jump"):
        _finish(walks, graph, kind, starts, jump_radius, seed)


def _finish(
    walks: NDArray[np.int32], graph: Graph, kind: Kind, starts: NDArray[np.int64] | None, jump_radius: int, seed: int
) -> None:
    """Draw again the walks whose jump used up its attempts (marked −2)."""
    from tokenphormer.walks import numba_kernel

    row, index = np.nonzero((walks == -2).any(axis=2))
    again = np.empty((len(row), walks.shape[2]), dtype=np.int32)
    base = np.uint64(base_key(seed, kind))
    begin = row if starts is None else starts[row]
    numba_kernel.here(numba_kernel.finish_jumps)(
        *csr_arrays(graph), begin, index.astype(np.int64), base, again, jump_radius, kind == "jump"
    )
    walks[row, index] = again


def csr_arrays(graph: Graph) -> Rows:
    """The graph's rows as the kernels read them, made once per graph; 32-bit offsets where they suffice.

    Those of a graph on disk stay there: the kernels read the memory-mapped arrays themselves.
    """
    if graph.stored is not None:
        if graph not in _arrays:
            _arrays[graph] = (graph.indptr, graph.indices, stored_integer_weights(graph))
        return _arrays[graph]
    if graph not in _arrays:
        small = graph.num_directed_edges < 2**31
        indptr = graph.indptr.astype(np.int32) if small else graph.indptr
        _arrays[graph] = (indptr, graph.indices, integer_weights(graph))
    return _arrays[graph]


def csr_tensors(graph: Graph, device: torch.device) -> Csr:
    """The same on a device, kept there as long as the graph lives."""
    import torch

    from tokenphormer.graph.to_device import stored_tensor
    from tokenphormer.walks.portable import Csr

    kept, key = _tensors.setdefault(graph, {}), _full_name(device)
    if key not in kept:
        *rows, weights = csr_arrays(graph)
        running = None if weights is None else torch.tensor(weights, device=device)
        if graph.stored is None:
            indptr, indices = (torch.tensor(array, device=device) for array in rows)
        else:
            indptr, indices = (stored_tensor(graph, name, device) for name in STORED)
        kept[key] = Csr(indptr, indices, running)
    return kept[key]


def has_tensors(graph: Graph, device: torch.device) -> bool:
    """Whether `csr_tensors` has them on the device already."""
    return _full_name(device) in _tensors.get(graph, {})


def _full_name(device: torch.device) -> str:
    """`cuda` is one of `cuda:0`, …, and a second copy there would be one too many."""
    import torch

    return f"cuda:{torch.cuda.current_device()}" if str(device) == "cuda" else str(device)


def check_request(
    graph: Graph,
    kind: str,
    num_walks: int,
    length: int,
    nodes: ArrayLike | None,
    jump_radius: int,
    seed: int,
    backend: str = "auto",
) -> NDArray[np.int64] | None:
    """Check a request for walks and return the start nodes; None is every node."""
    if kind not in KINDS:
        raise InputError(f"kind: {kind!r}; expected one of {', '.join(KINDS)}")
    if backend not in BACKENDS:
        raise InputError(f"backend: {backend!r}; expected one of {', '.join(BACKENDS)}")
    for name, value in (("num_walks", num_walks), ("length", length), ("jump_radius", jump_radius)):
        if not _is_whole(value) or value < 1:
            raise InputError(f"{name}: {value!r}; expected a whole number of at least 1")
        if value > MOST:
            raise InputError(f"{name}: {value!r}; expected at most {MOST}")
    if not _is_whole(seed):
        raise InputError(f"seed: {seed!r}; expected a whole number")
    starts = None if nodes is None else _check_starts(graph, nodes)
    count = graph.num_nodes if starts is None else len(starts)
    if count * int(num_walks) * int(length) > MOST_STEPS:
        raise InputError(f"{num_walks} walks of {length} steps from {count} nodes are more than an array can hold")
    return starts


def _check_starts(graph: Graph, nodes: ArrayLike) -> NDArray[np.int64]:
    starts = np.asarray(nodes)
    if starts.size == 0:
        return np.zeros(0, dtype=np.int64)
    if starts.ndim != 1 or starts.dtype.kind not in "iu":
        hint = "; turn ids into indices with graph.index_of" if starts.dtype.kind in "OUST" else ""
        raise InputError(
            f"nodes: expected a list of node indices, got shape {starts.shape}, dtype {starts.dtype}{hint}"
        )
    bad = np.flatnonzero((starts < 0) | (starts >= graph.num_nodes))
    if bad.size:
        raise InputError(
            f"nodes, entry {bad[0]}: node {starts[bad[0]]}, but the graph has nodes 0 to {graph.num_nodes - 1}"
        )
    return starts.astype(np.int64)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def choose_device(device: str) -> str:
    """`auto` is the first GPU where there is one, else the CPU; anything else stays as it is."""
    if device != "auto":
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@cache
def check_device(device: str | torch.device) -> torch.device:
    """The device by its name, if torch can use it here."""
    import torch

    try:
        where = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: {device!r}; expected 'cpu', 'cuda' or 'cuda:0' and so on") from error
    try:
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0].partition(". ")[0]  # torch may add all that it could use instead
        raise ResourceError(f"device: {device!r}, but torch cannot use it here ({reason}); use 'cpu'") from error
    return where


@cache
def _gpu_backend(device: torch.device) -> Backend:
    has_triton = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return "triton" if has_triton else "portable"
