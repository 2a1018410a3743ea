"""A graph on disk whose edges, features and hop features all fit on the GPU: they stay there, and nothing is written.

Rows of compressed edges, X, and Âᵏ X for k = 1 … K are loaded or worked out once; walks are drawn and the rows of a
batch gathered where they lie. Graphs that are larger, have weights or sparse features, or are trained on a CPU take the
other way: hop features on disk (`stored_hops.py`), and of each batch the rows that it visits.

Memory for n nodes, E directed edges, F features of b bytes and K hops: 8·n + 4·E for the edges, b·n·F·(1 + K) for the
features, 4·n for each scale. One hundred and eleven million nodes, 3.3 thousand million edges, 128 features in half
precision and 3 hops: 14.1 + 113.7 + 0.4 = 128.3 GB. There must be `reserve_bytes` more.

Each hop reads the one before as it is stored. In half precision that rounds between hops, where `stored_hops` goes on
with float32: the two agree to the precision of the features.
"""

from __future__ import annotations

import importlib.util
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.graph.disk import row_blocks
from tokenphormer.graph.to_device import is_of_folder, stored_tensor
from tokenphormer.hops import TOO_LARGE, Normalisation
from tokenphormer.tokens.operators import FeatureRows
from tokenphormer.walks.portable import Csr
from tokenphormer.walks.sampling import csr_tensors, has_tensors

EDGES_AT_ONCE = 1 << 22
"""Edges whose rows the plain twin gathers at a time."""
ROWS_AT_ONCE = 1 << 20
WORKING_BYTES = 8 << 30
"""What is left free for batches, weights and the optimiser: training takes at most 6 GiB of a GPU for them."""
VARIABLE = "TOKENPHORMER_RESIDENT"
"""auto: where it fits; yes: in any case, on CPUs too; no: never."""


@dataclass(frozen=True, eq=False)
class Resident:
    """Features of all nodes, and after each hop, on one device."""

    x: Tensor
    """(n, F) as stored."""
    hops: tuple[Tensor, ...]
    """K times (n, F), in the same precision."""
    scale: Tensor | None
    """(n) what the rows of `x` are to be multiplied with."""
    load_seconds: float
    """To bring edges and features here."""
    hop_seconds: float
    """To work out the hops."""

    def rows(self, nodes: Tensor) -> FeatureRows:
        """The features of some nodes (int64)."""
        rows = self.x[nodes].float()
        return FeatureRows(None, rows if self.scale is None else rows * self.scale[nodes, None])

    def hop_rows(self, nodes: Tensor) -> tuple[FeatureRows, ...]:
        """K times the propagated features of some nodes (int64)."""
        return tuple(FeatureRows(None, hop[nodes].float()) for hop in self.hops)


_kept: WeakKeyDictionary[Graph, tuple[tuple[object, ...], Resident]] = WeakKeyDictionary()
"""The last one of each graph: several seeds, or training and then predicting, load it once."""


def resident(
    graph: Graph, normalisation: Normalisation, hops: int, device: torch.device, *, normalise: bool = False
) -> Resident | None:
    """The graph's features on the device, if they fit there; None if they do not, or memory ran out on the way."""
    key = (normalisation, hops, normalise, str(device))
    kept = _kept.get(graph)
    if kept is not None and kept[0] == key:
        return kept[1]
    _kept.pop(graph, None)
    if not is_resident(graph, hops, device, normalise=normalise):
        return None
    made = None
    with suppress(torch.OutOfMemoryError):  # somebody else took it meanwhile
        made = _make(graph, normalisation, hops, device, normalise)
    if made is None:
        torch.cuda.empty_cache()
        return None
    _kept[graph] = key, made
    return made


def is_resident(graph: Graph, hops: int, device: torch.device, *, normalise: bool = False) -> bool:
    """Whether a graph on disk is to be trained on in this way."""
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "yes", "no"):
        raise InputError(f"{VARIABLE}: {wanted!r}; expected auto, yes or no")
    files = is_of_folder(graph, "indptr") and is_of_folder(graph, "indices") and is_of_folder(graph, "x")
    if wanted == "no" or not files or not isinstance(graph.x, np.ndarray) or graph.edge_weight is not None:
        return False
    if wanted == "yes":
        return True
    shared = os.environ.get("TOKENPHORMER_SHARE_GPU") == "1"  # with other processes that would each count on it
    if device.type != "cuda" or shared:
        return False
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free += graph.indptr.nbytes + graph.indices.nbytes if has_tensors(graph, device) else 0
    return resident_bytes(graph, hops, normalise=normalise) + reserve_bytes(graph) <= free


