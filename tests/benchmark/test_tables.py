"""Tables: numbers worked out by hand, one budget for all, every cell marked, nothing mixed that does not fit."""

from __future__ import annotations

import csv
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from tests.benchmark.fakes import make_row, trial
from tokenphormer.benchmark import study_tables
from tokenphormer.benchmark.grid import STUDY
from tokenphormer.benchmark.methods import FEATURELESS, FIRST_TRIALS, METHODS, complete, current_rows, entry
from tokenphormer.benchmark.page import html_page
from tokenphormer.benchmark.rows import Row, config_hash, read_rows
from tokenphormer.benchmark.search import L2_TRIALS, Search, trials_by_number
from tokenphormer.benchmark.study_tables import write_studies
from tokenphormer.benchmark.tables import (
    CellResult,
    cell_results,
    check_ours,
    common_budget,
    common_search_splits,
    csv_text,
    difference_text,
    judged_alike,
    latex,
    main_datasets,
    markdown,
    mean_interval,
    notes,
    paired_difference,
    write_tables,
)
from tokenphormer.benchmark.variants import DIAMETER, variants
from tokenphormer.errors import InputError

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

METHODS_HERE = ("tokenphormer", "gcn", "mlp", "jknet")


def cell_rows(model: str, accuracies: list[float], trials: int = 2, **changes: Any) -> list[Row]:
    """A search of `trials` trials, the last the best, and one final row a split with these test accuracies."""
    space = [{"dropout": value} for value in (0.2, 0.5, 0.7)]
    tried = [trial(n, model=model, val_accuracy=0.1 * n, values=space[n], **changes) for n in range(trials)]
    finals = [
        make_row(model=model, split=n, test_accuracy=value, values=space[trials - 1], **changes)
        for n, value in enumerate(accuracies)
    ]
    return tried + finals


def one(cells: list[CellResult], method: str, column: str = "cora") -> CellResult:
    (found,) = [cell for cell in cells if (cell.method, cell.column) == (method, column)]
    return found


@pytest.fixture
def rows() -> list[Row]:
    """Tokenphormer and GCN on Cora, an MLP that did not run."""
    broken = [trial(n, model="mlp", status="did not run", reason="needs about 99 GiB") for n in range(2)]
    ours = cell_rows("tokenphormer", [0.80, 0.90, 0.85], seconds=4.0, peak_memory_bytes=5_000_000, parameters=11)
    ours[-1] |= {"seconds": 10.0, "peak_memory_bytes": 9_000_000}
    return [*ours, *cell_rows("gcn", [0.70, 0.86, 0.90]), *broken]


# ---------------------------------------------------------------- numbers


def test_mean_std_and_costs_by_hand(rows: list[Row]) -> None:
    cell = one(cell_results(rows, ("cora",), METHODS_HERE), "tokenphormer")
    assert cell.status == "re-run"
    assert cell.mean == pytest.approx((80 + 90 + 85) / 3)
    assert cell.std == pytest.approx(5.0)  # deviations −5, 5, 0: √(50 / 2)
    assert (cell.n, cell.trials, cell.parameters, cell.protocol) == (3, 2, 11, "stratified")
    assert cell.seconds == pytest.approx((4 + 4 + 10) / 3)
    assert cell.preprocessing_seconds == pytest.approx(0.5)
    assert cell.memory_mb == pytest.approx(9.0)
    assert cell.paper == (91.20, 0.47)
    assert not cell.differences


def test_the_paired_difference_by_hand(rows: list[Row]) -> None:
    gap = one(cell_results(rows, ("cora",), METHODS_HERE), "gcn").differences["tokenphormer"]
    assert gap is not None
    # Differences −10, −4, 5: mean −3; deviations −7, −1, 8; √(114 / 2 / 3) = 4.3589; Student's t for 2 is 4.30265.
    assert gap[0] == pytest.approx(-3.0)
    assert gap[1] == pytest.approx(-3 - 4.302653 * 4.358899, abs=1e-4)
    assert gap[2] == pytest.approx(-3 + 4.302653 * 4.358899, abs=1e-4)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_paired_difference_is_scipys(count: int) -> None:
    rng = np.random.default_rng(count)
    mine, theirs = rng.normal(80, 3, count), rng.normal(81, 3, count)
    found = paired_difference(dict(enumerate(mine)), dict(enumerate(theirs)))
    interval = ttest_rel(mine, theirs).confidence_interval(0.95)
    assert found == pytest.approx(((mine - theirs).mean(), interval.low, interval.high))


