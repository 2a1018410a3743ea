"""Kill commands with SIGKILL at random moments, go on, and compare with runs that nobody killed.

    python scripts/torture.py --kills 100

Five commands on small graphs, each first run whole: convert, pretrain, train (two seeds, a graph on disk, an SGPM),
predict, benchmark. Then each is begun in a new folder and killed, begun again and perhaps killed again, until it
ends. Half of the moments are drawn evenly from the time that the whole run took, half lie up to 3 ms behind the
appearance of a new file. After every kill, all that looks whole must be whole; at the end the result must be that of
the whole run, to the bit (times aside).

The commands are those of the command line, each in a process forked from one that has imported the libraries, so that
kills fall into the work and not into imports; checkpoints are written after every epoch, where a person's run writes
them every 20 s. It ends with code 1 if anything differs, and leaves the folder of that run behind.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMES = {"seconds", "preprocessing_seconds", "peak_memory_bytes", "peak_memory_mb", "time"}
"""What no two runs have in common."""
TIMEOUT = 300.0
AGAIN = 0.6
"""How often a run that was killed is killed once more."""
SMALL = (
    "hidden_channels=16 num_walks=4 walk_length=3 num_hops=2 batch_size=100 max_epochs=10 patience=10 warmup_updates=0"
)
SGPM = "hidden_channels=16 num_layers=1 num_heads=2 train_sentences=3 val_sentences=1 batch_size=64 epochs=2"


class Wrong(Exception):  # noqa: N818  # what this script looks for
    """Something is not as the whole run has it."""


@dataclass(frozen=True)
class Job:
    """One command: how it is begun and gone on with, when it is done, and what its result is."""

    name: str
    begin: list[str]
    go_on: list[str]
    done: str
    """The file or folder that says so."""
    result: Callable[[Path], dict[str, Any]]
    needs: tuple[str, ...] = ()
    """Results of earlier jobs that it starts from."""


def settings(text: str) -> list[str]:
    """`--set` for each word."""
    return [word for value in text.split() for word in ("--set", value)]


# -------------------------------------------------------------------- results


def sha(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def timeless(value: Any) -> Any:
    """A JSON value without times and memory."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def tensors(path: Path) -> dict[str, str]:
    """A hash of each tensor of a file, which is read through and compared with its own hash."""
    from tokenphormer.tensor_files import load_tensors

    found, meta = load_tensors(path)
    hashes = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in found.items()}
    return hashes | {"meta": json.dumps(timeless(meta), sort_keys=True)}


def convert_result(folder: Path) -> dict[str, Any]:
    """Every byte of the graph."""
    from tokenphormer.graph.disk import open_graph

    open_graph(folder / "disk", verify=True)
    return {path.name: sha(path) for path in sorted((folder / "disk").iterdir())}


def pretrain_result(folder: Path) -> dict[str, Any]:
    """Weights, settings and history."""
    out = folder / "sgpm"
    if json.loads((out / "sgpm.json").read_text())["sha256"] != sha(out / "sgpm.safetensors"):
        raise Wrong("sgpm.json: another hash than that of the weights")
    return tensors(out / "sgpm.safetensors") | {"config": sha(out / "config.yaml"), "history": history(out)}


def train_result(folder: Path) -> dict[str, Any]:
    """Weights, predictions, metrics and history of every seed, and the stored hop features."""
    out = folder / "run"
    manifest = json.loads((out / "run.json").read_text())
    for name, expected in manifest["files"].items():
        if sha(out / name) != expected:
            raise Wrong(f"{name}: another hash than run.json says")
    found: dict[str, Any] = {name: sha(out / name) for name in ("predictions.csv", "config.yaml")}
    found["metrics"] = timeless(json.loads((out / "metrics.json").read_text()))
    for seed in sorted((out / "seeds").iterdir()):
        found |= {f"{seed.name} {key}": value for key, value in tensors(seed / "model.safetensors").items()}
        found[f"{seed.name} history"] = history(seed)
        found[f"{seed.name} metrics"] = timeless(json.loads((seed / "metrics.json").read_text()))
        found[f"{seed.name} probabilities"] = sha(seed / "probabilities.npy")
        found[f"{seed.name} files"] = sorted(path.name for path in seed.iterdir())
    return found | {path.name: sha(path) for path in sorted((folder / "disk" / "cache").glob("*.npy"))}


