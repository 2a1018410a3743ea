"""`TokenSource`: what the model reads of a graph. No token tensor is ever built from features.

The sequence of node v is: self, SGPM, hop 1 … K, walk 1 … m. The paper's token t has the input W·[x_v ; τ_t] + b =
(W₁ x_v + b) + W₂ τ_t, and every τ is a linear pooling of feature rows. So rows are projected first and pooled
after: Z = X W₂ is (n, h), a walk-token pools rows of Z, a hop-token is a row of Âᵏ Z. The authors' tensor of tokens
is 3.2 GB for Cora and 76 GB for Flickr; this is n·h numbers and one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import RLock
from typing import Any, Literal
from weakref import ref

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.graph.checks import Features
from tokenphormer.graph.disk import expect_random_reads
from tokenphormer.hashing import GOLDEN, mix64
from tokenphormer.hops import NORMALISATIONS, Normalisation, propagate, propagation_matrix
from tokenphormer.tokens.encodings import laplacian_eigenvectors, return_probabilities
from tokenphormer.tokens.operators import FeatureRows, SparseOperator, token_operator
from tokenphormer.tokens.resident import Resident, resident
from tokenphormer.tokens.stored_hops import propagate_in_memory, row_normalised, stored_hops
from tokenphormer.walks import KINDS, Kind, sample_walks
from tokenphormer.walks.sampling import walks_from

WHOLE_GRAPH_BYTES = 2 << 30
"""Graphs whose two projections take less are projected whole; of larger ones only the rows a batch visits."""
GPU_GRAPH_SHARE = 0.25
"""Share of a GPU's free memory that the edges of a graph on disk may take; of larger ones, walks come from the CPU."""

PREDICTION_DRAWS = 1 << 40
"""Draws of walks beyond this number belong to prediction; no training reaches it."""