def test_the_interval_of_a_mean_is_scipys() -> None:
    values = [80.0, 90.0, 85.0, 81.0]
    interval = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx((84.0, interval.low, interval.high))
    assert mean_interval([1.0]) is None


def test_only_splits_that_both_ran_on_are_paired() -> None:
    found = paired_difference({0: 1.0, 1: 2.0, 5: 99.0}, {1: 1.0, 0: 1.0, 7: 0.0})
    assert found is not None
    assert found[0] == pytest.approx(0.5)
    assert paired_difference({0: 1.0}, {0: 1.0}) is None
    assert paired_difference({0: 1.0, 1: 1.0}, {2: 1.0, 3: 1.0}) is None


def test_one_split_has_no_spread_and_no_interval() -> None:
    cells = cell_results(cell_rows("gcn", [0.7]) + cell_rows("tokenphormer", [0.8]), ("cora",), METHODS_HERE)
    assert (one(cells, "gcn").std, one(cells, "gcn").differences) == (None, {})
    assert "| GCN | 70.00 (1) <sup>re-run</sup>; *87.33 ± 0.38* <sup>from the paper</sup> |" in markdown(cells)


def test_without_the_reference_there_are_no_differences() -> None:
    cells = cell_results(cell_rows("gcn", [0.7, 0.8]), ("cora",), ("gcn", "mlp"))
    assert one(cells, "gcn").differences == {}
    assert "Paired" not in markdown(cells) + latex(cells)


# ---------------------------------------------------------------- the budget


def test_every_method_is_held_to_the_budget_that_all_have_had() -> None:
    """GCN was searched longer, and its third trial was better; beside Tokenphormer's two it does not count."""
    ours = cell_rows("tokenphormer", [0.8, 0.9])
    theirs = cell_rows("gcn", [0.7, 0.7]) + cell_rows("gcn", [0.95, 0.95], trials=3)
    cells = cell_results(ours + theirs, ("cora",), METHODS_HERE)
    assert (one(cells, "gcn").mean, one(cells, "gcn").trials) == (pytest.approx(70.0), 2)
    cells = cell_results(ours + theirs, ("cora",), METHODS_HERE, budget=3)
    assert (one(cells, "gcn").mean, one(cells, "gcn").trials) == (pytest.approx(95.0), 3)
    assert one(cells, "tokenphormer").trials == 2
    assert notes(cells)[0] == (
        "cora: stratified splits; search of 3 trials a method, on validation of a split that is not reported"
    )
    assert "Tokenphormer on cora: 2 trials alone" in notes(cells)


def test_the_common_budget_counts_from_the_first_trial_on() -> None:
    def tried(model: str, *numbers: int) -> list[Row]:
        return [make_row(model=model), *(trial(n, model=model) for n in numbers)]

    assert common_budget([]) == 0
    assert common_budget(tried("mlp", 0, 1, 2)) == 3
    assert common_budget(tried("mlp", 0, 1, 2) + tried("gcn", 0, 1, 3)) == 2
    assert common_budget(tried("mlp", 0, 1, 2) + tried("gcn")) == 0
    only_trials = [trial(0, model="gat")]  # a search under way holds nobody back
    assert common_budget(tried("mlp", 0, 1, 2) + only_trials) == 3


@pytest.mark.parametrize(("chosen", "lucky"), [(0.54, True), (0.52, False), (0.3, False)])
def test_a_search_that_saw_more_than_the_final_runs_give_was_lucky(chosen: float, lucky: bool) -> None:
    best = trial(0, val_accuracy=chosen)
    rows = [best, make_row(split=0, val_accuracy=0.4), make_row(split=1, val_accuracy=0.6)]
    (cell,) = cells = cell_results(rows, ("cora",), ("mlp",))
    assert cell.luck == pytest.approx(100 * (chosen - 0.5))
    assert cell.lucky is lucky
    assert ("<sup>re-run, lucky search</sup>" in markdown(cells)) is lucky
    told = "MLP on cora: 4.0 points more on validation nodes in the trial that was chosen than in the final runs"
    assert (told in notes(cells)) is lucky


