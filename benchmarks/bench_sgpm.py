"""Time and memory of pre-training: `make bench-sgpm`, or `python -m benchmarks.bench_sgpm [--device cuda]`.

On a GPU the paper's whole schedule on Cora (270,800 sentences × 6 epochs, 4 layers, 768 channels, 12 heads); on a CPU
the small preset. With `--growth`, one pass over generated graphs of 10,000 to 1,000,000 nodes.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench_walks import machine
from tokenphormer.graph import Graph, load_graph
from tokenphormer.sgpm import Pretrainer, SGPMSettings
from tokenphormer.sgpm.pretrain_run import default_settings
from tokenphormer.training.fit import peak_memory

H200_RATE = 790e12
"""Multiplications and additions a second in bfloat16, measured on large products."""
GROWTH: dict[str, object] = {"train_sentences": 2, "val_sentences": 1, "epochs": 1, "mean_length": 8.0}
Row = dict[str, object]


def schedule(graph: Graph, settings: SGPMSettings, device: torch.device) -> Row:
    """A whole pre-training; the graph's radius and the first compilations come before the clock starts."""
    trainer = Pretrainer(graph, settings, device)
    assert trainer.document.max_nodes
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        warm = Pretrainer(graph, settings.replace({"train_sentences": 1, "val_sentences": 1, "epochs": 1}), device)
        warm.run()
        del warm
        torch.cuda.synchronize()
    began = time.perf_counter()
    progress = trainer.run()
    seconds = time.perf_counter() - began
    inner = sum(p.numel() for name, p in trainer.model.named_parameters() if name.startswith(("layers", "transform")))
    rate = 6 * inner * progress.tokens / seconds
    best = progress.history[progress.best_epoch - 1]
    row: Row = {
        "work": f"{graph.name}: pre-training",
        "sentences": progress.sentences,
        "tokens": progress.tokens,
        "epochs": progress.epoch,
        "hidden": settings.hidden_channels,
        "layers": settings.num_layers,
        "batch_size": settings.batch_size,
        "seconds": seconds,
        "tokens_per_second": progress.tokens / seconds,
        "val_accuracy": best["val_accuracy"],
        "peak_gb": peak_memory(device) / 1e9,
    }
    if device.type == "cuda":
        row["share_of_matrix_rate"] = rate / H200_RATE
    return row


def generated(num_nodes: int, degree: int = 10, num_features: int = 32) -> Graph:
    """A random graph with features, the same for the same size."""
    rng = np.random.default_rng(num_nodes)
    edges = rng.integers(0, num_nodes, (2, num_nodes * degree // 2))
    x = rng.standard_normal((num_nodes, num_features), dtype=np.float32)
    return Graph.from_edges(edges, num_nodes=num_nodes, x=x, name=f"random-{num_nodes}")


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--datasets", nargs="*", default=["cora"])
    parser.add_argument("--growth", nargs="*", type=int, default=[], metavar="NODES", help="sizes of generated graphs")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    device = torch.device(options.device)
    settings = default_settings(device).replace(SGPMSettings.parse_overrides(options.changes))
    about = machine()
    print(json.dumps(about))
    for what in [*options.datasets, *options.growth]:
        graph, grows = (generated(what), GROWTH) if isinstance(what, int) else (load_graph(what), {})
        row = schedule(graph, settings.replace(grows), device) | {"device": options.device}
        print(json.dumps(row), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(row | {"machine": about}) + "\n")


if __name__ == "__main__":
    main()
