"""GT: attention over neighbours only, and positions whose signs mean nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.baselines.build import build, separable_graph
from tests.baselines.dense import adjacency, without_edges
from tokenphormer.baselines.gt import EdgeAttention, PlacedInput


def test_mechanism_is_dot_product_attention_over_neighbours() -> None:
    graph = separable_graph()
    torch.manual_seed(0)
    attention = EdgeAttention(8, 2)
    H, edges = torch.randn(90, 8), build("gt", graph=graph).task.edge_index
    q, k, v = attention.query_key_value(H).view(90, 3, 2, 4).unbind(dim=1)
    score = torch.einsum("ihd,jhd->ijh", q, k) / 2
    weight = F.softmax(score.masked_fill(adjacency(graph)[:, :, None] == 0, -torch.inf), dim=1)
    expected = torch.einsum("ijh,jhd->ihd", weight, v).reshape(90, 8)
    torch.testing.assert_close(attention(H, edges), expected, rtol=1e-4, atol=1e-5)


def test_factors_change_the_weights_and_nothing_else() -> None:
    torch.manual_seed(0)
    attention, H = EdgeAttention(8, 2), torch.randn(3, 8)
    edges = torch.tensor([[1, 2], [0, 0]])
    q, k, v = attention.query_key_value(H).chunk(3, dim=1)
    factor = torch.randn(2, 8)
    score = (q[0] * k[1:] * factor).view(2, 2, 4).sum(dim=2) / 2
    expected = (F.softmax(score, dim=0)[:, :, None] * v[1:].view(2, 2, 4)).sum(dim=0).view(8)
    attended = attention(H, edges, factor)
    torch.testing.assert_close(attended[0], expected)
    assert torch.equal(attended[1:], torch.zeros(2, 8)), "nobody to attend to"


def test_mechanism_attention_changes_the_output() -> None:
    graph = separable_graph()
    method = build("gt", graph=graph).eval()
    before = method()
    method.task.__dict__["edge_index"] = build("gt", graph=without_edges(graph)).task.edge_index
    assert not torch.allclose(method(), before, atol=1e-3)


def test_mechanism_positions_change_the_output() -> None:
    method = build("gt").eval()
    before = method()
    method.positions.columns = torch.zeros_like(method.positions.columns)
    assert not torch.allclose(method(), before, atol=1e-3)


def test_mechanism_signs_flip_in_training_only() -> None:
    method = build("gt", dropout=0.0)
    columns, seen = method.positions.columns, set()
    for epoch in range(1, 9):
        method.begin_epoch(epoch)
        signs = (method.positions.flipped * columns).sum(dim=0).sign()
        assert torch.equal(method.positions.flipped, columns * signs), "whole columns are flipped"
        seen.add(tuple(signs.tolist()))
    assert len(seen) > 4
    first = method()
    method.begin_epoch(1)
    assert not torch.equal(first, method()), "training sees the signs"
    again = method.positions.flipped
    method.begin_epoch(1)
    assert torch.equal(again, method.positions.flipped), "signs are a function of the epoch"
    method.eval()
    predictions = []
    for epoch in (1, 2):
        method.begin_epoch(epoch)
        predictions.append(method())
    assert torch.equal(*predictions)


def test_positions_do_not_shrink_with_the_graph() -> None:
    for nodes in (60, 240):
        columns = build("gt", graph=separable_graph(nodes), train_nodes=torch.arange(30).numpy()).positions.columns
        torch.testing.assert_close(columns.square().mean(dim=0), torch.ones(10))


def test_the_input_is_one_map_of_features_and_places() -> None:
    torch.manual_seed(0)
    layer, x, places = PlacedInput(5, 3, 4), torch.randn(7, 5), torch.randn(7, 3)
    torch.testing.assert_close(layer(x, places), layer.linear(torch.cat([x, places], dim=1)))