@pytest.mark.parametrize(("had", "words"), [(2, "2 trials"), (1, "1 trial")])
def test_a_few_slow_methods_hold_nobody_back(had: int, words: str) -> None:
    """Most methods have had three trials; the one that has had fewer is judged by those, and marked."""
    rows = [row for model in ("tokenphormer", "mlp", "sage") for row in cell_rows(model, [0.8, 0.9], trials=3)]
    rows += cell_rows("gcn", [0.7, 0.72], trials=had)
    assert common_budget(rows) == 3
    cells = cell_results(rows, ("cora",), ("tokenphormer", "mlp", "sage", "gcn"))
    slow, others = cells[-1], cells[:-1]
    assert (slow.mean, slow.trials, slow.short) == (pytest.approx(71.0), had, words)
    assert [(cell.trials, cell.short) for cell in others] == [(3, "")] * 3
    assert f"<sup>re-run, {words}</sup>" in markdown(cells)
    assert "search of 3 trials" in notes(cells)[0]
    assert notes(cells)[1] == f"GCN on cora: {words} alone"
    rows += cell_rows("gat", [0.7, 0.72], trials=2)  # three of five are not most
    assert common_budget(rows) == 2


def test_a_cell_is_the_same_whichever_methods_are_shown_beside_it() -> None:
    """Beside the slow one alone, GCN's cell would be of a single trial, and its final runs of another."""
    rows = [row for model in ("tokenphormer", "mlp", "gcn") for row in cell_rows(model, [0.8, 0.9], trials=3)]
    rows += cell_rows("jknet", [0.7, 0.72], trials=1)
    rows += cell_rows("mlp", [0.7, 0.72], trials=1, protocol="two-stage")
    whole = cell_results(rows, ("cora",), METHODS_HERE)
    some = cell_results(rows, ("cora",), ("gcn", "jknet"))
    assert [cell.column for cell in some] == ["cora", "cora"]  # MLP's column is not shown
    for method, trials in (("gcn", 3), ("jknet", 1)):
        here, there = one(some, method), one(whole, method)
        assert (here.mean, here.trials, here.short) == (there.mean, there.trials, there.short)
        assert (here.n, here.trials) == (2, trials)


def test_trials_judged_on_held_out_nodes_count_once_most_methods_have_them() -> None:
    """The held-out trials prefer the first settings, the others the last; each has final rows."""
    models = ("tokenphormer", "mlp", "sage", "gcn")
    rows = [row for model in models for row in cell_rows(model, [0.8, 0.9])]
    first: dict[str, Any] = {"values": {"dropout": 0.2}}
    for done, model in enumerate(models[:3], start=1):
        rows += [make_row(model=model, split=n, test_accuracy=0.6, **first) for n in (0, 1)]
        rows.append(trial(0, model=model, val_accuracy=0.5, judged="held-out", **first))
        half = cell_results(rows, ("cora",), models)
        assert [cell.mean for cell in half] == [pytest.approx(85.0)] * 4, "a search under way counts for nothing"
        assert "did not stop" not in notes(half)[0]
        rows.append(trial(1, model=model, val_accuracy=0.1, judged="held-out", values={"dropout": 0.5}))
        cells = cell_results(rows, ("cora",), models)
        if done < 3:
            assert [cell.mean for cell in cells] == [pytest.approx(85.0)] * 4
    assert [cell.mean for cell in cells] == [pytest.approx(60.0)] * 3 + [None]
    assert notes(cells)[0] == (
        "cora: stratified splits; search of 2 trials a method, on validation of a split that is not reported, on those "
        "of its nodes that did not stop the training"
    )
    assert notes(cells)[1] == (
        "GCN on cora, from the paper: of its search there is no trial, or none that was judged as most are here"
    )
    rows += [
        trial(n, model=model, split=101, val_accuracy=0.1 * n, values={"dropout": (0.2, 0.5)[n]})
        for model in models
        for n in (0, 1)
    ]
    cells = cell_results(rows, ("cora",), models)
    assert [cell.mean for cell in cells] == [pytest.approx(85.0)] * 4, "the others are on two splits now"


