"""`tokenphormer pretrain` and `train --sgpm` as a person meets them."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest

from tests.sgpm.graphs import QUICK, quick
from tests.sgpm.test_pretrain_run import FILES, at, terminate
from tests.sgpm.test_pretrained import grown
from tests.test_cli import Answer, Cli, assert_refused, cli
from tests.test_train_cli import json_of
from tests.tiny import TINY, contents, tiny_graph, write_folder
from tests.training.test_checkpoint import handler
from tokenphormer.evaluation.live import LiveProgress
from tokenphormer.sgpm import SGPMSettings, pretraining

__all__ = ["cli"]  # the fixture

SETS = [f"--set={key}={value}" for key, value in QUICK.items()]
TRAIN = [f"--set={key}={value}" for key, value in TINY.items()]
GRAPH = tiny_graph(node_ids=[f"n{node}" for node in range(60)])


@pytest.fixture
def mine(cli: Cli) -> str:
    """A folder of the user's own in the current folder."""
    write_folder(GRAPH, Path("mine"))
    return "mine"


def test_words_for_people(cli: Cli, mine: str) -> None:
    answer = cli("pretrain", mine, *SETS, "--out", "sgpm", "--device", "cpu")
    assert answer.code == 0, answer
    first, last = answer.out.splitlines()
    assert "of masked nodes guessed right, perplexity" in first
    assert last == "sgpm: use it with tokenphormer train mine --sgpm sgpm"
    assert set(contents(Path("sgpm"))) == FILES | {"curves.png"}
    assert SGPMSettings.from_yaml("sgpm/config.yaml") == quick()
    assert cli("train", mine, *TRAIN, "--sgpm", "sgpm", "--device", "cpu", "--out", "run").code == 0


def test_the_command_that_is_offered_can_be_typed(cli: Cli) -> None:
    write_folder(GRAPH, Path("my graph"))
    answer = cli("pretrain", "my graph", *SETS, "--out", "my sgpm", "--device", "cpu", "--directed")
    offered = shlex.split(answer.out.splitlines()[-1].partition("use it with tokenphormer ")[2])
    assert offered == ["train", "my graph", "--sgpm", "my sgpm", "--directed"]
    assert cli(*offered, *TRAIN, "--device", "cpu", "--out", "run").code == 0


def test_one_line_of_json(cli: Cli, mine: str) -> None:
    found = json_of(cli("pretrain", mine, *SETS, "--json", "--device", "cpu"))
    assert (found["folder"], found["graph"], found["device"]) == ("runs/mine-sgpm", "mine", "cpu")
    history = [json.loads(line) for line in Path("runs/mine-sgpm/history.jsonl").read_text().splitlines()]
    best = min(history, key=lambda row: row["val_loss"])
    assert {key: found[key] for key in best} == best
    again = json_of(cli("pretrain", mine, *SETS, "--json", "--device", "cpu"))
    assert again["folder"] == "runs/mine-sgpm-2"


def test_a_file_of_settings_and_what_overrides_it(cli: Cli, mine: str) -> None:
    Path("s.yaml").write_text(quick(dropout=0.3).to_yaml())
    json_of(cli("pretrain", mine, "--config", "s.yaml", "--set", "epochs=1", "--out", "o", "--json", "--device", "cpu"))
    assert SGPMSettings.from_yaml("o/config.yaml") == quick(dropout=0.3, epochs=1)


def test_the_document_as_text(cli: Cli, mine: str) -> None:
    answer = cli("pretrain", mine, *SETS, "--document", "d.txt")
    assert answer.out == "d.txt: 240 sentences\n"
    lines = Path("d.txt").read_text().splitlines()
    assert len(lines) == 240
    assert {word for line in lines for word in line.split()} == {GRAPH.id_of(v) for v in range(60)}
    assert not Path("runs").exists()
    *_, error = cli("pretrain", mine, *SETS, "--document", "d.txt").err.splitlines()
    assert error == "tokenphormer: error: d.txt: exists already; choose another name"


def test_tensorboard(cli: Cli, mine: str) -> None:
    pytest.importorskip("tensorboard")
    assert cli("pretrain", mine, *SETS, "--tensorboard", "--out", "o", "--device", "cpu").code == 0
    assert list(Path("o/tensorboard").glob("events.out.*"))


