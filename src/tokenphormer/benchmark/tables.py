"""`tokenphormer tables`: Markdown, LaTeX and CSV from rows alone; nothing in a table is ever typed in."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.stats import t as student_t

from tokenphormer.benchmark.grid import STUDY, check_dataset, usual_protocol
from tokenphormer.benchmark.methods import METHODS, current_rows, entry
from tokenphormer.benchmark.paper import paper_figure
from tokenphormer.benchmark.rows import Row, check_graphs
from tokenphormer.benchmark.search import AGAIN, LUCKY, best_trial, luck, trials_by_number
from tokenphormer.errors import InputError
from tokenphormer.files import atomic_path
from tokenphormer.graph.datasets import DATASETS

REFERENCES = ("tokenphormer", "tokenphormer+")
"""What every method is compared with, split by split."""
MARKS = (
    "Test accuracy in percent",
    "Masked nodes of held-out sentences",
    "% Mean and standard deviation over splits",
    "method,dataset,protocol,status,mean",
    "dataset,method,variant,mean",
    "<h1>Benchmark</h1>",
)
"""One of them is in every file that tables are written to."""
MOST = 0.75
"""Share of the methods run on a dataset that have had its budget; those that have not are marked."""
DEVICES = {"cpu": "a CPU", "cuda": "a GPU"}
Difference = tuple[float, float, float]
"""A mean and the ends of its 95 % interval."""


@dataclass(frozen=True)
class CellResult:
    """One method on one dataset, in percent."""

    method: str
    dataset: str
    status: str
    """`re-run`, `from the paper`, `did not run` (with `reason`), or `not run yet`."""
    protocol: str = ""
    """Of the splits."""
    mean: float | None = None
    std: float | None = None
    """Over splits."""
    n: int = 0
    trials: int = 0
    """Of the search that chose the settings."""
    search_splits: int = 1
    """Splits that each trial was judged on."""
    again: bool = False
    """Whether they were judged again, on more splits than those of most methods, for the first choice was lucky."""
    judged: str = ""
    """How the trials were judged, as in `Job`."""
    short: str = ""
    """How its search was smaller than that of most methods; empty if it was not."""
    luck: float | None = None
    """Validation accuracy of the trial that was chosen minus that of the final runs: what a search saw by luck."""
    differences: Mapping[str, Difference] = field(default_factory=dict)
    """For each reference, the mean paired difference to it on the splits both ran on, and its 95 % interval."""
    paper: tuple[float, float] | None = None
    seconds: float | None = None
    """Of a whole run, preprocessing included; the mean over splits."""
    preprocessing_seconds: float | None = None
    memory_mb: float | None = None
    """The highest peak of all splits: on a GPU what torch had allocated, on a CPU the whole process."""
    seeds_alone: bool = False
    """Whether all runs are on one and the same split, as `given` may be: they differ in their seeds."""
    device: str = ""
    """What the runs were done on: `cpu`, `cuda`, or `cpu, cuda`. Time and memory of one are not those of the other."""
    parameters: int | None = None
    reason: str = ""
    """Why a run, or all, did not come about."""

    @property
    def column(self) -> str:
        """The head of its column."""
        return column_of(self.dataset, self.protocol)

    @property
    def lucky(self) -> bool:
        """Whether its settings were chosen for what they seldom do."""
        return self.luck is not None and self.luck > LUCKY

    @property
    def marks(self) -> str:
        """What is to be known of its search wherever its figure is shown; mostly nothing."""
        return ", ".join(filter(None, (self.short, "lucky search" if self.lucky else "")))


Cells = Mapping[tuple[str, str], CellResult]
"""By method and column."""


def half_width(std: float, n: int) -> float:
    """Half of the 95 % interval of a mean of n numbers by Student's t, from their sample standard deviation."""
    return float(student_t.ppf(0.975, n - 1) * std / np.sqrt(n))


def mean_interval(values: Sequence[float]) -> Difference | None:
    """The mean of some numbers and its 95 % interval by Student's t; None below two numbers."""
    if len(values) < 2:
        return None
    mean, half = float(np.mean(values)), half_width(float(np.std(values, ddof=1)), len(values))
    return mean, mean - half, mean + half