def test_a_method_searched_on_fewer_splits_is_marked() -> None:
    rows = []
    for model in ("tokenphormer", "mlp", "sage", "gcn"):
        rows += cell_rows(model, [0.8, 0.9], trials=1)
        if model != "gcn":
            rows.append(trial(0, model=model, split=101, val_accuracy=0.5, values={"dropout": 0.2}))
    cells = cell_results(rows, ("cora",), ("tokenphormer", "mlp", "sage", "gcn"))
    assert [(cell.search_splits, cell.short) for cell in cells] == [(2, "")] * 3 + [(1, "judged on 1 split")]


def test_search_splits_count_where_all_methods_have_them() -> None:
    def tried(model: str, best: int, splits: int) -> list[Row]:
        """Two trials; the first is better on split 100, the other one on the mean of several."""
        values: list[dict[str, Any]] = [{}, {"hidden_channels": 128 if model == "mlp" else 64, "dropout": 0.2}]
        rows = [make_row(model=model, values=values[best], split=n, test_accuracy=0.9) for n in range(2)]
        for number, accuracies in enumerate(([0.8, 0.1, 0.1], [0.7, 0.9, 0.9])):
            for place, accuracy in enumerate(accuracies[:splits]):
                more: dict[str, Any] = {"split": 100 + place, "values": values[number], "val_accuracy": accuracy}
                rows.append(trial(number, model=model, **more))
        return rows

    rows = tried("mlp", 1, 3) + tried("gcn", 1, 3)
    assert (common_budget(rows), common_budget(rows, 3), common_budget(rows, 4)) == (2, 2, 0)
    assert common_search_splits(rows, 2) == 3
    cells = cell_results(rows, ("cora",), ("mlp", "gcn"))
    assert [(cell.n, cell.search_splits) for cell in cells] == [(2, 3), (2, 3)]
    assert "on validation of 3 splits that are not reported" in notes(cells)[0]
    rows = tried("mlp", 0, 3) + tried("gcn", 0, 1)  # one method has had a single split, so that is what counts
    assert common_search_splits(rows, 2) == 1
    assert [(cell.n, cell.search_splits) for cell in cell_results(rows, ("cora",), ("mlp", "gcn"))] == [(2, 1), (2, 1)]


def tried_on_two_splits(model: str, trials: int) -> list[Row]:
    """The second trial is the best by the mean of two splits, the first by that of split 100 alone."""
    rows = [make_row(model=model, split=n, test_accuracy=0.9, values={"dropout": 0.3}) for n in range(2)]
    for number in range(trials):
        for place, accuracy in enumerate([(0.9, 0.1), (0.8, 0.8), (0.1, 0.1)][number]):
            more: dict[str, Any] = {"split": 100 + place, "values": {"dropout": (0.2, 0.3, 0.4)[number]}}
            rows.append(trial(number, model=model, val_accuracy=accuracy, **more))
    return rows


def test_a_larger_budget_than_anybody_had_leaves_the_search_splits() -> None:
    """It asks for more trials; what was judged on two splits is not judged on one of them for it."""
    models = ("tokenphormer", "mlp", "gcn")
    cells = cell_results([row for model in models for row in tried_on_two_splits(model, 3)], ("cora",), models, 10)
    found = [(cell.n, cell.trials, cell.search_splits, cell.short) for cell in cells]
    assert found == [(2, 3, 2, "3 trials")] * 3
    assert "3 trials a method, on validation of 2 splits" in notes(cells)[0]


def test_fewer_trials_are_judged_on_the_splits_that_they_were_run_on() -> None:
    models = ("tokenphormer", "mlp", "sage", "gcn")
    rows = [row for model in models[:3] for row in tried_on_two_splits(model, 3)] + tried_on_two_splits("gcn", 2)
    slow = one(cell_results(rows, ("cora",), models), "gcn")
    assert (slow.n, slow.trials, slow.search_splits, slow.short) == (2, 2, 2, "2 trials")
    more: dict[str, Any] = {"split": 102, "val_accuracy": 0.5}
    rows += [trial(n, model=m, values={"dropout": (0.2, 0.3, 0.4)[n]}, **more) for m in models[:3] for n in range(3)]
    slow = one(cell_results(rows, ("cora",), models), "gcn")
    assert (slow.n, slow.search_splits, slow.short) == (2, 2, "2 trials, judged on 2 splits")


