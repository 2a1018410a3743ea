"""One hop over all nodes on a GPU, in Triton: rows of features are gathered by 64-bit places and summed in float32.

A program works out one row of the result: it reads the neighbours eight at a time, so that eight rows of features are
on their way at once, and adds them in a fixed order. Its twin in plain torch is `resident.one_hop`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_jit: Callable[[Callable[..., Any]], Any] = triton.jit
NEIGHBOURS = 8
"""Rows of features that a program reads at once; with 128 columns its sums are 32 numbers a thread."""


@_jit
def _hop(
    indptr: tl.tensor,
    indices: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    width: tl.tensor,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    OWN: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    lane = tl.arange(0, NEIGHBOURS)
    start = tl.load(indptr + row)
    end = tl.load(indptr + row + 1)
    total = tl.zeros([NEIGHBOURS, BLOCK], tl.float32)
    for first in range(start, end, NEIGHBOURS):
        entry = first + lane
        there = entry < end
        column = tl.load(indices + entry, mask=there, other=0).to(tl.int64)
        both = there[:, None] & inside[None, :]
        part = tl.load(x + column[:, None] * width + place[None, :], mask=both, other=0.0).to(tl.float32)
        if RIGHT:
            part *= tl.load(right + column, mask=there, other=0.0)[:, None]
        total += part
    result = tl.sum(total, axis=0)
    if OWN:
        own = tl.load(x + row * width + place, mask=inside, other=0.0).to(tl.float32)
        if RIGHT:
            own *= tl.load(right + row)
        result += own
    if LEFT:
        result *= tl.load(left + row)
    tl.store(out + row * width + place, result.to(out.dtype.element_ty), mask=inside)


def one_hop(
    indptr: Tensor, indices: Tensor, left: Tensor | None, right: Tensor | None, own: bool, x: Tensor, out: Tensor
) -> None:
    """Fill `out` (n, F) with diag(left) (A, or A + I if `own`) diag(right) x; None is a diagonal of ones."""
    rows, width = out.shape
    assert x.is_contiguous()
    assert out.is_contiguous()
    block = min(128, triton.next_power_of_2(max(1, width)))
    grid = (rows, triton.cdiv(width, block))
    if rows and width:
        _hop[grid](
            indptr,
            indices,
            x if left is None else left,
            x if right is None else right,
            x,
            out,
            width,
            LEFT=left is not None,
            RIGHT=right is not None,
            OWN=own,
            NEIGHBOURS=NEIGHBOURS,
            BLOCK=block,
            num_warps=1,
        )
