"""A search lives in its rows: the same rows, the same next trial; the best is chosen on validation alone."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

import pytest

from tests.benchmark.fakes import fake_run, make_row, trial
from tokenphormer.benchmark import methods
from tokenphormer.benchmark import search as search_module
from tokenphormer.benchmark.methods import (
    COMPILE,
    FEATURELESS,
    FIRST_TRIALS,
    METHODS,
    STOPPING,
    complete,
    current_rows,
    entry,
    unnamed_values,
)
from tokenphormer.benchmark.rows import Row
from tokenphormer.benchmark.running import Job, values_tuple
from tokenphormer.benchmark.search import (
    L2_TRIALS,
    RANDOM_TRIALS,
    Search,
    _ordered,
    best_trial,
    best_values,
    trials_by_number,
    values_of,
)
from tokenphormer.errors import InputError
from tokenphormer.training.presets import RECIPES
from tokenphormer.training.settings import Config

BUDGET = RANDOM_TRIALS + 6  # some trials that are random, some that have learned


def finished(model: str, number: int, values: dict[str, Any], **changes: Any) -> Row:
    """The row of a trial as a file gives it back: tuples have become lists."""
    job = Job("trial", model, "cora", "stratified", 100, values_tuple(values), 0, "main", number)
    row: Row = json.loads(json.dumps(fake_run(job, None) | changes))  # type: ignore[arg-type]
    return row


def searched(model: str, budget: int = BUDGET) -> list[Row]:
    """A search in one go."""
    search, rows = Search(model, "cora", []), []
    for number in range(budget):
        rows.append(finished(model, number, search.ask(number)))
        search.tell(rows[-1])
    return rows


@pytest.mark.parametrize("model", METHODS)
def test_the_first_trial_is_the_defaults_and_the_others_lie_in_the_space(model: str) -> None:
    search = Search(model, "cora", [])
    assert search.ask(0) == entry(model).first
    starts = len(entry(model).starts)
    for number in range(1, starts + 1):
        assert search.ask(number) == entry(model).starts[number - 1]
    for number in (starts + 1, starts + 2, max(starts + 3, FIRST_TRIALS + len(L2_TRIALS))):
        values = search.ask(number)
        space = {key: choices for key, choices in entry(model).space.items() if key != "l2" or number >= FIRST_TRIALS}
        assert values.keys() == space.keys()
        assert all(values[key] in choices for key, choices in space.items())


@pytest.mark.parametrize("model", [name for name in METHODS if name != "tokenphormer+"])  # its recipes have their own
def test_l2_is_tried_on_the_best_of_the_first_trials(model: str) -> None:
    rows = searched(model, FIRST_TRIALS)
    rows = [row | {"val_accuracy": 0.9 if row["trial"] == 3 else 0.1} for row in rows]
    for place, l2 in enumerate(L2_TRIALS):
        asked = Search(model, "cora", rows).ask(FIRST_TRIALS + place)
        if model in FEATURELESS:
            assert asked.keys() == entry(model).space.keys()
        else:
            best = values_of(rows[3])
            assert asked == best | {"l2": 0.0 if l2 == best.get("l2") else l2}, "not what was tried before"
            rows.append(finished(model, FIRST_TRIALS + place, asked, val_accuracy=0.95))
    assert len({row["config_hash"] for row in rows}) == len(rows)
    if not entry(model).starts:
        assert all("l2" not in row["config"] for row in rows[:FIRST_TRIALS])


def test_a_search_knows_that_the_first_trials_had_no_l2() -> None:
    search, rows = Search("mlp", "cora", []), searched("mlp", FIRST_TRIALS)
    inside = [search._places(row["config"]) for row in rows[1:]]
    assert all(places is not None and places["l2"] == 0 for places in inside)


def test_the_starts_of_tokenphormer_plus_are_its_recipes() -> None:
    method = entry("tokenphormer+")
    found = [complete(method, values) for values in (method.first, *method.starts)]
    for values, recipe in zip(found, RECIPES.values(), strict=True):
        given = Config().replace({key: value for key, value in values.items() if key not in STOPPING | COMPILE})
        assert given == Config().replace({key: value for key, value in recipe.items() if key not in STOPPING | COMPILE})


def test_a_recipe_may_change_without_its_rows_becoming_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first: what all rows name stays, so those of before keep their settings and their hash."""
    before = entry("tokenphormer+")
    first, *others = RECIPES
    changes = {"num_hops": 5, "dropout": 0.3}
    changed = RECIPES[first] | changes
    monkeypatch.setattr(methods, "RECIPES", {first: changed} | {name: RECIPES[name] for name in others})
    anew = cache(entry.__wrapped__)
    monkeypatch.setattr(methods, "entry", anew)
    monkeypatch.setattr(search_module, "entry", anew)
    after = anew("tokenphormer+")
    assert after.defaults == before.defaults
    assert after.starts == before.starts
    assert after.first == before.first | changes
    assert Search("tokenphormer+", "cora", []).ask(0) == after.first
    assert not set(after.first) & set(after.fixed)
    of_before = finished("tokenphormer+", 0, before.first)
    of_now = finished("tokenphormer+", 0, after.first)
    monkeypatch.setattr(methods, "_fixed_trials", methods._fixed_trials.__wrapped__)
    assert current_rows([of_before, of_now]) == [of_now], "the number of one is that of another by now"
    assert current_rows([of_before | {"kind": "final"}]) == [of_before | {"kind": "final"}]


