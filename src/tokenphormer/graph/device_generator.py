"""The twin of `generators.py` in torch: the same graph to the bit, drawn, sorted and hashed into noise on a GPU.

All hashes are int64 tensors, whose products and sums wrap as uint64 ones do (`hashing.py`). All edges as they are drawn
stay on the device as pairs of int32. Since a node's number is its rank shuffled, equal ranges of rows have about as
many entries: one range after the other is filtered out of the pairs, sorted, merged and written, and nothing is spilled
to disk. Features are drawn in blocks meanwhile, by another thread on a stream of its own.

What it takes of the device, for n nodes and D drawn edges (one hundred million nodes of degree 30: D = 1.67 thousand
million): 8·D bytes for the pairs (13.3 GB), 8·n for ranks and classes (0.9 GB), 80 bytes for each entry of the range
that is sorted (at most 2²⁸: 21 GB), and 80 bytes for each value of a block of features (2²⁵: 2.7 GB).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tokenphormer.errors import ResourceError
from tokenphormer.graph.disk_writer import ArrayWriter, GraphWriter
from tokenphormer.hashing import GOLDEN, MASK64, mix64, mix64_tensor, shift_right, signed

if TYPE_CHECKING:
    from tokenphormer.graph.generators import BlockModel

PIECE = 1 << 25
"""Feature values, or numbers to shuffle, that are worked on at a time."""
EDGES = 1 << 26
"""Edges that are drawn, or looked through, at a time."""
MOST_ENTRIES = 1 << 28
"""Entries of a range of rows that is sorted at once; torch.sort takes none above 2³¹."""
BYTES_AN_ENTRY = 80
"""What selecting and sorting takes for each entry of a range: keys twice, sorted keys, places, and the sort's own."""
BUFFER_BYTES = 1 << 26
"""Size of a buffer through which results go to a file; there are two for each file."""


class DeviceModel:
    """What `BlockModel` draws, as tensors on a device."""

    def __init__(self, model: BlockModel, device: torch.device) -> None:
        self.model, self.device = model, device
        self.each = max(1, model.degree // 2)
        self.drawn = model.num_nodes * self.each

    # ---------------------------------------------------------------- random numbers

    def hash(self, purpose: int, number: Tensor) -> Tensor:
        """Random 64 bits for each number."""
        base = mix64(mix64(self.model.seed) + (purpose + 1) * GOLDEN)
        return mix64_tensor(number * signed(GOLDEN) + signed(base))

    def shuffled(self, purpose: int, numbers: Tensor, *, back: bool = False) -> Tensor:
        """`BlockModel._shuffled`."""
        n, seed = self.model.num_nodes, self.model.seed
        bits = (n - 1).bit_length()
        half, mask = (bits + 1) // 2, (1 << bits) - 1
        odd = [mix64(seed + (8 * purpose + i + 1) * GOLDEN) | 1 for i in range(3)]
        rounds = [signed(pow(a, -1, 1 << 64) if back else a) for a in (reversed(odd) if back else odd)]
        shift = signed(mix64(seed + (8 * purpose + 4) * GOLDEN))

        def once(part: Tensor) -> Tensor:
            for factor in rounds:
                if back:
                    part = ((part - shift) * factor) & mask
                    part = part ^ (part >> half)
                else:
                    part = part ^ (part >> half)
                    part = (part * factor + shift) & mask
            return part

        x = once(numbers)
        left = torch.nonzero(x >= n).squeeze(1)
        while left.numel():
            part = once(x[left])
            x[left] = part
            left = left[part >= n]
        return x

    def table(self, purpose: int, *, back: bool = False) -> Tensor:
        """(n) int32: the shuffled number of every number."""
        n = self.model.num_nodes
        found = torch.empty(n, dtype=torch.int32, device=self.device)
        for first, last in _ranges(n, PIECE):
            found[first:last] = self.shuffled(purpose, torch.arange(first, last, device=self.device), back=back)
        return found

    # ---------------------------------------------------------------- the graph

    def edges(self) -> tuple[Tensor, Tensor, int]:
        """(D) sources and (D) targets as int32, both −1 where they were the same node; and how many were."""
        from tokenphormer.graph.generators import CHOICE, ORDER, TARGET

        m = self.model
        nodes = self.table(ORDER)
        source, target = (torch.empty(self.drawn, dtype=torch.int32, device=self.device) for _ in range(2))
        flip = -(1 << 63)  # unsigned numbers compare as signed ones do with their highest bit turned
        below = signed(min(int(m.homophily * 2**64), MASK64)) ^ flip
        loops = torch.zeros((), dtype=torch.int64, device=self.device)
        for first, last in _ranges(self.drawn, EDGES):
            number = torch.arange(first, last, device=self.device)
            rank = number // self.each
            label = rank % m.num_classes
            stays = (self.hash(CHOICE, number) ^ flip) < below
            u = shift_right(self.hash(TARGET, number), 33)
            square = (u * u) >> 30
            members = (m.num_nodes - label + m.num_classes - 1) // m.num_classes
            choice = (square * torch.where(stays, members, m.num_nodes)) >> 32
            chosen = torch.where(stays, choice * m.num_classes + label, choice)
            a, b = nodes[rank], nodes[chosen]
            same = a == b
            loops += same.sum()
            source[first:last], target[first:last] = a.masked_fill_(same, -1), b.masked_fill_(same, -1)
        return source, target, int(loops)

    def classes(self) -> Tensor:
        """(n) the class of every node, int32."""
        from tokenphormer.graph.generators import ORDER

        return self.table(ORDER, back=True).remainder_(self.model.num_classes)

    def signs(self) -> Tensor:
        """(C, F) the classes' patterns."""
        from tokenphormer.graph.generators import PATTERN, SIGNAL

        m = self.model
        table = torch.arange(m.num_classes * m.num_features, device=self.device).view(-1, m.num_features)
        strength = float(np.float32(SIGNAL / math.sqrt(m.num_features)))
        return (shift_right(self.hash(PATTERN, table), 63).to(torch.float32) * 2 - 1) * strength

    def features(self, first: int, last: int, classes: Tensor, signs: Tensor) -> Tensor:
        """(last − first, F) the features of a range of nodes, float32."""
        from tokenphormer.graph.generators import NOISE

        width = self.model.num_features
        number = torch.arange(first * width, last * width, device=self.device)
        bits = self.hash(NOISE, number)
        del number
        total = bits & 0xFFFF
        for shift in (16, 32, 48):
            total += (bits >> shift) & 0xFFFF
        noise = total.to(torch.float32).view(-1, width)
        noise -= float(2**17 - 2)
        noise *= float(np.float32(math.sqrt(3) / 2**16))
        return noise.add_(signs[classes[first:last].long()])


def _ranges(total: int, step: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + step, total)) for first in range(0, total, step))


