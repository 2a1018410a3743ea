"""Load on the explorer: `python -m benchmarks.bench_serve`. It talks to 127.0.0.1 only; both loads end within a minute.

A run of Cora's size (2,708 nodes, 5,278 edges, 1,433 features, 7 classes, all random) is trained for an epoch and
served by a process of its own. Then two loads of single-node predictions, from this process on the same cores:

- open: requests are due at a fixed rate, whether or not earlier ones were answered, and latency counts from when they
  were due, so that a server that stalls is not spared what it holds up;
- closed: every connection asks again as soon as it is answered, while the server's resident memory is watched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.bench_walks import machine
from tokenphormer.evaluation.runs import train_run
from tokenphormer.graph import Graph, make_split
from tokenphormer.training.presets import SMALL
from tokenphormer.training.settings import Config

NODES, EDGES, FEATURES, CLASSES, WORDS = 2_708, 5_278, 1_433, 7, 18
WARM_UP = 2_000
"""Requests before memory is read for the first time: allocators settle."""
Row = dict[str, object]


def cora_sized() -> Graph:
    """A random graph with the sizes of Cora, its features as sparse as there."""
    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(NODES), WORDS)
    columns = rng.integers(0, FEATURES, NODES * WORDS)
    x = sp.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(NODES, FEATURES))
    y = rng.integers(0, CLASSES, NODES)
    return Graph.from_edges(rng.integers(0, NODES, (2, EDGES)), NODES, x=x, y=y, name="cora-sized")


@contextmanager
def server(folder: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of a server that is ready, its map made."""
    graph, source = cora_sized(), folder / "graph.npz"
    graph.save(source)
    config = Config().replace(SMALL | {"max_epochs": 1})
    train_run(graph, str(source), make_split(graph), config, folder / "run", torch.device("cpu"))
    options = ["--port", "0", "--rate", "1e9", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenphormer", "serve", str(folder / "run"), *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        port = int(line.split("http://127.0.0.1:")[1].split("/")[0])
        while b'"map":"ready"' not in _ready(port):
            time.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _ready(port: int) -> bytes:
    try:
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
            found: bytes = answer.read()
            return found
    except OSError:
        return b""


class Connection:
    """One connection that is kept, and how long its requests took."""

    def __init__(self, port: int) -> None:
        self.port, self.seconds = port, list[float]()

    async def open(self) -> Connection:
        """Connect."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def ask(self, node: int, due: float) -> None:
        """One prediction; its latency counts from when it was due."""
        self.writer.write(f"GET /api/predict?id={node} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await self.reader.readexactly(int(length.split(b":")[1]))
        assert body.startswith(b'{"classes":'), body
        self.seconds.append(time.perf_counter() - due)


async def open_load(port: int, rate: float, seconds: float, connections: int) -> Row:
    """Requests at a fixed rate; whichever connection is free takes the next one."""
    free: asyncio.Queue[Connection] = asyncio.Queue()
    everyone = [await Connection(port).open() for _ in range(connections)]
    for each in everyone:
        free.put_nowait(each)
    pick, began, tasks = random.Random(0), time.perf_counter(), []

    async def one(due: float) -> None:
        connection = await free.get()
        await connection.ask(pick.randrange(NODES), due)
        free.put_nowait(connection)

    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    took = time.perf_counter() - began
    return {"load": "open", "due_per_second": rate, **_summary(everyone, took)}


async def closed_load(port: int, process: int, seconds: float, most: int, connections: int) -> Row:
    """As many requests as are answered, and the server's memory meanwhile."""
    everyone = [await Connection(port).open() for _ in range(connections)]
    began, memory = time.perf_counter(), list[tuple[int, float]]()

    async def loop(connection: Connection, seed: int) -> None:
        pick = random.Random(seed)
        while time.perf_counter() < began + seconds and done() < most:
            await connection.ask(pick.randrange(NODES), time.perf_counter())

    def done() -> int:
        return sum(len(each.seconds) for each in everyone)

    async def watch() -> None:
        while True:
            if done() >= WARM_UP:
                memory.append((done(), resident_mb(process)))
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(loop(each, seed) for seed, each in enumerate(everyone)))
    took = time.perf_counter() - began
    watching.cancel()
    memory.append((done(), resident_mb(process)))
    first, last = memory[0], memory[-1]
    grown = {"mb_before": first[1], "mb_after": last[1], "mb_most": max(size for _, size in memory)}
    return {"load": "closed", **_summary(everyone, took), **grown, "requests_watched": last[0] - first[0]}


def resident_mb(process: int) -> float:
    """Resident memory of a process; where /proc does not say, 0."""
    path = Path(f"/proc/{process}/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")), 0.0)


def _summary(connections: list[Connection], took: float) -> Row:
    """Latencies in milliseconds."""
    for each in connections:
        each.writer.close()
    taken = 1e3 * np.concatenate([each.seconds for each in connections])
    shares = {f"p{share}_ms": round(float(np.percentile(taken, share)), 2) for share in (50, 95, 99)}
    most = {"most_ms": round(float(taken.max()), 2)}
    return {"requests": len(taken), "per_second": round(len(taken) / took), **shares, **most}


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second of the open load")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the open load")
    parser.add_argument("--requests", type=int, default=100_000, help="of the closed load")
    parser.add_argument("--most-seconds", type=float, default=45.0, help="of the closed load, however many it managed")
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    about = machine()
    print(json.dumps(about))
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (port, process):
        loads = [
            open_load(port, options.rate, options.seconds, options.connections),
            closed_load(port, process, options.most_seconds, options.requests, options.connections),
        ]
        rows = []
        for load in loads:
            rows.append(asyncio.run(load))
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.writelines(json.dumps(row | {"machine": about}) + "\n" for row in rows)


if __name__ == "__main__":
    main()
