"""The model against an independent slow version, its two paths against each other, and nodes without batch mates."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests import slow_model
from tokenphormer import model as model_module
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.model import EncoderLayer, ModelSettings, Tokenphormer, WideAttention, dropout
from tokenphormer.tokens import TokenSettings, TokenSource, encodings
from tokenphormer.tokens import source as source_module
from tokenphormer.tokens.encodings import laplacian_eigenvectors, return_probabilities


def small_graph(sparse: bool = False, directed: bool = False, weights: bool = False) -> Graph:
    rng = np.random.default_rng(1)
    edges = rng.integers(0, 20, (2, 40))
    x = rng.random((23, 6)).astype(np.float32) * (rng.random((23, 6)) < 0.5)
    return Graph.from_edges(
        edges,
        23,
        x=sp.csr_array(x) if sparse else x,
        y=rng.integers(0, 3, 23),
        edge_weight=rng.random(40) + 0.1 if weights else None,
        directed=directed,
    )


CASES = [
    (TokenSettings(num_walks=8, walk_length=3), ModelSettings(hidden_channels=8), {}),
    (TokenSettings(num_walks=8, walk_length=3), ModelSettings(hidden_channels=8), {"sparse": True}),
    (
        TokenSettings(num_walks=5, walk_pooling="sum", include_start=True, hop_normalisation="none"),
        ModelSettings(hidden_channels=12, num_layers=2, num_heads=3, ffn_channels=10, final_norm=True),
        {"directed": True},
    ),
    (
        TokenSettings(num_walks=4, hop_normalisation="row", num_hops=2),
        ModelSettings(hidden_channels=8, num_heads=2),
        {"sparse": True, "weights": True},
    ),
    # Walks that end on the way: their mean is over the nodes they did visit.
    (TokenSettings(num_walks=8, walk_length=5), ModelSettings(hidden_channels=8), {"directed": True}),
    (TokenSettings(num_walks=0, num_hops=1), ModelSettings(hidden_channels=8), {}),
    (TokenSettings(num_walks=0, num_hops=0), ModelSettings(hidden_channels=8), {}),
    (TokenSettings(num_walks=3, num_hops=0), ModelSettings(hidden_channels=512, dropout=0.3), {}),
    (
        TokenSettings(num_walks=4, num_hops=2, include_own=False, hop_normalisation="row"),
        ModelSettings(hidden_channels=8, num_heads=2, token_activation=True),
        {"directed": True},
    ),
    (TokenSettings(num_walks=3, include_own=False), ModelSettings(hidden_channels=8), {"sparse": True}),
    (TokenSettings(num_walks=3), ModelSettings(hidden_channels=8, token_activation=True), {"weights": True}),
    (TokenSettings(num_walks=0, num_hops=0, include_own=False), ModelSettings(hidden_channels=8), {}),
]


def build(
    settings: TokenSettings, shape: ModelSettings, graph: Graph, whole: bool = True
) -> tuple[Tokenphormer, TokenSource]:
    source = TokenSource(graph, settings, seed=3, whole=whole)
    torch.manual_seed(0)
    model = Tokenphormer(source.num_features, 3, shape).double().eval()
    return model, source


@pytest.mark.parametrize(("settings", "shape", "kind"), CASES)
@pytest.mark.parametrize("whole", [True, False])
def test_equals_the_slow_version(
    settings: TokenSettings, shape: ModelSettings, kind: dict[str, bool], whole: bool
) -> None:
    graph = small_graph(**kind)
    model, source = build(settings, shape, graph, whole)
    nodes = torch.tensor([0, 7, 20, 22, 5])  # 20 to 22 are isolated
    scores = model(source.batch(nodes))
    direction = torch.randn(scores.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    (scores * direction).sum().backward()
    fast = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}

    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    X = slow_model.dense_features(graph).astype(np.float64)
    hops = slow_model.hop_features(graph, X, settings.num_hops, settings.hop_normalisation)
    walks = source.walks(nodes).numpy() if settings.num_walks else np.zeros((len(nodes), 0, 1), int)
    expected = torch.stack(
        [
            slow_model.forward(
                slow_model.tokens_of(
                    int(v), X, hops, walks[i], settings.walk_pooling, settings.include_start, settings.include_own
                ),
                weights,
                shape.num_layers,
                shape.num_heads,
                shape.final_norm,
                settings.include_own,
            )
            for i, v in enumerate(nodes)
        ]
    )
    # The hop matrix and the pooling weights are float32, so agreement ends near 1e-7.
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-5)
    (expected * direction).sum().backward()
    for name, slow in weights.items():
        if slow.grad is None:
            assert name == "readout.weight"
            assert len(source.token_kinds) == 1
        elif name == "token_part.weight" and source.token_kinds == ["self"] and not settings.include_own:
            assert not slow.grad.any()  # nothing reads it
            assert name not in fast or not fast[name].any()
        else:
            torch.testing.assert_close(fast[name], slow.grad, rtol=0, atol=1e-5 * max(1, float(slow.grad.abs().max())))


@pytest.mark.parametrize("extra", [{}, {"laplacian_pe": 3, "walk_pe": 2}, {"normalise_features": True}])
@pytest.mark.parametrize("sparse", [True, False])
def test_projecting_whole_and_projecting_what_is_visited_are_equal(extra: dict[str, int], sparse: bool) -> None:
    settings = dataclasses.replace(TokenSettings(num_walks=6), **extra)
    graph = small_graph(sparse=sparse)
    outputs = []
    for whole in (True, False):
        model, source = build(settings, ModelSettings(hidden_channels=8), graph, whole)
        source.begin_epoch(4)
        outputs.append(model(source.batch(torch.tensor([1, 2, 22]))))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-6)


def test_only_visited_rows_are_projected_once_each() -> None:
    graph = small_graph()
    _, source = build(TokenSettings(num_walks=4), ModelSettings(hidden_channels=8), graph, whole=False)
    nodes = torch.tensor([3, 8])
    walks = source.walks(nodes)
    batch = source.batch(nodes)
    assert batch.rows.dense is not None
    assert len(batch.rows.dense) == len({3, 8, *walks[walks >= 0].tolist()})


def test_choice_of_path_follows_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph()
    assert TokenSource(graph, TokenSettings(), hidden_channels=64).whole
    monkeypatch.setattr(source_module, "WHOLE_GRAPH_BYTES", 1000)
    assert not TokenSource(graph, TokenSettings(), hidden_channels=64).whole


def test_a_node_does_not_depend_on_its_batch_mates() -> None:
    graph = small_graph()
    model, source = build(TokenSettings(num_walks=6), ModelSettings(hidden_channels=8), graph)
    together = model(source.batch(torch.arange(23)))
    for nodes in ([4], [22], [9, 4], list(range(22, -1, -1))):
        torch.testing.assert_close(model(source.batch(torch.tensor(nodes))), together[nodes], rtol=0, atol=1e-12)


def test_no_batch_at_all() -> None:
    model, source = build(TokenSettings(num_walks=6), ModelSettings(hidden_channels=8), small_graph())
    assert model(source.batch(torch.tensor([], dtype=torch.int64))).shape == (0, 3)


def test_sgpm_takes_one_token() -> None:
    graph = small_graph()
    vectors = np.random.default_rng(0).random((23, 5)).astype(np.float32)
    source = TokenSource(graph, TokenSettings(num_walks=4), sgpm=vectors)
    assert source.token_kinds[:3] == ["self", "sgpm", "hop 1"]
    model = Tokenphormer(source.num_features, 3, ModelSettings(hidden_channels=8), sgpm_channels=source.sgpm_channels)
    before = model.eval()(source.batch(torch.tensor([1])))
    other = TokenSource(graph, TokenSettings(num_walks=4), sgpm=vectors[::-1].copy())
    assert not torch.allclose(before, model(other.batch(torch.tensor([1]))))


def test_fresh_walks_and_votes_are_other_walks_and_reproducible() -> None:
    graph = small_graph()
    fixed, fresh = (TokenSource(graph, TokenSettings(num_walks=6, fresh_walks=f)) for f in (False, True))
    nodes = torch.arange(20)

    def walks(source: TokenSource, epoch: int | None = None, draw: int = 0) -> torch.Tensor:
        source.begin_prediction(draw) if epoch is None else source.begin_epoch(epoch)
        return source.walks(nodes).clone()

    assert torch.equal(walks(fixed, 1), walks(fixed, 2))
    assert torch.equal(walks(fixed, 1), walks(fresh))
    assert not torch.equal(walks(fresh, 1), walks(fresh, 2))
    assert torch.equal(walks(fresh, 1), walks(fresh, 1))
    assert not torch.equal(walks(fixed), walks(fixed, draw=1))
    for number in (1, 2, 3):
        assert not torch.equal(walks(fresh, draw=number), walks(fresh, number)), "a vote is by walks not trained on"


def test_what_is_kept_of_a_batch_has_the_walks_of_now() -> None:
    """The batch of a fixed training set is kept for as long as its walks are: fresh ones make another of it."""
    source = TokenSource(small_graph(), TokenSettings(num_walks=6, fresh_walks=True))
    nodes = torch.arange(20)
    kept = []
    for begin in (lambda: source.begin_epoch(1), lambda: source.begin_epoch(2), source.begin_prediction):
        begin()
        kept.append(source.batch(nodes))
        assert source.batch(nodes) is kept[-1]
    assert not torch.equal(kept[0].tokens.column, kept[1].tokens.column)
    assert not torch.equal(kept[1].tokens.column, kept[2].tokens.column)


def test_fresh_walks_of_one_seed_are_not_those_of_the_next() -> None:
    settings = TokenSettings(num_walks=6, fresh_walks=True)
    first, second = (TokenSource(small_graph(), settings, seed=seed) for seed in (1, 2))
    first.begin_epoch(2)
    second.begin_epoch(1)
    assert not torch.equal(first.walks(torch.arange(20)), second.walks(torch.arange(20)))


def test_signs_flip_in_training_only() -> None:
    graph = small_graph()
    source = TokenSource(graph, TokenSettings(num_walks=2, laplacian_pe=3))
    nodes = torch.tensor([0, 1])
    seen = set()
    for epoch in range(1, 20):
        source.begin_epoch(epoch)
        signs = source.batch(nodes).signs
        assert signs is not None
        assert (signs[:6] == 1).all()
        seen.add(tuple(signs[6:].tolist()))
    assert len(seen) > 4
    source.begin_prediction()
    assert source.batch(nodes).signs is None


def test_signs_of_many_eigenvectors_flip_too() -> None:
    path = Graph.from_edges([range(149), range(1, 150)])
    source = TokenSource(path, TokenSettings(num_walks=2, laplacian_pe=130), seed=3)
    source.begin_epoch(1)
    signs = source.batch(torch.tensor([0])).signs
    assert signs is not None
    assert min((signs[64:128] == 1).sum(), (signs[64:128] == -1).sum()) > 16
    few = TokenSource(path, TokenSettings(num_walks=2, laplacian_pe=64), seed=3)
    few.begin_epoch(1)
    assert torch.equal(few.batch(torch.tensor([0])).signs, signs[:64]), "the first are what they were"
    assert not torch.equal(signs[64:128], signs[:64])


@pytest.mark.parametrize("n", [50, 700])
def test_eigenvectors_without_edges(n: int) -> None:
    vectors = laplacian_eigenvectors(Graph.from_edges([[], []], num_nodes=n), 3)
    assert np.array_equal(vectors, np.eye(n, dtype=np.float32)[:, [n - 2, n - 3, n - 4]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenSettings(num_walks=-1), "num_walks: -1"),
        (lambda: TokenSettings(walk_ratios=(1.0, 0.0, 0.0)), "walk_ratios"),  # type: ignore[arg-type]
        (lambda: TokenSettings(walk_ratios=(0.0, 0.0, 0.0, 0.0)), "walk_ratios"),
        (lambda: TokenSettings(walk_pooling="max"), "walk_pooling: 'max'"),  # type: ignore[arg-type]
        (lambda: TokenSettings(hop_normalisation="left"), "hop_normalisation"),  # type: ignore[arg-type]
        (lambda: ModelSettings(hidden_channels=10, num_heads=3), "cannot be shared"),
        (lambda: ModelSettings(dropout=1.0), "dropout: 1.0"),
        (lambda: ModelSettings(num_layers=0), "num_layers: 0"),
        (lambda: TokenSource(Graph.from_edges([[0], [1]]), TokenSettings()), "has no features"),
        (lambda: TokenSource(small_graph(), TokenSettings(laplacian_pe=30)), "laplacian_pe: 30"),
        (lambda: laplacian_eigenvectors(Graph.from_edges([[], []], num_nodes=1), 1), "room for no eigenvector; set"),
    ],
)
def test_bad_settings_say_what_is_wrong(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_wide_attention_equals_its_twin(dropout: float) -> None:
    """Without dropout it is torch's own attention; with dropout, its gradient is numerically right."""
    torch.manual_seed(0)
    qkv = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    if not dropout:
        q, k, v = qkv.chunk(3, dim=2)
        twin = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(WideAttention.apply(qkv, 0.0), twin)

    def attend(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)  # the same mask at every call
        return WideAttention.apply(x, dropout)

    assert torch.autograd.gradcheck(attend, (qkv,))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dropout_on_a_cpu(share: float) -> None:
    x = torch.full((1001, 333), 2.0, requires_grad=True)
    torch.manual_seed(4)
    out = dropout(x, share)
    dropped = (out == 0).double()
    assert abs(dropped.mean().item() - share) < 5 * (share * (1 - share) / x.numel()) ** 0.5
    assert dropped.mean(dim=0).std().item() < 2 * (share * (1 - share) / 1001) ** 0.5  # no stripes
    assert dropped.mean(dim=1).std().item() < 2 * (share * (1 - share) / 333) ** 0.5
    kept = out[out != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 2 / (1 - share)), rtol=1e-4, atol=0)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient * 2, out)
    torch.manual_seed(4)
    assert torch.equal(dropout(x, share), out)
    assert torch.equal(dropout(x, 0.0), x)
    assert dropout(torch.zeros(0, 3), share).shape == (0, 3)