def paired_difference(mine: dict[int, float], theirs: dict[int, float]) -> Difference | None:
    """Mean of mine − theirs over the splits both have, and its 95 % interval by Student's t; None below two splits."""
    return mean_interval([mine[split] - theirs[split] for split in sorted(mine.keys() & theirs.keys())])


def main_datasets(rows: list[Row]) -> tuple[str, ...]:
    """The datasets that the main study has rows of, those of the paper first; other studies have their own tables."""
    found = {row["dataset"] for row in rows if row["study"] == STUDY}
    return tuple([name for name in DATASETS if name in found] + sorted(found - DATASETS.keys()))


def cell_results(
    rows: list[Row], datasets: tuple[str, ...], methods: tuple[str, ...] = METHODS, budget: int | None = None
) -> list[CellResult]:
    """Every cell of the main study. A method's finals are those of the best of its first `budget` trials.

    The budget is the same for all methods of a dataset; by default the largest that most of them have had that were
    run, whichever of them are shown. A method that has had less is judged by what it has had, and its cell says so.
    Rows of one dataset on splits of different protocols are kept apart, rows of a method whose defaults have changed
    since do not count, and all rows of a split must agree on its hash.
    """
    for method in methods:
        entry(method)
    if budget is not None and budget < 1:
        raise InputError(f"--budget {budget}: expected at least 1, or 0 for as many as most methods have had")
    check_graphs(row for row in rows if row["dataset"] in datasets)
    found = []
    for dataset in datasets:
        check_dataset(dataset, {row["dataset"] for row in rows})
        main = [row for row in rows if (row["study"], row["dataset"]) == (STUDY, dataset)]
        usual = usual_protocol(dataset)
        protocols = {row["protocol"] for row in main if row["model"] in methods} or {usual}
        for protocol in sorted(protocols, key=lambda name: (name != usual, name)):
            here = [row for row in main if row["protocol"] == protocol]
            check_splits(here)
            all_rows = judged_alike(current_rows(here))
            rows_of = {m: [row for row in all_rows if row["model"] == m] for m in methods}
            judged = next((str(row["judged"]) for row in _trials(all_rows) if "judged" in row), "")
            trials = budget or common_budget(all_rows)
            searched = common_search_splits(all_rows, min(trials, common_budget(all_rows)))
            searches = {method: _search_of(rows_of[method], trials, searched) for method in methods}
            finals = {method: _finals(rows_of[method], *searches[method]) for method in methods}
            references = {name: _accuracies(finals[name]) for name in REFERENCES if name in finals}
            for method in methods:
                cell = _cell(
                    rows_of[method], finals[method], method, dataset, protocol, searches[method][0], references
                )
                short = _shortfall(cell.trials, searches[method][1], trials, searched) if cell.n else ""
                seen = luck(_trials(rows_of[method]), finals[method], *searches[method]) if cell.n else None
                again = bool(cell.n) and searches[method][1] > searched
                cell = replace(cell, search_splits=searches[method][1], again=again, judged=judged)
                cell = replace(cell, short=short, luck=seen)
                if not rows_of[method] and any(row["model"] == method for row in here):
                    cell = replace(cell, reason="its rows are of other defaults")
                found.append(cell)
    return found


def column_of(dataset: str, protocol: str) -> str:
    """The head of a column: the dataset, and the protocol if that is not the usual one."""
    return f"{dataset}, {protocol}" if protocol and protocol != usual_protocol(dataset) else dataset


def main_search(rows: list[Row], dataset: str, protocol: str, method: str) -> tuple[list[Row], int, int]:
    """A method's rows of the main study on a dataset, and the trials and splits that its cell in the table is of."""
    here = judged_alike(
        current_rows(
            row for row in rows if (row["study"], row["dataset"], row.get("protocol")) == (STUDY, dataset, protocol)
        )
    )
    trials = common_budget(here)
    mine = [row for row in here if row["model"] == method]
    return mine, *_search_of(mine, trials, common_search_splits(here, trials))


