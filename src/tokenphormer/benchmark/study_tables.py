"""Tables and figures of the studies (`variants.py`), from rows alone."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenphormer.benchmark.grid import STUDY as MAIN
from tokenphormer.benchmark.methods import entry, unnamed_values
from tokenphormer.benchmark.paper import paper_ablation
from tokenphormer.benchmark.rows import Row, check_graphs
from tokenphormer.benchmark.sgpm_study import STUDY as PRETRAINING
from tokenphormer.benchmark.tables import (
    DEVICES,
    check_ours,
    check_splits,
    column_of,
    difference_text,
    main_accuracies,
    mean_interval,
    paired_difference,
    tabular,
)
from tokenphormer.benchmark.variants import ADDITIONS, DIAMETER, INPUTS, STUDIES, Variant, variants
from tokenphormer.evaluation import plots
from tokenphormer.files import atomic_path
from tokenphormer.graph import DATASETS
from tokenphormer.sgpm.pretraining import kept_epoch
from tokenphormer.training.settings import Config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VARIED = {
    "ablation": ("num_walks", "num_hops", "walk_ratios"),
    "tokens": ("num_walks", "num_hops"),
    "sgpm": (),
    "inputs": (),
    "additions": tuple(key for values in ADDITIONS.values() for key in values),
    "defaults": tuple(Config.__dataclass_fields__),
    "votes": (),
}
"""The settings in which runs of a study differ."""
REFERENCES = {
    "ablation": "all tokens",
    "sgpm": "without",
    "inputs": "all inputs",
    "additions": "all of it",
    "defaults": "tuned",
    "votes": "Tokenphormer+, five that vote",
}
"""What the others of a study are compared with."""
COLOURS = {"tokenphormer": (plots.ORANGE, "o", "walk-tokens"), "nagphormer": (plots.BLUE, "s", "hops")}

FEW_SPLITS = 5
"""Fewer are drawn one by one: an interval of their mean would be wider than what the figure is to show."""
Results = dict[str, dict[str, dict[int, float]]]
"""Test accuracy in percent: by column, which is a dataset and its protocol, by variant, by split."""
Lacking = dict[str, set[str]]
"""By column, the variants that the settings there have nothing for."""


def study_results(rows: list[Row], study: str, say: Callable[[str], None] = lambda _: None) -> Results:
    """What a study found. On a dataset only rows that start from the same values can be compared: the most count."""
    found: Results = {}
    for dataset, kept in _kept_rows(rows, study, say).items():
        known = _known(study, dataset)
        found[dataset] = {}
        for row in sorted(kept, key=lambda row: row.get("time", 0.0)):
            if row["status"] == "done":
                name = known[row["study"]].name
                found[dataset].setdefault(name, {})[int(row["split"])] = 100 * row["test_accuracy"]
        for variant in known.values():
            if variant.default == "main" and kept:  # on the same splits
                tuned = _main_runs(rows, kept, study, variant.model)
                found[dataset] = ({variant.name: tuned} if tuned else {}) | found[dataset]
    return {dataset: results for dataset, results in found.items() if results}


def _main_runs(rows: list[Row], kept: list[Row], study: str, model: str) -> dict[int, float]:
    """The main study's accuracies of a method by split: those of its cell, beside votes those of the voters' settings.

    A study keeps what it started from; the main study's search may have gone on since.
    """
    dataset, protocol = kept[0]["dataset"], kept[0]["protocol"]
    voting = {row["config_hash"] for row in kept if row["model"] == model}
    if study != "votes" or not voting:
        return main_accuracies(rows, dataset, protocol, model)
    alike = [row for row in rows if (row["kind"], row["study"], row["status"]) == ("final", MAIN, "done")]
    where = (dataset, protocol, model)
    alike = [row for row in alike if (row["dataset"], row["protocol"], row["model"]) == where]
    return {int(row["split"]): 100 * row["test_accuracy"] for row in alike if row["config_hash"] in voting}


def lacking_parts(rows: list[Row], study: str) -> Lacking:
    """By column, the variants that leave out what the settings there have not, so that there is nothing to run.

    The rows of 'all of it' have these settings; without any of them nothing is known to be lacking.
    """
    found: Lacking = {}
    for dataset, kept in _kept_rows(rows, study).items() if study == "additions" else ():
        known = _known(study, dataset)
        whole = [_settings(row) for row in kept if known[row["study"]].name == REFERENCES[study]]
        if whole:
            found[dataset] = {v.name for v in known.values() if v.values and whole[0] | v.values == whole[0]}
    return found


def _known(study: str, dataset: str) -> dict[str, Variant]:
    """The variants of a study by what their rows have for `study`."""
    return {variant.study(study): variant for variant in variants(study, dataset, with_sgpm=True)}


def _kept_rows(rows: list[Row], study: str, say: Callable[[str], None] = lambda _: None) -> dict[str, list[Row]]:
    """The rows of a study that can be compared, by column."""
    mine = [row for row in rows if row["kind"] == "final" and str(row["study"]).startswith(f"{study}: ")]
    found, columns = {}, dict[str, list[Row]]()
    for row in sorted(mine, key=_place):
        columns.setdefault(column_of(row["dataset"], row["protocol"]), []).append(row)
    for dataset, here in columns.items():
        known = _known(study, dataset)
        here = [row for row in here if row["study"] in known]
        kept = []
        for model in dict.fromkeys(row["model"] for row in here):
            kept += _of_one_start([row for row in here if row["model"] == model], study, known)
        kept = _of_now(kept) if study == "defaults" else kept
        check_splits(kept)
        if len(kept) < len(here):
            say(f"{dataset}, {study}: {len(here) - len(kept)} rows start from other values; they are not counted")
        found[dataset] = kept
    return found


def _place(row: Row) -> tuple[int, str, bool, str]:
    """Where a row's column stands: datasets in the main table's order, the usual protocol of each first."""
    name, protocol = row["dataset"], row["protocol"]
    place = list(DATASETS).index(name) if name in DATASETS else len(DATASETS)
    return place, name, column_of(name, protocol) != name, protocol


def _settings(row: Row) -> dict[str, Any]:
    """All settings of a row's run."""
    settings: dict[str, Any] = unnamed_values(row["model"]) | row["config"]
    return settings