def test_dropout_on_a_cpu_keeps_the_precision() -> None:
    out = dropout(torch.full((1001, 33), 131.0, dtype=torch.bfloat16), 0.1)
    assert out.dtype == torch.bfloat16
    assert set(out.flatten().tolist()) == {0.0, 146.0}  # 145 if the factor were rounded before the product is


@pytest.mark.parametrize("changes", [{}, {"row_activation": True}, {"token_activation": True}, {"num_heads": 2}])
def test_tokens_are_of_the_precision_asked_for_in_training_too(changes: dict[str, Any]) -> None:
    shape = ModelSettings(hidden_channels=8, num_layers=2, dropout=0.5, feature_dropout=0.5, **changes)
    source = TokenSource(small_graph(), TokenSettings(num_walks=3), seed=3)
    model, seen = Tokenphormer(source.num_features, 3, shape), []
    for layer in model.layers:
        layer.register_forward_hook(lambda _, given, made: seen.extend([*given, made]))
    for training in (True, False):
        scores = model.train(training)(source.batch(torch.arange(9)), torch.bfloat16)
        assert scores.dtype == torch.float32
        assert {H.dtype for H in seen} == {torch.bfloat16}
        scores.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_dropout_of_nearly_all() -> None:
    assert dropout(torch.ones(100), 1 - 1e-9).isfinite().all()


