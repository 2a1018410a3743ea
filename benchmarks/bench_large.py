"""Graphs on disk at scale: time, memory and size of every step, each in a process of its own.

    python -m benchmarks.bench_large FOLDER --nodes 1000000 --out benchmarks/results/large.jsonl

`FOLDER` gets the graph, and tables to convert; what is in it already is used again. A row gives the seconds of the
step without start-up, the seconds of all cores (which other programs on the machine change less), the peak of
resident memory, and the most of it that was the program's own: the rest are pages of memory-mapped files, which the
system takes back when it needs them. `--plot` draws how time and memory grow, from the rows of several sizes.

With `--device cuda` the graph is drawn, and trained on, on the GPU: a graph of the size of ogbn-papers100M is

    python -m benchmarks.bench_large FOLDER --device cuda --nodes 111059956 --degree 30 --features 128 --float16 \
        --train 1207179 --val 125265 --test 214338 --starts 1200000 --limit 235 --out ROWS.jsonl

It leaves 43.4 GB in FOLDER: 28.4 of features, 13.2 of neighbours, 0.9 of rows' starts, 0.9 of labels. GPU memory: 38 GB
while it is drawn, 128.3 GB while it is trained on and predicted, and 9.5 GB beside that. Every step's row is
written as soon as it is done; one that fails, or that the limit ends, is a row with an error, and the next go on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bench_walks import machine
from tokenphormer.evaluation.plots import BLUE, GREEN, INK, MUTED, ORANGE, WIDTH, new_figure, save_figure, style_axes
from tokenphormer.graph.external import convert, parse_memory
from tokenphormer.graph.generators import BlockModel, generate
from tokenphormer.training.settings import Config

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
GPU_CONFIG = CONFIG | {"batch_size": 4096, "hidden_channels": 128}


# ---------------------------------------------------------------- memory


def resident() -> dict[str, int]:
    """Kilobytes of resident memory: the most so far, and what of it now is no mapped file (where that is told)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("Rss", "VmHWM", "VmRSS"))}
    found.setdefault("VmHWM", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    found.setdefault("RssAnon", found.get("VmRSS", 0))
    return found


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
    row["seconds"] = round(time.perf_counter() - began, 6)
    row["cpu_seconds"] = round(time.process_time() - worked, 3)
    stop.set()
    thread.join()
    now = resident()
    row["peak_mb"], row["own_mb"] = now["VmHWM"] // 1024, max(own[0], now["RssAnon"]) // 1024
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        row["gpu_peak_gb"] = round(cuda.max_memory_allocated() / 1e9, 2)
        row["gpu_reserved_gb"] = round(cuda.max_memory_reserved() / 1e9, 2)
        row["gpu_free_gb"] = round(cuda.mem_get_info()[0] / 1e9, 2)


def so_far(row: Row) -> None:
    """What is known of a step already, should it be ended before it is done."""
    print(json.dumps(row), flush=True)


def say(text: str) -> None:
    """How far a step is, on the error stream."""
    print(f"  {time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- steps


def step_generate(folder: Path, model: BlockModel, o: Options, row: Row) -> None:
    device = None if o.device == "cpu" and not o.rehearse else torch.device(o.device)
    began, said = time.perf_counter(), row.setdefault("said", {})

    def note(text: str) -> None:
        say(text)
        said[text] = round(time.perf_counter() - began, 2)
        so_far(row)

    with watched(row):
        graph = generate(
            model, folder / "graph", memory=parse_memory(o.memory), half=o.float16, device=device, say=note
        )
    row["directed_edges"] = graph.num_directed_edges
    row["notes"] = graph.notes[1:]
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


def step_walks(folder: Path, row: Row, device: str = "cpu", starts: int = 100_000) -> None:
    """10 walks of 4 steps of each kind, from nodes drawn at random."""
    from tokenphormer import load_graph
    from tokenphormer.walks import KINDS, sample_walks
    from tokenphormer.walks.sampling import check_device, csr_tensors

    began = time.perf_counter()
    graph, where = load_graph(folder / "graph"), check_device(device)
    row["open_seconds"] = round(time.perf_counter() - began, 3)
    nodes = np.random.default_rng(0).choice(graph.num_nodes, min(starts, graph.num_nodes), replace=False)
    if where.type == "cuda":
        began = time.perf_counter()
        csr_tensors(graph, where)
        row["load_seconds"] = round(time.perf_counter() - began, 2)
        say(f"edges loaded in {row['load_seconds']} s")
    for kind in KINDS:  # compiles; for a GPU, for the very sizes
        sample_walks(graph, kind, 10, 4, nodes if where.type == "cuda" else nodes[:1], device=device)
    _wait(device)
    drawn = {}
    with watched(row):
        for kind in KINDS:
            began = time.perf_counter()
            walks = sample_walks(graph, kind, 10, 4, nodes, device=device)
            _wait(device)
            seconds = time.perf_counter() - began
            row[f"{kind}_million_steps_a_second"] = round(4 * len(nodes) * 10 / seconds / 1e6, 1)
            say(f"{kind}: {len(nodes):,} starts in {seconds:.3f} s")
            drawn[kind] = walks[-100:].cpu().numpy().reshape(-1, 5)
            del walks
    for kind in ("uniform", "non_backtracking"):
        check_edges(graph, drawn[kind])
    row["starts"] = len(nodes)
    row["million_steps_a_second"] = round(4 * len(nodes) * 40 / row["seconds"] / 1e6, 1)


def check_edges(graph: Any, walks: Any) -> None:
    """Every step of some walks goes along an edge."""
    for walk in walks.tolist():
        for here, there in itertools.pairwise(walk):
            row = graph.neighbours(here) if here >= 0 else []
            place = np.searchsorted(row, there)
            assert (there == -1 and not len(row)) or (place < len(row) and row[place] == there), walk


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def step_hops(folder: Path, row: Row) -> None:
    from tokenphormer import load_graph
    from tokenphormer.tokens.stored_hops import stored_hops

    graph = load_graph(folder / "graph")
    for path in (folder / "graph" / "cache").glob("*hop*"):
        path.unlink()
    with watched(row):
        stored_hops(graph, "row", 3)
    row["disk_mb"] = sum(path.stat().st_size for path in (folder / "graph" / "cache").glob("*hop*")) >> 20


def step_train(folder: Path, row: Row, labelled: int | None, o: Options) -> None:
    """What `tokenphormer train` does on (up to `labelled` of) each part: epochs, then the scores of all three parts."""
    from tokenphormer import load_graph
    from tokenphormer.evaluation.runs import train_run
    from tokenphormer.graph import Split
    from tokenphormer.training.estimate import estimate
    from tokenphormer.training.loop import Trainer
    from tokenphormer.walks.sampling import check_device

    graph, device, out = load_graph(folder / "graph"), check_device(o.device), run_folder(folder, labelled)
    shutil.rmtree(out, ignore_errors=True)
    given = graph.splits[0]
    split = Split(given.train[:labelled], given.val[:labelled], given.test[:labelled], name="given")
    changes = (CONFIG if o.device == "cpu" else GPU_CONFIG) | {"max_epochs": o.epochs}
    config = Config().replace(changes | Config.parse_overrides(o.set))
    guess = estimate(graph, split, config, device)
    row["labelled"], row["epochs"], row["split"] = len(split.train), o.epochs, split.sizes
    row["estimated_mb"], row["estimated_epoch_seconds"] = guess.host_bytes >> 20, round(guess.epoch_seconds, 2)
    row["estimated_gpu_gb"] = round(guess.gpu_bytes / 1e9, 2)
    began, worked, ended = time.perf_counter(), time.process_time(), []

    def after_epoch(_: int, trainer: Trainer) -> None:
        ended.append(time.process_time())
        last = trainer.progress.history[-1]
        say(f"epoch {last['epoch']}: {last['seconds']:.1f} s, validation accuracy {last['val_accuracy']:.4f}")
        row["until_first_epoch_ended"] = row.get("until_first_epoch_ended", round(time.perf_counter() - began, 2))
        method: Any = trainer.method
        kept = method.source.resident
        row["micro_batch"], row["resident"] = trainer.micro_batch, kept is not None
        if kept is not None and "load_seconds" not in row:
            row["load_seconds"], row["hop_seconds"] = round(kept.load_seconds, 2), round(kept.hop_seconds, 2)
            say(f"edges and features were loaded in {kept.load_seconds:.1f} s, hops took {kept.hop_seconds:.1f} s")
            row["largest_error"] = check_resident(graph, kept, config.hop_normalisation)
            say(f"largest error of 300 nodes' rows and hops: {row['largest_error']:.1e}")
        row["epoch_seconds"], row["val_accuracy"] = round(last["seconds"], 3), round(last["val_accuracy"], 4)
        row["gpu_peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2) if device.type == "cuda" else 0
        so_far(row)

    with watched(row):
        source = str(folder / "graph")
        summary = train_run(graph, source, split, config, out, device, after_epoch=after_epoch, say=say)
    history = [json.loads(line) for line in (out / "seeds" / "0" / "history.jsonl").read_text().splitlines()]
    row["epoch_seconds"] = round(float(np.mean([epoch["seconds"] for epoch in history])), 3)
    row["epoch_cpu_seconds"] = round((ended[-1] - worked) / o.epochs, 3)
    row["val_accuracy"], row["test_accuracy"] = round(summary.val_accuracy[0], 4), round(summary.test_accuracy[0], 4)


def run_folder(folder: Path, labelled: int | None) -> Path:
    return folder / f"run-{labelled or 'all'}"


def check_resident(graph: Any, kept: Any, normalisation: str) -> float:
    """The largest error, of the largest number, in what a device holds of the first, the last and other nodes."""
    n = graph.num_nodes
    nodes = np.r_[0:100, n - 100 : n, np.random.default_rng(1).integers(0, n, 100)]
    device, worst = kept.x.device, 0.0
    assert np.array_equal(kept.x[torch.tensor(nodes, device=device)].cpu().numpy(), graph.x[nodes]), "rows differ"
    own = normalisation == "symmetric"
    before = kept.x
    for hop in kept.hops:
        found = hop[torch.tensor(nodes, device=device)].double().cpu().numpy()
        for node, value in zip(nodes.tolist(), found, strict=True):
            around = np.append(graph.neighbours(node), [node] * own).astype(np.int64)
            rows = before[torch.tensor(around, device=device)].double().cpu().numpy()
            if own:
                rows /= np.sqrt(graph.indptr[around + 1] - graph.indptr[around] + 1.0)[:, None] * len(around) ** 0.5
            elif normalisation == "row":
                rows /= max(1, len(around))
            worst = max(worst, float(np.abs(rows.sum(axis=0) - value).max() / np.abs(value).max(initial=1e-3)))
        before = hop
    return worst


def step_predict(folder: Path, row: Row, labelled: int | None, predicted: int, device: str = "cpu") -> None:
    """What `tokenphormer predict RUN GRAPH --nodes F --out F.parquet` does, for nodes drawn at random."""
    import pyarrow.parquet

    from tokenphormer.evaluation.runs import predict_run
    from tokenphormer.graph.disk import open_graph

    out, ids = folder / "predictions.parquet", folder / "ids.txt"
    graph = open_graph(folder / "graph")
    nodes = np.random.default_rng(0).choice(graph.num_nodes, min(predicted, graph.num_nodes), replace=False)
    ids.write_text("".join(f"{node}\n" for node in nodes))
    with watched(row):
        predict_run(run_folder(folder, labelled), str(folder / "graph"), out, ids, device, False, True)
    row["predicted"] = len(nodes)
    row["predicted_a_second"] = round(len(nodes) / row["seconds"])
    table = pyarrow.parquet.read_table(out, columns=["predicted"])["predicted"].to_numpy()
    row["right"] = round(float((table.astype(np.int64) == graph.y[nodes]).mean()), 4)
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


GPU_STEPS = ("generate", "walks", "train", "predict")


def steps(o: Options) -> dict[str, Callable[[Row], None]]:
    model = BlockModel(o.nodes, o.degree, o.features, o.classes, num_train=o.train, num_val=o.val, num_test=o.test)
    folder, memory = o.folder, parse_memory(o.memory)
    return {
        "generate": lambda row: step_generate(folder, model, o, row),
        "convert-csv": lambda row: step_convert(folder, "csv", memory, row),
        "convert-parquet": lambda row: step_convert(folder, "parquet", memory, row),
        "open": lambda row: step_open(folder, row),
        "verify": lambda row: step_verify(folder, row),
        "walks": lambda row: step_walks(folder, row, o.device, o.starts),
        "hops": lambda row: step_hops(folder, row),
        "train": lambda row: step_train(folder, row, o.labelled, o),
        "predict": lambda row: step_predict(folder, row, o.labelled, o.predicted, o.device),
    }


class Options(argparse.Namespace):
    """The command line."""

    folder: Path
    plot: Path | None
    nodes: int
    degree: int
    features: int
    classes: int
    train: int
    val: int | None
    test: int | None
    float16: bool
    memory: str
    device: str
    rehearse: bool
    labelled: int | None
    epochs: int
    starts: int
    predicted: int
    set: list[str]
    steps: list[str] | None
    step: str | None
    limit: float
    out: Path | None


def parse(words: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with --plot: the JSONL file")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="only draw the rows of a JSONL file")
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--degree", type=int, default=20)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--train", type=int, default=10_000, help="nodes for training")
    parser.add_argument("--val", type=int, help="for validation; default: as many")
    parser.add_argument("--test", type=int, help="for test; default: as many")
    parser.add_argument("--float16", action="store_true", help="features in half precision")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, go the way of a GPU: for tests")
    parser.add_argument("--labelled", type=int, help="nodes of each part that are used at most; default: all")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--starts", type=int, default=100_000, help="nodes that walks are drawn from")
    parser.add_argument("--predicted", type=int, default=1_000_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the training")
    parser.add_argument("--steps", nargs="*", help="only these")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all steps together")
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    return parser.parse_args(words, Options())


def run_step(name: str, words: list[str], seconds: float, rehearse: bool) -> Row:
    """A step in a process of its own; what went wrong, where something did."""
    began = time.perf_counter()
    environment = os.environ | ({"TOKENPHORMER_RESIDENT": "yes"} if rehearse else {})
    command = [sys.executable, "-m", "benchmarks.bench_large", *words, "--step", name]
    row: Row = {}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=min(seconds, 1e6), env=environment, check=False)
        printed = done.stdout
        row |= {} if done.returncode == 0 else {"error": f"exit code {done.returncode}"}
    except subprocess.TimeoutExpired as stop:
        printed = stop.stdout or b""
        row["error"] = f"ended after {seconds:.0f} s: the limit"
    for line in printed.decode().splitlines()[::-1]:
        with suppress(ValueError):  # the last line that is whole
            row = json.loads(line) | row
            break
    return row | {"process_seconds": round(time.perf_counter() - began, 2)}


def main() -> None:
    """Parse, run each step in its own process, print, write."""
    began, options = time.perf_counter(), parse()
    if options.plot:
        plot(options.folder, options.plot)
        return
    known = steps(options)
    if options.step:
        row: Row = {"machine": machine()}
        known[options.step](row)
        print(json.dumps(row))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in options.steps or (GPU_STEPS if options.device == "cuda" or options.rehearse else known):
        if name.startswith("convert"):
            model = BlockModel(options.nodes, options.degree, options.features, num_train=options.train)
            write_tables(options.folder, model, name.removeprefix("convert-"))
        graph = options.folder / "graph"
        if name == "generate" and graph.exists():
            continue
        row = {"step": name, "nodes": options.nodes, "features": options.features, "memory": options.memory}
        row["device"] = options.device
        print(f"{name} begins after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        left = options.limit - (time.perf_counter() - began)
        if name not in ("generate", "convert-csv", "convert-parquet") and not graph.exists():
            row["error"] = "there is no graph"
        elif left < 1:
            row["error"] = "no time is left"
        else:
            row |= run_step(name, sys.argv[1:], left, options.rehearse)
        failed = failed or "error" in row
        print(json.dumps({key: value for key, value in row.items() if key != "machine"}), flush=True)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(f"all done after {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
