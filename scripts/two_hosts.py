"""Train on two hosts that are two network namespaces of this one, and cut the wire between them.

    python scripts/two_hosts.py

A rank runs in each namespace; a pair of virtual interfaces is the wire. Five runs with the same settings:

- whole: nothing happens;
- short cut: the wire is cut for two seconds, less than the ranks' patience (TOKENPHORMER_TIMEOUT): the run goes on;
- long cut: it stays cut: both ranks say so within their patience, and what is on disk is whole;
- resumed: the wire is mended, and the same command with --resume goes on;
- killed: the second host's rank is killed, and torchrun starts both again from the checkpoint (--max-restarts).

All that end must end with the same predictions, to the bit. It takes the right to make namespaces, usually root's,
and `ip` (Debian: iproute2); without them the script says so and ends with code 77.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

ADDRESSES = ("10.213.71.1", "10.213.71.2")
PORT = 29471
PATIENCE = 8
"""Seconds that a rank waits for the other."""
SLACK = 20
"""Seconds more that this busy machine may take to notice and to say so."""
SKIPPED = 77
SETTINGS = {
    "hidden_channels": 16,
    "num_walks": 2,
    "num_hops": 1,
    "batch_size": 50,
    "max_epochs": 30,
    "patience": 30,
    "warmup_updates": 0,
    "dropout": 0.1,
}
DRIVER = """
import os, signal, sys, time
from pathlib import Path
from tokenphormer.training import fit
from tokenphormer.training.loop import Trainer
from tokenphormer.cli import main

fit.CHECKPOINT_SECONDS = 0.0
epoch = Trainer._epoch

def slower(self):
    time.sleep(0.1)  # so that there is a middle to cut the wire in
    mark = Path(os.environ["MARK"])
    if "killed" in sys.argv[-1] and os.environ["RANK"] == "1" and self.progress.epoch == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    epoch(self)

Trainer._epoch = slower
main()
"""


class Skip(Exception):  # noqa: N818  # not an error
    """This machine does not let us; the message says what is missing."""


class Wire:
    """Two namespaces and the wire between them."""

    def __init__(self) -> None:
        self.spaces = [f"tokenphormer-{os.getpid()}-{side}" for side in "ab"]
        self.ends = [f"tp{os.getpid() % 100_000}{side}" for side in "ab"]

    def set(self, state: str) -> None:
        """`up`, or `down`: cut."""
        _ip("-n", self.spaces[0], "link", "set", self.ends[0], state)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Skip("there is no `ip` here (Debian: iproute2)") from error
    if done.returncode:
        raise Skip(f"`ip {' '.join(arguments)}` is not allowed: {done.stderr.strip()}")


@contextmanager
def two_hosts() -> Iterator[Wire]:
    """Lay the wire, and take it away in the end."""
    wire = Wire()
    try:
        for space in wire.spaces:
            _ip("netns", "add", space)
        first, second = wire.ends
        _ip("link", "add", first, "netns", wire.spaces[0], "type", "veth", "peer", second, "netns", wire.spaces[1])
        for space, end, address in zip(wire.spaces, wire.ends, ADDRESSES, strict=True):
            _ip("-n", space, "address", "add", f"{address}/24", "dev", end)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", end, "up")
        yield wire
    finally:
        for space in wire.spaces:
            with suppress(Skip):
                _ip("netns", "delete", space)


class Run:
    """One torchrun on each host."""

    def __init__(self, wire: Wire, folder: Path, name: str, *options: str, restarts: int = 0) -> None:
        out = name if not options else "long-cut"
        self.name, self.out = name, folder / "runs" / out
        self.logs = [folder / f"{name}-{side}.log" for side in "ab"]
        overrides = [f"--set={key}={value}" for key, value in SETTINGS.items()]
        train = ["train", str(folder / "graph"), *overrides, "--device", "cpu", *options, "--out", str(self.out)]
        self.processes = []
        for side, space in enumerate(wire.spaces):
            launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
            launcher += [f"--max-restarts={restarts}"]
            launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}", f"--rdzv-id={name}"]
            # Names mean nothing here, so each side is told who it is.
            launcher += [
                f"--rdzv-conf=is_host={side == 0}",
                f"--local-addr={ADDRESSES[side]}",
                str(folder / "driver.py"),
            ]
            environment = os.environ | {
                "GLOO_SOCKET_IFNAME": wire.ends[side],
                "TOKENPHORMER_TIMEOUT": str(PATIENCE),
                "OMP_NUM_THREADS": "1",
                "MARK": str(folder / "mark"),
                "RES_OPTIONS": "timeout:1 attempts:1",  # no name server can be reached
            }
            with self.logs[side].open("w") as log:
                command = ["ip", "netns", "exec", space, *launcher, *train]
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    @property
    def epochs(self) -> int:
        """How many are done."""
        history = self.out / "seeds/0/history.jsonl"
        return len(history.read_text(encoding="utf-8").splitlines()) if history.exists() else 0

    def said(self, text: str) -> list[bool]:
        """Whether each side has said something."""
        return [text in log.read_text(encoding="utf-8", errors="replace") for log in self.logs]

    def end(self, seconds: float) -> list[int]:
        """The exit codes of both sides, which have some time to end."""
        wait_for(self, "the end", lambda: all(process.poll() is not None for process in self.processes), seconds)
        return [process.returncode for process in self.processes]

    def kill(self) -> None:
        """End what has not ended."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    process.kill()


