"""Scores passed on to neighbours: APPNP's formula on top of the model, whatever the pieces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.loop import predict
from tokenphormer.training.tokenphormer import TokenphormerMethod


def method_of(graph: Graph, pieces: int = 1, **changes: object) -> TokenphormerMethod:
    method = TokenphormerMethod(graph, tiny_config(dropout=0.3, **changes), graph.num_classes, CPU)
    if pieces > 1:
        method._everyone = list(torch.chunk(torch.arange(graph.num_nodes), pieces))
    return method


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(("hops", "teleport"), [(1, 0.1), (7, 0.3), (3, 0.0)])
@pytest.mark.parametrize("normalisation", ["symmetric", "row"])
def test_the_formula(hops: int, teleport: float, directed: bool, normalisation: str) -> None:
    """Scores take APPNP's steps, whichever those of the hop-tokens are."""
    graph = tiny_graph(directed=directed)
    method = method_of(graph, score_hops=hops, score_teleport=teleport, hop_normalisation=normalisation)
    method.module.eval()
    own = method.own_scores(torch.arange(graph.num_nodes)).detach().double().numpy()
    A = propagation_matrix(graph, "symmetric").toarray().astype(np.float64)
    Z = own
    for _ in range(hops):
        Z = (1 - teleport) * A @ Z + teleport * own
    found = method.scores(torch.tensor([3, 0, 59])).detach().numpy()
    np.testing.assert_allclose(found, Z[[3, 0, 59]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("directed", [False, True])
def test_gradients_go_back_along_the_steps(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a directed graph the way back is another one."""
    graph = tiny_graph(directed=directed)
    method = method_of(graph, score_hops=2, score_teleport=0.2)
    own = torch.randn(60, 3, requires_grad=True)
    monkeypatch.setattr(method, "own_scores", lambda nodes: own[nodes])
    weight = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    torch.autograd.backward((torch.tensor(weight) * method.scores(torch.arange(60))).sum())
    A = propagation_matrix(graph, "symmetric").toarray()
    formula = 0.2 * np.eye(60) + 0.8 * 0.2 * A + 0.8**2 * A @ A
    assert own.grad is not None
    np.testing.assert_allclose(own.grad.numpy(), formula.T @ weight, rtol=1e-4, atol=1e-6)
    assert np.allclose(formula, formula.T) != directed


def test_pieces_give_the_same_scores_and_gradients() -> None:
    graph = tiny_graph()
    nodes, found = torch.arange(20), []
    for pieces in (1, 3):
        method = method_of(graph, pieces, score_hops=4, attention_dropout=0.0)
        method.module.eval()  # dropout draws differently in pieces; the rest must not
        loss = F.cross_entropy(method.scores(nodes), torch.tensor(graph.y[:20]))
        torch.autograd.backward(loss)
        gradients = [p.grad.clone() for p in method.module.parameters() if p.grad is not None]
        found.append((loss.detach(), gradients))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert len(found[0][1]) == len(found[1][1]) > 10
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_training_in_pieces_works_out_the_same_dropout_twice() -> None:
    """The backward pass runs each piece again; with other masks its gradient would belong to another loss."""
    graph = tiny_graph()
    method = method_of(graph, 3, score_hops=2)
    method.module.train()
    nodes, classes = torch.arange(20), torch.tensor(graph.y[:20])
    weight = method.module.head[2].bias

    def loss(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return F.cross_entropy(method.scores(nodes), classes)

    torch.autograd.backward(loss(5))
    gradient = weight.grad.clone()
    step = 1e-3
    for place in range(len(weight)):
        with torch.no_grad():
            weight[place] += step
            above = loss(5)
            weight[place] -= 2 * step
            below = loss(5)
            weight[place] += step
        assert abs(float(above - below) / (2 * step) - float(gradient[place])) < 1e-3


def test_a_training_ends_well_and_is_saved_whole() -> None:
    graph = tiny_graph()
    config = tiny_config(score_hops=3, max_epochs=30, patience=30)
    fitted = fit_tokenphormer(graph, tiny_split(graph), config, CPU)
    probabilities = predict(fitted.method, np.arange(graph.num_nodes), config, CPU)
    again = TokenphormerMethod(graph, config, graph.num_classes, CPU, weights=fitted.method.module.state_dict())
    np.testing.assert_array_equal(predict(again, np.arange(graph.num_nodes), config, CPU), probabilities)
    assert fitted.progress.best_accuracy > 0.8
    alone = predict(again, np.array([7]), config, CPU)
    np.testing.assert_allclose(alone[0], probabilities[7], atol=1e-6)
