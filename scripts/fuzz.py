"""Hand damaged and hand-made input to everything that reads some: no crash, no hang, no memory without bound.

    python scripts/fuzz.py --inputs 100000

Every reader is a target in a process of its own. An input is a file (or a setting, or a request) that was whole and
has been changed at a few places; where a hash or a checksum would give that away at once, the *made* targets change
what is inside and work out the hash anew, as somebody would who means harm. A reader may take an input or refuse it
with an error of the package. Anything else is a failure: another exception, more than 10 s, more than 1000 MB of
memory for one input, an end of the process. Failures are kept as files, one for each kind, and `--again FILE` reads
one of them once more.

The engine is atheris (libFuzzer: it learns from the code that inputs reach; `pip install tokenphormer[fuzz]`) where
it is installed, else hypothesis.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import faulthandler
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SECONDS = 10
"""For one input; twice as many end the process, where it hangs in code that cannot be interrupted."""
MEGABYTES = 1000
"""For one input, of 64 kB at most."""
LARGEST = 1 << 16
COMPILED = [
    *("tokenphormer.walks", "tokenphormer.tokens", "tokenphormer.graph.blocks", "tokenphormer.graph.edge_sort"),
    *("tokenphormer.graph.id_table", "tokenphormer.graph.statistics", "tokenphormer.baselines", "tokenphormer.studies"),
]
"""Numba compiles parts of these, and atheris must not have written into them before."""
BREAK = b"\n=====\n"
"""Between the parts of an input that is several files."""
Reader = Callable[[bytes], None]
Maker = Callable[[Path], tuple[list[bytes], Reader]]
TOKENS = [
    *(b"", b"\0", b"\n", b'"', b",", b"-1", b"0", b"1e999", b"NaN", b"-Infinity", b"Infinity", b"9" * 30, b"null"),
    *(b"[" * 30_000, b'{"a":' * 30_000, b"\xff\xfe", "ß\u202e💥".encode(), b"[]", b"{}", b"&a [*a,*a]"),
    *(b"!!python/object:os.system", b"true", b"1_000", b"4294967296"),
    *(b"\xff" * 8, b"\x80" + b"\0" * 7, b"'descr': '|O'", b"(1000000000000,)", b"<U1000000", b"../../x"),
]  # fmt: skip


class HangError(Exception):
    """An input took too long."""


# -------------------------------------------------------------------- a small world to read from


def build_world(folder: Path) -> None:
    """One of everything that is read: tables, graphs, a split, a run, a pre-training, rows."""
    import numpy as np
    import torch

    from tokenphormer.benchmark.rows import append_row
    from tokenphormer.evaluation.runs import train_run
    from tokenphormer.graph import Graph, make_split
    from tokenphormer.graph.disk_writer import write_graph
    from tokenphormer.graph.tables import write_folder
    from tokenphormer.sgpm.pretrain_run import pretrain
    from tokenphormer.sgpm.settings import SMALL, SGPMSettings
    from tokenphormer.training.settings import Config

    rng, cpu, n = np.random.default_rng(0), torch.device("cpu"), 24
    graph = Graph.from_edges(
        rng.integers(0, n, (2, 60)),
        num_nodes=n,
        x=rng.normal(size=(n, 3)).astype(np.float32),
        y=np.arange(n) % 2,
        edge_weight=rng.random(60) + 0.5,
        node_ids=[f"n{v}" for v in range(n)],
        class_names=("a", "ß"),
        name="small",
    )
    split = make_split(graph)
    graph.save(folder / "graph.npz")
    split.save(folder / "split.npz")
    for kind in ("csv", "parquet"):
        write_folder(graph, folder / kind, kind, split)
    write_graph(Graph.load(folder / "graph.npz"), folder / "disk")
    config = Config(hidden_channels=8, num_walks=2, walk_length=2, num_hops=1, max_epochs=2, warmup_updates=0)
    train_run(graph, str(folder / "graph.npz"), split, config, folder / "run", cpu)
    small = SMALL | {"hidden_channels": 8, "num_layers": 1, "num_heads": 2, "epochs": 1, "train_sentences": 2}
    pretrain(graph, SGPMSettings().replace(small), folder / "sgpm", cpu)
    row = {"kind": "final", "model": "mlp", "dataset": "debian", "protocol": "stratified", "split": 0, "study": "main"}
    row |= {
        "status": "done",
        "format": 1,
        "val_accuracy": 0.5,
        "test_accuracy": 0.5,
        "config": {},
        "trial": -1,
        "seed": 0,
    }
    append_row(folder / "rows.jsonl", row)
    append_row(folder / "rows.jsonl", row | {"kind": "trial", "trial": 0, "split": 100})


# -------------------------------------------------------------------- targets


def parts_of(data: bytes, count: int) -> list[bytes]:
    """An input as `count` files; missing ones are empty."""
    found = data.split(BREAK)
    return [*found, *[b""] * count][:count]


def make_npz(path: Path, names: list[str], data: bytes) -> None:
    """An archive of these members, with the checksums that they should have."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in zip(names, parts_of(data, len(names)), strict=True):
            archive.writestr(f"{name}.npy", content)


