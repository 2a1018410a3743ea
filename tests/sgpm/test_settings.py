"""Settings of SGPM: what they refuse, and that the paper's are the defaults."""

from __future__ import annotations

from typing import Any

import pytest

from tokenphormer.errors import InputError
from tokenphormer.sgpm import SMALL, SGPMSettings

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"train_sentences": 0}, r"train_sentences: 0; expected at least 1"),
    ({"val_sentences": 0}, r"val_sentences: 0; expected at least 1"),
    ({"train_sentences": 1_000_001}, r"train_sentences: 1000001; expected at most 1000000"),
    ({"epochs": 2**60}, r"epochs: \d+; expected at most 1000000"),
    ({"hidden_channels": 10, "num_heads": 4}, r"hidden_channels: 10; expected a multiple of num_heads=4"),
    ({"mask_share": 0.0}, r"mask_share: 0.0; expected a share between 0 and 1"),
    ({"mask_share": 1.0}, r"mask_share: 1.0; expected a share between 0 and 1"),
    ({"dropout": 1.0}, r"dropout: 1.0; expected a share from 0 to below 1"),
    ({"unknown_share": -0.1}, r"unknown_share: -0.1; expected a share from 0"),
    ({"mean_length": -1.0}, r"mean_length: -1.0; expected a number of at least 0"),
    ({"mean_length": float("nan")}, r"mean_length: nan; expected a number of at least 0"),
    ({"mean_length": 10_001.0}, r"mean_length: 10001.0; expected at most 10000 steps"),
    ({"length_deviation": float("inf")}, r"length_deviation: inf; expected a number of at least 0"),
    ({"centrality": "beauty"}, r"centrality: 'beauty'; expected one of degree, pagerank, core"),
    ({"precision": "float16"}, r"precision: 'float16'; expected one of"),
    ({"patience": 0}, r"patience: 0; expected at least 1"),
    (
        {"use_tokens": False, "use_features": False, "use_centrality": False},
        r"use_centrality: False; expected at least one",
    ),
    ({"seed": 1.5}, r"seed: 1.5; expected a value of type int"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda case: str(case)[:40])
def test_what_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SGPMSettings(**values)


def test_the_defaults_are_those_of_the_paper_and_its_authors() -> None:
    s = SGPMSettings()
    assert (s.train_sentences, s.val_sentences, s.length_deviation) == (100, 20, 1.0)  # the paper
    assert s.mean_length == 0  # the radius
    assert (s.num_layers, s.hidden_channels, s.num_heads, s.epochs) == (4, 768, 12, 6)  # the authors
    assert (s.mask_share, s.fresh_sentences, s.centrality) == (0.15, False, "degree")
    assert s.use_tokens
    assert s.use_positions
    assert s.use_features
    assert s.use_centrality


def test_the_small_size_is_one() -> None:
    small = SGPMSettings().replace(SMALL)
    assert small.hidden_channels < SGPMSettings().hidden_channels
    assert all(getattr(SGPMSettings(), name) != value for name, value in SMALL.items())  # each line says something


def test_texts_of_the_command_line() -> None:
    values = SGPMSettings.parse_overrides(["mean_length=10", "centrality=core", "use_positions=false"])
    s = SGPMSettings().replace(values)
    assert (s.mean_length, s.centrality, s.use_positions) == (10.0, "core", False)
    with pytest.raises(InputError, match="'mask_rate' is no setting; nearest: mask_share"):
        SGPMSettings.parse_overrides(["mask_rate=0.2"])
