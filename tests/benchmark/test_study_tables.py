"""Tables and figures of the studies: numbers by hand, only what can be compared, the paper beside it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.benchmark.fakes import make_row, trial
from tokenphormer.benchmark.methods import entry
from tokenphormer.benchmark.paper import paper_ablation
from tokenphormer.benchmark.rows import Row
from tokenphormer.benchmark.study_tables import (
    ablation_plot,
    comparison_latex,
    comparison_table,
    csv_of,
    devices_text,
    lacking_parts,
    on_shared_splits,
    pretraining_table,
    shared_splits,
    study_results,
    tokens_plot,
    write_studies,
)
from tokenphormer.benchmark.variants import ABLATION, variants
from tokenphormer.errors import InputError


def rows_of(study: str, name: str, accuracies: list[float], **changes: Any) -> list[Row]:
    """One row a split; settings are what the variant changes and what `values` adds."""
    (variant,) = [v for v in variants(study, "cora", with_sgpm=True) if v.name == name]
    values = variant.values | changes.pop("values", {})
    return [
        make_row(model=variant.model, split=n, test_accuracy=value, study=f"{study}: {name}", values=values, **changes)
        for n, value in enumerate(accuracies)
    ]


@pytest.fixture
def ablation() -> list[Row]:
    rows = rows_of("ablation", "all tokens", [0.80, 0.90, 0.85], sgpm="static H")
    rows += rows_of("ablation", "without SGPM-token", [0.81, 0.91, 0.86])
    return rows + rows_of("ablation", "without walk-tokens", [0.70, 0.86, 0.90], sgpm="static H")


def test_the_ablation_by_hand(ablation: list[Row]) -> None:
    text = comparison_table(study_results(ablation, "ablation"), "ablation")
    assert "| all tokens | 85.00 ± 5.00 (3); *91.20 ± 0.47* |" in text
    assert "| without walk-tokens | 82.00 ± 10.58 (3); *88.37 ± 1.23* |" in text
    # Differences −10, −4, 5: the same as in test_tables, with Student's t.
    assert "| without walk-tokens | -3.00 [-21.75, +15.75] |" in text
    assert "| without SGPM-token | +1.00 [+1.00, +1.00] |" in text
    assert "only jump walks" not in text
    assert text.count("| all tokens |") == 1
    latex = comparison_latex(study_results(ablation, "ablation"), "ablation")
    assert r"all tokens & 85.00$\pm$5.00 (3); \emph{91.20$\pm$0.47} \\" in latex
    assert r"without walk-tokens & $-3.00 [-21.75, +15.75]$ \\" in latex
    assert latex.count(r"\begin{tabular}{lc}") == latex.count(r"\end{tabular}") == 2


def test_csv(ablation: list[Row]) -> None:
    ours, without, walks = csv.DictReader(io.StringIO(csv_of(study_results(ablation, "ablation"), "ablation")))
    assert (ours["dataset"], ours["method"], ours["variant"], ours["n"]) == ("cora", "tokenphormer", "all tokens", "3")
    assert float(ours["std"]) == pytest.approx(5.0)
    assert float(ours["high"]) == pytest.approx(85 + 4.302653 * 5 / 3**0.5, abs=1e-4)
    assert ours["difference"] == ""
    assert float(without["difference"]) == pytest.approx(1.0)
    assert float(walks["from"]) == pytest.approx(-21.75, abs=0.01)


def test_one_split_has_no_interval() -> None:
    results = study_results(rows_of("ablation", "all tokens", [0.8]), "ablation")
    assert "| all tokens | 80.00 (1); *91.20 ± 0.47* |" in comparison_table(results, "ablation")
    (line,) = csv.DictReader(io.StringIO(csv_of(results, "ablation")))
    assert (line["mean"], line["std"], line["low"], line["high"]) == ("80.0", "", "", "")


def test_datasets_side_by_side(ablation: list[Row]) -> None:
    rows = ablation + rows_of("ablation", "all tokens", [0.5, 0.6], dataset="debian")
    text = comparison_table(study_results(rows, "ablation"), "ablation")
    assert "| | cora | debian |" in text
    assert "| all tokens | 85.00 ± 5.00 (3); *91.20 ± 0.47* | 55.00 ± 7.07 (2) |" in text
    assert "; *88.37 ± 1.23* | not run yet |" in text


# ---------------------------------------------------------------- what can be compared


def test_rows_of_another_start_are_said_and_left_out(ablation: list[Row]) -> None:
    strange = rows_of("ablation", "all tokens", [0.1, 0.1], sgpm="static H", values={"dropout": 0.9})
    said: list[str] = []
    assert study_results([*strange, *ablation], "ablation", said.append) == study_results(ablation, "ablation")
    assert said == ["cora, ablation: 2 rows start from other values; they are not counted"]


def test_starts_that_differ_in_what_the_study_varies_are_not_mixed() -> None:
    """What another start left out is the same run from this one; what it did not leave out is not."""
    mine = rows_of("ablation", "all tokens", [0.8, 0.9, 0.85], values={"num_walks": 100})
    mine += rows_of("ablation", "without walk-tokens", [0.7])
    other = rows_of("ablation", "all tokens", [0.1, 0.1], values={"num_walks": 10}, time=2.0)
    other += rows_of("ablation", "without hop-tokens", [0.1], values={"num_walks": 10}, time=2.0)
    said: list[str] = []
    found = study_results(other + mine, "ablation", said.append)
    assert found == {"cora": {"all tokens": {0: 80.0, 1: 90.0, 2: 85.0}, "without walk-tokens": {0: 70.0}}}
    assert said == ["cora, ablation: 3 rows start from other values; they are not counted"]


def test_of_two_starts_with_as_many_rows_the_same_counts_in_any_order() -> None:
    rows = rows_of("ablation", "all tokens", [0.8], values={"dropout": 0.1})
    rows += rows_of("ablation", "all tokens", [0.7], values={"dropout": 0.2})
    found = [study_results(each, "ablation") for each in (rows, rows[::-1])]
    assert found[0] == found[1] == {"cora": {"all tokens": {0: 70.0}}}


def test_runs_with_and_without_an_sgpm_are_not_mixed(ablation: list[Row]) -> None:
    bare = rows_of("ablation", "all tokens", [0.1, 0.1]) + rows_of("ablation", "without hop-tokens", [0.1])
    assert study_results(bare + ablation, "ablation") == study_results(ablation, "ablation")
    other = rows_of("ablation", "all tokens", [0.2], sgpm="static OTHER")
    assert study_results(other + ablation, "ablation") == study_results(ablation, "ablation")
    found = study_results(bare + bare + other, "ablation")
    assert found == {"cora": {"all tokens": {0: 10.0, 1: 10.0}, "without hop-tokens": {0: 10.0}}}


def test_other_studies_failures_and_unknown_variants_stay_out(ablation: list[Row]) -> None:
    others = [make_row(model="tokenphormer", split=7), *rows_of("sgpm", "without", [0.3])]
    others += rows_of("ablation", "only jump walks", [0.3], status="did not run", reason="no", sgpm="static H")
    others += [make_row(model="tokenphormer", study="ablation: by half")]
    assert study_results(others + ablation, "ablation") == study_results(ablation, "ablation")
    assert study_results(ablation, "tokens") == {}


def test_a_split_must_be_the_same_in_all_rows(ablation: list[Row]) -> None:
    ablation[0]["split_hash"] = "another"
    with pytest.raises(InputError, match="split 0 has the hash"):
        study_results(ablation, "ablation")


# ---------------------------------------------------------------- the other studies


def test_the_sgpm_study_by_hand() -> None:
    rows = rows_of("sgpm", "without", [0.8, 0.9]) + rows_of("sgpm", "static", [0.82, 0.94], sgpm="static H")
    rows += rows_of("sgpm", "contextual", [0.81, 0.91], sgpm="contextual H")
    text = comparison_table(study_results(rows, "sgpm"), "sgpm")
    assert "| without | 85.00 ± 7.07 (2) |" in text
    assert "| contextual | +1.00 [+1.00, +1.00] |" in text
    assert "| static | +3.00 [" in text
    assert "paper" not in text


def test_what_is_added_by_hand() -> None:
    rows = rows_of("additions", "all of it", [0.8, 0.9]) + rows_of("additions", "without agreement", [0.78, 0.88])
    other = rows_of("additions", "without smoothed labels", [0.1, 0.1], values={"dropout": 0.1})
    said: list[str] = []
    text = comparison_table(study_results(rows + other, "additions", said.append), "additions")
    assert "| without agreement | -2.00 [-2.00, -2.00] |" in text
    assert "smoothed" not in text
    assert said == ["cora, additions: 2 rows start from other values; they are not counted"]


def test_what_the_settings_lack_is_told_from_what_was_not_run() -> None:
    """The defaults have agreement and no decay of Adam's; on Photo it is the other way round."""
    photo: dict[str, Any] = {"dataset": "photo", "values": {"consistency": 0.0, "l2": 5e-3}}
    rows = rows_of("additions", "all of it", [0.8, 0.9]) + rows_of("additions", "all of it", [0.5], **photo)
    rows += rows_of("additions", "without agreement", [0.8], dataset="debian")
    rows += rows_of("additions", "without agreement", [0.78, 0.88])
    rows += rows_of("additions", "without smoothed labels", [0.7])
    decay = photo | {"values": {"consistency": 0.0, "l2": 0.0}}
    results, lacking = study_results(rows, "additions"), lacking_parts(rows, "additions")
    assert "without Adam's decay" in lacking["cora"]
    assert "without agreement" in lacking["photo"]
    assert "debian" not in lacking, "nothing tells what its settings have"
    text, latex = comparison_table(results, "additions", lacking), comparison_latex(results, "additions", lacking)
    assert "| | cora | photo | debian |" in text
    assert "| without agreement | 83.00 ± 7.07 (2) | not in its settings | 80.00 (1) |" in text
    assert "| without smoothed labels | 70.00 (1) | not run yet | not run yet |" in text
    assert r"without agreement & 83.00$\pm$7.07 (2) & not in its settings & 80.00 (1) \\" in latex
    assert r"without smoothed labels & 70.00 (1) & not run yet & not run yet \\" in latex
    rows += rows_of("additions", "without Adam's decay", [0.6], **decay)
    text = comparison_table(study_results(rows, "additions"), "additions", lacking)
    assert "| without Adam's decay | not in its settings | 60.00 (1) | not run yet |" in text
    assert lacking_parts(rows_of("ablation", "all tokens", [0.5]), "ablation") == {}


