"""A sparse matrix times a dense one on a GPU, in Triton, with the same sums in the same order on every run.

NVIDIA's library adds the parts of long rows as they come; so `deterministic` trainings use this kernel instead, which
takes the entries of a row one after another. Its twin is torch's own product, in `operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_jit: Callable[[Callable[..., Any]], Any] = triton.jit


@_jit
def _rows_times_dense(
    crow: tl.tensor,
    column: tl.tensor,
    value: tl.tensor,
    dense: tl.tensor,
    result: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    total = tl.zeros([BLOCK], tl.float32)
    for entry in range(tl.load(crow + row), tl.load(crow + row + 1)):
        start = tl.load(column + entry).to(tl.int64) * width
        part = tl.load(dense + start + place, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(value + entry).to(tl.float32) * part
    tl.store(result + row * width + place, total.to(result.dtype.element_ty), mask=inside)


def product(crow: Tensor, column: Tensor, value: Tensor, rows: int, dense: Tensor) -> Tensor:
    """(rows, h) of a matrix in compressed rows and a dense (columns, h) one; sums are float32."""
    dense = dense.contiguous()
    width = dense.shape[1]
    result = torch.empty(rows, width, dtype=dense.dtype, device=dense.device)
    block = min(1024, triton.next_power_of_2(max(1, width)))
    grid = (rows, triton.cdiv(width, block))
    if rows and width:
        _rows_times_dense[grid](crow, column, value, dense, result, width, BLOCK=block)
    return result
