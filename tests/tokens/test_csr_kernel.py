"""The kernel of deterministic trainings against torch's product: on a GPU where there is one, else interpreted."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

pytest.importorskip("triton", reason="triton has no wheel for this platform")

from tokenphormer.tokens import csr_kernel
from tokenphormer.tokens.operators import SparseOperator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("width", [1, 3, 8, 33])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_it_is_the_product(width: int, index: type) -> None:
    rng = np.random.default_rng(width)
    matrix = sp.random_array((13, 9), density=0.4, rng=rng, format="csr", dtype=np.float32)
    matrix.data[matrix.indptr[3] : matrix.indptr[4]] = 0.0
    dense = rng.standard_normal((9, width)).astype(np.float32)
    found = csr_kernel.product(
        torch.tensor(matrix.indptr.astype(index), device=DEVICE),
        torch.tensor(matrix.indices.astype(index), device=DEVICE),
        torch.tensor(matrix.data, device=DEVICE),
        13,
        torch.tensor(dense, device=DEVICE),
    )
    np.testing.assert_allclose(found.cpu().numpy(), matrix @ dense, rtol=1e-5, atol=1e-6)


def test_empty_rows_are_zero() -> None:
    crow, none = torch.zeros(5, dtype=torch.int32, device=DEVICE), torch.zeros(0, device=DEVICE)
    found = csr_kernel.product(crow, none.int(), none, 4, torch.ones(2, 3, device=DEVICE))
    assert found.tolist() == [[0.0] * 3] * 4


@pytest.mark.gpu
def test_deterministic_products_use_it_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = sp.random_array((500, 400), density=0.2, rng=np.random.default_rng(0), format="csr", dtype=np.float32)
    operator = SparseOperator.from_scipy(matrix, torch.device("cuda"))
    dense = torch.randn(400, 24, device="cuda")
    plain = operator @ dense
    calls: list[int] = []
    own = csr_kernel.product
    monkeypatch.setattr(csr_kernel, "product", lambda *parts: calls.append(1) or own(*parts))
    torch.use_deterministic_algorithms(True)
    try:
        first, second = operator @ dense, operator @ dense
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(calls) == 2
    assert torch.equal(first, second)
    torch.testing.assert_close(first, plain, rtol=1e-4, atol=1e-4)
