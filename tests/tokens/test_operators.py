"""Sparse products with gradients: the same as dense ones, in every precision."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests.tiny import CPU
from tokenphormer.tokens.operators import FeatureRows, SparseOperator


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


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_features_stand_before_the_columns_that_are_added(sparse: bool, half: bool) -> None:
    rng = np.random.default_rng(0)
    features = rng.integers(0, 3, (7, 5)).astype(np.float32)
    extra = rng.normal(size=(7, 2)).astype(np.float16 if half else np.float32)
    x = sp.csr_array(features) if sparse else features
    weight = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.tensor(np.concatenate([features, extra.astype(np.float32)], axis=1)) @ weight
    torch.testing.assert_close(FeatureRows.on(CPU, x, extra).project(weight), expected)
    torch.testing.assert_close(FeatureRows.on(CPU, x).project(weight[:5]), torch.tensor(features) @ weight[:5])
    torch.testing.assert_close(
        FeatureRows.on(CPU, None, extra).project(weight[5:]), torch.tensor(extra).float() @ weight[5:]
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_dropped_features_are_zero_and_the_others_larger(sparse: bool) -> None:
    features = np.full((40, 50), 3.0, np.float32)
    dropped = FeatureRows.on(CPU, sp.csr_array(features) if sparse else features).dropout(0.25).project(torch.eye(50))
    values, counts = dropped.unique(return_counts=True)
    assert values.tolist() == [0.0, 4.0]
    assert 0.2 < counts[0].item() / 2000 < 0.3
