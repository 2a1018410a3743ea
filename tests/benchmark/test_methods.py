"""Every method by name: one stopping rule, one choice about features, and no setting that it has not."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.benchmark.fakes import CPU, make_row
from tests.tiny import tiny_graph
from tokenphormer.baselines import load_baseline
from tokenphormer.benchmark import methods
from tokenphormer.benchmark.methods import METHODS, STOPPING, build, complete, current_rows, entry, of_this_version
from tokenphormer.benchmark.running import blind
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.training.loop import Method
from tokenphormer.training.settings import TrainingSettings

GRAPH = tiny_graph()
TRAIN = np.arange(30)


def build_tiny(name: str, **values: Any) -> tuple[Method, TrainingSettings]:
    return build(name, blind(GRAPH), GRAPH.num_classes, TRAIN, GRAPH.y[TRAIN], values, CPU, seed=3)


def test_the_methods_are_the_papers_and_the_yardsticks() -> None:
    assert len(METHODS) == 2 + 17 + 5
    assert len({entry(name).title for name in METHODS}) == len(METHODS)
    assert all(entry(name).paper.startswith("https://") for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_stopping_rule_is_the_same_for_all_and_no_search_changes_it(name: str) -> None:
    method = entry(name)
    assert {key: method.defaults[key] for key in STOPPING} == STOPPING
    assert not STOPPING.keys() & method.space.keys()
    assert not {"seed", "class_weights", "gradient_clip"} & method.space.keys()


@pytest.mark.parametrize("name", METHODS)
def test_features_can_be_chosen_the_same_way_by_all(name: str) -> None:
    chosen = entry(name).space.get("normalise_features")
    assert chosen == (None if name == "label_propagation" else (False, True))


@pytest.mark.parametrize("name", METHODS)
def test_every_value_of_every_space_is_read(name: str) -> None:
    """Each choice alone, beside the defaults: it must reach the settings of the method or of its training."""
    for key, choices in entry(name).space.items():
        assert len(choices) == len(set(choices)) > 1
        for value in choices:
            config = complete(entry(name), {key: value})
            assert config[key] == value
            if name.startswith("tokenphormer"):
                assert getattr(methods.Config().replace(config), key) == value
            elif key in TrainingSettings.__dataclass_fields__:
                _, training = build_tiny("label_propagation", **{key: value})
                assert getattr(training, key) == value
            elif key != "normalise_features":
                settings = load_baseline(name).settings_class(**{key: value})
                assert getattr(settings, key) == value


def test_features_are_normalised_when_a_search_says_so() -> None:
    plain: Any = build_tiny("mlp")[0]
    scaled: Any = build_tiny("mlp", normalise_features=True)[0]
    assert not np.allclose(plain.task.x.abs().sum(dim=1), 1)
    assert np.allclose(scaled.task.x.abs().sum(dim=1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["tokenphormer", "mlp"])
def test_seed_and_settings_arrive(name: str) -> None:
    method, training = build_tiny(name, weight_decay=0.25, hidden_channels=16)
    assert (training.seed, training.weight_decay, training.max_epochs) == (3, 0.25, STOPPING["max_epochs"])
    assert any(16 in parameter.shape for parameter in method.module.parameters())


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("gnc", "nearest: gcn"),
        ("tokenformer", "nearest: tokenphormer"),
        ("graph_sage", "nearest: .*graphgps"),
        ("zzz", r"there are: tokenphormer, tokenphormer\+, .*mlp"),
    ],
)
def test_an_unknown_method_is_offered_others(name: str, offered: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' is no method of the benchmark; {offered}"):
        entry(name)


@pytest.mark.parametrize(("name", "key"), [("mlp", "drop_out"), ("tokenphormer", "drop_out"), ("gcn", "num_walks")])
def test_a_setting_that_the_method_has_not(name: str, key: str) -> None:
    with pytest.raises(InputError, match=f"{name}: was given '{key}', a setting it has not; nearest: "):
        complete(entry(name), {key: 0.5})


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("space", MappingProxyType({"hiden_channels": (1, 2)}), "its search space names"),
        ("starts", ({}, {"hiden_channels": 2}), "a trial of its search names"),
    ],
)
def test_a_search_with_a_key_the_model_has_not(
    where: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistyped = type("Mistyped", (load_baseline("mlp"),), {where: value})
    monkeypatch.setattr(methods, "load_baseline", lambda name: mistyped)
    entry.cache_clear()
    with pytest.raises(InputError, match=rf"mlp: {said} 'hiden_channels', .* nearest: hidden_channels"):
        entry("mlp")
    entry.cache_clear()


def test_what_needs_more_memory_than_there_is_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_baseline("mlp"), "bytes_needed", classmethod(lambda cls, *about: 2**60))
    with pytest.raises(ResourceError, match=r"needs about 1073741824\.0 GiB, there are \d+\.\d"):
        build_tiny("mlp")


def test_rows_of_other_defaults_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_row(model="mlp", values={"dropout": 0.2})
    assert of_this_version(row)
    assert not of_this_version(row | {"config": {**row["config"], "gone": 1}})
    assert not of_this_version(row | {"model": "gone"})
    changed = dataclasses.replace(entry("mlp"), defaults={**entry("mlp").defaults, "label_smoothing": 0.1})
    monkeypatch.setattr(methods, "entry", lambda name: changed)
    assert not of_this_version(row)


@pytest.mark.parametrize(("key", "counts"), [("patience", False), ("batch_size", False), ("dropout", True)])
def test_rows_of_another_stopping_rule_do_not_count(key: str, counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a search chooses may differ from the default of now; what none chooses is the same in all rows."""
    row = make_row(model="mlp", values={"dropout": 0.2})
    changed = dataclasses.replace(entry("mlp"), defaults={**entry("mlp").defaults, key: 20})
    monkeypatch.setattr(methods, "entry", lambda name: changed)
    assert of_this_version(row) is counts


def test_fixed_trials_keep_their_rows_when_their_order_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is known by its settings; one that is none any more does not count, a later trial keeps its number."""
    starts = ({"dropout": 0.2}, {"dropout": 0.3})
    method = dataclasses.replace(entry("mlp"), starts=starts)
    monkeypatch.setattr(methods, "entry", lambda name: method)
    monkeypatch.setattr(methods, "_fixed_trials", methods._fixed_trials.__wrapped__)
    rows = [
        make_row(model="mlp", values=values, kind="trial", trial=number)
        for number, values in enumerate([{"dropout": 0.3}, {"dropout": 0.7}, {"dropout": 0.2}, {"dropout": 0.1}])
    ]
    final = make_row(model="mlp", values={"dropout": 0.7}, kind="final")
    found = current_rows([*rows, final, rows[0] | {"config_hash": "another"}])
    assert [(row["trial"], row["config"]["dropout"]) for row in found[:-1]] == [(2, 0.3), (1, 0.2), (3, 0.1)]
    assert found[-1] == final
    assert rows[0]["trial"] == 0, "what was given is left alone"


def test_methods_without_fixed_trials_keep_all_numbers() -> None:
    rows = [make_row(model="mlp", values={"dropout": 0.2}, kind="trial", trial=number) for number in (0, 5)]
    assert current_rows(rows) == rows