def _of_one_start(rows: list[Row], study: str, known: dict[str, Variant]) -> list[Row]:
    """Rows of one dataset and method that differ in nothing but what the study varies."""

    def start(row: Row) -> str:
        rest = {key: value for key, value in row["config"].items() if key not in VARIED[study]}
        return json.dumps([row["protocol"], rest], sort_keys=True)

    def text(settings: dict[str, Any]) -> str:
        return json.dumps(settings, sort_keys=True, default=list)

    def sgpm(row: Row) -> str:
        return str(row.get("sgpm", "")).partition(" ")[2]

    chosen = _most([start(row) for row in rows])
    rows = [row for row in rows if start(row) == chosen]
    # What is varied has a value to begin with too: that of the rows in which nothing is left out, if there are any.
    whole = _most([text(_settings(row)) for row in rows if known[row["study"]].name == REFERENCES.get(study)])
    if whole:
        begun = json.loads(whole)
        rows = [row for row in rows if text(_settings(row)) == text(begun | known[row["study"]].values)]

    def group(row: Row) -> str:
        """Rows of one group have one SGPM: all of a study, but where each variant has an SGPM of its own."""
        return known[row["study"]].left_out

    with_token = [row for row in rows if known[row["study"]].sgpm]
    pretrained = {
        name: _most([sgpm(row) for row in with_token if group(row) == name]) for name in set(map(group, with_token))
    }
    return [row for row in rows if sgpm(row) == (pretrained[group(row)] if known[row["study"]].sgpm else "")]


def _of_now(rows: list[Row]) -> list[Row]:
    """Rows of defaults that no later ones have replaced. What was replaced on one split counts on none."""
    latest: dict[tuple[str, int], Row] = {}
    for row in sorted(rows, key=lambda row: float(row.get("time", 0.0))):
        latest[row["study"], row["split"]] = row
    replaced = {
        (row["study"], row["config_hash"])
        for row in rows
        if row["config_hash"] != latest[row["study"], row["split"]]["config_hash"]
    }
    return [row for row in latest.values() if (row["study"], row["config_hash"]) not in replaced]


