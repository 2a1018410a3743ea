"""One run: a method, a dataset, a split and values become a row. Test labels stay outside of what trains."""

from __future__ import annotations

import dataclasses
import gc
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer.benchmark.methods import Values, build, complete, entry
from tokenphormer.benchmark.rows import Row, config_hash, origin
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.evaluation.metrics import evaluate
from tokenphormer.graph import Graph, Split, load_graph, make_split
from tokenphormer.graph.disk import in_memory
from tokenphormer.graph.splits import stratified_split
from tokenphormer.hashing import digest, hash_order
from tokenphormer.training.fit import NO_MEMORY, peak_memory
from tokenphormer.training.loop import Labelled, Progress, Trainer, predict
from tokenphormer.training.tokenphormer import MOST_NODES

SEARCH_SPLITS = 100
"""Numbers of splits from here on are for searches; the reported ones are 0, 1, 2, …"""


@dataclass(frozen=True)
class OwnGraph:
    """A graph that is none of the datasets: where it lies, and what tells it from others of its name."""

    path: str
    hash: str
    """Of its content and of the splits that came with it."""
    protocol: str
    """`given` if splits came with it, else `stratified`."""

    @classmethod
    def of(cls, graph: Graph, path: str) -> OwnGraph:
        """What to know about a loaded graph."""
        whole = digest((), " ".join([graph.fingerprint, *(split.hash for split in graph.splits)]))
        return cls(path, whole, "given" if graph.splits else "stratified")


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
    judged: str = ""
    """How a trial is judged. Empty: by the highest accuracy on the validation nodes, which also stop the training.
    `held-out`: one half of them stops it, and the accuracy on the other counts (`halves`)."""
    own: OwnGraph | None = None
    """The graph, if it is no dataset; `dataset` is its name."""
    voters: int = 1
    """So many are trained, which differ in their seeds, and the mean of their probabilities counts."""

    def row(self) -> Row:
        """The part of a row that says what was run."""
        about: Row = {name: getattr(self, name) for name in ("kind", "model", "dataset", "protocol", "split", "seed")}
        config = complete(entry(self.model), dict(self.values))
        about |= {"study": self.study, "config": config, "config_hash": config_hash(config), "trial": self.trial}
        if self.sgpm:
            about |= {"sgpm": self.sgpm.partition("|")[2]}
        if self.judged:
            about |= {"judged": self.judged}
        if self.own:
            about |= {"graph": self.own.hash}
        if self.voters > 1:
            about |= {"voters": self.voters}
        return about


@cache
def dataset(source: str | OwnGraph) -> Graph:
    """A dataset by its name, or a graph of one's own; loaded once a process."""
    if isinstance(source, str):
        return load_graph(source)
    graph = load_graph(Path(source.path))
    if OwnGraph.of(graph, source.path) != source:
        raise InputError(f"{source.path}: was changed while it was benchmarked; put it back, or give another --out")
    # Batches from disk are for Tokenphormer alone: other methods, and Tokenphormer+'s recipes, work on the whole graph.
    return in_memory(graph) if graph.stored is not None and graph.num_nodes <= MOST_NODES else graph


def split_of(graph: Graph, protocol: str, number: int) -> Split:
    """A split by its number. Searches on graphs with fixed splits use random ones of the same shares.

    Where one split came with the graph, every reported number is that one, and runs differ in their seeds; searches
    deal its training and validation nodes anew, and no label of its test nodes is seen before the end.
    """
    if number >= SEARCH_SPLITS and protocol == "given" and len(graph.splits) == 1:
        return _dealt_anew(graph, graph.splits[0], number)
    if number >= SEARCH_SPLITS and protocol == "geom-gcn":
        return stratified_split(graph.y, number, train=0.48, val=0.32)
    if number >= SEARCH_SPLITS and protocol == "given":
        sizes = make_split(graph, protocol).sizes
        return stratified_split(graph.y, number, train=sizes[0] / sum(sizes), val=sizes[1] / sum(sizes))
    if protocol == "two-stage":
        return make_split(graph, protocol, 2021 + number)
    if protocol == "given" and len(graph.splits) == 1:
        return graph.splits[0]
    return make_split(graph, protocol, number)


def _dealt_anew(graph: Graph, given: Split, number: int) -> Split:
    """A split whose training and validation nodes are those of another one, dealt at random, class by class."""
    known = np.concatenate([given.train, given.val])
    y = np.full_like(graph.y, -1)
    y[known] = graph.y[known]
    train = stratified_split(y, number, train=len(given.train) / len(known), val=0.0).train
    return Split(train, np.setdiff1d(known, train), given.test, name=f"given-{number}")


