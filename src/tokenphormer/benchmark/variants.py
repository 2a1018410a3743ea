"""The paper's ablation and its accuracy against the number of tokens: runs that differ from one another in one thing.

All variants of a dataset start from the same values: what the main study's search settled on, or `BASE` before that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tokenphormer.benchmark.grid import Plan, work_off
from tokenphormer.benchmark.methods import entry
from tokenphormer.benchmark.rows import Row, read_rows, row_key
from tokenphormer.benchmark.running import Job, values_tuple
from tokenphormer.benchmark.search import best_values
from tokenphormer.benchmark.sgpm_study import BASE, Jobs
from tokenphormer.benchmark.tables import paired_difference
from tokenphormer.errors import InputError
from tokenphormer.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABLATION: dict[str, dict[str, object]] = {
    "all tokens": {},
    "without SGPM-token": {},
    "without walk-tokens": {"num_walks": 0},
    "without hop-tokens": {"num_hops": 0},
    "only uniform walks": {"walk_ratios": (1.0, 0.0, 0.0, 0.0)},
    "only non-backtracking walks": {"walk_ratios": (0.0, 1.0, 0.0, 0.0)},
    "only jump walks": {"walk_ratios": (0.0, 0.0, 1.0, 0.0)},
    "only non-backtracking jump walks": {"walk_ratios": (0.0, 0.0, 0.0, 1.0)},
}
"""The paper's rows. The first is without an SGPM-token too where no vectors are given, and the second then the same."""
WALK_TOKENS = tuple(range(10, 150, 10))
"""Numbers of walk-tokens in the paper's figure."""
DIAMETER = {"cora": 19, "citeseer": 28, "flickr": 4, "photo": 11, "dblp": 34, "pubmed": 18}
"""Where NAGphormer's steps of one hop end; then ten at a time, to 140 tokens."""
STUDIES = ("ablation", "tokens")


@dataclass(frozen=True)
class Variant:
    """One line of a study."""

    name: str
    model: str
    values: dict[str, object]
    sgpm: bool = False


def variants(study: str, dataset: str, with_sgpm: bool) -> list[Variant]:
    """What a study compares on a dataset."""
    if study == "ablation":
        names = [name for name in ABLATION if with_sgpm or name != "without SGPM-token"]
        return [
            Variant(name, "tokenphormer", ABLATION[name], with_sgpm and name != "without SGPM-token") for name in names
        ]
    if study == "tokens":
        walks = [
            Variant(f"{count} walk-tokens", "tokenphormer", {"num_walks": count}, with_sgpm) for count in WALK_TOKENS
        ]
        end = DIAMETER.get(dataset, 10)
        hops = [*range(1, end + 1), *range(end + 10 - end % 10, 141, 10)]
        return walks + [Variant(f"{count} hops", "nagphormer", {"num_hops": count}) for count in hops]
    raise InputError(f"--study {study}: expected main, {' or '.join(STUDIES)}")


def start_values(rows: list[Row], model: str, dataset: str) -> dict[str, Any]:
    """The values that the main study's search settled on; `BASE` (or the method's own defaults) if it has none."""
    trials = [r for r in rows if (r["kind"], r["study"], r["model"], r["dataset"]) == ("trial", "main", model, dataset)]
    found = best_values(model, trials, len(trials)) if trials else None
    if found is not None:
        return found
    return dict(BASE) if model == "tokenphormer" else {}


def jobs_of(
    study: str, datasets: tuple[str, ...], splits: int, rows: list[Row], vectors: dict[str, Path] | None = None
) -> list[Job]:
    """Every run of a study, the first split of all variants first."""
    plan, vectors = Plan((), datasets, splits), vectors or {}
    jobs = []
    for split in range(splits):
        for dataset in datasets:
            for variant in variants(study, dataset, dataset in vectors):
                values = start_values(rows, variant.model, dataset) | variant.values
                file = vectors[dataset] if variant.sgpm else None
                sgpm = "" if file is None else f"{file}|{file.stem}"
                jobs.append(
                    Job(
                        "final", variant.model, dataset, plan.protocol_of(dataset), split, values_tuple(values), split,
                        f"{study}: {variant.name}", sgpm=sgpm,
                    )
                )  # fmt: skip
    return jobs


def run_study(
    study: str,
    datasets: tuple[str, ...],
    out: Path,
    device: torch.device,
    *,
    splits: int = 10,
    workers: int = 1,
    minutes: float = float("inf"),
    merge: tuple[Path, ...] = (),
    vectors: dict[str, Path] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Run what is missing of a study; how many runs were added to `out`/rows.jsonl."""
    path = out / "rows.jsonl"
    known = read_rows([p for p in (path, *merge) if p.exists()], say)
    done = {row_key(row) for row in known}
    missing = [job for job in jobs_of(study, datasets, splits, known, vectors) if row_key(job.row()) not in done]
    return work_off([Jobs(missing)], path, device, workers=workers, minutes=minutes, say=say)


# -------------------------------------------------------------------- tables


def accuracies(rows: list[Row], study: str, name: str, dataset: str) -> dict[int, float]:
    """Test accuracy of a variant, in percent, by split."""
    wanted = (f"{study}: {name}", dataset, "final", "done")
    mine = [row for row in rows if (row["study"], row["dataset"], row["kind"], row["status"]) == wanted]
    return {int(row["split"]): 100 * row["test_accuracy"] for row in mine}


def ablation_table(rows: list[Row], datasets: tuple[str, ...]) -> str:
    """Markdown: mean ± standard deviation, and in brackets the paired difference to all tokens with its interval."""
    lines = ["| tokens | " + " | ".join(datasets) + " |", "|---" * (len(datasets) + 1) + "|"]
    for name in ABLATION:
        texts = []
        for dataset in datasets:
            mine = accuracies(rows, "ablation", name, dataset)
            gap = paired_difference(mine, accuracies(rows, "ablation", "all tokens", dataset))
            text = "not run yet" if not mine else f"{np.mean(list(mine.values())):.2f}"
            text += f" ± {np.std(list(mine.values()), ddof=1):.2f}" if len(mine) > 1 else ""
            if gap is not None and name != "all tokens":
                text += f" ({gap[0]:+.2f} [{gap[1]:+.2f}, {gap[2]:+.2f}])"
            texts.append(text)
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def tokens_plot(rows: list[Row], dataset: str) -> Figure:
    """Accuracy against the number of tokens, Tokenphormer beside NAGphormer, with 95 % intervals over splits."""
    figure = plots.new_figure(plots.WIDTH, 3.2)
    axes = figure.subplots()
    for model, colour in (("tokenphormer", plots.ORANGE), ("nagphormer", plots.BLUE)):
        points = []
        for variant in variants("tokens", dataset, with_sgpm=False):
            values = list(accuracies(rows, "tokens", variant.name, dataset).values())
            if variant.model == model and values:
                half = 1.96 * float(np.std(values)) / len(values) ** 0.5
                points.append((int(variant.name.split()[0]), float(np.mean(values)), half))
        if points:
            count, mean, half_width = (np.array(column) for column in zip(*sorted(points), strict=True))
            axes.errorbar(count, mean, half_width, fmt="o-", color=colour, markersize=3, linewidth=1.3)
            axes.plot([], [], color=colour, label=entry(model).title)
    if dataset in DIAMETER:
        axes.axvline(DIAMETER[dataset], color=plots.MUTED, linewidth=1, linestyle="--")
        axes.set_title("dashed: diameter", loc="right", **plots.small_text())
    axes.legend(frameon=False)
    plots.style_axes(axes, f"{dataset}: test accuracy in percent", "walk-tokens, or hops")
    return figure