@pytest.mark.parametrize("model", ["tokenphormer", "mlp"])
def test_built_again_from_rows_a_search_goes_on_the_same_way(model: str) -> None:
    rows = searched(model)
    for number in range(BUDGET):
        again = Search(model, "cora", list(reversed(rows[:number])))  # in whatever order files are read
        assert finished(model, number, again.ask(number))["config"] == rows[number]["config"]


@pytest.mark.parametrize("model", METHODS)
def test_what_is_ready_is_what_one_after_the_other_would_have_been(model: str) -> None:
    """The first trials whatever the others give, those with `l2` once the first are over, later ones in their turn."""
    rows = searched(model, FIRST_TRIALS + len(L2_TRIALS) + 2)
    for over in (0, 1, FIRST_TRIALS - 1, FIRST_TRIALS, FIRST_TRIALS + 1, len(rows) - 1):
        search = Search(model, "cora", rows[:over])
        ready = [number for number in range(over, len(rows)) if search.ready(number)]
        assert over in ready, "it would wait for ever"
        last = max(FIRST_TRIALS - 1, len(entry(model).starts), over)
        if over >= FIRST_TRIALS and "l2" in search.space:
            last = max(last, FIRST_TRIALS + len(L2_TRIALS) - 1)
        assert ready == list(range(over, last + 1))
        for number in ready:
            assert finished(model, number, search.ask(number))["config"] == rows[number]["config"]


def test_a_search_learns() -> None:
    """Where one value is always good and the others bad, the search comes to prefer it."""
    search, rows = Search("mlp", "cora", []), []
    for number in range(40):
        values = search.ask(number)
        rows.append(finished("mlp", number, values, val_accuracy=0.9 if values.get("dropout") == 0.8 else 0.1))
        search.tell(rows[-1])
    late = [row["config"]["dropout"] for row in rows[20:]]
    assert late.count(0.8) >= 0.5 * len(late)  # at random, a quarter


def test_what_has_learned_tries_l2_too() -> None:
    """The first trials leave it at 0, those on the best have three values of their own; later ones may take any."""
    search = Search("mlp", "cora", searched("mlp", FIRST_TRIALS + len(L2_TRIALS)))
    found = {search.ask(number)["l2"] for number in range(FIRST_TRIALS + len(L2_TRIALS), 16)}
    assert len(found) > 1


@pytest.mark.parametrize(
    ("choices", "ordered"),
    [
        ((1, 2, 4), True),
        ((0.0, 5e-4, 5e-3, 2e-2), True),
        ((1, 4, 2), False),
        ((1, 2), False),  # two are neighbours however they are called
        ((False, True, False), False),
        (("mean", "sum", "max"), False),
        ((1, 2, "auto"), False),
        (((1.0, 0.0), (0.0, 1.0), (0.5, 0.5)), False),
    ],
)
def test_numbers_in_rising_order_lie_beside_one_another(choices: tuple[object, ...], ordered: bool) -> None:
    assert _ordered(choices) == ordered


def test_searches_differ_between_methods_and_datasets() -> None:
    asked = {
        Search(model, name, []).ask(1)["learning_rate"]
        for model in ("gcn", "mlp")
        for name in ("cora", "photo", "dblp")
    }
    assert len(asked) > 1
    plus, plain = (Search(model, "cora", []) for model in ("tokenphormer+", "tokenphormer"))
    shared = plain.space.keys() & plus.space.keys() - {"num_walks"}
    assert any(plain.ask(9)[key] != plus.ask(9)[key] for key in shared)


