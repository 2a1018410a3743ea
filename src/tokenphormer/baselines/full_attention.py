"""Attention of many nodes to all nodes on CPU cores, in Numba: softmax(QKᵀ / √d + bias) V, and its gradients.

Of 8 heads and 7,600 nodes there are 462 million scores. torch writes them to memory some ten times over in a step; here
a row of them at a time is made in a core's cache, used, and made again for the gradients, as FlashAttention does on
GPUs (https://arxiv.org/abs/2205.14135). A bias is one of a few numbers a head, so that a byte a pair says which.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor

from tokenphormer.threads import launch

HIDDEN = -1e30
"""The bias of a pair that is not to be seen. Of a row of nothing else all pairs weigh the same, but its gradients are
not those of that: what it reads is to be multiplied with 0."""

_F = np.float32
_ONE, _HALF, _ZERO, _LOG2E, _LEAST = _F(1), _F(0.5), _F(0), _F(1.4426950408889634), _F(-87)
_C1, _C2, _C3 = _F(0.6931471805599453), _F(0.2402265069591007), _F(0.05550410866482158)  # ln 2ⁱ / i!
_C4, _C5, _C6 = _F(0.009618129107628477), _F(0.0013333558146428443), _F(0.00015403530393381608)
_A, _B, _C, _LOW = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35), np.uint32(0xFFFFFFFF)
_MATHS = {"reassoc", "contract", "arcp", "nsz"}  # sums in any order, as vectors of the processor make them
UNROLLED = 4
"""Channels worked on at once; a head's are filled up to a multiple with zeros."""


@njit(cache=True, fastmath=_MATHS, inline="always")
def _scores(q: Any, k: Any, bias: Any, kinds: Any, score: Any) -> None:
    """score ← q · k + bias of the kind; `k` is (d, n)."""
    n = len(score)
    for i in range(n):
        score[i] = bias[kinds[i]]
    for j in range(0, len(q), UNROLLED):
        q0, q1, q2, q3 = q[j], q[j + 1], q[j + 2], q[j + 3]
        k0, k1, k2, k3 = k[j], k[j + 1], k[j + 2], k[j + 3]
        for i in range(n):
            score[i] += q0 * k0[i] + q1 * k1[i] + q2 * k2[i] + q3 * k3[i]


@njit(cache=True, fastmath=_MATHS, inline="always")
def _exponentials(score: Any, subtract: Any, power: Any, bits: Any) -> None:
    """score ← exp(score − subtract), within 2 units in the last place; 0 below e⁻⁸⁷. `bits` is `power` as integers."""
    for i in range(len(score)):
        x = score[i] - subtract
        t = max(x, _LEAST) * _LOG2E
        whole = np.floor(t + _HALF)
        f = t - whole
        series = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
        score[i] = _ZERO if x <= _LEAST else series  # NaN stays
        bits[i] = (np.int32(whole) + np.int32(127)) << np.int32(23)  # 2 to this power, as the float is stored
    for i in range(len(score)):
        score[i] *= power[i]


