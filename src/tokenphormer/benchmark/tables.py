"""`tokenphormer tables`: Markdown, LaTeX and CSV from rows alone; nothing in a table is ever typed in."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student_t

from tokenphormer.benchmark.methods import METHODS, complete, entry
from tokenphormer.benchmark.paper import paper_figure
from tokenphormer.benchmark.rows import Row, config_hash
from tokenphormer.benchmark.search import best_values
from tokenphormer.files import atomic_path

REFERENCE = "tokenphormer"
Difference = tuple[float, float, float]


@dataclass(frozen=True)
class CellResult:
    """One method on one dataset, in percent."""

    method: str
    dataset: str
    status: str
    """`re-run`, `from the paper`, `did not run` (with `reason`), or `not run yet`."""
    mean: float | None = None
    std: float | None = None
    """Over splits."""
    n: int = 0
    trials: int = 0
    """Of the search that chose the settings."""
    difference: Difference | None = None
    """Mean paired difference to the reference on the splits both ran on, and its 95 % interval."""
    paper: tuple[float, float] | None = None
    seconds: float | None = None
    preprocessing_seconds: float | None = None
    memory_mb: float | None = None
    parameters: int | None = None
    reason: str = ""


def paired_difference(mine: dict[int, float], theirs: dict[int, float]) -> Difference | None:
    """Mean of mine − theirs over the splits both have, and its 95 % interval by Student's t; None below two splits."""
    both = sorted(mine.keys() & theirs.keys())
    if len(both) < 2:
        return None
    gaps = np.array([mine[split] - theirs[split] for split in both])
    half = float(student_t.ppf(0.975, len(gaps) - 1)) * float(gaps.std(ddof=1)) / len(gaps) ** 0.5
    mean = float(gaps.mean())
    return mean, mean - half, mean + half


def cell_results(
    rows: list[Row], datasets: tuple[str, ...], methods: tuple[str, ...] = METHODS, budget: int | None = None
) -> list[CellResult]:
    """Every cell of the main study. A method's finals are those of the best of its first `budget` trials.

    The budget is the same for all methods of a dataset; by default the largest that all of them have had that were run.
    """
    main = [row for row in rows if row.get("study") == "main"]
    found = []
    for dataset in datasets:
        here = [row for row in main if row["dataset"] == dataset and row["model"] in methods]
        trials = budget or common_budget(here)
        accuracy = {method: _accuracies(here, method, trials) for method in methods}
        for method in methods:
            found.append(_cell(here, method, dataset, trials, accuracy[method], accuracy.get(REFERENCE, {})))
    return found


def common_budget(rows: list[Row]) -> int:
    """How many trials every method has had that has final rows, of the rows of one dataset."""
    final = {row["model"] for row in rows if row["kind"] == "final"}
    counts = [len({row["trial"] for row in rows if row["kind"] == "trial" and row["model"] == m}) for m in final]
    return min(counts, default=0)


def _finals(rows: list[Row], method: str, budget: int) -> list[Row]:
    """The final rows of the values that the search settled on."""
    mine = [row for row in rows if row["model"] == method]
    values = best_values(method, [row for row in mine if row["kind"] == "trial"], budget)
    if values is None:
        return []
    chosen = config_hash(complete(entry(method), values))
    return [row for row in mine if row["kind"] == "final" and row["config_hash"] == chosen]


def _accuracies(rows: list[Row], method: str, budget: int) -> dict[int, float]:
    finals = _finals(rows, method, budget)
    return {int(row["split"]): 100 * row["test_accuracy"] for row in finals if row["status"] == "done"}


def _cell(
    rows: list[Row], method: str, dataset: str, trials: int, accuracy: dict[int, float], reference: dict[int, float]
) -> CellResult:
    paper = paper_figure(method, dataset)
    finals = _finals(rows, method, trials)
    if not accuracy:
        stopped = [r for r in rows if (r["model"], r["dataset"]) == (method, dataset) and r["status"] != "done"]
        if stopped:
            return CellResult(method, dataset, "did not run", paper=paper, reason=str(stopped[0]["reason"]))
        return CellResult(method, dataset, "from the paper" if paper else "not run yet", paper=paper, trials=trials)
    done = [row for row in finals if row["status"] == "done"]
    values = list(accuracy.values())
    return CellResult(
        method=method,
        dataset=dataset,
        status="re-run",
        mean=float(np.mean(values)),
        std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        n=len(values),
        trials=trials,
        difference=None if method == REFERENCE else paired_difference(accuracy, reference),
        paper=paper,
        seconds=float(np.mean([row["seconds"] for row in done])),
        preprocessing_seconds=float(np.mean([row["preprocessing_seconds"] for row in done])),
        memory_mb=float(np.max([row["peak_memory_bytes"] for row in done])) / 1e6,
        parameters=int(done[0]["parameters"]),
    )


