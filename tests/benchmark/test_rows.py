"""Rows: added in one write, never glued to a broken line, each run once, other formats left alone."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmark.fakes import make_row, trial
from tokenphormer.benchmark import rows
from tokenphormer.benchmark.rows import FORMAT, KEY, append_row, config_hash, origin, read_rows, row_key
from tokenphormer.benchmark.tables import cell_results
from tokenphormer.errors import InputError


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    rows = [make_row(split=split, note="ü\u2028|") for split in range(3)]
    for row in rows:
        append_row(path, row)
    said: list[str] = []
    assert read_rows([path], said.append) == rows
    assert said == []
    assert len(path.read_bytes().split(b"\n")) == 4  # one line each, whatever separators a string holds


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_truncated_last_line_is_kept_and_said(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, make_row(split=0))
    append_row(path, make_row(split=1))
    whole = path.read_bytes()
    first, second, _ = whole.split(b"\n")
    path.write_bytes(first + b"\n" + second[:cut])

    said: list[str] = []
    assert [row["split"] for row in read_rows([path], said.append)] == [0]
    assert said == [f"{path}, line 2: not a whole row; it is kept in the file and not counted"]

    append_row(path, make_row(split=2))
    assert path.read_bytes().startswith(first + b"\n" + second[:cut] + b"\n")
    assert [row["split"] for row in read_rows([path])] == [0, 2]


def test_a_whole_last_line_without_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(make_row(split=0)), encoding="utf-8")
    append_row(path, make_row(split=1))
    said: list[str] = []
    assert [row["split"] for row in read_rows([path], said.append)] == [0, 1]
    assert said == []


@pytest.mark.parametrize("line", [b"\xff\xfe{", b"[1, 2]", b"7", b"\x00\x00\x00", b'{"format": 1'])
def test_what_is_no_row_is_said_with_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, make_row())
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\n")
    append_row(path, make_row(split=1))
    said: list[str] = []
    assert len(read_rows([path], said.append)) == 2
    assert said == [f"{path}, line 3: not a whole row; it is kept in the file and not counted"]


def test_rows_of_another_format_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for number, form in enumerate([FORMAT, FORMAT + 1, FORMAT + 1, None]):
        append_row(path, make_row(split=number, format=form))
    said: list[str] = []
    assert [row["split"] for row in read_rows([path], said.append)] == [0]
    assert said == [
        f"{path}: 2 rows of format {FORMAT + 1}, not {FORMAT}; they are not counted",
        f"{path}: 1 rows of format None, not {FORMAT}; they are not counted",
    ]


def test_a_row_that_lacks_its_status_is_said(tmp_path: Path) -> None:
    row = make_row()
    del row["status"]
    append_row(tmp_path / "rows.jsonl", row)
    said: list[str] = []
    assert read_rows([tmp_path], said.append) == []
    assert said == [
        f"{tmp_path / 'rows.jsonl'}, line 1: a row without 'status'; it is kept in the file and not counted"
    ]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"kind": "trial", "trial": None}, "whose 'trial' is 'None'"),
        ({"kind": "trial", "val_accuracy": "high"}, "whose 'val_accuracy' is 'high'"),
        ({"split": "0"}, "whose 'split' is '0'"),
        ({"config": []}, "whose 'config' is '[]'"),
        ({"parameters": None}, "whose 'parameters' is 'None'"),
        ({"test_accuracy": ...}, "without 'test_accuracy'"),
        ({"seconds": ...}, "without 'seconds'"),
        ({"kind": "trial", "val_loss": ...}, "without 'val_loss'"),
        ({"status": "did not run"}, "without 'reason'"),
        ({"status": None, "reason": ""}, "whose 'status' is 'None'"),
        ({"time": "noon"}, "whose 'time' is 'noon'"),
        ({"split_hash": 7}, "whose 'split_hash' is '7'"),
    ],
)
def test_a_row_that_tables_could_not_read_is_said(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    row = make_row() | {"trial": 0} | changes
    whole = make_row(split=1)
    for each in ({key: value for key, value in row.items() if value is not ...}, whole):
        append_row(tmp_path / "rows.jsonl", each)
    said: list[str] = []
    read = read_rows([tmp_path], said.append)
    assert read == [whole]
    assert said == [f"{tmp_path / 'rows.jsonl'}, line 1: a row {fault}; it is kept in the file and not counted"]
    assert cell_results(read, ("cora",), ("mlp",))


def test_rows_of_several_machines_merge(tmp_path: Path) -> None:
    for machine, splits in {"a/one": (0, 1), "a/b/two": (1, 2), "three": (2, 3)}.items():
        for split in splits:
            append_row(tmp_path / f"{machine}.jsonl", make_row(split=split, commit=machine))
    (tmp_path / "notes.txt").write_text("no rows", encoding="utf-8")
    merged = read_rows([tmp_path / "a", tmp_path / "three.jsonl", tmp_path / "a"])
    assert [row["split"] for row in merged] == [1, 2, 0, 3]  # a/b/two, then a/one: files in the order of their names
    assert [row["commit"] for row in merged] == ["a/b/two", "a/b/two", "a/one", "three"]


def test_of_one_run_the_first_row_counts_unless_only_a_later_one_is_done(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, make_row(split=0, status="did not run", reason="small"))
    append_row(path, make_row(split=0, commit="large"))
    append_row(path, make_row(split=0, commit="larger"))
    append_row(path, make_row(split=1, commit="first"))
    append_row(path, make_row(split=1, status="did not run", reason="small"))
    assert [row["commit"] for row in read_rows([path])] == ["large", "first"]


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such file or folder of rows"):
        read_rows([tmp_path / "nowhere"])


@pytest.mark.parametrize("name", KEY)
def test_every_part_of_the_key_tells_runs_apart(name: str) -> None:
    assert row_key(make_row()) == row_key(make_row(seconds=9.0, commit="other", val_accuracy=0.1))
    assert row_key(make_row()) != row_key(make_row() | {name: "other"})


def test_a_search_may_try_the_same_values_twice() -> None:
    assert trial(3)["config_hash"] == trial(4)["config_hash"]
    assert row_key(trial(3)) != row_key(trial(4))


def test_the_hash_of_a_config_is_that_of_its_values() -> None:
    assert config_hash({"a": (1, 2), "b": 0.1}) == config_hash({"b": 0.1, "a": [1, 2]})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    # Written down once: rows of years ago are found by it.
    assert config_hash({"dropout": 0.5}).startswith("1a99324accf96554")


def test_several_may_append_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"cut')
    with ThreadPoolExecutor(8) as pool:
        for split in range(200):
            pool.submit(append_row, path, make_row(split=split, note="x" * 20_000))  # longer than any buffer
    said: list[str] = []
    rows = read_rows([path], said.append)
    assert said == [f"{path}, line 1: not a whole row; it is kept in the file and not counted"]
    assert sorted(row["split"] for row in rows) == list(range(200))


def test_rows_say_so_if_products_were_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    assert "matmul_precision" not in origin.__wrapped__()["hardware"]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert origin.__wrapped__()["hardware"]["matmul_precision"] == "high"


def test_where_a_row_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    origin.cache_clear()
    monkeypatch.setenv("TOKENPHORMER_COMMIT", "abc")
    found = origin()
    origin.cache_clear()
    assert (found["format"], found["commit"]) == (FORMAT, "abc")
    assert {"python", "torch", "torch-geometric", "numpy", "optuna", "tokenphormer"} <= found["versions"].keys()
    assert found["hardware"].keys() == {"gpu", "cpu", "cores"}
    assert found["hardware"]["cpu"]
    assert found["hardware"]["cores"] >= 1


def test_without_a_commit_in_the_environment_git_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    origin.cache_clear()
    monkeypatch.delenv("TOKENPHORMER_COMMIT", raising=False)
    commit = origin()["commit"]
    origin.cache_clear()
    assert commit is None or len(commit.removesuffix("+changes")) == 40


def test_a_change_anywhere_in_the_package_marks_the_commit(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *words], cwd=tmp_path, check=True)

    for name in ("package/benchmark/rows.py", "package/training/loop.py", ".gitignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("installed\n", encoding="utf-8")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    head = rows._commit(tmp_path / "package")
    assert head is not None
    assert len(head) == 40
    (tmp_path / ".gitignore").write_text("installed\n# not of the package\n", encoding="utf-8")
    assert rows._commit(tmp_path / "package") == head
    (tmp_path / "package/training/loop.py").write_text("changed\n", encoding="utf-8")
    assert rows._commit(tmp_path / "package") == head + "+changes"
    (tmp_path / "installed").mkdir()
    assert rows._commit(tmp_path / "installed") is None  # nothing of it is in the repository that it lies in