def halves(split: Split, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The validation nodes of a search split: those that stop the training, and those that judge what it found."""
    order = hash_order(split.val, number)
    return order[::2], order[1::2]


def blind(graph: Graph) -> Graph:
    """The graph without any label: what is handed to methods."""
    return dataclasses.replace(graph, y=np.full(graph.num_nodes, -1, dtype=np.int64), splits=())


def run(job: Job, device: torch.device) -> Row:
    """Train and judge. What could not run is a row too, with its reason; what the data lacks is an error."""
    graph = dataset(job.own or job.dataset)
    split = split_of(graph, job.protocol, job.split)
    vectors = np.load(job.sgpm.partition("|")[0], allow_pickle=False) if job.sgpm else None
    row = job.row() | {"split_hash": split.hash, "device": device.type}
    try:
        row |= _run(job, graph, split, device, vectors) | {"status": "done"}
    except (RuntimeError, MemoryError) as error:
        if not _machine_cannot(error):
            raise
        row |= {"status": "did not run", "reason": _first_line(error)}
    except InputError as error:
        row |= {"status": "failed", "reason": _first_line(error)}
    return row | origin() | {"time": time.time()}


def _machine_cannot(error: Exception) -> bool:
    """Whether a method asks for more than there is, rather than being broken; torch has no one error for it."""
    told = isinstance(error, ResourceError | MemoryError | torch.OutOfMemoryError)
    return told or any(words in str(error) for words in NO_MEMORY)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]


def forget_peak(device: torch.device) -> None:
    """Runs that share a process are not to be charged with the memory of those before them."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # Linux alone has it
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _run(job: Job, graph: Graph, split: Split, device: torch.device, vectors: NDArray[np.float32] | None) -> Row:
    forget_peak(device)
    began = time.perf_counter()
    stopping, judging = halves(split, job.split) if job.judged else (split.val, split.val)
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, stopping))
    asked = np.concatenate([judging, split.test])
    voters = [_voter(job, seed, graph, train, val, asked, device, vectors) for seed in _seeds(job)]
    probabilities = (
        np.mean([voter.probabilities for voter in voters], axis=0) if job.voters > 1 else voters[0].probabilities
    )
    seconds = time.perf_counter() - began
    ends = np.split(probabilities, [len(judging)])
    on_val = evaluate(ends[0], graph.y[judging])
    losses = [voter.progress.best_loss for voter in voters if voter.parameters]
    row: Row = {
        "val_accuracy": on_val.accuracy,
        "val_loss": sum(losses) / len(losses) if losses else None,
        "epochs": sum(voter.progress.epoch for voter in voters),
        "best_epoch": voters[0].progress.best_epoch,
        "seconds": seconds,
        "preprocessing_seconds": sum(voter.preprocessing for voter in voters),
        "peak_memory_bytes": peak_memory(device),
        "parameters": sum(voter.parameters for voter in voters),
    }
    if job.kind == "final":  # a search never sees this
        on_test = evaluate(ends[1], graph.y[split.test])
        row |= {"test_accuracy": on_test.accuracy, "test_macro_f1": on_test.macro_f1}
    return row


def _seeds(job: Job) -> list[int]:
    """The first voter is what a run without votes would be; seeds of splits are far below 1000."""
    return [job.seed + 1000 * number for number in range(job.voters)]


@dataclass(frozen=True)
class Voter:
    """A method that was trained."""

    probabilities: NDArray[np.float32]
    progress: Progress
    parameters: int
    preprocessing: float
    """Seconds."""


def _voter(
    job: Job, seed: int, graph: Graph, train: Labelled, val: Labelled, asked: NDArray[np.int64], device: torch.device,
    vectors: NDArray[np.float32] | None,
) -> Voter:  # fmt: skip
    began = time.perf_counter()
    method, settings = build(
        job.model, blind(graph), graph.num_classes, train.nodes, train.classes, dict(job.values), device, seed, vectors
    )
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    preprocessing = time.perf_counter() - began
    parameters = sum(p.numel() for p in method.module.parameters())
    progress = Progress(epoch=1, best_epoch=1)
    if parameters:
        progress = Trainer(method, train, val, graph.num_classes, settings, device).run()
    return Voter(predict(method, asked, settings, device), progress, parameters, preprocessing)


def values_tuple(values: Values) -> tuple[tuple[str, Any], ...]:
    """Values in a form that can be hashed and sent to another process."""
    return tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in values.items()))