def _most(values: list[str]) -> str:
    """The most frequent; of equally frequent ones the last in order."""
    return max(Counter(values).items(), key=lambda item: (item[1], item[0]), default=("", 0))[0]


# -------------------------------------------------------------------- texts


def comparison_table(results: Results, study: str, lacking: Lacking | None = None) -> str:
    """Markdown: mean ± standard deviation, and the paired difference to the study's reference with its interval."""
    datasets, names = list(results), _names(results, study)
    head = ["| | " + " | ".join(datasets) + " |", "|---" * (len(datasets) + 1) + "|"]
    reference = REFERENCES[study]
    lines = [
        "Test accuracy in percent, mean ± standard deviation over splits (their number in brackets).",
        *(["In italics the paper's figure, which is with an SGPM-token."] if study == "ablation" else []),
        "",
        *head,
    ]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(_text(results, study, name, d, lacking) for d in datasets) + " |")
    lines += ["", f"Paired difference to '{reference}' on the same splits, with its 95 % interval:", "", *head]
    for name in names:
        if name != reference:
            texts = [difference_text(_difference(results, study, name, dataset)) for dataset in datasets]
            lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def comparison_latex(results: Results, study: str, lacking: Lacking | None = None) -> str:
    """The same as two LaTeX tabulars."""
    datasets, names = list(results), _names(results, study)
    main = [[name, *(_text(results, study, name, d, lacking, tex=True) for d in datasets)] for name in names]
    gaps = [
        [name, *(f"${t}$" if (t := difference_text(_difference(results, study, name, d))) else "" for d in datasets)]
        for name in names
        if name != REFERENCES[study]
    ]
    lines = ["% Mean and standard deviation over splits, their number in brackets; the paper's figure in italics."]
    lines += tabular(datasets, main)
    lines += [f"% Paired difference to {REFERENCES[study]} on the same splits, with its 95 % interval."]
    return "\n".join([*lines, *tabular(datasets, gaps)]) + "\n"


def csv_of(results: Results, study: str) -> str:
    """One line for each dataset and variant."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["dataset", "method", "variant", "mean", "std", "low", "high", "n", "difference", "from", "to"])
    for dataset, found in results.items():
        for variant in variants(study, dataset, with_sgpm=True):
            values = list(found.get(variant.name, {}).values())
            if not values:
                continue
            interval = mean_interval(values)
            std = "" if interval is None else float(np.std(values, ddof=1))
            ends = ("", "") if interval is None else interval[1:]
            gap = _difference(results, study, variant.name, dataset) if study in REFERENCES else None
            start = [dataset, variant.model, variant.name, float(np.mean(values)), std]
            writer.writerow([*start, *ends, len(values), *(gap or ("", "", ""))])
    return text.getvalue()


def pretraining_table(rows: list[Row]) -> str:
    """Markdown: how many masked nodes the SGPMs guess right, beside what the neighbouring word alone would tell.

    It is the share of the epoch whose weights are kept, which need not be the last.
    """
    mine = [row for row in rows if (row["kind"], row["study"], row["status"]) == ("pretrain", PRETRAINING, "done")]
    lines = ["Masked nodes of held-out sentences guessed right, in percent:", ""]
    lines += [
        "| dataset | input without | SGPM | neighbouring word alone | chance | epochs | seconds |",
        "|---" * 7 + "|",
    ]
    for row in sorted(mine, key=lambda row: (row["dataset"], row["config_hash"])):
        shares = [kept_epoch(row["history"])["val_accuracy"], row["bigram_accuracy"], row["chance"]]
        cells = [*(f"{100 * share:.2f}" for share in shares), str(len(row["history"])), f"{row['seconds']:.0f}"]
        without = ", ".join(part for part in INPUTS if not row.get("config", {}).get(f"use_{part}", True))
        lines.append(f"| {row['dataset']} | {without} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" if mine else ""


def devices_text(rows: list[Row], study: str) -> str:
    """What the runs of a study were done on, by column; empty if no row tells. The main study's do not count."""
    told = []
    for dataset, kept in _kept_rows(rows, study).items():
        counts = Counter(str(row["device"]) for row in kept if row["status"] == "done" and "device" in row)
        runs = " and ".join(f"{counts[name]} on {DEVICES.get(name, name)}" for name in sorted(counts))
        told += [f"{dataset} {runs}"] if runs else []
    meant = " Settings for a CPU are those that `train` takes there, wherever they ran." if study == "defaults" else ""
    return f"Runs: {'; '.join(told)}.{meant}\n" if told else ""


