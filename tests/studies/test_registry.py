"""The studies by name, the files they write, and the command that runs them."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_cli import Cli, assert_refused, cli, contents
from tokenphormer.errors import InputError
from tokenphormer.evaluation.plots import message_figure
from tokenphormer.studies import datasets
from tokenphormer.studies.registry import STUDIES, find_study
from tokenphormer.studies.results import write_markdown, write_results

__all__ = ["cli"]
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "studies"
kept = pytest.mark.skipif(not RESULTS.parent.is_dir(), reason="results are kept in the repository, not in the sdist")


@dataclass(frozen=True)
class Row:
    name: str
    share: float
    count: int | None


def test_results_are_written_as_they_are(tmp_path: Path) -> None:
    rows = [Row('a, "b"', 1 / 3, 7), Row("c", 0.0, None)]
    findings = {"share": 2 / 3, "count": 3, "none": None}
    written = write_results(tmp_path, findings, {"picture": message_figure("nothing")}, table=rows)
    assert [path.name for path in written] == ["table.csv", "findings.json", "picture.png", "picture.svg"]
    with (tmp_path / "table.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["name", "share", "count"], ['a, "b"', "0.333333", "7"], ["c", "0", ""]]
    assert json.loads((tmp_path / "findings.json").read_text()) == {"share": 0.666667, "count": 3, "none": None}
    write_markdown(tmp_path / "t.md", ("a", "b"), [("1", "2")])
    assert (tmp_path / "t.md").read_text() == "| a | b |\n| --- | ---: |\n| 1 | 2 |\n"


def test_unknown_studies_are_refused() -> None:
    with pytest.raises(InputError, match=r"study: 'convergense'; expected one of .*nearest: convergence"):
        find_study("convergense")


@kept
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_on_the_page_with_its_figures(name: str) -> None:
    """And what it wrote last is in the repository: the page shows these very files."""
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    assert f"tokenphormer study {name}" in page
    figures = sorted((RESULTS / name).glob("*.png"))
    assert figures
    for figure in figures:
        assert f"(../experiments/studies/{name}/{figure.name})" in page


def test_the_command_lists_and_runs_studies(cli: Cli) -> None:
    answer = cli("study", "list")
    assert [line.split()[0] for line in answer.out.splitlines()] == list(STUDIES)
    answer = cli("study", "hop-pair", "--out", "new/folder")
    assert answer.code == 0
    assert answer.out.endswith("new/folder: tables and figures\n")
    assert "exchanged ends: tv of uniform tokens, 2 steps: 0.5\n" in answer.out
    first = contents(Path("new/folder"))
    assert {"hops.csv", "walks.csv", "findings.json"} <= first.keys()
    assert cli("study", "hop-pair").code == 0
    assert contents(Path("experiments/studies/hop-pair")) == first
    assert_refused(cli("study", "hops"), 2, "study: 'hops'; expected one of convergence, documents, hop-pair")


# ---------------------------------------------------------------- the table of datasets


def test_datasets_without_files(tmp_path: Path) -> None:
    result = datasets.study(tmp_path)
    rows = {row.name: row for row in result.rows}
    assert (rows["debian"].nodes, rows["debian"].diameter, rows["debian"].radius) == (7709, 16, 8)
    assert rows["cora"].nodes is None
    assert rows["cora"].paper_diameter == 19
    assert rows["cora"].status == "absent"  # without the folder, which is of this machine
    names = {path.name for path in datasets.write(result, tmp_path / "out")}
    assert {"datasets.csv", "datasets.md", "diameters.png"} <= names
    text = (tmp_path / "out" / "datasets.md").read_text()
    assert "| debian | 7,709 | 15,289 | 12 | 1,187 | 145 | 0.718 | 16 | 8 |" in text
    assert "| cora | absent (2,708) |" in text


def test_the_table_says_where_the_paper_differs() -> None:
    row = datasets.DatasetRow("photo", 7650, 7650, 119081, 238163, 8, 8, 745, 745, 11, 11, 6, 136, 0.8272, "on disk")
    result = datasets.Datasets([row])
    assert result.findings == {"datasets measured": 1, "photo, edges": "119081 here, 238163 in the paper"}
    cells = datasets.markdown_rows(result)[0]
    assert cells == ["photo", "7,650", "119,081 (paper: 238,163)", "8", "745", "136", "0.827", "11", "6"]


@kept
def test_the_kept_table_confirms_the_papers_diameters() -> None:
    with (RESULTS / "datasets" / "datasets.csv").open(newline="", encoding="utf-8") as file:
        given = [row for row in csv.DictReader(file) if row["paper_diameter"]]
    assert len(given) == 6
    assert all(row["diameter"] == row["paper_diameter"] for row in given)
    table = (RESULTS / "datasets" / "datasets.md").read_text(encoding="utf-8")
    assert table in (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