def test_values_are_not_tried_twice_while_there_are_others() -> None:
    rows = searched("label_propagation")  # 20 points in all
    inside = [json.dumps(row["config"], sort_keys=True) for row in rows[1:]]
    assert len(set(inside)) == len(inside)


def test_a_draw_that_is_the_defaults_but_for_l2_is_drawn_anew() -> None:
    """The first trials have no `l2`: JKNet's fourth draw on Cornell is its defaults with one."""
    search, found = Search("jknet", "cornell", []), []
    for number in range(FIRST_TRIALS):
        values = search.ask(number)
        found.append(unnamed_values("jknet") | complete(entry("jknet"), values))
        search.tell(trial(number, model="jknet", dataset="cornell", values=values))
    assert all(settings not in found[:number] for number, settings in enumerate(found))


def test_a_space_smaller_than_the_budget_is_no_trap() -> None:
    search = Search("label_propagation", "cora", [])
    search.space = {"alpha": (0.5, 0.8)}
    search._distributions = {"alpha": search._distributions["alpha"].__class__(0, 1)}
    for number in range(6):
        values = search.ask(number)
        assert number == 0 or values["alpha"] in (0.5, 0.8)
        search.tell(trial(number, model="label_propagation", values=values))


@pytest.mark.parametrize("model", METHODS)
def test_settings_that_a_trial_does_not_name_have_their_own_defaults(model: str) -> None:
    search = Search(model, "cora", [])
    named = finished(model, 0, {})["config"] | {key: choices[-1] for key, choices in entry(model).space.items()}
    assert search._places(named) == {key: len(choices) - 1 for key, choices in entry(model).space.items()}
    standing = unnamed_values(model) | dict(entry(model).defaults)
    inside = all(standing[key] in choices for key, choices in entry(model).space.items())
    places = search._places(finished(model, 0, {})["config"])
    assert (places is not None) == inside
    if places is not None:
        assert {key: entry(model).space[key][place] for key, place in places.items()} == {
            key: standing[key] for key in entry(model).space
        }


def test_most_methods_learn_from_their_defaults() -> None:
    inside = [m for m in METHODS if Search(m, "cora", [])._places(finished(m, 0, {})["config"]) is not None]
    assert len(inside) > len(METHODS) / 2


def test_values_outside_of_the_space_teach_nothing() -> None:
    inside = searched("mlp", 4)
    strange = [
        trial(4, values=inside[1]["config"] | {"dropout": 0.123}),
        trial(4, values={key: value for key, value in inside[1]["config"].items() if key != "dropout"}),
    ]
    for row in strange:
        assert Search("mlp", "cora", [*inside, row]).ask(5) == Search("mlp", "cora", inside).ask(5)


def test_trials_after_the_one_asked_for_change_nothing() -> None:
    rows = searched("mlp")
    assert Search("mlp", "cora", rows).ask(10) == Search("mlp", "cora", rows[:10]).ask(10)


def test_failures_count_as_the_worst() -> None:
    rows = searched("mlp", 12)
    failed = [row | {"status": "failed", "reason": "x"} if row["trial"] == 5 else row for row in rows]
    without = [
        {k: v for k, v in row.items() if k != "val_accuracy"} if row["status"] == "failed" else row for row in failed
    ]
    worst = [row | {"val_accuracy": 0.0} if row["trial"] == 5 else row for row in rows]
    best = [row | {"val_accuracy": 1.0} if row["trial"] == 5 else row for row in rows]
    asked = [[Search("mlp", "cora", some).ask(n) for n in range(12, 20)] for some in (without, worst, best)]
    assert asked[0] == asked[1]
    assert asked[1] != asked[2]


# ---------------------------------------------------------------- the best


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        ([(0.5, 1.0), (0.6, 2.0), (0.4, 0.1)], 1),
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.95)], 1),
        ([(0.5, 1.0), (0.5, 1.0)], 0),
        ([(0.5, None), (0.5, None)], 0),
        ([(0.5, None), (0.7, None)], 1),
    ],
)
def test_by_accuracy_then_loss_then_number(trials: list[tuple[float, float | None]], best: int) -> None:
    rows = [trial(n, val_accuracy=accuracy, val_loss=loss) for n, (accuracy, loss) in enumerate(trials)]
    for order in (rows, rows[::-1]):
        found = best_trial(order, len(rows))
        assert found is not None
        assert found["trial"] == best


