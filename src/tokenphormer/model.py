"""Tokenphormer: Structure-aware Multi-token Graph Transformer for Node Classification (AAAI 2025).

https://arxiv.org/abs/2412.15302. The whole model: input projection, pre-norm Transformer, attention readout, head.
Shapes: B nodes in a batch, T tokens a node, h hidden channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.errors import InputError
from tokenphormer.tokens import TokenBatch
from tokenphormer.tokens.operators import FeatureRows

FLASH_LIMIT = 256
"""Channels of a head up to which torch has a fused attention; wider heads are faster as plain products."""


@dataclass(frozen=True)
class ModelSettings:
    """The shape of the model. Defaults are the authors'."""

    hidden_channels: int = 512
    num_layers: int = 1
    num_heads: int = 1
    ffn_channels: int = 0
    """Width of the feed-forward network; 0 is twice `hidden_channels`."""
    dropout: float = 0.1
    attention_dropout: float = 0.1
    feature_dropout: float = 0.0
    """Dropout of the features themselves, before they are projected; the paper has none."""
    final_norm: bool = False
    """A LayerNorm after the last layer; the paper's equations have none."""

    def __post_init__(self) -> None:
        for name in ("hidden_channels", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)!r}; expected at least 1")
        if self.hidden_channels % self.num_heads:
            raise InputError(f"hidden_channels: {self.hidden_channels} cannot be shared by num_heads={self.num_heads}")
        if self.ffn_channels < 0:
            raise InputError(f"ffn_channels: {self.ffn_channels!r}; expected at least 0")
        for name in ("dropout", "attention_dropout", "feature_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name}: {getattr(self, name)!r}; expected a share from 0 to below 1")


class EncoderLayer(nn.Module):
    """Ĥ = MSA(Norm(H)) + H, then FFN(Norm(Ĥ)) + Ĥ (the paper's equation 5)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        h = settings.hidden_channels
        wide = settings.ffn_channels or 2 * h
        self.num_heads = settings.num_heads
        self.dropout, self.attention_dropout = settings.dropout, settings.attention_dropout
        self.attention_norm, self.ffn_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.query_key_value, self.output = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.widen, self.narrow = nn.Linear(h, wide), nn.Linear(wide, h)

    def forward(self, H: Tensor) -> Tensor:
        """(B, T, h) → (B, T, h)."""
        attended = _linear(self.output, self.attend(_linear(self.query_key_value, _norm(self.attention_norm, H))))
        H = H + F.dropout(attended, self.dropout, self.training)
        widened = F.dropout(F.gelu(_linear(self.widen, _norm(self.ffn_norm, H))), self.dropout, self.training)
        return H + F.dropout(_linear(self.narrow, widened), self.dropout, self.training)

    def attend(self, qkv: Tensor) -> Tensor:
        """(B, T, 3h) → (B, T, h): softmax(QKᵀ / √d) V for each head."""
        B, T, width = qkv.shape
        q, k, v = qkv.view(B, T, 3, self.num_heads, width // 3 // self.num_heads).permute(
            2, 0, 3, 1, 4
        )  # each (B, heads, T, d)
        drop = self.attention_dropout if self.training else 0.0
        if q.shape[-1] <= FLASH_LIMIT:
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=drop)
        else:
            weight = F.softmax((q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2), dim=-1)  # (B, heads, T, T)
            mixed = F.dropout(weight, drop) @ v
        return mixed.transpose(1, 2).reshape(B, T, width // 3)


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
        self.feature_dropout = settings.feature_dropout
        self.self_part = nn.Linear(in_channels, h)  # W₁ and b
        self.token_part = nn.Linear(in_channels, h, bias=False)  # W₂
        self.sgpm_part = nn.Linear(sgpm_channels, h, bias=False) if sgpm_channels else None
        self.layers = nn.ModuleList(EncoderLayer(settings) for _ in range(settings.num_layers))
        self.final_norm = nn.LayerNorm(h) if settings.final_norm else None
        self.readout = nn.Linear(h, 1, bias=False)  # W_a
        self.head = nn.Sequential(nn.Linear(h, h // 2), nn.ReLU(), nn.Linear(h // 2, out_channels))

    def forward(self, batch: TokenBatch, dtype: torch.dtype | None = None) -> Tensor:
        """(B, classes) class scores; `dtype` is the precision of everything that has a token dimension."""
        scores, _ = self.encode(*self.embed(batch, dtype))
        return scores

    def embed(self, batch: TokenBatch, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """(B, h), (B, T', h), (B, m, h): W₁x_v + b; then W₂τ of self, SGPM and hops; then W₂τ of the walks."""
        dtype = dtype or self.self_part.weight.dtype
        own, other = self.self_part.weight.t(), self.token_part.weight.t()  # (F, h)
        if batch.signs is not None:
            own, other = own * batch.signs[:, None], other * batch.signs[:, None]
        Z = self._drop(batch.rows).project(torch.cat([own, other], dim=1))  # (R, 2h): each row is projected once
        h = own.shape[1]
        Z_own, Z = Z[:, :h], Z[:, h:].to(dtype).contiguous()
        parts = [Z[batch.nodes]]
        if batch.sgpm is not None and self.sgpm_part is not None:
            parts.append(self.sgpm_part(batch.sgpm).to(dtype))
        hop = Z
        for k in range(batch.num_hops):
            if batch.hop is None:
                parts.append(self._drop(batch.hop_rows[k]).project(other).to(dtype))
            else:
                hop = batch.hop @ hop
                parts.append(hop[batch.nodes])
        walks = None if batch.pool is None else (batch.pool @ Z).view(len(batch.nodes), batch.num_walks, h)
        return (Z_own[batch.nodes] + self.self_part.bias).to(dtype), torch.stack(parts, dim=1), walks

    def _drop(self, rows: FeatureRows) -> FeatureRows:
        return rows.dropout(self.feature_dropout) if self.training and self.feature_dropout else rows

    def encode(self, own: Tensor, parts: Tensor, walks: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, classes) scores and (B, T − 1) readout weights of all tokens but the self token."""
        tokens = parts if walks is None else torch.cat([parts, walks], dim=1)
        H = tokens + own[:, None]  # (B, T, h)
        for layer in self.layers:
            H = layer(H)
        if self.final_norm is not None:
            H = _norm(self.final_norm, H)
        width = self.readout.weight.dtype
        if H.shape[1] == 1:  # nothing but the self token
            return self.head(H[:, 0].to(width)), H.new_zeros(len(H), 0)
        # The paper scores [H_self ; H_k] with a W_a of width 2h; H_self's half is the same for every k, so it cancels.
        score = H[:, 1:] @ self.readout.weight[0].to(H.dtype)
        weight = F.softmax(score.to(width), dim=1)  # (B, T − 1)
        H_final = H[:, 0] + (weight[:, None].to(H.dtype) @ H[:, 1:]).squeeze(1)
        return self.head(H_final.to(width)), weight