def test_files_tell_what_the_settings_lack(tmp_path: Path) -> None:
    rows = rows_of("additions", "all of it", [0.8]) + rows_of("additions", "without agreement", [0.7])
    rows += rows_of("additions", "all of it", [0.5], dataset="photo", values={"consistency": 0.0})
    write_studies(rows, tmp_path)
    for suffix in ("md", "tex"):
        text = (tmp_path / f"additions.{suffix}").read_text(encoding="utf-8")
        assert "not in its settings" in text
        assert "not run yet" not in text


def test_without_settings_beside_the_main_studys_cell() -> None:
    mine: dict[str, Any] = {"model": "tokenphormer+", "dataset": "cora"}
    first, second = dict(entry("tokenphormer+").first), dict(entry("tokenphormer+").starts[0])
    rows = [trial(0, **mine, val_accuracy=0.9, values=first), trial(1, **mine, val_accuracy=0.8, values=second)]
    rows += [make_row(**mine, split=split, test_accuracy=0.8 + split / 10, values=first) for split in (0, 1)]
    worse = [make_row(**mine, split=0, test_accuracy=0.1, values=second)]
    name = "without settings, on a CPU"
    rows += worse + rows_of("defaults", name, [0.81, 0.89], values={"dropout": 0.1})
    text = comparison_table(study_results(rows, "defaults"), "defaults")
    assert "| tuned | 85.00 ± 7.07 (2) |" in text
    assert f"| {name} | +0.00 [-12.71, +12.71] |" in text


