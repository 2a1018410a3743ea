"""Attention of all to all on a CPU, beside what it says in plain torch; and the two methods that use it."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.baselines.build import build, separable_graph
from tokenphormer.baselines import biased_transformer
from tokenphormer.baselines import full_attention as module
from tokenphormer.baselines.full_attention import HIDDEN, full_attention
from tokenphormer.baselines.graphormer import all_distances, distances
from tokenphormer.graph import Graph, to_networkx

HEADS, ROWS, NODES = 3, 37, 101


def inputs(d: int, rows: int = ROWS, nodes: int = NODES, spread: float = 1.0) -> list[Tensor]:
    torch.manual_seed(d)
    shapes = ((HEADS, rows, d), (HEADS, nodes, d), (HEADS, nodes, d), (HEADS, 5))
    learned = [(torch.randn(shape) * spread).requires_grad_() for shape in shapes]
    return [*learned, torch.randint(0, 5, (rows, nodes), dtype=torch.uint8)]


def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, kinds: Tensor, mask: Tensor | None = None) -> Tensor:
    """The slow twin: every score, and every weight, in memory."""
    weights = F.softmax(q @ k.transpose(1, 2) / q.shape[2] ** 0.5 + bias[:, kinds.long()], dim=2)
    return (weights if mask is None else weights * mask) @ v


@pytest.mark.parametrize("d", [1, 4, 6, 8, 16])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_result_and_gradients_are_those_of_the_slow_twin(d: int, spread: float) -> None:
    q, k, v, bias, kinds = inputs(d, spread=spread)
    found, expected = full_attention(q, k, v, bias, kinds), plain(q, k, v, bias, kinds)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * spread)
    g = torch.randn_like(expected)
    for ours, theirs in zip(*(torch.autograd.grad(y, (q, k, v, bias), g) for y in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * spread)


def mask_of(seed: int, share: float, q: Tensor, k: Tensor, bias: Tensor, kinds: Tensor) -> Tensor:
    """What dropout multiplies the weights with: a reading of them with each node's own place as its value."""
    torch.manual_seed(seed)
    places = torch.eye(k.shape[1]).expand(HEADS, -1, -1)
    more = places.shape[2] - q.shape[2]
    wide = [F.pad(rows, (0, more)) for rows in (q * (places.shape[2] / q.shape[2]) ** 0.5, k)]
    read = full_attention(*wide, places, bias, kinds, share)
    whole = plain(q, k, places, bias, kinds)
    return torch.where(read > 0, read / whole, 0).detach()


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_leaves_out_its_share_and_has_the_gradients_of_what_it_kept(share: float) -> None:
    q, k, v, bias, kinds = inputs(8)
    mask = mask_of(3, share, q, k, bias, kinds)
    kept = mask > 0
    torch.testing.assert_close(mask[kept], torch.full_like(mask[kept], 1 / (1 - share)), rtol=1e-3, atol=0)
    spread = (share * (1 - share) / kept.numel()) ** 0.5
    assert abs(float(kept.float().mean()) - (1 - share)) < 4 * spread
    for axis in (0, 1, 2):  # no head, row or column is left out more than others
        counts = kept.float().mean(dim=[other for other in range(3) if other != axis])
        assert float((counts - (1 - share)).abs().max()) < 5 * spread * kept.shape[axis] ** 0.5
    torch.manual_seed(3)
    found, expected = full_attention(q, k, v, bias, kinds, share), plain(q, k, v, bias, kinds, mask)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    g = torch.randn_like(expected)
    for ours, theirs in zip(*(torch.autograd.grad(y, (q, k, v, bias), g) for y in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
    torch.manual_seed(3)
    assert torch.equal(full_attention(q, k, v, bias, kinds, share), found)
    torch.manual_seed(4)
    assert not torch.equal(full_attention(q, k, v, bias, kinds, share), found)


def test_what_is_hidden_has_no_weight_and_far_scores_are_0_not_nan() -> None:
    q, k, v, _, _ = inputs(4)
    kinds = torch.zeros(ROWS, NODES, dtype=torch.uint8)
    kinds[:, 50:] = 1
    seen = torch.tensor([0.0, HIDDEN]).expand(HEADS, 2)
    found = full_attention(q, k, v, seen, kinds)
    torch.testing.assert_close(found, plain(q, k[:, :50], v[:, :50], seen, kinds[:, :50]), rtol=1e-4, atol=1e-5)
    kinds[3] = 1  # a row that sees nothing: finite, so that it can be multiplied away
    assert full_attention(q, k, v, seen, kinds).isfinite().all()
    far = full_attention(q * 1e4, k, v, seen, kinds)
    torch.testing.assert_close(far, plain(q * 1e4, k, v, seen, kinds), rtol=1e-3, atol=1e-3)
    assert full_attention(q, k * float("nan"), v, seen, kinds).isnan().all()  # not hidden from the training loop


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000])  # processors make those of either sign
def test_one_score_that_is_nan_is_not_hidden(bits: int) -> None:
    q, k, v, _, kinds = inputs(4)
    kinds[:, 7] = 4
    bias = torch.zeros(HEADS, 5)
    bias[:, 4] = torch.from_numpy(np.array(bits, np.uint32).view(np.float32))
    assert full_attention(q, k, v, bias, kinds).isnan().all()


