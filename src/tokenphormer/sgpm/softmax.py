"""Cross-entropy over a vocabulary as large as the graph, without a matrix of positions × nodes.

`exact` goes over the vocabulary in pieces, and makes each piece again in the backward pass: memory is positions ×
piece. `sampled` compares with a few thousand random nodes instead of all: time and memory no longer grow with the
graph. `plain` is the slow twin of the first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE_ELEMENTS = 1 << 26
"""Scores worked on at a time: 256 MB in float32, of which two or three copies are alive at once."""


def plain(states: Tensor, table: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(M) losses and (M) whether the right node had the highest score, from all scores at once."""
    scores = _scores(states, table, bias)
    return F.cross_entropy(scores, target, reduction="none"), scores.argmax(dim=1) == target


def exact(states: Tensor, table: Tensor, bias: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The same, in pieces; `states` (M, h), `table` (V, h), `bias` (V), `target` (M)."""
    apply: Any = _Exact.apply
    loss, right = apply(states, table, bias, target, max(1, PIECE_ELEMENTS // max(1, len(states))))
    return loss, right


class _Exact(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, table: Tensor, bias: Tensor, target: Tensor, piece: int
    ) -> tuple[Tensor, Tensor]:
        total = torch.full((len(states),), -torch.inf, dtype=_wide(states), device=states.device)  # log Σ exp
        highest, own, which = total.clone(), total.clone(), torch.zeros_like(target)
        for first in range(0, len(table), piece):
            scores = _scores(states, table[first : first + piece], bias[first : first + piece])
            total = torch.logaddexp(total, scores.logsumexp(dim=1))
            best, place = scores.max(dim=1)
            which = torch.where(best > highest, place + first, which)
            highest = torch.maximum(best, highest)
            column = target - first
            there = (column >= 0) & (column < scores.shape[1])
            found = scores.gather(1, column.clamp(0, scores.shape[1] - 1)[:, None])[:, 0]
            own = torch.where(there, found, own)
        right = which == target
        ctx.save_for_backward(states, table, bias, target, total)
        ctx.piece = piece
        ctx.mark_non_differentiable(right)
        return total - own, right

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states, table, bias, target, total = ctx.saved_tensors
        g = gradients[0]
        d_states = torch.zeros(states.shape, dtype=_wide(states), device=states.device)
        d_table, d_bias = torch.empty_like(table), torch.empty_like(bias)
        for first in range(0, len(table), ctx.piece):
            part = slice(first, first + ctx.piece)
            rows = table[part].to(states.dtype)
            share = torch.exp(_scores(states, table[part], bias[part]) - total[:, None]) * g[:, None]
            d_bias[part] = share.sum(dim=0)
            share = share.to(states.dtype)
            d_states += share @ rows
            d_table[part] = share.t() @ states
        d_states -= g[:, None] * table[target]
        d_table.index_add_(0, target, -(g[:, None] * states).to(d_table.dtype))
        d_bias.index_add_(0, target, -g.to(d_bias.dtype))
        return d_states.to(states.dtype), d_table, d_bias, None, None


def _wide(states: Tensor) -> torch.dtype:
    """Sums are taken in float32 at least."""
    return torch.promote_types(states.dtype, torch.float32)


def _scores(states: Tensor, rows: Tensor, bias: Tensor) -> Tensor:
    return (states @ rows.to(states.dtype).t()).to(_wide(states)) + bias


def sampled(
    states: Tensor, own: Tensor, own_bias: Tensor, others: Tensor, other_bias: Tensor, same: Tensor, share: float
) -> Tensor:
    """(M) losses against the right node's row `own` (M, h) and K random `others` (K, h) of V nodes; `share` is K / V.

    An other stands for 1 / `share` nodes in the softmax's sum, so the sum is right on average. `same` (M, K) says where
    an other happens to be the right node: there it does not count.
    """
    wide = _wide(states)
    right = (states.to(wide) * own.to(wide)).sum(dim=1) + own_bias
    wrong = _scores(states, others, other_bias) - math.log(share)
    wrong = wrong.masked_fill(same, -torch.inf)
    return torch.logaddexp(right, wrong.logsumexp(dim=1)) - right
