"""`tokenphormer train` and `predict` as a person meets them: answers, files, Ctrl-C, one-line errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.test_cli import Answer, Cli, assert_refused, cli
from tests.tiny import CLASS_NAMES, TINY, contents, tiny_graph, tiny_split, write_folder
from tokenphormer.errors import InterruptedTrainingError
from tokenphormer.evaluation import runs
from tokenphormer.graph import Split
from tokenphormer.training.settings import Config

__all__ = ["cli"]  # the fixture

GRAPH = tiny_graph()
QUICK = [f"--set={key}={value}" for key, value in TINY.items()]
NUMBERS = ("test_accuracy", "test_macro_f1", "seconds", "peak_memory_mb")


@pytest.fixture
def mine(cli: Cli) -> str:
    """A folder of the user's own in the current folder, with a split column."""
    split = Split(range(40), range(40, 50), range(50, 60))
    write_folder(GRAPH, Path("mine"), split)
    return "mine"


def json_of(answer: Answer) -> dict[str, Any]:
    assert answer.code == 0, answer
    (line,) = answer.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


# ---------------------------------------------------------------- training


def test_one_line_of_json(cli: Cli) -> None:
    answer = cli("train", "debian", *QUICK, "--set", "max_epochs=2", "--device", "cpu", "--json")
    found = json_of(answer)
    assert not answer.err
    assert all(isinstance(found[name], float) and found[name] > 0 for name in NUMBERS)
    assert found["test_accuracy"] <= 1
    assert (found["graph"], found["device"], found["epochs"]) == ("debian", "cpu", [2])
    assert found["folder"] == "runs/debian"
    table = pd.read_csv("runs/debian/predictions.csv")
    test = table[table["split"] == "test"]
    assert found["test_accuracy"] == pytest.approx((test["label"] == test["predicted"]).mean())


def test_words_for_people(cli: Cli, mine: str) -> None:
    answer = cli("train", mine, *QUICK, "--seeds", 2, "--compare", "--plots", "--deterministic", "--out", "out")
    assert answer.code == 0, answer
    lines = answer.out.splitlines()
    assert [line[:32].strip() for line in lines[:3]] == [
        "Tokenphormer",
        "logistic regression on features",
        "two-layer GCN",
    ]
    assert "± " in lines[0]
    assert lines[0].endswith("test accuracy, 2 seeds")
    assert lines[-1].startswith("6 epochs, ")
    assert lines[-1].endswith("report: out/report.html")
    assert answer.err.startswith("mine: 60 nodes from nodes.csv")
    assert len(list(Path("out/plots").glob("*.png"))) == 3
    assert Config.from_yaml("out/config.yaml").deterministic
    command = json.loads(Path("out/run.json").read_text(encoding="utf-8"))["command"]
    assert command.startswith("tokenphormer train mine ")


@pytest.mark.parametrize("options", [["--split", "given"], []])
def test_the_split_that_came_with_the_data(cli: Cli, mine: str, options: list[str]) -> None:
    found = json_of(cli("train", mine, *QUICK, *options, "--json"))
    assert found["split"] == "given"
    split = Split.load("runs/mine/split.npz")
    assert (split.train.tolist(), split.test.tolist()) == (list(range(40)), list(range(50, 60)))


def test_other_splits(cli: Cli, mine: str) -> None:
    found = json_of(cli("train", mine, *QUICK, "--split", "stratified", "--split-seed", 1, "--json"))
    assert found["split"] == "stratified-1"
    assert Split.load("runs/mine/split.npz").hash == tiny_split(GRAPH).hash


def test_a_file_of_settings_and_what_overrides_it(cli: Cli, mine: str) -> None:
    Path("settings.yaml").write_text(yaml.safe_dump(TINY | {"dropout": 0.4, "votes": 3}))
    found = json_of(cli("train", mine, "--config", "settings.yaml", "--set", "votes=2", "--json"))
    expected = Config(**(TINY | {"dropout": 0.4, "votes": 2}))
    assert Config.from_yaml(Path(found["folder"]) / "config.yaml") == expected