def test_finals_of_another_budget_are_not_shown_as_these() -> None:
    rows = cell_rows("tokenphormer", [0.8, 0.9]) + cell_rows("gcn", [0.95], trials=3)
    cell = one(cell_results(rows, ("cora",), METHODS_HERE), "gcn")
    assert (cell.status, cell.mean) == ("from the paper", None)
    assert cell.reason == "its final runs are not of the best of 2 trials"


# ---------------------------------------------------------------- marks


def test_every_cell_is_marked(rows: list[Row]) -> None:
    cells = cell_results(rows, ("cora", "debian"), METHODS_HERE)
    assert {(cell.method, cell.dataset): cell.status for cell in cells} == {
        ("tokenphormer", "cora"): "re-run",
        ("gcn", "cora"): "re-run",
        ("mlp", "cora"): "did not run",
        ("jknet", "cora"): "from the paper",
        ("tokenphormer", "debian"): "not run yet",
        ("gcn", "debian"): "not run yet",
        ("mlp", "debian"): "not run yet",
        ("jknet", "debian"): "not run yet",
    }
    assert one(cells, "mlp").reason == "needs about 99 GiB"


def test_one_trial_that_failed_is_not_a_method_that_did_not_run() -> None:
    rows = [trial(0, model="mlp"), trial(1, model="mlp", status="failed", reason="the loss was nan")]
    cell = one(cell_results(rows, ("cora",), METHODS_HERE), "mlp")
    assert (cell.status, cell.reason) == ("not run yet", "")


def test_splits_that_did_not_run_are_counted_out_and_named() -> None:
    rows = cell_rows("gcn", [0.7, 0.8, 0.9])
    rows[-1] |= {"status": "did not run", "reason": "out of\nmemory"}
    cell = one(cell_results(rows, ("cora",), METHODS_HERE), "gcn")
    assert (cell.status, cell.n, cell.mean, cell.reason) == ("re-run", 2, pytest.approx(75.0), "out of memory")
    for row in rows[2:]:
        row |= {"status": "did not run", "reason": "no"}
    assert one(cell_results(rows, ("cora",), METHODS_HERE), "gcn").status == "did not run"


# ---------------------------------------------------------------- what is not mixed


def test_protocols_have_columns_of_their_own() -> None:
    rows = cell_rows("gcn", [0.7, 0.7]) + cell_rows("gcn", [0.9, 0.9], protocol="class-balanced")
    cells = cell_results(rows, ("cora",), METHODS_HERE)
    assert one(cells, "gcn", "cora").mean == pytest.approx(70.0)
    assert one(cells, "gcn", "cora, class-balanced").mean == pytest.approx(90.0)
    assert one(cells, "gcn", "cora").paper is not None
    assert one(cells, "gcn", "cora, class-balanced").paper is None  # the paper used another
    assert "| method | cora | cora, class-balanced |" in markdown(cells)


def test_runs_on_one_split_are_not_called_splits() -> None:
    """Where one split came with the graph, standard deviations and intervals are over seeds."""
    given = cell_rows("gcn", [0.7, 0.8, 0.9], dataset="photo", protocol="given", split_hash="the one that came")
    usual = cell_rows("gcn", [0.7, 0.8, 0.9], dataset="photo")
    cells = cell_results(given + usual, ("photo",), METHODS_HERE)
    usual_told, told = notes(cells)[:2]
    assert usual_told.startswith("photo: stratified splits; search of 2 trials")
    assert told.startswith(
        "photo, given: one split, on which runs differ in their seeds alone: ± and intervals are over"
    )
    assert not one(cell_results(cell_rows("gcn", [0.7]), ("cora",), METHODS_HERE), "gcn").seeds_alone