def wait_for(run: Run, what: str, fine: Callable[[], bool], seconds: float) -> float:
    """Wait until something is so; how long it took."""
    began = time.monotonic()
    while not fine():
        if time.monotonic() - began > seconds:
            logs = "\n".join(log.read_text(encoding="utf-8", errors="replace")[-3000:] for log in run.logs)
            raise AssertionError(f"{run.name}: waited {seconds} s for: {what}\n{logs}")
        time.sleep(0.05)
    return time.monotonic() - began


@contextmanager
def running(wire: Wire, folder: Path, name: str, *options: str, restarts: int = 0) -> Iterator[Run]:
    """A run that is over when the block is."""
    run = Run(wire, folder, name, *options, restarts=restarts)
    try:
        yield run
    finally:
        run.kill()


def check(fine: bool, what: str) -> None:
    """Say that something is so, or fail."""
    if not fine:
        raise AssertionError(what)
    print(f"  {what}", flush=True)


def same(folder: Path, name: str) -> bool:
    """Whether a run's predictions are those of the whole one, to the bit."""
    one, two = (folder / "runs" / run / "predictions.csv" for run in ("whole", name))
    return one.read_bytes() == two.read_bytes()


def write_graph(folder: Path) -> None:
    """A circle of 300 nodes with chords; a node's class is the third of the circle that it lies in."""
    random, count = Random(0), 300
    nodes = [f"{v},{3 * v // count},{v / count + random.gauss(0, 0.1)},{random.gauss(0, 1)}" for v in range(count)]
    edges = [f"{v},{(v + step) % count}" for v in range(count) for step in (1, random.randrange(2, 30))]
    folder.mkdir()
    (folder / "nodes.csv").write_text("\n".join(["id,label,a,b", *nodes]), encoding="utf-8")
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]), encoding="utf-8")


def main(folder: Path) -> None:
    """The five runs."""
    (folder / "driver.py").write_text(DRIVER, encoding="utf-8")
    write_graph(folder / "graph")
    with two_hosts() as wire:
        with running(wire, folder, "whole") as run:
            check(run.end(180) == [0, 0], "whole: both hosts ended well")
        with running(wire, folder, "short-cut") as run:
            wait_for(run, "epoch 5", lambda: run.epochs >= 5, 120)
            wire.set("down")
            time.sleep(2)
            wire.set("up")
            check(run.end(180) == [0, 0], "short cut: 2 s without a wire, and both hosts ended well")
        check(same(folder, "short-cut"), "short cut: the same predictions")
        with running(wire, folder, "long-cut") as run:
            wait_for(run, "epoch 5", lambda: run.epochs >= 5, 120)
            wire.set("down")
            gone = "tokenphormer: error: rank"
            took = wait_for(run, "both sides say it", lambda: all(run.said(gone)), PATIENCE + SLACK)
            check(True, f"long cut: both hosts said so after {took:.1f} s (their patience: {PATIENCE} s)")
            wire.set("up")
            check(0 not in run.end(180), "long cut: both hosts ended with an error")
        check(not (run.out / "run.json").exists(), "long cut: no run pretends to be whole")
        kept = run.epochs
        with running(wire, folder, "resumed", "--resume") as run:
            check(run.end(180) == [0, 0], f"resumed: both hosts ended well, after {kept} epochs before the cut")
        check(run.said("going on after epoch")[0], "resumed: from the checkpoint")
        check(same(folder, "long-cut"), "resumed: the same predictions")
        rows = [json.loads(line) for line in (run.out / "seeds/0/history.jsonl").read_text().splitlines()]
        check([row["epoch"] for row in rows] == list(range(1, 31)), "resumed: every epoch once")
        with running(wire, folder, "killed", restarts=1) as run:
            check(run.end(240) == [0, 0], "killed: both hosts ended well")
        check((folder / "mark").exists(), "killed: the second host's rank was")
        check(run.said("going on after epoch 5")[0], "killed: restarted from the checkpoint")
        check(same(folder, "killed"), "killed: the same predictions")


if __name__ == "__main__":
    scratch = Path(tempfile.mkdtemp(prefix="tokenphormer-two-hosts-"))
    try:
        main(scratch)
        print("all is well")
    except Skip as missing:
        print(f"skipped: {missing}")
        shutil.rmtree(scratch)
        raise SystemExit(SKIPPED) from None
    except AssertionError as wrong:
        raise SystemExit(f"{wrong}\n{scratch} has the logs") from None
    shutil.rmtree(scratch, ignore_errors=True)
