"""The map: whole, reproducible, kept in the run folder, and never one of another model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.serve.conftest import write_run
from tests.tiny import tiny_graph
from tokenphormer.serve.explorer import Explorer, open_run
from tokenphormer.serve.projection import MAP_FILE, chosen_nodes, load_or_make_map, node_states, project

NODES = np.arange(30)


def clusters(seed: int = 0) -> NDArray[np.float32]:
    """Three heaps of ten, far from each other."""
    rng = np.random.default_rng(seed)
    return (np.repeat(np.eye(3) * 50, 10, axis=0) + rng.normal(0, 1, (30, 3))).astype(np.float32)


def test_heaps_stay_apart() -> None:
    places = project(clusters())
    assert places.shape == (30, 2)
    assert places.dtype == np.float32
    heaps = places.reshape(3, 10, 2)
    middle = heaps.mean(axis=1)
    inside = np.linalg.norm(heaps - middle[:, None], axis=2).mean()
    between = np.linalg.norm(middle[[0, 1, 2]] - middle[[1, 2, 0]], axis=1).min()
    assert between > 2 * inside
    assert places.min() >= 0
    assert places.max() <= 1
    assert np.ptp(places, axis=0).max() == pytest.approx(1)


def test_the_same_states_have_the_same_places() -> None:
    np.testing.assert_array_equal(project(clusters()), project(clusters()))


@pytest.mark.parametrize("nodes", [1, 2, 5, 8, 9])
@pytest.mark.parametrize("channels", [1, 2, 40])
def test_small_graphs(nodes: int, channels: int) -> None:
    places = project(np.random.default_rng(0).normal(size=(nodes, channels)).astype(np.float32))
    assert places.shape == (nodes, 2)
    assert ((places >= 0) & (places <= 1)).all()
    assert len(np.unique(places, axis=0)) == nodes


def test_states_that_are_all_the_same() -> None:
    assert np.isfinite(project(np.ones((40, 6), np.float32))).all()


def test_states_are_what_the_head_reads(explorer: Explorer) -> None:
    states = node_states(explorer.method, np.array([4, 2]))
    assert states.shape == (2, explorer.config.hidden_channels)
    import torch

    with torch.no_grad():
        scores = explorer.method.module.head(torch.tensor(states))
    expected = explorer.predictions.probabilities[[4, 2]]
    np.testing.assert_allclose(torch.softmax(scores, dim=1).numpy(), expected, atol=1e-5)
    assert not explorer.method.module.head._forward_pre_hooks


def test_a_map_is_kept_and_read(tmp_path: Path) -> None:
    asked = 0

    def states() -> NDArray[np.float32]:
        nonlocal asked
        asked += 1
        return clusters()

    first = load_or_make_map(tmp_path, "model 1", states, NODES)
    again = load_or_make_map(tmp_path, "model 1", states, NODES)
    assert asked == 1
    np.testing.assert_array_equal(first.places, again.places)
    assert [path.name for path in tmp_path.iterdir()] == [MAP_FILE]
    load_or_make_map(tmp_path, "model 2", states, NODES)
    assert asked == 2
    load_or_make_map(tmp_path, "model 1", states, NODES)
    assert asked == 3


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "other"])
def test_a_damaged_map_is_made_anew(tmp_path: Path, damage: str) -> None:
    good = load_or_make_map(tmp_path, "model", clusters, NODES)
    path = tmp_path / MAP_FILE
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(
        {
            "truncate": content[:half],
            "flip": content[:half] + bytes([content[half] ^ 255]) + content[half + 1 :],
            "empty": b"",
            "other": b"not a map",
        }[damage]
    )
    again = load_or_make_map(tmp_path, "model", clusters, NODES)
    np.testing.assert_array_equal(good.places, again.places)
    assert path.read_bytes() == content


def test_places_that_are_no_places_are_not_read(tmp_path: Path) -> None:
    good = load_or_make_map(tmp_path, "model", clusters, NODES)
    with np.load(tmp_path / MAP_FILE, allow_pickle=False) as file:
        arrays = dict(file)
    arrays["places"] = np.full((30, 2), np.nan, np.float32)
    np.savez_compressed(tmp_path / MAP_FILE, allow_pickle=False, **arrays)
    np.testing.assert_array_equal(load_or_make_map(tmp_path, "model", clusters, NODES).places, good.places)


def test_a_folder_that_cannot_be_written_to_is_no_hindrance(tmp_path: Path) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    assert len(load_or_make_map(not_a_folder, "model", clusters, NODES).nodes) == 30


def test_large_graphs_are_sampled() -> None:
    chosen = chosen_nodes(100_000)
    assert len(chosen) == 20_000
    assert (np.diff(chosen) > 0).all()
    assert chosen[-1] < 100_000
    assert abs(chosen.mean() - 50_000) < 2_000
    np.testing.assert_array_equal(chosen, chosen_nodes(100_000))


def test_another_run_in_the_same_folder_has_a_map_of_its_own(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, tiny_graph(), seed=seed) for name, seed in (("a", 0), ("b", 1))]
    explorers = [Explorer(open_run(run, "cpu")) for run in runs]
    explorers[0].make_map()
    shutil.copy(runs[0] / MAP_FILE, runs[1] / MAP_FILE)
    explorers[1].make_map()
    assert explorers[0].map is not None
    assert explorers[1].map is not None
    assert not np.array_equal(explorers[0].map.places, explorers[1].map.places)