def test_other_studies_and_datasets_stay_out(rows: list[Row]) -> None:
    others = cell_rows("gcn", [0.1, 0.1, 0.1], study="ablation: all tokens") + cell_rows("gcn", [0.2], dataset="dblp")
    strange = {"kind": "pretrain", "study": "sgpm", "model": "sgpm", "dataset": "cora", "status": "done"}
    assert cell_results([*others, strange, *rows], ("cora",), METHODS_HERE) == cell_results(
        rows, ("cora",), METHODS_HERE
    )
    assert main_datasets([strange | {"dataset": "photo"}, *others, *rows]) == ("cora", "dblp")


def test_a_split_must_be_the_same_in_all_rows(rows: list[Row]) -> None:
    with pytest.raises(
        InputError, match="cora, stratified: split 1 has the hash other… in some rows and hash of 1… in"
    ):
        cell_results([*rows, make_row(model="jknet", split=1, split_hash="other")], ("cora",), METHODS_HERE)


def test_rows_of_other_defaults_do_not_count(rows: list[Row]) -> None:
    for row in rows:
        if row["model"] == "gcn":
            del row["config"]["patience"]
            row["config_hash"] = config_hash(row["config"])
    cell = one(cell_results(rows, ("cora",), METHODS_HERE), "gcn")
    assert (cell.status, cell.mean, cell.reason) == ("from the paper", None, "its rows are of other defaults")


def test_unknown_names() -> None:
    with pytest.raises(InputError, match=r"'coraa' is no dataset; nearest: cora, actor, cornell$"):  # each once
        cell_results([make_row(dataset="cora")], ("coraa",))
    with pytest.raises(InputError, match="'gnc' is no method of the benchmark; nearest: gcn"):
        cell_results([], ("cora",), ("gnc",))


@pytest.mark.parametrize("budget", [-1, 0])
def test_a_budget_that_cannot_be(rows: list[Row], budget: int) -> None:
    with pytest.raises(InputError, match=rf"--budget {budget}: expected at least 1"):
        cell_results(rows, ("cora",), METHODS_HERE, budget)


# ---------------------------------------------------------------- formats


def test_tokens_are_told_where_ours_stands_beside_the_papers(rows: list[Row]) -> None:
    def told(rows: list[Row], dataset: str) -> bool:
        return any("no SGPM-token" in line for line in notes(cell_results(rows, (dataset,), METHODS_HERE)))

    assert told(rows, "cora")
    assert not told([row for row in rows if row["model"] != "tokenphormer"], "cora")
    assert not told([row | {"dataset": "debian"} for row in rows], "debian")  # the paper has nothing there


def test_markdown(rows: list[Row]) -> None:
    text = markdown(cell_results(rows, ("cora", "debian"), METHODS_HERE))
    lines = text.splitlines()
    assert lines[6:12] == [
        "| method | cora | debian |",
        "|---|---|---|",
        "| Tokenphormer | **85.00 ± 5.00** (3) <sup>re-run</sup>; *91.20 ± 0.47* <sup>from the paper</sup> "
        "| not run yet |",
        "| GCN | 82.00 ± 10.58 (3) <sup>re-run</sup>; *87.33 ± 0.38* <sup>from the paper</sup> | not run yet |",
        "| MLP | did not run | not run yet |",
        "| JKNet | *87.70 ± 0.65* <sup>from the paper</sup> | not run yet |",
    ]
    assert "Paired difference to Tokenphormer on the same splits, with its 95 % interval:" in lines
    assert lines[-6:-1] == [
        "| GCN | -3.00 [-21.75, +15.75] |  |",
        "",
        "- cora: stratified splits; search of 2 trials a method, on validation of a split that is not reported",
        "- debian: stratified splits; nothing re-run yet",
        "- MLP on cora, did not run: needs about 99 GiB",
    ]
    assert lines[-1].startswith("- Tokenphormer has no SGPM-token here; the paper's has one, but on cornell,")
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {4}


def test_ten_splits_need_no_number() -> None:
    cells = cell_results(cell_rows("gcn", [0.7, 0.8] * 5), ("cora",), ("gcn",))
    assert "**75.00 ± 5.27** <sup>re-run</sup>" in markdown(cells)
    assert r"\textbf{75.00$\pm$5.27}$^{r}$" in latex(cells)


