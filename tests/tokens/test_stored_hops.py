"""Hop features of a graph on disk: the numbers of `propagate`, made once, whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import multiprocessing
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph
from tokenphormer.graph.disk import is_array, open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.hops import NORMALISATIONS, Normalisation, propagate, propagation_matrix
from tokenphormer.tokens import TokenSettings, TokenSource
from tokenphormer.tokens import stored_hops as module
from tokenphormer.tokens.stored_hops import hop_bytes, propagate_in_memory, row_normalised, stored_hops

N, WIDTH = 300, 7


def graph_on_disk(tmp_path: Path, *, sparse: bool = False, half: bool = False, **changes: Any) -> tuple[Graph, Graph]:
    """A graph in memory, and the same on disk."""
    rng = np.random.default_rng(0)
    x: Any = rng.normal(size=(N, WIDTH)).astype(np.float32)
    x[5] = 0
    if sparse:
        x = sp.csr_array(np.where(x > 1, x, 0))
    graph = Graph.from_edges(rng.integers(0, N, (2, 900)), **({"num_nodes": N, "x": x} | changes))
    write_graph(graph, tmp_path / "g", half=half)
    return graph, open_graph(tmp_path / "g")


def dense(x: Any) -> Any:
    return x.toarray() if sp.issparse(x) else x


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"edge_weight": np.random.default_rng(1).random(900) + 0.1},
        {"edge_weight": np.random.default_rng(1).random(900) + 0.1, "self_loops": True},
        {"self_loops": True},
        {"directed": True},
    ],
    ids=["plain", "weights", "weights and loops", "loops", "directed"],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_equals_propagate_to_the_bit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sparse: bool,
    changes: dict[str, Any],
    normalisation: Normalisation,
    normalise: bool,
) -> None:
    """A few columns, a few rows and a few edges at a time."""
    monkeypatch.setattr(module, "COLUMN_BYTES", 8 * N * 3)
    monkeypatch.setattr(module, "EDGES_AT_ONCE", 1 << 12)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 64)
    graph, stored = graph_on_disk(tmp_path, sparse=sparse, **changes)
    assert graph.x is not None
    x = row_normalised(graph.x) if normalise else graph.x
    expected = propagate(propagation_matrix(graph, normalisation), x, 3)
    found = stored_hops(stored, normalisation, 3, normalise=normalise)
    for a, b in zip(expected, found, strict=True):
        assert np.array_equal(dense(a), dense(b))


def test_they_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, graph = graph_on_disk(tmp_path)
    assert hop_bytes(graph, "row", 2) == 2 * N * WIDTH * 4
    first = stored_hops(graph, "row", 2)
    files = sorted((tmp_path / "g" / "cache").glob("*.npy"))
    assert sum(path.stat().st_size - 128 for path in files) == 2 * N * WIDTH * 4
    assert (hop_bytes(graph, "row", 2), hop_bytes(graph, "row", 3)) == (0, N * WIDTH * 4)
    before = [path.stat().st_mtime_ns for path in files]
    third = stored_hops(graph, "row", 3)
    assert [path.stat().st_mtime_ns for path in files] == before, "what is there is used"
    assert np.array_equal(dense(first[1]), dense(third[1]))
    monkeypatch.setattr(module, "_one_hop", None)
    assert len(stored_hops(graph, "row", 3)) == 3
    assert stored_hops(graph, "row", 0) == []


@pytest.mark.parametrize("sparse", [False, True])
def test_what_was_cut_off_is_made_anew(tmp_path: Path, sparse: bool) -> None:
    """As by a copy of the folder that was stopped: reading on would end in a traceback."""
    _, graph = graph_on_disk(tmp_path, sparse=sparse)
    before = [np.array(dense(hop)) for hop in stored_hops(graph, "row", 2)]
    whole = {path: path.read_bytes() for path in (tmp_path / "g" / "cache").rglob("*hop1*/*" if sparse else "*hop1*")}
    for path, content in whole.items():
        for left in (content[:-4], content[:20], b"", None):
            path.unlink() if left is None else path.write_bytes(left)
            assert hop_bytes(graph, "row", 2) > 0
            found = stored_hops(graph, "row", 2)
            assert all(np.array_equal(dense(a), b) for a, b in zip(found, before, strict=True))
            assert {each: each.read_bytes() for each in whole} == whole
            assert hop_bytes(graph, "row", 2) == 0


def test_what_is_in_the_cache_has_its_dtype_and_shape_and_no_more(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.float32))
    assert is_array(tmp_path / "a.npy", np.float32, (3, 2))
    assert not is_array(tmp_path / "a.npy", np.float16, (3, 2))
    assert not is_array(tmp_path / "a.npy", np.float32, (2, 3))
    assert not is_array(tmp_path / "b.npy", np.float32, (3, 2))
    with (tmp_path / "a.npy").open("ab") as file:
        file.write(b"more")
    assert not is_array(tmp_path / "a.npy", np.float32, (3, 2))


def test_a_copy_with_other_arrays_has_hops_of_its_own(tmp_path: Path) -> None:
    _, graph = graph_on_disk(tmp_path)
    other = dataclasses.replace(graph, x=np.asarray(graph.x) + 100)
    without = dataclasses.replace(graph, y=np.zeros(N, np.int64))
    for each in (other, graph, without):
        expected = propagate(propagation_matrix(each, "row"), np.asarray(each.x), 1)[0]
        assert np.array_equal(dense(stored_hops(each, "row", 1)[0]), expected)
    assert len(list((tmp_path / "g" / "cache").glob("*.npy"))) == 2, "labels are no part of them"


@pytest.mark.parametrize("sparse", [False, True])
def test_other_settings_have_hops_of_their_own(tmp_path: Path, sparse: bool) -> None:
    graph, stored = graph_on_disk(tmp_path, sparse=sparse)
    assert graph.x is not None
    for normalisation in NORMALISATIONS:
        for normalise in (False, True):
            assert hop_bytes(stored, normalisation, 2, normalise=normalise) > 0
            x = row_normalised(graph.x) if normalise else graph.x
            expected = propagate(propagation_matrix(graph, normalisation), x, 2)
            found = stored_hops(stored, normalisation, 2, normalise=normalise)
            assert all(np.array_equal(dense(a), dense(b)) for a, b in zip(expected, found, strict=True))
            assert hop_bytes(stored, normalisation, 2, normalise=normalise) == 0


def test_half_precision_rounds_only_what_is_kept(tmp_path: Path) -> None:
    graph, stored = graph_on_disk(tmp_path, half=True)
    assert isinstance(stored.x, np.ndarray)
    expected = propagate(propagation_matrix(graph, "symmetric"), stored.x.astype(np.float32), 3)
    for a, b in zip(expected, stored_hops(stored, "symmetric", 3), strict=True):
        assert b.dtype == np.float16
        assert np.array_equal(np.asarray(a).astype(np.float16), np.asarray(b))


@pytest.mark.parametrize("way", ["no", "yes"])
def test_hops_beyond_half_precision_are_refused(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENPHORMER_RESIDENT", way)
    _, graph = graph_on_disk(tmp_path, half=True, x=np.full((N, WIDTH), 4000.0))
    with pytest.raises(InputError, match="grow beyond 65,504"):
        TokenSource(graph, TokenSettings(hop_normalisation="none"))
    assert not list((tmp_path / "g").glob("cache/*hop*")), "nothing half-written is left"
    TokenSource(graph, TokenSettings(hop_normalisation="row"))


def test_rows_in_half_precision_are_scaled_as_precisely_as_others(tmp_path: Path) -> None:
    x = np.array([[300, 0, 1], [1e-4, 2e-4, 0], [60000, 60000, 60000], [0, 0, 0]], dtype=np.float16)
    expected = row_normalised(x.astype(np.float32))
    assert np.array_equal(row_normalised(x), expected)
    write_graph(Graph.from_edges([[0, 1, 2], [1, 2, 3]], x=x), tmp_path / "g", half=True)
    settings = TokenSettings(num_walks=0, num_hops=0, normalise_features=True)
    rows = TokenSource(open_graph(tmp_path / "g"), settings).batch(torch.arange(4)).rows.dense
    assert rows is not None
    assert np.array_equal(rows.numpy(), expected)


def test_encodings_are_propagated_alike(tmp_path: Path) -> None:
    graph, stored = graph_on_disk(tmp_path)
    x = np.random.default_rng(2).normal(size=(N, 2)).astype(np.float32)
    expected = propagate(propagation_matrix(graph, "symmetric"), x, 2)
    for a, b in zip(expected, propagate_in_memory(stored, "symmetric", x, 2), strict=True):
        assert np.array_equal(a, b)


def test_no_features_no_hops(tmp_path: Path) -> None:
    _, graph = graph_on_disk(tmp_path, x=None)
    assert stored_hops(graph, "row", 3) == []
    assert hop_bytes(graph, "row", 3) == 0


@pytest.mark.parametrize("sparse", [False, True])
def test_a_full_disk_leaves_nothing(tmp_path: Path, sparse: bool) -> None:
    _, graph = graph_on_disk(tmp_path, sparse=sparse)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(ResourceError, match="cannot write"):
            stored_hops(graph, "row", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (tmp_path / "g" / "cache").iterdir()] == [".lock"]
    assert len(stored_hops(graph, "row", 2)) == 2


def test_too_little_room_is_said_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, graph = graph_on_disk(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(ResourceError, match=r"hop features need 0.0 GB, and 0.0 GB are free; set num_hops lower"):
        stored_hops(graph, "row", 2)


def test_room_is_asked_for_what_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, graph = graph_on_disk(tmp_path)
    stored_hops(graph, "row", 1)
    free = [2 * N * WIDTH * 4 - 1, 2 * N * WIDTH * 4]
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free.pop(0)}))
    with pytest.raises(ResourceError, match="hop features need"):
        stored_hops(graph, "row", 3)
    assert len(stored_hops(graph, "row", 3)) == 3


def _make(folder: Path, sums: Any) -> None:
    hops = stored_hops(open_graph(folder), "row", 2)
    sums.put(float(np.asarray(hops[1]).sum()))


@pytest.mark.slow
def test_processes_at_once_make_them_once(tmp_path: Path) -> None:
    graph_on_disk(tmp_path)
    context = multiprocessing.get_context("spawn")
    sums = context.Queue()
    workers = [context.Process(target=_make, args=(tmp_path / "g", sums)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [sums.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert found[0] == found[1]
    names = [path.name for path in (tmp_path / "g" / "cache").iterdir()]
    assert len(names) == 3  # two hops and the lock, nothing half-written


@pytest.mark.parametrize("sparse", [False, True])
def test_a_disk_without_locks_will_do(tmp_path: Path, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    graph, stored = graph_on_disk(tmp_path, sparse=sparse)
    expected = propagate(propagation_matrix(graph, "row"), graph.x, 1)[0]
    assert np.array_equal(dense(stored_hops(stored, "row", 1)[0]), dense(expected))


def test_without_locks_the_quicker_process_is_no_harm(tmp_path: Path) -> None:
    graph, stored = graph_on_disk(tmp_path, sparse=True)
    first = dense(stored_hops(stored, "row", 1)[0])
    (path,) = module._paths(stored, "row", 1, normalise=False)
    module._write_sparse(stored, graph.x, "row", path)  # as by one that had not seen it
    assert np.array_equal(dense(stored_hops(stored, "row", 1)[0]), first)
    assert [one.name for one in path.parent.iterdir() if one.name.endswith(".partial")] == []


def test_sparse_hops_are_on_the_disk_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, stored = graph_on_disk(tmp_path, sparse=True)
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    stored_hops(stored, "row", 2)
    assert len(forced) == 2 * 3  # data, indices, indptr
