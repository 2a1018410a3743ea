"""`convert`, `generate`, and the other commands on a graph on disk, as a person meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.test_cli import Cli, assert_refused, cli
from tests.tiny import TINY, tiny_graph, write_folder
from tokenphormer.evaluation import runs
from tokenphormer.graph import Split, load_graph, read_folder
from tokenphormer.training.tokenphormer import TokenphormerMethod

__all__ = ["cli"]  # the fixture

GRAPH = tiny_graph()
QUICK = [f"--set={key}={value}" for key, value in TINY.items()]
SPLIT = Split(range(30), range(30, 40), range(40, 50))


@pytest.fixture
def mine(cli: Cli) -> str:
    """A folder of the user's own in the current folder; ten nodes are in no part of the split."""
    write_folder(GRAPH, Path("mine"), SPLIT)
    return "mine"


def files(folder: str | Path = ".") -> list[str]:
    return sorted(str(path) for path in Path(folder).rglob("*"))


def test_convert(cli: Cli, mine: str) -> None:
    answer = cli("convert", mine, "disk", "--memory", "64MB", "--verify")
    assert answer.code == 0, answer
    assert answer.out == f"disk: 60 nodes, {GRAPH.num_edges} edges, 5 features\n"
    assert "edges taken as undirected" in answer.err
    assert load_graph("disk").fingerprint == read_folder("mine").fingerprint
    assert cli("convert", "disk", "--verify").out == "disk: every array is as it was written\n"
    assert cli("convert", mine, "half", "--float16").code == 0
    x: Any = load_graph("half").x
    assert x.dtype == np.float16
    assert cli("convert", mine, "directed", "--directed").code == 0
    assert load_graph("directed").directed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mine", "mine"], "mine: exists already; choose the name of a new folder"),
        (["mine"], "OUT: name the folder to write"),
        (["mine", "--verify"], "mine: holds no graph on disk"),
        (["nothing", "out"], "'nothing' is neither a dataset nor an existing path"),
        (["mine", "out", "--memory", "little"], "expected a size such as 500MB or 2GB"),
        (["mine", "out", "--memory", "1MB"], "expected at least 64 MB"),
    ],
)
def test_convert_refuses(cli: Cli, mine: str, words: list[str], message: str) -> None:
    before = files()
    assert_refused(cli("convert", *words), 2, message)
    assert files() == before


def test_damage_is_found(cli: Cli, mine: str) -> None:
    cli("convert", mine, "disk")
    content = bytearray(Path("disk/x.npy").read_bytes())
    content[-2] ^= 1
    Path("disk/x.npy").write_bytes(content)
    for command in (["convert", "disk", "--verify"], ["convert", "disk", "again", "--verify"]):
        assert_refused(cli(*command), 2, "x.npy: its SHA-256 is not the manifest's; the file was changed")
    assert_refused(cli("train", "disk", "--verify", *QUICK), 2, "its SHA-256 is not the manifest's")
    assert not Path("again").exists()
    assert not Path("runs").exists()