def members(path: Path) -> tuple[list[str], bytes]:
    """The members of an archive, as an input for `make_npz`."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        return [name.removesuffix(".npy") for name in names], BREAK.join(archive.read(name) for name in names)


def tables_csv(world: Path) -> tuple[list[bytes], Reader]:
    """A folder of CSV tables, loaded."""
    from tokenphormer.graph.tables import read_folder

    folder = world / "csv"
    (folder / "features.npz").unlink()
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    with_columns = (
        b"id,label,split,x,y\na,1,train,0.5,1e3\nb,,,-1,2\nc,2,test,TRUE,0\n" + BREAK + b"source,target\na,b\n"
    )

    def read(data: bytes) -> None:
        for path, content in zip((nodes, edges), parts_of(data, 2), strict=True):
            path.write_bytes(content)
        read_folder(folder)

    return [nodes.read_bytes() + BREAK + edges.read_bytes(), with_columns], read


def convert_csv(world: Path) -> tuple[list[bytes], Reader]:
    """The same folder, converted."""
    from tokenphormer.graph.external import convert

    seeds, _ = tables_csv(world)
    out = world / "converted"

    def read(data: bytes) -> None:
        for name, content in zip(("nodes.csv", "edges.csv"), parts_of(data, 2), strict=True):
            (world / "csv" / name).write_bytes(content)
        try:
            convert(world / "csv", out, memory=64 << 20)
        finally:
            shutil.rmtree(out, ignore_errors=True)

    return seeds, read


def tables_parquet(world: Path, through: str = "load") -> tuple[list[bytes], Reader]:
    """A folder of Parquet tables; the first byte says which of them was changed."""
    from tokenphormer.graph.external import convert
    from tokenphormer.graph.tables import read_folder

    folder, out = world / "parquet", world / "converted"
    (folder / "features.npz").unlink()
    paths = [folder / "nodes.parquet", folder / "edges.parquet"]
    whole = [path.read_bytes() for path in paths]

    def read(data: bytes) -> None:
        which = data[0] % 2 if data else 0
        paths[which].write_bytes(data[1:])
        try:
            if through == "load":
                read_folder(folder)
            else:
                convert(folder, out, memory=64 << 20)
        finally:
            shutil.rmtree(out, ignore_errors=True)
            paths[which].write_bytes(whole[which])

    return [bytes([number]) + content for number, content in enumerate(whole)], read


def convert_parquet(world: Path) -> tuple[list[bytes], Reader]:
    """The same, converted."""
    return tables_parquet(world, "convert")


def features(world: Path) -> tuple[list[bytes], Reader]:
    """`features.npz` made anew from its members, dense and sparse."""
    import numpy as np
    import scipy.sparse as sp

    from tokenphormer.graph.tables import _read_features_file

    path, seeds = world / "features.npz", []
    np.savez(path, x=np.ones((24, 3), np.float32))
    dense, content = members(path)
    seeds.append(b"d" + content)
    sp.save_npz(path, sp.csr_array(np.eye(24, 3, dtype=np.float32)))
    sparse, content = members(path)
    seeds.append(b"s" + content)

    def read(data: bytes) -> None:
        make_npz(path, sparse if data[:1] == b"s" else dense, data[1:])
        _read_features_file(path, 24)

    return seeds, read


def graph_file(world: Path) -> tuple[list[bytes], Reader]:
    """A saved graph, as it stands or made anew from its members."""
    from tokenphormer.graph import Graph

    path = world / "graph.npz"
    names, content = members(path)

    def read(data: bytes) -> None:
        if data[:1] == b"m":
            make_npz(path, names, data[1:])
        else:
            path.write_bytes(data[1:])
        Graph.load(path)

    return [b"m" + content, b"f" + path.read_bytes()], read


def split_file(world: Path) -> tuple[list[bytes], Reader]:
    """A split, as it stands or made anew from its members."""
    from tokenphormer.graph import Graph, Split

    graph, path = Graph.load(world / "graph.npz"), world / "split.npz"
    names, content = members(path)

    def read(data: bytes) -> None:
        if data[:1] == b"m":
            make_npz(path, names, data[1:])
        else:
            path.write_bytes(data[1:])
        Split.load(path).check(graph)

    return [b"m" + content, b"f" + path.read_bytes()], read


def raw_dataset(world: Path) -> tuple[list[bytes], Reader]:
    """The raw file of a named dataset, as PyG reads it."""
    import numpy as np

    from tokenphormer.graph import load_graph

    path = world / "Amazon" / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.parent.mkdir(parents=True)
    arrays: dict[str, Any] = {
        "adj_data": np.ones(2),
        "adj_indices": np.array([1, 0]),
        "adj_indptr": np.array([0, 1, 2, 2]),
    }
    arrays |= {
        "adj_shape": np.array([3, 3]),
        "attr_data": np.ones(3),
        "attr_indices": np.arange(3),
        "labels": np.arange(3),
    }
    arrays |= {"attr_indptr": np.arange(4), "attr_shape": np.array([3, 3])}
    np.savez(path, **arrays)
    names, content = members(path)

    def read(data: bytes) -> None:
        if data[:1] == b"m":
            make_npz(path, names, data[1:])
        else:
            path.write_bytes(data[1:])
        load_graph("photo", root=world)

    return [b"m" + content, b"f" + path.read_bytes()], read


def disk_manifest(world: Path) -> tuple[list[bytes], Reader]:
    """The manifest of a graph on disk, opened and verified."""
    from tokenphormer.graph.disk import open_graph

    path = world / "disk" / "graph.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        open_graph(world / "disk")
        open_graph(world / "disk", verify=True)

    return [path.read_bytes()], read


def disk_array(world: Path) -> tuple[list[bytes], Reader]:
    """One of the arrays of a graph on disk; the first byte says which."""
    from tokenphormer.graph.disk import open_graph

    paths = sorted((world / "disk").glob("*.npy"))
    whole = [path.read_bytes() for path in paths]

    def read(data: bytes) -> None:
        which = (data[0] if data else 0) % len(paths)
        paths[which].write_bytes(data[1:])
        try:
            open_graph(world / "disk", verify=True)
        finally:
            paths[which].write_bytes(whole[which])

    return [bytes([number]) + content for number, content in enumerate(whole)], read


def tensor_file(world: Path) -> tuple[list[bytes], Reader]:
    """A file of weights as it stands, read from disk and from memory."""
    from tokenphormer.errors import InputError
    from tokenphormer.tensor_files import load_tensors

    path = world / "run" / "model.safetensors"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        with suppress(InputError):
            load_tensors(path)
        load_tensors(path, data)

    return [path.read_bytes()], read


def checkpoint(world: Path) -> tuple[list[bytes], Reader]:
    """What a checkpoint says of itself, with the right hash."""
    import torch

    from tokenphormer.graph import Graph, Split
    from tokenphormer.tensor_files import load_tensors, save_tensors
    from tokenphormer.training.checkpoint import load_checkpoint, save_checkpoint
    from tokenphormer.training.loop import Labelled, Trainer
    from tokenphormer.training.settings import Config
    from tokenphormer.training.tokenphormer import TokenphormerMethod

    graph, split, cpu = Graph.load(world / "graph.npz"), Split.load(world / "split.npz"), torch.device("cpu")
    config = Config(hidden_channels=4, num_walks=1, walk_length=2, num_hops=0, max_epochs=1)
    method = TokenphormerMethod(graph, config, graph.num_classes, cpu)
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    trainer = Trainer(method, train, val, graph.num_classes, config, cpu)
    trainer.run()
    path, identity = world / "checkpoint.safetensors", {"config": "c", "split": "s"}
    save_checkpoint(path, trainer, identity)
    tensors, meta = load_tensors(path)

    def read(data: bytes) -> None:
        save_tensors(path, tensors, as_meta(data))
        load_checkpoint(path, trainer, identity)

    return [json.dumps(meta).encode()], read


def as_meta(data: bytes) -> dict[str, object]:
    """An input as the JSON inside a file of tensors; what is no object is put where a value would be."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = data.decode("utf-8", "replace")
    return value if isinstance(value, dict) else {"config": value, "settings": value, "graph": value}


