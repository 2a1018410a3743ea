"""Sparse products with gradients: the same as dense ones, in every precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests.tiny import CPU
from tokenphormer.tokens.operators import SparseOperator


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5), (torch.bfloat16, 0.1)])
def test_product_and_gradient_are_the_dense_ones(dtype: torch.dtype, tolerance: float) -> None:
    matrix = sp.random_array((7, 5), density=0.5, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
    operator, whole = SparseOperator.from_scipy(matrix, CPU), torch.tensor(matrix.toarray(), dtype=dtype)
    dense = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    found, expected = operator @ dense, whole @ dense
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    direction = torch.arange(21.0).reshape(7, 3).to(dtype)
    (gradient,) = torch.autograd.grad((found * direction).sum(), dense, retain_graph=True)
    (wanted,) = torch.autograd.grad((expected * direction).sum(), dense)
    torch.testing.assert_close(gradient, wanted, rtol=tolerance, atol=10 * tolerance)