def test_one_training_beside_votes_has_the_settings_of_the_voters() -> None:
    """The votes began when the first trial was the best; since then the search has found better."""
    mine: dict[str, Any] = {"model": "appnp", "dataset": "cora"}
    before, since = {"dropout": 0.2}, {"dropout": 0.3}
    rows = [trial(0, **mine, val_accuracy=0.8, values=before), trial(1, **mine, val_accuracy=0.9, values=since)]
    for values, accuracy in ((before, 0.7), (since, 0.9)):
        rows += [make_row(**mine, split=n, test_accuracy=accuracy, values=values) for n in (0, 1)]
    rows += rows_of("votes", "APPNP, five that vote", [0.75, 0.75], values=before, voters=5)
    for elsewhere in ({"dataset": "photo"}, {"protocol": "two-stage"}, {"study": "additions: all of it"}):
        rows.append(make_row(**mine | {"split": 0, "test_accuracy": 0.1, "values": before} | elsewhere))
    assert study_results(rows, "votes") == {
        "cora": {"APPNP, one": {0: 70.0, 1: 70.0}, "APPNP, five that vote": {0: 75.0, 1: 75.0}}
    }


def test_defaults_of_before_are_not_mixed_with_those_of_now() -> None:
    """Two of three splits have been run again since: the third does not count, though nothing replaced it yet."""
    name = "without settings, on a CPU"
    old = rows_of("defaults", name, [0.1, 0.2, 0.3], values={"dropout": 0.1})
    new = [row | {"time": 2.0} for row in rows_of("defaults", name, [0.8, 0.9], values={"dropout": 0.2})]
    said: list[str] = []
    results = study_results([*new, *old], "defaults", said.append)
    assert results["cora"][name] == {0: 80.0, 1: 90.0}
    assert said == ["cora, defaults: 3 rows start from other values; they are not counted"]
    other = [row | {"time": 2.0} for row in rows_of("defaults", name, [0.8, 0.9, 0.7])]
    other[2] |= {"config_hash": "what suits this split"}
    assert study_results(other, "defaults")["cora"][name] == {0: 80.0, 1: 90.0, 2: 70.0}


