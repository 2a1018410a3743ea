"""One folder, two processes: the second is refused and told so; what a kill leaves does not stand in anybody's way."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tiny import CPU, contents, tiny_config, tiny_graph, tiny_split
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.evaluation.runs import train_run
from tokenphormer.files import LOCK, atomic_path, is_partial, only_process, partial_path
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.sgpm.pretrain_run import pretrain
from tokenphormer.sgpm.settings import SMALL, SGPMSettings

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks are the system's, and this one has others")
SGPM = SGPMSettings().replace(SMALL | {"hidden_channels": 8, "num_layers": 1, "epochs": 1, "train_sentences": 2})
HOLD = """
import sys
from pathlib import Path
from tokenphormer.files import only_process
with only_process(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def train(out: Path, resume: bool = False, say: Callable[[str], None] = print) -> None:
    graph = tiny_graph()
    train_run(graph, "tiny", tiny_split(graph), tiny_config(max_epochs=2), out, CPU, resume=resume, say=say)


def pretrain_here(out: Path) -> None:
    pretrain(tiny_graph(), SGPM, out, CPU, resume=True)


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("work", [train, pretrain_here])
def test_the_second_is_told(tmp_path: Path, work: Callable[[Path], None]) -> None:
    with held(tmp_path / "run") as process:
        before = contents(tmp_path)
        with pytest.raises(InputError, match="run: another process is writing it"):
            work(tmp_path / "run")
        assert contents(tmp_path) == before
        process.kill()
        process.wait()
        assert (tmp_path / "run" / LOCK).exists(), "a killed process cannot clean up"
        work(tmp_path / "run")
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_lock_ends_with_its_block(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with only_process(folder):
        assert [path.name for path in folder.iterdir()] == [LOCK]
        with pytest.raises(InputError, match="another process"), only_process(folder):
            raise AssertionError("two hold it")
    assert not folder.exists(), "nothing was written"
    with only_process(folder):
        (folder / "x").write_text("x")
    assert [path.name for path in folder.iterdir()] == ["x"]


def test_many_want_it_and_one_has_it(tmp_path: Path) -> None:
    """Also while the lock's file is removed and made anew, no two are ever inside."""
    inside, most, entered, refused = 0, 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, entered, refused
        for _ in range(60):
            try:
                with only_process(tmp_path / "run"):
                    with guard:
                        inside += 1
                        entered += 1
                        most = max(most, inside)
                    with guard:
                        inside -= 1
            except InputError:
                with guard:
                    refused += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert entered + refused == 360
    assert entered >= 60


def test_files_and_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file: is a file"), only_process(tmp_path / "file"):
        pass
    with pytest.raises(ResourceError, match=r"cannot write .*file/below"), only_process(tmp_path / "file" / "below"):
        pass


# ---------------------------------------------------------------- what a kill leaves


@pytest.mark.parametrize("resume", [False, True])
def test_killed_while_the_very_first_file_was_written(tmp_path: Path, resume: bool) -> None:
    """The folder then holds half a config.yaml and a lock, and is nobody's."""
    out = tmp_path / "run"
    out.mkdir()
    partial_path(out / "config.yaml").write_text("hidden_chan")
    (out / LOCK).touch()
    train(out, resume)
    assert (out / "run.json").exists()
    assert not [path for path in out.rglob("*") if is_partial(path) or path.name == LOCK]


def test_killed_between_a_seeds_last_file_and_its_checkpoint(tmp_path: Path) -> None:
    train(tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    left = tmp_path / "run" / "seeds" / "0" / "checkpoint.safetensors"
    left.write_bytes(b"of no use any more")
    train(tmp_path / "run", resume=True)
    assert not left.exists()


def test_processes_of_one_number_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers every process may be number 1: what a killed one left was in the way of the next."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    out = tmp_path / "g"
    names = {partial_path(out).name for _ in range(100)}
    assert len(names) == 100
    assert all(is_partial(tmp_path / name) for name in names)
    for name in names:
        (tmp_path / name).mkdir()
    write_graph(tiny_graph(), out)
    assert open_graph(out, verify=True).num_nodes == 60
    with atomic_path(tmp_path / "x") as one, atomic_path(tmp_path / "x") as two:
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "x").read_text() == "one"


def test_a_link_that_leads_nowhere_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "nowhere" / "deep")
    with pytest.raises(ResourceError, match=r"cannot write .*run"), only_process(tmp_path / "run"):
        pass
