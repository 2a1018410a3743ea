"""The fused kernels against plain torch: on a GPU where there is one, else under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton has no wheel for this platform")

from tokenphormer import model_kernels
from tokenphormer.model import ModelSettings, Tokenphormer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def inputs(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE).requires_grad_()


def gradients(result: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
    direction = torch.randn(result.shape, generator=torch.Generator().manual_seed(7)).to(DEVICE)
    return torch.autograd.grad((result * direction).sum(), leaves)


@pytest.mark.parametrize("width", [8, 12])
def test_add_norm_without_dropout(width: int) -> None:
    H, branch, weight, bias = inputs(3, 5, width), inputs(3, 5, width), inputs(width), inputs(width)
    total, normed = model_kernels.AddNorm.apply(H, branch, weight, bias, 1e-5, 0.0)
    expected = F.layer_norm(H + branch, (width,), weight, bias, 1e-5)
    torch.testing.assert_close(total, H + branch)
    torch.testing.assert_close(normed, expected, rtol=1e-4, atol=1e-5)
    fused = gradients(normed * 2 + total, H, branch, weight, bias)
    plain = gradients(expected * 2 + (H + branch), H, branch, weight, bias)
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_norm_alone() -> None:
    H, weight, bias = inputs(4, 7, 8), inputs(8), inputs(8)
    _, normed = model_kernels.AddNorm.apply(H, None, weight, bias, 1e-5, 0.0)
    expected = F.layer_norm(H, (8,), weight, bias, 1e-5)
    torch.testing.assert_close(normed, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(gradients(normed, H, weight, bias), gradients(expected, H, weight, bias), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_gelu_without_dropout() -> None:
    leaves = x, weight, bias = inputs(2, 5, 11), inputs(3, 11), inputs(3)
    fused = model_kernels.GeluDropoutLinear.apply(x, weight, bias, 0.0)
    plain = F.linear(F.gelu(x), weight, bias)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    for a, b in zip(gradients(fused, *leaves), gradients(plain, *leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def gelu_dropout(x: torch.Tensor, dropout: float) -> torch.Tensor:
    """Through the identity matrix, so that single elements can be seen."""
    one = torch.eye(x.shape[-1], device=DEVICE)
    return model_kernels.GeluDropoutLinear.apply(x, one, torch.zeros(x.shape[-1], device=DEVICE), dropout)


def test_dropout_drops_its_share_and_the_same_elements_in_the_backward_pass() -> None:
    x = torch.full((200, 100), 2.0, device=DEVICE, requires_grad=True)
    torch.manual_seed(3)
    out = gelu_dropout(x, 0.3)
    dropped = (out == 0).float().mean().item()
    assert abs(dropped - 0.3) < 0.015
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, F.gelu(torch.tensor(2.0)).item() / 0.7))
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient == 0, out == 0)

    H, branch = torch.zeros(200, 100, device=DEVICE, requires_grad=True), x
    for function in (model_kernels.AddDropout.apply, lambda h, b, p: norm_total(h, b, p)):
        total = function(H, branch, 0.3)
        assert abs((total == 0).float().mean().item() - 0.3) < 0.015
        d_H, d_branch = torch.autograd.grad(total.sum(), (H, branch))
        assert torch.equal(d_branch == 0, total == 0)
        torch.testing.assert_close(d_H, torch.ones_like(d_H), atol=1e-5, rtol=0)


def norm_total(H: torch.Tensor, branch: torch.Tensor, dropout: float) -> torch.Tensor:
    ones = torch.ones(H.shape[1], device=DEVICE)
    total, normed = model_kernels.AddNorm.apply(H, branch, ones, ones, 1e-5, dropout)
    return total + 0 * normed


def test_seeds_govern_dropout() -> None:
    x = torch.ones(50, 50, device=DEVICE)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(gelu_dropout(x, 0.5) == 0)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 2)])
def test_whole_layers_are_equal(layers: int, heads: int) -> None:
    torch.manual_seed(0)
    settings = ModelSettings(hidden_channels=16, num_layers=layers, num_heads=heads, dropout=0.0, attention_dropout=0.0)
    model = Tokenphormer(4, 3, settings).to(DEVICE)
    H = inputs(3, 6, 16)
    results = []
    for fused in (False, True):
        x = H
        for layer in model.layers:
            x = layer._fused_forward(x) if fused else layer.plain_forward(x)
        results.append((x, gradients(x, H, *model.layers.parameters())))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-4)
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_no_rows() -> None:
    H, weight, bias = torch.zeros(0, 4, 8, device=DEVICE), inputs(8), inputs(8)
    total, normed = model_kernels.AddNorm.apply(H, H, weight, bias, 1e-5, 0.1)
    assert total.shape == normed.shape == (0, 4, 8)
    assert gelu_dropout(H, 0.1).shape == (0, 4, 8)