def weights(world: Path) -> tuple[list[bytes], Reader]:
    """What a model says of itself, with the right hash."""
    from tokenphormer import TokenphormerClassifier
    from tokenphormer.tensor_files import load_tensors, save_tensors

    path = world / "run" / "model.safetensors"
    tensors, meta = load_tensors(path)

    def read(data: bytes) -> None:
        save_tensors(path, tensors, as_meta(data))
        TokenphormerClassifier.from_pretrained(path.parent, device="cpu")

    return [json.dumps(meta).encode()], read


def sgpm(world: Path) -> tuple[list[bytes], Reader]:
    """What a pre-trained SGPM says of itself, with the right hashes."""
    import torch

    from tokenphormer.graph import Graph
    from tokenphormer.sgpm.pretrain_run import load_pretrained
    from tokenphormer.tensor_files import load_tensors, save_tensors

    folder, graph, cpu = world / "sgpm", Graph.load(world / "graph.npz"), torch.device("cpu")
    tensors, meta = load_tensors(folder / "sgpm.safetensors")
    manifest = json.loads((folder / "sgpm.json").read_text())

    def read(data: bytes) -> None:
        save_tensors(folder / "sgpm.safetensors", tensors, as_meta(data))
        sha256 = hashlib.sha256((folder / "sgpm.safetensors").read_bytes()).hexdigest()
        (folder / "sgpm.json").write_text(json.dumps(manifest | {"sha256": sha256}))
        load_pretrained(folder, graph, cpu)

    return [json.dumps(meta).encode()], read