@pytest.mark.parametrize("n", [40, 700])  # decomposed whole, and by Lanczos
def test_eigenvectors_are_the_smoothest_but_the_first_and_know_no_direction(n: int) -> None:
    graph = Graph.from_edges([range(n - 1), range(1, n)], directed=True)
    found = laplacian_eigenvectors(graph, 2).astype(np.float64)
    degree = np.full(n, 2.0)
    degree[[0, -1]] = 1
    product = found - np.array([_neighbour_sum(found / np.sqrt(degree)[:, None], v) for v in range(n)]) / np.sqrt(
        degree
    ).reshape(-1, 1)
    values = 1 - np.cos(np.pi * np.array([1, 2]) / (n - 1))  # those of a path
    np.testing.assert_allclose(product, found * values, atol=1e-4)
    assert (found[np.abs(found).argmax(axis=0), [0, 1]] > 0).all()


def test_eigenvectors_have_the_same_signs_whichever_way_they_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eigenvector and its negative are the same thing; which of them a machine finds is to make no difference."""
    graph, eigh, found = small_graph(), np.linalg.eigh, []
    for sign in (1.0, -1.0):
        monkeypatch.setattr(np.linalg, "eigh", lambda matrix, sign=sign: (None, sign * eigh(matrix)[1]))
        found.append(laplacian_eigenvectors(graph, 5))
    assert np.array_equal(*found)
    assert (found[0].max(axis=0) == np.abs(found[0]).max(axis=0)).all()


def _neighbour_sum(rows: np.ndarray, node: int) -> np.ndarray:
    return rows[[u for u in (node - 1, node + 1) if 0 <= u < len(rows)]].sum(axis=0)


@pytest.mark.parametrize("dense_above", [0.0, 0.2, 1.0])
def test_return_probabilities_are_the_diagonals_of_powers(dense_above: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "DENSE_ABOVE", dense_above)
    graph = small_graph(directed=True, weights=True)
    assert graph.edge_weight is not None
    P = np.zeros((23, 23))
    P[np.repeat(np.arange(23), graph.degree), graph.indices] = graph.edge_weight
    P /= np.maximum(P.sum(axis=1, keepdims=True), 1e-30)
    expected = np.stack([np.diag(np.linalg.matrix_power(P, k)) for k in (1, 2, 3)], axis=1)
    np.testing.assert_allclose(return_probabilities(graph, 3), expected, atol=1e-6)
    assert len({tuple(column) for column in expected.T.tolist()}) == 3


def test_return_probabilities_of_more_nodes_than_a_block_has() -> None:
    """A ring of 1,100 nodes with one chord: back after two steps by each neighbour, 1 / degree of which comes back."""
    n = 1100
    graph = Graph.from_edges([[*range(n), 1060], [*range(1, n), 0, 1080]])
    expected = np.array([np.mean(1 / graph.degree[graph.neighbours(v)]) for v in range(n)])
    assert len(np.unique(expected[1050:])) == 3
    found = return_probabilities(graph, 2)
    np.testing.assert_allclose(found, np.stack([np.zeros(n), expected], axis=1), atol=1e-6)


def test_shares_of_walks_are_rounded_as_they_are_written() -> None:
    """10 · 0.15 is 1.5, as 10 · 0.05 is 0.5, whatever is left of them in binary: the first of equals is rounded up."""
    counts = TokenSettings(num_walks=10, walk_ratios=(0.05, 0.15, 0.7, 0.1)).walk_counts
    assert list(counts.values()) == [1, 1, 7, 1]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_three_places_of_dropout(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After attention, in the feed-forward network and after it: what is dropped whole at one of them is gone."""
    torch.manual_seed(0)
    layer = EncoderLayer(ModelSettings(hidden_channels=8, ffn_channels=12, dropout=0.3, attention_dropout=0.0))
    H = torch.randn(2, 5, 8)
    shares: list[float] = []

    def drop_whole(x: torch.Tensor, share: float) -> torch.Tensor:
        shares.append(share)
        return x * 0 if len(shares) == place + 1 else x

    monkeypatch.setattr(model_module, "dropout", drop_whole)
    found = layer.plain_forward(H)
    assert shares == [0.3, 0.3, 0.3]
    attended = layer.output(layer.attend(layer.query_key_value(layer.attention_norm(H))))
    middle = H if place == 0 else H + attended
    widened = torch.nn.functional.gelu(layer.widen(layer.ffn_norm(middle)))
    branch = 0 if place == 2 else layer.narrow(widened * 0 if place == 1 else widened)
    torch.testing.assert_close(found, middle + branch)
    shares.clear()
    layer.eval().plain_forward(H)
    assert shares == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("width", [4, 260])  # torch's own attention, and that of wide heads