def test_the_pretraining_table() -> None:
    row: Row = {"kind": "pretrain", "study": "sgpm", "model": "sgpm", "dataset": "cora", "status": "done"}
    shares = [(3.0, 0.1), (2.0, 0.767), (2.0, 0.9), (2.5, 0.8)]  # the second epoch's weights are kept
    history = [{"val_loss": loss, "val_accuracy": share} for loss, share in shares]
    row |= {"config_hash": "H", "history": history, "seconds": 12.3, "bigram_accuracy": 0.25, "chance": 0.001}
    assert "| cora |  | 76.70 | 25.00 | 0.10 | 4 | 12 |" in pretraining_table([row, make_row()])
    assert pretraining_table([make_row()]) == ""


@pytest.fixture
def tokens() -> list[Row]:
    rows: list[Row] = []
    for variant in variants("tokens", "cora", with_sgpm=True):
        start = 0.8 if variant.model == "tokenphormer" else 0.7
        rows += rows_of("tokens", variant.name, [start, start + 0.1])
    return rows


def lines_of(figure: Figure, panel: int = 0) -> dict[str, Any]:
    return {str(line.get_label()): line for line in figure.axes[panel].get_lines()}


def test_the_ablation_figure(ablation: list[Row]) -> None:
    """Of what is left out the paired difference and its interval, and in the paper's place its own."""
    alone = rows_of("ablation", "only jump walks", [0.5], sgpm="static H")  # no interval of one split
    ours = [row | {"dataset": "debian"} for row in ablation]
    figure = ablation_plot(study_results(ablation + alone + ours, "ablation"))
    cora, debian = figure.axes
    assert [label.get_text() for label in cora.get_yticklabels()] == [
        "without SGPM-token",
        "without walk-tokens",
        "only jump walks",
    ]
    drawn = {axes: [bar.lines[0].get_xydata().tolist()[0] for bar in axes.containers] for axes in (cora, debian)}
    # Of +1, +1, +1 and −10, −4, +5: the sample deviation of the latter is √57, and Student's t for 2 is 4.30265.
    assert np.array(drawn[cora]) == pytest.approx(np.array([[1, 0], [-3, -1]]))
    assert drawn[debian] == drawn[cora]
    (line,) = cora.containers[1].lines[2][0].get_segments()
    half = 4.30265 * 57**0.5 / 3**0.5
    assert np.array(line)[:, 0] == pytest.approx([-3 - half, -3 + half], abs=1e-3)
    rings = [ring.get_xydata().tolist()[0] for ring in cora.get_lines() if ring.get_fillstyle() == "none"]
    assert np.array(rings) == pytest.approx(np.array([[90.33 - 91.20, 0], [88.37 - 91.20, -1], [90.80 - 91.20, -2]]))
    assert not [ring for ring in debian.get_lines() if ring.get_fillstyle() == "none"]
    assert debian.get_title(loc="right") == "lines: 95 %"


