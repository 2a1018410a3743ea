"""The softmax over many nodes: in pieces it is the plain one, sampled it is right on average, and neither is large."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tokenphormer.sgpm import softmax

M, V, H = 6, 23, 5
PIECES = [1, M, 5 * M, V * M, 10_000]
"""Scores at a time: one column, one, five, all but none left over, all."""


class Largest(TorchDispatchMode):
    """Notes the shapes and the largest size of all tensors that anything makes; sparse ones by their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.layout is torch.strided:
                self.numel = max(self.numel, made.numel())
                self.shapes.add(tuple(made.shape))
        return result


def inputs(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(M, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    table = torch.randn(V, H, generator=generator, dtype=torch.float64)
    bias = torch.randn(V, generator=generator, dtype=torch.float64)
    wide = torch.promote_types(dtype, torch.float32)
    target = torch.tensor([0, V - 1, 7, 7, 12, 3])
    return states, table.to(wide).requires_grad_(), bias.to(wide).requires_grad_(), target


# ---------------------------------------------------------------- exact


@pytest.mark.parametrize("piece", PIECES)
def test_in_pieces_it_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(softmax, "PIECE_ELEMENTS", piece)
    *leaves, target = inputs()
    weight = torch.linspace(-1, 2, M, dtype=torch.float64)  # each loss with a gradient of its own
    results = {}
    for name in ("plain", "exact"):
        loss, right = getattr(softmax, name)(*leaves, target)
        results[name] = (loss, right, *torch.autograd.grad((loss * weight).sum(), leaves))
    assert results["exact"][1].tolist() == results["plain"][1].tolist()
    for exact, plain in zip(results["exact"], results["plain"], strict=True):
        torch.testing.assert_close(exact, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("piece", PIECES)
def test_of_equal_scores_the_first_counts_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(softmax, "PIECE_ELEMENTS", piece)
    states, table, bias, target = inputs()
    for name in ("plain", "exact"):
        _, right = getattr(softmax, name)(states, table * 0, bias * 0, target)
        assert right.tolist() == (target == 0).tolist()


def test_gradients_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "PIECE_ELEMENTS", 4 * M)
    *leaves, target = inputs()
    assert torch.autograd.gradcheck(lambda *x: softmax.exact(*x, target)[0], leaves)


def test_the_plain_one_is_what_the_name_says() -> None:
    states, table, bias, target = inputs()
    scores = states @ table.t() + bias
    loss, right = softmax.plain(states, table, bias, target)
    torch.testing.assert_close(loss, scores.logsumexp(1) - scores[torch.arange(M), target])
    assert right.tolist() == (scores.argmax(1) == target).tolist()


@pytest.mark.parametrize("piece", PIECES)
def test_the_right_guess_is_found_in_any_piece(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(softmax, "PIECE_ELEMENTS", piece)
    table = torch.eye(V)
    for node in (0, 4, 5, V - 1):
        states = 10 * torch.eye(V)[[node] * M]
        target = torch.tensor([node, (node + 1) % V] * (M // 2))
        assert softmax.exact(states, table, torch.zeros(V), target)[1].tolist() == [True, False] * (M // 2)


@pytest.mark.parametrize("piece", PIECES)
def test_in_bfloat16(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Scores are rounded, sums are not: the pieces change nothing, and no loss is negative."""
    monkeypatch.setattr(softmax, "PIECE_ELEMENTS", piece)
    *leaves, target = inputs(torch.bfloat16)
    loss, right = softmax.exact(*leaves, target)
    plain, plain_right = softmax.plain(*leaves, target)
    assert loss.dtype == torch.float32
    assert right.tolist() == plain_right.tolist()
    torch.testing.assert_close(loss, plain, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(loss.sum(), leaves)
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32, torch.float32]
    for found, expected in zip(gradients, torch.autograd.grad(plain.sum(), leaves), strict=True):
        torch.testing.assert_close(found.float(), expected.float(), rtol=0.05, atol=0.02)
    certain, target = 40 * torch.eye(V, dtype=torch.bfloat16)[:M], torch.arange(M)
    sure = softmax.exact(certain, torch.eye(V), torch.zeros(V), target)[0]
    assert float(sure.min()) >= 0


def test_exact_holds_no_matrix_of_positions_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "PIECE_ELEMENTS", 2000)
    states = torch.randn(40, 4, requires_grad=True)
    table, bias = torch.randn(3000, 4, requires_grad=True), torch.zeros(3000, requires_grad=True)
    target = torch.randint(3000, (40,))
    with Largest() as largest:
        softmax.exact(states, table, bias, target)[0].sum().backward()
    assert largest.numel == table.numel()  # its gradient
    assert (40, 50) in largest.shapes
    with Largest() as largest:
        softmax.plain(states, table, bias, target)[0].sum().backward()
    assert largest.numel == 40 * 3000  # what the other avoids


# ---------------------------------------------------------------- sampled


def test_the_sum_is_right_on_average() -> None:
    """Over every possible draw of two from five nodes, the mean of the softmax's sum is the whole sum."""
    states, table, bias, _ = inputs()
    table, bias, target = table[:5], bias[:5], torch.tensor([0, 4, 2, 2, 1, 3])
    scores = states @ table.t() + bias
    right = scores[torch.arange(M), target]
    sums = []
    for draw in product(range(5), repeat=2):
        others = torch.tensor(draw)
        same = target[:, None] == others
        loss = softmax.sampled(states, table[target], bias[target], table[others], bias[others], same, 2 / 5)
        sums.append((loss + right).exp())
    torch.testing.assert_close(torch.stack(sums).mean(0), scores.exp().sum(1), rtol=1e-12, atol=0)


def test_with_all_nodes_it_is_the_exact_one() -> None:
    states, table, bias, target = inputs()
    everyone = torch.arange(V)
    same = target[:, None] == everyone
    loss = softmax.sampled(states, table[target], bias[target], table, bias, same, 1.0)
    expected, _ = softmax.plain(states, table, bias, target)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    leaves = (states, table, bias)
    for found, plain in zip(
        torch.autograd.grad(loss.sum(), leaves), torch.autograd.grad(expected.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-12)


def test_nothing_to_compare_with() -> None:
    """Every other node drawn is the right one: a loss of nothing, and no NaN on the way back."""
    states, table, bias, target = inputs()
    row = table[target]
    same = torch.ones(M, 2, dtype=torch.bool)
    loss = softmax.sampled(states, row, bias[target], table[:2], bias[:2], same, 2 / V)
    assert loss.tolist() == [0.0] * M
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss.sum(), (states, table, bias)))


def test_large_scores_do_not_overflow() -> None:
    states, table, bias, target = (tensor.detach() for tensor in inputs(torch.float32))
    for function in (softmax.exact, softmax.plain):
        assert function(1000 * states, 1000 * table, bias, target)[0].isfinite().all()
    same = target[:, None] == torch.arange(V)
    loss = softmax.sampled(1000 * states, 1000 * table[target], bias[target], 1000 * table, bias, same, 1e-6)
    assert loss.isfinite().all()
    assert float(loss.min()) >= 0