@njit(cache=True, inline="always")
def _in_order(stored: Any) -> Any:
    """The bits of a float as an integer whose order is that of the floats; what turns one into the other, both ways."""
    return np.int32(stored ^ ((stored >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@njit(cache=True, inline="always")
def _highest(stored: Any, power: Any, bits: Any) -> Any:
    """The largest of floats, given as integers: LLVM compares several of these at a time, of floats it does not."""
    highest = np.int32(-(2**31))
    for i in range(len(stored)):
        highest = max(highest, _in_order(stored[i]))
    bits[0] = _in_order(highest)
    return power[0]


@njit(cache=True, inline="always")
def _bits(key: Any, row: Any, random: Any) -> None:
    """32 random bits for each column of a row: a hash of (key, row, column), MurmurHash3's last steps."""
    start = np.uint32((np.uint32(key) ^ (np.uint32(row) * _B)) & _LOW)
    start = np.uint32(((start ^ (start >> np.uint32(15))) * _C) & _LOW)
    for i in range(len(random)):
        z = np.uint32((start + np.uint32(i) * _A) & _LOW)
        z = np.uint32(((z ^ (z >> np.uint32(16))) * _B) & _LOW)
        z = np.uint32(((z ^ (z >> np.uint32(13))) * _C) & _LOW)
        random[i] = z ^ (z >> np.uint32(16))


@njit(cache=True, parallel=True, fastmath=_MATHS)
def _forward(q: Any, k: Any, v: Any, bias: Any, kinds: Any, keys: Any, zeros: Any, result: Any, logarithm: Any) -> None:
    """result ← (heads, R, d), and the logarithm of each softmax's denominator; `k` and `v` are (heads, d, n)."""
    heads, rows, d = q.shape
    n = k.shape[2]
    kept = _F(2.0**32) / _F(2.0**32 - zeros)
    for h in prange(heads):
        score, power, random = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.uint32)
        bits = power.view(np.int32)
        for r in range(rows):
            _scores(q[h, r], k[h], bias[h], kinds[r], score)
            highest = _highest(score.view(np.int32), power, bits)
            _exponentials(score, highest, power, bits)
            total = _ZERO
            for i in range(n):
                total += score[i]
            logarithm[h, r] = highest + np.log(total)
            share = _ONE / total
            if zeros:
                _bits(keys[h], r, random)
                for i in range(n):
                    score[i] = score[i] if random[i] >= zeros else _ZERO
                share *= kept
            for j in range(0, d, UNROLLED):
                v0, v1, v2, v3 = v[h, j], v[h, j + 1], v[h, j + 2], v[h, j + 3]
                s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
                for i in range(n):
                    s0 += score[i] * v0[i]
                    s1 += score[i] * v1[i]
                    s2 += score[i] * v2[i]
                    s3 += score[i] * v3[i]
                result[h, r, j], result[h, r, j + 1] = share * s0, share * s1
                result[h, r, j + 2], result[h, r, j + 3] = share * s2, share * s3


@njit(cache=True, parallel=True, fastmath=_MATHS)
def _backward(
    q: Any, k: Any, v: Any, bias: Any, kinds: Any, keys: Any, zeros: Any, result: Any, logarithm: Any, d_result: Any,
    d_q: Any, d_k: Any, d_v: Any, d_bias: Any, bias_learns: Any,
) -> None:  # fmt: skip
    """The gradients, added to what `d_k`, `d_v` and `d_bias` hold."""
    heads, rows, d = q.shape
    n = k.shape[2]
    kept = _F(2.0**32) / _F(2.0**32 - zeros)
    for h in prange(heads):
        weight, power, random = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.uint32)
        bits, d_score = power.view(np.int32), np.empty(n, np.float32)
        for r in range(rows):
            _scores(q[h, r], k[h], bias[h], kinds[r], weight)
            _exponentials(weight, logarithm[h, r], power, bits)
            d_score[:] = _ZERO
            shared = _ZERO  # Σ dP ∘ P
            for j in range(d):
                shared += d_result[h, r, j] * result[h, r, j]
            for j in range(0, d, UNROLLED):
                g0, g1, g2, g3 = d_result[h, r, j], d_result[h, r, j + 1], d_result[h, r, j + 2], d_result[h, r, j + 3]
                v0, v1, v2, v3 = v[h, j], v[h, j + 1], v[h, j + 2], v[h, j + 3]
                for i in range(n):
                    d_score[i] += g0 * v0[i] + g1 * v1[i] + g2 * v2[i] + g3 * v3[i]
            # Softmax: dS = P ∘ (dP − Σ dP ∘ P); then `weight` is what V was multiplied with.
            if zeros:
                _bits(keys[h], r, random)
                for i in range(n):
                    through = kept if random[i] >= zeros else _ZERO
                    d_score[i] = weight[i] * (through * d_score[i] - shared)
                    weight[i] *= through
            else:
                for i in range(n):
                    d_score[i] = weight[i] * (d_score[i] - shared)
            for j in range(0, d, UNROLLED):
                g0, g1, g2, g3 = d_result[h, r, j], d_result[h, r, j + 1], d_result[h, r, j + 2], d_result[h, r, j + 3]
                w0, w1, w2, w3 = d_v[h, j], d_v[h, j + 1], d_v[h, j + 2], d_v[h, j + 3]
                for i in range(n):
                    w0[i] += weight[i] * g0
                    w1[i] += weight[i] * g1
                    w2[i] += weight[i] * g2
                    w3[i] += weight[i] * g3
                k0, k1, k2, k3 = k[h, j], k[h, j + 1], k[h, j + 2], k[h, j + 3]
                s0, s1, s2, s3 = _ZERO, _ZERO, _ZERO, _ZERO
                for i in range(n):
                    s0 += d_score[i] * k0[i]
                    s1 += d_score[i] * k1[i]
                    s2 += d_score[i] * k2[i]
                    s3 += d_score[i] * k3[i]
                d_q[h, r, j], d_q[h, r, j + 1], d_q[h, r, j + 2], d_q[h, r, j + 3] = s0, s1, s2, s3
                q0, q1, q2, q3 = q[h, r, j], q[h, r, j + 1], q[h, r, j + 2], q[h, r, j + 3]
                t0, t1, t2, t3 = d_k[h, j], d_k[h, j + 1], d_k[h, j + 2], d_k[h, j + 3]
                for i in range(n):
                    t0[i] += d_score[i] * q0
                    t1[i] += d_score[i] * q1
                    t2[i] += d_score[i] * q2
                    t3[i] += d_score[i] * q3
            if not bias_learns:
                continue
            row = kinds[r]
            for c in range(d_bias.shape[1]):
                total = _ZERO
                for i in range(n):
                    total += d_score[i] if row[i] == c else _ZERO
                d_bias[h, c] += total


class _FullAttention(torch.autograd.Function):
    """Of scaled queries (heads, R, d), and keys and values (heads, d, n); d is a multiple of `UNROLLED`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, kinds: Tensor, dropout: float) -> Tensor:
        zeros = np.uint32(min(round(dropout * 2**32), 2**32 - 1))
        keys = torch.randint(2**32, (len(q),)).numpy().astype(np.uint32) if zeros else np.zeros(len(q), np.uint32)
        result, logarithm = torch.empty_like(q), torch.empty(q.shape[:2])
        arrays = [x.detach().numpy() for x in (q, k, v, bias, kinds)]
        _on_as_many_cores_as_torch(_forward, *arrays, keys, zeros, result.numpy(), logarithm.numpy())
        ctx.save_for_backward(q, k, v, bias, kinds, result, logarithm)
        ctx.keys, ctx.zeros = keys, zeros
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # otherwise they would be taken for 0
            raise RuntimeError("full_attention: expected one derivative, got create_graph=True; it has no second one")
        q, k, v, bias, kinds, result, logarithm = (x.detach() for x in ctx.saved_tensors)
        d_q, d_k, d_v, d_bias = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v), torch.zeros_like(bias)
        arrays = [x.numpy() for x in (q, k, v, bias, kinds)]
        others = [x.contiguous().numpy() for x in (result, logarithm, gradients[0], d_q, d_k, d_v, d_bias)]
        _on_as_many_cores_as_torch(_backward, *arrays, ctx.keys, ctx.zeros, *others, ctx.needs_input_grad[3])
        return d_q, d_k, d_v, d_bias, None, None


def _on_as_many_cores_as_torch(kernel: Any, *arguments: Any) -> None:
    """Every head is one core's, so that their number changes no bit."""
    launch()
    before = numba.get_num_threads()
    numba.set_num_threads(min(torch.get_num_threads(), before))
    try:
        kernel(*arguments)
    finally:
        numba.set_num_threads(before)


def full_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, kinds: Tensor, dropout: float = 0.0) -> Tensor:
    """(heads, R, d) what R queries read of n keys and values, (heads, R, d) and (heads, n, d), all float32 on a CPU.

    The pair of row r and column i has the bias (heads, C) of its kind, `kinds[r, i]`, a byte. `dropout` is that of the
    attention weights.
    """
    d = q.shape[2]
    more = -d % UNROLLED
    q, k, v = (F.pad(rows, (0, more)) if more else rows for rows in (q * d**-0.5, k, v))
    k, v = (rows.transpose(1, 2).contiguous() for rows in (k, v))
    attend: Any = _FullAttention.apply
    result: Tensor = attend(q.contiguous(), k, v, bias.contiguous(), kinds.contiguous(), dropout)
    return result[:, :, :d]