def _names(results: Results, study: str) -> list[str]:
    """The variants that were run on some dataset, in the study's order."""
    ran = {name for found in results.values() for name in found}
    return [v.name for v in variants(study, next(iter(results)), with_sgpm=True) if v.name in ran]


def _difference(results: Results, study: str, name: str, dataset: str) -> tuple[float, float, float] | None:
    found, reference = results[dataset], REFERENCES[study]
    return None if name == reference else paired_difference(found.get(name, {}), found.get(reference, {}))


def _text(
    results: Results, study: str, name: str, dataset: str, lacking: Lacking | None = None, tex: bool = False
) -> str:
    sign = r"$\pm$" if tex else " ± "
    paper = paper_ablation(name, dataset) if study == "ablation" else None
    printed = "" if paper is None else f"{paper[0]:.2f}{sign}{paper[1]:.2f}"
    values = list(results[dataset].get(name, {}).values())
    absent = "not in its settings" if name in (lacking or {}).get(dataset, ()) else "not run yet"
    ours = f"{np.mean(values):.2f}" if values else absent
    ours += f"{sign}{np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    ours += f" ({len(values)})" if values else ""
    italics = (rf"\emph{{{printed}}}" if tex else f"*{printed}*") if printed else ""
    return "; ".join(part for part in (ours, italics) if part)


# -------------------------------------------------------------------- figures


def ablation_plot(results: Results) -> Figure:
    """What each part left out costs, with its 95 % interval, a panel a dataset; rings are the paper's differences."""
    names = [name for name in _names(results, "ablation") if name != REFERENCES["ablation"]]
    figure, panels = _panels(results, height=0.8 + 0.25 * len(names), sharey=True)
    for axes, dataset in zip(panels, results, strict=True):
        whole = paper_ablation(REFERENCES["ablation"], dataset)
        axes.axvline(0, color=plots.MUTED, linewidth=1, linestyle="--")
        for place, name in enumerate(names):
            if gap := _difference(results, "ablation", name, dataset):
                mean, low, high = gap
                axes.errorbar(mean, -place, xerr=[[mean - low], [high - mean]], fmt="o", color=plots.BLUE, markersize=4)
            if whole and (paper := paper_ablation(name, dataset)):
                axes.plot(paper[0] - whole[0], -place, "o", color=plots.ORANGE, markersize=5, fillstyle="none")
        axes.set_yticks([-place for place in range(len(names))], names)
        axes.set_title("lines: 95 %" + ("; rings: paper" if whole else ""), loc="right", **plots.small_text())
        plots.style_axes(axes, dataset, f"points more than {REFERENCES['ablation']}", grid="x")
    return figure


def tokens_plot(results: Results) -> Figure:
    """Accuracy against the number of tokens, Tokenphormer beside NAGphormer, a panel a dataset, as the paper draws it.

    Every point of a panel is the mean over the same splits. Of fewer than `FEW_SPLITS` each is a thin line besides; of
    more there is a band, the 95 % interval of the mean. A dashed line stands at the graph's diameter.
    """
    figure, panels = _panels(results, height=2.7)
    for axes, (dataset, found) in zip(panels, results.items(), strict=True):
        _tokens_panel(axes, dataset, found)
    panels[0].legend(frameon=False, fontsize=8, loc="best")
    return figure


