"""`make fuzz` in short, in this process: some damaged inputs to every reader. docs/faults.md has the long form."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scripts import load_script
from tokenphormer.errors import InputError

fuzz = load_script("fuzz")
INPUTS = 40
FEW = {"convert_csv": 15, "convert_parquet": 15, "request": 20}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("world")
    fuzz.build_world(folder)
    return folder


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, fuzz.hang)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore")  # of what other libraries say of damaged files, nothing is shown
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_inputs(world: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = tmp_path / "world"
    shutil.copytree(world, here)
    seeds, read = fuzz.TARGETS[name](here)
    judge = fuzz.Judge(name, read, tmp_path)
    for seed in seeds:
        judge(seed)
    assert judge.taken == len(seeds), "what is whole must be taken"
    draw, tokens = random.Random(name), fuzz.words_of(seeds)
    for _ in range(FEW.get(name, INPUTS)):
        judge(fuzz.changed(draw, draw.choice(seeds), tokens))
    assert judge.failures == {}


# ---------------------------------------------------------------- the judge itself


def refuse(_: bytes) -> None:
    raise InputError("no")


def crash(_: bytes) -> None:
    raise KeyError("oops")


def hang(_: bytes) -> None:
    time.sleep(30)


def hoard(_: bytes) -> None:
    bytearray(300 << 20)


@pytest.mark.parametrize(
    ("read", "kind"), [(refuse, ""), (crash, "KeyError"), (hang, "HangError"), (hoard, "MemoryError")]
)
def test_what_counts_as_a_failure(read: object, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    monkeypatch.setattr(fuzz, "MEGABYTES", 100)
    peak = iter([0, 300 << 10] if read is hoard else [0, 0])
    monkeypatch.setattr(fuzz, "peak_kilobytes", lambda: next(peak))
    judge = fuzz.Judge("target", read, tmp_path)
    judge(b"input")
    assert judge.taken == (1 if read is hoard else 0)
    assert [name.split(" at ")[0] for name in judge.failures] == ([kind] if kind else [])
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == (["target-0.bin", "target.current"] if kind else ["target.current"])


def test_changes_are_those_of_their_seed_and_small() -> None:
    data = b"0123456789" * 50
    some = [fuzz.changed(random.Random(number), data, fuzz.TOKENS) for number in range(50)]
    assert some == [fuzz.changed(random.Random(number), data, fuzz.TOKENS) for number in range(50)]
    assert len(set(some)) > 40
    assert max(map(len, some)) <= fuzz.LARGEST
