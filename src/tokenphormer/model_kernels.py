"""The passes between the model's matrix products, each fused into one trip through a GPU's memory, in Triton.

A Transformer layer on 169,000 tokens of 512 channels moves 173 MB for every tensor it touches; torch's own kernels
touch each several times (dropout, its mask, the sum, the norm). Here dropout, residual sum and LayerNorm are one
kernel, GELU and dropout another, and no mask is stored: it is a hash of (seed, place), made again when needed.
The plain twins, used everywhere else, are in `model.py`; without dropout the two agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 132 * 8
"""Programs of a launch; each works off many rows, so that sums over rows stay in registers."""
_jit: Callable[[Callable[..., Any]], Any] = triton.jit
_kernel: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["threshold"])


@_jit
def _keep(seed: tl.tensor, place: tl.tensor, threshold: tl.tensor) -> tl.tensor:
    """Whether an element stays: a 32-bit hash of its place (Wellons' lowbias32) is at least the threshold."""
    x = place.to(tl.uint32) ^ tl.load(seed).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    x = x ^ (x >> 16)
    return x >= threshold.to(tl.uint32)


@_kernel
def _add_norm(
    base: tl.tensor,
    branch: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    total: tl.tensor,
    normed: tl.tensor,
    means: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    seed: tl.tensor,
    threshold: tl.tensor,
    boost: tl.tensor,
    ADD: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    column = tl.arange(0, BLOCK)
    inside = column < width
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        place = (tl.zeros([BLOCK], tl.int64) + row) * width + column
        x = tl.load(base + place, mask=inside, other=0.0).to(tl.float32)
        if ADD:
            added = tl.load(branch + place, mask=inside, other=0.0).to(tl.float32)
            x += tl.where(_keep(seed, place, threshold), added * boost, 0.0)
            tl.store(total + place, x.to(total.dtype.element_ty), mask=inside)
            x = x.to(total.dtype.element_ty).to(tl.float32)  # what the backward pass will read
        if NORM:
            mean = tl.sum(x, axis=0) / width
            centred = tl.where(inside, x - mean, 0.0)
            scale = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
            w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
            b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
            tl.store(normed + place, (centred * scale * w + b).to(normed.dtype.element_ty), mask=inside)
            tl.store(means + row, mean)
            tl.store(scales + row, scale)


@_kernel
def _add_norm_backward(
    d_total: tl.tensor,
    d_normed: tl.tensor,
    total: tl.tensor,
    weight: tl.tensor,
    means: tl.tensor,
    scales: tl.tensor,
    d_base: tl.tensor,
    d_branch: tl.tensor,
    d_weight: tl.tensor,
    d_bias: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    seed: tl.tensor,
    threshold: tl.tensor,
    boost: tl.tensor,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    column = tl.arange(0, BLOCK)
    inside = column < width
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    sum_weight = tl.zeros([BLOCK], tl.float32)
    sum_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        place = (tl.zeros([BLOCK], tl.int64) + row) * width + column
        dy = tl.load(d_normed + place, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(total + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        hat = tl.where(inside, (x - tl.load(means + row)) * scale, 0.0)
        sum_weight += dy * hat
        sum_bias += dy
        dy = dy * w
        dx = (dy - tl.sum(dy, axis=0) / width - hat * (tl.sum(dy * hat, axis=0) / width)) * scale
        dx += tl.load(d_total + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_base + place, dx.to(d_base.dtype.element_ty), mask=inside)
        if ADD:
            kept = tl.where(_keep(seed, place, threshold), dx * boost, 0.0)
            tl.store(d_branch + place, kept.to(d_branch.dtype.element_ty), mask=inside)
    tl.store(d_weight + tl.program_id(0) * width + column, sum_weight, mask=inside)
    tl.store(d_bias + tl.program_id(0) * width + column, sum_bias, mask=inside)


@_kernel
def _gelu_dropout(
    x: tl.tensor,
    gradient: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    seed: tl.tensor,
    threshold: tl.tensor,
    boost: tl.tensor,
    GELU: tl.constexpr,
    BACKWARD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """dropout(gelu(x)), or dropout(x) alone; backward, the gradient through the same."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # Φ(x) by Abramowitz and Stegun 7.1.26, to 1e-7: it shares its exponential with the slope.
        bell = tl.exp2(value * value * -0.7213475204444817)
        t = 1.0 / (1.0 + 0.23164191 * tl.abs(value))
        tail = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
        tail = 0.5 * t * tail * bell
        half = tl.where(value < 0, tail, 1.0 - tail)
        slope = half + value * 0.3989422804014327 * bell
        value = slope if BACKWARD else value * half
    if BACKWARD:
        value = value * tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(_keep(seed, place, threshold), value * boost, 0.0)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)


def _numbers(dropout: float, device: torch.device) -> tuple[Tensor, int, float]:
    """A seed from torch's generator of the device, the threshold, and the factor.

    The seed stays on the GPU: a CUDA graph that is played again then draws another, as torch's own dropout does.
    """
    seed = torch.randint(2**31 - 1, (1,), dtype=torch.int32, device=device) if dropout else _no_seed(device)
    return seed, min(int(dropout * 2**32), 2**32 - 1), 1.0 / (1.0 - dropout)


@cache
def _no_seed(device: torch.device) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=device)


class AddNorm(torch.autograd.Function):
    """H + dropout(branch) and its LayerNorm; with no branch, H itself and its LayerNorm.

    H is handed through so that its two gradients, past the norm and through it, are summed in the one kernel.
    """

    @staticmethod
    def forward(
        ctx: Any, H: Tensor, branch: Tensor | None, weight: Tensor, bias: Tensor, eps: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """Both results, in the precision of H."""
        H = H.contiguous()
        width, rows = H.shape[-1], H.numel() // H.shape[-1]
        total = H if branch is None else torch.empty_like(H)
        normed = torch.empty_like(H)
        means, scales = (torch.empty(rows, dtype=torch.float32, device=H.device) for _ in range(2))
        numbers = _numbers(dropout if branch is not None else 0.0, H.device)
        other = H if branch is None else branch.contiguous()
        shape = (branch is not None, True, triton.next_power_of_2(width))
        grid = (min(rows, PROGRAMS),)
        if rows:
            _add_norm[grid](H, other, weight, bias, total, normed, means, scales, rows, width, eps, *numbers, *shape)
        ctx.save_for_backward(total, weight, means, scales)
        ctx.numbers, ctx.add = numbers, branch is not None
        return total.view_as(total), normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of H, the branch, the norm's weight and bias."""
        total, weight, means, scales = ctx.saved_tensors
        d_total, d_normed = gradients
        width, rows = total.shape[-1], total.numel() // total.shape[-1]
        d_base = torch.empty_like(total)
        d_branch = torch.empty_like(total) if ctx.add else d_base
        programs = max(1, min(rows, PROGRAMS))
        sums = torch.zeros(2, programs, width, dtype=torch.float32, device=total.device)
        if rows:
            _add_norm_backward[(programs,)](
                *(d_total.contiguous(), d_normed.contiguous(), total, weight, means, scales),
                *(d_base, d_branch, sums[0], sums[1], rows, width, *ctx.numbers),
                *(ctx.add, triton.next_power_of_2(width)),
            )
        d_weight, d_bias = sums.sum(dim=1).to(weight.dtype)
        return d_base, d_branch if ctx.add else None, d_weight, d_bias, None, None


class GeluDropoutLinear(torch.autograd.Function):
    """dropout(gelu(x)) Wᵀ + b, the second half of the feed-forward network."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, dropout: float) -> Tensor:
        """In the precision of x."""
        ctx.numbers = _numbers(dropout, x.device)
        between = _elementwise(x, x, ctx.numbers, gelu=True, backward=False)
        ctx.save_for_backward(x, between, weight, bias)
        return F.linear(between, weight.to(x.dtype), bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of x, W and b."""
        x, between, weight, bias = ctx.saved_tensors
        d_out = gradients[0].reshape(-1, weight.shape[0])
        d_weight = (d_out.t() @ between.view(-1, weight.shape[1])).to(weight.dtype)
        # The widest tensors of the layer: one memory for the product, its gradient, and the gradient of x.
        d_between = torch.mm(d_out, weight.to(x.dtype), out=between.view(-1, weight.shape[1]))
        d_x = _elementwise(x, d_between, ctx.numbers, gelu=True, backward=True, out=d_between)
        return d_x.view(x.shape), d_weight, _column_sums(d_out).to(bias.dtype), None


class Linear(torch.autograd.Function):
    """x Wᵀ + b. The gradient of b is a product with ones, at twice the speed of torch's sum over so many rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """In the precision of x."""
        ctx.save_for_backward(x, weight, bias)
        return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of x, W and b."""
        x, weight, bias = ctx.saved_tensors
        d_out = gradients[0].reshape(-1, weight.shape[0])
        d_x = (d_out @ weight.to(x.dtype)).view(x.shape)
        d_weight = (d_out.t() @ x.reshape(-1, weight.shape[1])).to(weight.dtype)
        return d_x, d_weight, _column_sums(d_out).to(bias.dtype)


def _column_sums(rows: Tensor) -> Tensor:
    return rows.new_ones(len(rows)) @ rows


def _elementwise(
    x: Tensor,
    gradient: Tensor,
    numbers: tuple[Tensor, int, float],
    *,
    gelu: bool,
    backward: bool,
    out: Tensor | None = None,
) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x) if out is None else out
    if x.numel():
        grid = (triton.cdiv(x.numel(), 2048),)
        _gelu_dropout[grid](x, gradient, out, x.numel(), *numbers, gelu, backward, 2048, num_warps=8)
    return out


class AddDropout(torch.autograd.Function):
    """H + dropout(branch)."""

    @staticmethod
    def forward(ctx: Any, H: Tensor, branch: Tensor, dropout: float) -> Tensor:
        """In the precision of H."""
        H, branch = H.contiguous(), branch.contiguous()
        ctx.numbers = _numbers(dropout, H.device)
        width, rows = H.shape[-1], H.numel() // H.shape[-1]
        total = torch.empty_like(H)
        if rows:
            shape = (True, False, triton.next_power_of_2(width))
            _add_norm[(min(rows, PROGRAMS),)](H, branch, H, H, total, H, H, H, rows, width, 0.0, *ctx.numbers, *shape)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """The sum hands its gradient on; dropout takes its part."""
        d_total = gradients[0].contiguous()
        return d_total, _elementwise(d_total, d_total, ctx.numbers, gelu=False, backward=False), None