def test_the_tokens_figure(tokens: list[Row]) -> None:
    figure = tokens_plot(study_results(tokens, "tokens"))
    lines = lines_of(figure)
    ours, theirs = lines["Tokenphormer (walk-tokens)"], lines["NAGphormer (hops)"]
    assert ours.get_xdata().tolist() == list(range(10, 141, 10))
    assert theirs.get_xdata().tolist() == [*range(1, 20), *range(20, 141, 10)]
    assert ours.get_ydata() == pytest.approx(np.full(14, 85.0))
    assert theirs.get_ydata() == pytest.approx(np.full(32, 75.0))
    assert list(lines["_diameter"].get_xdata()) == [19, 19]
    assert not figure.axes[0].collections
    each = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 32 and line is not theirs]
    assert [line.get_ydata()[0] for line in each] == pytest.approx([70.0, 80.0])
    assert figure.axes[0].get_title(loc="right") == "2 splits; dashed: diameter"


def test_many_splits_have_a_band() -> None:
    names = [variant.name for variant in variants("tokens", "cora", with_sgpm=True)]
    rows = [row for name in names for row in rows_of("tokens", name, [0.8, 0.9, 0.8, 0.9, 0.85])]
    figure = tokens_plot(study_results(rows, "tokens"))
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert isinstance(band, np.ndarray)
    # Deviations ±5 and 0: the sample deviation is 5, and Student's t for 4 is 2.77645.
    assert band[:, 1].max() == pytest.approx(85 + 2.77645 * 5 / 5**0.5, abs=1e-3)
    assert len(figure.axes[0].get_lines()) == 3


def test_points_of_a_panel_are_means_over_the_same_splits(tokens: list[Row]) -> None:
    more = rows_of("tokens", "10 walk-tokens", [0.1, 0.1, 0.1])[2:]
    less = [row for row in tokens if not (row["study"] == "tokens: 7 hops" and row["split"] == 1)]
    results = study_results(less + more, "tokens")
    assert shared_splits(results["cora"]) == [0]
    figure = tokens_plot(results)
    assert lines_of(figure)["Tokenphormer (walk-tokens)"].get_ydata() == pytest.approx(np.full(14, 80.0))
    assert figure.axes[0].get_title(loc="right") == "1 split; dashed: diameter"
    lines = list(csv.DictReader(io.StringIO(csv_of(on_shared_splits(results), "tokens"))))
    assert {(line["n"], line["mean"]) for line in lines} == {("1", "80.0"), ("1", "70.0")}
    nowhere = study_results([row for row in tokens if (row["split"] == 1) == ("hops" in row["study"])], "tokens")
    assert np.isnan(lines_of(tokens_plot(nowhere))["NAGphormer (hops)"].get_ydata()).all()


