"""Walks in files: the same as in memory, in pieces, whole or not at all."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.walks.graphs import AWKWARD, directed_with_sinks, random_graph
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import is_partial
from tokenphormer.graph import Graph
from tokenphormer.walks import KINDS, Kind, export, sample_walks
from tokenphormer.walks.export import write_walks

ROW = 10 * (4 + 1) * 4
"""Bytes of one node's walks with the default options."""


@pytest.fixture(params=[".npy", ".txt"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"walks{request.param}"


def lines_of(graph: Graph, walks: np.ndarray) -> list[str]:
    flat = walks.reshape(-1, walks.shape[2]).tolist()
    return [" ".join(graph.id_of(node) for node in walk if node != -1) for walk in flat]


@pytest.mark.parametrize("piece", [1, 7 * ROW, 1 << 26], ids=["node by node", "seven nodes", "at once"])
@pytest.mark.parametrize("kind", KINDS)
def test_files_hold_what_sample_walks_draws(
    path: Path, kind: Kind, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(6)
    monkeypatch.setattr(export, "PIECE", piece)
    monkeypatch.setattr(export, "AS_LISTS", 1)
    told: list[int] = []
    assert write_walks(path, graph, kind, seed=4, progress=told.append) == 10 * graph.num_nodes
    expected = sample_walks(graph, kind, seed=4).numpy()
    if path.suffix == ".npy":
        found = np.load(path)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)
    else:
        assert path.read_text().splitlines() == lines_of(graph, expected)
    rows = {1: 1, 7 * ROW: 7}.get(piece, graph.num_nodes)
    assert told == [min(first + rows, graph.num_nodes) for first in range(0, graph.num_nodes, rows)]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("graph", AWKWARD, ids=lambda g: g.name)
def test_awkward_graphs_and_chosen_nodes(path: Path, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PIECE", 1)
    nodes = [graph.num_nodes - 1, 0, 0]
    assert write_walks(path, graph, "non_backtracking_jump", 2, 3, nodes, 2, 9) == 6
    expected = sample_walks(graph, "non_backtracking_jump", 2, 3, nodes, 2, 9).numpy()
    if path.suffix == ".npy":
        np.testing.assert_array_equal(np.load(path), expected)
    else:
        assert path.read_text().splitlines() == lines_of(graph, expected)


def test_text_is_the_users_ids_and_ends_where_the_walk_ends(tmp_path: Path) -> None:
    graph = Graph.from_edges([[0, 1], [1, 2]], directed=True, node_ids=["Ägypten", "007", "NA"])
    write_walks(tmp_path / "x.txt", graph, "uniform", 1, 5)
    assert (tmp_path / "x.txt").read_text(encoding="utf-8") == "Ägypten 007 NA\n007 NA\nNA\n"


@pytest.mark.parametrize("name", ["a b", "a\tb", "a\nb", "a\u00a0b", ""])
def test_ids_with_blanks_are_refused_as_text_only(tmp_path: Path, name: str) -> None:
    graph = Graph.from_edges([[0], [1]], node_ids=["fine", name])
    with pytest.raises(InputError, match=r"node 1 is called .*; write a \.npy instead"):
        write_walks(tmp_path / "x.txt", graph, "uniform")
    assert not list(tmp_path.iterdir())
    write_walks(tmp_path / "x.npy", graph, "uniform")
    assert np.load(tmp_path / "x.npy").shape == (2, 10, 5)


def test_no_nodes(path: Path) -> None:
    told: list[int] = []
    assert write_walks(path, random_graph(6), "uniform", 3, 2, nodes=[], progress=told.append) == 0
    assert not told
    if path.suffix == ".npy":
        assert np.load(path).shape == (0, 3, 3)
    else:
        assert path.read_bytes() == b""


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("old", [None, b"precious"])
def test_an_interrupted_file_is_the_old_one_or_none(
    path: Path, old: bytes | None, stop: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PIECE", 7 * ROW)
    monkeypatch.setattr(export, "AS_LISTS", 1)
    if old is not None:
        path.write_bytes(old)
    seen: list[list[str]] = []

    def halfway(done: int) -> None:
        seen.append([entry.name for entry in path.parent.iterdir() if entry != path])
        if done > 20:
            raise stop

    with pytest.raises(stop):
        write_walks(path, random_graph(6), "uniform", overwrite=True, progress=halfway)
    assert [[is_partial(Path(name)) for name in names] for names in seen] == [[True]] * 3
    assert {entry: entry.read_bytes() for entry in path.parent.iterdir()} == ({} if old is None else {path: old})


def test_an_existing_file_is_overwritten_only_when_told(path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(InputError, match="exists already"):
        write_walks(path, directed_with_sinks(), "uniform")
    assert path.read_bytes() == b"precious"
    write_walks(path, directed_with_sinks(), "uniform", overwrite=True)
    assert path.read_bytes() != b"precious"


def test_requests_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "new" / "x.npy"
    for options in ({"num_walks": 0}, {"length": 0}, {"nodes": [99]}, {"jump_radius": 0}, {"seed": 0.5}):
        with pytest.raises(InputError, match=next(iter(options))):
            write_walks(target, directed_with_sinks(), "uniform", **options)
    with pytest.raises(InputError, match=r"x\.csv: expected a name that ends in \.npy"):
        write_walks(target.with_suffix(".csv"), directed_with_sinks(), "uniform")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve disk space")
def test_a_full_disk_is_found_before_the_mapping_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written through a mapping, a full disk is a SIGBUS, which no `except` catches."""
    asked: list[int] = []

    def full(descriptor: int, offset: int, size: int) -> None:
        asked.append(size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceError, match=r"cannot write .*x\.npy: No space left on device"):
        write_walks(tmp_path / "x.npy", directed_with_sinks(), "uniform", nodes=[0])
    assert asked == [128 + ROW]  # numpy's header and the array: the whole file
    assert not list(tmp_path.iterdir())


def test_memory_is_one_piece_not_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piece = 1 << 18
    monkeypatch.setattr(export, "PIECE", piece)
    graph, num_walks = random_graph(7, n=1000, edges=3000), 150 if path.suffix == ".npy" else 15
    write_walks(path, graph, "uniform", num_walks, 19)  # compiles and keeps what belongs to the graph
    tracemalloc.start()
    try:
        write_walks(path, graph, "uniform", num_walks, 19, overwrite=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    in_memory = graph.num_nodes * num_walks * 20 * 4
    assert in_memory > 4 * piece
    assert peak < 3 * piece
