"""Checkpoints: a training that was stopped anywhere ends as if it never was, and no damaged file is taken for one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiny import CPU, contents, tiny_config, tiny_graph, tiny_split
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.graph import Graph, Split
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.training import fit as fit_module
from tokenphormer.training.fit import Fitted, fit_tokenphormer
from tokenphormer.training.loop import Trainer
from tokenphormer.training.settings import Config

GRAPH = tiny_graph()
SPLIT = tiny_split(GRAPH)
CONFIG = tiny_config(
    fresh_walks=True, dropout=0.3, attention_dropout=0.2, batch_size=10, max_epochs=6, laplacian_pe=2, gradient_clip=1.0
)


def fit(
    checkpoint: Path | None,
    stop: Callable[[int], None] = lambda _: None,
    graph: Graph = GRAPH,
    split: Split = SPLIT,
    config: Config = CONFIG,
    said: list[str] | None = None,
) -> Fitted:
    """Train, with `stop` called after each epoch."""

    def after_epoch(trainer: Trainer) -> None:
        stop(trainer.progress.epoch)

    say = (lambda _: None) if said is None else said.append
    return fit_tokenphormer(graph, split, config, CPU, checkpoint=checkpoint, after_epoch=after_epoch, say=say)


def assert_same(one: Fitted, other: Fitted) -> None:
    """Bit for bit, but for the time it took."""
    for name, tensor in one.method.module.state_dict().items():
        assert torch.equal(tensor, other.method.module.state_dict()[name]), name
    for a, b in zip(one.progress.history, other.progress.history, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}
    ends = [(p.epoch, p.updates, p.best_epoch, p.best_loss, p.stopped) for p in (one.progress, other.progress)]
    assert ends[0] == ends[1]


@pytest.fixture(scope="module")
def unbroken() -> Fitted:
    return fit(None)


@pytest.fixture
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every epoch."""
    monkeypatch.setattr(fit_module, "CHECKPOINT_SECONDS", -1.0)


def raise_at(*epochs: int) -> Callable[[int], None]:
    def stop(epoch: int) -> None:
        if epoch in epochs:
            raise KeyboardInterrupt

    return stop


# ---------------------------------------------------------------- going on


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize("epoch", [1, 2, 3, 5, 6])
def test_stopped_once_and_resumed(tmp_path: Path, unbroken: Fitted, epoch: int) -> None:
    path, said = tmp_path / "c.safetensors", list[str]()
    with pytest.raises(InterruptedTrainingError, match=r"^stopped in epoch \d") as stopped:
        fit(path, raise_at(epoch))
    # Stopped before that epoch was written: the one before is on disk.
    assert path.exists() == (epoch > 1)
    assert ("nothing was kept yet" in str(stopped.value)) == (epoch == 1)
    assert_same(fit(path, said=said), unbroken)
    assert said == ([f"going on after epoch {epoch - 1}"] if epoch > 1 else [])
    assert list(contents(tmp_path)) == ["c.safetensors"]


@pytest.mark.usefixtures("_often")
def test_stopped_again_and_again(tmp_path: Path, unbroken: Fitted) -> None:
    path = tmp_path / "c.safetensors"
    for epoch in range(2, 7):
        with pytest.raises(InterruptedTrainingError):
            fit(path, raise_at(epoch))
    assert_same(fit(path), unbroken)


@pytest.mark.usefixtures("_often")
def test_a_running_mean_of_the_weights_goes_on_too(tmp_path: Path, unbroken: Fitted) -> None:
    path, config = tmp_path / "c.safetensors", CONFIG.replace({"weight_average": 0.9})
    whole = fit(None, config=config)
    assert [row["train_loss"] for row in whole.progress.history] == [
        row["train_loss"] for row in unbroken.progress.history
    ]
    assert whole.progress.history[-1]["val_loss"] != unbroken.progress.history[-1]["val_loss"]
    for epoch in (3, 5):
        with pytest.raises(InterruptedTrainingError):
            fit(path, raise_at(epoch), config=config)
    assert_same(fit(path, config=config), whole)


