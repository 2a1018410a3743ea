"""`tokenphormer tune`: validation alone, the defaults first, stopped and gone on with anywhere, nothing mixed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.test_cli import Cli, assert_refused, cli
from tests.tiny import CPU, TINY, tiny_config, tiny_graph, tiny_split, write_folder
from tokenphormer import tuning
from tokenphormer.benchmark.methods import PLUS_SPACE
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.evaluation.metrics import evaluate
from tokenphormer.graph import Graph, Split
from tokenphormer.sgpm import PretrainedSGPM, Pretrainer, SGPMSettings
from tokenphormer.training.loop import predict
from tokenphormer.training.presets import RECIPES, SMALL, config_for
from tokenphormer.training.settings import Config
from tokenphormer.tuning import (
    SCHEDULE,
    Row,
    Tuned,
    importance_plot,
    importances,
    search_space,
    starts,
    tune,
    with_fixed,
    without_test_labels,
)

__all__ = ["cli"]  # the fixture

optuna = pytest.importorskip("optuna")

GRAPH = tiny_graph()
SPLIT = tiny_split(GRAPH)
BASE = tiny_config(dropout=0.123)
FILES = ["best.yaml", "importance.png", "study.db", "trials.jsonl"]


def fake_try(graph: Graph, split: Split, config: Config, *_: Any, **__: Any) -> Row:
    """An accuracy out of a hash of the settings; half of what has a high dropout does not run."""
    number = int.from_bytes(hashlib.sha256(config.hash.encode()).digest()[:4], "little")
    if config.dropout > 0.5 and number % 2:
        return {"status": "did not run", "reason": "no memory"}
    return {"status": "done", "val_accuracy": number / 2**32, "val_loss": 1.0, "seconds": 0.1}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_try", fake_try)


def only(monkeypatch: pytest.MonkeyPatch, **space: tuple[object, ...]) -> None:
    """Search this alone, and start from the defaults alone."""
    monkeypatch.setattr(tuning, "PLUS_SPACE", space)
    monkeypatch.setattr(tuning, "SCHEDULE", {})
    monkeypatch.setattr(tuning, "RECIPES", {})


def call(out: Path, trials: int = 3, base: Config = BASE, **options: Any) -> Tuned:
    graph, split = options.pop("graph", GRAPH), options.pop("split", SPLIT)
    return tune(graph, split, base, out, CPU, trials=trials, **options)


def stable(rows: list[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "time"} for row in rows]


# ---------------------------------------------------------------- the search


def test_a_real_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, dropout=(0.1, 0.3), num_walks=(1, 2, 3))
    found = call(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    assert [row["trial"] for row in found.rows] == [1, 2]
    assert Config().replace(found.rows[0]["config"]) == BASE
    assert found.best is not None
    assert found.defaults == found.rows[0]["val_accuracy"] <= found.best["val_accuracy"]
    assert Config.from_yaml(tmp_path / "best.yaml") == Config().replace(found.best["config"])
    lines = (tmp_path / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == found.rows
    assert {"config", "val_accuracy", "val_loss", "epochs", "seconds", "parameters", "commit"} <= found.rows[1].keys()
    assert not [key for row in found.rows for key in row if "test" in key]


def test_a_trial_is_judged_by_the_validation_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the weights that are kept say of them, in as many votes as the settings have."""
    only(monkeypatch, dropout=(0.1, 0.3))
    base = BASE.replace({"votes": 3, "max_epochs": 12, "learning_rate": 0.1})
    for row in call(tmp_path, 2, base=base).rows:
        config = Config().replace(row["config"] | {"compile": "no"})
        fitted = tuning.fit_tokenphormer(GRAPH, SPLIT, config, CPU)
        wanted = evaluate(predict(fitted.method, SPLIT.val, config, CPU), GRAPH.y[SPLIT.val])
        assert (row["val_accuracy"], row["val_loss"]) == (wanted.accuracy, pytest.approx(wanted.log_loss))
        assert (row["epochs"], row["best_epoch"]) == (fitted.progress.epoch, fitted.progress.best_epoch)
        assert row["epochs"] > row["best_epoch"]
        assert row["parameters"] == sum(parameter.numel() for parameter in fitted.method.module.parameters())


