"""Generated graphs: the same for the same seed, as large as asked for, and with classes that need the structure."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.graph.test_disk import same
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph, device_generator, disk_writer, generators
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.edge_sort import BYTES_AN_ENTRY
from tokenphormer.graph.generators import BlockModel, generate

SMALL = BlockModel(3000, degree=20, num_features=16, num_classes=5, seed=7, num_train=500)


def drawn(tmp_path: Path, model: BlockModel = SMALL, name: str = "g", **options: Any) -> Graph:
    return generate(model, tmp_path / name, **({"memory": 1 << 26} | options))


def test_the_same_on_every_machine(tmp_path: Path) -> None:
    graph = drawn(tmp_path)
    assert graph.fingerprint == "cc16e6383bdcf42546718bdc11ab7b4c19d356b6d68ebc1c3cdb2ce0316af5f3"
    assert same(graph, open_graph(tmp_path / "g", verify=True))


def test_memory_and_pieces_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = drawn(tmp_path)
    monkeypatch.setattr(generators, "PIECE", 1000)
    assert drawn(tmp_path, name="h", memory=BYTES_AN_ENTRY * 5000).fingerprint == graph.fingerprint


def test_an_odd_degree_counts_as_the_even_one_below(tmp_path: Path) -> None:
    odd, even = (drawn(tmp_path, dataclasses.replace(SMALL, degree=d), name=str(d)) for d in (11, 10))
    assert np.array_equal(odd.indices, even.indices)


# ---------------------------------------------------------------- on a device


MODELS = {
    "small": SMALL,
    "four nodes": BlockModel(4, num_classes=2, num_features=3),
    "one more than a power of two": BlockModel(1025, degree=3, num_features=7, homophily=1.0, num_val=20, num_test=30),
    "nearly every edge": BlockModel(70, degree=40, num_features=1, num_classes=2, homophily=0.0),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_tensors_draw_the_same_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, half: bool) -> None:
    """To the last byte of the manifest, in pieces and ranges of rows that have nothing to do with its size."""
    for constant, value in (("PIECE", 1000), ("EDGES", 777), ("MOST_ENTRIES", 5000), ("BUFFER_BYTES", 4096)):
        monkeypatch.setattr(device_generator, constant, value)
    monkeypatch.setattr(disk_writer, "LARGE", 2000)
    model = MODELS[name]
    here = drawn(tmp_path / "here", model, half=half)
    there = drawn(tmp_path / "there", model, half=half, device=torch.device("cpu"))
    assert here.fingerprint == there.fingerprint
    for path in sorted((tmp_path / "here" / "g").iterdir()):
        assert path.read_bytes() == (tmp_path / "there" / "g" / path.name).read_bytes(), path.name
    assert open_graph(tmp_path / "there" / "g", verify=True).notes == here.notes


@pytest.mark.gpu
def test_a_gpu_draws_the_same_graph(tmp_path: Path) -> None:
    model = BlockModel(200_000, degree=30, num_features=32, num_train=5000, num_val=100)
    here = drawn(tmp_path / "here", model, half=True)
    there = drawn(tmp_path / "there", model, half=True, device=torch.device("cuda"))
    assert here.fingerprint == there.fingerprint
    one, other = ((tmp_path / where / "g" / "graph.json").read_bytes() for where in ("here", "there"))
    assert one == other


def test_a_device_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 20, 1 << 20))
    with pytest.raises(ResourceError, match=r"takes more than the 0\.0 GB that are free there; use --device cpu"):
        drawn(tmp_path, device=torch.device("cuda"))

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(device_generator.DeviceModel, "features", fail)
    with pytest.raises(ResourceError, match="not enough memory on cpu to draw the graph there: CUDA out of memory"):
        drawn(tmp_path, device=torch.device("cpu"))
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_sizes_of_the_parts(tmp_path: Path) -> None:
    model = dataclasses.replace(SMALL, num_val=40, num_test=3)
    split = model.split()
    assert split.sizes == (500, 40, 3)
    assert np.array_equal(split.train, SMALL.split().train)
    assert model.note.endswith("num_train=500), num_val=40, num_test=3")
    assert SMALL.note.endswith("num_train=500)")


def test_a_part_that_is_smaller_than_was_asked_for_is_said(tmp_path: Path) -> None:
    """A hundred nodes with 30 for training had 25, and nothing told."""
    said: list[str] = []
    model = BlockModel(100, degree=4, num_features=2, num_classes=2, num_train=30, num_val=20)
    graph = generate(model, tmp_path / "g", memory=1 << 26, say=said.append)
    assert graph.splits[0].sizes == (25, 20, 25)
    assert said[0] == "25 nodes for training, 20 for validation, 25 for test: at most a quarter for each"
    said.clear()
    generate(dataclasses.replace(model, num_train=25), tmp_path / "h", memory=1 << 26, say=said.append)
    assert "quarter" not in said[0]


def test_another_seed_is_another_graph(tmp_path: Path) -> None:
    one, two = drawn(tmp_path), drawn(tmp_path, dataclasses.replace(SMALL, seed=8), "h")
    assert not np.array_equal(one.indices[:1000], two.indices[:1000])
    assert not np.array_equal(np.asarray(one.x), np.asarray(two.x))
    assert one.splits[0].hash != two.splits[0].hash


@pytest.mark.parametrize("n", [4, 5, 31, 32, 33, 1000, 1023, 1024])
def test_nodes_are_ranks_shuffled(n: int) -> None:
    model = BlockModel(n, num_classes=2, seed=3)
    ranks = np.arange(n)
    nodes = model.nodes_of(ranks)
    assert np.array_equal(np.sort(nodes), ranks)
    assert np.array_equal(model.ranks_of(nodes), ranks)
    if n >= 1000:
        assert abs(np.corrcoef(ranks, nodes)[0, 1]) < 0.1
        # Nor does the class, rank mod 2, show in the node's number mod 2.
        assert abs(np.corrcoef(ranks % 2, nodes % 2)[0, 1]) < 0.15


def test_it_is_the_graph_that_was_asked_for(tmp_path: Path) -> None:
    graph = drawn(tmp_path)
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (3000, 16, 5)
    assert 18 < graph.degree.mean() <= 20
    assert graph.degree.min() >= 8  # ten edges each, less what is merged
    assert np.bincount(graph.y).tolist() == [600] * 5
    source = np.repeat(np.arange(3000), graph.degree)
    homophily = (graph.y[source] == graph.y[graph.indices]).mean()
    assert homophily == pytest.approx(0.7 + 0.3 / 5, abs=0.02)
    assert graph.splits[0].sizes == (500, 500, 500)
    assert graph.num_self_loops == 0


def test_degrees_follow_a_power_law(tmp_path: Path) -> None:
    graph = drawn(tmp_path, BlockModel(20_000, num_features=1))
    by_rank = graph.degree[nodes_by_rank(graph.num_nodes)]
    # The degree of rank r is 10 + 5·√(n / r): half from edges sent, half from edges received.
    for first, last in ((100, 200), (1000, 2000), (10_000, 20_000)):
        expected = np.mean(10 + 5 * np.sqrt(graph.num_nodes / np.arange(first, last)))
        assert by_rank[first:last].mean() == pytest.approx(expected, rel=0.05)


def nodes_by_rank(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return BlockModel(n, num_features=1).nodes_of(np.arange(n))


def test_features_need_the_structure(tmp_path: Path) -> None:
    """The class by the nearest of the class means: of a node's own features, and of its neighbours' mean."""
    graph = drawn(tmp_path, BlockModel(6000, num_train=1500, seed=1))
    x = np.asarray(graph.x, dtype=np.float64)
    assert x.std() == pytest.approx(1, abs=0.02)
    around = np.add.reduceat(x[graph.indices], graph.indptr[:-1]) / graph.degree[:, None]
    split = graph.splits[0]

    def accuracy(features: np.ndarray[Any, np.dtype[np.float64]]) -> float:
        means = np.stack([features[split.train][graph.y[split.train] == c].mean(axis=0) for c in range(10)])
        distance = ((features[split.test][:, None] - means) ** 2).sum(axis=2)
        return float((distance.argmin(axis=1) == graph.y[split.test]).mean())

    assert 0.15 < accuracy(x) < 0.4
    assert accuracy(around) > 0.7


def test_half_precision(tmp_path: Path) -> None:
    graph, half = drawn(tmp_path), drawn(tmp_path, name="h", half=True)
    assert isinstance(half.x, np.ndarray)
    assert half.x.dtype == np.float16
    assert np.array_equal(half.x, np.asarray(graph.x).astype(np.float16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nodes": 3}, "--nodes 3: expected from 4 to 2147483647"),
        ({"num_nodes": 2**31}, "--nodes 2147483648"),
        ({"degree": 1}, "--degree 1"),
        ({"num_features": 0}, "--features 0"),
        ({"num_classes": 1}, "--classes 1"),
        ({"num_classes": 1501}, "--classes 1501: expected from 2 to 1500"),
        ({"num_train": 0}, "--train 0"),
        ({"num_val": 0}, "--val 0"),
        ({"num_test": 2**31}, "--test 2147483648"),
        ({"homophily": 1.5}, "--homophily 1.5: expected a share from 0 to 1"),
        ({"homophily": float("nan")}, "--homophily nan"),
    ],
)
def test_bad_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize("homophily", [0.0, 1.0])
def test_the_ends_of_homophily(tmp_path: Path, homophily: float) -> None:
    graph = drawn(tmp_path, dataclasses.replace(SMALL, homophily=homophily))
    source = np.repeat(np.arange(3000), graph.degree)
    share = (graph.y[source] == graph.y[graph.indices]).mean()
    assert share == (1 if homophily else pytest.approx(0.2, abs=0.02))


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    drawn(tmp_path)
    with pytest.raises(InputError, match="exists already"):
        drawn(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["g"]