def test_train_and_predict(cli: Cli, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("convert", mine, "disk")
    monkeypatch.setattr(runs, "PREDICTED_AT_ONCE", 7)
    answer = cli("train", "disk", *QUICK, "--out", "run", "--device", "cpu", "--plots", "--json")
    assert answer.code == 0, answer
    found = json.loads(answer.out)
    table = pd.read_csv("run/predictions.csv", keep_default_na=False)
    assert table["id"].tolist() == [GRAPH.id_of(node) for node in range(50)], "the nodes of the split"
    assert table["split"].tolist() == ["train"] * 30 + ["val"] * 10 + ["test"] * 10
    test = table[table["split"] == "test"]
    assert found["test_accuracy"] == pytest.approx((test["label"] == test["predicted"]).mean())
    assert cli("predict", "run", "--out", "all.csv").out == "all.csv: predictions for 60 nodes of mine\n"
    everyone = pd.read_csv("all.csv", keep_default_na=False)
    assert everyone["id"].tolist() == [GRAPH.id_of(node) for node in range(60)]
    assert np.allclose(everyone["probability"][:50], table["probability"], atol=1e-5)
    assert cli("predict", "run", "--out", "all.parquet").code == 0
    assert pd.read_parquet("all.parquet")["id"].tolist() == everyone["id"].tolist()
    Path("some.txt").write_text(f"{GRAPH.id_of(9)}\n{GRAPH.id_of(2)}\n")
    assert cli("predict", "run", "--nodes", "some.txt", "--out", "some.csv").code == 0
    assert pd.read_csv("some.csv")["id"].tolist() == [GRAPH.id_of(9), GRAPH.id_of(2)]
    Path("none.txt").write_text("")
    assert cli("predict", "run", "--nodes", "none.txt", "--out", "none.csv").code == 0
    assert Path("none.csv").read_text().startswith("id,label,predicted")
    # The run knows its graph by content: the tables are the same one.
    assert cli("predict", "run", mine, "--out", "again.csv").code == 0


@pytest.mark.parametrize(("score_hops", "most"), [(0, 4), (2, 60)])
def test_few_nodes_are_scored_together(
    cli: Cli, mine: str, monkeypatch: pytest.MonkeyPatch, score_hops: int, most: int
) -> None:
    """On a CPU, in pieces that its caches hold; but all at once where scores are passed on, which takes all of them."""
    cli("convert", mine, "disk")
    words = [*QUICK, "--set=row_activation=false", f"--set=score_hops={score_hops}", "--out", "run", "--device", "cpu"]
    assert cli("train", "disk", *words).code == 0
    sizes = []
    scores = TokenphormerMethod.scores

    def noted(self: TokenphormerMethod, nodes: torch.Tensor) -> torch.Tensor:
        sizes.append(len(nodes))
        return scores(self, nodes)

    monkeypatch.setattr(TokenphormerMethod, "scores", noted)
    monkeypatch.setattr(runs, "READ_AT_ONCE", 4)
    assert cli("predict", "run", "--out", "all.csv", "--device", "cpu").code == 0
    assert (sum(sizes), max(sizes)) == (60, most)


def test_a_run_scores_its_split_in_pieces(cli: Cli, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of small batches that are kept until the last lie between freed memory, which then cannot be used."""
    cli("convert", mine, "disk")
    sizes, predict = [], runs.predict

    def noted(method: Any, nodes: Any, *rest: Any) -> Any:
        sizes.append(len(nodes))
        return predict(method, nodes, *rest)

    monkeypatch.setattr(runs, "predict", noted)
    monkeypatch.setattr(runs, "PREDICTED_AT_ONCE", 20)
    assert cli("train", "disk", *QUICK, "--out", "run", "--device", "cpu").code == 0
    assert sizes == [20, 20, 10]


def test_a_dry_run_writes_nothing(cli: Cli, mine: str) -> None:
    cli("convert", mine, "disk")
    before = files()
    answer = cli("train", "disk", *QUICK, "--dry-run", "--device", "cpu")
    assert answer.code == 0, answer
    assert [line.split("  ")[0] for line in answer.out.splitlines()] == ["host memory", "GPU memory", "disk", "time"]
    assert "none is used" in answer.out
    answer = cli("train", "disk", *QUICK, "--dry-run", "--device", "cpu", "--json")
    found = json.loads(answer.out)
    assert (found["graph"], found["device"], found["gpu_bytes"]) == ("mine", "cpu", 0)
    assert found["longest_seconds"] == found["prepare_seconds"] + found["max_epochs"] * found["epoch_seconds"]
    assert files() == before


def test_walks(cli: Cli, mine: str) -> None:
    cli("convert", mine, "disk")
    assert cli("walks", "disk", "--out", "a.npy", "--device", "cpu").code == 0
    assert cli("walks", mine, "--out", "b.npy", "--device", "cpu").code == 0
    assert np.array_equal(np.load("a.npy"), np.load("b.npy"))


def test_generate(cli: Cli) -> None:
    words = ["--nodes", 400, "--degree", 8, "--features", 6, "--classes", 3, "--seed", 5, "--train", 50]
    answer = cli("generate", *words, "made")
    assert answer.code == 0, answer
    assert answer.out.startswith("made: 400 nodes, 1,")
    graph = load_graph("made")
    assert (graph.num_features, graph.num_classes, graph.splits[0].sizes) == (6, 3, (50, 50, 50))
    before = files()
    assert_refused(cli("generate", *words, "made"), 2, "made: exists already")
    assert_refused(cli("generate", "--nodes", 2, "other"), 2, "--nodes 2: expected from 4")
    assert_refused(cli("generate", "--memory", "1KB", "other"), 2, "--memory: 1,024 bytes; expected at least 64 MB")
    assert files() == before


def test_parts_of_a_generated_split(cli: Cli) -> None:
    assert (
        cli("generate", "made", "--nodes", 900, "--train", 90, "--val", 20, "--test", 30, "--device", "cpu").code == 0
    )
    assert load_graph("made").splits[0].sizes == (90, 20, 30)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_generate_without_the_gpu_that_was_asked_for(cli: Cli) -> None:
    assert_refused(cli("generate", "made", "--nodes", 900, "--device", "cuda"), 3, "torch cannot use it here")
    assert not Path("made").exists()
    assert cli("generate", "made", "--nodes", 900, "--device", "auto").code == 0


def test_a_full_gpu_is_one_line(cli: Cli, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 28.43 GB\nmore")

    monkeypatch.setattr("tokenphormer.walks.statistics.sample_walks", fail)
    assert_refused_at_the_end(cli("walks", mine), "not enough memory: CUDA out of memory. Tried to allocate 28.43 GB")


def assert_refused_at_the_end(answer: Any, message: str) -> None:
    assert answer.code == 3, answer
    assert answer.err.splitlines()[-1] == f"tokenphormer: error: {message}"
