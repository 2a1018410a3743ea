"""What Tokenphormer+ adds: activated rows, agreement of two scorings, learned weights of the steps of scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tokenphormer.errors import InputError
from tokenphormer.hops import propagation_matrix
from tokenphormer.tokens import source as source_module
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.tokenphormer import SHARPENING, TokenphormerMethod, disagreement


def method_of(**changes: object) -> TokenphormerMethod:
    graph = tiny_graph()
    return TokenphormerMethod(graph, tiny_config(**changes), graph.num_classes, CPU)


def test_activated_rows_are_pooled_by_hops_and_walks() -> None:
    """Token by token from the definition: W₁x_v + b + Σ M_tu σ(norm(W₂x_u))."""
    method = method_of(row_activation=True, num_walks=3, num_hops=2)
    graph, module = method.source.graph, method.module
    with torch.no_grad():
        module.row_norm.weight.uniform_(0.5, 2.0)
        module.row_norm.bias.uniform_(-1.0, 1.0)
    module.eval()
    nodes = torch.tensor([0, 7, 59])
    x = torch.tensor(graph.x)
    Z = F.gelu(F.layer_norm(x @ module.token_part.weight.t(), (8,), module.row_norm.weight, module.row_norm.bias))
    hop = torch.tensor(propagation_matrix(graph, "symmetric").toarray())
    walks = method.source.walks(nodes)
    with torch.no_grad():
        found = module.embed(method.source.batch(nodes))
        for place, node in enumerate(nodes.tolist()):
            pooled = [Z[node], (hop @ Z)[node], (hop @ hop @ Z)[node]]
            pooled += [Z[walk[1:][walk[1:] >= 0].long()].mean(dim=0) for walk in walks[place]]
            expected = module.self_part(x[node]) + torch.stack(pooled)
            torch.testing.assert_close(found[place], expected, rtol=1e-4, atol=1e-5)


def test_activated_rows_are_dropped_out_in_training_only() -> None:
    module = method_of(row_activation=True, dropout=0.5).module
    Z = torch.randn(40, 8)
    assert torch.equal(module.eval().activate(Z), module.activate(Z))
    assert (module.train().activate(Z) == 0).float().mean() > 0.3


def test_activated_tokens_are_dropped_out_in_training_only() -> None:
    module = method_of(token_activation=True, dropout=0.5).module
    H = torch.randn(10, 4, 8)
    assert torch.equal(module.eval().enter(H), module.enter(H))
    assert (module.train().enter(H) == 0).float().mean() > 0.3


def test_activated_tokens_tell_what_is_small() -> None:
    """What hops pool of many neighbours' rare words has a variance far below torch's 1e-5, and is no less clear."""
    module = method_of(token_activation=True).module.eval()
    H = torch.randn(10, 4, 8)
    torch.testing.assert_close(module.enter(1e-3 * H), module.enter(H), rtol=0, atol=1e-3)
    assert not module.enter(torch.zeros(1, 1, 8)).any()  # a token that has pooled nothing


def test_rows_cannot_be_activated_where_only_visited_ones_are_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "WHOLE_GRAPH_BYTES", 0)
    with pytest.raises(InputError, match="row_activation"):
        method_of(row_activation=True)


def test_disagreement_is_the_distance_to_the_sharpened_mean() -> None:
    drawn = [torch.randn(5, 3), torch.randn(5, 3)]
    chances = np.stack([F.softmax(scores, dim=1).double().numpy() for scores in drawn])
    target = chances.mean(axis=0) ** (1 / SHARPENING)
    target /= target.sum(axis=1, keepdims=True)
    expected = ((chances - target) ** 2).sum(axis=2).mean()
    np.testing.assert_allclose(float(disagreement(drawn)), expected, rtol=1e-5)
    sure = torch.tensor([[30.0, 0.0, 0.0]])
    assert disagreement([sure, sure]) < 1e-6 < disagreement([sure, sure.flip(1)])


@pytest.mark.parametrize("score_hops", [0, 2])
def test_consistency_is_part_of_the_loss(score_hops: int) -> None:
    nodes = torch.arange(20)
    losses = {}
    for weight in (1e-9, 1.0, 3.0):
        method = method_of(consistency=weight, score_hops=score_hops, dropout=0.5, feature_dropout=0.5)
        method.module.train()
        torch.manual_seed(3)
        losses[weight] = method.loss(nodes, lambda scores: scores.sum() * 0).item() / weight
    assert losses[1e-9] > 0
    assert losses[1.0] == pytest.approx(losses[3.0], rel=1e-4) == pytest.approx(losses[1e-9], rel=1e-3)
    method = method_of(consistency=1.0, score_hops=score_hops)
    method.module.eval()  # nothing is random, so two scorings are one, and only sharpening is left
    plain = method.scores(nodes)
    alone = method.loss(nodes, lambda scores: (scores - plain).square().sum())
    torch.testing.assert_close(alone.detach(), 20 * _sharpness(method), rtol=0.2, atol=1e-3)


def _sharpness(method: TokenphormerMethod) -> torch.Tensor:
    scores = method.scores(torch.arange(method.source.graph.num_nodes)).detach()
    return disagreement([scores, scores])


def test_its_gradient_makes_scorings_agree() -> None:
    method = method_of(consistency=1.0, dropout=0.5, feature_dropout=0.5)
    method.module.train()
    everyone, optimiser = torch.arange(60), torch.optim.Adam(method.module.parameters(), lr=0.01)

    def apart() -> float:
        torch.manual_seed(0)
        with torch.no_grad():
            return float(disagreement([method.scores(everyone) for _ in range(2)]))

    before = apart()
    for _ in range(60):
        optimiser.zero_grad()
        torch.autograd.backward(method.loss(everyone, lambda scores: scores.sum() * 0))
        optimiser.step()
    assert apart() < 0.5 * before


def test_learned_weights_begin_as_appnp_and_move() -> None:
    graph = tiny_graph()
    fixed, learned = (method_of(score_hops=3, score_teleport=0.2, score_learned=which) for which in (False, True))
    assert fixed.module.score_weights is None
    learned.module.load_state_dict(fixed.module.state_dict() | {"score_weights": learned.module.score_weights})
    nodes = torch.arange(graph.num_nodes)
    fixed.module.eval()
    learned.module.eval()
    torch.testing.assert_close(learned.scores(nodes), fixed.scores(nodes))
    torch.autograd.backward(F.cross_entropy(learned.scores(nodes), torch.tensor(graph.y)))
    assert learned.module.score_weights.grad.abs().min() > 0
    config = tiny_config(score_hops=3, score_learned=True, max_epochs=5)
    fitted = fit_tokenphormer(graph, tiny_split(graph), config, CPU)
    assert not torch.equal(fitted.method.score_weights.detach(), learned.module.score_weights.detach())


def test_edges_are_left_out_of_the_steps_in_training_only() -> None:
    method = method_of(score_hops=2, score_dropout=0.5, dropout=0.0, attention_dropout=0.0)
    plain = method_of(score_hops=2, dropout=0.0, attention_dropout=0.0)
    nodes = torch.arange(method.source.graph.num_nodes)
    torch.testing.assert_close(method_scores(method, nodes, False), method_scores(plain, nodes, False))
    torch.testing.assert_close(method_scores(plain, nodes, True), method_scores(plain, nodes, False))
    drawn = torch.stack([method_scores(method, nodes, True) for _ in range(400)])
    assert drawn.std(dim=0).min() > 0
    torch.testing.assert_close(drawn.mean(dim=0), method_scores(plain, nodes, False), rtol=0.2, atol=0.1)


def method_scores(method: TokenphormerMethod, nodes: torch.Tensor, training: bool) -> torch.Tensor:
    method.module.train(training)
    return method.scores(nodes).detach()


def test_nothing_is_learned_where_no_scores_are_passed_on() -> None:
    method = method_of(score_learned=True)
    assert method.module.score_weights is None
    assert not method.passes_scores
    assert method.score_weights.tolist() == [1.0]


def test_disagreement_by_hand() -> None:
    """Of (0.8, 0.2) twice, the sharpened mean is (0.64, 0.04) / 0.68: both are 0.8 − 0.9412 away from it."""
    scores = torch.tensor([[0.8, 0.2]]).log().requires_grad_()
    found = disagreement([scores, scores.detach()])
    assert found.item() == pytest.approx(2 * (0.8 - 0.64 / 0.68) ** 2, rel=1e-4)
    (gradient,) = torch.autograd.grad(found, scores)
    # The target stands still: d/dp of (p − t)² and (1 − p − 1 + t)², half of it each, through softmax, p(1 − p).
    expected = 0.5 * 4 * (0.8 - 0.64 / 0.68) * 0.8 * 0.2
    torch.testing.assert_close(gradient, torch.tensor([[expected, -expected]]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("score_hops", [0, 2])
def test_both_scorings_are_held_against_the_labels(score_hops: int) -> None:
    method = method_of(consistency=1e-9, score_hops=score_hops, dropout=0.5)
    method.module.train()
    nodes, seen = torch.arange(20), []

    def criterion(scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores)
        return torch.tensor(float(len(seen)))

    assert method.loss(nodes, criterion).item() == pytest.approx((1 + 2) / 2)
    assert [tuple(scores.shape) for scores in seen] == [(20, 3), (20, 3)]
    assert not torch.equal(seen[0], seen[1])


def test_nodes_that_are_to_agree_come_from_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    method = method_of(consistency=1.0)
    seen: list[list[int]] = []
    plain = method.own_scores

    def watched(nodes: torch.Tensor) -> torch.Tensor:
        seen.append(nodes.tolist())
        return plain(nodes)

    monkeypatch.setattr(method, "own_scores", watched)
    torch.manual_seed(0)
    for _ in range(30):
        method.loss(torch.arange(5), lambda scores: scores.sum())
    assert all(nodes[:5] == list(range(5)) and len(nodes) == 10 for nodes in seen)
    assert seen[::2] == seen[1::2]
    assert len({node for nodes in seen for node in nodes}) > 40
