"""What a study leaves behind: its tables as CSV, its findings as JSON, its figures as PNG and SVG."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenphormer.evaluation.plots import save_figure
from tokenphormer.files import atomic_path

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from matplotlib.figure import Figure

Cell = str | int | float | bool | None
Findings = Mapping[str, Cell]
DIGITS = 6
"""Significant digits of a number in a file: fewer than two machines' libraries agree on."""


def write_results(
    folder: Path, findings: Findings, figures: Mapping[str, Figure], **tables: Sequence[DataclassInstance]
) -> list[Path]:
    """Write `NAME.csv` for each table, `findings.json`, and each figure twice; returns what was written."""
    written = [write_table(folder / f"{name}.csv", rows) for name, rows in tables.items()]
    text = json.dumps(_rounded(findings), indent=1, ensure_ascii=False) + "\n"
    written.append(_write_text(folder / "findings.json", text))
    for name, figure in figures.items():
        for suffix in (".png", ".svg"):
            save_figure(figure, folder / f"{name}{suffix}")
            written.append(folder / f"{name}{suffix}")
    return written


def write_table(path: Path, rows: Sequence[DataclassInstance]) -> Path:
    """Write rows of one kind, a column for each of their fields; nothing stands for None."""
    assert rows, f"{path.name}: a study without rows has gone wrong"
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(rows[0])])
        for row in rows:
            values = (getattr(row, field.name) for field in dataclasses.fields(row))
            writer.writerow([_text(value) for value in values])
    return path


def write_markdown(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    """Write a Markdown table: the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return _write_text(path, "".join(f"| {' | '.join(line)} |\n" for line in lines))


def _write_text(path: Path, text: str) -> Path:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def _rounded(values: Findings) -> dict[str, Cell]:
    return {key: float(_text(value)) if isinstance(value, float) else value for key, value in values.items()}


def _text(value: Cell) -> str:
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return "" if value is None else str(value)
