"""What the training loop costs over a method's own work: `python -m benchmarks.bench_methods [--device cuda]`.

For each method, one step of the loop (`Trainer._update`: batches, labels, class weights, the schedule, the guard for
memory) beside the same forward pass, backward pass and AdamW step written out bare. The two take turns, and what counts
is the median over rounds of one's time by the other's right after it; on a CPU, one thread's own time. So a busy
machine does little harm. Absolute times are this machine's: only the ratio is to be compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.bench_walks import machine
from tokenphormer.benchmark.methods import METHODS, build
from tokenphormer.benchmark.running import blind
from tokenphormer.graph import Graph, load_graph, make_split
from tokenphormer.training.loop import Labelled, Trainer

ALLOWED = 1.10
"""The most that a step of the loop may take of a bare one."""
Row = dict[str, object]


def steps_of(name: str, graph: Graph, device: torch.device) -> tuple[Callable[[], object], Callable[[], object]] | None:
    """A step of the loop and a bare one, on the same method and batch; None for a method that has nothing to train."""
    split = make_split(graph)
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    method, settings = build(
        name, blind(graph), graph.num_classes, train.nodes, train.classes, {}, device, seed=0
    )  # fmt: skip
    parameters = list(method.module.parameters())
    if not parameters:
        return None
    trainer = Trainer(method, train, val, graph.num_classes, settings, device)
    method.begin_epoch(1)
    method.module.train()
    pieces = next(iter(trainer._training_batches(1)))
    targets = [trainer.labels[nodes] for nodes in pieces]
    count = sum(map(len, pieces))
    optimiser = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=settings.weight_decay, fused=device.type == "cuda")

    def bare() -> None:
        optimiser.zero_grad(set_to_none=True)
        for nodes, target in zip(pieces, targets, strict=True):
            loss = method.loss(nodes, lambda scores, t=target: F.cross_entropy(scores, t, reduction="sum"))  # type: ignore[misc]
            (loss / count).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return lambda: trainer._update(pieces), bare


def seconds(step: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Of one step; several are sent one after the other, as in training."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    began = clock()
    for _ in range(repeat):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (clock() - began) / repeat


def compare(name: str, graph: Graph, device: torch.device, rounds: int) -> Row:
    """The row of a method."""
    row: Row = {"method": name, "dataset": graph.name}
    steps = steps_of(name, graph, device)
    if steps is None:
        return row | {"ratio": None, "reason": "nothing to train"}
    for step in steps:
        seconds(step, device, 2)
    repeat = max(1, min(20, int(0.2 / seconds(steps[1], device, 2))))  # short steps are timed several at a time
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(seconds(steps[which], device, repeat))
    ratio = statistics.median(loop / bare for loop, bare in zip(*times, strict=True))
    loop, bare = map(min, times)
    return row | {"ratio": ratio, "loop_seconds": loop, "bare_seconds": bare, "rounds": rounds, "repeat": repeat}


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dataset", default="debian")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    device, graph = torch.device(options.device), load_graph(options.dataset)
    if device.type == "cpu":
        torch.set_num_threads(1)
    about = machine()
    print(json.dumps(about))
    rows = []
    for name in options.methods:
        rows.append(compare(name, graph, device, options.rounds))
        print(json.dumps(rows[-1]), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1] | {"device": options.device, "machine": about}) + "\n")
    above = [str(row["method"]) for row in rows if isinstance(row["ratio"], float) and row["ratio"] > ALLOWED]
    print(f"above {ALLOWED:.2f}: {', '.join(above) or 'none'}")


if __name__ == "__main__":
    main()
