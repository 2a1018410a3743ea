"""Tokenphormer: Structure-aware Multi-token Graph Transformer for Node Classification (AAAI 2025).

https://arxiv.org/abs/2412.15302. The whole model: input projection, pre-norm Transformer, attention readout, head.
Shapes: B nodes in a batch, T tokens a node, h hidden channels.
"""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokenphormer.errors import InputError
from tokenphormer.tokens import TokenBatch
from tokenphormer.tokens.operators import FeatureRows

FLASH_LIMIT = 256
"""Channels of a head up to which torch has a fused attention; wider heads are faster as plain products."""
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""torch's attentions, cuDNN's left out: it plans for 0.3 s for every new size of a batch or sentence."""


@dataclass(frozen=True)
class ModelSettings:
    """The shape of the model. Defaults are the authors'."""

    hidden_channels: int = 512
    """Width of the model: numbers that stand for one token."""
    num_layers: int = 1
    """Transformer layers."""
    num_heads: int = 1
    """Attention heads; they share `hidden_channels` equally."""
    ffn_channels: int = 0
    """Width of the feed-forward network; 0 is twice `hidden_channels`."""
    dropout: float = 0.1
    """Share of numbers set to zero in training: after attention, and in and after the feed-forward network."""
    attention_dropout: float = 0.1
    """The same for attention weights."""
    feature_dropout: float = 0.0
    """Dropout of the features themselves, before they are projected; the paper has none."""
    final_norm: bool = False
    """A LayerNorm after the last layer; the paper's equations have none."""
    score_hops: int = 0
    """Steps by which class scores are passed on to neighbours, as in APPNP; not in the paper. Each takes all nodes."""
    score_teleport: float = 0.1
    """Share of a node's own scores in each of those steps."""
    score_dropout: float = 0.0
    """Share of the edges left out in each of those steps in training, as APPNP does."""
    score_learned: bool = False
    """Whether the weights of the steps are learned, beginning with APPNP's, as in GPR-GNN; they may become negative."""
    row_activation: bool = False
    """LayerNorm, GELU and dropout on what hops and walks pool; the paper pools plain projections. For whole graphs."""
    token_activation: bool = False
    """LayerNorm, GELU and dropout on the input of every token, after its pooling. The paper has plain inputs."""
    consistency: float = 0.0
    """Weight of a second loss: nodes, labelled or not, scored twice, are to agree, as in GRAND. Not in the paper."""

    def __post_init__(self) -> None:
        for name, least in (("hidden_channels", 2), ("num_layers", 1), ("num_heads", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name}: {getattr(self, name)!r}; expected at least {least}")
        if self.hidden_channels % self.num_heads:
            raise InputError(f"hidden_channels: {self.hidden_channels} cannot be shared by num_heads={self.num_heads}")
        if self.ffn_channels < 0:
            raise InputError(f"ffn_channels: {self.ffn_channels!r}; expected at least 0")
        if self.score_hops < 0:
            raise InputError(f"score_hops: {self.score_hops!r}; expected at least 0")
        if not 0 <= self.consistency < float("inf"):
            raise InputError(f"consistency: {self.consistency!r}; expected a number of at least 0")
        for name in ("dropout", "attention_dropout", "feature_dropout", "score_teleport", "score_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)!r}; expected a share from 0 to below 1")


def score_weights(settings: ModelSettings) -> list[float]:
    """(K + 1) what each step of passing scores on has in the result, Σ γₖ Âᵏ S, in APPNP: α(1 − α)ᵏ, the last (1 − α)ᴷ.

    >>> score_weights(ModelSettings(score_hops=2, score_teleport=0.5))
    [0.5, 0.25, 0.25]
    """
    K, own = settings.score_hops, settings.score_teleport
    return [own * (1 - own) ** k for k in range(K)] + [(1 - own) ** K]


TOKEN_EPS = 1e-10
"""Added to the variance of a token's input before it is divided by its root. What a hop has pooled of many neighbours'
rare words is small, and is to be told all the same: with torch's 1e-5 it would stay small."""
MAX_FUSED = 2048
"""Channels that a row of the fused kernels can hold."""


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


class WideAttention(torch.autograd.Function):
    """softmax(QKᵀ / √h) V for one head too wide for torch's fused attention, (B, T, 3h) → (B, T, h).

    Plain matrix products, but the gradients of Q, K and V are written side by side where they belong; left to
    autograd, they would be copied there. The twin is `F.scaled_dot_product_attention`.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, dropout: float) -> Tensor:
        """Attend, and keep the weights."""
        q, k, v = qkv.chunk(3, dim=2)
        weight = F.softmax(torch.bmm(q, k.transpose(1, 2)) * q.shape[2] ** -0.5, dim=2)  # (B, T, T)
        kept = F.dropout(weight, dropout) if dropout else weight
        ctx.save_for_backward(qkv, weight, kept)
        ctx.dropout = dropout
        return torch.bmm(kept, v)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Three products into one tensor."""
        qkv, weight, kept = ctx.saved_tensors
        q, k, v = qkv.chunk(3, dim=2)
        result = torch.empty_like(qkv)
        d_q, d_k, d_v = result.chunk(3, dim=2)
        torch.bmm(kept.transpose(1, 2), gradients[0], out=d_v)
        d_weight = torch.bmm(gradients[0], v.transpose(1, 2))
        if ctx.dropout:
            d_weight = torch.where(kept != 0, d_weight / (1 - ctx.dropout), 0)
        # Softmax: dS = P ∘ (dP − Σ dP ∘ P), and the scale.
        d_score = torch.ops.aten._softmax_backward_data(d_weight, weight, 2, weight.dtype) * q.shape[2] ** -0.5
        torch.bmm(d_score, k, out=d_q)
        torch.bmm(d_score.transpose(1, 2), q, out=d_k)
        return result, None


class Readout(torch.autograd.Function):
    """H_self + Σₖ αₖ Hₖ, with α the softmax over all other tokens of H_k · W_a (the paper's equations 6 and 7).

    The paper scores [H_self ; H_k] with a W_a of width 2h; H_self's half is the same for every k, so it cancels.
    The gradient of H is of rank two for each node, α ⊗ g + s ⊗ W_a, and is written in one product; autograd would
    write its two parts, each as large as H, and then add them.
    """

    @staticmethod
    def forward(ctx: Any, H: Tensor, W_a: Tensor) -> tuple[Tensor, Tensor]:
        """(B, h) node states and (B, T) weights, 0 for the self token, both in the precision of W_a."""
        score = (H @ W_a.to(H.dtype)).to(W_a.dtype)  # (B, T)
        score[:, 0] = -torch.inf
        weight = F.softmax(score, dim=1)
        share = weight.to(H.dtype, copy=True)
        share[:, 0] = 1  # the self token is added whole
        H_final = torch.bmm(share[:, None], H).squeeze(1).to(W_a.dtype)
        ctx.save_for_backward(H, W_a, weight, share)
        ctx.mark_non_differentiable(weight)
        return H_final, weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of H and W_a."""
        H, W_a, weight, share = ctx.saved_tensors
        g = gradients[0].to(H.dtype)
        d_weight = torch.bmm(H, g[:, :, None]).squeeze(2).to(W_a.dtype)  # (B, T)
        d_score = (weight * (d_weight - (weight * d_weight).sum(dim=1, keepdim=True))).to(H.dtype)
        left = torch.stack([share, d_score], dim=2)  # (B, T, 2)
        right = torch.stack([g, W_a.to(H.dtype).expand_as(g)], dim=1)  # (B, 2, h)
        d_W_a = d_score.reshape(-1) @ H.reshape(-1, H.shape[2])
        return torch.bmm(left, right), d_W_a.to(W_a.dtype)


class EncoderLayer(nn.Module):
    """Ĥ = MSA(Norm(H)) + H, then FFN(Norm(Ĥ)) + Ĥ (the paper's equation 5)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        h = settings.hidden_channels
        wide = settings.ffn_channels or 2 * h
        self.num_heads = settings.num_heads
        self.fused = _has_triton() and h <= MAX_FUSED
        self.dropout, self.attention_dropout = settings.dropout, settings.attention_dropout
        self.attention_norm, self.ffn_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.query_key_value, self.output = nn.Linear(h, 3 * h), nn.Linear(h, h)
        bias: Any = self.query_key_value.bias  # torch's hooks have no types
        bias.register_hook(_without_keys)
        self.widen, self.narrow = nn.Linear(h, wide), nn.Linear(wide, h)

    def forward(self, H: Tensor) -> Tensor:
        """(B, T, h) → (B, T, h)."""
        return self._fused_forward(H) if self.fused and H.is_cuda else self.plain_forward(H)

    def plain_forward(self, H: Tensor) -> Tensor:
        """The layer in plain torch: what runs on CPUs, and what the fused kernels are tested against."""
        attended = _linear(self.output, self.attend(_linear(self.query_key_value, _norm(self.attention_norm, H))))
        drop = self.dropout if self.training else 0.0
        H = H + dropout(attended, drop)
        widened = dropout(F.gelu(_linear(self.widen, _norm(self.ffn_norm, H))), drop)
        return H + dropout(_linear(self.narrow, widened), drop)

    def _fused_forward(self, H: Tensor) -> Tensor:
        """The same, each chain of small operations in one kernel (`model_kernels.py`)."""
        from tokenphormer import model_kernels

        add_norm: Any = model_kernels.AddNorm.apply
        linear: Any = model_kernels.Linear.apply
        gelu_dropout_linear: Any = model_kernels.GeluDropoutLinear.apply
        add_dropout: Any = model_kernels.AddDropout.apply
        drop = self.dropout if self.training else 0.0
        norm = self.attention_norm
        H, normed = add_norm(H, None, norm.weight, norm.bias, norm.eps, 0.0)
        attended = linear(self.attend(linear(normed, *_parts(self.query_key_value))), *_parts(self.output))
        norm = self.ffn_norm
        H, normed = add_norm(H, attended, norm.weight, norm.bias, norm.eps, drop)
        branch = gelu_dropout_linear(linear(normed, *_parts(self.widen)), *_parts(self.narrow), drop)
        result: Tensor = add_dropout(H, branch, drop)
        return result

    def attend(self, qkv: Tensor) -> Tensor:
        """(B, T, 3h) → (B, T, h): softmax(QKᵀ / √d) V for each head."""
        B, T, width = qkv.shape
        drop = self.attention_dropout if self.training else 0.0
        if self.num_heads == 1 and width // 3 > FLASH_LIMIT:
            wide: Any = WideAttention.apply
            attended: Tensor = wide(qkv, drop)
            return attended
        split = qkv.view(B, T, 3, self.num_heads, width // 3 // self.num_heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each (B, heads, T, d)
        with sdpa_kernel(BACKENDS) if qkv.is_cuda else nullcontext():
            attended = F.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        return attended.transpose(1, 2).reshape(B, T, width // 3)


def dropout(x: Tensor, share: float) -> Tensor:
    """Zero a share of x and enlarge the rest. On CPUs 16 random bits an element; torch's own takes 10 ns for each."""
    if not share:
        return x
    if x.is_cuda:
        return F.dropout(x, share)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    zeros = min(round(share * 2**16), 2**16 - 1)  # of the 2¹⁶ values
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= zeros - 2**15
    return (x * (keep * (2**16 / (2**16 - zeros)))).to(x.dtype)


def _without_keys(gradient: Tensor) -> Tensor:
    """The gradient of the bias of Q, K and V without K's, which is 0: softmax does not see what all scores share.

    What is computed for it is rounding error alone. Adam would blow that up to steps of full size, and the weights of
    two runs that differ in nothing but the order of sums would drift apart.
    """
    gradient = gradient.clone()
    third = len(gradient) // 3
    gradient[third : 2 * third] = 0
    return gradient


def _parts(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    return layer.weight, layer.bias


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer in the precision of x; autocast would do norms and residuals in float32, at twice the traffic."""
    return F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def _norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    """The norm in the precision of x; its sums are float32 inside."""
    return F.layer_norm(x, layer.normalized_shape, layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)


class Tokenphormer(nn.Module):
    """Class scores of nodes from their tokens."""

    def __init__(self, in_channels: int, out_channels: int, settings: ModelSettings, *, sgpm_channels: int = 0) -> None:
        super().__init__()
        h = settings.hidden_channels
        self.feature_dropout, self.row_dropout = settings.feature_dropout, settings.dropout
        self.self_part = nn.Linear(in_channels, h)  # W₁ and b
        self.token_part = nn.Linear(in_channels, h, bias=False)  # W₂
        self.row_norm = nn.LayerNorm(h) if settings.row_activation else None
        self.sgpm_part = nn.Linear(sgpm_channels, h, bias=False) if sgpm_channels else None
        self.token_norm = nn.LayerNorm(h, eps=TOKEN_EPS) if settings.token_activation else None
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.num_layers))
        self.final_norm = nn.LayerNorm(h) if settings.final_norm else None
        step_weights = torch.tensor(score_weights(settings))
        self.score_weights = nn.Parameter(step_weights) if settings.score_learned and settings.score_hops else None
        self.readout = nn.Linear(h, 1, bias=False)  # W_a
        self.head = nn.Sequential(nn.Linear(h, h // 2), nn.ReLU(), nn.Linear(h // 2, out_channels))

    def forward(self, batch: TokenBatch, dtype: torch.dtype | None = None) -> Tensor:
        """(B, classes) class scores; `dtype` is the precision of everything that has a token dimension."""
        scores, _ = self.encode(self.embed(batch, dtype))
        return scores

    def embed(self, batch: TokenBatch, dtype: torch.dtype | None = None) -> Tensor:
        """(B, T, h) the input of every token, W·[x_v ; τ_t] + b = (W₁x_v + b) + W₂τ_t."""
        own, other = self.self_part.weight.t(), self.token_part.weight.t()  # (F, h)
        if batch.signs is not None:
            own, other = own * batch.signs[:, None], other * batch.signs[:, None]
        h, dtype = own.shape[1], dtype or own.dtype
        both = torch.cat([own, other], dim=1).to(dtype)
        Z = self._drop(batch.rows).project(both)  # (R, 2h): each row is projected once
        now = self.activate(Z[:, h:].contiguous())
        stack = [Z[:, :h] + self.self_part.bias.to(dtype), now]
        for k in range(batch.num_hops):
            if batch.hop is None:
                stack.append(self._drop(batch.hop_rows[k]).project(other.to(dtype)))
            else:
                now = batch.hop @ now
                stack.append(now)
        if batch.sgpm is not None and self.sgpm_part is not None:
            stack.append(self.sgpm_part(batch.sgpm).to(dtype))
        return (batch.tokens @ torch.cat(stack)).view(*batch.shape, h)

    def activate(self, Z: Tensor) -> Tensor:
        """(R, h) W₂x of rows as hops and walks pool them: as they are (the paper), or after a norm and GELU."""
        return Z if self.row_norm is None else self._activated(self.row_norm, Z)

    def _activated(self, norm: nn.LayerNorm, Z: Tensor) -> Tensor:
        return dropout(F.gelu(_norm(norm, Z)), self.row_dropout if self.training else 0.0)

    def enter(self, H: Tensor) -> Tensor:
        """(B, T, h) what the first layer gets: the inputs as they are (the paper), or after a norm and GELU."""
        return H if self.token_norm is None else self._activated(self.token_norm, H)

    def _drop(self, rows: FeatureRows) -> FeatureRows:
        return rows.dropout(self.feature_dropout) if self.training and self.feature_dropout else rows

    def encode(self, H: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, h) → (B, classes) scores and (B, T − 1) readout weights of all tokens but the self token."""
        H = self.enter(H)
        for layer in self.layers:
            H = layer(H)
        if self.final_norm is not None:
            H = _norm(self.final_norm, H)
        width = self.readout.weight.dtype
        if H.shape[1] == 1:  # nothing but the self token
            return self.head(H[:, 0].to(width)), H.new_zeros(len(H), 0)
        read: Any = Readout.apply
        H_final, weight = read(H, self.readout.weight[0])
        return self.head(H_final), weight[:, 1:]
