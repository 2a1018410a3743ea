"""Ids of any kind as node numbers, for tables larger than memory: a table of hashes, and the ids themselves on disk.

Hashes only narrow the search; what is found is compared byte by byte, so that two ids with the same hash are no
harm. A node takes twelve bytes of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from tokenphormer.graph.graph import Stored
from tokenphormer.hashing import MASK64, MIX_A, MIX_B, mix64

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Texts = tuple[Ints, Bytes]
"""Strings one behind the other in UTF-8: text i is `data[offsets[i]:offsets[i + 1]]`."""

_U = np.uint64
# FNV-1a (Fowler, Noll, Vo), with SplitMix64's finaliser: the table reads the highest bits.
OFFSET, PRIME = 0xCBF29CE484222325, 0x100000001B3
_OFFSET, _PRIME, _MIX_A, _MIX_B = _U(OFFSET), _U(PRIME), _U(MIX_A), _U(MIX_B)
PER_BUCKET = 4


def text_key(text: bytes) -> int:
    """The hash of one id: the plain version of `text_keys`."""
    key = OFFSET
    for byte in text:
        key = ((key ^ byte) * PRIME) & MASK64
    return mix64(key)


@njit(cache=True)
def _key(data: Any, start: Any, end: Any) -> Any:
    key = _OFFSET
    for at in range(start, end):
        key = (key ^ _U(data[at])) * _PRIME
    key = (key ^ (key >> _U(30))) * _MIX_A
    key = (key ^ (key >> _U(27))) * _MIX_B
    return key ^ (key >> _U(31))


@njit(cache=True, parallel=True)
def text_keys(offsets: Any, data: Any) -> Any:
    """(m) the hashes of texts."""
    keys = np.empty(len(offsets) - 1, np.uint64)
    for i in prange(len(keys)):
        keys[i] = _key(data, offsets[i], offsets[i + 1])
    return keys


@njit(cache=True)
def _equal(offsets: Any, data: Any, i: Any, other_offsets: Any, other: Any, j: Any) -> Any:
    start, there = offsets[i], other_offsets[j]
    size = offsets[i + 1] - start
    if other_offsets[j + 1] - there != size:
        return False
    for k in range(size):  # noqa: SIM110  # compiled: a generator would be slower
        if data[start + k] != other[there + k]:
            return False
    return True


@njit(cache=True)
def _repetition(keys: Any, rows: Any, offsets: Any, data: Any) -> Any:
    """The first row whose id stands in an earlier row too, and that row; (−1, −1) without."""
    found, first = np.int64(-1), np.int64(-1)
    for at in range(1, len(keys)):
        before = at - 1
        while before >= 0 and keys[before] == keys[at]:
            if _equal(offsets, data, rows[at], offsets, data, rows[before]):
                # Of the first repetition of all, the last row before it with the same id is the only one.
                if found < 0 or rows[at] < found:
                    found, first = np.int64(rows[at]), np.int64(rows[before])
                break
            before -= 1
    return found, first


@njit(cache=True, parallel=True)
def _look_up(keys: Any, rows: Any, starts: Any, shift: Any, known: Any, ids: Any, offsets: Any, data: Any) -> Any:
    result = np.full(len(offsets) - 1, -1, np.int64)
    for i in prange(len(result)):
        key = _key(data, offsets[i], offsets[i + 1])
        bucket = np.int64(key >> shift)
        for at in range(starts[bucket], starts[bucket + 1]):
            if keys[at] == key and _equal(offsets, data, i, known, ids, rows[at]):
                result[i] = rows[at]
                break
    return result


@dataclass(frozen=True, eq=False)
class IdTable:
    """Finds the rows of ids."""

    keys: NDArray[np.uint64]
    """(n) hashes, ascending."""
    rows: NDArray[np.int32]
    """(n) the rows they belong to; equal hashes are in the order of their rows."""
    ids: Texts
    starts: Ints
    """Where the hashes with the same highest bits begin."""
    shift: int

    @classmethod
    def of(cls, ids: Texts, keys: NDArray[np.uint64]) -> IdTable:
        """Sort the hashes of ids."""
        rows = np.argsort(keys, kind="stable").astype(np.int32)
        ordered = keys[rows]
        bits = max(1, (len(keys) // PER_BUCKET).bit_length())
        borders = np.arange(1, 1 << bits, dtype=np.uint64) << _U(64 - bits)
        starts = np.concatenate([[0], np.searchsorted(ordered, borders), [len(keys)]]).astype(np.int64)
        return cls(ordered, rows, ids, starts, 64 - bits)

    def repetition(self) -> tuple[int, int] | None:
        """The first row whose id an earlier row has already, and that row."""
        row, first = _repetition(self.keys, self.rows, *self.ids)
        return None if row < 0 else (int(row), int(first))

    def find(self, texts: Texts) -> Ints:
        """(m) the row of each text among the ids; −1 where it is none of them."""
        found: Ints = _look_up(self.keys, self.rows, self.starts, _U(self.shift), *self.ids, *texts)
        return found


def find_stored(stored: Stored, ids: NDArray[np.str_], text: str) -> int | None:
    """The node of a graph on disk that has an id; a few pages of the sorted hashes are read."""
    assert stored.id_keys is not None
    assert stored.id_rows is not None
    key = np.uint64(text_key(encode(text)))
    at = int(np.searchsorted(stored.id_keys, key))
    while at < len(ids) and stored.id_keys[at] == key:
        row = int(stored.id_rows[at])
        if ids[row] == text:
            return row
        at += 1
    return None


def encode(text: str) -> bytes:
    """UTF-8 that takes what Python strings can hold, lone surrogates too."""
    return text.encode("utf-8", "surrogatepass")


def texts_of(strings: list[str]) -> Texts:
    """Python strings as `Texts`."""
    encoded = [encode(one) for one in strings]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(one) for one in encoded], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(encoded) or b"\0", np.uint8)


def texts_of_column(column: Any) -> Texts:
    """A pyarrow column of large strings, without nulls, as `Texts`; nothing is copied if it is in one piece."""
    array = column.combine_chunks()
    if not len(array):
        return np.zeros(1, np.int64), np.zeros(1, np.uint8)
    _, offsets, data = array.buffers()
    begin = array.offset
    where = np.frombuffer(offsets, np.int64)[begin : begin + len(array) + 1]
    return where, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)


@njit(cache=True)
def decode_into(offsets: Any, data: Any, out: Any) -> None:
    """Fill rows of `out` (m, width), zeros before, with the code points of texts in valid UTF-8."""
    for i in range(len(offsets) - 1):
        at, column = offsets[i], 0
        while at < offsets[i + 1]:
            byte = np.uint32(data[at])
            more = 0 if byte < 0x80 else 1 if byte < 0xE0 else 2 if byte < 0xF0 else 3
            point = byte if more == 0 else byte & np.uint32(0x3F >> more)
            for _ in range(more):
                at += 1
                point = (point << np.uint32(6)) | np.uint32(data[at] & 0x3F)
            out[i, column] = point
            column += 1
            at += 1
