"""Runs on odd graphs, with odd names, and with settings that cannot be trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluation.test_runs import train
from tests.tiny import tiny_config, tiny_graph, tiny_split
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.evaluation.explanations.run import explain_run
from tokenphormer.evaluation.runs import predict_run, train_run
from tokenphormer.graph import load_graph
from tokenphormer.graph.tables import write_folder
from tokenphormer.serve.explorer import open_run


def test_nodes_without_any_edge(tmp_path: Path) -> None:
    graph = tiny_graph(edge_index=np.zeros((2, 0), np.int64))
    summary = train(tmp_path / "out", graph, config=tiny_config(max_epochs=10), compare=True)
    assert summary.test_accuracy[0] > 0.6
    assert [name for name, _ in summary.comparison] == ["logistic regression on features", "two-layer GCN"]


def test_features_that_are_all_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    train(tmp_path / "out", tiny_graph(x=np.ones((60, 3))), say=said.append)
    assert said == ["every node has the same features: only the graph's structure can tell nodes apart"]


def test_no_features(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no features; give some, or ask for positional encodings \(walk_pe=8\)"):
        train(tmp_path / "out", tiny_graph(x=None))
    train(tmp_path / "with", tiny_graph(x=None), config=tiny_config(walk_pe=4, max_epochs=2), compare=True)
    assert (tmp_path / "with" / "run.json").exists()


def test_one_class(tmp_path: Path) -> None:
    graph = tiny_graph(y=np.zeros(60, int), class_names=("only",))
    with pytest.raises(InputError, match="there is 1 class"):
        train(tmp_path / "out", graph)


def test_bad_input_leaves_the_folder_free(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no features"):
        train(tmp_path / "out", tiny_graph(x=None))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    """As Python reads the name of a folder that another system has named."""
    train(tmp_path / "out", tiny_graph(name="caf\udce9"))
    assert (tmp_path / "out" / "model_card.md").read_text(encoding="utf-8").startswith("# Tokenphormer on caf?\n")
    assert (tmp_path / "out" / "run.json").exists()


def test_names_that_mean_something_in_markdown(tmp_path: Path) -> None:
    names = ("<script>alert(1)</script>", "a\n\n# head | *b*", "機械学習")
    train(tmp_path / "out", tiny_graph(class_names=names, name="my_graph_[1](2)"))
    lines = (tmp_path / "out" / "model_card.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == r"# Tokenphormer on my\_graph\_\[1\](2)"
    assert lines[3] == r"- Classes: \<script\>alert(1)\</script\>, a \# head \| \*b\*, 機械学習."
    assert [line for line in lines if line.startswith("#")] == [lines[0], "## Settings"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"learning_rate": 1e30, "gradient_clip": 0.0}, "training found no weights to keep"),
        ({"hidden_channels": 10**12}, "not enough memory"),
    ],
)
def test_settings_that_cannot_be_trained_with_leave_the_folder_free(
    tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    """Their error says what to change, and the mended command may name the same folder."""
    with pytest.raises((InputError, ResourceError), match=error):
        train(tmp_path / "out", config=tiny_config(max_epochs=2, **changes))
    assert list(tmp_path.iterdir()) == []
    train(tmp_path / "out")
    assert (tmp_path / "out" / "run.json").exists()


def test_a_class_without_nodes_and_one_with_a_single_node(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    y[0] = 2
    graph = tiny_graph(y=y, class_names=("a", "b", "single", "nobody"))
    said: list[str] = []
    train(tmp_path / "out", graph, say=said.append)
    assert said[0].startswith("no training node is of class nobody")
    assert (tmp_path / "out" / "run.json").exists()


def test_a_card_says_what_the_model_reads(tmp_path: Path) -> None:
    for name, changes, told in (
        ("own", {"num_walks": 0, "num_hops": 0}, "reads a node's own features alone"),
        ("passed", {"num_walks": 0, "num_hops": 0, "score_hops": 2}, "is transductive: it learns from the neighbours"),
        ("agreeing", {"num_walks": 0, "num_hops": 0, "consistency": 0.5}, "is transductive: it learns from all nodes"),
        ("placed", {"num_walks": 0, "num_hops": 0, "walk_pe": 2}, "is transductive: it learns from the neighbours"),
    ):
        train(tmp_path / name, tiny_graph(), config=tiny_config(max_epochs=1, **changes))
        assert f"The model {told}" in (tmp_path / name / "model_card.md").read_text(encoding="utf-8")


def test_another_graph_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder with something else of the graph's name in it, the error says where the run's own graph is."""
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    write_folder(tiny_graph(), "mine")
    graph = load_graph("mine")
    train_run(graph, "mine", tiny_split(graph), tiny_config(max_epochs=1), Path("out"), torch.device("cpu"))
    (tmp_path / "b" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "b")

    def refused(what: str, own: str) -> None:
        for option, call in (
            ("GRAPH", lambda: predict_run(Path("../a/out"), None, Path("p.csv"), None, "cpu", None, False)),
            ("--graph", lambda: explain_run(Path("../a/out"), None, None, "auto", None, "cpu", None, False)),
            ("--graph", lambda: open_run(Path("../a/out"), "cpu")),
        ):
            with pytest.raises(InputError, match=what) as error:
                call()
            assert str(error.value).endswith(f"{own}: name that as {option} to take it)") == bool(own)

    own = f" (the run was trained on {(tmp_path / 'a' / 'mine').resolve()}, which is still there"
    refused("^mine: has no nodes table", own)
    (tmp_path / "b" / "mine").rmdir()
    write_folder(tiny_graph(seed=5), "mine")
    refused("^mine: is not the graph that the run was trained on", own)
    (tmp_path / "a" / "mine").rename(tmp_path / "a" / "gone")
    refused("^mine: is not the graph that the run was trained on", "")


def test_directions_other_than_in_training_are_said(tmp_path: Path) -> None:
    """A saved graph is as it was written; of a run without directions, one with some is not what it knows."""
    train(tmp_path / "out", tiny_graph(), config=tiny_config(max_epochs=1))
    source = str(tmp_path / "saved.npz")
    tiny_graph(directed=True).save(source)
    said: list[str] = []
    for number, directed in enumerate((None, True)):  # where it was asked for, there is nothing to say
        predict_run(tmp_path / "out", source, tmp_path / f"{number}.csv", None, "cpu", directed, False, said.append)
    told = "the edges that the run was trained on have no directions, these have some"
    assert said[0].endswith(told)
    assert not any(told in text for text in said[1:])