def test_test_labels_are_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the test labels are, the search is the same; what trains has neither them nor the test nodes."""
    seen: list[tuple[Graph, Split]] = []
    real = tuning.fit_tokenphormer

    def watched(graph: Graph, split: Split, *arguments: Any, **options: Any) -> Any:
        seen.append((graph, split))
        return real(graph, split, *arguments, **options)

    monkeypatch.setattr(tuning, "fit_tokenphormer", watched)
    only(monkeypatch, dropout=(0.1, 0.3, 0.5))
    y = GRAPH.y.copy()
    y[SPLIT.test] = (y[SPLIT.test] + 1) % 3
    results = []
    for number, graph in enumerate((GRAPH, dataclasses.replace(GRAPH, y=y))):
        rows = call(tmp_path / str(number), 2, graph=graph).rows
        results.append([(row["config"], row["val_accuracy"], row["val_loss"]) for row in rows])
    assert results[0] == results[1]
    assert len(seen) == 4
    for graph, split in seen:
        assert (graph.y[SPLIT.test] == -1).all()
        assert len(split.test) == 0
        assert not graph.splits


def test_only_labels_that_may_be_seen_are_left() -> None:
    split = Split([0, 1], [2], [3])
    blind, shown = without_test_labels(GRAPH, split)
    assert np.flatnonzero(blind.y >= 0).tolist() == [0, 1, 2]
    assert blind.num_classes == GRAPH.num_classes
    assert shown.sizes == (2, 1, 0)
    assert GRAPH.y[3] >= 0


@pytest.mark.usefixtures("quick")
def test_the_defaults_come_first_and_are_never_beaten_by_the_result(tmp_path: Path) -> None:
    for seed in range(3):
        base = BASE.replace({"seed": seed})
        found = call(tmp_path / str(seed), 4, base)
        assert Config().replace(found.rows[0]["config"]) == base
        assert found.best is not None
        assert found.defaults is not None
        assert found.best["val_accuracy"] >= found.defaults


@pytest.mark.usefixtures("quick")
def test_values_lie_in_the_space_and_are_not_tried_twice(tmp_path: Path) -> None:
    rows = call(tmp_path, 12).rows
    space = search_space(BASE, {})
    for row in rows:
        config = Config().replace(row["config"])
        for key, choices in space.items():
            if key != "decay_updates":
                assert getattr(config, key) in choices
    assert len({json.dumps(row["config"], sort_keys=True) for row in rows}) == len(rows)


def test_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    base = Config().replace(SMALL)
    space = search_space(base, {})
    assert PLUS_SPACE.keys() | SCHEDULE.keys() == space.keys()
    for start in starts(base):
        assert all(getattr(start, key) in choices for key, choices in space.items())
    assert search_space(base, {"dropout": "0.5"}, with_sgpm=True).keys() == space.keys() - {"dropout"} | {"sgpm_token"}
    only(monkeypatch, num_walks=(8, 30), walk_ratios=PLUS_SPACE["walk_ratios"])
    monkeypatch.setattr(tuning, "RECIPES", {"one": {"num_walks": 16}})
    assert search_space(base, {}) == {"num_walks": (8, 10, 16, 30), "walk_ratios": PLUS_SPACE["walk_ratios"]}
    odd = search_space(Config(walk_ratios=(1, 2, 3, 4)), {})
    assert (1, 2, 3, 4) in odd["walk_ratios"]
    with pytest.raises(InputError, match="nothing to tune"):
        search_space(base, {"num_walks": "3", "walk_ratios": ""})


@pytest.mark.usefixtures("quick")
def test_the_recipes_follow_the_defaults(tmp_path: Path) -> None:
    rows = call(tmp_path, 2 + len(RECIPES)).rows
    space = search_space(BASE, {})
    for row, recipe in zip(rows[1:], RECIPES.values(), strict=False):
        values = Config().replace(recipe).to_dict()
        assert {key: row["config"][key] for key in space} == {key: values[key] for key in space}
    last = [rows[-1]["config"][key] for key in space]
    assert last not in [[row["config"][key] for key in space] for row in rows[:-1]]


@pytest.mark.usefixtures("quick")
def test_a_recipe_that_is_the_default_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, dropout=(0.3, 0.5, 0.7))
    monkeypatch.setattr(tuning, "RECIPES", {"same": {"dropout": BASE.dropout}, "other": {"dropout": 0.7}})
    assert [row["config"]["dropout"] for row in call(tmp_path, 2).rows] == [BASE.dropout, 0.7]


@pytest.mark.usefixtures("quick")
def test_a_graph_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    call(tmp_path, 1, graph=tiny_graph(name="caf\udce9"))
    assert "on caf?, split" in (tmp_path / "best.yaml").read_text(encoding="utf-8")


@pytest.mark.usefixtures("quick")
def test_a_schedule_that_ends_before_it_began_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, decay_updates=(300, 1000), warmup_updates=(20, 400))
    rows = call(tmp_path, 4, BASE.replace({"warmup_updates": 400})).rows
    pairs = {(row["config"]["warmup_updates"], row["config"]["decay_updates"]) for row in rows}
    assert pairs == {(400, 1000), (400, 400), (20, 300), (20, 1000)}


@pytest.mark.usefixtures("quick")
def test_a_decay_that_is_fixed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, decay_updates=(300, 1000), warmup_updates=(20, 400))
    fixed = {"decay_updates": 300}
    rows = call(tmp_path, 2, BASE.replace(fixed | {"warmup_updates": 20}), fixed=fixed).rows
    pairs = {(row["config"]["warmup_updates"], row["config"]["decay_updates"]) for row in rows}
    assert pairs == {(20, 300), (300, 300)}


@pytest.mark.usefixtures("quick")
def test_heads_that_cannot_share_the_channels_are_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, hidden_channels=(64, 128), num_heads=(1, 8))
    rows = call(tmp_path / "both", 6, BASE.replace({"hidden_channels": 100, "num_heads": 1})).rows
    pairs = {(row["config"]["hidden_channels"], row["config"]["num_heads"]) for row in rows}
    assert pairs == {(64, 1), (64, 8), (100, 1), (100, 4), (128, 1), (128, 8)}
    fixed = {"num_heads": 3}
    rows = call(tmp_path / "fixed", 3, BASE.replace(fixed | {"hidden_channels": 9}), fixed=fixed).rows
    pairs = {(row["config"]["hidden_channels"], row["config"]["num_heads"]) for row in rows}
    assert pairs == {(9, 3), (63, 3), (126, 3)}


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [
        ({"num_heads": "3"}, {"hidden_channels": 63, "num_heads": 3}),
        ({"hidden_channels": 10}, {"hidden_channels": 10, "num_heads": 2}),
        ({"decay_updates": "10"}, {"warmup_updates": 10, "decay_updates": 10}),
        ({"warmup_updates": 500}, {"warmup_updates": 500, "decay_updates": 500}),
        ({"num_walks": "3"}, {"num_walks": 3}),
    ],
)
def test_the_defaults_fit_what_is_fixed(fixed: dict[str, object], expected: dict[str, object]) -> None:
    base = Config(hidden_channels=64, num_heads=4, warmup_updates=20, decay_updates=300)
    assert with_fixed(base, fixed) == base.replace(expected)


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"num_heads": 3, "hidden_channels": 10}, "hidden_channels: 10 cannot be shared by num_heads=3"),
        ({"warmup_updates": 9, "decay_updates": 8}, "decay_updates: 8; expected at least warmup_updates=9"),
        ({"num_heads": "0"}, "num_heads: 0; expected at least 1"),
        ({"num_heads": "many"}, "num_heads: 'many'; expected a value of type int"),
    ],
)
def test_what_is_fixed_is_never_changed(fixed: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_fixed(Config(), fixed)


@pytest.mark.usefixtures("quick")
def test_what_is_fixed_holds_in_every_trial(tmp_path: Path) -> None:
    assert BASE.num_walks != 3
    rows = call(tmp_path, 4, fixed={"num_walks": 3, "learning_rate": "1e-3"}).rows
    assert {(row["config"]["num_walks"], row["config"]["learning_rate"]) for row in rows} == {(3, 1e-3)}
    assert len({row["config"]["dropout"] for row in rows}) > 1


def test_the_best_goes_by_accuracy_then_loss_then_order() -> None:
    def row(trial: int, accuracy: float, loss: float) -> Row:
        return {"trial": trial, "status": "done", "val_accuracy": accuracy, "val_loss": loss}

    rows = [row(1, 0.5, 1.0), row(2, 0.7, 2.0), row(3, 0.7, 1.5), row(4, 0.7, 1.5), {"trial": 5, "status": "did not"}]
    best = Tuned(Path(), rows).best
    assert best is not None
    assert best["trial"] == 3
    assert Tuned(Path(), rows[4:]).best is None
    assert Tuned(Path(), []).defaults is None


def test_each_trial_says_how_it_went_and_which_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = iter([0.5, 0.75, None, 0.625])

    def given(*_: Any, **__: Any) -> Row:
        accuracy = next(accuracies)
        if accuracy is None:
            return {"status": "did not run", "reason": "no memory"}
        return {"status": "done", "val_accuracy": accuracy, "val_loss": 1.0, "seconds": 0.25}

    monkeypatch.setattr(tuning, "_try", given)
    said: list[str] = []
    call(tmp_path, 4, say=said.append)
    assert said == [
        "trial 1 of 4: 0.5000 validation, 0.2 s; the best so far",
        "trial 2 of 4: 0.7500 validation, 0.2 s; the best so far",
        "trial 3 of 4: did not run: no memory",
        "trial 4 of 4: 0.6250 validation, 0.2 s; best so far 0.7500",
    ]
    head, _, _ = (tmp_path / "best.yaml").read_text(encoding="utf-8").partition("\n")
    assert head == f"# Trial 2 of 4 on {GRAPH.name}, split {SPLIT.name}: 0.7500 validation accuracy"


@pytest.mark.usefixtures("quick")
def test_what_is_drawn_depends_on_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, dropout=tuple(place / 100 for place in range(50)))
    drawn = []
    for seed in (0, 10):
        rows = call(tmp_path / str(seed), 4, BASE.replace({"seed": seed})).rows
        drawn.append([row["config"]["dropout"] for row in rows[1:]])
    assert drawn[0] != drawn[1]


def test_sgpm_tokens_of_both_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SGPMSettings(
        train_sentences=2, val_sentences=1, hidden_channels=8, num_layers=1, num_heads=1, epochs=1, batch_size=64
    )
    trainer = Pretrainer(GRAPH, settings, CPU)
    trainer.run()
    sgpm = PretrainedSGPM.of(trainer, "test")
    given = []
    real = tuning.fit_tokenphormer

    def watched(*arguments: Any, sgpm: Any, **options: Any) -> Any:
        given.append((arguments[2].sgpm_token, sgpm))
        return real(*arguments, sgpm=sgpm, **options)

    monkeypatch.setattr(tuning, "fit_tokenphormer", watched)
    only(monkeypatch)
    call(tmp_path, 2, sgpm=sgpm)
    assert [kind for kind, _ in given] == ["static", "contextual"]
    for kind, vectors in given:
        assert np.array_equal(vectors, sgpm.vectors(GRAPH, kind, CPU))
    only(monkeypatch, dropout=(0.1,))
    with pytest.raises(InputError, match=r"with another SGPM; another search space \(dropout, sgpm_token\)"):
        call(tmp_path, 2)


# ---------------------------------------------------------------- stopping and going on


@pytest.mark.usefixtures("quick")
def test_stopped_anywhere_it_goes_on_to_the_same_trials(tmp_path: Path) -> None:
    whole = call(tmp_path / "whole", 11)
    for trials in (3, 9, 11, 5):
        part = call(tmp_path / "parts", trials)
    assert stable(part.rows) == stable(whole.rows)
    assert Config.from_yaml(tmp_path / "parts/best.yaml") == Config.from_yaml(tmp_path / "whole/best.yaml")


@pytest.mark.parametrize("how", ["Ctrl-C", "kill"])
def test_a_trial_that_was_stopped_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(tuning, "_try", fake_try)
    whole = call(tmp_path / "whole", 4)
    calls = 0

    def stopping(*arguments: Any, **options: Any) -> Row:
        nonlocal calls
        calls += 1
        if calls == 3:
            if how == "Ctrl-C":
                raise KeyboardInterrupt
            os._exit(9)
        return fake_try(*arguments, **options)

    monkeypatch.setattr(tuning, "_try", stopping)
    if how == "Ctrl-C":
        with pytest.raises(InterruptedTrainingError, match=r"2 of 4 trials are kept in .*; the same command goes on"):
            call(tmp_path / "parts", 4)
        assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == FILES
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process with threads forks
            child = os.fork()
        if not child:
            call(tmp_path / "parts", 4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    monkeypatch.setattr(tuning, "_try", fake_try)
    assert stable(call(tmp_path / "parts", 4).rows) == stable(whole.rows)


@pytest.mark.usefixtures("quick")
def test_a_kill_between_the_proposal_of_a_trial_and_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was left in the queue came on top of what was proposed anew: the defaults were tried twice."""
    whole = call(tmp_path / "whole", 4)

    def killed(*_: Any, **__: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(optuna.study.Study, "ask", killed)
        with pytest.raises(SystemExit):
            call(tmp_path / "parts", 4)
    assert stable(call(tmp_path / "parts", 4).rows) == stable(whole.rows)


def test_ctrl_c_ends_the_epoch_and_keeps_what_is_there(tmp_path: Path) -> None:
    """As a person does it: the real command in a process of its own."""
    write_folder(GRAPH, tmp_path / "mine", Split(range(40), range(40, 50), range(50, 60)))
    settings = [f"--set={key}={value}" for key, value in (TINY | {"max_epochs": 100000, "patience": 100000}).items()]
    command = [sys.executable, "-m", "tokenphormer", "tune", "mine", "--device", "cpu", "--out", "out", *settings]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        while not (tmp_path / "out/study.db").exists():
            assert process.poll() is None
        with sqlite3.connect(f"file:{tmp_path / 'out/study.db'}?mode=ro", uri=True, timeout=30) as storage:
            while not _running(storage):
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert said.splitlines()[-2:] == [
        "stopping at the end of this epoch; once more to stop at once",
        "tokenphormer: stopped; 0 of 20 trials are kept in out; the same command goes on",
    ]


def _running(storage: sqlite3.Connection) -> bool:
    try:
        return bool(storage.execute("select count(*) from trials where state = 'RUNNING'").fetchone()[0])
    except sqlite3.OperationalError:  # the table is not there yet
        return False


@pytest.mark.usefixtures("quick")
def test_the_time_is_up(tmp_path: Path) -> None:
    assert call(tmp_path, 3, timeout=0.0).rows == []
    assert len(call(tmp_path, 3, timeout=60.0).rows) == 3


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": tiny_graph(seed=3)}, "was begun with another graph; choose another folder with --out"),
        ({"split": Split(SPLIT.train, SPLIT.test, SPLIT.val)}, "was begun with another split; choose"),
        ({"base": BASE.replace({"jump_radius": 2})}, r"was begun with other settings \(jump_radius\); choose"),
        ({"fixed": {"batch_size": BASE.batch_size}}, r"was begun with another search space \(batch_size\); choose"),
    ],
)
def test_another_search_in_the_same_folder_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    call(tmp_path, 1)
    before = (tmp_path / "study.db").read_bytes()
    with pytest.raises(InputError, match=message):
        call(tmp_path, 2, **options)
    assert (tmp_path / "study.db").read_bytes() == before
    assert len(call(tmp_path, 2).rows) == 2