def history(folder: Path) -> list[Any]:
    """The epochs, without times."""
    return [timeless(json.loads(line)) for line in (folder / "history.jsonl").read_text().splitlines()]


def predict_result(folder: Path) -> dict[str, Any]:
    """The bytes of the predictions."""
    return {"predictions": sha(folder / "predictions.csv")}


def benchmark_result(folder: Path) -> dict[str, Any]:
    """Every row by its key; one run twice is wrong."""
    return {json.dumps(key): row for key, row in rows_of(folder).items()}


def rows_of(folder: Path) -> dict[tuple[Any, ...], Any]:
    """Whole rows by their key."""
    from tokenphormer.benchmark.rows import row_key

    found: dict[tuple[Any, ...], Any] = {}
    path = folder / "bench" / "rows.jsonl"
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with suppress(ValueError):
            row = json.loads(line)
            key = row_key(row)
            if key in found:
                raise Wrong(f"rows.jsonl: a run stands in it twice: {key}")
            found[key] = timeless(row)
    return found


# -------------------------------------------------------------------- jobs

CPU = ["--device", "cpu"]
CONVERT = ["convert", "tables", "disk"]
PRETRAIN = ["pretrain", "disk", "--out", "sgpm", *CPU, *settings(SGPM)]
TRAIN = ["train", "disk", "--out", "run", "--sgpm", "sgpm", "--seeds", "2", *CPU, *settings(SMALL)]
PREDICT = ["predict", "run", "--out", "predictions.csv", *CPU]
BENCHMARK = ["benchmark", "--out", "bench", "--models", "label_propagation", "--splits", "2", "--budget", "2", *CPU]
JOBS = [
    Job("convert", CONVERT, CONVERT, "disk", convert_result),
    Job("pretrain", PRETRAIN, [*PRETRAIN, "--resume"], "sgpm/sgpm.json", pretrain_result, ("disk",)),
    Job("train", TRAIN, [*TRAIN, "--resume"], "run/run.json", train_result, ("disk", "sgpm")),
    Job("predict", PREDICT, PREDICT, "predictions.csv", predict_result, ("disk", "run")),
    Job("benchmark", BENCHMARK, BENCHMARK, "", benchmark_result),
]


def write_tables(folder: Path) -> None:
    """A graph of 300 nodes as nodes.csv and edges.csv, always the same."""
    draw = random.Random(7)
    folder.mkdir()
    nodes = ["id,label,a,b,c,d"]
    for v in range(300):
        values = ",".join(f"{draw.gauss(float(v % 3 == column), 1.0):.4f}" for column in range(4))
        nodes.append(f"n{v},{'xyz'[v % 3]},{values}")
    edges = ["source,target"]
    while len(edges) < 1500:
        a, b = draw.randrange(300), draw.randrange(300)
        if a % 3 == b % 3 or draw.random() < 0.1:
            edges.append(f"n{a},n{b}")
    (folder / "nodes.csv").write_text("\n".join(nodes) + "\n")
    (folder / "edges.csv").write_text("\n".join(edges) + "\n")


# -------------------------------------------------------------------- processes


def start(arguments: list[str], folder: Path) -> int:
    """The command line in a process of its own, its words in `folder`/log."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["tokenphormer", *arguments]
        from tokenphormer.cli import main

        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int | None:
    """The exit code; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def wait(pid: int, moment: Callable[[float], bool] = lambda _: False) -> int | None:
    """Wait for the end, and return its code; None if the moment (of the seconds so far) came first."""
    began = time.monotonic()
    while (code := ended(pid)) is None:
        seconds = time.monotonic() - began
        if moment(seconds):
            return None
        if seconds > TIMEOUT:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise Wrong(f"did not end within {TIMEOUT:.0f} s")
        time.sleep(0.0003)
    return code