def main_finals(rows: list[Row], dataset: str, protocol: str, method: str) -> list[Row]:
    """The rows that the main table's cell of a method and dataset is of."""
    return _finals(*main_search(rows, dataset, protocol, method))


def main_accuracies(rows: list[Row], dataset: str, protocol: str, method: str) -> dict[int, float]:
    """What the main table's cell of a method and dataset is the mean of, by split."""
    return _accuracies(main_finals(rows, dataset, protocol, method))


def check_splits(rows: list[Row]) -> None:
    """Raise if a split of one number is not the same nodes in all rows of a dataset."""
    hashes: dict[int, str] = {}
    for row in rows:
        if "split_hash" in row and hashes.setdefault(row["split"], row["split_hash"]) != row["split_hash"]:
            raise InputError(
                f"{row['dataset']}, {row['protocol']}: split {row['split']} has the hash {row['split_hash'][:12]}… in "
                f"some rows and {hashes[row['split']][:12]}… in others; rows from different data cannot be compared"
            )


def judged_alike(rows: list[Row]) -> list[Row]:
    """The rows of one dataset without the trials that are not judged as the table judges there.

    It judges on nodes that did not stop the training as soon as most methods have had as many such trials as others, on
    as many splits.
    """
    others, held_out = (
        [row for row in rows if row["kind"] != "trial" or bool(row.get("judged")) is judged] for judged in (False, True)
    )
    trials = common_budget(others)
    enough = common_budget(held_out, common_search_splits(others, trials)) >= max(1, trials)
    return held_out if enough else others


def common_budget(rows: list[Row], splits: int = 1) -> int:
    """How many trials on `splits` splits most methods have had that have final rows, of the rows of one dataset."""
    final = {row["model"] for row in rows if row["kind"] == "final"}
    counts = sorted((_trials_had([row for row in rows if row["model"] == m], splits) for m in final), reverse=True)
    return counts[math.ceil(MOST * len(counts)) - 1] if counts else 0


def common_search_splits(rows: list[Row], budget: int) -> int:
    """On how many splits most methods have had each of their first `budget` trials; at least 1."""
    splits = 1
    while budget and common_budget(rows, splits + 1) >= budget:
        splits += 1
    return splits


def _trials_had(rows: list[Row], splits: int) -> int:
    """How many trials on `splits` splits a method has had, from the first on without a gap."""
    tried = trials_by_number(_trials(rows), splits)
    return next(number for number in range(len(tried) + 1) if number not in tried)


def _search_of(rows: list[Row], trials: int, splits: int) -> tuple[int, int]:
    """The trials and splits that a method is judged by: those of most methods, or what it has had.

    That is all its trials, on the splits that all of these were judged on; on more if they were judged again because
    what they chose first had been lucky.
    """
    had = min(trials, _trials_had(rows, 1))
    judged = next((number for number in range(splits, 1, -1) if _trials_had(rows, number) >= had), 1)
    again = judged < AGAIN and _trials_had(rows, AGAIN) >= had
    seen = luck(_trials(rows), _finals(rows, had, judged), had, judged) if again else None
    return had, AGAIN if seen is not None and seen > LUCKY else judged


def _shortfall(trials: int, splits: int, most_trials: int, most_splits: int) -> str:
    """How a search was smaller than that of most methods."""
    told = [f"{trials} trial{'s' if trials > 1 else ''}"] if trials < most_trials else []
    judged = f"judged on {splits} split{'s' if splits > 1 else ''}"
    return ", ".join([*told, judged] if splits < most_splits else told)


def _trials(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["kind"] == "trial"]


def _finals(rows: list[Row], budget: int, splits: int) -> list[Row]:
    """The final rows of the values that a method's search settled on."""
    best = best_trial(_trials(rows), budget, splits)
    if best is None:
        return []
    return [row for row in rows if row["kind"] == "final" and row["config_hash"] == best["config_hash"]]


def _accuracies(finals: list[Row]) -> dict[int, float]:
    return {int(row["split"]): 100 * row["test_accuracy"] for row in finals if row["status"] == "done"}


