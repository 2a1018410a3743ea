"""Graphs on disk at scale: time, memory and size of every step, each in a process of its own.

    python -m benchmarks.bench_large FOLDER --nodes 1000000 --out benchmarks/results/large.jsonl

`FOLDER` gets the graph, and tables to convert; what is in it already is used again. A row gives the seconds of the
step without start-up, the seconds of all cores (which other programs on the machine change less), the peak of
resident memory, and the most of it that was the program's own: the rest are pages of memory-mapped files, which the
system takes back when it needs them. `--plot` draws how time and memory grow, from the rows of several sizes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_walks import machine
from tokenphormer.evaluation.plots import BLUE, GREEN, INK, MUTED, ORANGE, WIDTH, new_figure, save_figure, style_axes
from tokenphormer.graph.external import convert, parse_memory
from tokenphormer.graph.generators import BlockModel, generate

Row = dict[str, Any]
CONFIG: dict[str, object] = {
    "num_walks": 10,
    "walk_length": 4,
    "num_hops": 3,
    "hop_normalisation": "row",
    "hidden_channels": 64,
    "fresh_walks": True,
    "batch_size": 1000,
    "learning_rate": 5e-3,
    "warmup_updates": 20,
    "decay_updates": 300,
}


# ---------------------------------------------------------------- memory


def resident() -> dict[str, int]:
    """Kilobytes of resident memory by kind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("Rss", "VmHWM"))}


@contextmanager
def watched(row: Row) -> Iterator[None]:
    """Note seconds, those of the cores, the peak of resident memory, and the peak of what is not a mapped file."""
    own, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            own[0] = max(own[0], resident()["RssAnon"])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    began, worked = time.perf_counter(), time.process_time()
    yield
    row["seconds"] = round(time.perf_counter() - began, 3)
    row["cpu_seconds"] = round(time.process_time() - worked, 3)
    stop.set()
    thread.join()
    now = resident()
    row["peak_mb"], row["own_mb"] = now["VmHWM"] // 1024, max(own[0], now["RssAnon"]) // 1024


# ---------------------------------------------------------------- steps


def step_generate(folder: Path, model: BlockModel, memory: int, row: Row) -> None:
    with watched(row):
        graph = generate(model, folder / "graph", memory=memory)
    row["directed_edges"] = graph.num_directed_edges
    row["disk_mb"] = sum(path.stat().st_size for path in (folder / "graph").glob("*.npy")) >> 20