def names(folder: Path) -> set[str]:
    """All files and folders below."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def random_moment(draw: random.Random, folder: Path, seconds: float) -> Callable[[float], bool]:
    """When to kill: at a time, or shortly after one of the files that appear."""
    if draw.random() < 0.5:
        at = draw.uniform(0, seconds)
        return lambda now: now >= at
    wanted, delay = draw.randint(1, 12), draw.uniform(0, 0.003)
    seen: set[str] = names(folder)
    new: set[str] = set()

    def moment(_: float) -> bool:
        nonlocal new
        new |= names(folder) - seen
        if len(new) < wanted:
            return False
        time.sleep(delay)
        return True

    return moment


# -------------------------------------------------------------------- torture


def check(job: Job, folder: Path, whole: dict[str, Any], before: set[str], rows: dict[tuple[Any, ...], Any]) -> None:
    """After a kill: what looks whole must be whole, and everything else have the name of a thing that is not."""
    from tokenphormer.graph.splits import Split
    from tokenphormer.training.settings import Config

    if job.done and (folder / job.done).exists() and (found := job.result(folder)) != whole:
        raise Wrong(f"looks finished after a kill, but differs: {different(found, whole)}")
    left = [Path(name) for name in names(folder) - before]
    for name in left:
        if any(part.endswith(".partial") and part.startswith(".") for part in name.parts) or name.name == ".lock":
            continue
        path = folder / name
        if path.suffix == ".safetensors":
            tensors(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.name == "split.npz":
            Split.load(path)
        elif path.name == "config.yaml" and job.name == "train":
            Config.from_yaml(path)
    if job.name == "benchmark":
        now = rows_of(folder)
        lost = [key for key, row in rows.items() if now.get(key) != row]
        if lost:
            raise Wrong(f"rows.jsonl: lost or changed {lost}")
        rows |= now


def different(found: dict[str, Any], whole: dict[str, Any]) -> str:
    """The first few names whose values differ."""
    keys = [key for key in sorted({*found, *whole}) if found.get(key) != whole.get(key)]
    return ", ".join(keys[:5])


def torture(job: Job, folder: Path, whole: dict[str, Any], seconds: float, draw: random.Random, most: int) -> list[str]:
    """Kill a command up to `most` times, let it end, and compare; where it was killed, in words."""
    killed: list[str] = []
    before, rows = names(folder), dict[tuple[Any, ...], Any]()
    while True:
        old = b"from before"
        if job.name == "predict" and not killed and draw.random() < 0.5:
            (folder / job.done).write_bytes(old)
        arguments = job.go_on if killed else job.begin
        if job.name == "predict" and (folder / job.done).exists():
            arguments = [*arguments, "--force"]
        again = not killed or (len(killed) < most and draw.random() < AGAIN)
        began = time.monotonic()
        pid = start(arguments, folder)
        code = wait(pid, random_moment(draw, folder, seconds)) if again else wait(pid)
        if code is not None:
            if code != 0 and not (job.done and (folder / job.done).exists() and killed and code == 2):
                raise Wrong(f"ended with {code}: {last_line(folder)}")
            break
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        new = sorted(name for name in names(folder) - before if name != "log")
        killed.append(
            f"after {time.monotonic() - began:5.2f} s, {len(new)} new files{''.join(f', {n}' for n in new[-1:])}"
        )
        if job.name == "predict" and (path := folder / job.done).exists() and path.read_bytes() == old:
            continue
        check(job, folder, whole, before, rows)
        if job.name != "benchmark" and job.name != "predict" and (folder / job.done).exists():
            break  # it was over before the kill, but for its last words
    if (found := job.result(folder)) != whole:
        raise Wrong(f"another result than that of the whole run: {different(found, whole)}")
    return killed


def last_line(folder: Path) -> str:
    """What the command said last."""
    lines = (folder / "log").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "without a word"


def prepare() -> None:
    """Import what the commands import, with one thread, so that forks are quick, and keep every epoch."""
    # By the environment, since a process that has set up threads already must not fork.
    os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    import tokenphormer.benchmark.grid
    import tokenphormer.cli
    import tokenphormer.evaluation.live
    import tokenphormer.evaluation.runs
    import tokenphormer.graph.external
    import tokenphormer.training.presets  # noqa: F401
    from tokenphormer.sgpm import pretraining
    from tokenphormer.training import fit

    fit.CHECKPOINT_SECONDS = pretraining.CHECKPOINT_SECONDS = 0.0


def main() -> int:
    """Run all jobs whole, then kill them as often as was asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="of the moments; a new one if left out")
    parser.add_argument("--commands", default=",".join(job.name for job in JOBS), help="with commas between")
    options = parser.parse_args()
    if not hasattr(os, "fork"):
        print("skipped: this system has no fork")
        return 0
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    chosen = [job for job in JOBS if job.name in options.commands.split(",")]
    print(f"seed {seed}, {options.kills} kills of {', '.join(job.name for job in chosen)}", flush=True)
    os.environ["XDG_CACHE_HOME"] = cache = tempfile.mkdtemp(prefix="tokenphormer-cache-")
    prepare()
    base = Path(tempfile.mkdtemp(prefix="tokenphormer-torture-"))
    try:
        failures = run_all(chosen, base, options.kills, random.Random(seed))
    finally:
        shutil.rmtree(cache, ignore_errors=True)
    if failures:
        print(f"{failures} differ; their folders are in {base}")
        return 1
    shutil.rmtree(base)
    return 0