@pytest.mark.usefixtures("quick")
def test_folders_that_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").touch()
    with pytest.raises(InputError, match="is not empty and holds no tuning; choose another folder with --out"):
        call(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/study.db").write_text("no database at all, and longer than a header " * 9, encoding="utf-8")
    with pytest.raises(InputError, match=r"study.db: cannot be used as a study of Optuna"):
        call(tmp_path / "other")
    assert len(call(tmp_path / "a %?&#b", 1).rows) == 1
    assert (tmp_path / "a %?&#b/study.db").exists()


@pytest.mark.usefixtures("quick")
def test_files_that_are_missing_are_made_from_the_study(tmp_path: Path) -> None:
    """A kill may come between the last trial and its files."""
    call(tmp_path, 3)
    before = {name: (tmp_path / name).read_bytes() for name in FILES[:2] + FILES[3:]}
    for name in before:
        (tmp_path / name).unlink()
    call(tmp_path, 3)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.usefixtures("quick")
def test_a_study_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    optuna.create_study(study_name="theirs", storage=f"sqlite:///{path}")
    with pytest.raises(InputError, match=r"study.db: cannot be used .* another one, 'theirs'; choose another folder"):
        call(tmp_path)
    assert optuna.get_all_study_names(f"sqlite:///{path}") == ["theirs"]


@pytest.mark.usefixtures("quick")
def test_a_damaged_study(tmp_path: Path) -> None:
    call(tmp_path / "whole", 3)
    whole = (tmp_path / "whole/study.db").read_bytes()
    size = int.from_bytes(whole[16:18], "big")  # of a page
    pages = range(2, len(whole) // size, 6)
    assert len(pages) > 3
    for page in pages:
        damaged = bytearray(whole)
        damaged[page * size : page * size + 200] = bytes(range(200))
        folder = tmp_path / str(page)
        folder.mkdir()
        (folder / "study.db").write_bytes(damaged)
        with pytest.raises(InputError, match=r"study.db: cannot be used as a study of Optuna \("):
            call(folder, 4)
        assert (folder / "study.db").read_bytes() == damaged


def test_a_study_that_another_program_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*arguments: Any, **options: Any) -> Row:
        other.execute("begin exclusive")
        return fake_try(*arguments, **options)

    monkeypatch.setattr(tuning, "LOCK_SECONDS", 0.1)
    monkeypatch.setattr(tuning, "_try", fake_try)
    call(tmp_path, 1)
    monkeypatch.setattr(tuning, "_try", held)
    other = sqlite3.connect(tmp_path / "study.db")
    with pytest.raises(ResourceError, match=r"study.db: cannot be read or written \(.*database is locked\)"):
        call(tmp_path, 2)
    with pytest.raises(InputError, match=r"study.db: cannot be used as a study of Optuna \(.*database is locked\)"):
        call(tmp_path, 2)
    other.close()
    monkeypatch.setattr(tuning, "_try", fake_try)
    assert len(call(tmp_path, 2).rows) == 2


# ---------------------------------------------------------------- what cannot be run


def test_settings_that_cannot_be_trained_with_have_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise ResourceError("not enough memory: many bytes\nmore")

    monkeypatch.setattr(tuning, "fit_tokenphormer", full)
    said: list[str] = []
    found = call(tmp_path, 2, say=said.append)
    assert [(row["status"], row["reason"]) for row in found.rows] == [
        ("did not run", "not enough memory: many bytes")
    ] * 2
    assert found.best is found.defaults is None
    assert said == [f"trial {n} of 2: did not run: not enough memory: many bytes" for n in (1, 2)]
    assert not (tmp_path / "best.yaml").exists()


def test_what_the_graph_lacks_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the split's part 'val' has no labelled node"):
        call(tmp_path / "out", split=Split(SPLIT.train, [], SPLIT.test))
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="--trials 0: expected at least 1"):
        call(tmp_path / "out", 0)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("quick")
