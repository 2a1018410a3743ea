"""Several processes: the same result as one, one voice, one hand that writes, and no harm when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file

from tests import ranks
from tests.test_cli import Answer, Cli, cli
from tests.tiny import TINY, contents, write_folder
from tests.training.methods import LinearMethod, linear_trainer
from tokenphormer import distributed
from tokenphormer.errors import InputError
from tokenphormer.evaluation.runs import predict_run
from tokenphormer.training.checkpoint import load_checkpoint

__all__ = ["cli"]  # the fixture

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")

# Dropout on purpose: what one rank draws must depend on seed, epoch and rank alone.
SETTINGS = {
    "hidden_channels": 8,
    "num_walks": 2,
    "walk_length": 2,
    "num_hops": 1,
    "max_epochs": 25,
    "patience": 25,
    "warmup_updates": 0,
    "batch_size": 7,
    "dropout": 0.2,
}
"""Five updates an epoch: 31 nodes are four batches of 7 and one of 3."""
TRAIN = ["train", "mine", *(f"--set={key}={value}" for key, value in SETTINGS.items()), "--device", "cpu"]


def torchrun(*arguments: object, size: int = 2, restarts: int = 0, **environment: str) -> list[str]:
    """The command line that starts a module in several processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={size}", "--master-port=0"]
    launcher += ["--standalone", f"--max-restarts={restarts}", "-m"]
    return [*launcher, *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return (
        found
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TOKENPHORMER_TIMEOUT": "60"}
        | changes
    )


def run(folder: Path, *arguments: object, size: int = 2, **changes: str) -> subprocess.CompletedProcess[str]:
    command = torchrun(*arguments, size=size, restarts=int(changes.pop("restarts", "0")))
    return subprocess.run(
        command, cwd=folder, env=environment(**changes), capture_output=True, text=True, timeout=240, check=False
    )


def said(text: str) -> list[str]:
    """What tokenphormer said, among torchrun's own lines."""
    return [line for line in text.splitlines() if line.startswith(("tokenphormer: ", "mine: ", "stopping at", "going"))]


def exit_codes(text: str) -> list[str]:
    """The exit codes in torchrun's table of failures."""
    return [line.split(":")[1].split("(")[0].strip() for line in text.splitlines() if line.startswith("  exitcode")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph in it."""
    path = tmp_path_factory.mktemp("several")
    write_folder(ranks.GRAPH, path / "mine", ranks.SPLIT)
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> subprocess.CompletedProcess[str]:
    """A run of two ranks that nothing befell."""
    return run(folder, "tests.ranks", "cli", *TRAIN, "--out", "whole", "--json")


# ---------------------------------------------------------------- the same as one process


def check_weights(out: Path, size: int, **changes: str) -> None:
    done = run(out, "tests.ranks", "train", out, size=size, **changes)
    assert done.returncode == 0, done.stderr
    found = [load_file(out / f"{rank}.safetensors") for rank in range(size)]
    for case in ranks.CASES:
        for name, expected in ranks.trained(case).items():
            for weights in found:
                value = weights[f"{case}: {name}"]
                close = 0.0 if name in ("updates", "walks") else 1e-5
                torch.testing.assert_close(value, expected, rtol=close, atol=close)
                assert torch.equal(value, found[0][f"{case}: {name}"])  # ranks never part by a bit
        assert found[0][f"{case}: updates"] == 20
    for case in ranks.PRETRAININGS:
        for name, expected in ranks.pretrained(case).items():
            for weights in found:
                torch.testing.assert_close(weights[f"{case}: {name}"], expected, rtol=1e-5, atol=1e-5)
                assert torch.equal(weights[f"{case}: {name}"], found[0][f"{case}: {name}"])
    memory = ranks.short_of_memory()
    assert [int(weights["memory: memory"]) for weights in found] == [10**9] * (size - 1) + [3]
    for weights in found:
        torch.testing.assert_close(weights["memory: weight"], memory["weight"], rtol=1e-5, atol=1e-5)
    told = [(out / f"refused-{rank}.txt").read_text(encoding="utf-8").splitlines() for rank in range(size)]
    reasons = ["perhaps truncated", "perhaps truncated", "perhaps truncated", "does not match the hash", "another run"]
    for rank, lines in enumerate(told):
        assert all(line.startswith(f"{out}/bad-{rank}: ") for line in lines)
        assert all(reason in line for reason, line in zip(reasons, lines, strict=True)), lines


def test_two_ranks_learn_what_one_does(tmp_path: Path) -> None:
    check_weights(tmp_path, 2)


def test_one_rank_that_joins_itself_learns_what_one_does(tmp_path: Path) -> None:
    check_weights(tmp_path, 1, TOKENPHORMER_JOIN_ALONE="1")


@pytest.mark.gpu
def test_one_rank_talks_through_nccl(tmp_path: Path) -> None:
    """All that ranks say to each other, on the one card that a machine has: training and pre-training."""
    changes = {"RANKS_DEVICE": "cuda", "TOKENPHORMER_JOIN_ALONE": "1", "TOKENPHORMER_SHARE_GPU": ""}
    done = run(tmp_path, "tests.ranks", "train", tmp_path, size=1, **changes)
    assert done.returncode == 0, done.stderr
    with safe_open(tmp_path / "0.safetensors", "pt") as file:
        assert file.metadata() == {"backend": "nccl"}
    found, gpu = load_file(tmp_path / "0.safetensors"), torch.device("cuda")
    expected = {case: ranks.trained(case, gpu) for case in ranks.CASES}
    expected |= {case: ranks.pretrained(case, gpu) for case in ranks.PRETRAININGS}
    for case, values in expected.items():
        # Sums in no fixed order, as below; pre-training in one process replays recorded steps, here it does not.
        close = 1e-3 if case in ranks.CASES else 5e-3
        for name, value in values.items():
            torch.testing.assert_close(found[f"{case}: {name}"], value, rtol=close, atol=close)


@pytest.mark.slow
def test_four_ranks_learn_what_one_does(tmp_path: Path) -> None:
    check_weights(tmp_path, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [True, False], ids=["one GPU for both", "a GPU each"])
def test_two_ranks_learn_what_one_does_on_gpus(tmp_path: Path, shared: bool) -> None:
    if not shared and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    changes = {"RANKS_DEVICE": "cuda", "TOKENPHORMER_SHARE_GPU": "1" if shared else ""}
    done = run(tmp_path, "tests.ranks", "train", tmp_path, **changes)
    assert done.returncode == 0, done.stderr
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    for case in ranks.CASES:
        for name, expected in ranks.trained(case, torch.device("cuda")).items():
            for weights in found:
                # Gradients of the feature rows are summed in no fixed order there, and Adam makes much of little.
                torch.testing.assert_close(weights[f"{case}: {name}"], expected, rtol=1e-3, atol=1e-3)


def test_shares_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = torch.arange(5)
    assert distributed.share(nodes) is nodes
    for size in (2, 3, 7):
        monkeypatch.setattr(distributed, "size", lambda size=size: size)
        parts = []
        for rank in range(size):
            monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
            parts.append(distributed.share(nodes))
        assert torch.equal(torch.cat(parts), nodes)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


# ---------------------------------------------------------------- what they say to each other


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, object]]]:
    """What two ranks gave or raised, by the name of the talk; the stores are here, as torchrun would have them."""
    out = tmp_path_factory.mktemp("talks")
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in ranks.TALKS]
    ports = [str(store.port) for store in stores]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common["RANKS_CACHES"] = str(out / "caches")
    command = [sys.executable, "-m", "tests.ranks", "talk", str(out), *ports]
    both = [subprocess.Popen(command, cwd=ROOT, env=environment(RANK=str(rank), **common)) for rank in range(2)]
    began = time.monotonic()
    try:
        codes = [process.wait(timeout=60) for process in both]
    finally:
        for process in both:
            process.kill()
    found = []
    for rank in range(2):
        lines = (out / f"{rank}.jsonl").read_text(encoding="utf-8").splitlines()
        found.append({line["name"]: line for line in map(json.loads, lines)})
    for rank, code in enumerate(codes):
        found[rank]["process"] = {"code": code, "seconds": time.monotonic() - began}
    return found


def test_they_agree(talks: list[dict[str, dict[str, object]]]) -> None:
    expected = {"highest": [1, 0], "bytes": [0, 1, 100_000], "nothing": None, "text": "ä", "same": None}
    assert [talk["agree"].get("gave") for talk in talks] == [expected, expected]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("differ", "the processes differ in: split; every host needs the same files and versions"),
        ("fail_on_one", "row 7 is wrong"),
        ("fail_on_first", "the folder is taken"),
        ("fail_alike", "all of us see it"),
    ],
)
def test_one_tells_and_all_end(talks: list[dict[str, dict[str, object]]], name: str, message: str) -> None:
    ends = [talk[name] for talk in talks]
    assert sorted(str(end["kind"]) for end in ends) == ["InputError", "OtherRankError"]
    assert [end["said"] for end in ends if end["kind"] == "InputError"] == [message]
    assert [end["code"] for end in ends] == [2, 2]
    assert all(float(str(end["seconds"])) < 10 for end in ends)  # their timeout is 30 s


def test_hosts_with_a_cache_each_use_the_same_sgpm(talks: list[dict[str, dict[str, object]]]) -> None:
    """Whoever has none, or another one, gets the first one's; nothing is trained twice."""
    first, other = (talk["find_sgpm"].get("gave") for talk in talks)
    assert first == other, talks
    assert isinstance(first, list)
    assert [step["trained"] for step in first] == [True, False, False, False]
    assert [step["cached"] for step in first] == [["0"], ["0"], ["0", "1"], ["0", "1"]]
    assert len({step["hash"] for step in first}) == 1


def test_a_damaged_cache_of_the_first_is_told_once(talks: list[dict[str, dict[str, object]]]) -> None:
    ends = [talk["find_damaged_sgpm"] for talk in talks]
    assert sorted(str(end["kind"]) for end in ends) == ["InputError", "OtherRankError"]
    (told,) = (str(end["said"]) for end in ends if end["kind"] == "InputError")
    assert "sgpm.safetensors: is missing or not the file that pre-training wrote" in told


def test_a_rank_that_never_comes(talks: list[dict[str, dict[str, object]]]) -> None:
    end = talks[0]["never_come"]
    assert (end["kind"], end["code"]) == ("ResourceError", 3)
    assert str(end["said"]).startswith("rank 0: the other processes are gone (")
    assert 2 <= float(str(end["seconds"])) < 15  # its timeout is 2 s, and the other sleeps for 60


def test_a_rank_that_cannot_notice_is_ended(talks: list[dict[str, dict[str, object]]]) -> None:
    assert "never_come" not in talks[1]  # it was asleep
    assert talks[1]["process"]["code"] == 3
    assert float(str(talks[1]["process"]["seconds"])) < 45


@pytest.mark.parametrize("value", ["soon", "0", "-3", "nan", "1e300"])
def test_a_timeout_that_is_none(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TOKENPHORMER_TIMEOUT", value)
    with (
        pytest.raises(InputError, match=r"^TOKENPHORMER_TIMEOUT: .*expected a number of seconds"),
        distributed.joined("cpu"),
    ):
        pass


@pytest.mark.parametrize(
    ("device", "variables", "expected"),
    [
        ("cpu", {}, ("gloo", "cpu")),
        ("cuda", {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, ("nccl", "cuda:1")),
        ("cuda", {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}, "3 processes on a host with 2 GPUs"),
        ("cuda", {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "3"}, "3 processes on a host with 2 GPUs"),
        ("cuda", {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3", "TOKENPHORMER_SHARE_GPU": "1"}, ("gloo", "cuda:0")),
        ("cuda:1", {}, "of several processes each has a GPU of its own"),
    ],
)
def test_each_rank_has_its_gpu(
    monkeypatch: pytest.MonkeyPatch, device: str, variables: dict[str, str], expected: tuple[str, str] | str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            distributed._own_device(device)
        assert not taken
    else:
        assert distributed._own_device(device) == expected
        assert [f"cuda:{number}" for number in taken] == [name for name in expected[1:] if name != "cpu"]


# ---------------------------------------------------------------- one voice, one hand


def test_only_the_first_speaks_and_writes(folder: Path, reference: subprocess.CompletedProcess[str]) -> None:
    assert reference.returncode == 0, reference.stderr
    (line,) = reference.stdout.splitlines()
    assert json.loads(line)["epochs"] == [25]
    assert [text.split(":")[0] for text in said(reference.stderr)] == ["mine"]
    out = folder / "whole"
    epochs = [json.loads(text)["epoch"] for text in (out / "seeds/0/history.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 26))
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]
    top = ["config.yaml", "metrics.json", "model.safetensors", "model_card.md", "predictions.csv", "report.html"]
    seed = ["history.jsonl", "metrics.json", "model.safetensors", "probabilities.npy"]
    assert sorted(contents(out)) == sorted([*top, "run.json", "split.npz", *(f"seeds/0/{name}" for name in seed)])
    assert json.loads((out / "run.json").read_text())["command"].endswith("--json  # in 2 processes")
    assert pd.read_csv(out / "predictions.csv")["id"].tolist() == [ranks.GRAPH.id_of(node) for node in range(60)]


@pytest.mark.slow
def test_predictions_are_those_of_one_process(
    folder: Path, reference: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reference.returncode == 0, reference.stderr
    done = run(folder, "tokenphormer", "predict", "whole", "--out", "two.csv", "--device", "cpu")
    assert (done.returncode, done.stdout) == (0, "two.csv: predictions for 60 nodes of mine\n"), done.stderr
    monkeypatch.chdir(folder)
    predict_run(Path("whole"), None, Path("one.csv"), None, "cpu", directed=False, overwrite=False)
    two, one = pd.read_csv("two.csv"), pd.read_csv("one.csv")
    assert two["id"].tolist() == one["id"].tolist()
    assert two["predicted"].tolist() == one["predicted"].tolist()
    columns = [name for name in one if str(name).startswith("p")][1:]
    assert len(columns) == 4
    np.testing.assert_allclose(two[columns], one[columns], atol=1e-5)


def test_bad_input_is_told_once(folder: Path) -> None:
    before = contents(folder)
    began = time.monotonic()
    done = run(folder, "tokenphormer", *TRAIN, "--set", "dropuot=1", "--out", "bad")
    assert time.monotonic() - began < 45  # on a busy machine; the ranks' own timeout is 60 s
    assert (
        said(done.stderr)[-1] == "tokenphormer: error: --set: 'dropuot' is no setting; nearest: dropout, score_dropout"
    )
    assert len([line for line in said(done.stderr) if line.startswith("tokenphormer")]) == 1
    assert set(exit_codes(done.stderr)) <= {"2", "-15"}  # torchrun ends who has not ended by itself
    assert exit_codes(done.stderr)[-1] == "2"  # the root cause
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["walks", "benchmark", "leaks"])
def test_other_commands_work_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    shared = "pretrain, train and predict share their work"
    works = f"tokenphormer: error: torchrun: `{command}` works in one process; {shared}\n"
    assert cli(command, "debian") == Answer(2, "", works), "a scheduler that counts processes, but has no ranks"
    for rank, told in (("0", works), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert cli(command, "debian") == Answer(2, "", told)
    assert not list(Path().iterdir())


def test_where_torchrun_may_restart_a_run_has_a_name(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    quick = [f"--set={key}={value}" for key, value in TINY.items()]
    refused = "tokenphormer: error: --out: with --max-restarts the folder needs a name, by which it is found again\n"
    assert cli("train", "debian", *quick) == Answer(2, "", refused)
    # It is then gone on with, as a restarted run has to be.
    write_folder(ranks.GRAPH, Path("mine"), ranks.SPLIT)
    assert cli("train", "mine", *quick, "--out", "out").code == 0
    Path("out/run.json").unlink()
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS")
    assert cli("train", "mine", *quick, "--out", "out").err.endswith("add --resume to go on, or choose another --out\n")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    assert cli("train", "mine", *quick, "--out", "out").code == 0
    assert Path("out/run.json").exists()


@pytest.mark.slow
def test_seeds_yardsticks_and_figures_in_four_processes(folder: Path) -> None:
    options = ["--seeds", "2", "--compare", "--plots", "--set", "max_epochs=3"]
    done = run(folder, "tokenphormer", *TRAIN, *options, size=4)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:32].strip() for line in lines[:3]] == [
        "Tokenphormer",
        "logistic regression on features",
        "two-layer GCN",
    ]
    assert lines[3].endswith("report: runs/mine/report.html")
    assert len(lines) == 4
    assert len(list((folder / "runs/mine/plots").glob("*.png"))) == 3
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
    for seed in ("0", "1"):
        assert len((folder / f"runs/mine/seeds/{seed}/history.jsonl").read_text().splitlines()) == 3


# ---------------------------------------------------------------- stopped and killed


def same_result(folder: Path, name: str) -> None:
    """The run found, to the bit, what the run found that nothing befell."""
    for file in ("model.safetensors", "predictions.csv", "seeds/0/probabilities.npy"):
        assert (folder / name / file).read_bytes() == (folder / "whole" / file).read_bytes(), file
    rows = [
        [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in text.splitlines()]
        for text in ((folder / run / "seeds/0/history.jsonl").read_text() for run in (name, "whole"))
    ]
    assert rows[0] == rows[1]


def wait_for(fine: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not fine():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stopped_run_is_resumed_and_a_killed_rank_restarted(
    folder: Path, reference: subprocess.CompletedProcess[str], number: signal.Signals
) -> None:
    assert reference.returncode == 0, reference.stderr
    out = folder / number.name
    command = torchrun("tests.ranks", "cli", *TRAIN, "--out", number.name)
    running = subprocess.Popen(
        command, cwd=folder, env=environment(FAULT="slow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    history = out / "seeds/0/history.jsonl"
    try:
        wait_for(lambda: history.exists() and len(history.read_text().splitlines()) > 2, running)
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode != 0
    _, remark, last = said(errors)
    assert remark == "stopping at the end of this epoch; once more to stop at once"
    epoch = len(history.read_text().splitlines())
    assert last == (
        f"tokenphormer: stopped after epoch {epoch}; {number.name}/seeds/0/checkpoint.safetensors holds it; "
        "run the same command with --resume to go on"
    )
    assert 2 < epoch < 25
    assert "Traceback" not in errors.split("torch/distributed/run.py")[0].split("tokenphormer: stopped")[0]
    trainer = linear_trainer(LinearMethod())
    with pytest.raises(InputError, match="another run"):  # so it is whole
        load_checkpoint(out / "seeds/0/checkpoint.safetensors", trainer, {})
    # As if that were not enough, a rank of the resumed run is killed in the second epoch.
    again = [*TRAIN, "--out", number.name, "--resume"]
    done = run(folder, "tests.ranks", "cli", *again, FAULT="kill 8", restarts="1")
    assert done.returncode == 0, done.stderr
    assert "(exitcode: -9) local_rank: 1" in done.stderr
    goings = [line for line in said(done.stderr) if line.startswith("going")]
    assert goings == [f"going on after epoch {epoch}", f"going on after epoch {epoch + 1}"]
    same_result(folder, number.name)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_killed_rank_is_restarted_from_the_checkpoint(
    folder: Path, reference: subprocess.CompletedProcess[str]
) -> None:
    assert reference.returncode == 0, reference.stderr
    done = run(folder, "tests.ranks", "cli", *TRAIN, "--out", "killed", FAULT="kill 38", restarts="1")
    assert done.returncode == 0, done.stderr
    assert "(exitcode: -9) local_rank: 1" in done.stderr
    assert [line for line in said(done.stderr) if line.startswith("going")] == ["going on after epoch 7"]
    same_result(folder, "killed")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_pre_training_in_two_processes(folder: Path) -> None:
    settings = [f"--set={key}={value}" for key, value in ranks.SMALL_SGPM.items()]
    command = ["pretrain", "mine", *settings, "--set", "dropout=0.2", "--device", "cpu"]
    done = run(folder, "tests.ranks", "cli", *command, "--out", "sgpm", "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["epoch"] in (1, 2)
    assert len((folder / "sgpm/history.jsonl").read_text().splitlines()) == 2
    assert not list((folder / "sgpm").glob("*checkpoint*"))
    # An epoch is twelve updates: the killed one goes on from the end of the first.
    done = run(folder, "tests.ranks", "cli", *command, "--out", "killed-sgpm", FAULT="kill 18", restarts="1")
    assert done.returncode == 0, done.stderr
    assert "(exitcode: -9) local_rank: 1" in done.stderr
    assert [line for line in said(done.stderr) if line.startswith("going")] == ["going on after epoch 1, chunk 0"]
    one, two = (load_file(folder / name / "sgpm.safetensors") for name in ("sgpm", "killed-sgpm"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    done = run(folder, "tokenphormer", *TRAIN, "--set", "max_epochs=2", "--sgpm", "sgpm", "--out", "with-sgpm")
    assert done.returncode == 0, done.stderr
    assert "sgpm" in json.loads((folder / "with-sgpm/seeds/0/metrics.json").read_text())["attention"]


@pytest.mark.slow
def test_two_hosts_and_a_cut_wire() -> None:
    command = [sys.executable, str(ROOT / "scripts/two_hosts.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all is well"
