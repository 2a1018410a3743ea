"""Hop-tokens that are the same to the bit beside walk-tokens of different laws, and the reverse."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from tests.studies.test_documents import to_networkx
from tokenphormer.hops import NORMALISATIONS, Normalisation
from tokenphormer.model import ModelSettings, Tokenphormer
from tokenphormer.studies import hop_pair
from tokenphormer.tokens import TokenSettings, TokenSource
from tokenphormer.walks import KINDS, Kind, sample_walks

ENDS, RINGS, ORDER = hop_pair.cases()


def embedded(
    graph: hop_pair.Graph, normalisation: Normalisation, kind: Kind, whole: bool | None = None
) -> torch.Tensor:
    """(T, h) what the model itself reads of v: self, 2 hop-tokens, 40 walk-tokens of 2 steps."""
    ratios = tuple(float(each == kind) for each in KINDS)
    settings = TokenSettings(
        num_walks=40, walk_length=2, walk_ratios=ratios, num_hops=2, hop_normalisation=normalisation
    )
    torch.manual_seed(0)
    model = Tokenphormer(len(hop_pair.LETTERS), 2, ModelSettings(hidden_channels=8))
    with torch.no_grad():
        return model.embed(TokenSource(graph, settings, whole=whole).batch(torch.tensor([0])))[0]


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("case", [ENDS, RINGS], ids=lambda case: case.name)
def test_two_hop_tokens_are_the_same_bits(case: hop_pair.Case, normalisation: Normalisation) -> None:
    rows = hop_pair.hop_rows(case, normalisation)
    assert [row.same_bits for row in rows[:2]] == [True, True]


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("case", [ENDS, RINGS], ids=lambda case: case.name)
def test_so_the_model_reads_the_same_hop_tokens_and_other_walk_tokens(
    case: hop_pair.Case, normalisation: Normalisation
) -> None:
    # Where features are propagated first and projected then, bit for bit; the other way round, sums of projected rows
    # come in another order.
    a, b = (embedded(graph, normalisation, "uniform", whole=False) for graph in (case.a, case.b))
    assert torch.equal(a[:3], b[:3])  # self, hop 1, hop 2
    a, b = (embedded(graph, normalisation, "uniform", whole=True) for graph in (case.a, case.b))
    torch.testing.assert_close(a[:3], b[:3], atol=1e-6, rtol=0)
    kinds = [{tuple(row.tolist()) for row in tokens[3:].round(decimals=4)} for tokens in (a, b)]
    assert kinds[0] != kinds[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [ENDS, RINGS], ids=lambda case: case.name)
def test_laws_of_walk_tokens_differ_from_two_steps_on(case: hop_pair.Case, kind: Kind) -> None:
    for steps in (2, 3, 4):
        assert hop_pair.walk_row(case, kind, steps).tv_of_tokens > 0.1
    if kind in ("uniform", "non_backtracking"):
        assert hop_pair.walk_row(case, kind, 1).tv_of_tokens == 0


def test_the_law_of_two_steps_by_hand() -> None:
    law = hop_pair.path_law(RINGS, RINGS.a, "uniform", 2)
    sixth, third = Fraction(1, 6), Fraction(1, 3)
    assert law == {"Pv": sixth, "PR": third, "Qv": sixth, "QS": third}
    law = hop_pair.path_law(RINGS, RINGS.b, "uniform", 2)
    assert law == dict.fromkeys(("Pv", "PR", "PS", "Qv", "QR", "QS"), sixth)
    assert hop_pair.walk_row(RINGS, "uniform", 2).tv_of_tokens == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_walk_tokens_follow_their_law(kind: Kind) -> None:
    count = 20_000
    walks = sample_walks(RINGS.b, kind, count, 2, [0]).numpy()[0]
    assert isinstance(RINGS.b.x, np.ndarray)
    means = RINGS.b.x[walks[:, 1:]].mean(axis=1)
    for token, mass in hop_pair.token_law(RINGS, RINGS.b, kind, 2).items():
        share = (np.abs(means - np.array([float(part) for part in token])) < 1e-6).all(axis=1).mean()
        p = float(mass)
        assert share == pytest.approx(p, abs=5 * np.sqrt(p * (1 - p) / count))


def test_the_second_pair_differs_in_shape_and_not_only_in_letters() -> None:
    a, b = to_networkx(RINGS.a), to_networkx(RINGS.b)
    assert sorted(dict(a.degree).values()) == sorted(dict(b.degree).values())
    assert not nx.is_isomorphic(a, b)
    assert [nx.girth(graph) for graph in (a, b)] == [3, 5]
    assert nx.is_isomorphic(to_networkx(ENDS.a), to_networkx(ENDS.b))  # of this one only the letters do


def test_no_number_of_hops_tells_exchanged_ends_apart() -> None:
    """v's chance to be at R after k steps is that to be at S: the path is its own mirror image."""
    A = nx.to_numpy_array(to_networkx(ENDS.a), nodelist=range(5))
    for k in range(12):
        power = np.linalg.matrix_power(A, k)[0]
        assert power[3] == power[4]
        assert power[1] == power[2]
    found = hop_pair.study().findings
    assert [found[f"exchanged ends: first hop that differs, {each}"] for each in NORMALISATIONS] == [None] * 3


def test_the_reverse_pair() -> None:
    """Means of walks forget the order of nodes; hop-tokens keep it."""
    row = hop_pair.walk_row(ORDER, "non_backtracking", 2)
    assert (row.tv_of_tokens, row.tv_of_paths) == (0, 1)
    assert hop_pair.hop_rows(ORDER, "none")[0].largest_difference == 1
    a, b = (embedded(graph, "none", "non_backtracking") for graph in (ORDER.a, ORDER.b))
    torch.testing.assert_close(a[3:], b[3:])
    assert not torch.allclose(a[1], b[1])


def test_the_study_writes_what_it_says(tmp_path: Path) -> None:
    result = hop_pair.study()
    assert result == hop_pair.study()
    names = {path.name for path in hop_pair.write(result, tmp_path)}
    assert {"hops.csv", "walks.csv", "findings.json", "exchanged-ends.png", "triangle-or-pentagon.svg"} <= names