def test_an_error_does_not_take_the_trials_that_are_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tuning._write

    def refused(*_: Any) -> None:
        raise InputError("best.yaml: is a folder")

    monkeypatch.setattr(tuning, "_write", refused)
    with pytest.raises(InputError, match="is a folder"):
        call(tmp_path, 2)
    monkeypatch.setattr(tuning, "_write", real)
    monkeypatch.setattr(tuning, "_try", None)  # there is nothing left to try
    assert len(call(tmp_path, 1).rows) == 1


def test_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"tuning needs Optuna: pip install 'tokenphormer\[benchmark\]'"):
        call(tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- importance


def study_of(values: list[float]) -> Any:
    """The first setting decides, the second does nothing."""
    study = optuna.create_study(direction="maximize")
    spaces = {"a": optuna.distributions.IntDistribution(0, 3), "b": optuna.distributions.CategoricalDistribution("xy")}
    for number, value in enumerate(values):
        params = {"a": number % 4, "b": "xy"[number // 4 % 2]}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=spaces, value=value))
    return study


def test_importances() -> None:
    shares = importances(optuna, study_of([0.1, 0.4, 0.6, 0.9] * 4))
    assert list(shares) == ["a", "b"]
    assert shares["a"] > 0.95
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(optuna, study_of([0.1, 0.2, 0.3])) == {}
    assert importances(optuna, study_of([0.5] * 8)) == {}


def test_only_trials_that_ran_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(*_: Any, **__: Any) -> Row:
        calls.append(1)
        done: Row = {"status": "done", "val_accuracy": len(calls) / 10, "val_loss": 1.0, "seconds": 0.1}
        return {"status": "did not run", "reason": "no memory"} if len(calls) in (2, 3) else done

    calls: list[int] = []
    counted: list[int] = []
    monkeypatch.setattr(tuning, "_try", some)
    monkeypatch.setattr(tuning, "importance_plot", lambda shares, n: counted.append(n) or importance_plot(shares, n))
    call(tmp_path, 7)
    assert counted == [5]


def test_the_importance_plot() -> None:
    (axes,) = importance_plot({"dropout": 0.75, "num_walks": 0.25}, 9).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["dropout", "num_walks"]
    assert [bar.get_width() for bar in axes.patches] == [0.75, 0.25]  # type: ignore[attr-defined]
    assert axes.get_xlabel() == "share of the differences between 9 trials"
    assert not importance_plot({}, 2).axes


# ---------------------------------------------------------------- the command


@pytest.fixture
def mine(cli: Cli) -> str:
    write_folder(GRAPH, Path("mine"), Split(range(40), range(40, 50), range(50, 60)))
    return "mine"


@pytest.mark.usefixtures("quick")
def test_the_command(cli: Cli, mine: str) -> None:
    answer = cli("tune", mine, "--trials", 2, "--device", "cpu", "--set", "max_epochs=2", "--set", "hidden_channels=8")
    assert answer.code == 0, answer
    first, second = answer.out.splitlines()
    assert "% validation accuracy in trial " in first
    assert second == "use it with tokenphormer train mine --config runs/mine-tune/best.yaml"
    assert [line.partition(":")[0] for line in answer.err.splitlines()[-2:]] == ["trial 1 of 2", "trial 2 of 2"]
    rows = [json.loads(line) for line in Path("runs/mine-tune/trials.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["config"]["hidden_channels"] for row in rows} == {8}
    split = Split(range(40), range(40, 50), range(50, 60))
    expected = config_for(GRAPH, split, CPU).replace({"max_epochs": 2, "hidden_channels": 8})
    assert Config().replace(rows[0]["config"]) == expected

    answer = cli(
        "tune", mine, "--trials", 3, "--device", "cpu", "--set=max_epochs=2", "--set=hidden_channels=8", "--json"
    )
    found = json.loads(answer.out)
    assert (found["folder"], found["trials"], found["split"]) == ("runs/mine-tune", 3, "given")
    assert found["best"]["val_accuracy"] >= found["default_val_accuracy"]
    assert yaml.safe_load(Path("runs/mine-tune/best.yaml").read_text(encoding="utf-8")) == found["best"]["config"]


@pytest.mark.usefixtures("quick")
def test_heads_that_the_channels_of_the_defaults_cannot_share(cli: Cli, mine: str) -> None:
    answer = cli("tune", mine, "--trials", 1, "--device", "cpu", "--set", "num_heads=3", "--json")
    assert answer.code == 0, answer
    config = json.loads(answer.out)["best"]["config"]
    assert (config["hidden_channels"], config["num_heads"]) == (63, 3)


def test_train_takes_what_it_found(cli: Cli, mine: str) -> None:
    quick = [f"--set={key}={value}" for key, value in TINY.items()]
    split = ["--split", "stratified", "--split-seed", 2]
    answer = cli("tune", mine, "--trials", 1, "--device", "cpu", "--out", "my folder", *quick, *split)
    line = answer.out.splitlines()[-1]
    words = "mine --config 'my folder/best.yaml' --split stratified --split-seed 2"
    assert line == f"use it with tokenphormer train {words}", answer
    trained = cli("train", mine, "--config", "my folder/best.yaml", *split, "--device", "cpu", "--json")
    assert trained.code == 0, trained
    row = json.loads(Path("my folder/trials.jsonl").read_text(encoding="utf-8"))
    assert json.loads(trained.out)["val_accuracy"] == row["val_accuracy"]


def test_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, message in (
        (["debain"], "'debain' is neither a dataset nor an existing path"),
        (["debian", "--trials", 0], "--trials 0: expected at least 1"),
        (["debian", "--set", "dropuot=1"], "--set: 'dropuot' is no setting; nearest: dropout"),
        (["debian", "--sgpm", "nowhere"], "nowhere"),
        (["debian", "--timeout", -1], "--timeout -1: expected 0, which is no limit, or more"),
        (["debian", "--timeout", "nan"], "--timeout nan: expected 0, which is no limit, or more"),
        (["debian", "--timeout", 1e-9], "no trial could be run: the time was up before the first"),
    ):
        assert_refused(cli("tune", *arguments, "--device", "cpu"), 2, message)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert_refused(cli("tune", "debian", "--device", "cpu"), 2, "pip install 'tokenphormer[benchmark]'")


def test_all_that_recipes_choose_can_be_searched() -> None:
    """A trial changes the settings of the space alone, so what is missing there would be lost from a recipe."""
    space = search_space(Config(), {})
    for name, recipe in RECIPES.items():
        chosen = {key for key, value in recipe.items() if value != getattr(Config(), key)}
        assert chosen - {"max_epochs", "patience"} <= space.keys(), name