def _cell(
    rows: list[Row],
    finals: list[Row],
    method: str,
    dataset: str,
    protocol: str,
    trials: int,
    references: dict[str, dict[int, float]],
) -> CellResult:
    comparable = dataset in DATASETS and protocol in (usual_protocol(dataset), DATASETS[dataset].protocol)
    paper, accuracy = paper_figure(method, dataset) if comparable else None, _accuracies(finals)
    stopped = [row for row in finals or rows if row["status"] != "done"]
    reason = " ".join(str(stopped[0]["reason"]).split()) if stopped else ""
    trials = len({row["trial"] for row in rows if row["kind"] == "trial" and 0 <= row["trial"] < trials})
    if not accuracy:
        status = "from the paper" if paper else "not run yet"
        if stopped and len(stopped) == len(finals or rows):
            status = "did not run"
        elif any(row["kind"] == "final" for row in rows):
            reason = (
                f"its final runs are not of the best of {trials} trials"
                if trials
                else "of its search there is no trial, or none that was judged as most are here"
            )
        else:
            reason = ""
        return CellResult(method, dataset, status, protocol, paper=paper, trials=trials, reason=reason)
    done = [row for row in finals if row["status"] == "done"]
    values = list(accuracy.values())
    gaps = {name: paired_difference(accuracy, theirs) for name, theirs in references.items() if name != method}
    return CellResult(
        method=method,
        dataset=dataset,
        status="re-run",
        protocol=protocol,
        mean=float(np.mean(values)),
        std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        n=len(values),
        trials=trials,
        differences={name: gap for name, gap in gaps.items() if gap is not None},
        paper=paper,
        seconds=float(np.mean([row["seconds"] for row in done])),
        preprocessing_seconds=float(np.mean([row["preprocessing_seconds"] for row in done])),
        memory_mb=float(np.max([row["peak_memory_bytes"] for row in done])) / 1e6,
        seeds_alone=len(done) > 1 and len({row.get("split_hash", row["split"]) for row in done}) == 1,
        device=", ".join(sorted({str(row["device"]) for row in done if "device" in row})),
        parameters=int(done[0]["parameters"]),
        reason=reason,
    )


# -------------------------------------------------------------------- formats