def test_stopped_and_resumed(cli: Cli, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "CHUNK", 64)
    shown, stop = LiveProgress.after_chunk, at(6, terminate)

    def after(self: LiveProgress, trainer: pretraining.Pretrainer) -> None:
        shown(self, trainer)
        stop(trainer)

    command = ("pretrain", mine, *SETS, "--device", "cpu")
    monkeypatch.setattr(LiveProgress, "after_chunk", after)
    with handler(signal.SIGTERM, signal.SIG_DFL):
        answer = cli(*command)
    monkeypatch.setattr(LiveProgress, "after_chunk", shown)
    assert answer.code == 128 + signal.SIGTERM
    _, remark, last = answer.err.splitlines()
    assert remark == "stopping at the end of this chunk; once more to stop at once"
    assert last.endswith("checkpoint.safetensors holds what was learned; the same command with --resume goes on")
    refused = cli(*command, "--out", "runs/mine-sgpm").err.splitlines()[-1]
    assert refused.endswith("holds a pre-training that was stopped; add --resume to go on")
    found = json_of(cli(*command, "--resume", "--json"))
    assert found["folder"] == "runs/mine-sgpm"
    whole = json_of(cli(*command, "--out", "whole", "--json"))
    assert found["val_loss"] == whole["val_loss"]


def test_bad_input_is_refused_in_one_line(cli: Cli, mine: str) -> None:
    Path("bare").mkdir()
    Path("bare/nodes.csv").write_text("id,label,v\na,x,1\nb,y,2\n")
    Path("bare/edges.csv").write_text("source,target\n")
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("precious")
    before = contents(Path())
    cases = [
        (["bare"], "graph 'bare' has no edges: there is nothing to walk on"),
        (["mine", "--set", "epoch=2"], "--set: 'epoch' is no setting; nearest: epochs"),
        (
            ["mine", "--set", "hidden_channels=10", "--set", "num_heads=4"],
            "hidden_channels: 10; expected a multiple of",
        ),
        (["mine", "--out", "full"], "full: is not empty and holds no pre-training"),
        (["mine", "--config", "no.yaml"], "no.yaml: cannot be read"),
        (["nowhere"], "'nowhere' is neither a dataset nor an existing path"),
    ]
    for arguments, message in cases:
        answer = cli("pretrain", *arguments, "--device", "cpu")
        assert_refused(Answer(answer.code, answer.out, answer.err.splitlines(keepends=True)[-1]), 2, message)
    assert contents(Path()) == before


def test_train_refuses_what_is_no_sgpm_of_its_graph(cli: Cli, mine: str) -> None:
    write_folder(tiny_graph(num_nodes=45, seed=2), Path("other"))
    assert cli("pretrain", "other", *SETS, "--out", "sgpm", "--device", "cpu").code == 0
    before = contents(Path())
    for folder, message in (
        ("sgpm", "the SGPM was pre-trained on another graph, 'other': nodes 45 there, 60 here"),
        ("mine", "mine: holds no finished pre-training (sgpm.json is missing)"),
    ):
        answer = cli("train", mine, *TRAIN, "--sgpm", folder, "--device", "cpu")
        assert_refused(Answer(answer.code, answer.out, answer.err.splitlines(keepends=True)[-1]), 2, message)
    assert contents(Path()) == before


def test_auto_and_predictions_on_a_new_graph(
    cli: Cli, mine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tokenphormer.sgpm.pretrain_run.SMALL", QUICK)
    command = ("train", mine, *TRAIN, "--sgpm", "auto", "--device", "cpu")
    first = cli(*command, "--out", "one")
    assert "SGPM: none for this graph and these settings yet; pre-training into" in first.err
    assert first.code == 0
    assert "SGPM: using " in cli(*command, "--out", "two").err
    one, two = (pd.read_csv(f"{name}/predictions.csv") for name in ("one", "two"))
    pd.testing.assert_frame_equal(one, two)
    shutil.rmtree(tmp_path / "cache")
    write_folder(grown(GRAPH), Path("grown"))
    assert cli("predict", "one", "grown", "--out", "p.csv").out == "p.csv: predictions for 70 nodes of grown\n"
    assert cli("predict", "one", "--out", "own.csv").code == 0
    assert pd.read_csv("own.csv")["predicted"].tolist() == one["predicted"].tolist()