def sgpm_manifest(world: Path) -> tuple[list[bytes], Reader]:
    """The manifest of a pre-training."""
    import torch

    from tokenphormer.graph import Graph
    from tokenphormer.sgpm.pretrain_run import load_pretrained

    path, graph, cpu = world / "sgpm" / "sgpm.json", Graph.load(world / "graph.npz"), torch.device("cpu")

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load_pretrained(path.parent, graph, cpu)

    return [path.read_bytes()], read


def run_manifest(world: Path) -> tuple[list[bytes], Reader]:
    """The manifest of a run."""
    from tokenphormer.evaluation.run_folder import load_run

    path = world / "run" / "run.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load_run(path.parent, device="cpu")

    return [path.read_bytes()], read


def run_files(world: Path) -> tuple[list[bytes], Reader]:
    """The files of a run that was stopped, and gone on with: settings, split, a seed's metrics."""
    from tokenphormer.evaluation.runs import _claim, _found_before
    from tokenphormer.graph import Graph, Split
    from tokenphormer.training.settings import Config

    out, graph = world / "run", Graph.load(world / "graph.npz")
    (out / "run.json").unlink()
    config, split = Config.from_yaml(out / "config.yaml"), Split.load(out / "split.npz")
    metrics = out / "seeds" / "0" / "metrics.json"
    paths = [out / "config.yaml", out / "split.npz"]
    whole = [path.read_bytes() for path in paths]

    def read(data: bytes) -> None:
        which = (data[0] if data else 0) % 3
        if which == 2:
            _found_before(data[1:], metrics, graph, None)
            return
        paths[which].write_bytes(data[1:])
        try:
            _claim(out, split, config, 1, True)
        finally:
            paths[which].write_bytes(whole[which])

    return [bytes([number]) + content for number, content in enumerate([*whole, metrics.read_bytes()])], read


