"""The shipped settings: one file a dataset of the paper, saying what the paper says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from scipy import sparse

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, Split, load_graph, make_split
from tokenphormer.graph.datasets import DATASETS
from tokenphormer.graph.external import convert
from tokenphormer.graph.tables import write_folder
from tokenphormer.training import Config, presets
from tokenphormer.training.presets import (
    CONFIGS,
    CPU_CHANGES,
    CPU_SIZE,
    RECIPES,
    SMALL,
    alikeness,
    config_for,
    recipe_for,
    split_for,
    words_of,
)

# From the paper's "Experiment Details" and, where that is silent, the authors' code.
COMMON: dict[str, Any] = {
    "num_walks": 100,
    "walk_length": 4,
    "walk_ratios": [0.25, 0.25, 0.25, 0.25],
    "jump_radius": 3,
    "include_start": False,
    "fresh_walks": False,
    "num_hops": 3,
    "laplacian_pe": 0,
    "normalise_features": False,
    "hidden_channels": 512,
    "num_layers": 1,
    "num_heads": 1,
    "ffn_channels": 1024,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "feature_dropout": 0.0,
    "final_norm": False,
    "learning_rate": 5e-3,
    "end_learning_rate": 1e-4,
    "warmup_updates": 400,
    "decay_updates": 1000,
    "decay_power": 1.0,
    "weight_decay": 1e-5,
    "batch_size": 2000,
    "max_epochs": 2000,
    "patience": 50,
    "votes": 1,
}
DEPARTURES: dict[str, Any] = {"walk_pooling": "mean", "hop_normalisation": "symmetric", "precision": "auto"}
OWN: dict[str, dict[str, Any]] = {
    "cora": {"walk_ratios": [0.30, 0.05, 0.60, 0.05], "laplacian_pe": 3},
    "citeseer": {"laplacian_pe": 3},
    "pubmed": {"laplacian_pe": 3},
    "photo": {"laplacian_pe": 3, "learning_rate": 1e-2},
    "dblp": {"normalise_features": True},
    "flickr": {"learning_rate": 1e-2},
    "cornell": {},
    "wisconsin": {},
    "actor": {},
}
PUBLISHED = {
    "cora": ("91.20 ± 0.47", "90.33 ± 0.30"),
    "citeseer": ("81.04 ± 0.24", "79.85 ± 1.00"),
    "pubmed": ("89.94 ± 0.20", "89.38 ± 0.46"),
    "photo": ("96.14 ± 0.14", "95.61 ± 0.47"),
    "dblp": ("85.13 ± 0.10", "84.42 ± 0.41"),
    "flickr": ("92.44 ± 0.35", "91.75 ± 0.50"),
    "cornell": ("76.22 ± 2.13",),
    "wisconsin": ("86.17 ± 2.30",),
    "actor": ("37.01 ± 0.83",),
}
FILES = sorted(CONFIGS.glob("*.yaml"))
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def test_there_is_one_for_each_dataset_of_the_paper() -> None:
    assert [path.stem for path in FILES] == sorted(OWN)
    assert set(OWN) == set(DATASETS) - {"debian", "texas"}  # neither is in the paper
    assert sorted(CONFIGS.iterdir()) == FILES


@every_file
def test_it_says_what_the_paper_says(path: Path) -> None:
    assert Config.from_yaml(path).to_dict() == Config().to_dict() | COMMON | DEPARTURES | OWN[path.stem]


@every_file
def test_it_names_known_settings_and_all_that_the_paper_sets(path: Path) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    Config.check_keys(values, str(path))
    assert set(values) == {*COMMON, *DEPARTURES}, "what a file does not name would change with our defaults"


@every_file
def test_its_head_names_source_result_and_split(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    head = "\n".join(lines[: next(number for number, line in enumerate(lines) if not line.startswith("#"))])
    assert 'the paper\'s settings (appendix, "Experiment Details")' in head
    assert all(result in head for result in PUBLISHED[path.stem])
    assert f"# split: {DATASETS[path.stem].protocol}," in head


@every_file
def test_departures_are_marked_and_nothing_else(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "# departs" in line]
    assert {line.split(":")[0] for line in lines} == set(DEPARTURES)


def test_the_paper_s_settings_by_name() -> None:
    graph = Graph.from_edges([[0], [1]], name="photo")
    split = Split([0], [1], [])
    for device in ("cpu", "cuda"):
        found = config_for(graph, split, torch.device(device), Path("paper"), DATASETS["photo"])
        assert found == Config.from_yaml(CONFIGS / "photo.yaml")
    with pytest.raises(InputError, match=r"no settings for 'mine', only for actor, .*wisconsin"):
        config_for(dataclasses.replace(graph, name="mine"), split, torch.device("cpu"), Path("paper"))
    known = CONFIGS / "photo.yaml"
    for other in (None, DATASETS["cora"]):
        with pytest.raises(InputError, match=rf"expected the dataset 'photo', .*pass their file: --config {known}"):
            config_for(graph, split, torch.device("cpu"), Path("paper"), other)
    assert config_for(graph, split, torch.device("cpu"), known) == Config.from_yaml(known)


def test_a_split_of_one_s_own_goes_before_the_name() -> None:
    labels = [0, 1] * 20
    graph = Graph.from_edges([[0], [1]], num_nodes=40, y=labels, name="actor")
    assert split_for(graph, "auto", None).name.startswith("stratified")
    given = Split(range(20), range(20, 30), range(30, 40), name="given")
    assert split_for(dataclasses.replace(graph, splits=(given,)), "auto", None).name == "given"
    public = dataclasses.replace(graph, name="cora", splits=(dataclasses.replace(given, name="public"),))
    assert split_for(public, "auto", None).name.startswith("stratified")
    assert split_for(dataclasses.replace(public, name="mine"), "auto", None).name == "public"


def test_a_folder_with_a_dataset_s_name_is_split_as_any_other(tmp_path: Path) -> None:
    """Two-stage splits, as of DBLP and Flickr, take no class of one node."""
    labels = [0, 1] * 20 + [2]
    theirs = Graph.from_edges([[0], [1]], num_nodes=40, y=labels[:40], name="dblp")
    assert split_for(theirs, "auto", None).name == "two-stage-2021"
    write_folder(Graph.from_edges([[0], [1]], num_nodes=41, y=labels), tmp_path / "dblp")
    mine = load_graph(tmp_path / "dblp")
    assert (mine.name, split_for(mine, "auto", None).name) == ("dblp", "stratified-0")
    assert split_for(convert(tmp_path / "dblp", tmp_path / "disk"), "auto", 3).name == "stratified-3"
    assert split_for(load_graph("debian"), "auto", None).name == "stratified-0"


def two_groups(alike: float, num_nodes: int = 400) -> Graph:
    """Two classes of one size; this share of the edges is within them."""
    rng = np.random.default_rng(0)
    y = np.arange(num_nodes) % 2
    source = rng.integers(0, num_nodes, 3000)
    same = rng.random(3000) < alike
    target = (2 * rng.integers(0, num_nodes // 2, 3000) + np.where(same, y[source], 1 - y[source])) % num_nodes
    return Graph.from_edges(np.stack([source, target]), num_nodes, x=np.eye(num_nodes, 4), y=y)


@pytest.mark.parametrize(
    ("alike", "num_nodes", "words", "recipe", "on_cpu"),
    [
        (0.95, 400, 4, "agreeing", "agreeing"),
        (0.75, 400, 4, "agreeing", "agreeing"),
        (0.95, 400, 50, "many hops", "deep scores"),
        (0.95, 1200, 50, "deep scores", "deep scores"),
        (0.95, 1200, 3, "many hops", "many hops"),
        (0.95, 2200, 4, "near scores", "near scores"),
        (0.95, 2200, 50, "near scores", "near scores"),
        (0.6, 400, 4, "alike", "alike"),
        (0.5, 400, 4, "own features", "own features"),
        (0.1, 400, 50, "own features", "own features"),
        (0.1, 1900, 4, "unlike", "unlike"),
    ],
)
def test_neighbours_and_features_decide_on_the_recipe(
    alike: float, num_nodes: int, words: int, recipe: str, on_cpu: str
) -> None:
    graph = two_groups(alike, num_nodes)
    x = np.zeros((num_nodes, 100), np.float32)
    x[:, :words] = 1
    graph = dataclasses.replace(graph, x=x)
    split = make_split(graph, "stratified", 0)
    found = alikeness(graph, split.train)
    assert found is not None
    assert found[0] == pytest.approx(2 * alike - 1, abs=0.08)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert (recipe_for(graph, split.train, gpu), recipe_for(graph, split.train, cpu)) == (recipe, on_cpu)
    assert config_for(graph, split, gpu) == Config().replace(RECIPES[recipe])
    small = config_for(graph, split, cpu)
    assert small == Config().replace(RECIPES[on_cpu] | CPU_SIZE | CPU_CHANGES.get(on_cpu, {}))
    assert bool(small.consistency) == (on_cpu in ("alike", "many hops"))


def rings(degree: int, words: int, num_nodes: int = 60) -> Graph:
    """Two rings of one class each, every node joined to as many: what is alike is alike without an exception."""
    half = num_nodes // 2
    steps = [*range(1, degree // 2 + 1), *([half // 2] if degree % 2 else [])]
    edges = [(v, (v + step) % half) for step in steps for v in range(half)]
    both = np.array([*edges, *((a + half, b + half) for a, b in edges)]).T
    x = np.zeros((num_nodes, 1000), np.float32)
    x[np.arange(words) % num_nodes, np.arange(words) // num_nodes] = 1
    return Graph.from_edges(both, num_nodes, x=x, y=np.arange(num_nodes) // half)


@pytest.mark.parametrize(
    ("degree", "words", "recipe"),
    [
        (2, 240, "near scores"),
        (3, 240, "agreeing"),
        (3, 239, "many hops"),  # less than four a node
        (9, 0, "deep scores"),
        (10, 0, "many hops"),
        (10, 240, "agreeing"),
    ],
)
def test_how_many_neighbours_and_words_a_recipe_takes(degree: int, words: int, recipe: str) -> None:
    graph = rings(degree, words)
    assert set(graph.degree.tolist()) == {degree}
    assert alikeness(graph, np.arange(60)) == (1.0, 0.0)
    assert recipe_for(graph, np.arange(60), torch.device("cuda")) == recipe


@pytest.mark.parametrize(
    ("share", "error", "nodes", "recipe"),
    [
        (0.4, 9.0, 10, "near scores"),
        (0.399, 0.17, 10, "alike"),
        (0.3, 0.124, 10, "alike"),
        (0.3, 0.126, 10, "own features"),
        (0.05, 0.0, 999, "alike"),
        (0.049, 0.0, 999, "own features"),
        (0.049, 0.0, 1000, "unlike"),
    ],
)
def test_how_alike_neighbours_have_to_be(
    share: float, error: float, nodes: int, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presets, "alikeness", lambda *_: (share, error))
    assert recipe_for(rings(2, 0), np.arange(nodes), torch.device("cuda")) == recipe


def test_alikeness_by_hand() -> None:
    """12 of 20 edges are alike where chance has half: (0.6 − 0.5) / (1 − 0.5)."""
    y = np.arange(40) % 2
    ends = np.array([(2 * k, 2 * k + 2) if k < 6 else (2 * k - 11, 2 * k - 9) for k in range(12)])
    ends = np.concatenate([ends, [(v, v + 1) for v in range(30, 38)]])
    own = np.concatenate([ends, [(v, v) for v in range(40)]])
    for edges in (ends, own):  # a node is no neighbour of its own
        for directed in (False, True):
            graph = Graph.from_edges(edges.T, 40, y=y, directed=directed, self_loops=True)
            assert alikeness(graph, np.arange(40)) == pytest.approx((0.2, (0.6 * 0.4 / 20) ** 0.5 / 0.5))
    fewer = Graph.from_edges(ends[1:].T, 40, y=y, directed=True)
    assert alikeness(fewer, np.arange(40)) is None


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    ("words", "of", "found"),
    [(4, 100, 4), (3, 100, 3), (5, 100, None), (30, 1000, 30), (30, 300, None), (0, 100, None)],
)
def test_which_features_are_like_words(
    words: int, of: int, found: float | None, form: Callable[[NDArray[np.float32]], Any]
) -> None:
    x = np.zeros((10, of), np.float32)
    for node in range(10):
        x[node, node : node + words] = -1
    assert words_of(Graph.from_edges(np.array([[0], [1]]), 10, x=form(x), y=np.arange(10) % 2)) == found
    assert words_of(Graph.from_edges(np.array([[0], [1]]), 10)) is None


def test_only_training_nodes_are_looked_at() -> None:
    graph = two_groups(0.95)
    split = make_split(graph, "stratified", 0)
    hidden = graph.y.copy()
    hidden[split.test] = 1 - hidden[split.test]
    hidden[split.val] = -1
    other = dataclasses.replace(graph, y=hidden)
    assert alikeness(other, split.train) == alikeness(graph, split.train)


def test_the_error_of_alikeness_is_that_of_so_many_edges() -> None:
    """Half of the nodes are looked at, so a quarter of the edges; drawn anew, the share spreads as it says."""
    graph = two_groups(0.7, 4000)
    rng = np.random.default_rng(1)
    found = [alikeness(graph, rng.choice(4000, 2000, replace=False)) for _ in range(60)]
    shares, errors = zip(*(each for each in found if each is not None), strict=True)
    assert len(shares) == 60
    # Draws share edges, so they spread a little less than independent ones would.
    assert 0.6 < np.std(shares) / np.mean(errors) < 1.1


def test_few_edges_that_are_alike_by_luck_do_not_decide() -> None:
    y = np.arange(60) % 2
    same = [(v, (v + 2) % 60) for start in (0, 1) for v in range(start, 60, 8)]
    different = [(v, (v + 1) % 60) for v in range(3, 60, 5)]
    graph = Graph.from_edges(np.array(same + different).T, 60, x=np.eye(60, 4), y=y)
    share, error = alikeness(graph, np.arange(60)) or (0.0, 0.0)
    assert 0.05 < share < 2 * error
    assert recipe_for(graph, np.arange(60), torch.device("cuda")) == "own features"


def test_without_edges_to_look_at() -> None:
    graph = Graph.from_edges(np.zeros((2, 0), int), 40, x=np.eye(40, 4), y=np.arange(40) % 2)
    assert alikeness(graph, np.arange(20)) is None
    assert recipe_for(graph, np.arange(20), torch.device("cuda")) == "near scores"
    alone = Graph.from_edges(np.stack([np.arange(39), np.arange(1, 40)]), 40, x=np.eye(40, 4), y=np.zeros(40, int))
    assert alikeness(alone, np.arange(40)) is None  # one class: neighbours could not differ


def test_large_graphs_are_read_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presets, "MOST_NODES", 100)
    graph = two_groups(0.95)
    split = make_split(graph, "stratified", 0)
    assert config_for(graph, split, torch.device("cpu")) == Config().replace(SMALL)
    assert config_for(graph, split, torch.device("cuda")) == Config()
