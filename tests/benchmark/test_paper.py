"""The figures that are put beside ours are those that the paper prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tokenphormer.benchmark.methods import METHODS, entry
from tokenphormer.benchmark.paper import HETEROPHILOUS_DATASETS, MAIN_DATASETS, paper_figure
from tokenphormer.graph.datasets import DATASETS

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "tokenphormer.tex"
NAMES = {"GraphSAGE": "sage", "GPR-GNN": "gprgnn", "GRAND+": "grand_plus", "ANS-GT": "ans_gt"}


def printed(label: str, columns: int) -> dict[str, list[tuple[float, float] | None]]:
    """The table with that label, by our names of the methods; `-` is None, an `x` for an unknown digit is dropped."""
    if not PAPER.exists():
        pytest.skip("the paper's source is not beside the repository")
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", PAPER.read_text(encoding="utf-8"), re.DOTALL)
    (table,) = [text for text in tables if f"\\label{{{label}}}" in text]
    found = {}
    for line in table.splitlines():
        cells = [
            re.sub(r"\\textbf\{([^}]*)\}", r"\1", cell).strip() for cell in line.strip().removesuffix(r"\\").split("&")
        ]
        if len(cells) > columns and cells[0] != "Method":
            figures = []
            for cell in cells[-columns:]:
                both = re.fullmatch(r"(\d+\.\d+)x?\s*\$\\pm\$\s*(\d+\.\d+)x?", cell)
                assert both or cell == "-", cell
                figures.append((float(both[1]), float(both[2])) if both else None)
            found[NAMES.get(cells[0], cells[0].lower())] = figures
    return found


@pytest.mark.parametrize(
    ("label", "datasets", "count"), [("tab:main", MAIN_DATASETS, 18), ("hetero", HETEROPHILOUS_DATASETS, 8)]
)
def test_the_figures_are_the_papers(label: str, datasets: tuple[str, ...], count: int) -> None:
    table = printed(label, len(datasets))
    assert len(table) == count
    assert table.keys() <= set(METHODS)
    for method in METHODS:
        expected = table.get(method, [None] * len(datasets))
        assert [paper_figure(method, name) for name in datasets] == expected, entry(method).title


def test_what_the_paper_has_not() -> None:
    assert paper_figure("jknet", "photo") is None
    assert paper_figure("tokenphormer+", "cora") is None
    assert paper_figure("gcn", "debian") is None
    assert paper_figure("sage", "cornell") is None
    assert paper_figure("gcn", "cora") == (87.33, 0.38)


def test_its_datasets_are_known() -> None:
    assert {*MAIN_DATASETS, *HETEROPHILOUS_DATASETS} <= DATASETS.keys()
