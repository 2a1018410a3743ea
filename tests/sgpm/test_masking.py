"""Masking: how many positions, which, what stands there, and that nothing of a masked node shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from tests.sgpm.graphs import quick
from tests.walks.test_distributions import check
from tokenphormer.sgpm.masking import MaskedBatch, mask, plain_batch
from tokenphormer.sgpm.model import CLS, MASK, SEP, UNK

NODES = 50


def sentences(count: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(NODES, (count, length), generator=torch.Generator().manual_seed(seed))


def masked(given: torch.Tensor, chance: float = 0.5, seed: int = 0, **changes: object) -> MaskedBatch:
    torch.manual_seed(seed)
    return mask(given, NODES, quick(**changes), chance)


# ---------------------------------------------------------------- how many, and where


def test_the_share_is_right_on_average() -> None:
    """Over all values of `chance`; and no sentence is without anything to guess."""

    def counts(length: int, share: float = 0.15) -> list[int]:
        settings, given = quick(mask_share=share), sentences(2, length)
        return [mask(given, NODES, settings, (i + 0.5) / 200).places.shape[1] for i in range(200)]

    for length, share in ((7, 0.15), (12, 0.15), (40, 0.15), (10, 0.5), (9, 0.99)):
        found = counts(length, share)
        assert np.mean(found) == pytest.approx(share * length, abs=0.005)
        assert max(found) - min(found) <= 1
    for length in range(1, 7):
        assert set(counts(length)) == {1}
    assert set(counts(3, 0.99)) == {2, 3}


def test_places_are_different_and_equally_likely() -> None:
    batch = masked(sentences(20_000, 10), mask_share=0.3)
    assert batch.places.shape == (20_000, 3)
    assert all(len(set(row)) == 3 for row in batch.places[:500].tolist())
    assert int(batch.places.min()) == 1  # never CLS
    assert int(batch.places.max()) == 10  # nor SEP
    one = masked(sentences(20_000, 10), mask_share=0.1, chance=0.0).places
    counts = torch.bincount(one.flatten() - 1, minlength=10).numpy().astype(float)
    statistic, freedom = check(counts, np.full(10, 0.1), "places")
    assert chi2.sf(statistic, freedom) > 1e-4


# ---------------------------------------------------------------- what stands there


def test_eighty_ten_ten() -> None:
    given = sentences(4000, 20)
    batch = masked(given, mask_share=0.5)
    there = batch.words.gather(1, batch.places)
    same = there == batch.targets
    hidden = there == NODES + MASK
    counts = np.array([hidden.sum(), (~hidden & ~same).sum(), same.sum()], dtype=float)
    by_chance = 0.1 / NODES  # another node may happen to be the same
    statistic, freedom = check(counts, np.array([0.8, 0.1 - by_chance, 0.1 + by_chance]), "kinds")
    assert counts.sum() == 40_000
    assert chi2.sf(statistic, freedom) > 1e-4
    others = there[~hidden & ~same]
    per_node = torch.bincount(others, minlength=NODES).numpy().astype(float)
    statistic, freedom = check(per_node, np.full(NODES, 1 / NODES), "other nodes")
    assert chi2.sf(statistic, freedom) > 1e-4


def test_targets_are_what_stood_there() -> None:
    given = sentences(300, 12)
    batch = masked(given, mask_share=0.4)
    torch.testing.assert_close(batch.targets, given.gather(1, batch.places - 1))
    assert batch.words.shape == batch.nodes.shape == (300, 14)
    assert set(batch.words[:, 0].tolist()) == {NODES + CLS}
    assert set(batch.words[:, -1].tolist()) == {NODES + SEP}
    clear = masked(given, mask_share=0.4, unknown_share=0.0)
    assert torch.equal(clear.words.scatter(1, clear.places, clear.targets)[:, 1:-1], given)


def test_nothing_of_a_masked_node_shows() -> None:
    given = sentences(300, 12)
    batch = masked(given, mask_share=0.4)
    hidden = batch.words == NODES + MASK
    edge = torch.zeros_like(hidden)
    edge[:, [0, -1]] = True
    assert hidden.any()
    assert torch.equal(batch.nodes == -1, hidden | edge)  # there, and nowhere else
    guess = torch.zeros_like(hidden).scatter(1, batch.places, True)
    shown = guess & ~hidden
    assert torch.equal(batch.nodes[shown], batch.words[shown])  # another node brings its own features
    rest = ~guess & ~edge
    assert torch.equal(batch.nodes[rest], torch.nn.functional.pad(given, (1, 1))[rest])


def test_unknown_words_keep_their_features() -> None:
    given = sentences(2000, 12)
    batch = masked(given, unknown_share=0.3)
    unknown = batch.words == NODES + UNK
    guess = torch.zeros_like(unknown).scatter(1, batch.places, True)
    assert not (unknown & guess).any()
    assert torch.equal(batch.nodes[unknown], torch.nn.functional.pad(given, (1, 1))[unknown])
    share = unknown.sum().item() / (batch.nodes[:, 1:-1].numel() - guess.sum().item())
    assert share == pytest.approx(0.3, abs=0.012)  # four deviations
    assert not (masked(given, unknown_share=0.0).words == NODES + UNK).any()


def test_the_same_seed_masks_the_same() -> None:
    given = sentences(50, 12)
    one, two, other = masked(given, seed=1), masked(given, seed=1), masked(given, seed=2)
    for name in ("words", "nodes", "places", "targets"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.places, other.places)


def test_sentences_of_one_and_none_at_all() -> None:
    batch = masked(sentences(3, 1))
    assert batch.places.tolist() == [[1], [1], [1]]
    empty = masked(torch.zeros(0, 5, dtype=torch.int64))
    assert empty.words.shape == (0, 7)
    assert empty.targets.shape == (0, 1)


# ---------------------------------------------------------------- reading without masks


def test_plain_batches() -> None:
    given = torch.tensor([[3, 1], [0, 2]])
    words, nodes = plain_batch(given, NODES)
    assert words.tolist() == [[NODES + CLS, 3, 1, NODES + SEP], [NODES + CLS, 0, 2, NODES + SEP]]
    assert nodes.tolist() == [[-1, 3, 1, -1], [-1, 0, 2, -1]]


def test_plain_batches_of_another_graph() -> None:
    """Node 0 is row 7 of the table, node 1 is unknown, node 2 is row 0; features are the new graph's own."""
    words, nodes = plain_batch(torch.tensor([[2, 1, 0]]), NODES, torch.tensor([7, -1, 0]))
    assert words.tolist() == [[NODES + CLS, 0, NODES + UNK, 7, NODES + SEP]]
    assert nodes.tolist() == [[-1, 2, 1, 0, -1]]