def test_latex(rows: list[Row]) -> None:
    text = latex(cell_results(rows, ("cora", "debian"), METHODS_HERE))
    lines = text.splitlines()
    assert lines[3:12] == [
        r"\begin{tabular}{lcc}",
        r"\hline",
        r"Method & Cora & Debian \\",
        r"\hline",
        r"Tokenphormer & \textbf{85.00$\pm$5.00} (3)$^{r}$ \emph{91.20$\pm$0.47}$^{p}$ & --$^{-}$ \\",
        r"GCN & 82.00$\pm$10.58 (3)$^{r}$ \emph{87.33$\pm$0.38}$^{p}$ & --$^{-}$ \\",
        r"MLP & --$^{x}$ & --$^{-}$ \\",
        r"JKNet & \emph{87.70$\pm$0.65}$^{p}$ & --$^{-}$ \\",
        r"\hline",
    ]
    assert r"GCN & $-3.00 [-21.75, +15.75]$ &  \\" in lines
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    assert all(line.startswith("%") or line.startswith("\\") or line.endswith(r" \\") for line in lines)


def test_csv_has_everything(rows: list[Row]) -> None:
    cells = cell_results(rows, ("cora",), METHODS_HERE)
    found = list(csv.DictReader(io.StringIO(csv_text(cells))))
    assert [row["method"] for row in found] == list(METHODS_HERE)
    ours, gcn, mlp, _ = found
    assert (ours["status"], ours["n"], ours["trials"], ours["difference"]) == ("re-run", "3", "2", "")
    assert float(gcn["difference"]) == pytest.approx(-3)
    assert float(gcn["low"]) < float(gcn["difference"]) < float(gcn["high"])
    assert (float(gcn["paper_mean"]), float(gcn["paper_std"])) == (87.33, 0.38)
    assert (mlp["status"], mlp["mean"], mlp["reason"]) == ("did not run", "", "needs about 99 GiB")
    assert (ours["search_splits"], mlp["search_splits"]) == ("1", "")
    assert {"protocol", "seconds", "preprocessing_seconds", "memory_mb", "parameters"} <= ours.keys()


def test_small_and_lucky_searches_are_marked_wherever_a_figure_is_shown() -> None:
    rows = [row for model in ("tokenphormer", "mlp", "sage") for row in cell_rows(model, [0.8, 0.9], trials=3)]
    rows += [trial(0, model="gcn", val_accuracy=0.9), *(make_row(model="gcn", split=n) for n in range(2))]
    cells = cell_results(rows, ("cora",), ("tokenphormer", "mlp", "sage", "gcn"))
    *others, marked = csv.DictReader(io.StringIO(csv_text(cells)))
    assert (marked["trials"], marked["search_splits"], marked["marks"]) == ("1", "1", "1 trial, lucky search")
    assert [row["marks"] for row in others] == [""] * 3
    assert r"50.00$\pm$0.00 (2)$^{r,s,l}$" in latex(cells)
    assert "50.00 ± 0.00 (2) <sup>re-run, 1 trial, lucky search</sup>" in markdown(cells)
    assert "50.00 ± 0.00 (n = 2); 1 trial, lucky search" in html_page(cells)


def test_differences_as_text() -> None:
    assert difference_text(None) == ""
    assert difference_text((1.234, -0.5, 2.0)) == "+1.23 [-0.50, +2.00]"


def test_from_no_rows_there_is_a_table_all_the_same() -> None:
    text = markdown(cell_results([], ("cora",)))
    assert text.count("from the paper</sup>") == 15  # of the paper's 18 methods, three have no figure for Cora
    assert text.count("not run yet |") == len(METHODS) - 15


def test_files(rows: list[Row], tmp_path: Path) -> None:
    cells = cell_results(rows, ("cora",), METHODS_HERE)
    paths = write_tables(cells, tmp_path / "new" / "tables")
    assert [path.name for path in paths] == ["main.md", "main.tex", "main.csv", "main.html"]
    assert sorted(path.name for path in (tmp_path / "new" / "tables").iterdir()) == sorted(p.name for p in paths)
    assert paths[0].read_text(encoding="utf-8") == markdown(cells)
    first = [path.read_bytes() for path in paths]
    write_tables(cells, tmp_path / "new" / "tables")
    assert [path.read_bytes() for path in paths] == first  # the same rows, the same bytes