def write_tables(folder: Path, model: BlockModel, kind: str) -> Path:
    """The same graph as tables: CSV with ids like n12 and features.npz, or Parquet with numbers and columns."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    out = folder / f"tables-{kind}"
    if (out / "done").exists():
        return out
    out.mkdir(exist_ok=True)
    n, split = model.num_nodes, model.split()
    part = np.full(n, "", dtype="<U5")
    for name in ("train", "val", "test"):
        part[getattr(split, name)] = name

    def ids(nodes: Any) -> Any:
        return pa.array(nodes) if kind == "parquet" else pa.array(np.char.add("n", nodes.astype(str)))

    def save(stem: str, tables: Iterator[Any]) -> None:
        writer = None
        for table in tables:
            if writer is None:
                make = pa.parquet.ParquetWriter if kind == "parquet" else pa.csv.CSVWriter
                writer = make(out / f"{stem}.{kind}", table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()

    def nodes() -> Iterator[Any]:
        for first in range(0, n, 1 << 17):
            some = np.arange(first, min(first + (1 << 17), n))
            columns = {"id": ids(some), "label": model.classes_of(some).astype(str), "split": part[some]}
            if kind == "parquet":
                columns |= {f"x{c}": column for c, column in enumerate(model.features(some).T)}
            yield pa.table(columns)

    save("nodes", nodes())
    save("edges", (pa.table({"source": ids(a), "target": ids(b)}) for a, b in model.edges()))
    if kind == "csv":
        np.savez(out / "features.npz", x=model.features(np.arange(n)))
    (out / "done").touch()
    return out


def step_convert(folder: Path, kind: str, memory: int, row: Row) -> None:
    out = folder / f"converted-{kind}"
    with watched(row):
        graph = convert(folder / f"tables-{kind}", out, memory=memory)
    row["listed_edges"], row["directed_edges"] = graph.num_edges, graph.num_directed_edges
    row["table_mb"] = sum(path.stat().st_size for path in (folder / f"tables-{kind}").iterdir()) >> 20


def step_open(folder: Path, row: Row) -> None:
    from tokenphormer.graph.disk import open_graph

    with watched(row):
        open_graph(folder / "graph")


def step_verify(folder: Path, row: Row) -> None:
    from tokenphormer.graph.disk import open_graph

    with watched(row):
        open_graph(folder / "graph", verify=True)


def step_walks(folder: Path, row: Row) -> None:
    """10 walks of 4 steps of each kind from 100,000 nodes."""
    from tokenphormer import load_graph
    from tokenphormer.walks import KINDS, sample_walks

    graph = load_graph(folder / "graph")
    starts = np.random.default_rng(0).permutation(graph.num_nodes)[:100_000]
    for kind in KINDS:
        sample_walks(graph, kind, 1, 1, [0])  # compiles
    with watched(row):
        for kind in KINDS:
            sample_walks(graph, kind, 10, 4, starts)
    row["starts"] = len(starts)
    row["million_steps_a_second"] = round(4 * len(starts) * 40 / row["seconds"] / 1e6, 1)


def step_hops(folder: Path, row: Row) -> None:
    from tokenphormer import load_graph
    from tokenphormer.tokens.stored_hops import stored_hops

    graph = load_graph(folder / "graph")
    for path in (folder / "graph" / "cache").glob("*hop*"):
        path.unlink()
    with watched(row):
        stored_hops(graph, "row", 3)
    row["disk_mb"] = sum(path.stat().st_size for path in (folder / "graph" / "cache").glob("*hop*")) >> 20


def step_train(folder: Path, row: Row, labelled: int, epochs: int) -> None:
    """What `tokenphormer train` does on `labelled` nodes of each part: epochs, then the scores of all three parts."""
    import torch

    from tokenphormer import load_graph
    from tokenphormer.evaluation.runs import train_run
    from tokenphormer.graph import Split
    from tokenphormer.training.estimate import estimate
    from tokenphormer.training.settings import Config

    graph, cpu, out = load_graph(folder / "graph"), torch.device("cpu"), folder / f"run-{labelled}"
    shutil.rmtree(out, ignore_errors=True)
    given = graph.splits[0]
    split = Split(given.train[:labelled], given.val[:labelled], given.test[:labelled], name="given")
    config = Config().replace(CONFIG | {"max_epochs": epochs})
    guess = estimate(graph, split, config, cpu)
    row["labelled"], row["epochs"] = len(split.train), epochs
    row["estimated_mb"], row["estimated_epoch_seconds"] = guess.host_bytes >> 20, round(guess.epoch_seconds, 2)
    began, ended = time.process_time(), []
    with watched(row):
        summary = train_run(
            graph,
            str(folder / "graph"),
            split,
            config,
            out,
            cpu,
            after_epoch=lambda *_: ended.append(time.process_time()),
        )
    history = [json.loads(line) for line in (out / "seeds" / "0" / "history.jsonl").read_text().splitlines()]
    row["epoch_seconds"] = round(float(np.mean([epoch["seconds"] for epoch in history])), 3)
    row["epoch_cpu_seconds"] = round((ended[-1] - began) / epochs, 3)
    row["test_accuracy"] = round(summary.test_accuracy[0], 4)


def step_predict(folder: Path, row: Row, labelled: int, predicted: int) -> None:
    """What `tokenphormer predict RUN GRAPH --nodes F --out F.parquet` does, for nodes drawn at random."""
    from tokenphormer.evaluation.runs import predict_run
    from tokenphormer.graph.disk import open_graph

    out, ids = folder / "predictions.parquet", folder / "ids.txt"
    nodes = np.random.default_rng(0).permutation(open_graph(folder / "graph").num_nodes)[:predicted]
    ids.write_text("".join(f"{node}\n" for node in nodes))
    with watched(row):
        predict_run(folder / f"run-{labelled}", str(folder / "graph"), out, ids, "cpu", False, True)
    row["predicted"] = len(nodes)
    row["predicted_a_second"] = round(len(nodes) / row["seconds"])
    row["disk_mb"] = out.stat().st_size >> 20


# ---------------------------------------------------------------- growth

WHOLE = {"generate": "generate", "convert-parquet": "convert", "hops": "hop features"}
"""Steps that go through the whole graph."""
EACH = {"walks": "walks", "train": "an epoch", "predict": "prediction"}
"""Steps whose work is the nodes asked for, on a graph of any size."""
ASKED = {"train": ("labelled", 2_500), "predict": ("predicted", 10_000)}
"""How many nodes the rows that are compared ask for: as many as the smallest graph has."""
LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"))


def latest(rows: list[Row], step: str) -> list[Row]:
    """The last row of a step for each size of graph, small ones first."""
    key, asked = ASKED.get(step, ("step", step))
    found = {row["nodes"]: row for row in rows if row["step"] == step and row.get(key) == asked}
    return [found[nodes] for nodes in sorted(found)]


def microseconds_each(row: Row) -> float:
    """Core time for one of the nodes that were asked for."""
    if row["step"] == "train":
        return 1e6 * float(row["epoch_cpu_seconds"]) / int(row["labelled"])
    return 1e6 * float(row["cpu_seconds"]) / int(row["starts" if row["step"] == "walks" else "predicted"])


def slope(nodes: list[int], values: list[float]) -> float:
    """Of the line through the logarithms, without the smallest graph, whose time is that of starting: 1 is linear.

    >>> round(slope([1, 10, 100], [5.0, 2.0, 20.0]), 2)
    1.0
    """
    return float(np.polyfit(np.log(nodes[1:]), np.log(values[1:]), 1)[0])


def plot(results: Path, out: Path) -> None:
    """Draw core time and memory of the steps against the size of the graph."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    rows = [json.loads(line) for line in results.read_text().splitlines()]
    panels: list[tuple[str, dict[str, str], Callable[[Row], float]]] = [
        ("Whole graph: core seconds", WHOLE, lambda row: float(row["cpu_seconds"])),
        ("Nodes asked for: core µs each", EACH, microseconds_each),
        ("Whole graph: own memory, GB", WHOLE, lambda row: row["own_mb"] / 1024),
        ("Nodes asked for: own memory, GB", EACH, lambda row: row["own_mb"] / 1024),
    ]
    figure = new_figure(2 * WIDTH, 6.4)
    for axes, (title, steps, value) in zip(figure.subplots(2, 2).flat, panels, strict=True):
        for (step, name), (colour, marker) in zip(steps.items(), LOOKS, strict=True):
            some = latest(rows, step)
            nodes, values = [row["nodes"] for row in some], [value(row) for row in some]
            said = f"at most {max(values):.1f}" if "memory" in title else f"slope {slope(nodes, values):.2f}"
            axes.plot(nodes, values, color=colour, marker=marker, markersize=5, linewidth=1.5, label=f"{name}: {said}")
            if step == "hops" and "seconds" in title:
                line = [values[-1] * n / nodes[-1] for n in nodes[1:]]
                axes.plot(nodes[1:], line, color=MUTED, linewidth=1, linestyle=":", label="slope 1")
        axes.set_xscale("log")
        axes.set_yscale("log")
        rising = steps is WHOLE
        axes.set_ylim(axes.get_ylim()[0], axes.get_ylim()[1] * (1.5 if rising else 3))  # room for the names
        axes.xaxis.set_major_locator(FixedLocator([10**k for k in range(4, 8)]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n / 1e6:g} M" if n >= 1e6 else f"{n / 1e3:g} k"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if "core" in title else (1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        style_axes(axes, title, "nodes of the graph")
        axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left", ncols=1 if rising else 2)
    save_figure(figure, out)


# ---------------------------------------------------------------- all of them


def steps(
    folder: Path, model: BlockModel, memory: int, labelled: int, epochs: int, predicted: int
) -> dict[str, Callable[[Row], None]]:
    return {
        "generate": lambda row: step_generate(folder, model, memory, row),
        "convert-csv": lambda row: step_convert(folder, "csv", memory, row),
        "convert-parquet": lambda row: step_convert(folder, "parquet", memory, row),
        "open": lambda row: step_open(folder, row),
        "verify": lambda row: step_verify(folder, row),
        "walks": lambda row: step_walks(folder, row),
        "hops": lambda row: step_hops(folder, row),
        "train": lambda row: step_train(folder, row, labelled, epochs),
        "predict": lambda row: step_predict(folder, row, labelled, predicted),
    }


def main() -> None:
    """Parse, run each step in its own process, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with --plot: the JSONL file")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="only draw the rows of a JSONL file")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--train", type=int, default=10_000, help="nodes of each part of the split")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--labelled", type=int, help="nodes of each part that are used; default: all")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--predicted", type=int, default=1_000_000)
    parser.add_argument("--steps", nargs="*", help="only these")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    if options.plot:
        plot(options.folder, options.plot)
        return
    model = BlockModel(options.nodes, options.degree, options.features, num_train=options.train)
    known = steps(
        options.folder,
        model,
        parse_memory(options.memory),
        options.labelled or options.train,
        options.epochs,
        options.predicted,
    )
    if options.step:
        row: Row = {}
        known[options.step](row)
        print(json.dumps(row))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    about = machine()
    for name in options.steps or known:
        if name.startswith("convert"):
            write_tables(options.folder, model, name.removeprefix("convert-"))
        if name == "generate" and (options.folder / "graph").exists():
            continue
        words = [sys.executable, "-m", "benchmarks.bench_large", *sys.argv[1:], "--step", name]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        row = {"step": name, "nodes": options.nodes, "features": options.features, "memory": options.memory}
        row |= json.loads(done.stdout.splitlines()[-1])
        print(json.dumps(row), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(row | {"machine": about}) + "\n")


if __name__ == "__main__":
    main()
