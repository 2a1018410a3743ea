"""Predictions as tables: whatever ids and class names hold, a row stays a row."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tokenphormer.evaluation.prediction_files import write_pieces
from tokenphormer.graph import Graph

SCORES = np.array([[0.75, 0.25], [0.25, 0.75]], np.float32)


def graph_of(ids: list[str], classes: tuple[str, ...]) -> Graph:
    return Graph.from_edges([[0], [1]], y=[0, 1], node_ids=ids, class_names=classes)


def rows_of(path: Path, graph: Graph) -> list[list[str]]:
    """What another reader finds in a table written in two pieces."""
    pieces = [(np.array([0]), SCORES[:1]), (np.array([1]), SCORES[1:])]
    write_pieces(path, graph, pieces, graph.class_names)
    if path.suffix == ".parquet":
        table = pd.read_parquet(path)
        return [list(table), *([str(cell) for cell in row] for row in table.itertuples(index=False))]
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", ',"'])
def test_names_with_line_ends_come_back(tmp_path: Path, kind: str, end: str) -> None:
    name, other = f"a{end}b", f"c{end}"
    found = rows_of(tmp_path / f"p.{kind}", graph_of([name, "plain"], ("x", other)))
    assert found == [
        ["id", "label", "predicted", "probability", "p:x", f"p:{other}"],
        [name, "x", "x", "0.75", "0.75", "0.25"],
        ["plain", other, other, "0.75", "0.25", "0.75"],
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_half_a_surrogate_pair_is_written_as_its_escape(tmp_path: Path, kind: str) -> None:
    """Names of files may hold such a thing, and UTF-8 cannot: a training would end without its table."""
    found = rows_of(tmp_path / f"p.{kind}", graph_of(["é\ud800", "plain"], ("x", "\udcff")))
    assert [row[0] for row in found] == ["id", "é\\ud800", "plain"]
    assert found[2][1:3] == ["\\udcff", "\\udcff"]
