"""Folders of pre-training: what they hold, what is refused, what a stop or a kill leaves, and `auto`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.sgpm.graphs import pieces, quick, relabelled
from tests.tiny import CPU, contents, tiny_graph
from tests.training.test_checkpoint import handler
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.graph import Graph
from tokenphormer.sgpm import SMALL, PretrainedSGPM, Pretrainer, SGPMSettings, pretrain_run, pretraining
from tokenphormer.sgpm.pretrain_run import default_settings, find_or_pretrain, load_pretrained, pretrain

FILES = {"sgpm.json", "sgpm.safetensors", "config.yaml", "history.jsonl", "model_card.md"}
GRAPH = tiny_graph()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests do not change it."""
    out = tmp_path_factory.mktemp("finished") / "sgpm"
    pretrain(GRAPH, quick(), out, CPU)
    return out


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four chunks an epoch."""
    monkeypatch.setattr(pretraining, "CHUNK", 64)


def at(chunk: int, action: Callable[[], None]) -> Callable[[Pretrainer], None]:
    """Do something after that many chunks of all."""

    def after(trainer: Pretrainer) -> None:
        if 4 * trainer.progress.epoch + trainer.progress.chunk == chunk:
            action()

    return after


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------- what is in it


def test_the_files(finished: Path) -> None:
    assert set(contents(finished)) == FILES
    manifest = json.loads((finished / "sgpm.json").read_text(encoding="utf-8"))
    assert manifest["sha256"] == hashlib.sha256((finished / "sgpm.safetensors").read_bytes()).hexdigest()
    assert (manifest["format"], manifest["graph_name"], manifest["settings"]) == (1, "tiny", quick().hash)
    assert SGPMSettings.from_yaml(finished / "config.yaml") == quick()
    assert [row["epoch"] for row in lines(finished / "history.jsonl")] == [1, 2]
    assert load_pretrained(finished, GRAPH, CPU).meta["history"] == lines(finished / "history.jsonl")


def test_the_model_card_says_what_it_has_seen(finished: Path) -> None:
    text = (finished / "model_card.md").read_text(encoding="utf-8")
    assert "**No label was used.**" in text
    assert "transductive" in text
    assert "those of any test set too" in text
    assert f"60 nodes, {GRAPH.num_edges} edges, 5 features" in text
    best = min(lines(finished / "history.jsonl"), key=lambda row: row["val_loss"])
    assert f"loss {best['val_loss']:.4f}" in text
    assert quick().to_yaml().strip() in text


def test_labels_leave_no_trace(finished: Path, tmp_path: Path) -> None:
    """Not in the weights, not in the identity: a graph without labels gives the same, and may use it."""
    bare = relabelled(GRAPH, None)
    again = pretrain(bare, quick(), tmp_path / "bare", CPU)
    expected = load_pretrained(finished, bare, CPU)
    assert again.hash == expected.hash
    names = [json.loads((folder / "sgpm.json").read_text())["graph"] for folder in (finished, tmp_path / "bare")]
    assert names[0] == names[1]


@pytest.mark.usefixtures("_small_chunks")
def test_the_history_is_written_as_it_comes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def after(trainer: Pretrainer) -> None:
        path = tmp_path / "out" / "history.jsonl"
        written = lines(path) if path.exists() else []
        assert written == trainer.progress.history
        seen.append((trainer.progress.epoch, len(written)))

    pretrain(GRAPH, quick(epochs=3), tmp_path / "out", CPU, after_chunk=after)
    assert [pair for pair in seen if pair[0]] == [(1, 1)] * 4 + [(2, 2)] * 4 + [(3, 3)]


def test_the_manifest_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = pretrain_run._write

    def fail(path: Path, text: str) -> None:
        if path.name == "sgpm.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    out = tmp_path / "out"
    monkeypatch.setattr(pretrain_run, "_write", fail)
    with pytest.raises(OSError, match="No space left"):
        pretrain(GRAPH, quick(), out, CPU)
    assert set(contents(out)) == FILES - {"sgpm.json"}
    with pytest.raises(InputError, match=r"holds no finished pre-training \(sgpm.json is missing\)$"):
        load_pretrained(out, GRAPH, CPU)
    monkeypatch.undo()
    expected = pretrain(GRAPH, quick(), tmp_path / "whole", CPU)
    assert pretrain(GRAPH, quick(), out, CPU, resume=True).hash == expected.hash


# ---------------------------------------------------------------- folders that are refused


def refused(
    out: Path, message: str, graph: Graph = GRAPH, settings: SGPMSettings | None = None, **options: Any
) -> None:
    before = contents(out.parent)
    with pytest.raises(InputError, match=message):
        pretrain(graph, settings or quick(), out, CPU, **options)
    assert contents(out.parent) == before


def test_folders_of_other_people_are_left_alone(tmp_path: Path, finished: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    for resume in (False, True):
        refused(tmp_path / "full", "is not empty and holds no pre-training", resume=resume)
        refused(tmp_path / "full" / "thesis.tex", "is a file; expected the name of a folder", resume=resume)
        refused(finished, "holds a finished pre-training; choose another folder", resume=resume)


def test_nothing_is_left_of_a_graph_without_edges(tmp_path: Path) -> None:
    bare = Graph.from_edges(np.zeros((2, 0), int), 4, name="bare")
    refused(tmp_path / "out", "graph 'bare' has no edges", bare)
    assert not (tmp_path / "out").exists()


def test_nothing_is_left_where_nothing_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pretrainer, "validate", lambda _: (float("nan"), 0.0))
    refused(tmp_path / "out", "pre-training found no weights to keep: the validation loss was nan")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("message", ["CUDA out of memory", "[enforce fail] can't allocate memory: you tried 9 TB"])
def test_no_memory_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    kind = torch.OutOfMemoryError if "CUDA" in message else RuntimeError

    def fail(*_: object) -> None:
        raise kind(message)

    monkeypatch.setattr(Pretrainer, "step", fail)
    with pytest.raises(ResourceError, match=r"^not enough memory: .*; use a smaller batch_size or hidden_channels$"):
        pretrain(GRAPH, quick(), tmp_path / "out", CPU)


def test_other_faults_are_not_called_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Pretrainer, "step", fail)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        pretrain(GRAPH, quick(), tmp_path / "out", CPU)


# ---------------------------------------------------------------- stopped


@pytest.fixture
def stopped(tmp_path: Path, _small_chunks: None) -> Path:
    """A pre-training that SIGTERM stopped in its second epoch."""
    out = tmp_path / "stopped"
    with (
        handler(signal.SIGTERM, signal.SIG_DFL),
        pytest.raises(InterruptedTrainingError, match=r"^stopped; .*holds what was learned; the same comm.* --resume"),
    ):
        pretrain(GRAPH, quick(), out, CPU, after_chunk=at(6, terminate))
    return out


def test_a_stop_is_gone_on_with(stopped: Path) -> None:
    assert set(contents(stopped)) == {"config.yaml", "checkpoint.safetensors", "history.jsonl"}
    assert len(lines(stopped / "history.jsonl")) == 1
    said: list[str] = []
    done = pretrain(GRAPH, quick(), stopped, CPU, resume=True, say=said.append)
    assert said == ["going on after epoch 1, chunk 2"]
    assert set(contents(stopped)) == FILES
    history = lines(stopped / "history.jsonl")
    assert [row["epoch"] for row in history] == [1, 2]
    whole = pretrain(GRAPH, quick(), stopped.parent / "whole", CPU)
    assert done.hash == whole.hash
    for a, b in zip(history, lines(stopped.parent / "whole" / "history.jsonl"), strict=True):
        assert a | {"seconds": 0} == b | {"seconds": 0}


def test_what_a_stopped_one_refuses(stopped: Path) -> None:
    refused(stopped, "holds a pre-training that was stopped; add --resume to go on")
    other = quick(dropout=0.3, seed=4)
    refused(stopped, r"was begun with another dropout, seed; its config.yaml has", settings=other, resume=True)
    refused(stopped, "another pre-training: it has another graph", tiny_graph(seed=1), resume=True)
    with pytest.raises(InputError, match=r"\(sgpm.json is missing\); its pre-training was stopped$"):
        load_pretrained(stopped, GRAPH, CPU)
    checkpoint = stopped / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-7])
    refused(stopped, "Delete this checkpoint to begin anew", resume=True)
    checkpoint.unlink()
    assert pretrain(GRAPH, quick(), stopped, CPU, resume=True).is_of(GRAPH)
    assert set(contents(stopped)) == FILES


@pytest.mark.usefixtures("_small_chunks")
def test_stopped_at_once_before_anything_was_kept(tmp_path: Path) -> None:
    with pytest.raises(
        InterruptedTrainingError, match=r"^stopped at once; nothing was kept yet; the same command with"
    ):
        pretrain(GRAPH, quick(), tmp_path / "out", CPU, after_chunk=at(6, interrupt))
    (tmp_path / "out" / ".sgpm.safetensors.123.partial").write_bytes(b"half")
    assert pretrain(GRAPH, quick(), tmp_path / "out", CPU, resume=True).is_of(GRAPH)
    assert set(contents(tmp_path / "out")) == FILES


def test_a_kill_while_the_folder_was_claimed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".config.yaml.123.partial").write_text("half")
    pretrain(GRAPH, quick(), out, CPU)
    assert set(contents(out)) == FILES


LONG: dict[str, Any] = {"epochs": 12, "patience": 12, "dropout": 0.2, "mean_length": 3.0, "length_deviation": 0.5}
RUN = (
    f"LONG = {LONG}"
    + """
