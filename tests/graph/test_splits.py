"""Splits: the sizes that the literature reports, the same nodes on every machine, and no damaged file taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.files import load_arrays
from tokenphormer.graph import PROTOCOLS, Graph, Split, make_split
from tokenphormer.graph.splits import PARTS, class_balanced_split, stratified_split, two_stage_split

CLASS_COUNTS = {
    "cora": (351, 217, 418, 818, 426, 298, 180),
    "citeseer": (264, 590, 668, 701, 596, 508),
    "pubmed": (4103, 7739, 7875),
}


def labels(counts: tuple[int, ...], seed: int = 0) -> NDArray[np.int64]:
    y = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(y).astype(np.int64)


def graph_of(y: Any, **arguments: Any) -> Graph:
    return Graph.from_edges([], num_nodes=len(y), y=y, **arguments)


def everything(split: Split) -> NDArray[np.int64]:
    return np.sort(np.concatenate([split.train, split.val, split.test]))


# ---------------------------------------------------------------- protocols


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("cora", (1626, 542, 540)), ("citeseer", (1997, 666, 664)), ("pubmed", (11830, 3944, 3943))],
)
def test_stratified_has_the_published_sizes(name: str, sizes: tuple[int, int, int]) -> None:
    y = labels(CLASS_COUNTS[name])
    for seed in (0, 9):
        split = stratified_split(y, seed)
        assert split.sizes == sizes
        assert np.array_equal(everything(split), np.arange(len(y)))
        for number, count in enumerate(CLASS_COUNTS[name]):
            in_class = [(y[getattr(split, part)] == number).sum() for part in PARTS]
            assert in_class[:2] == [round(0.6 * count), round(0.2 * count)]


def test_stratified_depends_on_the_seed_alone() -> None:
    y = labels(CLASS_COUNTS["cora"])
    assert stratified_split(y, 3).hash == stratified_split(y, 3).hash
    assert len({stratified_split(y, seed).hash for seed in range(10)}) == 10


def test_splits_never_change() -> None:
    """Pinned: a result that names its split must mean the same nodes in every later version."""
    y = np.arange(20) % 2
    split = stratified_split(y, 0)
    assert split.hash[:16] == "4271e6c604c26c3d"
    assert class_balanced_split(y, 0).hash[:16] == "a45d9d66ec4e06e2"


def test_stratified_takes_every_seed_and_small_classes() -> None:
    y = np.array([0, 0, 0, 1, -1])
    assert stratified_split(y, -5).sizes == (3, 1, 0)
    assert stratified_split(np.array([0]), 2**70).sizes == (1, 0, 0)


@pytest.mark.parametrize("name", list(CLASS_COUNTS))
def test_two_stage_sizes(name: str) -> None:
    y = labels(CLASS_COUNTS[name])
    split = two_stage_split(y)
    n = len(y)
    assert len(split.train) == int(0.6 * n)
    assert abs(len(split.val) - len(split.test)) <= 1
    assert np.array_equal(everything(split), np.arange(n))
    assert split.name == "two-stage-2021"
    assert two_stage_split(y).hash == split.hash != two_stage_split(y, 0).hash


def test_two_stage_is_scikit_learns() -> None:
    from sklearn.model_selection import train_test_split

    y = labels((30, 20, 10))
    y[7] = -1
    nodes = np.flatnonzero(y >= 0)
    train, rest = train_test_split(nodes, train_size=int(0.6 * 59), random_state=2021, stratify=y[nodes])
    val, test = train_test_split(rest, test_size=0.5, random_state=2021, stratify=y[rest])
    assert two_stage_split(y).hash == Split(train, val, test).hash


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_two_stage_says_which_seeds_there_are(seed: int) -> None:
    with pytest.raises(InputError, match=rf"two-stage split: seed {seed}; .* from 0 to 4294967295$"):
        two_stage_split(np.arange(40) % 2, seed)


def test_two_stage_says_what_to_do_about_small_classes() -> None:
    with pytest.raises(InputError, match="'stratified' takes small classes too"):
        two_stage_split(np.array([0, 0, 0, 0, 1]))


def test_class_balanced_trains_on_as_many_of_every_class() -> None:
    y = labels(CLASS_COUNTS["cora"])
    split = class_balanced_split(y)
    per_class = round(0.6 * 2708 / 7)
    expected = [min(per_class, count) for count in CLASS_COUNTS["cora"]]
    assert np.bincount(y[split.train]).tolist() == expected
    # Two of Cora's classes are wholly in training, which makes the test easier.
    assert sum(count <= per_class for count in CLASS_COUNTS["cora"]) == 2
    assert split.sizes == (sum(expected), 542, 2708 - sum(expected) - 542)
    assert np.array_equal(everything(split), np.arange(2708))


def test_class_balanced_rounds_its_share() -> None:
    y = labels(CLASS_COUNTS["citeseer"])
    split = class_balanced_split(y)
    assert np.bincount(y[split.train]).tolist() == [264, 333, 333, 333, 333, 333]  # 0.6 · 3327 / 6 = 332.7
    assert len(split.val) == 665  # 0.2 · 3327 = 665.4


@pytest.mark.parametrize("protocol", ["stratified", "two-stage", "class-balanced"])
def test_unlabelled_nodes_are_in_no_part(protocol: str) -> None:
    y = labels((40, 30, 20))
    y[::7] = -1
    split = make_split(graph_of(y), protocol)
    assert np.array_equal(everything(split), np.flatnonzero(y >= 0))


def test_make_split_by_name() -> None:
    y = labels((40, 30))
    graph = graph_of(y)
    assert make_split(graph).hash == stratified_split(y, 0).hash
    assert make_split(graph, "stratified", 4).name == "stratified-4"
    assert make_split(graph, "two-stage").name == "two-stage-2021"
    assert make_split(graph, "two-stage", 0).hash == two_stage_split(y, 0).hash
    assert make_split(graph, "class-balanced", 2).name == "class-balanced-2"
    with pytest.raises(InputError, match=f"unknown split protocol 'random'; expected one of {', '.join(PROTOCOLS)}"):
        make_split(graph, "random")
    with pytest.raises(InputError, match="seed: 'a'; expected a whole number"):
        make_split(graph, seed="a")  # type: ignore[arg-type]
    assert make_split(graph, seed=np.int64(4)).hash == make_split(graph, seed=4).hash  # type: ignore[arg-type]


def test_ids_are_no_indices() -> None:
    with pytest.raises(InputError, match=r"part 'train': .* turn ids into indices with graph\.index_of"):
        Split(["a"], [], [])


def test_fixed_splits_are_found_by_number() -> None:
    splits = tuple(Split([i], [i + 1], [i + 2], name=f"geom-gcn-{i}") for i in range(3))
    graph = graph_of([0] * 5, splits=splits)
    assert make_split(graph, "geom-gcn", 2) is splits[2]
    assert make_split(graph, "given") is splits[0]
    with pytest.raises(InputError, match="splits 0 to 2, not 3"):
        make_split(graph, "geom-gcn", 3)
    own = graph_of([0] * 5, splits=(Split([0], [1], [2]),))
    with pytest.raises(InputError, match="comes with no geom-gcn split; only some published datasets do; use 'given'"):
        make_split(own, "geom-gcn")  # a column 'split' it has, and another would not help
    with pytest.raises(InputError, match="published datasets do; use 'stratified'"):
        make_split(graph_of([0] * 5), "geom-gcn")
    with pytest.raises(InputError, match="comes with no given split; add a 'split' column"):
        make_split(graph_of([0] * 5), "given")


@pytest.mark.parametrize("protocol", ["stratified", "class-balanced", "two-stage", "given"])
def test_nothing_to_split(protocol: str) -> None:
    with pytest.raises(InputError):
        make_split(graph_of([-1, -1]), protocol)


# ---------------------------------------------------------------- the value


def test_parts_are_sorted_and_read_only() -> None:
    split = Split([5, 1], np.array([3], dtype=np.uint8), [])
    assert split.train.tolist() == [1, 5]
    assert split.val.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        split.train[0] = 2


def test_hash_is_of_the_nodes_and_not_of_the_name() -> None:
    first = Split([1, 0], [2], [3])
    assert first.hash == Split([0, 1], [2], [3], name="other").hash
    others = [Split([0, 1], [3], [2]), Split([0], [1, 2], [3]), Split([0, 1], [2], []), Split([0, 1], [2], [4])]
    assert len({first.hash, *(split.hash for split in others)}) == 5


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (([0, 1], [1], [2]), "node 1 stands in it twice"),
        (([0, 0], [1], [2]), "node 0 stands in it twice"),
        (([0], [-1], [2]), "node index -1 is negative"),
        (([True, False], [1], [2]), "turn a mask into indices"),
        (([0.0], [1], [2]), "expected a list of node indices"),
        (([[0]], [1], [2]), "expected a list of node indices"),
    ],
)
def test_bad_parts_are_refused(parts: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Split(*parts)


# ---------------------------------------------------------------- its file


def test_save_and_load(tmp_path: Path) -> None:
    for split in (stratified_split(labels((40, 30)), 1), Split([], [], [])):
        split.save(tmp_path / "split.npz")
        loaded = Split.load(tmp_path / "split.npz")
        assert (loaded.hash, loaded.name, loaded.sizes) == (split.hash, split.name, split.sizes)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path, damaged = tmp_path / "split.npz", tmp_path / "damaged.npz"
    split = stratified_split(labels((400, 300)), 1)
    split.save(path)
    content = path.read_bytes()
    for length in range(0, len(content), max(1, len(content) // 100)):
        damaged.write_bytes(content[:length])
        with pytest.raises(InputError, match=r"damaged\.npz"):
            Split.load(damaged)
    for position in np.random.default_rng(0).integers(0, 8 * len(content), 200):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << (position % 8)
        damaged.write_bytes(flipped)
        try:
            loaded = Split.load(damaged)
        except InputError:
            continue
        assert (loaded.hash, loaded.name) == (split.hash, split.name)


def test_changed_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    Split([0, 1], [2], [3]).save(path)
    arrays: dict[str, Any] = dict(load_arrays(path))
    meta = np.frombuffer(json.dumps(["no", "split"]).encode(), np.uint8)
    for change in ({"test": np.array([4])}, {"test": np.array([1])}, {"meta": meta}, {"meta": np.zeros(3, np.uint8)}):
        np.savez(path, **(arrays | change))
        with pytest.raises(InputError):
            Split.load(path)
    np.savez(path, train=[0], val=[1], test=[2])
    with pytest.raises(InputError, match="lacks the array 'meta'"):
        Split.load(path)