def test_what_a_study_was_run_on_is_said(tmp_path: Path) -> None:
    """Settings for a CPU may have been run on a GPU, and a split on one device be paired with that on another."""
    rows = rows_of("additions", "all of it", [0.5, 0.6], device="cpu")
    rows += rows_of("additions", "without agreement", [0.4], device="cuda")
    rows += rows_of("additions", "all of it", [0.5], device="cuda", dataset="photo")
    told = "Runs: cora 2 on a CPU and 1 on a GPU; photo 1 on a GPU.\n"
    assert devices_text(rows, "additions") == told
    assert devices_text(rows_of("additions", "all of it", [0.5]), "additions") == ""
    write_studies(rows, tmp_path)
    assert (tmp_path / "additions.md").read_text(encoding="utf-8").endswith(f"|\n\n{told}")
    default = rows_of("defaults", "without settings, on a CPU", [0.5], device="cuda")
    assert "cora 1 on a GPU. Settings for a CPU are those that `train` takes there" in devices_text(default, "defaults")


def test_the_files_of_tokens_agree_on_the_splits(tokens: list[Row], tmp_path: Path) -> None:
    more = rows_of("tokens", "10 walk-tokens", [0.1, 0.1, 0.1])[2:]
    write_studies(tokens + more, tmp_path)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "tokens.csv").read_text(encoding="utf-8"))))
    assert {line["n"] for line in lines} == {"2"}
    assert float(lines[0]["mean"]) == pytest.approx(85.0)


def test_columns_stand_in_the_order_of_the_main_table() -> None:
    columns = (("photo", "given"), ("debian", "stratified"), ("photo", "stratified"), ("cora", "stratified"))
    about = [{"dataset": name, "protocol": protocol} for name, protocol in columns]
    rows = [row for each in about for row in rows_of("additions", "all of it", [0.5, 0.6], **each)]
    assert list(study_results(rows, "additions")) == ["cora", "photo", "photo, given", "debian"]


def test_a_panel_a_dataset(tokens: list[Row]) -> None:
    more = [row | {"dataset": name} for name in ("photo", "dblp", "debian") for row in tokens if "hops" in row["study"]]
    figure = tokens_plot(study_results(tokens + more, "tokens"))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["cora", "photo", "dblp", "debian", "", ""]
    assert len(lines_of(figure, 1)["Tokenphormer (walk-tokens)"].get_xdata()) == 0
    assert "_diameter" not in lines_of(figure, 3)


def test_files(ablation: list[Row], tokens: list[Row], tmp_path: Path) -> None:
    assert write_studies([make_row()], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()
    paths = write_studies(ablation + tokens, tmp_path / "t")
    names = ["ablation.md", "ablation.tex", "ablation.csv", "tokens.csv"]
    names += ["ablation.png", "ablation.svg", "tokens.png", "tokens.svg"]
    assert [path.name for path in paths] == names
    first = [path.read_bytes() for path in paths]
    write_studies(list(reversed(ablation)) + tokens, tmp_path / "t")
    assert [path.read_bytes() for path in paths] == first


def test_the_papers_ablation_is_whole() -> None:
    for name in ABLATION:
        figure = paper_ablation(name, "pubmed")
        assert figure is not None
        assert 89 < figure[0] < 90
    assert paper_ablation("all tokens", "debian") is None
    assert paper_ablation("without walk-tokens", "cora") == (88.37, 1.23)
