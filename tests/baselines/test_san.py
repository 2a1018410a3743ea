"""SAN: a learned encoding of eigenpairs, and two attentions mixed by γ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tests.baselines.test_baselines import first_scores
from tokenphormer.baselines.san import Pairs, SANSettings, SpectralAttention
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph


def test_mechanism_eigenpairs_are_the_laplacians() -> None:
    graph = separable_graph()
    method: Any = build("san", graph=graph)
    A = np.zeros((90, 90))
    A[np.repeat(np.arange(90), graph.degree), graph.indices] = 1
    root = np.maximum(graph.degree, 1) ** -0.5
    L = np.eye(90) - root[:, None] * A * root
    values, vectors = method.eigenpairs.numpy().astype(float).transpose(2, 0, 1)
    assert values.shape == (90, 10)
    np.testing.assert_allclose(L @ vectors, values[0] * vectors, atol=1e-4)
    np.testing.assert_allclose((vectors**2).mean(axis=0), 1, rtol=1e-4)


def test_mechanism_the_spectral_encoding_changes_the_output() -> None:
    before = first_scores("san", torch.arange(9))
    method: Any = build("san").eval()
    method.eigenpairs = method.eigenpairs.roll(1, dims=0)  # each node has its neighbour's place
    with torch.no_grad():
        assert not torch.allclose(method.scores(torch.arange(9)), before, atol=1e-3)


def test_signs_are_flipped_in_training_alone() -> None:
    method: Any = build("san")
    seen = []
    for epoch in range(1, 6):
        method.begin_epoch(epoch)
        assert set(method.signs.tolist()) <= {-1.0, 1.0}
        seen.append(method.signs)
    assert not all(torch.equal(signs, seen[0]) for signs in seen)
    method.begin_prediction(0)
    assert (method.signs == 1).all()


def test_mechanism_attention_is_that_of_a_plain_slow_version() -> None:
    torch.manual_seed(0)
    layer = SpectralAttention(SANSettings(hidden_channels=8, num_heads=2, gamma=0.3)).eval()
    with torch.no_grad():
        layer.edges.normal_()
    H = torch.randn(5, 8)
    real = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [1, 1, 1, 1, 1]]) > 0
    v = layer.value(H).view(5, 2, 4)
    attended = torch.zeros(5, 2, 4)
    for kind, weights, share in ((0, layer.real, 1 / 1.3), (1, layer.added, 0.3 / 1.3)):
        q, k = weights(H).chunk(2, dim=1)
        product = (q * layer.edges[kind]).view(5, 1, 2, 4) * k.view(1, 5, 2, 4)
        score = product.sum(dim=3) / 2  # √4
        for i in range(5):
            others = [j for j in range(5) if bool(real[i, j]) == (kind == 0)]
            if others:
                mix = F.softmax(score[i, others], dim=0)
                attended[i] += share * (mix[:, :, None] * v[others]).sum(dim=0)
    expected = layer.attention_norm(H + layer.output(attended.flatten(1)))
    expected = layer.ffn_norm(expected + layer.narrow(F.relu(layer.widen(expected))))
    found = layer(H[None], Pairs.of(real[None]), Pairs.of(~real[None]))[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    first = layer(H[None], Pairs.of(real[None]), Pairs.of(~real[None]), first=2)[0]
    torch.testing.assert_close(first, expected[:2], rtol=1e-4, atol=1e-5)


def test_mechanism_gamma_lets_in_what_no_edge_joins() -> None:
    """With γ = 0 a component does not see the other; with γ > 0 it does."""
    edges = [[0, 1, 2, 4, 5, 6], [1, 2, 3, 5, 6, 7]]
    x = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    y, nodes = np.arange(8) % 2, torch.arange(4)
    moved = x.copy()
    moved[4:] += 5
    for gamma, seen in ((0.0, False), (0.1, True)):
        before, after = (
            first_scores("san", nodes, graph=Graph.from_edges(edges, num_nodes=8, x=features, y=y), gamma=gamma)
            for features in (x, moved)
        )
        assert torch.allclose(before, after, atol=1e-6) != seen


def test_settings_are_checked() -> None:
    for wrong in ({"gamma": -0.1}, {"num_heads": 3}, {"num_eigenvectors": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            build("san", **wrong)
    with pytest.raises(InputError, match="pe_channels: 6 cannot be shared by 4 heads"):
        build("san", pe_channels=6)