# -------------------------------------------------------------------- onto the disk


def write_on_device(
    model: BlockModel, writer: GraphWriter, device: torch.device, *, half: bool, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Draw everything and write `x`, `y`, `indices` and `indptr`; what was done to the edges."""
    try:
        return _write(model, writer, device, half, say)
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise ResourceError(
            f"not enough memory on {device} to draw the graph there: {reason}; use --device cpu"
        ) from error


def _write(
    model: BlockModel, writer: GraphWriter, device: torch.device, half: bool, say: Callable[[str], None]
) -> tuple[str, ...]:
    drawn = DeviceModel(model, device)
    most = _entries_at_once(drawn, device)
    # In the order in which the CPU's version begins them, so that the manifest is the same.
    x = writer.array("x", np.float16 if half else np.float32, model.num_features)
    y, indices, indptr = (
        writer.array("y", np.int64),
        writer.array("indices", np.int32),
        writer.array("indptr", np.int64),
    )
    classes = drawn.classes()
    with _Pen(y, device) as pen:
        pen.put(classes)
    if device.type == "cuda":  # the other thread's stream does not wait for this one's
        torch.cuda.synchronize(device)
    stop = Event()
    with ThreadPoolExecutor(1) as other:
        features = other.submit(_write_features, drawn, writer, x, classes, stop)
        try:
            notes = _write_edges(drawn, indices, indptr, most, say)
        except BaseException:
            stop.set()
            raise
        features.result()
    say(f"{model.num_nodes:,} nodes drawn")
    return notes


def _entries_at_once(drawn: DeviceModel, device: torch.device) -> int:
    """How many entries are sorted at once beside the pairs and the features; on a CPU, memory is not asked for."""
    if device.type != "cuda":
        return MOST_ENTRIES
    free = torch.cuda.mem_get_info(device)[0]
    left = free - 8 * drawn.drawn - 24 * drawn.model.num_nodes - BYTES_AN_ENTRY * (PIECE + EDGES)
    if left < BYTES_AN_ENTRY << 20:
        raise ResourceError(
            f"drawing {drawn.drawn:,} edges on {device} takes more than the {free / 1e9:.1f} GB that are free there; "
            "use --device cpu"
        )
    return min(MOST_ENTRIES, left // BYTES_AN_ENTRY)


def _write_features(drawn: DeviceModel, writer: GraphWriter, x: ArrayWriter, classes: Tensor, stop: Event) -> None:
    m, device = drawn.model, drawn.device
    cuda: Any = torch.cuda
    stream = cuda.stream(cuda.Stream(device)) if device.type == "cuda" else nullcontext()
    half = x.dtype == np.float16
    with stream, _Pen(x, device) as pen:
        signs = drawn.signs()
        low = torch.full((m.num_features,), math.inf, device=device)
        high = -low
        for first, last in _ranges(m.num_nodes, max(1, PIECE // m.num_features)):
            if stop.is_set():
                return
            values = drawn.features(first, last, classes, signs)
            low, high = torch.minimum(low, values.amin(dim=0)), torch.maximum(high, values.amax(dim=0))
            pen.put(values.half() if half else values)
        writer.measured(low.double().cpu().numpy(), high.double().cpu().numpy())


def _write_edges(
    drawn: DeviceModel, indices: ArrayWriter, indptr: ArrayWriter, most: int, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Sort and merge the edges, a range of rows at a time; `EdgeSorter` says the same of them."""
    n, device = drawn.model.num_nodes, drawn.device
    source, target, loops = drawn.edges()
    say(f"{drawn.drawn:,} edges drawn; sorting")
    step = -(-n // max(1, -(-2 * drawn.drawn // most)))
    listed = drawn.drawn - loops
    forward = pairs = 0
    with _Pen(indices, device) as entries, _Pen(indptr, device) as starts:
        starts.put(torch.zeros(1, dtype=torch.int64, device=device))
        for first, last in _ranges(n, step):
            key = torch.sort(_keys(source, target, n, first, last)).values
            forward += _count_forward(key)
            key >>= 1
            key = key[_first_of_runs(key)]
            bounds = torch.arange(first + 1, last + 1, device=device) * n
            starts.put(torch.searchsorted(key, bounds) + pairs)
            pairs += len(key)
            entries.put(key.remainder_(n).to(torch.int32))
            del key
    notes = [f"dropped {loops} self-loops"] if loops else []
    notes += [f"merged {listed - forward} repeated edges"] if listed > forward else []
    one_way = pairs - forward
    if pairs:
        notes.append(f"{one_way} edges were listed from one end only" if one_way else "both ends listed")
    return tuple(notes)


def _keys(source: Tensor, target: Tensor, n: int, first: int, last: int) -> Tensor:
    """((row, column), whether reversed) of all edges with an end among the rows `first` … `last` − 1."""
    keys = []
    for begin, end in _ranges(len(source), EDGES):
        one, other = source[begin:end], target[begin:end]
        for row, column, reverse in ((one, other, 0), (other, one, 1)):
            here = torch.nonzero((row >= first) & (row < last)).squeeze(1)
            keys.append((row[here].long() * n + column[here]) * 2 + reverse)
    return torch.cat(keys)


def _first_of_runs(key: Tensor) -> Tensor:
    """Where a sorted key differs from the one before."""
    first = torch.ones(len(key), dtype=torch.bool, device=key.device)
    torch.ne(key[1:], key[:-1], out=first[1:])
    return first


def _count_forward(key: Tensor) -> int:
    """How many different edges were listed the right way round."""
    return int((_first_of_runs(key) & ((key & 1) == 0)).sum())


class _Pen:
    """Writes blocks of a device behind each other into an array, while the next are worked out.

    Two buffers, pinned where there is a GPU: one is filled while the other is hashed and written by another thread.
    """

    def __init__(self, array: ArrayWriter, device: torch.device) -> None:
        self._array = array
        self._kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        row = array.dtype.itemsize * (array.columns or 1)
        self._rows = max(1, BUFFER_BYTES // row)
        self._columns = () if array.columns is None else (array.columns,)
        self._device = device
        self._buffers: list[Tensor] = []
        self._busy: list[Future[None] | None] = [None, None]
        self._turn = 0
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> _Pen:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)
        for left in self._busy:
            if left is not None:
                left.result()

    def put(self, block: Tensor) -> None:
        """Add rows."""
        for first, last in _ranges(len(block), self._rows):
            buffer = self._free()[: last - first]
            buffer.copy_(block[first:last])  # waits for the device
            self._busy[self._turn] = self._thread.submit(self._array.append, buffer.numpy())
            self._turn = 1 - self._turn

    def _free(self) -> Tensor:
        if len(self._buffers) < 2:
            shape = (self._rows, *self._columns)
            self._buffers.append(torch.empty(shape, dtype=self._kind, pin_memory=self._device.type == "cuda"))
        last = self._busy[self._turn]
        if last is not None:
            last.result()
        return self._buffers[self._turn]