def test_only_the_first_trials_of_the_budget_count() -> None:
    rows = [trial(n, val_accuracy=0.1 * n, values={"dropout": (0.2, 0.5, 0.7)[n]}) for n in range(3)]
    assert best_values(rows, 2) == {"dropout": 0.5}
    assert best_values(rows, 3) == {"dropout": 0.7}
    assert best_values(rows, 0) is None
    assert best_values([make_row(trial=-1, val_accuracy=1.0)], 3) is None


def test_what_did_not_run_is_not_the_best() -> None:
    rows = [trial(0, val_accuracy=0.1), trial(1, status="failed", val_accuracy=0.9), trial(2, status="did not run")]
    assert best_values(rows, 3) == {}
    assert best_values(rows[1:], 3) is None


def test_values_of_the_best_are_what_differs_from_the_defaults() -> None:
    values = {"walk_ratios": (1.0, 0.0, 0.0, 0.0), "hidden_channels": 128, "dropout": 0.7}
    (row,) = [finished("tokenphormer", 0, values)]
    assert best_values([row], 1) == {"walk_ratios": [1.0, 0.0, 0.0, 0.0], "dropout": 0.7}


def test_merging_gives_no_method_more_than_its_budget() -> None:
    late = [trial(n, time=9.0, val_accuracy=0.9, values={"dropout": 0.7}) for n in range(2)]
    early = [trial(n, time=3.0, val_accuracy=0.5) for n in range(2)]
    broken = [trial(0, time=1.0, status="did not run", values={"dropout": 0.2})]
    for rows in (early + late + broken, broken + late + early):
        assert {n: row["time"] for n, row in trials_by_number(rows).items()} == {0: 3.0, 1: 3.0}
        assert best_values(rows, 2) == {}


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"pip install 'tokenphormer\[benchmark\]'"):
        Search("mlp", "cora", [])


def test_a_trial_that_failed_on_one_of_its_splits_did_not_run() -> None:
    good = [trial(0, split=split, val_accuracy=0.4, val_loss=loss) for split, loss in ((100, 1.0), (101, 2.0))]
    half = [
        trial(1, val_accuracy=0.9, values={"dropout": 0.7}),
        trial(1, split=101, status="failed", values={"dropout": 0.7}),
    ]
    assert trials_by_number(good + half, 2)[1]["status"] == "failed"
    assert best_values(good + half, 2, splits=2) == {}
    assert best_values(good + half, 2, splits=1) == {"dropout": 0.7}
    assert trials_by_number(good, 2)[0]["val_loss"] == 1.5
    assert trials_by_number(half[:1], 2) == {}


def test_equal_means_over_splits_are_equal() -> None:
    """In floating point 0.1 + 0.2 + 0.3 is more than 0.3 + 0.3 + 0: the loss decides, not the last bit."""
    rows = [
        trial(number, split=split, val_accuracy=accuracy, val_loss=loss, values={"dropout": dropout})
        for number, (loss, dropout, accuracies) in enumerate([(2.0, 0.2, (0.1, 0.2, 0.3)), (1.0, 0.7, (0.3, 0.3, 0.0))])
        for split, accuracy in enumerate(accuracies, start=100)
    ]
    assert best_values(rows, 2, splits=3) == {"dropout": 0.7}
    for row in rows[:3]:
        row["val_accuracy"] += 1e-4  # less than a node, but no rounding error
    assert best_values(rows, 2, splits=3) == {"dropout": 0.2}


def test_a_trial_is_of_one_set_of_values_on_all_its_splits() -> None:
    """Of machines that tried other values under one number, the splits of one do not fill the gaps of another."""
    ours = trial(0, time=3.0, val_accuracy=0.5)
    other = [trial(0, split=split, time=9.0, val_accuracy=0.9, values={"dropout": 0.7}) for split in (100, 101)]
    assert trials_by_number([ours, *other], 2) == {}
    same = trial(0, split=101, time=20.0, val_accuracy=0.3)
    assert trials_by_number([*other, same, ours], 2)[0]["val_accuracy"] == pytest.approx(0.4)
