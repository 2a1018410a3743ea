"""Time and memory of tokens and training: `make bench-train`, or `python -m benchmarks.bench_train [--device cuda]`.

Each row beside what the authors' code was measured to take on the same kind of GPU (16 cores, H200): Cora's tokens
57 to 69 s and 3.24 GB, a training step 870 ms with its loader and 77 ms with all tokens on the GPU, 8.6 GB peak.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.bench_walks import gpu_seconds, machine
from tokenphormer.graph import Graph, load_graph, make_split
from tokenphormer.tokens import TokenSource
from tokenphormer.training.loop import Labelled, Trainer
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import TokenphormerMethod

PAPER = Config(num_walks=100, walk_length=4, num_hops=3, hidden_channels=512, num_layers=1, num_heads=1, dropout=0.1)
Row = dict[str, object]


def seconds_of(run: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Best time of a run."""
    if device.type == "cuda":
        return gpu_seconds(run, rounds)
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def trainer_for(graph: Graph, config: Config, device: torch.device, protocol: str = "stratified") -> Trainer:
    """A training that is ready to run."""
    split = make_split(graph, protocol)
    method = TokenphormerMethod(graph, config, graph.num_classes, device)
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    return Trainer(method, train, val, graph.num_classes, config, device)


def tokens(graph: Graph, device: torch.device) -> Row:
    """From the graph in memory to everything the first batch needs: walks, pooling, hops."""
    split = make_split(graph)
    nodes = torch.tensor(split.train, device=device)

    def run() -> object:
        return TokenSource(graph, PAPER, device).batch(nodes)

    run()
    return {"work": f"{graph.name}: ready tokens", "seconds": seconds_of(run, device, 3)}


def step(graph: Graph, device: torch.device, config: Config, rounds: int) -> Row:
    """One optimiser step on all training nodes, forward and backward, walks fixed."""
    torch.cuda.reset_peak_memory_stats() if device.type == "cuda" else None
    trainer = trainer_for(graph, config, device)
    trainer.method.module.train()
    pieces = next(iter(trainer._training_batches(1)))
    for _ in range(3):
        trainer._update(pieces)
    # Back to back, as in training: one step is sent to a GPU while it still works on the one before.
    seconds = seconds_of(lambda: [trainer._update(pieces) for _ in range(rounds)], device, 3) / rounds
    return _row(f"{graph.name}: step, {len(torch.cat(pieces))} nodes", config, seconds, device)


def epoch(graph: Graph, device: torch.device, config: Config, rounds: int) -> Row:
    """One epoch: all batches and the validation."""
    torch.cuda.reset_peak_memory_stats() if device.type == "cuda" else None
    trainer = trainer_for(graph, config, device)
    for _ in range(2):
        trainer._epoch()
    return _row(f"{graph.name}: epoch", config, seconds_of(trainer._epoch, device, rounds), device)


def _row(work: str, config: Config, seconds: float, device: torch.device) -> Row:
    peak = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None
    shape = {"hidden": config.hidden_channels, "walks": config.num_walks, "compile": config.compile}
    return {"work": work, "seconds": seconds, "peak_gb": peak, **shape}


def profile(graph: Graph, device: torch.device, config: Config) -> None:
    """Where a step's time goes, by kernel."""
    trainer = trainer_for(graph, config, device)
    pieces = next(iter(trainer._training_batches(1)))
    for _ in range(5):
        trainer._update(pieces)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(5):
            trainer._update(pieces)
        torch.cuda.synchronize()
    print(recorded.key_averages().table(sort_by="cuda_time_total", row_limit=28, max_name_column_width=90))


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--datasets", nargs="+", default=["cora", "flickr", "pubmed"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="time compiled steps too")
    parser.add_argument("--profile", action="store_true", help="show where the time of a step on Cora goes")
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    device = torch.device(options.device)
    about = machine()
    print(json.dumps(about))
    config = PAPER if device.type == "cuda" else PAPER.replace({"num_walks": 10, "hidden_channels": 128})
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    for name in options.datasets:
        graph = load_graph(name)
        note(tokens(graph, device))
        for mode in ("no", "yes") if options.compile else ("no",):
            chosen = config.replace({"compile": mode})
            if name == "cora":
                note(step(graph, device, chosen, options.rounds))
            note(epoch(graph, device, chosen, options.rounds))
        if options.profile and name == "cora":
            profile(graph, device, config.replace({"compile": "no"}))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.writelines(json.dumps(row | {"device": options.device, "machine": about}) + "\n" for row in rows)


if __name__ == "__main__":
    main()
