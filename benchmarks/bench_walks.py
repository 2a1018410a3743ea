"""The walk engine beside its peers, in one run: `make bench-walks`, or `python -m benchmarks.bench_walks`.

Every engine is timed in turn, several rounds over, and the best round counts, so that a busy machine hurts all
alike. Ratios are what to compare; absolute numbers are this machine's. Rows go to a JSONL file, a table to the
screen. torch-cluster and ensmallen take part if they are installed (`pip install torch-cluster ensmallen`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

from benchmarks.walk_peers import PEERS
from tokenphormer.graph import Graph
from tokenphormer.walks import KINDS, Kind, sample_walks
from tokenphormer.walks.sampling import Backend, csr_arrays, csr_tensors, sample_into

SIZES = {"cora-like": (2_708, 2), "200k": (200_000, 10), "1m": (1_000_000, 10), "10m": (10_000_000, 10)}
"""Nodes, and undirected random edges drawn for each."""
STEPS = 20_000_000
"""About how many steps are timed at once."""


@dataclass
class Row:
    """One engine's best time for one piece of work."""

    size: str
    nodes: int
    directed_edges: int
    kind: str
    engine: str
    walks: int
    length: int
    seconds: float
    million_steps_a_second: float
    device: str
    note: str = ""


def random_graph(nodes: int, edges_each: int, device: str) -> Graph:
    """An undirected random graph in which every node has at least `edges_each` neighbours or so."""
    generator = torch.Generator(device).manual_seed(0)
    source = torch.arange(nodes, device=device).repeat(edges_each)
    target = torch.randint(nodes, (nodes * edges_each,), device=device, generator=generator)
    key = torch.cat([source * nodes + target, target * nodes + source])[torch.cat([source != target] * 2)]
    key = torch.unique(key)
    row = key // nodes
    indptr = torch.zeros(nodes + 1, dtype=torch.int64, device=device)
    indptr[1:] = torch.cumsum(torch.bincount(row, minlength=nodes), 0)
    indices = (key - row * nodes).to(torch.int32)
    return Graph(indptr.cpu().numpy(), indices.cpu().numpy(), name=f"random {nodes}")


def best_of(runs: dict[str, Callable[[], object]], rounds: int, wait: Callable[[], None]) -> dict[str, float]:
    """The best time of each run, all of them taking turns."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            wait()
            began = time.perf_counter()
            run()
            wait()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def cpu_rows(size: str, rounds: int, peers: bool) -> list[Row]:
    """Our four kinds and the peers on one size."""
    graph = random_graph(*SIZES[size], "cpu")
    length = 10 if size != "cora-like" else 4
    num_walks = max(1, STEPS // (length * graph.num_nodes))
    nodes = np.arange(graph.num_nodes)
    shape = (len(nodes), num_walks, length + 1)
    out = np.empty(shape, np.int32)
    csr_arrays(graph)

    def ours(kind: Kind) -> Callable[[], object]:
        return lambda: sample_into(out, graph, kind, nodes, 3, 0)

    runs: dict[str, Callable[[], object]] = {f"tokenphormer {kind}": ours(kind) for kind in KINDS}
    counts = dict.fromkeys(runs, len(nodes) * num_walks)
    kinds: dict[str, str] = {f"tokenphormer {kind}": kind for kind in KINDS}
    notes = dict.fromkeys(runs, "")
    for name, peer in PEERS.items() if peers else ():
        reason = peer.available()
        if reason:
            print(f"  {name}: left out, {reason}")
            continue
        starts = np.repeat(nodes, num_walks)
        if len(starts) > peer.max_walks:
            starts = np.random.default_rng(0).choice(starts, peer.max_walks)
        runs[name] = peer.prepare(graph.indptr, graph.indices, starts, length, 0)
        counts[name], kinds[name], notes[name] = len(starts), peer.kind, peer.note
    best = best_of(runs, rounds, lambda: None)
    return [
        Row(
            *(size, graph.num_nodes, graph.num_directed_edges, kinds[name], name.split(" ")[0], counts[name], length),
            *(seconds, counts[name] * length / seconds / 1e6, "cpu", notes[name]),
        )
        for name, seconds in best.items()
    ]


def gpu_seconds(run: Callable[[], object], rounds: int) -> float:
    """The best time of a run on the GPU, by CUDA events; the first run compiles and does not count."""
    event: Any = torch.cuda.Event
    best = float("inf")
    run()
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best


def paper_walks(graph: Graph, rounds: int) -> Row:
    """All of the paper's walks for Cora: 100 a node, 4 steps, 30 : 5 : 60 : 5 of the four kinds."""
    mix = dict(zip(KINDS, (30, 5, 60, 5), strict=True))
    seconds = gpu_seconds(lambda: [sample_walks(graph, k, n, 4, device="cuda") for k, n in mix.items()], rounds)
    shape = (graph.num_nodes, graph.num_directed_edges, "the paper's mix", "tokenphormer", graph.num_nodes * 100, 4)
    return Row("cora-like", *shape, seconds, graph.num_nodes * 400 / seconds / 1e6, "cuda")


