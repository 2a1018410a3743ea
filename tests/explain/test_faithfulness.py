"""Faithfulness on functions whose right answer is known, and on tokens against curves made one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.explain.models import awkward_graph, method_of
from tokenphormer.explain.attention import attention_rollout, readout_attention
from tokenphormer.explain.faithfulness import (
    RANDOM_ORDERS,
    SHARES,
    Curves,
    kept_at_random,
    kept_units,
    score_tokens,
    token_curves,
)
from tokenphormer.explain.reading import read

EFFECT = np.array([0.05, 0.4, 0.1, 0.0, 0.15, 0.02, 0.08, 0.0, 0.2, 0.0])
"""What each of ten units adds to a probability; they add up to 1."""


def test_kept_units() -> None:
    keep = kept_units(np.array([0.2, 0.9, 0.5, 0.5]))
    assert keep.shape == (22, 4)
    assert keep[0].all()
    assert not keep[10].any()
    assert keep[5].tolist() == [True, False, False, True]  # half is removed; of equals the first
    assert (keep[11:] == ~keep[:11]).all()
    assert (np.diff(keep[:11].sum(axis=1)) <= 0).all()


def test_the_true_order_is_the_most_faithful() -> None:
    right = Curves.of(kept_units(EFFECT) @ EFFECT)
    wrong = Curves.of(kept_units(-EFFECT) @ EFFECT)
    chance = Curves.of(kept_at_random(10, np.random.default_rng(0)) @ EFFECT)
    assert right.fidelity_plus(0.2) == pytest.approx(0.6)
    assert right.fidelity_minus(0.2) == pytest.approx(0.4)
    assert wrong.fidelity_plus(0.2) == pytest.approx(0.0)
    assert wrong.fidelity_minus(0.2) == pytest.approx(1.0)
    assert right.deletion_area < chance.deletion_area < wrong.deletion_area
    assert right.insertion_area > chance.insertion_area > wrong.insertion_area
    assert right.deletion_area == pytest.approx(1 - right.insertion_area)
    assert chance.deletion_area == pytest.approx(0.5, abs=0.12)


def test_random_orders_are_many_and_differ() -> None:
    keep = kept_at_random(10, np.random.default_rng(1))
    assert len(keep) == RANDOM_ORDERS * 2 * len(SHARES)
    halves = keep.reshape(RANDOM_ORDERS, 22, 10)[:, 5]
    assert len(np.unique(halves, axis=0)) > 1


@pytest.mark.parametrize("rule", ["attention", "rollout", "occlusion", "random"])
def test_token_curves_one_by_one(rule: str) -> None:
    method = method_of(awkward_graph())
    reading = read(method, np.array([0, 5, 18]))
    found = token_curves(reading, rule, seed=4)
    rng = np.random.default_rng(4)
    for b, curves in enumerate(found):
        winner = reading.probabilities[b].argmax()
        if rule == "random":
            orders = [np.argsort(-rng.random(10), kind="stable") for _ in range(RANDOM_ORDERS)]
        else:
            orders = [np.argsort(-score_tokens(reading, rule)[b, 1:], kind="stable")]
        deletion, insertion = np.zeros(11), np.zeros(11)
        for order in orders:
            for place in range(11):
                gone = np.zeros((1, 11), bool)
                gone[0, 1 + order[:place]] = True
                stay = np.ones((1, 11), bool) & ~gone
                only = gone.copy()
                only[0, 0] = True
                deletion[place] += reading.of_kept(np.array([b]), stay)[0, winner] / len(orders)
                insertion[place] += reading.of_kept(np.array([b]), only)[0, winner] / len(orders)
        np.testing.assert_allclose(curves.deletion, deletion, atol=1e-5)
        np.testing.assert_allclose(curves.insertion, insertion, atol=1e-5)


@pytest.mark.parametrize("rule", ["attention", "rollout", "occlusion", "random"])
def test_where_there_is_nothing_to_remove_the_curves_are_flat(rule: str) -> None:
    """As with the recipe *own features*, which has neither hops nor walks."""
    reading = read(method_of(awkward_graph(), num_walks=0, num_hops=0), np.array([0, 5]))
    for curves, whole in zip(token_curves(reading, rule), reading.probabilities.max(axis=1), strict=True):
        np.testing.assert_allclose([curves.deletion, curves.insertion], np.full((2, 11), whole), atol=1e-6)


def test_each_rule_is_what_it_is_called() -> None:
    """Two layers, so that what is rolled through them is not what the readout weighs."""
    reading = read(method_of(awkward_graph(), num_layers=2), np.array([0, 5]))
    rules = {"attention": readout_attention(reading), "rollout": attention_rollout(reading)}
    assert not np.allclose(*rules.values())
    for rule, scores in rules.items():
        np.testing.assert_array_equal(score_tokens(reading, rule), scores)


def test_occlusion_is_of_the_predicted_class() -> None:
    method = method_of(awkward_graph())
    reading = read(method, np.arange(6))
    scores = score_tokens(reading, "occlusion")
    winners = reading.probabilities.argmax(axis=1)
    assert len(set(winners.tolist())) > 1
    for b, winner in enumerate(winners):
        keep = np.ones((1, 11), bool)
        keep[0, 1] = False  # the first hop, which has no equals
        left = reading.of_kept(np.array([b]), keep)[0, winner]
        assert scores[b, 1] == pytest.approx(reading.probabilities[b, winner] - left, abs=1e-6)


def test_shares_of_few_units_are_rounded_to_the_nearest() -> None:
    deletion, insertion = kept_units(np.array([1.0, 3.0])).reshape(2, 11, 2).sum(axis=2)
    assert insertion.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2]  # of 2 units, 0.6 and more are one, 1.6 are two
    assert deletion.tolist() == (2 - insertion).tolist()
