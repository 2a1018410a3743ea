"""Edges that come in any order, sorted into compressed rows on disk, in bounded memory.

Edges are spilled as they come while the entries of every row are counted. The counts say which rows fit into memory
together; such a range of rows is a bucket. A second pass deals the edges out to their buckets, which lie one behind
the other in one file, and each bucket is then sorted in memory. What is done to repeated edges and to edges listed
from one end is what `Graph.from_edges` does, to the bit, and the same words are noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph.disk_writer import GraphWriter

Ints = NDArray[np.int64]
Weights = NDArray[np.float64]
BYTES_AN_ENTRY, BYTES_A_WEIGHTED_ENTRY = 48, 96
"""What sorting takes for each entry of a bucket."""


@njit(cache=True)
def _count(counts: Any, nodes: Any) -> None:
    for node in nodes:
        counts[node] += 1


class EdgeSorter:
    """Takes edges piece by piece; `write` then puts the rows of the graph into a folder."""

    def __init__(self, scratch: Path, num_nodes: int, *, directed: bool, weighted: bool, memory: int) -> None:
        self.num_nodes, self.directed, self.weighted = num_nodes, directed, weighted
        each = BYTES_A_WEIGHTED_ENTRY if weighted else BYTES_AN_ENTRY
        self.most = max(1, memory // each)
        """Entries that are held at a time."""
        self._spill, self._buckets = scratch / "edges", scratch / "buckets"
        self._file = self._spill.open("wb")
        self._record = np.dtype([("source", "<i4"), ("target", "<i4")] + ([("weight", "<f8")] if weighted else []))
        self._counts = np.zeros(num_nodes, dtype=np.int64)
        self.listed = self.loops = 0

    def __enter__(self) -> EdgeSorter:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # `write` has closed it, unless something went wrong
            self._file.close()

    def add(self, source: Ints, target: Ints, weight: Weights | None = None) -> None:
        """Take some edges; loops are dropped."""
        self.listed += len(source)
        fine = source != target
        self.loops += len(source) - int(fine.sum())
        records = np.empty(int(fine.sum()), self._record)
        records["source"], records["target"] = source[fine], target[fine]
        if weight is not None:
            records["weight"] = weight[fine]
        self._file.write(records.view(np.uint8).data if len(records) else b"")
        _count(self._counts, records["source"])
        if not self.directed:
            _count(self._counts, records["target"])

    def write(self, writer: GraphWriter) -> tuple[str, ...]:
        """Write `indptr`, `indices` and, if there are weights, `edge_weight`; what was done to the edges."""
        self._file.close()
        bounds = self._bounds()
        self._deal(bounds)
        self._spill.unlink()
        indices = writer.array("indices", np.int32)
        weights = writer.array("edge_weight", np.float64) if self.weighted else None
        degree = self._counts  # not needed any more, and of the right size
        doubles = one_way = 0
        start = 0
        for first, last, entries in bounds:
            key, weight = self._read(start, entries)
            start += entries
            pair, weight, again, added = _merge(key, weight)
            doubles, one_way = doubles + again, one_way + added
            rows = pair // self.num_nodes
            indices.append((pair - rows * self.num_nodes).astype(np.int32))
            degree[first:last] = np.bincount(rows - first, minlength=last - first)
            if weights is not None and weight is not None:
                if not np.isfinite(weight).all():
                    raise InputError("edge_weight: the weights of an edge listed more than once add up to infinity")
                weights.append(weight)
        self._buckets.unlink()
        indptr = writer.array("indptr", np.int64)
        indptr.append(np.zeros(1, np.int64))
        indptr.append(np.cumsum(degree))
        notes = [f"dropped {self.loops} self-loops"] if self.loops else []
        notes += [f"merged {doubles} repeated edges"] if doubles else []
        if not self.directed and indices.rows:
            notes.append(f"{one_way} edges were listed from one end only" if one_way else "both ends listed")
        return tuple(notes)

    def _bounds(self) -> list[tuple[int, int, int]]:
        """First row, row behind the last, and entries of each bucket; a row alone may have too many."""
        ends = np.cumsum(self._counts)
        bounds, first, done = [], 0, 0
        while first < self.num_nodes:
            last = int(np.searchsorted(ends, done + self.most, side="right"))
            last = min(max(last, first + 1), self.num_nodes)
            bounds.append((first, last, int(ends[last - 1]) - done))
            first, done = last, int(ends[last - 1])
        return bounds

    def _pieces(self) -> Iterator[tuple[Ints, Ints, Weights | None]]:
        with self._spill.open("rb") as file:
            while len(records := np.fromfile(file, self._record, max(1, self.most // 4))):
                weight = records["weight"] if self.weighted else None
                yield records["source"].astype(np.int64), records["target"].astype(np.int64), weight

    def _deal(self, bounds: list[tuple[int, int, int]]) -> None:
        """Write every edge into its bucket as ((row, column), whether reversed), in the order in which they came."""
        last_rows = np.array([last for _, last, _ in bounds])
        places = np.concatenate([[0], np.cumsum([entries for *_, entries in bounds])])
        with self._buckets.open("wb") as file:
            for source, target, weight in self._pieces():
                key, row = 2 * (source * self.num_nodes + target), source
                if not self.directed:
                    key = np.concatenate([key, 2 * (target * self.num_nodes + source) + 1])
                    row = np.concatenate([source, target])
                    weight = None if weight is None else np.concatenate([weight, weight])
                if len(bounds) == 1:
                    packed, ends = self._pack(key, weight), np.array([len(key)])
                else:
                    bucket = np.searchsorted(last_rows, row, side="right")
                    order = np.argsort(bucket.astype(np.uint16 if len(bounds) < 2**16 else np.int64), kind="stable")
                    ends = np.cumsum(np.bincount(bucket, minlength=len(bounds)))
                    packed = self._pack(key[order], None if weight is None else weight[order])
                for number, end in enumerate(ends):
                    begin = ends[number - 1] if number else 0
                    if end > begin:
                        file.seek(int(places[number]) * packed.itemsize)
                        file.write(packed[begin:end].view(np.uint8).data)
                        places[number] += end - begin

    def _pack(self, key: Ints, weight: Weights | None) -> NDArray[Any]:
        if weight is None:
            return key
        packed = np.empty(len(key), [("key", "<i8"), ("weight", "<f8")])
        packed["key"], packed["weight"] = key, weight
        return packed

    def _read(self, start: int, entries: int) -> tuple[Ints, Weights | None]:
        kind = np.dtype([("key", "<i8"), ("weight", "<f8")] if self.weighted else np.int64)
        packed: Any = np.fromfile(self._buckets, kind, entries, offset=start * kind.itemsize)
        assert len(packed) == entries
        return (packed["key"].copy(), packed["weight"].copy()) if self.weighted else (packed, None)


def _merge(key: Ints, weight: Weights | None) -> tuple[Ints, Weights | None, int, int]:
    """Edges (row, column) of a bucket, each once and in order; how many came again, and how many from the other end.

    The last bit of a key says that the edge was listed the other way round. Weights of the same direction are added
    in the order in which they came; where both directions came, their mean is taken.
    """
    listed = int((key & 1 == 0).sum())
    if weight is None:
        key.sort()
    else:
        order = np.argsort(key, kind="stable")
        key, weight = key[order], weight[order]
    start = _starts(key)
    own = int((key[start] & 1 == 0).sum())
    if weight is not None:
        key = key[start]
        with np.errstate(over="ignore"):  # infinity is refused by the caller
            weight = np.add.reduceat(weight, start) if len(start) else weight
    key >>= 1
    start = _starts(key)
    if weight is not None:
        count = np.diff(np.append(start, len(key)))
        with np.errstate(over="ignore"):
            weight = np.add.reduceat(weight, start) / count if len(start) else weight
    return key[start], weight, listed - own, len(start) - own


def _starts(key: Ints) -> Ints:
    """Where each run of equal keys begins."""
    first = np.ones(len(key), dtype=bool)
    np.not_equal(key[1:], key[:-1], out=first[1:])
    return np.flatnonzero(first)