def run_all(chosen: list[Job], base: Path, kills: int, draw: random.Random) -> int:
    """Whole runs, then killed ones; how many of them went wrong."""
    folder = base / "whole"
    folder.mkdir()
    write_tables(folder / "tables")
    wholes: dict[str, tuple[dict[str, Any], float]] = {}
    last = max(JOBS.index(job) for job in chosen)
    for job in JOBS[: last + 1]:
        if job not in chosen and job.name == "benchmark":
            continue
        began = time.monotonic()
        code = wait(start(job.begin, folder))
        if code != 0:
            print(f"{job.name}: the whole run ended with {code}: {last_line(folder)}")
            return 1
        wholes[job.name] = job.result(folder), time.monotonic() - began
        print(f"{job.name:10} whole in {wholes[job.name][1]:.2f} s", flush=True)
    count, runs, failures, number = Counter[str](), 0, 0, 0
    while count.total() < kills:
        job = min(chosen, key=lambda job: (count[job.name], draw.random()))
        number += 1
        here = base / f"{number:03}-{job.name}"
        here.mkdir()
        for name in ("tables", *job.needs):
            shutil.copytree(folder / name, here / name)
        if job.name == "train":  # it makes them itself
            shutil.rmtree(here / "disk" / "cache", ignore_errors=True)
        whole, seconds = wholes[job.name]
        runs += 1
        try:
            killed = torture(job, here, whole, seconds, draw, kills - count.total())
        except Exception as error:
            failures += 1
            count[job.name] += 1
            print(f"{job.name:10} WRONG in {here}: {type(error).__name__}: {error}", flush=True)
            continue
        for line in killed:
            count[job.name] += 1
            print(f"{count.total():4} {job.name:10} killed {line}", flush=True)
        shutil.rmtree(here)
    each = ", ".join(f"{name} {count[name]}" for name in count)
    print(
        f"{count.total()} kills ({each}) in {runs} runs; {runs - failures} ended with the result of the whole run",
        flush=True,
    )
    return failures


if __name__ == "__main__":
    raise SystemExit(main())