def test_the_paper_s_settings_are_not_for_a_graph_that_has_a_dataset_s_name(cli: Cli, mine: str) -> None:
    Path(mine).rename("cora")
    answer = cli("train", "./cora", "--config", "paper")
    assert answer.code == 2
    notes, error = answer.err.splitlines()
    assert notes.startswith("cora: 60 nodes from nodes.csv")
    assert "--config paper: expected the dataset 'cora', loaded by its name" in error
    file = error.rpartition("--config ")[2]
    assert Config.from_yaml(file).num_walks
    assert json_of(cli("train", "./cora", "--config", file, *QUICK, "--json"))["split"] == "given"


def test_a_second_run_takes_the_next_folder(cli: Cli, mine: str) -> None:
    folders = [json_of(cli("train", mine, *QUICK, "--json"))["folder"] for _ in range(2)]
    assert folders == ["runs/mine", "runs/mine-2"]


def test_tensorboard(cli: Cli, mine: str) -> None:
    pytest.importorskip("tensorboard")
    assert cli("train", mine, *QUICK, "--tensorboard", "--out", "out").code == 0
    assert list(Path("out/tensorboard").glob("events.out.*"))


def test_predict(cli: Cli, mine: str) -> None:
    assert cli("train", mine, *QUICK, "--out", "out").code == 0
    answer = cli("predict", "out", "--out", "p.csv")
    assert answer == Answer(0, "p.csv: predictions for 60 nodes of mine\n", "")
    predicted, before = pd.read_csv("p.csv"), pd.read_csv("out/predictions.csv")
    assert predicted["predicted"].tolist() == before["predicted"].tolist()
    assert set(predicted["predicted"]) <= set(CLASS_NAMES)
    write_folder(tiny_graph(num_nodes=33, seed=5), Path("other"))
    Path("ids.txt").write_text(f"{GRAPH.id_of(7)}\n", encoding="utf-8")
    answer = cli("predict", "out", "other", "--out", "q.parquet", "--nodes", "ids.txt")
    assert (answer.code, answer.out) == (0, "q.parquet: predictions for 1 nodes of other\n")
    assert answer.err.startswith("other: 33 nodes from nodes.csv, ")
    assert_refused(cli("predict", "out", "--out", "p.csv"), 2, "p.csv: exists already")
    assert cli("predict", "out", "--out", "p.csv", "--force").code == 0


def test_what_was_done_to_another_graph_is_said(cli: Cli, mine: str) -> None:
    edges = pd.read_csv("mine/edges.csv", dtype=str)
    write_folder(GRAPH, Path("capital"))
    edges.assign(Weight=2.5).to_csv("capital/edges.csv", index=False)
    edges.assign(weight=2.5).to_csv("mine/edges.csv", index=False)
    assert cli("train", mine, *QUICK, "--out", "out").code == 0
    lost = "; columns of edges.csv not used: 'Weight' (weights are read from 'weight')"
    unlike = "; the edges that the run was trained on have weights, these have none\n"
    for command in (["predict", "out", "capital"], ["explain", "out", "--node", GRAPH.id_of(0), "--graph", "capital"]):
        answer = cli(*command)
        assert answer.code == 0
        assert answer.err.startswith("capital: 60 nodes from nodes.csv, ")
        assert lost in answer.err
        assert answer.err.endswith(unlike)
    again = cli("predict", "out", mine, "--out", "again.csv").err
    assert again.startswith("mine: ")
    assert "the run was trained" not in again
    assert cli("predict", "out", "--out", "own.csv").err == ""


# ---------------------------------------------------------------- what is refused