def node_map(world: Path) -> tuple[list[bytes], Reader]:
    """The explorer's map of the nodes, made anew from its members."""
    import numpy as np

    from tokenphormer.serve.projection import NodeMap, _load, _save

    path, nodes = world / "map.npz", np.arange(24)
    _save(path, NodeMap(nodes, np.full((24, 2), 0.5, np.float32)), "run")
    names, content = members(path)

    def read(data: bytes) -> None:
        make_npz(path, names, data)
        _load(path, "run", nodes)

    return [content], read


def rows(world: Path) -> tuple[list[bytes], Reader]:
    """Rows of the benchmark."""
    from tokenphormer.benchmark.rows import read_rows

    path = world / "rows.jsonl"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_rows([path])

    return [path.read_bytes()], read


def yaml_file(world: Path) -> tuple[list[bytes], Reader]:
    """Settings from a file."""
    from tokenphormer.errors import InputError
    from tokenphormer.sgpm.settings import SGPMSettings
    from tokenphormer.training.settings import Config

    path = world / "config.yaml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        try:
            SGPMSettings.from_yaml(path)
        except InputError:
            Config.from_yaml(path)

    return [(world / "run" / "config.yaml").read_bytes(), (world / "sgpm" / "config.yaml").read_bytes()], read


def overrides(world: Path) -> tuple[list[bytes], Reader]:
    """Settings from the command line, or a size of memory."""
    from tokenphormer.graph.external import parse_memory
    from tokenphormer.training.settings import Config

    lines = (world / "run" / "config.yaml").read_bytes().replace(b": ", b"=").splitlines()
    pairs = [line for line in lines if b"=" in line] + [b"walk_ratios=[0.1, 0.2, 0.3, 0.4]"]

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if text.startswith("memory "):
            parse_memory(text.removeprefix("memory "))
        else:
            Config().replace(Config.parse_overrides(text.splitlines()))

    return [*pairs, b"\n".join(pairs), b"memory 1.5GB"], read


def node_list(world: Path) -> tuple[list[bytes], Reader]:
    """Ids of nodes, one a line."""
    from tokenphormer.graph import Graph
    from tokenphormer.graph.tables import read_node_list

    graph, path = Graph.load(world / "graph.npz"), world / "nodes.txt"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_node_list(path, graph)

    return [b"n1\nn2\r\n\nn3"], read