def test_attention_weights_are_dropped_in_training_only(width: int) -> None:
    torch.manual_seed(0)
    layer = EncoderLayer(ModelSettings(hidden_channels=width, dropout=0.0, attention_dropout=0.5))
    qkv = torch.randn(1, 4, 3 * width)
    with torch.no_grad():
        plain = layer.eval().attend(qkv)
        torch.testing.assert_close(plain, layer.attend(qkv))
        drawn = torch.stack([layer.train().attend(qkv) for _ in range(1000)])
    assert drawn.std(dim=0).min() > 0.001
    assert (drawn.mean(dim=0) - plain).abs().max() < 6 * drawn.std(dim=0).max() / 1000**0.5


@pytest.mark.parametrize("whole", [True, False])
def test_features_are_dropped_in_training_only_in_every_token(whole: bool) -> None:
    shape = ModelSettings(hidden_channels=8, feature_dropout=0.5)
    model, source = build(TokenSettings(num_walks=3), shape, small_graph(), whole)
    batch = source.batch(torch.tensor([0, 7]))
    with torch.no_grad():
        torch.nn.init.zeros_(model.self_part.weight)  # of W₂x alone, so that every token is seen by itself
        plain = model.embed(batch)
        assert torch.equal(plain, model.embed(batch))
        drawn = torch.stack([model.train().embed(batch) for _ in range(20)])
    assert (drawn.std(dim=0).amax(dim=2) > 0).all()


def test_the_bias_of_keys_has_no_gradient() -> None:
    """Softmax does not see it; what rounding leaves, Adam would make steps of full size of."""
    torch.manual_seed(0)
    layer = EncoderLayer(ModelSettings(hidden_channels=8))
    layer.eval()(torch.randn(2, 5, 8)).square().sum().backward()
    gradient = layer.query_key_value.bias.grad
    assert (gradient[8:16] == 0).all()
    assert (gradient[:8] != 0).all()
    assert (gradient[16:] != 0).all()
