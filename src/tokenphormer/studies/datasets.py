"""The table of datasets as measured, beside the paper's (appendix B.1, "Statistics on datasets")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tokenphormer.evaluation.plots import BLUE, ORANGE, SKY
from tokenphormer.graph.listing import PAPER, dataset_rows
from tokenphormer.studies.figures import finish, legend, panels
from tokenphormer.studies.results import Cell, write_markdown, write_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("nodes", "edges", "classes", "features", "components", "homophily", "diameter", "radius")


@dataclass(frozen=True)
class DatasetRow:
    """A dataset, measured and as the paper has it; diameter and radius are of the largest component."""

    name: str
    nodes: Cell
    paper_nodes: Cell
    edges: Cell
    paper_edges: Cell
    classes: Cell
    paper_classes: Cell
    features: Cell
    paper_features: Cell
    diameter: Cell
    paper_diameter: Cell
    radius: Cell
    components: Cell
    homophily: Cell
    status: str


@dataclass(frozen=True)
class Datasets:
    """All rows of the study."""

    rows: list[DatasetRow]

    @property
    def findings(self) -> dict[str, Cell]:
        """Where the paper's table and the measured one differ."""
        found: dict[str, Cell] = {"datasets measured": sum(row.nodes is not None for row in self.rows)}
        for row in self.rows:
            for column in PAPER:
                ours, theirs = getattr(row, column), getattr(row, f"paper_{column}")
                if ours is not None and theirs is not None and ours != theirs:
                    found[f"{row.name}, {column}"] = f"{ours} here, {theirs} in the paper"
        return found


def study(root: str | Path | None = None) -> Datasets:
    """Measure every dataset that is on disk."""
    return Datasets([_row(row) for row in dataset_rows(root)])


def _row(row: dict[str, int | float | str | None]) -> DatasetRow:
    status = str(row["status"]).split(":")[0]  # where an absent file should be is of this machine
    return DatasetRow(name=str(row["name"]), status=status, **{key: row[key] for key in _CELLS})


_CELLS = (*COLUMNS, *(f"paper_{column}" for column in PAPER))


def markdown_rows(result: Datasets) -> list[list[str]]:
    """The rows as text; the paper's figure in brackets where it differs."""
    return [[row.name, *(_cell(row, column) for column in COLUMNS)] for row in result.rows]


def _cell(row: DatasetRow, column: str) -> str:
    ours, theirs = getattr(row, column), getattr(row, f"paper_{column}", None)
    if ours is None:
        return "absent" if theirs is None else f"absent ({theirs:,})"
    return _show(ours) if theirs is None or theirs == ours else f"{_show(ours)} (paper: {_show(theirs)})"


def _show(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def plot(result: Datasets) -> dict[str, Figure]:
    """One figure: diameter and radius, and the paper's diameter."""
    rows = [row for row in result.rows if isinstance(row.diameter, int)]
    figure, axes = panels(1, 1, 3.0)
    panel, at = axes[0, 0], np.arange(len(rows))
    panel.bar(at - 0.2, [row.diameter for row in rows], width=0.36, color=BLUE, label="diameter")
    panel.bar(at + 0.2, [row.radius for row in rows], width=0.36, color=SKY, label="radius")
    given = [(place - 0.2, row.paper_diameter) for place, row in enumerate(rows) if row.paper_diameter is not None]
    if given:
        x, y = zip(*given, strict=True)
        panel.plot(x, y, "D", color=ORANGE, markersize=5, label="diameter in the paper")
    panel.set_xticks(at, [row.name for row in rows])
    finish(panel, "Largest components", "")
    legend(panel, loc="upper right", ncols=3)
    low, high = panel.get_ylim()
    panel.set_ylim(low, high * 1.12)
    return {"diameters": figure}


def write(result: Datasets, folder: Path) -> list[Path]:
    """Write the table twice, the differences and the figure."""
    written = write_results(folder, result.findings, plot(result), datasets=result.rows)
    return [*written, write_markdown(folder / "datasets.md", ("dataset", *COLUMNS), markdown_rows(result))]