import sys
from pathlib import Path
import torch
from tests.sgpm.graphs import quick
from tests.tiny import CPU, tiny_graph
from tokenphormer.sgpm import pretraining
from tokenphormer.sgpm.pretrain_run import pretrain

torch.set_num_threads(1)  # as conftest.py does: more threads sum in another order
pretraining.CHUNK, pretraining.CHECKPOINT_SECONDS, pretraining.CHECKPOINT_SHARE = 64, -1.0, 1e9
after = lambda trainer: (print("chunk", flush=True), sys.stdin.readline())  # one step each, until it is killed
pretrain(tiny_graph(), quick(**LONG), Path(sys.argv[1]), CPU, after_chunk=after)
"""
)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
@pytest.mark.usefixtures("_small_chunks")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    root = Path(__file__).parents[2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = subprocess.Popen([sys.executable, "-c", RUN, str(out)], cwd=root, **pipes)  # type: ignore[call-overload]
    try:
        for _ in range(random.randint(3, 36)):
            assert running.stdout.readline(), "ended before it could be killed"
            running.stdin.write(b"\n")
            running.stdin.flush()
        time.sleep(random.uniform(0, 0.03))
    finally:
        running.kill()
        running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL
    said: list[str] = []
    done = pretrain(GRAPH, quick(**LONG), out, CPU, resume=True, say=said.append)
    assert said[0].startswith("going on after epoch ")
    assert done.hash == pretrain(GRAPH, quick(**LONG), tmp_path / "whole", CPU).hash
    assert set(contents(out)) == FILES
    assert len(lines(out / "history.jsonl")) == len(lines(tmp_path / "whole" / "history.jsonl"))


# ---------------------------------------------------------------- reading a folder


def test_folders_that_cannot_be_read(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    weights, manifest = copy / "sgpm.safetensors", copy / "sgpm.json"
    whole, said = weights.read_bytes(), manifest.read_text()

    def check(message: str, graph: Graph = GRAPH) -> None:
        with pytest.raises(InputError, match=message):
            load_pretrained(copy, graph, CPU)

    check("the SGPM was pre-trained on another graph, 'tiny': nodes 60 there, 16 here; features 5", pieces())
    weights.write_bytes(whole[:-5])
    check("is missing or not the file that pre-training wrote")
    weights.unlink()
    check("is missing or not the file that pre-training wrote")
    weights.write_bytes(whole)
    for text in ("", "{", "[]", "{}", '"x"', '{"format": 1}'):
        manifest.write_text(text)
        check(r"sgpm\.json: not the manifest of a pre-training")
    manifest.write_text(said.replace('"format": 1', '"format": 2'))
    check("a pre-training of format 2; this version reads format 1")
    manifest.unlink()
    check(r"holds no finished pre-training \(sgpm.json is missing\)$")
    with pytest.raises(InputError, match=r"absent: holds no finished pre-training"):
        load_pretrained(tmp_path / "absent", GRAPH, CPU)
    with pytest.raises(InputError, match="not the manifest of a pre-training"):
        load_pretrained(weights, GRAPH, CPU)


# ---------------------------------------------------------------- auto


def test_auto_pretrains_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    first = find_or_pretrain(GRAPH, quick(), CPU, root=tmp_path, say=said.append)
    (folder,) = tmp_path.iterdir()
    assert said == [f"SGPM: none for this graph and these settings yet; pre-training into {folder}"]
    assert folder.name.startswith("tiny-")
    before = contents(tmp_path)
    monkeypatch.setattr(Pretrainer, "step", None)  # nothing is trained from here on
    said.clear()
    for graph in (GRAPH, relabelled(GRAPH, np.zeros(60, int))):
        assert find_or_pretrain(graph, quick(), CPU, root=tmp_path, say=said.append).hash == first.hash
    assert said == [f"SGPM: using {folder}"] * 2
    assert contents(tmp_path) == before


def test_auto_keeps_graphs_and_settings_apart(tmp_path: Path) -> None:
    for graph, settings in ((GRAPH, quick()), (GRAPH, quick(seed=1)), (tiny_graph(seed=1), quick())):
        assert find_or_pretrain(graph, settings, CPU, root=tmp_path).settings == settings
    assert len(list(tmp_path.iterdir())) == 3
    assert all((folder / "sgpm.json").exists() for folder in tmp_path.iterdir())


def test_auto_names_folders_for_any_graph(tmp_path: Path) -> None:
    graph = Graph.from_edges([[0], [1]], name="../my graph/ü" * 9)
    find_or_pretrain(graph, quick(), CPU, root=tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    assert folder.name.startswith("___my_graph_ü")
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"]


def test_auto_lives_in_the_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    find_or_pretrain(GRAPH, quick(), CPU)
    (folder,) = (tmp_path / "tokenphormer" / "sgpm").iterdir()
    assert set(contents(folder)) == FILES


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("stop", [terminate, interrupt])
def test_auto_goes_on_where_it_was_stopped(tmp_path: Path, stop: Callable[[], None]) -> None:
    with (
        handler(signal.SIGTERM, signal.SIG_DFL),
        pytest.raises(InterruptedTrainingError, match=r"; the same command goes on$"),
    ):
        find_or_pretrain(GRAPH, quick(), CPU, root=tmp_path, after_chunk=at(6, stop))
    said: list[str] = []
    done = find_or_pretrain(GRAPH, quick(), CPU, root=tmp_path, say=said.append)
    assert ("going on after epoch 1, chunk 2" in said) == (stop is terminate)
    assert done.hash == pretrain(GRAPH, quick(), tmp_path / "whole", CPU).hash


def test_auto_recovers_from_a_kill_at_any_file(tmp_path: Path, finished: Path) -> None:
    """Whatever files of the folder were written when the power went: the next call ends with a whole one."""
    expected = load_pretrained(finished, GRAPH, CPU).hash
    find_or_pretrain(GRAPH, quick(), CPU, root=tmp_path)
    (folder,) = tmp_path.iterdir()
    order = ["config.yaml", "history.jsonl", "sgpm.safetensors", "model_card.md"]
    for count in range(len(order) + 1):
        for path in folder.iterdir():
            path.unlink()
        for name in order[:count]:
            shutil.copyfile(finished / name, folder / name)
        (folder / ".x.1.partial").write_text("half")
        assert find_or_pretrain(GRAPH, quick(), CPU, root=tmp_path).hash == expected
        assert set(contents(folder)) == FILES


def test_auto_does_not_hide_a_damaged_folder(tmp_path: Path) -> None:
    find_or_pretrain(GRAPH, quick(), CPU, root=tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "sgpm.safetensors").write_bytes(b"junk")
    with pytest.raises(InputError, match="is missing or not the file that pre-training wrote"):
        find_or_pretrain(GRAPH, quick(), CPU, root=tmp_path)


def test_default_settings(tmp_path: Path) -> None:
    assert default_settings(CPU) == SGPMSettings().replace(SMALL)
    assert default_settings(torch.device("cuda")) == SGPMSettings()
    (tmp_path / "s.yaml").write_text("epochs: 9\n")
    assert default_settings(CPU, tmp_path / "s.yaml") == SGPMSettings(epochs=9)


def test_what_it_returns_is_what_it_wrote(tmp_path: Path) -> None:
    done = pretrain(GRAPH, quick(), tmp_path / "out", CPU)
    loaded = PretrainedSGPM.load(tmp_path / "out", CPU)
    assert done.hash == loaded.hash
    np.testing.assert_array_equal(done.vectors(GRAPH, "contextual", CPU), loaded.vectors(GRAPH, "contextual", CPU))