def request(world: Path) -> tuple[list[bytes], Reader]:
    """Requests to the explorer: method and path, query, body. An answer beyond 499 is a failure."""
    from tokenphormer.serve.api import create_app
    from tokenphormer.serve.explorer import Explorer, open_run
    from tokenphormer.serve.guard import Guard
    from tokenphormer.serve.server import load
    from tokenphormer.serve.settings import ServeSettings

    app = create_app(Explorer(open_run(world / "run", "cpu")), ServeSettings(rate=1e9))
    load(app.state.service)
    guard = Guard(app, ServeSettings(rate=1e9))
    runner = asyncio.Runner()
    atexit.register(runner.close)  # a loop that is only forgotten is complained of

    async def ask(first: bytes, query: bytes, body: bytes) -> tuple[int, bytes]:
        method, _, path = first.decode("latin-1").partition(" ")
        headers = [
            (b"host", b"127.0.0.1"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.upper(),
        }
        scope |= {"path": path, "raw_path": path.encode(), "query_string": query, "headers": headers, "scheme": "http"}
        scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "root_path": ""}
        sent, answers = [False], list[Any]()

        async def receive() -> dict[str, Any]:
            if sent[0]:
                await asyncio.sleep(3600)
            sent[0] = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            answers.append(message)

        await guard(scope, receive, send)
        return answers[0]["status"], b"".join(answer.get("body", b"") for answer in answers)

    def read(data: bytes) -> None:
        status, answer = runner.run(ask(*parts_of(data, 3)))
        if status >= 500:
            raise AssertionError(f"answered {status}: {answer[:300]!r}")

    edge = b'{"source": "new", "target": "n1", "weight": 1.5}'
    new = b'{"nodes": [{"id": "new", "features": [0, 1, 2]}], "edges": [' + edge + b"]}"
    asked = [(b"GET /api/predict", b"id=n1", b""), (b"GET /api/nodes", b"query=n&status=wrong&limit=5&order=sure", b"")]
    asked += [
        (b"GET /api/neighbourhood", b"id=n2&hops=2&limit=20&walks=3", b""),
        (b"GET /api/confusion", b"part=test", b""),
    ]
    asked += [(b"POST /api/predict", b"", b'{"ids": ["n1", "n2"]}'), (b"POST /api/predict/new", b"", new)]
    return [BREAK.join(one) for one in asked], read


TARGETS: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        *(tables_csv, convert_csv, tables_parquet, convert_parquet, features, graph_file, split_file, raw_dataset),
        *(disk_manifest, disk_array, tensor_file, checkpoint, weights, sgpm, sgpm_manifest, run_manifest, run_files),
        *(node_map, rows, yaml_file, overrides, node_list, request),
    )
}


# -------------------------------------------------------------------- one input