def markdown(cells: list[CellResult]) -> str:
    """A table of methods × datasets, the paired differences, how it was run, and what was not."""
    columns, methods = axes_of(cells)
    at = {(cell.method, cell.column): cell for cell in cells}
    head = ["| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    best = best_means(cells)
    lines = [
        "Test accuracy in percent, mean ± standard deviation over splits (their number in brackets unless it is 10).",
        "Every cell says whether it was *re-run* here, is *from the paper*, *did not run*, or was *not run yet*;",
        "where the paper has a figure it stands beside ours in italics. The best that was re-run is bold. Marked are",
        "searches that were smaller than those of most methods, and *lucky* ones, where the trial that was chosen had",
        f"over {LUCKY:.0f} points more on validation nodes than the final runs: better settings may have been missed.",
        "",
        *head,
    ]
    for method in methods:
        texts = [_text(at[method, c], best[c]) for c in columns]
        lines.append(f"| {entry(method).title} | " + " | ".join(texts) + " |")
    for reference in REFERENCES:
        compared = compared_methods(cells, reference)
        if compared:
            about = f"Paired difference to {entry(reference).title} on the same splits, with its 95 % interval:"
            lines += ["", about, "", *head]
        for method in compared:
            texts = _gaps(at, method, columns, reference)
            lines.append(f"| {entry(method).title} | " + " | ".join(texts) + " |")
    lines += ["", *[f"- {line}" for line in notes(cells)]]
    return "\n".join(lines) + "\n"


def _text(cell: CellResult, best: float | None) -> str:
    paper = f"*{cell.paper[0]:.2f} ± {cell.paper[1]:.2f}* <sup>from the paper</sup>" if cell.paper else ""
    if cell.mean is None:
        status = "" if cell.status == "from the paper" else cell.status
        return "; ".join(part for part in (status, paper) if part)
    spread = f" ± {cell.std:.2f}" if cell.std is not None else ""
    count = "" if cell.n == 10 else f" ({cell.n})"
    text = f"{cell.mean:.2f}{spread}"
    ours = f"**{text}**" if cell.mean == best else text
    ours += f"{count} <sup>{', '.join(filter(None, ('re-run', cell.marks)))}</sup>"
    return "; ".join(part for part in (ours, paper) if part)


def _gaps(at: Cells, method: str, columns: Sequence[str], reference: str) -> list[str]:
    return [difference_text(at[method, column].differences.get(reference)) for column in columns]


def difference_text(difference: Difference | None) -> str:
    """A paired difference and its interval; empty without."""
    return "" if difference is None else f"{difference[0]:+.2f} [{difference[1]:+.2f}, {difference[2]:+.2f}]"


def compared_methods(cells: list[CellResult], reference: str) -> list[str]:
    """The methods with a paired difference to a reference somewhere, in order."""
    return list(dict.fromkeys(cell.method for cell in cells if reference in cell.differences))


def best_means(cells: list[CellResult]) -> dict[str, float | None]:
    """The highest mean of each column that was re-run."""
    columns, _ = axes_of(cells)
    return {c: max((x.mean for x in cells if x.column == c and x.mean is not None), default=None) for c in columns}


NO_SGPM = (
    "Tokenphormer has no SGPM-token here; the paper's has one, but on cornell, wisconsin and actor. What it is worth "
    "is in the study sgpm (sgpm.md)"
)
"""What tells our rows of Tokenphormer from the paper's."""


def notes(cells: list[CellResult]) -> list[str]:
    """Which tokens, which splits, how much was searched, and why cells are empty or rest on fewer splits."""
    columns, _ = axes_of(cells)
    lines = []
    for column in columns:
        here = [cell for cell in cells if cell.column == column]
        ran = [cell for cell in here if cell.status == "re-run"]
        full = [cell for cell in ran if not cell.short] or ran
        trials = " or ".join(map(str, sorted({cell.trials for cell in full})))
        number = max((cell.search_splits for cell in full if not cell.again), default=1)
        which = "a split that is not reported" if number == 1 else f"{number} splits that are not reported"
        half = ", on those of its nodes that did not stop the training" if here[0].judged else ""
        searched = f"search of {trials} trials a method, on validation of {which}{half}"
        one = "one split, on which runs differ in their seeds alone: ± and intervals are over these"
        splits = one if any(cell.seeds_alone for cell in ran) else f"{here[0].protocol} splits"
        lines.append(f"{column}: {splits}; {searched if ran else 'nothing re-run yet'}")
    lines += [f"{entry(c.method).title} on {c.column}: {c.short} alone" for c in cells if c.short]
    again = f"judged on {AGAIN} splits, for what was chosen on fewer was lucky"
    lines += [f"{entry(c.method).title} on {c.column}: {again}" for c in cells if c.again]
    lucky = "points more on validation nodes in the trial that was chosen than in the final runs"
    lines += [f"{entry(c.method).title} on {c.column}: {c.luck:.1f} {lucky}" for c in cells if c.lucky]
    lines += [f"{entry(c.method).title} on {c.column}, {c.status}: {c.reason}" for c in cells if c.reason]
    lines += [NO_SGPM] if any(cell.method == "tokenphormer" and cell.n and cell.paper for cell in cells) else []
    return lines


def latex(cells: list[CellResult]) -> str:
    """The main table and the paired differences as LaTeX tabulars; needs no package."""
    columns, methods = axes_of(cells)
    at = {(cell.method, cell.column): cell for cell in cells}
    best = best_means(cells)
    main = [[entry(m).title, *(_tex_text(at[m, c], best[c]) for c in columns)] for m in methods]
    lines = [
        "% Mean and standard deviation over splits, their number in brackets unless it is 10; the paper's figure in",
        "% italics. Superscripts: r re-run (s: after a smaller search than that of most methods, l: a lucky one),",
        "% p from the paper, x did not run, - not run yet.",
        *tabular(columns, main),
    ]
    for reference in REFERENCES:
        gaps = [
            [entry(m).title, *(f"${text}$" if text else "" for text in _gaps(at, m, columns, reference))]
            for m in compared_methods(cells, reference)
        ]
        if gaps:
            lines.append(f"% Paired difference to {entry(reference).title} on the same splits, with its 95 % interval.")
            lines += tabular(columns, gaps)
    return "\n".join([*lines, *(f"% {line}" for line in notes(cells))]) + "\n"


def tabular(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a LaTeX tabular, one column for each of `columns` beside the first."""
    head = " & ".join(["Method", *(_tex_head(column) for column in columns)])
    body = [" & ".join(row) + r" \\" for row in rows]
    opening = rf"\begin{{tabular}}{{l{'c' * len(columns)}}}"
    return [opening, r"\hline", head + r" \\", r"\hline", *body, r"\hline", r"\end{tabular}"]


def _tex_head(column: str) -> str:
    return (column[:1].upper() + column[1:]).replace("_", r"\_")  # names of own graphs may have it


def _tex_text(cell: CellResult, best: float | None) -> str:
    paper = rf"\emph{{{cell.paper[0]:.2f}$\pm${cell.paper[1]:.2f}}}$^{{p}}$" if cell.paper else ""
    if cell.mean is None:
        mark = {"did not run": "--$^{x}$", "not run yet": "--$^{-}$"}.get(cell.status, "")
        return " ".join(part for part in (mark, paper) if part)
    text = f"{cell.mean:.2f}" + (rf"$\pm${cell.std:.2f}" if cell.std is not None else "")
    text = rf"\textbf{{{text}}}" if cell.mean == best else text
    marks = "r" + (",s" if cell.short else "") + (",l" if cell.lucky else "")
    ours = text + ("" if cell.n == 10 else f" ({cell.n})") + f"$^{{{marks}}}$"
    return " ".join(part for part in (ours, paper) if part)


def csv_text(cells: list[CellResult]) -> str:
    """One line a cell, with everything."""
    columns = ["method", "dataset", "protocol", "status", "mean", "std", "n", "trials"]
    columns += ["difference", "low", "high", "plus_difference", "plus_low", "plus_high"]
    columns += [
        "paper_mean",
        "paper_std",
        "seconds",
        "preprocessing_seconds",
        "memory_mb",
        "device",
        "parameters",
        "search_splits",
        "marks",
        "reason",
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for cell in cells:
        gaps = [end for name in REFERENCES for end in cell.differences.get(name, (None, None, None))]
        paper = cell.paper or (None, None)
        start = [cell.method, cell.dataset, cell.protocol, cell.status, cell.mean, cell.std, cell.n, cell.trials]
        end = [cell.seconds, cell.preprocessing_seconds, cell.memory_mb, cell.device, cell.parameters]
        end += [cell.search_splits if cell.n else None, cell.marks, cell.reason]
        writer.writerow(["" if value is None else value for value in [*start, *gaps, *paper, *end]])
    return text.getvalue()


def axes_of(cells: list[CellResult]) -> tuple[list[str], list[str]]:
    """The columns and the methods of a table, in order."""
    return list(dict.fromkeys(c.column for c in cells)), list(dict.fromkeys(c.method for c in cells))


def check_ours(out: Path, names: Iterable[str]) -> None:
    """Raise if a file that is to be written anew was not written by `tables`: nothing of anybody's is lost."""
    for name in names:
        path = out / name
        if path.exists() and not any(mark in path.read_text(encoding="utf-8", errors="replace") for mark in MARKS):
            raise InputError(f"{path}: was not written by this command; move it, or give another --out")


def write_tables(cells: list[CellResult], out: Path) -> list[Path]:
    """Write main.md, main.tex, main.csv and main.html."""
    from tokenphormer.benchmark.page import html_page

    files = {"main.md": markdown(cells), "main.tex": latex(cells), "main.csv": csv_text(cells)}
    files["main.html"] = html_page(cells)
    check_ours(out, files)
    for name, text in files.items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [out / name for name in files]
