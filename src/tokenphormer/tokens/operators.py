"""Sparse matrices that gradients flow through: rows are gathered, pooled and propagated as matrix products.

Everything a token reads of other nodes is linear in their (projected) features, so it is a sparse matrix times
a dense one. The backward pass is the transposed matrix times the gradient, in a fixed order of summation: the
same result on every run, which atomic additions would not give. (On GPUs that holds for `deterministic` trainings,
which have a kernel of their own for it.)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from tokenphormer.graph.checks import Features

with warnings.catch_warnings():  # torch says once a process that CSR tensors are in beta; here, unheard
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


@dataclass(frozen=True, eq=False)
class SparseOperator:
    """A sparse (rows, columns) matrix and its transpose, both in compressed rows."""

    crow: Tensor
    column: Tensor
    value: Tensor
    shape: tuple[int, int]
    symmetric: bool = False

    @classmethod
    def from_scipy(cls, matrix: sp.csr_array, device: torch.device, symmetric: bool = False) -> SparseOperator:
        """Copy a SciPy matrix to a device."""
        index = np.int32 if matrix.nnz < 2**31 else np.int64
        return cls(
            torch.tensor(matrix.indptr.astype(index), device=device),
            torch.tensor(matrix.indices.astype(index), device=device),
            torch.tensor(matrix.data, device=device),
            (int(matrix.shape[0]), int(matrix.shape[1])),
            symmetric,
        )

    @cached_property
    def _transposed_pattern(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row starts and columns of the transposed matrix, and where its values stand in this one."""
        rows, columns = self.shape
        row = torch.repeat_interleave(torch.arange(rows, device=self.crow.device), self.crow.diff())
        order = torch.argsort(self.column, stable=True)
        crow = torch.zeros(columns + 1, dtype=self.crow.dtype, device=self.crow.device)
        crow[1:] = torch.cumsum(torch.bincount(self.column, minlength=columns), 0)
        return crow, row[order].to(self.column.dtype), order

    @cached_property
    def transposed(self) -> SparseOperator:
        """The transposed matrix; entries of a row keep the order of the columns they came from."""
        if self.symmetric:
            return self
        crow, column, order = self._transposed_pattern
        return SparseOperator(crow, column, self.value[order], (self.shape[1], self.shape[0]))

    def dropout(self, share: float) -> SparseOperator:
        """The same matrix with some of its entries zero and the others larger, as torch's dropout does."""
        dropped = SparseOperator(self.crow, self.column, F.dropout(self.value, share), self.shape)
        dropped.__dict__["_transposed_pattern"] = self._transposed_pattern  # the pattern stays, so it is kept
        return dropped

    def __matmul__(self, dense: Tensor) -> Tensor:
        """(rows, h) this matrix times a dense (columns, h) one, with gradients for the dense one."""
        multiply: Any = _Multiply.apply
        result: Tensor = multiply(dense, self)
        return result


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, operator: SparseOperator) -> Tensor:
        ctx.operator = operator
        return _product(operator, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _product(ctx.operator.transposed, gradients[0].contiguous()), None


def _product(operator: SparseOperator, dense: Tensor) -> Tensor:
    if not operator.value.numel():
        return dense.new_zeros(operator.shape[0], dense.shape[1])
    if not dense.is_cuda and dense.dtype == torch.bfloat16:  # which CPUs have no sparse product for
        return _product(operator, dense.float()).to(dense.dtype)
    value = operator.value.to(dense.dtype)
    if dense.is_cuda and torch.are_deterministic_algorithms_enabled():
        from tokenphormer.tokens import csr_kernel

        return csr_kernel.product(operator.crow, operator.column, value, operator.shape[0], dense)
    return _csr(operator.crow, operator.column, value, operator.shape) @ dense


def _csr(crow: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    # Unchecked: the parts come from code that made them right, and checking would stop a GPU.
    return torch.sparse_csr_tensor(crow, column, value, shape, check_invariants=False)


def token_operator(columns: Tensor, values: Tensor, width: int) -> SparseOperator:
    """(B·T, width) from `columns` and `values` (B, T, E): token t of node b is Σ values[b, t] · row columns[b, t].

    Every token has E entries, some with the value 0, so that all sizes are known and a GPU need not be waited for.
    """
    tokens, entries = columns.shape[0] * columns.shape[1], columns.shape[2]
    crow = torch.arange(tokens + 1, dtype=torch.int32, device=columns.device) * entries
    operator = SparseOperator(crow, columns.reshape(-1).to(torch.int32), values.reshape(-1), (tokens, width))
    order = torch.argsort(operator.column, stable=True)
    ends = torch.arange(width + 1, dtype=torch.int32, device=columns.device)
    starts = torch.searchsorted(operator.column[order], ends).to(torch.int32)
    operator.__dict__["_transposed_pattern"] = (starts, (order // entries).to(torch.int32), order)
    return operator


GPU_DENSITY = 1 / 128
"""Above this share of non-zero features a GPU's dense product is faster than its sparse one: it does 150 times as
many multiplications a second, and reads each row once."""
GPU_DENSE_BYTES = 256 << 20
"""The most memory that this speed may cost."""


def _better_dense(x: sp.csr_array) -> bool:
    rows, columns = x.shape
    return x.nnz > GPU_DENSITY * rows * columns and 4 * rows * columns <= GPU_DENSE_BYTES


@dataclass(frozen=True, eq=False)
class FeatureRows:
    """Rows of features on a device: a sparse part, a dense part, or both side by side."""

    sparse: SparseOperator | None
    dense: Tensor | None

    @classmethod
    def on(cls, device: torch.device, x: Features | None, extra: Features | None = None) -> FeatureRows:
        """Copy features, and dense columns that stand behind them, to a device, as float32.

        Sparse features stay sparse, unless they are so little so that a GPU multiplies them faster when dense.
        """
        if x is not None and not isinstance(x, np.ndarray) and device.type == "cuda" and _better_dense(x):
            x = x.toarray()
        arrays = [part for part in (x, extra) if isinstance(part, np.ndarray)]
        dense = [torch.tensor(part, dtype=torch.float32, device=device) for part in arrays]
        sparse = None if x is None or isinstance(x, np.ndarray) else SparseOperator.from_scipy(x, device)
        return cls(sparse, torch.cat(dense, dim=1) if dense else None)

    def dropout(self, share: float) -> FeatureRows:
        """The same rows with some of the features zero and the others larger."""
        sparse = None if self.sparse is None else self.sparse.dropout(share)
        return FeatureRows(sparse, None if self.dense is None else F.dropout(self.dense, share))

    def project(self, weight: Tensor) -> Tensor:
        """(rows, h) the features times `weight` (features, h); the sparse columns come first."""
        width = self.sparse.shape[1] if self.sparse is not None else 0
        parts = []
        if self.sparse is not None:
            parts.append(self.sparse @ weight[:width])
        if self.dense is not None:
            parts.append(self.dense.to(weight.dtype) @ weight[width:])
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]