def test_gradients_of_gradients_are_refused() -> None:
    """Without this the one would be 0 in silence, as its numbers come from the kernel."""
    q, k, v, bias, kinds = inputs(4)
    result = full_attention(q, k, v, bias, kinds)
    with pytest.raises(RuntimeError, match="full_attention: expected one derivative, got create_graph=True"):
        torch.autograd.grad(result.sum(), q, create_graph=True)
    torch.autograd.grad(result.sum(), q)


def test_the_number_of_threads_changes_no_bit() -> None:
    q, k, v, bias, kinds = inputs(8)
    before = torch.get_num_threads()
    seen = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            found = full_attention(q, k, v, bias, kinds, 0.3)
            seen.append((found, *torch.autograd.grad(found.sum(), (q, k, v, bias))))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*seen, strict=True))


def test_there_are_as_many_threads_as_torch_has_and_then_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    given, asked = inputs(4), []
    full_attention(*given[:5])
    monkeypatch.setattr(module, "launch", lambda: asked.append("launch"))
    monkeypatch.setattr(numba, "get_num_threads", lambda: 8)
    monkeypatch.setattr(numba, "set_num_threads", asked.append)
    for threads in (3, 12):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        full_attention(*given[:5])
    assert asked == ["launch", 3, 8, "launch", 8, 8]


def test_several_threads_add_up_the_gradients_of_edges_in_one_order() -> None:
    method: Any = build("san", graph=separable_graph(300), hidden_channels=64)
    q, k, v = (torch.randn(2, 300, 32).requires_grad_() for _ in range(3))
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        for _ in range(50):
            read = method.layers[0]._attend_edges(q, k, v, method.all_pairs)
            found.append(torch.autograd.grad(read.square().sum(), (q, k, v)))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("name", ["graphormer", "san"])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 1}, {"hidden_channels": 18, "num_heads": 3}])
def test_methods_score_as_their_forward_pass_does(name: str, settings: dict[str, Any]) -> None:
    """`scores` goes by bytes and this attention, `forward` by a float for every pair."""
    nodes = torch.tensor([5, 0, 88, 5])
    method: Any = build(name, **settings).eval()
    method.begin_prediction(0)
    found, expected = method.scores(nodes), method()[nodes]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    g = torch.randn_like(expected)
    weights = [weight for weight in method.parameters() if weight.requires_grad]
    for ours, theirs in zip(*(torch.autograd.grad(y, weights, g) for y in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", ["graphormer", "san"])
def test_scores_on_a_cpu_make_no_floats_for_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method: Any = build(name).eval()
    monkeypatch.setattr(method, "forward", None)  # which would
    assert method.scores(torch.arange(9)).shape == (9, 3)


@pytest.mark.parametrize("name", ["graphormer", "san"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_layer_drops_attention_in_training_alone(name: str, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Graphormer's the weights: all else that its layers drop is left as it is here, (1, n, h)."""
    plain_dropout = biased_transformer.dropout
    monkeypatch.setattr(biased_transformer, "dropout", lambda x, p: plain_dropout(x, p) if x.dim() == 4 else x)
    method: Any = build(name, dropout=0.5)
    layer, H = method.layers[0], torch.randn(1, 90, 16)
    if name == "san":
        run = (lambda: layer.among_all(H, method.all_pairs)) if whole else lambda: layer(H, *method.pairs)
    else:
        bias = method.distance_bias.t()
        pairs = method.bias(method.distances[None])
        run = (lambda: layer.among_all(H, bias, method.distances)) if whole else lambda: layer(H, pairs)
    assert not torch.equal(run(), run())
    layer.eval()
    assert torch.equal(run(), run())


def test_san_reads_nothing_added_where_all_are_neighbours() -> None:
    n = 6
    edges = np.array([(i, j) for i in range(n) for j in range(i)]).T
    x = np.random.default_rng(1).normal(size=(n, 5)).astype(np.float32)
    graph = Graph.from_edges(edges, num_nodes=n, x=x, y=np.arange(n) % 3)
    method: Any = build("san", graph=graph, train_nodes=np.arange(n), num_eigenvectors=3).eval()
    torch.testing.assert_close(method.scores(torch.arange(n)), method(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("cap", [1, 2, 5, 300])
@pytest.mark.parametrize("directed", [False, True])
def test_distances_of_all_nodes_are_those_of_networkx(cap: int, directed: bool) -> None:
    rng = np.random.default_rng(cap)
    graph = Graph.from_edges(rng.integers(0, 70, (2, 75)), num_nodes=70, directed=directed)
    found = all_distances(graph, cap)
    lengths = dict(nx.all_pairs_shortest_path_length(to_networkx(graph)))
    for i in range(70):
        for j in range(70):
            assert found[i, j] == min(lengths[str(i)].get(str(j), 999), cap + 1), (i, j)
    assert found.dtype == (torch.uint8 if cap < 255 else torch.int16)


def test_distances_in_bits_are_those_in_floats() -> None:
    graph = separable_graph()
    dense = torch.zeros(90, 90)
    dense[np.repeat(np.arange(90), graph.degree), graph.indices.astype(np.int64)] = 1
    assert torch.equal(all_distances(graph, 5).short(), distances(dense, 5))
