"""The command line as a person meets it: answers, exit codes, one-line errors, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import torch

import tokenphormer
from tokenphormer import load_graph, sample_walks
from tokenphormer.cli import main
from tokenphormer.graph.datasets import DATASETS, embedded_path

HEAVY = ("torch", "torch_geometric", "numpy", "scipy", "numba", "pandas", "pyarrow", "sklearn", "matplotlib")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Runs one command in this process, in an empty folder."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tokenphormer", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Answer(ended.value.code, printed.out, printed.err)

    return call


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(answer: Answer, code: int, message: str) -> None:
    assert answer.code == code, answer
    (line,) = answer.err.splitlines()
    assert line.startswith("tokenphormer: error: ")
    assert message in line
    assert not answer.out


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


# ---------------------------------------------------------------- help and version


def test_help_lists_the_commands_at_once() -> None:
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        done = python("-m", "tokenphormer", "--help")
        seconds.append(time.perf_counter() - began)
        assert done.returncode == 0
        assert not done.stderr
        assert all(command in done.stdout for command in ("datasets", "walks", "--version"))
    assert min(seconds) < 1.0  # 0.14 measured; the rest is for a loaded machine


@pytest.mark.parametrize("command", [[], ["datasets"], ["walks"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys; from tokenphormer.cli import main\n"
        f"sys.argv = ['tokenphormer', *{command}, '--help']\n"
        "try: main()\n"
        f"finally: print('heavy:', [name for name in {HEAVY} if name in sys.modules])"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("heavy: []\n")


def test_version(cli: Cli) -> None:
    assert cli("--version") == Answer(0, f"tokenphormer {tokenphormer.__version__}\n", "")


def test_the_installed_command_is_main() -> None:
    (script,) = entry_points(group="console_scripts", name="tokenphormer")
    assert script.load() is main


@pytest.mark.parametrize("arguments", [["walk", "debian"], ["walks"], ["walks", "debian", "--num-walks", "many"]])
def test_wrong_usage_ends_with_two(cli: Cli, arguments: list[str]) -> None:
    answer = cli(*arguments)
    assert answer.code == 2
    assert "Usage" in answer.err
    assert "Traceback" not in answer.err


# ---------------------------------------------------------------- datasets


@pytest.fixture
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENPHORMER_DATA", str(tmp_path / "data"))


@pytest.mark.usefixtures("_no_data")
def test_datasets_as_a_table(cli: Cli) -> None:
    answer = cli("datasets")
    assert answer.code == 0
    assert all(f" {name} " in answer.out for name in DATASETS)
    (debian,) = (line for line in answer.out.splitlines() if " debian " in line)
    assert "7,709" in debian
    assert "embedded" in debian
    assert "? (2,708)" in answer.out
    assert "absent: put" in answer.out


@pytest.mark.usefixtures("_no_data")
def test_datasets_as_json(cli: Cli, tmp_path: Path) -> None:
    answer = cli("datasets", "--json")
    rows = {row["name"]: row for row in json.loads(answer.out)}
    assert rows.keys() == DATASETS.keys()
    debian = rows.pop("debian")
    assert (debian["status"], debian["nodes"], debian["edges"], debian["classes"]) == ("embedded", 7709, 15289, 12)
    for name, row in rows.items():
        folder, first = tmp_path / "data" / DATASETS[name].folder / "raw", DATASETS[name].files[0]
        assert row["status"].startswith(f"absent: put {first}")
        assert row["status"].endswith(f" into {folder}")
        assert row["nodes"] is None
    assert not (tmp_path / "data").exists()


# ---------------------------------------------------------------- walks


def test_walks_to_npy(cli: Cli) -> None:
    options = ["--kind", "jump", "--num-walks", "3", "--length", "2", "--jump-radius", "2", "--seed", "5"]
    answer = cli("walks", "debian", "--out", "new/folder/x.npy", "--device", "cpu", *options)
    assert answer == Answer(0, "new/folder/x.npy: 23,127 walks of 2 steps from 7,709 nodes\n", "")
    expected = sample_walks(load_graph("debian"), "jump", 3, 2, jump_radius=2, seed=5).numpy()
    np.testing.assert_array_equal(np.load("new/folder/x.npy"), expected)
    assert list(contents(Path())) == ["new/folder/x.npy"]


def test_walks_to_text_from_some_nodes(cli: Cli) -> None:
    Path("ids.txt").write_text("\ufeffadduser\n\n0ad-data\r\n", encoding="utf-8")
    assert cli("walks", "debian", "--out", "x.txt", "--nodes", "ids.txt", "--num-walks", 2, "--length", 3).code == 0
    graph = load_graph("debian")
    nodes = [graph.index_of("adduser"), graph.index_of("0ad-data")]
    walks = sample_walks(graph, "uniform", 2, 3, nodes=nodes).view(-1, 4).tolist()
    lines = Path("x.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [" ".join(graph.id_of(node) for node in walk) for walk in walks]


def test_walks_as_statistics(cli: Cli) -> None:
    answer = cli("walks", "debian", "--kind", "non_backtracking", "--num-walks", 2, "--length", 3)
    figures = {line[:28].strip(): line[29:] for line in answer.out.splitlines()}
    assert answer.code == 0
    assert figures["graph"] == "7,709 nodes, 15,289 edges"
    assert figures["walks"] == "15,418 × 3 steps, non_backtracking"
    assert figures["steps taken"] == "46,254"
    assert figures["same class as the start"].startswith("step 1: ")
    assert not contents(Path())


def test_statistics_of_no_nodes(cli: Cli) -> None:
    Path("ids.txt").write_text("")
    answer = cli("walks", "debian", "--nodes", "ids.txt")
    assert answer.code == 0
    assert "nodes seen from one start    none" in answer.out


def test_statistics_of_steps_that_no_walk_takes(cli: Cli) -> None:
    write_tables(Path("chain"), "id,label\na,x\nb,y\nc,x\n", "source,target\na,b\n")
    answer = cli("walks", "chain", "--directed", "--num-walks", 2, "--length", 3)
    assert "steps straight back          none" in answer.out
    assert "same class as the start      step 1: 0%, step 2: none, step 3: none" in answer.out
    Path("alone.txt").write_text("c")
    answer = cli("walks", "chain", "--nodes", "alone.txt", "--length", 1)
    assert "same class as the start      step 1: none" in answer.out
    write_tables(Path("bare"), "id\na\nb\n", "source,target\na,b\n")
    assert "same class as the start      unknown: no labels" in cli("walks", "bare").out


def test_force_overwrites(cli: Cli) -> None:
    Path("x.npy").write_text("old")
    assert cli("walks", "debian", "--out", "x.npy", "--num-walks", 1, "--force").code == 0
    assert np.load("x.npy").shape == (7709, 1, 5)


def test_own_folder_keeps_ids_and_directions(cli: Cli) -> None:
    write_tables(Path("mine"), "id,label\na,x\nb,y\nc,\n", "source,target\na,b\nb,c\n")
    answer = cli("walks", "mine", "--directed", "--out", "x.txt", "--num-walks", 1, "--length", 3)
    assert answer.code == 0
    assert answer.err == (
        "mine: 3 nodes from nodes.csv, 2 edges from edges.csv; edges taken as directed; 1 nodes have no label\n"
    )
    assert Path("x.txt").read_text() == "a b c\nb c\nc\n"


def test_a_folder_that_is_called_as_a_dataset(cli: Cli) -> None:
    write_tables(Path("debian"), "id,label\na,x\nb,y\nc,\n", "source,target\na,b\nb,c\n")
    note = "debian: taken for the dataset, not for the folder here of that name; to take the folder, say ./debian\n"
    one = ("--num-walks", 1, "--length", 2)
    answer = cli("walks", "debian", *one, "--out", "x.npy")
    assert (answer.code, answer.err) == (0, note)
    assert np.load("x.npy").shape == (7709, 1, 3)
    answer = cli("walks", "./debian", *one, "--out", "y.npy")
    assert (answer.code, answer.err.startswith("debian: 3 nodes from nodes.csv, 2 edges")) == (0, True)
    assert np.load("y.npy").shape == (3, 1, 3)
    answer = cli("convert", "debian", "disk")
    assert (answer.code, answer.err) == (0, note)
    answer = cli("train", "debian", "--dry-run", "--device", "cpu", "--set", "num_walks=2")
    assert (answer.code, answer.err) == (0, note)


def test_settings_without_walks_and_hops_are_said(cli: Cli) -> None:
    said = (
        "what suits this graph and device best has no walk- or hop-tokens; class scores are passed on to neighbours in "
    )
    nodes = "".join(f"{node},{'ab'[node % 2]},{node % 3},{node % 5 + 1}\n" for node in range(60))
    edges = "".join(f"{node},{(node + step) % 60}\n" for node in range(60) for step in (2, 4))
    write_tables(Path("mine"), "id,label,one,two\n" + nodes, "source,target\n" + edges)
    dry = ("train", "mine", "--dry-run", "--device", "cpu")
    assert cli(*dry).err.endswith(said + "10 steps (--set num_walks=8 adds walks)\n")
    asked = Path("asked.yaml")
    asked.write_text("num_walks: 0\nnum_hops: 0\n", encoding="utf-8")
    for settings in (("--set", "num_walks=8"), ("--set", "num_hops=1"), ("--config", asked)):  # who asks for it knows
        assert said not in cli(*dry, *settings).err
    assert said not in cli("train", "debian", *dry[2:]).err


# ---------------------------------------------------------------- what is refused


def write_tables(folder: Path, nodes: str | None, edges: str) -> None:
    folder.mkdir()
    (folder / "edges.csv").write_text(edges)
    if nodes is not None:
        (folder / "nodes.csv").write_text(nodes)


@pytest.mark.parametrize(
    ("head", "row", "reason"),
    [
        ("id,label", "{n},{c}", "has no features"),
        ("id,label,one,split", "{n},{c},{n},train", "part 'val' has no labelled node"),
        ("id,label,one,split", "{n},a,{n},{p}", "there is 1 class"),
        ("id,label,one,split", "{n},{c},{n}e9,{p}", "features reach"),
    ],
)
def test_a_dry_run_refuses_what_a_training_would(head: str, row: str, reason: str, cli: Cli) -> None:
    """Nobody prepares for a training that will not be."""
    parts = ("train", "val", "test")
    rows = [row.format(n=n, c="ab"[n % 2], p=parts[n % 3]) for n in range(1, 31)]
    write_tables(Path("mine"), "\n".join([head, *rows]) + "\n", "source,target\n1,2\n2,3\n")
    dry, real = (cli("train", "mine", "--device", "cpu", *option) for option in (("--dry-run",), ("--out", "run")))
    assert dry.code == real.code == 2
    assert reason in dry.err
    assert dry.err == real.err
    assert (dry.out, Path("run").exists()) == ("", False)


REFUSED = {
    "unknown dataset": (["debain"], "'debain' is neither a dataset nor an existing path; nearest: debian"),
    "no directions": (["debian", "--directed"], "holds an undirected graph"),
    "unknown kind": (["debian", "--kind", "random"], "kind: 'random'; expected one of uniform, non_backtracking"),
    "no walks": (["debian", "--num-walks", "0"], "num_walks: 0; expected a whole number of at least 1"),
    "no length": (["debian", "--length", "0"], "length: 0; expected a whole number of at least 1"),
    "no radius": (["debian", "--jump-radius", "-1"], "jump_radius: -1; expected a whole number of at least 1"),
    "unknown device": (["debian", "--device", "toaster"], "device: 'toaster'; expected 'cpu', 'cuda'"),
    "unknown id": (["debian", "--nodes", "ids.txt"], "ids.txt, line 2: graph 'debian' has no node 'addusr'; nearest"),
    "no file of ids": (["debian", "--nodes", "no.txt"], "no.txt: cannot be read as text"),
    "ids not text": (["debian", "--nodes", "cut.npz"], "cut.npz: cannot be read as text"),
    "no nodes table": (["bare"], "bare: has no nodes table; expected edges.csv"),
    "not a number": (["nan"], "nan/nodes.csv, line 3, column 'size': nan; expected a finite"),
    "unknown end": (["loose"], "loose/edges.csv, line 2, column 'target': 'z' is no id of nodes.csv"),
    "truncated": (["cut.npz"], "cut.npz: not a readable .npz, perhaps truncated"),
    "pickled": (["pickled.npz"], "pickled.npz: holds pickled Python objects, which are never loaded"),
    "no archive": (["text.npz"], "text.npz: not an .npz archive"),
    "another kind of file": (["ids.txt"], "ids.txt: expected a folder with nodes.csv and edges.csv, or a saved graph"),
}


def write_bad_input() -> None:
    Path("ids.txt").write_text("adduser\naddusr\n")
    Path("cut.npz").write_bytes(embedded_path(DATASETS["debian"]).read_bytes()[:50_000])
    Path("text.npz").write_text("no archive")
    np.savez(Path("pickled.npz"), indptr=np.array([{"a": 1}], dtype=object))
    write_tables(Path("bare"), None, "source,target\na,b\n")
    write_tables(Path("nan"), "id,size\na,1\nb,nan\n", "source,target\na,b\n")
    write_tables(Path("loose"), "id\na\nb\n", "source,target\na,z\n")


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_in_one_line(cli: Cli, case: str) -> None:
    write_bad_input()
    before = contents(Path())
    arguments, message = REFUSED[case]
    for suffix in ("npy", "txt"):
        assert_refused(cli("walks", *arguments, "--out", f"out.{suffix}"), 2, message)
    assert_refused(cli("walks", *arguments), 2, message)
    assert contents(Path()) == before


@pytest.mark.parametrize("name", ["x.npy", "x.txt"])
def test_an_existing_file_is_kept(cli: Cli, name: str) -> None:
    Path(name).write_text("precious")
    assert_refused(
        cli("walks", "debian", "--out", name), 2, f"{name}: exists already; choose another name, or say --force"
    )
    assert_refused(cli("walks", "debian", "--out", name, "--length", 0, "--force"), 2, "length: 0")
    assert contents(Path()) == {name: b"precious"}


def test_bad_names_of_output_are_refused(cli: Cli) -> None:
    Path("folder.npy").mkdir()
    assert_refused(cli("walks", "debian", "--out", "x.csv"), 2, "x.csv: expected a name that ends in .npy")
    assert_refused(cli("walks", "debian", "--out", "folder.npy", "--force"), 2, "folder.npy: is a folder")
    assert not contents(Path())


# ---------------------------------------------------------------- what the machine cannot do


@pytest.mark.parametrize("name", ["file/x.npy", "file/deep/x.npy", "file/x.txt"])
def test_a_folder_that_cannot_be_made(cli: Cli, name: str) -> None:
    Path("file").write_text("precious")
    assert_refused(cli("walks", "debian", "--out", name), 3, f"cannot write {name}: ")
    assert contents(Path()) == {"file": b"precious"}


def test_names_too_long_for_the_disk(cli: Cli) -> None:
    assert_refused(cli("walks", "debian", "--out", "a" * 300 + ".npy"), 3, "File name too long")
    assert_refused(cli("walks", "a" * 300), 3, "File name too long")


def test_more_walks_than_memory(cli: Cli) -> None:
    assert_refused(cli("walks", "debian", "--num-walks", 2 * 10**9), 3, "Unable to allocate")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("out", [[], ["--out", "x.npy"], ["--out", "x.txt"]])
def test_a_device_that_is_not_there(cli: Cli, out: list[str]) -> None:
    assert_refused(cli("walks", "debian", "--device", "cuda", *out), 3, "device: 'cuda', but torch cannot use it here")
    assert not contents(Path())


def test_what_a_terminal_cannot_show_is_escaped() -> None:
    """Minus signs and arrows on a Windows terminal, half a surrogate pair anywhere."""
    code = "from tokenphormer import cli; cli.app = lambda **_: print('caf\\xe9 \\u2212 \\ud800'); cli.main()"
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"caf\xe9 \\u2212 \\ud800" + os.linesep.encode())


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    # A test run in the background inherits a SIGINT that is ignored, hence the first line.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tokenphormer.cli import main; main()"
    )
    options = ["walks", "debian", "--out", "x.txt", "--num-walks", "5000", "--length", "50", "--force"]
    (tmp_path / "x.txt").write_text("precious")
    running = subprocess.Popen([sys.executable, "-c", code, *options], cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".x.txt.*.partial")) and time.monotonic() < deadline:
            assert running.poll() is None, "ended before it could be interrupted"
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130
    assert b"Traceback" not in err
    assert contents(tmp_path) == {"x.txt": b"precious"}