REFUSED = {
    "unknown setting": (
        ["mine", "--set", "dropuot=0.5"],
        "--set: 'dropuot' is no setting; nearest: dropout, score_dropout",
    ),
    "no value": (["mine", "--set", "dropout"], "--set 'dropout': expected key=value"),
    "not YAML": (["mine", "--set", "dropout=[1"], "dropout: not valid YAML"),
    "out of bounds": (["mine", "--set", "dropout=2"], "dropout: 2.0; expected a share from 0 to below 1"),
    "wrong type": (["mine", "--set", "num_walks=many"], "num_walks: 'many'; expected a value of type int"),
    "no file of settings": (["mine", "--config", "no.yaml"], "no.yaml: cannot be read"),
    "bad file of settings": (["mine", "--config", "bad.yaml"], "bad.yaml: dropout: 2"),
    "unknown graph": (["debain"], "'debain' is neither a dataset nor an existing path; nearest: debian"),
    "unknown split": (["mine", "--split", "random"], "unknown split protocol 'random'; expected one of stratified"),
    "no such split": (["mine", "--split-seed", "3"], "graph 'mine' has given splits 0 to 0, not 3"),
    "none given": (["debian", "--split", "given"], "graph 'debian' comes with no given split"),
    "no seeds": (["mine", "--seeds", "0"], "--seeds 0: expected at least 1"),
    "unknown device": (["mine", "--device", "toaster"], "device: 'toaster'; expected 'cpu', 'cuda'"),
    "folder taken": (["mine", "--out", "full"], "full: is not empty and holds no run; choose another folder"),
    "a file": (["mine", "--out", "bad.yaml"], "bad.yaml: is a file; expected the name of a folder"),
    "no features": (["bare"], "graph 'bare' has no features; give some"),
    "one class": (["single"], "there is 1 class; telling classes apart takes at least 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line(cli: Cli, mine: str, case: str) -> None:
    Path("bad.yaml").write_text("dropout: 2\n")
    Path("full").mkdir()
    Path("full/thesis.tex").write_text("precious")
    for name, table in (("bare", "id,label\na,x\nb,y\nc,x\nd,y\ne,x\nf,y\n"), ("single", "id,label,v\na,x,1\nb,x,2\n")):
        Path(name).mkdir()
        Path(name, "nodes.csv").write_text(table)
        Path(name, "edges.csv").write_text("source,target\na,b\n")
    before = contents(Path())
    arguments, message = REFUSED[case]
    # What was done to a graph of one's own is said in a line before.
    answer = cli("train", *arguments, "--device", "cpu") if "--device" not in arguments else cli("train", *arguments)
    *notes, error = answer.err.splitlines(keepends=True)
    assert len(notes) <= 2
    assert_refused(Answer(answer.code, answer.out, error), 2, message)
    assert contents(Path()) == before


def test_runs_that_are_none(cli: Cli, mine: str) -> None:
    assert_refused(cli("predict", "absent"), 2, "absent: no such folder")
    assert_refused(cli("predict", "mine"), 2, "mine: holds no finished run (run.json is missing)")


# ---------------------------------------------------------------- stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_the_exit_code(cli: Cli, mine: str, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise InterruptedTrainingError("stopped after epoch 3", number)

    monkeypatch.setattr(runs, "train_run", stopped)
    answer = cli("train", mine)
    assert answer.code == 128 + number
    assert answer.err.splitlines()[-1] == "tokenphormer: stopped after epoch 3"


CODE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits one that is ignored
from tokenphormer.cli import main
from tokenphormer.evaluation.live import LiveProgress

shown = LiveProgress.after_epoch
def after_epoch(self, number, trainer):
    shown(self, number, trainer)
    print("epoch", trainer.progress.epoch, flush=True)

LiveProgress.after_epoch = after_epoch
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_saves_and_says_how_to_go_on(cli: Cli, mine: str) -> None:
    command = ["train", mine, *QUICK, "--set", "max_epochs=120", "--set", "patience=120", "--device", "cpu"]
    running = subprocess.Popen([sys.executable, "-c", CODE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert running.stdout is not None
        for _ in range(3):
            assert running.stdout.readline().startswith(b"epoch"), "ended before it could be interrupted"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130, err
    assert b"Traceback" not in err
    _, remark, last = err.decode().splitlines()
    assert remark == "stopping at the end of this epoch; once more to stop at once"
    assert last.startswith("tokenphormer: stopped after epoch ")
    assert last.endswith("checkpoint.safetensors holds it; run the same command with --resume to go on")
    assert b"report" not in out

    assert not Path("runs/mine/run.json").exists()
    assert not list(Path("runs").rglob("*.partial"))
    answer = cli(*command, "--resume", "--json")
    assert json_of(answer)["epochs"] == [120]
    assert "going on after epoch " in answer.err
    assert Path("runs/mine/run.json").exists()
    assert not list(Path("runs").rglob("checkpoint.safetensors"))