@dataclass
class Judge:
    """Reads inputs within limits, counts them, and keeps one of each kind that goes wrong."""

    name: str
    read: Reader
    keep: Path
    inputs: int = 0
    taken: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0
    grown: int = 0

    def __call__(self, data: bytes) -> None:
        """Read one input."""
        from tokenphormer.errors import TokenphormerError

        self.inputs += 1
        (self.keep / f"{self.name}.current").write_bytes(data)
        before, began = peak_kilobytes(), time.perf_counter()
        faulthandler.dump_traceback_later(2 * SECONDS, exit=True)
        signal.alarm(SECONDS)
        try:
            self.read(data)
            self.taken += 1
        except TokenphormerError:
            pass
        except (Exception, SystemExit) as error:
            self.fail(data, error)
        finally:
            signal.alarm(0)
            faulthandler.cancel_dump_traceback_later()
        self.slowest = max(self.slowest, time.perf_counter() - began)
        grown = (peak_kilobytes() - before) >> 10
        self.grown = max(self.grown, grown)
        if grown > MEGABYTES:
            self.fail(data, MemoryError(f"{grown} MB for {len(data)} bytes"))

    def fail(self, data: bytes, error: BaseException) -> None:
        """Count a failure and keep its input, if it is the first of its kind."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "tokenphormer" in frame.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        kind = f"{type(error).__name__} at {place}"
        if kind not in self.failures:
            path = self.keep / f"{self.name}-{len(self.failures)}.bin"
            path.write_bytes(data)
            print(f"{self.name}: {kind}: {str(error)[:200]!r}; input kept in {path}", flush=True)
        self.failures[kind] = self.failures.get(kind, 0) + 1

    def report(self) -> str:
        """What came of it, as a line of JSON."""
        about = {"target": self.name, "inputs": self.inputs, "taken": self.taken, "failures": self.failures}
        return json.dumps(about | {"slowest_s": round(self.slowest, 2), "most_mb": self.grown})


def peak_kilobytes() -> int:
    """The most memory that this process has had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def changed(draw: random.Random, data: bytes, tokens: list[bytes]) -> bytes:
    """The input after one to six changes."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 6)):
        at, many = draw.randint(0, len(found)), draw.choice([1, 1, 2, 8, 64, 1024])
        kind = draw.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del found[at : at + many]
        elif kind == 2:
            found[at:at] = draw.choice(tokens)
        elif kind == 3:
            token = draw.choice(tokens)
            found[at : at + len(token)] = token
        elif kind == 4:
            found[at:at] = found[at : at + many]
        elif kind == 5:
            other = draw.randint(0, len(found))
            found[at : at + many] = found[other : other + many]
        elif kind == 6 and draw.random() < 0.3:
            del found[at:]
    return bytes(found[:LARGEST])


def words_of(seeds: list[bytes]) -> list[bytes]:
    """Tokens that change an input's meaning: odd ones, and the numbers and words of the seeds replaced by them."""
    return [*TOKENS, *{word for seed in seeds for word in seed[:4000].replace(b'"', b" ").split() if len(word) < 40}]