def gpu_rows(size: str, rounds: int) -> list[Row]:
    """Our four kinds on a GPU, timed with CUDA events."""
    graph = random_graph(*SIZES[size], "cuda")
    length, num_walks = (4, 100) if size == "cora-like" else (10, max(1, 20 * STEPS // (10 * graph.num_nodes)))
    csr_tensors(graph, torch.device("cuda"))
    rows = []
    for kind in KINDS:
        backends: tuple[Backend, ...] = ("triton", "portable") if size != "10m" else ("triton",)
        for backend in backends:

            def draw(kind: Kind = kind, backend: Backend = backend) -> object:
                return sample_walks(graph, kind, num_walks, length, device="cuda", backend=backend)

            best = gpu_seconds(draw, rounds)
            steps = graph.num_nodes * num_walks * length
            engine = "tokenphormer" if backend == "triton" else "tokenphormer-portable"
            shape = (graph.num_nodes, graph.num_directed_edges, kind, engine, graph.num_nodes * num_walks, length)
            rows.append(Row(size, *shape, best, steps / best / 1e6, "cuda"))
    return [*rows, paper_walks(graph, rounds)] if size == "cora-like" else rows


def machine() -> dict[str, object]:
    """What ran where."""
    packages = ("torch", "numba", "numpy", "triton", "torch-cluster", "ensmallen")
    versions: dict[str, object] = {}
    for package in packages:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    cpu = next((line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), "unknown")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    threads = numba.get_num_threads()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": threads,
        "gpu": gpu,
        "python": platform.python_version(),
    } | versions


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def report(rows: list[Row]) -> str:
    """A Markdown table: steps a second and the ratio of ours to each peer."""
    ours = {(r.size, r.kind, r.device): r.million_steps_a_second for r in rows if r.engine == "tokenphormer"}
    lines = ["| size | device | kind | engine | M steps/s | ours is |", "|---|---|---|---|---:|---:|"]
    for r in rows:
        ratio = ours[r.size, r.kind, r.device] / r.million_steps_a_second
        times = "" if r.engine == "tokenphormer" else f"{ratio:.1f}×"
        lines.append(f"| {r.size} | {r.device} | {r.kind} | {r.engine} | {r.million_steps_a_second:,.1f} | {times} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["cora-like", "200k", "1m"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    torch.set_num_threads(numba.get_num_threads())
    about = machine()
    print(json.dumps(about))
    rows: list[Row] = []
    for size in options.sizes:
        if options.device == "cuda":
            rows += gpu_rows(size, options.rounds)
        else:
            rows += cpu_rows(size, options.rounds, not options.no_peers)
    print(report(rows))
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.writelines(json.dumps(asdict(row) | {"machine": about}) + "\n" for row in rows)


if __name__ == "__main__":
    main()