@pytest.mark.usefixtures("_often")
def test_the_checkpoint_of_a_training_that_is_over(tmp_path: Path, unbroken: Fitted) -> None:
    epochs: list[int] = []
    path = tmp_path / "c.safetensors"
    fit(path)
    again = fit(path, epochs.append)
    assert_same(again, unbroken)
    assert epochs == []
    assert again.seconds >= sum(row["seconds"] for row in again.progress.history)


def test_checkpoints_change_nothing(tmp_path: Path, unbroken: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert_same(fit(tmp_path / "c.safetensors"), unbroken)
    assert not contents(tmp_path)  # 20 seconds were not over
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    monkeypatch.setattr(fit_module, "CHECKPOINT_SECONDS", -1.0)
    assert_same(fit(tmp_path / "c.safetensors"), unbroken)
    assert list(contents(tmp_path)) == ["c.safetensors"]


# ---------------------------------------------------------------- signals


@contextmanager
def handler(number: int, action: object) -> Iterator[None]:
    before = signal.signal(number, action)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.signal(number, before)


def send(number: int, at: int, times: int = 1) -> Callable[[int], None]:
    def stop(epoch: int) -> None:
        for _ in range(times if epoch == at else 0):
            os.kill(os.getpid(), number)

    return stop


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("epoch", [1, 4, 6])
def test_a_first_signal_ends_the_epoch_and_saves(tmp_path: Path, unbroken: Fitted, number: int, epoch: int) -> None:
    path, said = tmp_path / "c.safetensors", list[str]()
    with handler(signal.SIGINT, signal.default_int_handler):
        before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(InterruptedTrainingError, match=rf"^stopped after epoch {epoch}; .*holds it$") as stopped:
            fit(path, send(number, epoch), said=said)
        assert stopped.value.signal == number
        assert said == ["stopping at the end of this epoch; once more to stop at once"]
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert_same(fit(path), unbroken)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    with (
        handler(signal.SIGINT, signal.default_int_handler),
        pytest.raises(InterruptedTrainingError, match=r"^stopped in epoch 3; nothing was kept yet$"),
    ):
        fit(path, send(signal.SIGINT, 2, times=2))
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_who_ignores_signals_goes_on_ignoring_them(tmp_path: Path, unbroken: Fitted) -> None:
    with handler(signal.SIGINT, signal.SIG_IGN):
        assert_same(fit(tmp_path / "c.safetensors", send(signal.SIGINT, 2)), unbroken)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_without_a_checkpoint_ctrl_c_is_what_it_always_is() -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(None, raise_at(2))


def test_training_in_another_thread(tmp_path: Path, unbroken: Fitted) -> None:
    found: list[Fitted] = []
    thread = threading.Thread(target=lambda: found.append(fit(tmp_path / "c.safetensors")))
    thread.start()
    thread.join(60)
    assert_same(found[0], unbroken)


# ---------------------------------------------------------------- a checkpoint of something else, or of nothing


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "c.safetensors"
    with handler(signal.SIGINT, signal.default_int_handler), pytest.raises(InterruptedTrainingError):
        fit(path, send(signal.SIGINT, 2))
    return path


OTHERS = {
    "config": {"config": CONFIG.replace({"dropout": 0.31})},
    "split": {"split": Split(SPLIT.train[1:], SPLIT.val, SPLIT.test)},
    "graph": {"graph": tiny_graph(seed=1)},
    "config, split": {"config": CONFIG.replace({"seed": 1}), "split": Split(SPLIT.train, SPLIT.val, [])},
}


@pytest.mark.parametrize("what", OTHERS)
def test_the_checkpoint_of_another_run(checkpoint: Path, what: str) -> None:
    before = checkpoint.read_bytes()
    with pytest.raises(InputError, match=rf"is the checkpoint of another run: it has another {what}\."):
        fit(checkpoint, **OTHERS[what])  # type: ignore[arg-type]
    assert checkpoint.read_bytes() == before


def assert_refused(folder: Path, damaged: bytes) -> None:
    path = folder / "damaged.safetensors"
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"Delete this checkpoint to train from the beginning$"):
        fit(path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_truncated(checkpoint: Path, tmp_path: Path, share: float) -> None:
    whole = checkpoint.read_bytes()
    assert_refused(tmp_path, whole[: int(share * len(whole))])


@pytest.mark.parametrize("junk", [b"\0" * 100, b"\xff" * 100, b"not a checkpoint", b"{}", b"PK\3\4"])
def test_files_of_another_kind(tmp_path: Path, junk: bytes) -> None:
    assert_refused(tmp_path, junk)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), head=st.booleans())
