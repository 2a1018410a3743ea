"""One run: a method, a dataset, a split and values become a row. Test labels stay outside of what trains."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from tokenphormer.benchmark.methods import Values, build, complete, entry
from tokenphormer.benchmark.rows import Row, config_hash, origin
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.evaluation.metrics import evaluate
from tokenphormer.graph import Graph, Split, load_graph, make_split
from tokenphormer.graph.splits import stratified_split
from tokenphormer.training.fit import peak_memory
from tokenphormer.training.loop import Labelled, Progress, Trainer, predict

SEARCH_SPLITS = 100
"""Numbers of splits from here on are for searches; the reported ones are 0, 1, 2, …"""


@dataclass(frozen=True)
class Job:
    """What to run."""

    kind: str
    """`trial`: of a search, validation only. `final`: test accuracy too."""
    model: str
    dataset: str
    protocol: str
    split: int
    values: tuple[tuple[str, Any], ...]
    """What differs from the method's defaults."""
    seed: int = 0
    study: str = "main"
    """Which table or search it belongs to."""
    trial: int = -1
    sgpm: str = ""
    """A file of node vectors for the SGPM-token (.npy), with how they came about behind a `|`."""

    def row(self) -> Row:
        """The part of a row that says what was run."""
        about: Row = {name: getattr(self, name) for name in ("kind", "model", "dataset", "protocol", "split", "seed")}
        config = complete(entry(self.model), dict(self.values))
        about |= {"study": self.study, "config": config, "config_hash": config_hash(config), "trial": self.trial}
        if self.sgpm:
            about |= {"sgpm": self.sgpm.partition("|")[2]}
        return about


@cache
def dataset(name: str) -> Graph:
    """A graph, loaded once a process."""
    return load_graph(name)


def split_of(graph: Graph, protocol: str, number: int) -> Split:
    """A split by its number. Searches on graphs with fixed splits use random ones of the same shares."""
    if number >= SEARCH_SPLITS and protocol == "geom-gcn":
        return stratified_split(graph.y, number, train=0.48, val=0.32)
    if protocol == "two-stage":
        return make_split(graph, protocol, 2021 + number)
    return make_split(graph, protocol, number)


def blind(graph: Graph, split: Split) -> Graph:
    """The graph without any label: what is handed to methods."""
    del split
    return dataclasses.replace(graph, y=np.full(graph.num_nodes, -1, dtype=np.int64), splits=())


def run(job: Job, device: torch.device) -> Row:
    """Train and judge. What could not run is a row too, with its reason."""
    row = job.row()
    try:
        return row | _run(job, device) | origin() | {"status": "done"}
    except (ResourceError, torch.OutOfMemoryError, MemoryError) as error:
        torch.cuda.empty_cache()
        return row | origin() | {"status": "did not run", "reason": str(error).splitlines()[0][:300]}
    except InputError as error:
        return row | origin() | {"status": "failed", "reason": str(error).splitlines()[0][:300]}


def _run(job: Job, device: torch.device) -> Row:
    graph = dataset(job.dataset)
    split = split_of(graph, job.protocol, job.split)
    began = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    vectors = np.load(job.sgpm.partition("|")[0], allow_pickle=False) if job.sgpm else None
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    method, settings = build(
        job.model, blind(graph, split), graph.num_classes, train.nodes, train.classes, dict(job.values), device,
        job.seed, vectors,
    )  # fmt: skip
    preprocessing = time.perf_counter() - began
    parameters = sum(p.numel() for p in method.module.parameters())
    progress = Progress(epoch=1, best_epoch=1)
    if parameters:
        progress = Trainer(method, train, val, graph.num_classes, settings, device).run()
    probabilities = predict(method, np.concatenate([split.val, split.test]), settings, device)
    seconds = time.perf_counter() - began
    ends = np.split(probabilities, [len(split.val)])
    on_val = evaluate(ends[0], graph.y[split.val])
    row: Row = {
        "split_hash": split.hash,
        "val_accuracy": on_val.accuracy,
        "val_loss": progress.best_loss if parameters else None,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "seconds": seconds,
        "preprocessing_seconds": preprocessing,
        "peak_memory_bytes": peak_memory(device),
        "parameters": parameters,
        "time": time.time(),
    }
    if job.kind == "final":  # a search never sees this
        on_test = evaluate(ends[1], graph.y[split.test])
        row |= {"test_accuracy": on_test.accuracy, "test_macro_f1": on_test.macro_f1}
    return row


def values_tuple(values: Values) -> tuple[tuple[str, Any], ...]:
    """Values in a form that can be hashed and sent to another process."""
    return tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in values.items()))
