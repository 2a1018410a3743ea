"""Attention of all nodes to all on a CPU, beside torch's: `python -m benchmarks.bench_attention [--datasets cora]`.

For each method that reads a graph as one sequence, a forward and a backward pass for the training nodes as `scores` has
it (a row of scores at a time, in a core's cache) and as `forward` has it, in plain torch (a float for every pair and
head, but where torch's own attention is fused). The two take turns on one thread, and what counts is the median over
rounds of one's time by the other's right after it."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.bench_methods import seconds
from benchmarks.bench_walks import machine
from tokenphormer.benchmark.methods import build
from tokenphormer.benchmark.running import blind
from tokenphormer.graph import Graph, load_graph, make_split

METHODS = ("graphormer", "san")
CPU = torch.device("cpu")


def passes(name: str, graph: Graph) -> list[Callable[[], None]]:
    """A pass of `scores`, and one of `forward`, on the same method and nodes."""
    split = make_split(graph)
    classes = torch.tensor(graph.y[split.train])
    method, _ = build(name, blind(graph), graph.num_classes, split.train, graph.y[split.train], {}, CPU, seed=0)
    module, nodes = method.module.train(), torch.tensor(split.train)
    method.begin_epoch(1)

    def run(score: Callable[[], Tensor]) -> None:
        module.zero_grad(set_to_none=True)
        F.cross_entropy(score(), classes).backward()  # type: ignore[no-untyped-call]

    return [lambda: run(lambda: method.scores(nodes)), lambda: run(lambda: module()[nodes])]


def compare(name: str, graph: Graph, rounds: int) -> dict[str, object]:
    """The row of a method."""
    both = passes(name, graph)
    for step in both:
        step()
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(seconds(both[which], CPU, 1))
    row = {"method": name, "dataset": graph.name, "nodes": graph.num_nodes, "rounds": rounds}
    ratio = statistics.median(plain / lean for lean, plain in zip(*times, strict=True))
    return row | {"times_as_fast": ratio, "seconds": min(times[0]), "plain_seconds": min(times[1])}


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["cora"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = machine()
    print(json.dumps(about))
    for dataset in options.datasets:
        graph = load_graph(dataset)
        for name in METHODS:
            row = compare(name, graph, options.rounds)
            print(json.dumps(row), flush=True)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row | {"device": "cpu", "machine": about}) + "\n")


if __name__ == "__main__":
    main()