def test_a_single_bit_flipped(checkpoint: Path, tmp_path: Path, place: float, bit: int, head: bool) -> None:
    whole = bytearray(checkpoint.read_bytes())
    header = 8 + int.from_bytes(whole[:8], "little")
    at = int(place * (header if head else len(whole)))
    whole[at] ^= 1 << bit
    path = tmp_path / "flipped.safetensors"
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"flipped\.safetensors: "):
        load_tensors(path)


def test_safetensors_of_other_people(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "foreign.safetensors"
    for metadata in (None, {}, {"format": "pt"}, {"tokenphormer": "0 {"}, {"tokenphormer": "0 []"}):
        save_file({"weight": torch.zeros(2)}, path, metadata=metadata)
        with pytest.raises(InputError, match=r"foreign\.safetensors: "):
            load_tensors(path)


def test_weights_that_do_not_fit(checkpoint: Path, tmp_path: Path) -> None:
    tensors, meta = load_tensors(checkpoint)
    path = tmp_path / "c.safetensors"
    for change in ({"model.readout.weight": torch.zeros(1, 3)}, {"elsewhere.x": torch.zeros(1)}):
        save_tensors(path, tensors | change, meta)
        with pytest.raises(InputError, match="does not fit this training"):
            fit(path)
    save_tensors(path, tensors, meta | {"format": 2})
    with pytest.raises(InputError, match=r"format 2; this version reads format 1\. Delete this checkpoint"):
        fit(path)


def test_the_same_content_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        save_tensors(tmp_path / name, {"x": torch.ones(3), "y": torch.zeros(2)}, {"one": 1, "two": 2})
    assert len(set(contents(tmp_path).values())) == 1


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4).t(), "b": torch.tensor(1.5), "c": torch.zeros(0, 2), "d": torch.arange(3)}
    save_tensors(tmp_path / "new" / "t.safetensors", tensors, {"x": [1, "ü"]})
    found, meta = load_tensors(tmp_path / "new" / "t.safetensors")
    assert meta == {"format": 1, "x": [1, "ü"]}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    with pytest.raises(InputError, match="no such file"):
        load_tensors(tmp_path / "absent.safetensors")


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_disk_that_is_full_keeps_the_old_file(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "t.safetensors"
    save_tensors(path, {"a": torch.zeros(10)}, {})
    before = contents(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(ResourceError, match=r"cannot write .*t\.safetensors: .*File too large"):
            save_tensors(path, {"a": torch.zeros(10_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert contents(tmp_path) == before


# ---------------------------------------------------------------- killed


LONG = CONFIG.replace({"max_epochs": 60, "patience": 60})
RUN = """
import sys
from pathlib import Path
import torch
from tests.training import test_checkpoint as test

torch.set_num_threads(1)  # as conftest.py does: more threads sum in another order
test.fit_module.CHECKPOINT_SECONDS = -1.0
test.fit(Path(sys.argv[1]), lambda epoch: print(epoch, flush=True), config=test.LONG)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    path, said = tmp_path / "c.safetensors", list[str]()
    root = Path(__file__).parents[2]
    running = subprocess.Popen([sys.executable, "-c", RUN, str(path)], cwd=root, stdout=subprocess.PIPE)
    try:
        assert running.stdout is not None
        for _ in range(random.randint(2, 20)):
            assert running.stdout.readline(), "ended before it could be killed"
        time.sleep(random.uniform(0, 0.05))
    finally:
        running.kill()
        running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL
    assert_same(fit(path, config=LONG, said=said), fit(None, config=LONG))
    assert said[0].startswith("going on after epoch ")