def resident_bytes(graph: Graph, hops: int, *, normalise: bool = False) -> int:
    """What edges, features and hop features take of the device."""
    features = graph.x.nbytes if isinstance(graph.x, np.ndarray) else 0
    scales = 4 * graph.num_nodes * (2 if normalise else 1)
    return graph.indptr.nbytes + graph.indices.nbytes + features * (1 + hops) + scales


def reserve_bytes(graph: Graph) -> int:
    """What must be free beside them: for batches, and a label for every node."""
    return WORKING_BYTES + 8 * graph.num_nodes


# -------------------------------------------------------------------- making them


def _make(graph: Graph, normalisation: Normalisation, hops: int, device: torch.device, normalise: bool) -> Resident:
    began = time.perf_counter()
    csr = csr_tensors(graph, device)  # the copy that walks are drawn from
    x = stored_tensor(graph, "x", device)
    _wait(device)
    loaded = time.perf_counter()
    scale = _row_scale(x) if normalise else None
    made = tuple(propagate_on_device(graph, csr, x, normalisation, hops, scale))
    _wait(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # temporaries as long as the graph has nodes
    return Resident(x, made, scale, loaded - began, time.perf_counter() - loaded)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def propagate_on_device(
    graph: Graph, csr: Csr, x: Tensor, normalisation: Normalisation, hops: int, scale: Tensor | None = None
) -> list[Tensor]:
    """[(n, F)] the features after 1 … `hops` hops; `scale` multiplies the rows of `x` first."""
    left, right = _scales(csr.indptr, normalisation)
    own = normalisation == "symmetric"
    result: list[Tensor] = []
    for number in range(hops):
        factor = right
        if number == 0 and scale is not None:
            factor = scale if right is None else right * scale
        out = torch.empty_like(x)
        if x.is_cuda and importlib.util.find_spec("triton") is not None:
            from tokenphormer.tokens import hop_kernel

            hop_kernel.one_hop(csr.indptr, csr.indices, left, factor, own, x, out)
        else:
            one_hop(graph, csr, left, factor, own, x, out)
        if out.dtype == torch.float16 and not all(part.isfinite().all() for part in torch.split(out, ROWS_AT_ONCE)):
            raise InputError(TOO_LARGE)
        x = out
        result.append(out)
    return result


def one_hop(
    graph: Graph, csr: Csr, left: Tensor | None, right: Tensor | None, own: bool, x: Tensor, out: Tensor
) -> None:
    """Fill `out` with diag(left) (A, or A + I if `own`) diag(right) x: the twin of `hop_kernel.one_hop`."""
    for first, last in row_blocks(graph.indptr, EDGES_AT_ONCE):
        begin, end = int(graph.indptr[first]), int(graph.indptr[last])
        column = csr.indices[begin:end].long()
        part = x[column].float()
        if right is not None:
            part *= right[column, None]
        row = torch.repeat_interleave(csr.indptr[first : last + 1].diff().long())
        total = torch.zeros(last - first, x.shape[1], device=x.device).index_add_(0, row, part)
        if own:
            total += x[first:last].float() * (1.0 if right is None else right[first:last, None])
        if left is not None:
            total *= left[first:last, None]
        out[first:last] = total.to(out.dtype)


def _scales(indptr: Tensor, normalisation: Normalisation) -> tuple[Tensor | None, Tensor | None]:
    """What rows and columns of the adjacency are multiplied with, as in `hops.propagation_matrix`."""
    if normalisation == "none":
        return None, None
    degree = indptr.diff().double()
    if normalisation == "symmetric":
        root = degree.add_(1).sqrt_().reciprocal_().float()
        return root, root
    return torch.where(degree > 0, 1 / degree, 0.0).float(), None


def _row_scale(x: Tensor) -> Tensor:
    """(n) the reciprocal of the sum of a row's absolute values; 0 for an empty row."""
    scale = torch.empty(len(x), device=x.device)
    for first in range(0, len(x), ROWS_AT_ONCE):
        total = x[first : first + ROWS_AT_ONCE].float().abs().sum(dim=1)
        scale[first : first + len(total)] = torch.where(total > 0, 1 / total, 0.0)
    return scale