def _panels(results: Results, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each dataset, three beside each other."""
    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    figure = plots.new_figure(plots.WIDTH if columns == 1 else 3.4 * columns, 0.5 + height * rows)
    grid: Any = figure.subplots(rows, columns, squeeze=False, sharey=sharey)
    for axes in grid.flat[len(results) :]:
        axes.set_axis_off()
    return figure, list(grid.flat[: len(results)])


def shared_splits(found: dict[str, dict[int, float]]) -> list[int]:
    """The splits that every variant was run on, of those that were run at all."""
    return sorted(set.intersection(*(set(accuracies) for accuracies in found.values())))


def on_shared_splits(results: Results) -> Results:
    """The same, each dataset on the splits that all its variants were run on: what can be compared."""
    shared = {dataset: shared_splits(found) for dataset, found in results.items()}
    return {
        dataset: {name: {split: known[split] for split in shared[dataset]} for name, known in found.items()}
        for dataset, found in results.items()
    }


def _tokens_panel(axes: Axes, dataset: str, found: dict[str, dict[int, float]]) -> None:
    splits = shared_splits(found)
    for model, (colour, marker, unit) in COLOURS.items():
        mine = [v for v in variants("tokens", dataset, with_sgpm=True) if v.model == model and v.name in found]
        count = [variant.place for variant in mine]
        values = np.array([found[variant.name][split] for variant in mine for split in splits])
        values = values.reshape(len(mine), len(splits))
        label = f"{entry(model).title} ({unit})"
        means = values.mean(axis=1) if splits else np.full(len(mine), np.nan)
        axes.plot(count, means, label=label, color=colour, marker=marker, markersize=3, linewidth=1.3)
        if len(splits) >= FEW_SPLITS and mine:
            _, low, high = np.array([mean_interval(list(each)) for each in values]).T
            axes.fill_between(count, low, high, color=colour, alpha=0.18, linewidth=0)
        elif len(splits) > 1:
            axes.plot(count, values, color=colour, alpha=0.3, linewidth=0.7)
    told = "1 split" if len(splits) == 1 else f"{len(splits)} splits"
    if (diameter := DIAMETER.get(dataset.partition(",")[0])) is not None:
        axes.axvline(diameter, color=plots.MUTED, linewidth=1, linestyle="--", label="_diameter")
        told += "; dashed: diameter"
    axes.set_title(told, loc="right", **plots.small_text())
    axes.set_xlim(0, 143)
    axes.set_xticks(range(0, 141, 20))
    plots.style_axes(axes, dataset, "number of tokens")
    axes.set_ylabel("test accuracy, %", fontsize=9, color=plots.INK)


# -------------------------------------------------------------------- files


FIGURES: dict[str, Callable[[Results], Figure]] = {"ablation": ablation_plot, "tokens": tokens_plot}


def write_studies(rows: list[Row], out: Path, say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Write what there is of the studies: comparisons as .md, .tex and .csv, tokens.csv; `FIGURES` as .png, .svg."""
    check_graphs(rows)
    files: dict[str, str] = {}
    figures: dict[str, Figure] = {}
    for study in STUDIES:
        results = study_results(rows, study, say)
        if results and study in REFERENCES:
            lacking = lacking_parts(rows, study)
            parts = (comparison_table(results, study, lacking), devices_text(rows, study))
            files[f"{study}.md"] = "\n".join(filter(None, parts))
            files[f"{study}.tex"] = comparison_latex(results, study, lacking)
        if results:
            files[f"{study}.csv"] = csv_of(on_shared_splits(results) if study == "tokens" else results, study)
        if results and study in FIGURES:
            figures |= {f"{study}{suffix}": FIGURES[study](results) for suffix in (".png", ".svg")}
    if pretrained := pretraining_table(rows):
        files["sgpm.md"] = "\n".join(part for part in (files.get("sgpm.md"), pretrained) if part)
    check_ours(out, files)
    for name, text in files.items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for name, figure in figures.items():
        plots.save_figure(figure, out / name)
    return [out / name for name in (*files, *figures)]
