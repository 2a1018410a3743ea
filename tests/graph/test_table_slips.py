"""Slips that spreadsheets and databases make in tables: the error or the note says what to do."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tokenphormer.errors import InputError
from tokenphormer.graph import make_split
from tokenphormer.graph.external import convert
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.tables import label_notes, read_folder, write_folder

EDGES = "source,target\na,b\n"


def write(folder: Path, nodes: str, edges: str = EDGES) -> Path:
    folder.mkdir()
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return folder


def read_by_pieces(folder: Path) -> Graph:
    return convert(folder, folder.with_name("disk"))


both_readers = pytest.mark.parametrize("read", [read_folder, read_by_pieces])


@both_readers
@pytest.mark.parametrize(
    ("nodes", "edges", "said"),
    [
        ("Id,label\na,x\nb,y\n", EDGES, "lacks the column 'id'.*names are compared exactly: call 'Id' 'id'"),
        ("id\na\nb\n", "Source,Target\na,b\n", "lacks the column 'source'.*call 'Source' 'source'"),
        ("id,Label\na,x\nb,y\n", EDGES, "found 'x'.*if it is the column 'label', call it so"),
        ("id,label,SPLIT\na,x,train\nb,y,val\n", EDGES, "found 'train'.*if it is the column 'split', call it so"),
        ('id,size\na,"1,5"\nb,"2,5"\n', EDGES, "found '1,5'.*write decimals with points"),
        ('id,size\na,"1,234.5"\nb,1\n', EDGES, "found '1,234.5'.*thousands without commas"),
        ("id,size\na,1\nb,nan\n", EDGES, "column 'size': nan; .*; fill in what is missing, or drop the column$"),
        ("sep=,\nid,size\na,1\nb,2\n", EDGES, "line 1: 'sep=' is what a spreadsheet writes .*; remove this line$"),
        ("sep=;\nid;size\na;1\n", EDGES, "line 1: 'sep=;' is .*; remove this line; separate the columns with commas"),
        ("id,size,\na,1,\nb,2,\n", EDGES, "column 3 has no name; name it, or remove it from every line$"),
    ],
)
def test_errors(read: Callable[[Path], Graph], tmp_path: Path, nodes: str, edges: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(write(tmp_path / "own", nodes, edges))


@both_readers
@pytest.mark.parametrize(
    "edges", ["source,target", "\ufeffsource,target", '"source",target,weight', "\r\nsource,target"]
)
def test_names_alone_need_no_end_of_line(read: Callable[[Path], Graph], tmp_path: Path, edges: str) -> None:
    graph = read(write(tmp_path / "mine", "id,label\na,x\nb,y", edges))
    assert (graph.num_nodes, graph.num_edges) == (2, 0)


@both_readers
def test_names_of_columns_alone_are_no_nodes(read: Callable[[Path], Graph], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nodes\.csv: has no rows; expected at least one node"):
        read(write(tmp_path / "mine", "id,label"))


@both_readers
def test_notes_on_columns(read: Callable[[Path], Graph], tmp_path: Path) -> None:
    folder = write(tmp_path / "own", "id,Label,Weight\na,1,5\nb,2,5\n", "source,target,Weight\na,b,2\n")
    graph = read(folder)
    assert "the column 'Label' is taken for a feature, not for 'label'" in graph.notes
    assert "columns of edges.csv not used: 'Weight' (weights are read from 'weight')" in graph.notes
    assert not any("not for 'weight'" in note for note in graph.notes)  # a node may well weigh something
    assert graph.num_features == 2


def test_a_column_beside_the_one_it_resembles_is_a_feature_without_a_note(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path / "own", "id,label,Label\na,x,1\nb,y,2\n"))
    assert graph.num_features == 1
    assert not any("taken for a feature" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("names", "notes"),
    [
        (("A", "a", "b"), ["the labels 'A' and 'a' differ only in capitals"]),
        (("1", "1.0", "2"), ["the labels '1' and '1.0' differ only in how a number is written"]),
        (("a", "a ", "b"), ["the labels 'a' and 'a ' differ only in blanks"]),
        (("1.0", "1.5", "10", "b"), []),
    ],
)
def test_notes_on_labels(names: tuple[str, ...], notes: list[str]) -> None:
    assert label_notes(names) == [f"{note} and are separate classes" for note in notes]


def test_no_labels_at_all(tmp_path: Path) -> None:
    graph = read_folder(write(tmp_path / "own", "id,class\na,1\nb,2\n"))
    with pytest.raises(InputError, match=r"no node of the graph has a label.*in a column 'label'"):
        make_split(graph)


@both_readers
def test_features_of_no_width_are_written_as_none(read: Callable[[Path], Graph], tmp_path: Path) -> None:
    write_folder(Graph.from_edges([[0], [1]], x=np.zeros((2, 0))), tmp_path / "mine")
    assert read(tmp_path / "mine").x is None


@both_readers
def test_a_long_text_in_a_column_that_is_not_used(read: Callable[[Path], Graph], tmp_path: Path) -> None:
    before = csv.field_size_limit()
    edges = 'source,target,note\na,b,"{}"\nb,{},""\n'
    folder = write(tmp_path / "mine", "id\na\nb\n", edges.format("x, y" * 50_000, "c"))
    with pytest.raises(InputError, match="line 3, column 'target': 'c' is no id"):
        read(folder)
    (folder / "edges.csv").write_text(edges.format("x, y" * 50_000, "a"))
    assert read(folder).num_edges == 1
    assert csv.field_size_limit() == before


@both_readers
def test_blanks_in_names_of_parquet_columns(read: Callable[[Path], Graph], tmp_path: Path) -> None:
    """A CSV's are taken away; those of a Parquet file are part of the name, and the error or the note says so."""
    folder = write(tmp_path / "mine", "id\na\nb\n")
    (folder / "nodes.csv").unlink()
    table = pd.DataFrame({"id": ["a", "b"], " Label": [1, 2]})
    table.to_parquet(folder / "nodes.parquet")
    assert "the column ' Label' is taken for a feature, not for 'label'" in read_folder(folder).notes
    table.rename(columns={"id": "id "}).to_parquet(folder / "nodes.parquet")
    with pytest.raises(InputError, match=r"names are compared exactly: call 'id ' 'id'$"):
        read(folder)


@both_readers
def test_an_empty_table_of_pandas(read: Callable[[Path], Graph], tmp_path: Path) -> None:
    """Its columns have no type of their own, and are written as numbers."""
    folder = write(tmp_path / "mine", "id,label\na,x\nb,y\n")
    (folder / "edges.csv").unlink()
    pd.DataFrame({"source": [], "target": []}).astype(float).to_parquet(folder / "edges.parquet")
    assert read(folder).num_edges == 0


@pytest.mark.parametrize("missing", ["None", "n/a", "#N/A"])
def test_more_words_for_nothing(missing: str) -> None:
    assert label_notes(("a", missing)) == [
        f"the label {missing!r} is a class of its own; leave the cell empty where a node has no label"
    ]