def with_hypothesis(judge: Judge, seeds: list[bytes], inputs: int, seed: int) -> None:
    """Inputs from hypothesis: it draws the seed of the changes, and what they begin from."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import seed as seeded
    from hypothesis import strategies as st

    tokens = words_of(seeds)
    number = 0
    while judge.inputs < inputs:
        number += 1

        @seeded(seed + number)
        @settings(
            max_examples=inputs - judge.inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(start=st.sampled_from(seeds), changes=st.integers(0, 2**48))
        def test(start: bytes, changes: int) -> None:
            judge(changed(random.Random(changes), start, tokens))

        test()


def with_atheris(judge: Judge, seeds: list[bytes], inputs: int, seed: int, corpus: Path) -> None:
    """Inputs from libFuzzer, half of them changed by it, half by us. It ends the process: the report is made here."""
    import atheris

    tokens = words_of(seeds)
    corpus.mkdir()
    for number, start in enumerate(seeds):
        (corpus / str(number)).write_bytes(start)

    def one(data: bytes) -> None:
        if judge.inputs < inputs:
            judge(data)
        if judge.inputs >= inputs:
            print(judge.report(), flush=True)
            os._exit(0)

    def mutate(data: bytes, largest: int, number: int) -> bytes:
        if number % 2:
            return bytes(atheris.Mutate(data, largest))
        return changed(random.Random(number), data, tokens)[:largest]

    options = [
        f"-seed={seed % 2**31 + 1}",
        f"-max_len={LARGEST}",
        "-rss_limit_mb=0",
        "-timeout=0",
        "-verbosity=0",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


# -------------------------------------------------------------------- processes


def hang(_signal: int, _frame: object) -> None:
    """The clock has run out."""
    raise HangError(f"more than {SECONDS} s")


def child(name: str, world: Path, keep: Path, inputs: int, seed: int, engine: str, again: Path | None) -> int:
    """Fuzz one target in this process."""
    warnings.simplefilter("ignore")
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["tokenphormer"], exclude=COMPILED):
            import tokenphormer.cli
            import tokenphormer.evaluation.runs
            import tokenphormer.graph.external
            import tokenphormer.serve.api  # noqa: F401
    here = world.parent / f"{name}-world"
    shutil.copytree(world, here)
    seeds, read = TARGETS[name](here)
    judge = Judge(name, read, keep)
    signal.signal(signal.SIGALRM, hang)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 30), used + (8 << 30)))  # the machine's last defence
    if again is not None:
        judge(again.read_bytes())
    else:
        for start in seeds:
            judge(start)
        if judge.taken != len(seeds):
            print(f"{name}: its own seeds are refused", flush=True)
            return 1
        if engine == "atheris":
            with_atheris(judge, seeds, inputs, seed, world.parent / f"{name}-corpus")
        else:
            with_hypothesis(judge, seeds, inputs, seed)
    print(judge.report(), flush=True)
    return 0


def main() -> int:
    """Fuzz all targets, one after the other, and add up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="in all")
    parser.add_argument("--targets", default=",".join(TARGETS), help="with commas between")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--engine", choices=["auto", "atheris", "hypothesis"], default="auto")
    parser.add_argument("--keep", type=Path, default=None, help="folder for inputs that fail; default: a new one")
    parser.add_argument("--again", type=Path, default=None, help="an input that was kept, for the one target named")
    parser.add_argument("--child", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    engine = options.engine
    if engine == "auto":
        engine = "atheris" if find_spec("atheris") else "hypothesis"
    targets = options.targets.split(",")
    if options.child is not None:
        return child(targets[0], options.child, options.keep, options.inputs, seed, engine, options.again)
    memory = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="tokenphormer-fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    keep = options.keep or Path(tempfile.mkdtemp(prefix="tokenphormer-fuzz-found-"))
    keep.mkdir(parents=True, exist_ok=True)
    # A cache would keep a file for every input that is a graph.
    os.environ |= {
        "XDG_CACHE_HOME": "/dev/null",
        "MPLCONFIGDIR": str(base),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    print(f"seed {seed}, engine {engine}, {len(targets)} targets", flush=True)
    try:
        (base / "world").mkdir()
        build_world(base / "world")
        found = [run_child(name, base, keep, options, seed, engine) for name in targets]
    finally:
        shutil.rmtree(base, ignore_errors=True)
    total, failures = sum(one["inputs"] for one in found), sum(len(one["failures"]) for one in found)
    print(
        f"{total} inputs to {len(found)} targets: {sum(one['taken'] for one in found)} taken, {failures} kinds of fault"
    )
    if not failures:
        for path in keep.glob("*.current"):
            path.unlink()
    return 1 if failures else 0


def run_child(name: str, base: Path, keep: Path, options: argparse.Namespace, seed: int, engine: str) -> dict[str, Any]:
    """One target in a process of its own; its report, with the end of the process if that was not as it should be."""
    share = -(-options.inputs // len(options.targets.split(",")))
    command = [sys.executable, __file__, "--child", str(base / "world"), "--targets", name, "--inputs", str(share)]
    command += ["--seed", str(seed), "--engine", engine, "--keep", str(keep)]
    command += ["--again", str(options.again)] if options.again else []
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *said, last = [line for line in done.stdout.splitlines() if line.strip()] or [""]
    for line in said:
        print(line)
    try:
        report: dict[str, Any] = json.loads(last)
    except ValueError:
        path = keep / f"{name}.current"
        ended = f"the process ended with {done.returncode}"
        words = "\n".join(line for line in done.stderr.splitlines() if not line.startswith("INFO: "))
        print(f"{last}\n{name}: {ended}, at the input in {path}\n{words[-2000:]}")
        report = {"target": name, "inputs": 0, "taken": 0, "failures": {ended: 1}, "slowest_s": 0, "most_mb": 0}
    print(
        f"{name:16} {report['inputs']:7} inputs, {report['taken']:6} taken, {len(report['failures'])} kinds of fault, "
        f"slowest {report['slowest_s']} s, at most {report['most_mb']} MB, {time.monotonic() - began:.0f} s in all",
        flush=True,
    )
    return report


if __name__ == "__main__":
    raise SystemExit(main())