@pytest.mark.parametrize("name", ["main.md", "main.tex", "main.csv", "main.html"])
def test_what_others_wrote_is_not_overwritten(name: str, tmp_path: Path) -> None:
    cells = cell_results([], ("debian",), METHODS)
    write_tables(cells, tmp_path)
    write_tables(cells, tmp_path)  # its own may be written anew
    (tmp_path / name).write_text("my own notes\n", encoding="utf-8")
    before = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match=rf"{name}: was not written by this command; move it, or give another --out"):
        write_tables(cells, tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == before


def test_every_kept_table_is_known_as_one() -> None:
    kept = [path for path in (EXPERIMENTS / "tables").iterdir() if path.suffix in (".md", ".tex", ".csv", ".html")]
    assert len(kept) > 15
    check_ours(EXPERIMENTS / "tables", [path.name for path in kept])


@pytest.fixture(scope="module")
def kept_rows() -> list[Row]:
    if not (EXPERIMENTS / "tables" / "main.md").exists():
        pytest.skip("there are no kept tables here")
    return read_rows([EXPERIMENTS / "rows"])


def alike(ours: str, theirs: str) -> bool:
    """Whether two texts say the same in every cell; the last digits of a number are the machine's."""
    if ours != theirs:
        with suppress(ValueError):
            return float(ours) == pytest.approx(float(theirs), rel=1e-9)
    return ours == theirs


def test_the_tables_that_are_kept_are_those_of_the_rows_that_are_kept(
    kept_rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails: tokenphormer tables experiments/rows --out experiments/tables."""
    monkeypatch.setattr(study_tables, "FIGURES", {})
    cells = cell_results(kept_rows, main_datasets(kept_rows))
    found = {"main.md": markdown(cells), "main.tex": latex(cells), "main.csv": csv_text(cells)}
    found |= {path.name: path.read_text(encoding="utf-8") for path in write_studies(kept_rows, tmp_path)}
    kept = {path.name for path in (EXPERIMENTS / "tables").iterdir() if path.suffix in (".md", ".tex", ".csv")}
    assert found.keys() == kept
    for name, text in found.items():
        before = (EXPERIMENTS / "tables" / name).read_text(encoding="utf-8")
        if name.endswith(".csv"):
            both = (list(csv.reader(io.StringIO(each))) for each in (text, before))
            for line, was in zip(*both, strict=True):
                assert all(map(alike, line, was)), f"{name}: {line} was {was}"
        else:
            assert text == before, name


def test_the_tokens_that_are_kept_are_all_that_their_study_compares(kept_rows: list[Row]) -> None:
    """Where NAGphormer's single hops end is a number that the paper prints for each graph."""
    found: dict[str, set[str]] = {}
    for row in kept_rows:
        if row["study"].startswith("tokens: "):
            found.setdefault(row["dataset"], set()).add(row["study"])
    assert found == {
        name: {variant.study("tokens") for variant in variants("tokens", name, with_sgpm=True)} for name in DIAMETER
    }


def test_the_first_trials_that_are_kept_and_those_with_l2_are_what_a_search_asks_for(kept_rows: list[Row]) -> None:
    """Defaults, and the best before with a decay. Optuna's draws may change with its version, these may not."""
    checked = 0
    for place in (("cora", "stratified"), ("wisconsin", "geom-gcn")):
        rows = [row for row in kept_rows if (row["study"], row["dataset"], row.get("protocol")) == (STUDY, *place)]
        rows = judged_alike(current_rows(rows))
        budget = common_budget(rows)
        splits = common_search_splits(rows, budget)
        for method in (name for name in METHODS if name not in FEATURELESS):
            tried = [row for row in rows if (row["kind"], row["model"]) == ("trial", method)]
            told, search = trials_by_number(tried, splits), Search(method, place[0], tried, splits)
            for number in (0, *range(FIRST_TRIALS, budget)):
                asked = complete(entry(method), search.ask(number))
                assert told[number]["config_hash"] == config_hash(asked), (place, method, number)
                checked += 1
    assert checked == 2 * (len(METHODS) - 1) * (1 + len(L2_TRIALS))