# -------------------------------------------------------------------- formats


def markdown(cells: list[CellResult]) -> str:
    """A table of methods × datasets, then one of the paired differences."""
    datasets, methods = axes_of(cells)
    at = {(cell.method, cell.dataset): cell for cell in cells}
    head = ["| method | " + " | ".join(datasets) + " |", "|---" * (len(datasets) + 1) + "|"]
    best = {d: max((c.mean for c in cells if c.dataset == d and c.mean is not None), default=None) for d in datasets}
    lines = [
        "Test accuracy in percent, mean ± standard deviation over splits (their number in brackets unless it is 10).",
        "The best cell that was re-run here is bold; the paper's own figure stands in italics beside ours.",
        "",
    ]
    lines += head
    for method in methods:
        texts = [_text(at[method, d], best[d]) for d in datasets]
        lines.append(f"| {entry(method).title} | " + " | ".join(texts) + " |")
    lines += [
        "",
        f"Paired difference to {entry(REFERENCE).title} on the same splits, with its 95 % interval:",
        "",
        *head,
    ]
    for method in methods:
        if method != REFERENCE:
            texts = [difference_text(at[method, d].difference) for d in datasets]
            lines.append(f"| {entry(method).title} | " + " | ".join(texts) + " |")
    budgets = sorted({cell.trials for cell in cells if cell.status == "re-run"})
    trials = ", ".join(map(str, budgets)) or "no"
    lines += ["", f"Search: {trials} trials a method and dataset, on validation of splits that are not reported."]
    missing = [cell for cell in cells if cell.status == "did not run"]
    lines += [f"- {entry(c.method).title} on {c.dataset} did not run: {c.reason}" for c in missing]
    return "\n".join(lines) + "\n"


def _text(cell: CellResult, best: float | None) -> str:
    paper = f"*{cell.paper[0]:.2f} ± {cell.paper[1]:.2f}*" if cell.paper else ""
    if cell.mean is None:
        return f"{cell.status}{': ' + paper if paper else ''}"
    spread = f" ± {cell.std:.2f}" if cell.std is not None else ""
    count = "" if cell.n == 10 else f" ({cell.n})"
    text = f"{cell.mean:.2f}{spread}"
    return (f"**{text}**" if cell.mean == best else text) + count + (f" {paper}" if paper else "")


def difference_text(difference: Difference | None) -> str:
    """A paired difference and its interval; empty without."""
    return "" if difference is None else f"{difference[0]:+.2f} [{difference[1]:+.2f}, {difference[2]:+.2f}]"


def latex(cells: list[CellResult]) -> str:
    """The main table as a LaTeX tabular."""
    datasets, methods = axes_of(cells)
    at = {(cell.method, cell.dataset): cell for cell in cells}
    lines = [rf"\begin{{tabular}}{{l{'c' * len(datasets)}}}", r"\hline"]
    lines += ["Method & " + " & ".join(name.capitalize() for name in datasets) + r" \\", r"\hline"]
    for method in methods:
        texts = []
        for name in datasets:
            cell = at[method, name]
            spread = rf"$\pm${cell.std:.2f}" if cell.std is not None else ""
            texts.append("--" if cell.mean is None else f"{cell.mean:.2f}{spread}")
        lines.append(f"{entry(method).title} & " + " & ".join(texts) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def csv_text(cells: list[CellResult]) -> str:
    """One line a cell, with everything."""
    columns = ["method", "dataset", "status", "mean", "std", "n", "trials", "difference", "low", "high", "paper_mean"]
    columns += ["paper_std", "seconds", "preprocessing_seconds", "memory_mb", "parameters", "reason"]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for cell in cells:
        gap = cell.difference or (None, None, None)
        paper = cell.paper or (None, None)
        start = [cell.method, cell.dataset, cell.status, cell.mean, cell.std, cell.n, cell.trials, *gap, *paper]
        end = [cell.seconds, cell.preprocessing_seconds, cell.memory_mb, cell.parameters, cell.reason]
        writer.writerow(["" if value is None else value for value in [*start, *end]])
    return text.getvalue()


def axes_of(cells: list[CellResult]) -> tuple[list[str], list[str]]:
    """The datasets and the methods of a table, in order."""
    return list(dict.fromkeys(c.dataset for c in cells)), list(dict.fromkeys(c.method for c in cells))


def write_tables(cells: list[CellResult], out: Path) -> list[Path]:
    """Write main.md, main.tex, main.csv and main.html."""
    from tokenphormer.benchmark.page import html_page

    files = {"main.md": markdown(cells), "main.tex": latex(cells), "main.csv": csv_text(cells)}
    files["main.html"] = html_page(cells)
    for name, text in files.items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [out / name for name in files]
