"""A pre-norm Transformer layer whose attention scores take a bias: what Graphormer, Gophormer and ANS-GT share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.baselines.base import attention_dtype
from tokenphormer.baselines.full_attention import full_attention
from tokenphormer.model import dropout


class BiasedLayer(nn.Module):
    """softmax(QKᵀ / √d + bias) V and a feed-forward network, each after a LayerNorm and added to its input."""

    def __init__(self, channels: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.attention_norm, self.ffn_norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.query_key_value, self.output = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.widen, self.narrow = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)

    def forward(self, H: Tensor, bias: Tensor, first: int | None = None) -> Tensor:
        """(B, T, h) → (B, T, h), or the `first` tokens' alone: all that is read of a last layer.

        `bias` is (B or 1, heads, T, T), and −∞ where a token is not to be seen.
        """
        drop = self.dropout if self.training else 0.0
        dtype = attention_dtype(H.device)
        q, k, v = (rows.to(dtype) for rows in self.heads(H))
        q, mask = q[:, :, :first], bias[:, :, :first].to(dtype)
        if drop and not q.is_cuda:  # torch has no fused attention for this there, and draws its dropout one by one
            weights = F.softmax((q * q.shape[3] ** -0.5) @ k.transpose(2, 3) + mask, dim=3)
            attended = dropout(weights, drop) @ v
        else:
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop).to(H.dtype)
        return self._after_attention(H[:, :first], attended, drop)

    def among_all(self, H: Tensor, bias: Tensor, kinds: Tensor, nodes: Tensor | None = None) -> Tensor:
        """(1, n, h) → (1, n, h), or that of `nodes` alone: one sequence of all nodes, on a CPU.

        `bias` is (heads, C): one number for each kind of pair; `kinds` says which, (n, n) or (nodes, n) bytes.
        """
        drop = self.dropout if self.training else 0.0
        q, k, v = (rows[0] for rows in self.heads(H))
        if nodes is not None:
            H, q = H[:, nodes], q[:, nodes]
        return self._after_attention(H, full_attention(q, k, v, bias, kinds, drop)[None], drop)

    def _after_attention(self, H: Tensor, attended: Tensor, drop: float) -> Tensor:
        H = H + dropout(self.output(attended.transpose(1, 2).flatten(2)), drop)
        widened = dropout(F.gelu(self.widen(self.ffn_norm(H))), drop)
        return H + dropout(self.narrow(widened), drop)

    def heads(self, H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, heads, T, d) each."""
        B, T, h = H.shape
        split = self.query_key_value(self.attention_norm(H)).view(B, T, 3, self.num_heads, h // self.num_heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        return q, k, v


def hide(bias: Tensor, valid: Tensor) -> Tensor:
    """The bias with −∞ on every column (key) whose token is not valid; `valid` is (B, T)."""
    return bias.masked_fill(~valid[:, None, None, :], -torch.inf)
