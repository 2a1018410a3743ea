"""Write the tables of results in README.md and docs/limits.md anew, from experiments/tables and experiments/rows.

    python scripts/results_blocks.py

What stands between two markers, `<!-- results: NAME -->` and `<!-- end of results -->`, is replaced; a test compares
pages and tables. Nothing in these blocks is typed in, the sentences included.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenphormer.benchmark.grid import STUDY, usual_protocol
from tokenphormer.benchmark.methods import entry
from tokenphormer.benchmark.rows import Row, read_rows
from tokenphormer.benchmark.tables import Difference, difference_text, main_finals

Files = dict[str, list[Row]]
"""Rows by the name of their file."""
ROOT = Path(__file__).parents[1]
OURS, PLUS, TUNED, PLAIN = "tokenphormer", "tokenphormer+", "gcn_tuned", "gcn"
MARKED = re.compile(r"(?<=<!-- results: )(\w+)( -->\n).*?(?=<!-- end of results -->)", re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """A method on a dataset, as the table of experiments has it, in percent."""

    method: str
    mean: float
    std: float
    n: int
    seconds: float
    device: str
    gaps: dict[str, Difference]
    """To Tokenphormer and to Tokenphormer+ on the same splits, with their 95 % intervals."""

    @property
    def text(self) -> str:
        """Mean ± standard deviation and the number of splits."""
        return f"{self.mean:.1f} ± {self.std:.1f} ({self.n})"

    @property
    def time(self) -> str:
        """Seconds a run, and that it was on a CPU if it was."""
        return f"{self.seconds:.1f}" + (" on a CPU" if self.device == "cpu" else "")

    def against(self, ours: str) -> str:
        """Whether the interval of the difference lets one tell it from ours: `better`, `worse` or `level`."""
        gap = self.gaps.get(ours)
        if gap is None:
            return ""
        return "better" if gap[1] > 0 else "worse" if gap[2] < 0 else "level"


def read_cells(folder: Path) -> dict[str, dict[str, Cell]]:
    """Dataset → method → cell, of everything that was re-run on the usual splits; datasets in the table's order."""
    found: dict[str, dict[str, Cell]] = {}
    with (folder / "main.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "re-run" and row["protocol"] == usual_protocol(row["dataset"]):
                gaps: dict[str, Difference] = {}
                for ours, prefix in ((OURS, ""), (PLUS, "plus_")):
                    ends = (row[f"{prefix}difference"], row[f"{prefix}low"], row[f"{prefix}high"])
                    if all(ends):
                        gaps[ours] = (float(ends[0]), float(ends[1]), float(ends[2]))
                std = float(row["std"] or "nan")
                about = (std, int(row["n"]), float(row["seconds"]), row["device"])
                cell = Cell(row["method"], float(row["mean"]), *about, gaps)
                found.setdefault(row["dataset"], {})[cell.method] = cell
    return {dataset: cells for dataset, cells in found.items() if OURS in cells}


def row_files(folder: Path) -> Files:
    """The rows of each file."""
    return {path.name: read_rows([path]) for path in sorted(folder.glob("*.jsonl"))}


def files_of(files: Files, dataset: str, methods: Iterable[str]) -> list[str]:
    """Names of the files with the rows that the cells of some methods on a dataset are of."""
    protocol = usual_protocol(dataset)
    rows = [row for found in files.values() for row in found if row["dataset"] == dataset]
    counted = {
        (method, row["config_hash"], row["split"])
        for method in methods
        for row in main_finals(rows, dataset, protocol, method)
    }
    about = ("final", STUDY, dataset, protocol)
    return [
        name
        for name, found in files.items()
        if any(
            (row["kind"], row["study"], row["dataset"], row.get("protocol")) == about
            and (row["model"], row["config_hash"], row["split"]) in counted
            for row in found
        )
    ]


def rivals_of(cells: dict[str, Cell]) -> list[Cell]:
    """What was run on a dataset but ours."""
    return [cell for method, cell in cells.items() if method not in (OURS, PLUS)]


def best_of(cells: list[Cell]) -> Cell | None:
    """The one with the highest mean; None if there is none."""
    return max(cells, key=lambda cell: cell.mean, default=None)


def way_of(cells: list[Cell], ours: str) -> str:
    """How the best of some rivals compares with ours; `best worse` if it is worse, but another cannot be told apart.

    Means are not all: one that is lower, but jumps from split to split, may have a wider interval.
    """
    best = best_of(cells)
    way = best.against(ours) if best else ""
    return "best worse" if way == "worse" and any(cell.against(ours) != "worse" for cell in cells) else way


def listed(names: list[str]) -> str:
    """Names as a sentence has them.

    >>> listed(["cora", "photo", "dblp"])
    'cora, photo and dblp'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def verdicts(cells: dict[str, list[Cell]], ours: str, texts: dict[str, str]) -> str:
    """One sentence for each way in which rivals compare with ours; `cells` are the rivals by dataset."""
    groups = {way: [dataset for dataset in cells if way_of(cells[dataset], ours) == way] for way in texts}
    return " ".join(text.format(listed(groups[way])) for way, text in texts.items() if groups[way])


def links(names: list[str]) -> str:
    """Links to files of rows; those that differ in a number alone share their name.

    >>> links(["grid-1.jsonl", "grid-10.jsonl", "grid-2.jsonl", "other.jsonl"])
    'grid [1](experiments/rows/grid-1.jsonl) [2](experiments/rows/grid-2.jsonl) [10](experiments/rows/grid-10.jsonl), \
[other](experiments/rows/other.jsonl)'
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        series, _, number = Path(name).stem.rpartition("-")
        numbered = bool(series) and number.isdecimal()
        groups.setdefault(series if numbered else Path(name).stem, []).append((int(number) if numbered else 0, name))
    found = []
    for series, members in groups.items():
        if members[0][0] == 0:
            found.append(f"[{series}](experiments/rows/{members[0][1]})")
        else:
            shown = (f"[{number}](experiments/rows/{name})" for number, name in sorted(members))
            found.append(f"{series} {' '.join(shown)}")
    return ", ".join(found)


def results(cells: dict[str, dict[str, Cell]], files: Files) -> str:
    """README's table: both of ours beside the best of the others and the tuned GCN."""
    lines = [
        "| dataset | Tokenphormer | Tokenphormer+ | best of the others | GCN, tuned | best − Tokenphormer+ | rows |",
        "|---|---|---|---|---|---|---|",
    ]
    rivals = {dataset: rivals_of(here) for dataset, here in cells.items()}
    for dataset, here in cells.items():
        best = best_of(rivals[dataset])
        gap = difference_text(best.gaps.get(PLUS)) if best else ""
        shown = [here[method].text if method in here else "not run yet" for method in (OURS, PLUS, TUNED)]
        other = f"{entry(best.method).title} {best.text}" if best else "not run yet"
        rows = links(files_of(files, dataset, {OURS, PLUS, TUNED, *([best.method] if best else [])}))
        lines.append(f"| {dataset} | {shown[0]} | {shown[1]} | {other} | {shown[2]} | {gap} | {rows} |")
    said = {
        "worse": "On {0} {1} is ahead of all others that were run, with zero outside the 95 % interval.",
        "best worse": "On {0} {1} is ahead of the best of the others; not all others can be told apart from it.",
        "level": "On {0} {1} and the best of the others cannot be told apart.",
        "better": "On {0} the best of the others is ahead of {1}.",
    }
    sentences = [
        verdicts(rivals, ours, {way: text.replace("{1}", entry(ours).title) for way, text in said.items()})
        for ours in (PLUS, OURS)
    ]
    return "\n".join([*lines, "", "\n\n".join(filter(None, sentences))]) + "\n"


def enough(cells: dict[str, dict[str, Cell]], _files: Files) -> str:
    """The table of docs/limits.md: Tokenphormer+, which `train` begins with, beside two GCNs, and what a run takes."""
    lines = [
        "| dataset | Tokenphormer+ | GCN | GCN, tuned | better GCN − Tokenphormer+ | seconds a run: ours, that GCN |",
        "|---|---|---|---|---|---|",
    ]
    both: dict[str, list[Cell]] = {}
    for dataset, here in cells.items():
        gcns = [here[method] for method in (PLAIN, TUNED) if method in here]
        if not gcns or PLUS not in here:
            continue
        both[dataset], top = gcns, max(gcns, key=lambda cell: cell.mean)
        shown = [here[method].text if method in here else "not run yet" for method in (PLUS, PLAIN, TUNED)]
        gap, times = difference_text(top.gaps.get(PLUS)), f"{here[PLUS].time}, {top.time}"
        lines.append(f"| {dataset} | {shown[0]} | {shown[1]} | {shown[2]} | {gap} | {times} |")
    said = {
        "better": "On {} the better GCN is ahead.",
        "level": "On {} a GCN cannot be told from Tokenphormer+, so it is enough.",
        "best worse": "On {} Tokenphormer+ is ahead of the better GCN; the other one is too uneven to tell.",
        "worse": "On {} Tokenphormer+ is ahead of both.",
    }
    alone = said | {
        "better": "On {} the one GCN that was run is ahead.",
        "worse": "On {} Tokenphormer+ is ahead of the one GCN that was run.",
    }
    of_two = verdicts({dataset: gcns for dataset, gcns in both.items() if len(gcns) > 1}, PLUS, said)
    of_one = verdicts({dataset: gcns for dataset, gcns in both.items() if len(gcns) == 1}, PLUS, alone)
    return "\n".join([*lines, "", " ".join(filter(None, (of_two, of_one)))]) + "\n"


BLOCKS = {"main": results, "enough": enough}
PAGES = {"README.md": "main", "docs/limits.md": "enough"}


def rewritten(text: str, root: Path = ROOT) -> str:
    """A page with its blocks as the experiments have them now."""
    cells, files = read_cells(root / "experiments" / "tables"), row_files(root / "experiments" / "rows")
    return MARKED.sub(lambda found: f"{found[1]}{found[2]}{BLOCKS[found[1]](cells, files)}", text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
