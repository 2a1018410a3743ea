"""Readout attention and rollout: they sum to one, and rollout equals a version written step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from tests.explain.models import CASES, ISOLATED, awkward_graph, case_of, method_of
from tests.slow_model import layer_norm
from tokenphormer.explain.attention import attention_rollout, layer_attention, readout_attention
from tokenphormer.explain.reading import Reading, read
from tokenphormer.training.tokenphormer import TokenphormerMethod

NODES = np.array([0, 3, 18, ISOLATED])


def slow_layer_attention(method: TokenphormerMethod, layer: int, H: torch.Tensor) -> list[list[float]]:
    """Token i's weight on token j, averaged over heads, one number after the other."""
    w = {k.removeprefix(f"layers.{layer}."): v for k, v in method.module.state_dict().items()}
    heads, h = method.module.layers[layer].num_heads, H.shape[1]
    d = h // heads
    qkv = [
        w["query_key_value.weight"] @ layer_norm(t, w["attention_norm.weight"], w["attention_norm.bias"])
        + w["query_key_value.bias"]
        for t in H
    ]
    result = [[0.0] * len(H) for _ in H]
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        for i, row in enumerate(result):
            scores = [float(qkv[i][:h][part] @ other[h : 2 * h][part]) / math.sqrt(d) for other in qkv]
            highest = max(scores)
            total = sum(math.exp(score - highest) for score in scores)
            for j, score in enumerate(scores):
                row[j] += math.exp(score - highest) / total / heads
    return result


def slow_rollout(method: TokenphormerMethod, reading: Reading, b: int) -> list[float]:
    """How much of each input reaches the state, followed backwards from the readout."""
    states = [method.module.enter(reading.inputs[b])]
    for layer in method.module.layers:
        states.append(layer(states[-1][None])[0])
    H = states[-1]
    if method.module.final_norm is not None:
        H = method.module.final_norm(H)
    raw = [float(method.module.readout.weight[0] @ t) for t in H[1:]]
    total = sum(math.exp(score - max(raw)) for score in raw)
    flow = [0.5, *(0.5 * math.exp(score - max(raw)) / total for score in raw)] if raw else [1.0]
    for layer in reversed(range(len(method.module.layers))):
        weights = slow_layer_attention(method, layer, states[layer])
        before = [0.0] * len(flow)
        for i, amount in enumerate(flow):
            before[i] += 0.5 * amount  # the residual
            for j, weight in enumerate(weights[i]):
                before[j] += 0.5 * amount * weight
        flow = before
    return flow


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_sums_to_one(case: dict[str, Any]) -> None:
    _, method = case_of(case)
    reading = read(method, NODES)
    attention, rollout = readout_attention(reading), attention_rollout(reading)
    T = len(reading.kinds)
    assert attention.shape == rollout.shape == (len(NODES), T)
    np.testing.assert_allclose(rollout.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(attention.sum(axis=1), 1 if T > 1 else 0, atol=1e-6)
    assert not attention[:, 0].any()
    assert rollout.min() >= 0
    if T > 1:
        assert np.ptp(attention[:, 1:]) > 0.05


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rollout_equals_the_slow_version(case: dict[str, Any]) -> None:
    _, method = case_of(case)
    reading = read(method, NODES)
    found = attention_rollout(reading)
    with torch.no_grad():
        expected = [slow_rollout(method, reading, b) for b in range(len(NODES))]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_batch_mates_do_not_matter() -> None:
    method = method_of(awkward_graph(), num_layers=2)
    everyone = read(method, np.arange(20))
    for compute in (readout_attention, attention_rollout):
        together = compute(everyone)
        alone = np.concatenate([compute(read(method, np.array([v]))) for v in range(20)])
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)


def test_the_layer_attends_with_these_weights() -> None:
    """What `layer_attention` says is what the layer itself multiplies the values with."""
    method = method_of(awkward_graph())
    H = read(method, NODES).inputs
    layer = method.module.layers[0]
    with torch.no_grad():
        qkv = layer.query_key_value(layer.attention_norm(H))
        expected = layer.attend(qkv)
        found = layer_attention(layer, H) @ qkv[:, :, 2 * H.shape[2] :]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