@dataclass(frozen=True)
class TokenSettings:
    """Which tokens a node has. Defaults are the paper's, where it gives them."""

    num_walks: int = 100
    """Walk-tokens of a node."""
    walk_length: int = 4
    """Steps of each walk."""
    walk_ratios: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    """Shares of uniform, non-backtracking, jump and non-backtracking jump walks."""
    jump_radius: int = 3
    """k of the neighbourhood jump walk."""
    walk_pooling: Literal["mean", "sum"] = "mean"
    """How a walk's nodes become one token; the authors' code sums."""
    include_start: bool = False
    """Whether the start node is pooled too."""
    include_own: bool = True
    """Whether every token holds the node's own features beside what it pools, [x_v ; τ], as in the paper; else x_v
    stands in the self token alone."""
    fresh_walks: bool = False
    """Draw walks anew each epoch, rather than once (the paper)."""
    num_hops: int = 3
    """Hop-tokens of a node."""
    hop_normalisation: Normalisation = "symmetric"
    """`symmetric`, `row`, or `none`: the authors' raw adjacency."""
    laplacian_pe: int = 0
    """Laplacian eigenvectors appended to the features; training flips their signs at random."""
    walk_pe: int = 0
    """Return probabilities of walks of 1 to this many steps, appended to the features."""
    normalise_features: bool = False
    """Scale every node's features to sum 1."""
    sgpm_token: Literal["static", "contextual"] = "static"
    """The SGPM-token, where there is an SGPM: its vector of the node (the authors'), or its mean state in sentences."""

    def __post_init__(self) -> None:
        for name, least in (("num_walks", 0), ("walk_length", 1), ("jump_radius", 1), ("num_hops", 0)):
            _check(getattr(self, name) >= least, name, getattr(self, name), f"at least {least}")
        for name in ("laplacian_pe", "walk_pe"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        ratios = self.walk_ratios
        fine = len(ratios) == len(KINDS) and min(ratios) >= 0 and 0 < sum(ratios) < float("inf")
        _check(fine, "walk_ratios", ratios, "four shares, none negative, not all zero")
        _check(self.walk_pooling in ("mean", "sum"), "walk_pooling", self.walk_pooling, "mean or sum")
        _check(
            self.hop_normalisation in NORMALISATIONS, "hop_normalisation", self.hop_normalisation, str(NORMALISATIONS)
        )

    @property
    def walk_counts(self) -> dict[Kind, int]:
        """Walks of each kind: the shares of `num_walks`, rounded so that they add up to it.

        >>> TokenSettings(num_walks=10, walk_ratios=(0.3, 0.05, 0.6, 0.05)).walk_counts
        {'uniform': 3, 'non_backtracking': 1, 'jump': 6, 'non_backtracking_jump': 0}
        """
        exact = np.array(self.walk_ratios, dtype=np.float64) / sum(self.walk_ratios) * self.num_walks
        exact = np.round(exact, 9)
        counts = np.floor(exact).astype(int)
        largest_rest = np.argsort(-(exact - counts), kind="stable")
        counts[largest_rest[: self.num_walks - counts.sum()]] += 1
        return dict(zip(KINDS, counts.tolist(), strict=True))


def _check(fine: bool, name: str, value: object, expected: str) -> None:
    if not fine:
        raise InputError(f"{name}: {value!r}; expected {expected}")


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """What to read for a batch of B nodes: rows to project, and how to combine them into T tokens each.

    The model stacks five blocks of projected rows: W₁x + b of the R rows, W₂x of the R rows, the same after 1 … K
    hops, and the SGPM vectors of the batch. `tokens` combines the rows of this stack into the inputs of all tokens.
    """

    rows: FeatureRows
    """(R, F) the rows that are projected: all nodes of the graph, or those that the batch visits."""
    tokens: SparseOperator
    """(B·T, stack) W₁x_v + b + W₂τ_t for every token t of every node v; the first part in the self token alone where
    tokens do not hold the node's own features."""
    shape: tuple[int, int]
    """B and T."""
    num_hops: int
    hop: SparseOperator | None
    """(R, R) one hop; None where `hop_rows` is given instead."""
    hop_rows: tuple[FeatureRows, ...]
    """K times (B, F): propagated features of the batch's nodes."""
    signs: Tensor | None
    """(F) ±1 for every feature: the random signs of Laplacian eigenvectors."""
    sgpm: Tensor | None
    """(B, D) SGPM vectors."""


class TokenSource:
    """The tokens of one graph on one device.

    `whole` says whether all nodes are projected (None: if that takes little memory and the graph is not on disk) or
    only those a batch visits. Of a graph on disk, only what the batches visit is then read; unless all of it fits on
    the GPU, where it then stays (`resident.py`).
    """

    def __init__(
        self,
        graph: Graph,
        settings: TokenSettings,
        device: torch.device | str = "cpu",
        *,
        seed: int = 0,
        hidden_channels: int = 512,
        sgpm: NDArray[np.float32] | None = None,
        whole: bool | None = None,
    ) -> None:
        self.graph, self.settings, self.device, self.seed = graph, settings, torch.device(device), seed
        self.whole = projects_whole(graph, hidden_channels) if whole is None else whole
        self._on_disk = on_disk = graph.stored is not None and not self.whole
        self._normalise = settings.normalise_features and on_disk  # the rows of a batch, rather than all
        x = graph.x
        if x is not None and not on_disk:  # in half precision, products would be rounded to it
            x = row_normalised(x) if settings.normalise_features else x.astype(np.float32, copy=False)
        encodings = _encodings(graph, settings)
        self.num_features = graph.num_features + (0 if encodings is None else encodings.shape[1])
        check_width(graph, self.num_features)
        self._sgpm = None if sgpm is None else torch.tensor(sgpm, device=self.device)
        self._all_walks: Tensor | None = None
        self._recent: dict[int, tuple[ref[Tensor], TokenBatch]] = {}
        self._draw = 0
        self._signs: Tensor | None = None
        self.lock = RLock()
        """For threads that share a source: held from `begin_prediction` on until all batches of it are read."""
        self.resident: Resident | None = None
        """All features and hop features on the device, where the graph is on disk and they fit."""
        if on_disk and encodings is None:
            kind, hops = settings.hop_normalisation, settings.num_hops
            self.resident = resident(graph, kind, hops, self.device, normalise=settings.normalise_features)
        self._walk_device = _walk_device(graph, self.device) if on_disk and self.resident is None else self.device
        if self.resident is not None:
            return
        if on_disk:
            self._parts = [(x, encodings), *_stored(graph, encodings, settings)]
            expect_random_reads([part for part, _ in self._parts if isinstance(part, np.ndarray)])
            return
        matrix = propagation_matrix(graph, settings.hop_normalisation) if settings.num_hops else None
        if self.whole:
            self._rows = FeatureRows.on(self.device, x, encodings)
            symmetric = not graph.directed and settings.hop_normalisation != "row"
            self._hop = None if matrix is None else SparseOperator.from_scipy(matrix, self.device, symmetric)
        else:
            self._parts = [(x, encodings), *_propagated(matrix, x, encodings, settings.num_hops)]

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy: all but what cannot go along, the lock and the batches kept for living tensors."""
        return {name: value for name, value in self.__dict__.items() if name != "lock"} | {"_recent": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """With a lock of its own."""
        self.__dict__.update(state, lock=RLock())

    @property
    def sgpm_channels(self) -> int:
        """Width of the SGPM vectors; 0 without."""
        return 0 if self._sgpm is None else int(self._sgpm.shape[1])

    @property
    def token_kinds(self) -> list[str]:
        """The kind of each token of the sequence, in order."""
        walks = [kind for kind, count in self.settings.walk_counts.items() for _ in range(count)]
        hops = [f"hop {k}" for k in range(1, self.settings.num_hops + 1)]
        return ["self", *(["sgpm"] if self._sgpm is not None else []), *hops, *walks]

    def begin_epoch(self, epoch: int) -> None:
        """Before a training epoch (1, 2, …): fresh walks if asked for, and other signs for the eigenvectors."""
        self._use(epoch if self.settings.fresh_walks else 0)
        count = self.settings.laplacian_pe
        if count:
            key = mix64(self.seed) ^ mix64(epoch)
            bits = sum(mix64(key + word * GOLDEN) << (64 * word) for word in range(-(-count // 64)))
            signs = torch.ones(self.num_features, device=self.device)
            first = self.graph.num_features
            signs[first : first + count] = torch.tensor([1.0 - 2.0 * ((bits >> i) & 1) for i in range(count)])
            self._signs = signs
            self._recent.clear()

    def begin_prediction(self, draw: int = 0) -> None:
        """Before predicting: draw 0 is the walks of the paper's fixed training, further ones are for votes."""
        self._use(PREDICTION_DRAWS + draw if draw else 0)
        if self._signs is not None:
            self._signs = None
            self._recent.clear()

    def _use(self, draw: int) -> None:
        if draw != self._draw:
            self._all_walks, self._draw = None, draw
            self._recent.clear()

    def walks(self, nodes: Tensor) -> Tensor:
        """(B, m, length + 1) the walks of some nodes, kinds in the order of `KINDS`."""
        if self.resident is not None and nodes.is_cuda:
            return self._sample(nodes)
        if not self.whole:
            return self._sample(nodes.cpu().numpy())
        if self._all_walks is None:
            self._all_walks = self._sample(None)
        return self._all_walks[nodes]

    def _sample(self, nodes: NDArray[np.int64] | Tensor | None) -> Tensor:
        seed = mix64(self.seed + self._draw * GOLDEN) if self._draw else self.seed
        s, where = self.settings, str(self._walk_device)
        drawn = [
            walks_from(self.graph, kind, count, s.walk_length, nodes, s.jump_radius, seed)
            if isinstance(nodes, Tensor)
            else sample_walks(self.graph, kind, count, s.walk_length, nodes, s.jump_radius, seed, where)
            for kind, count in s.walk_counts.items()
            if count
        ]
        return torch.cat(drawn, dim=1).to(self.device)

    def batch(self, nodes: Tensor) -> TokenBatch:
        """What the model needs for these nodes (B), given as indices on the device.

        What was made for a tensor is kept for as long as that very tensor lives and the walks stay the same: the batch
        of a fixed training set comes again every epoch, one of shuffled nodes never. Of graphs on disk nothing is kept.
        """
        key = id(nodes)
        kept = self._recent.get(key)
        if kept is not None and kept[0]() is nodes:
            return kept[1]
        batch = self._whole_batch(nodes) if self.whole else self._visited_batch(nodes)
        if not self._on_disk:  # what many batches visit may be more than memory holds
            self._recent[key] = ref(nodes, lambda _: self._recent.pop(key, None)), batch
        return batch

    def _whole_batch(self, nodes: Tensor) -> TokenBatch:
        walks = self.walks(nodes) if self.settings.num_walks else None
        return self._batch(nodes, self._rows, self.graph.num_nodes, nodes, walks, self._hop, ())

    def _visited_batch(self, nodes: Tensor) -> TokenBatch:
        walks = self.walks(nodes) if self.settings.num_walks else None
        seen = nodes.int()  # half as wide as what indices are elsewhere, so sorted twice as fast
        if walks is not None:
            seen = torch.cat([seen, torch.where(walks < 0, walks[:, :, :1], walks).reshape(-1)])
        visited, place = torch.unique(seen, return_inverse=True)  # sorted
        if walks is not None:
            walks = torch.where(walks < 0, -1, place[len(nodes) :].view(walks.shape))
        if self.resident is not None:
            rows, hops = self.resident.rows(visited.long()), self.resident.hop_rows(nodes)
            return self._batch(nodes, rows, len(visited), place[: len(nodes)], walks, None, hops)
        here, there = nodes.cpu().numpy(), visited.cpu().numpy()
        hops = tuple(_take(part, here, self.device) for part in self._parts[1:])
        rows = _take(self._parts[0], there, self.device, self._normalise)
        return self._batch(nodes, rows, len(visited), place[: len(nodes)], walks, None, hops)

    def _batch(
        self,
        nodes: Tensor,
        rows: FeatureRows,
        count: int,
        place: Tensor,
        walks: Tensor | None,
        hop: SparseOperator | None,
        hop_rows: tuple[FeatureRows, ...],
    ) -> TokenBatch:
        """Say for every token which rows of the stack it sums; `place` and `walks` count within the `count` rows."""
        s, size = self.settings, len(nodes)
        one = torch.arange(size, device=self.device)
        hop_place, hop_count = (one, size) if hop is None else (place, count)
        blocks = [count + place if s.include_own else place]  # W₂x_v or, alone, W₁x_v + b: the self token
        after_hops = 2 * count + s.num_hops * hop_count
        blocks += [after_hops + one] if self._sgpm is not None else []
        blocks += [2 * count + k * hop_count + hop_place for k in range(s.num_hops)]
        single = torch.stack(blocks, dim=1)[:, :, None]  # (B, 1 + K or so, 1)
        columns, values = single, torch.ones(single.shape, device=self.device)
        if walks is not None:
            visited = walks if s.include_start else walks[:, :, 1:]
            there = visited >= 0
            share = there.float()
            if s.walk_pooling == "mean":
                share = share / there.sum(dim=2, keepdim=True).clamp(min=1)
            extra = visited.shape[2] - 1
            columns = torch.cat([F.pad(single, (0, extra)), count + visited.clamp(min=0)], dim=1)
            values = torch.cat([F.pad(values, (0, extra)), share], dim=1)
        if s.include_own:
            own = place[:, None, None].expand(size, columns.shape[1], 1)
            columns, values = torch.cat([own, columns], dim=2), F.pad(values, (1, 0), value=1.0)
        sgpm = None if self._sgpm is None else self._sgpm[nodes]
        width = after_hops + (0 if sgpm is None else size)
        operator = token_operator(columns, values, width)
        shape = (size, columns.shape[1])
        return TokenBatch(rows, operator, shape, s.num_hops, hop, hop_rows, self._signs, sgpm)


def check_width(graph: Graph, width: int) -> None:
    """Raise if a node has nothing that could be read, neither features nor positional encodings."""
    if not width:
        raise InputError(
            f"graph '{graph.name}' has no features; give some, or ask for positional encodings (walk_pe=8)"
        )


def _encodings(graph: Graph, settings: TokenSettings) -> NDArray[np.float32] | None:
    columns = []
    if settings.laplacian_pe:
        columns.append(laplacian_eigenvectors(graph, settings.laplacian_pe))
    if settings.walk_pe:
        columns.append(return_probabilities(graph, settings.walk_pe))
    return np.concatenate(columns, axis=1) if columns else None


Part = tuple[Features | None, NDArray[np.float32] | None]


def _propagated(matrix: sp.csr_array | None, x: Features | None, encodings: Features | None, hops: int) -> list[Part]:
    """The features and encodings after each hop."""
    if matrix is None:
        return []
    nothing: list[None] = [None] * hops
    features = nothing if x is None else propagate(matrix, x, hops)
    columns = nothing if encodings is None else propagate(matrix, encodings, hops)
    return [(a, np.asarray(b) if b is not None else None) for a, b in zip(features, columns, strict=True)]


def _stored(graph: Graph, encodings: NDArray[np.float32] | None, settings: TokenSettings) -> list[Part]:
    """The same for a graph on disk: memory-mapped, and made beside it if need be."""
    hops, kind = settings.num_hops, settings.hop_normalisation
    nothing: list[None] = [None] * hops
    features = stored_hops(graph, kind, hops, normalise=settings.normalise_features) or nothing
    columns = nothing if encodings is None else propagate_in_memory(graph, kind, encodings, hops)
    return list(zip(features, columns, strict=True))


def _take(part: Part, nodes: NDArray[np.integer], device: torch.device, normalise: bool = False) -> FeatureRows:
    """Some rows of features and encodings; `take` is twice as fast as an index, and its result needs no other copy."""
    x, encodings = part
    rows = None if x is None else x.take(nodes, axis=0) if isinstance(x, np.ndarray) else x[nodes]
    rows = row_normalised(rows) if rows is not None and normalise else rows
    if isinstance(rows, np.ndarray) and encodings is None:
        return FeatureRows(None, torch.from_numpy(rows).to(device, torch.float32))
    return FeatureRows.on(device, rows, None if encodings is None else encodings[nodes])


def projects_whole(graph: Graph, hidden_channels: int) -> bool:
    """Whether a graph is projected whole, unless told otherwise."""
    return graph.stored is None and 2 * 4 * graph.num_nodes * hidden_channels < WHOLE_GRAPH_BYTES


def _walk_device(graph: Graph, device: torch.device) -> torch.device:
    """Where the walks of a graph on disk are drawn: on the GPU only if its edges fit there easily."""
    if device.type == "cpu":
        return device
    arrays = (graph.indptr, graph.indices, graph.edge_weight)
    size = sum(array.nbytes for array in arrays if array is not None)
    fits = size < GPU_GRAPH_SHARE * torch.cuda.mem_get_info(device)[0]
    return device if fits else torch.device("cpu")
