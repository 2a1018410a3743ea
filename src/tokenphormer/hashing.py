"""The one source of randomness and identity: integer hashes that are the same on every machine.

`mix64` is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
OOPSLA 2014): a bijection of 64-bit integers whose output passes the usual statistical batteries.
The walk backends hold twins of it in torch, Numba and Triton; `walks/README.md` is the contract.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB


def mix64(value: int) -> int:
    """Mix a 64-bit integer: the plain Python version that the others are tested against.

    >>> hex(mix64(GOLDEN))
    '0xe220a8397b1dcdaf'
    """
    value = int(value) & MASK64  # of NumPy, too, whose integers would overflow
    value = ((value ^ (value >> 30)) * MIX_A) & MASK64
    value = ((value ^ (value >> 27)) * MIX_B) & MASK64
    return value ^ (value >> 31)


def mix64_array(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`mix64` of every element."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(MIX_A)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(MIX_B)
    return value ^ (value >> np.uint64(31))


def signed(value: int) -> int:
    """A 64-bit number as int64 tensors hold it: their products and sums wrap as those of uint64 do.

    >>> signed(MASK64), signed(7)
    (-1, 7)
    """
    return value - (1 << 64) if value >= 1 << 63 else value


def shift_right(z: Tensor, bits: int) -> Tensor:
    """The logical right shift of int64 tensors, whose own one copies the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix64_tensor(z: Tensor) -> Tensor:
    """`mix64` of every element of an int64 tensor, on its device."""
    z = (z ^ shift_right(z, 30)) * signed(MIX_A)
    z = (z ^ shift_right(z, 27)) * signed(MIX_B)
    return z ^ shift_right(z, 31)


def hash_order(items: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Shuffle `items` by the hash of (seed, item): a permutation no library version can change."""
    keys = mix64_array(items.astype(np.uint64) ^ np.uint64(mix64(seed + GOLDEN)))
    return items[np.argsort(keys, kind="stable")]


def digest(arrays: Iterable[tuple[str, NDArray[np.generic] | None]], text: str = "") -> str:
    """SHA-256 of named arrays (name, dtype, shape, bytes) and a text, as 64 hex digits."""
    sha = hashlib.sha256(text.encode())
    for name, array in arrays:
        if array is None:
            continue
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        sha.update(f"|{name}:{little.dtype.str}:{little.shape}|".encode())
        sha.update(little.data if little.size else b"")
    return sha.hexdigest()
