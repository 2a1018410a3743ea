"""Runs: train with one or several seeds into a run folder (`run_folder.py` says what lies in it), and predict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer import distributed
from tokenphormer.classifier import TokenphormerClassifier
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.evaluation.prediction_files import Piece, scored_nodes, write_pieces
from tokenphormer.evaluation.run_folder import (
    MANIFEST,
    Summary,
    calibration_of,
    load_graph_for,
    load_run,
    metrics_by_part,
    write_predictions,
    write_run,
    write_text,
)
from tokenphormer.files import LOCK, atomic_path, is_partial, only_process, parse_json
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.tables import read_node_list
from tokenphormer.hashing import digest
from tokenphormer.sgpm import PretrainedSGPM
from tokenphormer.sgpm.pretrain_run import MANIFEST as SGPM_MANIFEST
from tokenphormer.training.fit import Fitted, fit_tokenphormer
from tokenphormer.training.loop import Trainer, in_pieces, predict
from tokenphormer.training.settings import Config
from tokenphormer.walks.sampling import check_device, choose_device

PREDICTED_AT_ONCE = 1 << 16
"""Nodes of a graph on disk whose predictions are held at a time."""
READ_AT_ONCE = 1 << 10
"""Nodes of a graph on disk that a CPU scores together: the rows of more leave its caches, and cost a third more."""
NEEDED = ("seed", "epochs", "seconds", "peak_memory_bytes", "parameters", "attention")
"""What the files of a run take from the metrics of a seed."""
HOW_TO_GO_ON = "run the same command with --resume to go on"


def train_run(
    graph: Graph,
    graph_source: str,
    split: Split,
    config: Config,
    out: Path,
    device: torch.device,
    *,
    seeds: int = 1,
    resume: bool = False,
    compare: bool = False,
    command: str = "",
    sgpm: PretrainedSGPM | None = None,
    after_epoch: Callable[[int, Trainer], None] = lambda _seed, _trainer: None,
    say: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Train with `seeds` seeds, beginning at the config's, and write the run folder `out`.

    Of several processes (torchrun) all train and the first writes. Where torchrun may start them again, a run that is
    there already is gone on with.
    """
    resume = resume or distributed.may_restart()
    distributed.check_same({"sgpm": "" if sgpm is None else sgpm.hash}, device)
    with ExitStack() as held:
        distributed.on_first(lambda: held.enter_context(only_process(out)), device)
        distributed.on_first(lambda: _claim(out, split, config, seeds, resume), device)
        return _train(graph, graph_source, split, config, out, device, seeds, compare, command, sgpm, after_epoch, say)


def _train(
    graph: Graph,
    graph_source: str,
    split: Split,
    config: Config,
    out: Path,
    device: torch.device,
    seeds: int,
    compare: bool,
    command: str,
    sgpm: PretrainedSGPM | None,
    after_epoch: Callable[[int, Trainer], None],
    say: Callable[[str], None],
) -> Summary:
    """Train into a folder that is claimed."""
    try:
        done = []
        vectors = None if sgpm is None else sgpm.vectors(graph, config.sgpm_token, device)
        for number in range(seeds):
            seeded = config.replace({"seed": config.seed + number})
            folder = out / "seeds" / str(seeded.seed)
            done.append(_one_seed(graph, split, seeded, folder, device, number, sgpm, vectors, after_epoch, say))
        return _finish(graph, graph_source, split, config, out, device, done, compare, command, sgpm, say)
    except InterruptedTrainingError as stop:
        raise InterruptedTrainingError(f"{stop}; {HOW_TO_GO_ON}", stop.signal) from stop
    except KeyboardInterrupt as stop:  # while something else than the epochs was going on
        raise InterruptedTrainingError(f"stopped; {HOW_TO_GO_ON}") from stop
    except (InputError, ResourceError):  # settings may be to blame for too little memory too
        if distributed.is_first():
            _let_go(out)
        raise


def _finish(
    graph: Graph,
    graph_source: str,
    split: Split,
    config: Config,
    out: Path,
    device: torch.device,
    done: list[dict[str, Any]],
    compare: bool,
    command: str,
    sgpm: PretrainedSGPM | None,
    say: Callable[[str], None],
) -> Summary:
    """Choose the best seed and write everything but the seeds' own files."""
    best = max(range(len(done)), key=lambda i: done[i]["metrics"]["val"]["accuracy"])
    comparison = []
    if compare:
        from tokenphormer.evaluation.compare import yardsticks  # here, for it brings the whole of PyG

        comparison = yardsticks(graph, split, device, say)
    chosen = out / "seeds" / str(config.seed + best)
    summary = Summary(
        folder=out,
        test_accuracy=[d["metrics"]["test"]["accuracy"] for d in done if "test" in d["metrics"]],
        test_macro_f1=[d["metrics"]["test"]["macro_f1"] for d in done if "test" in d["metrics"]],
        val_accuracy=[d["metrics"]["val"]["accuracy"] for d in done],
        epochs=[d["epochs"] for d in done],
        seconds=sum(d["seconds"] for d in done),
        peak_memory_bytes=max(d["peak_memory_bytes"] for d in done),
        comparison=comparison,
        calibration=done[best].get("calibration"),
    )
    write = partial(write_run, out, graph, graph_source, split, config, chosen, summary, done[best], command, sgpm)
    distributed.on_first(write, device)
    return summary


def _claim(out: Path, split: Split, config: Config, seeds: int, resume: bool) -> None:
    """Take the folder, or go on in it; a folder with anything else in it is left alone."""
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: expected at least 1")
    started = (out / "config.yaml").exists()
    # What a kill leaves of the very first file does not make the folder somebody else's.
    if any(path.name != LOCK and not is_partial(path) for path in out.iterdir()):
        if (out / MANIFEST).exists():
            raise InputError(f"{out}: holds a finished run; choose another folder with --out")
        if not started:
            raise InputError(f"{out}: is not empty and holds no run; choose another folder with --out")
        if not resume:
            raise InputError(f"{out}: holds a run that was stopped; add --resume to go on, or choose another --out")
        if Config.from_yaml(out / "config.yaml") != config:
            raise InputError(f"{out}: was begun with other settings than these; its config.yaml has them")
        if (out / "split.npz").exists() and Split.load(out / "split.npz").hash != split.hash:
            raise InputError(f"{out}: was begun with another split")
    for left in filter(is_partial, out.rglob(".*")):  # what a kill left half-written
        left.unlink(missing_ok=True)
    if not started:
        write_text(out / "config.yaml", config.to_yaml())
    split.save(out / "split.npz")


def _let_go(out: Path) -> None:
    """Give the folder back if nothing was trained in it, so that the mended command can have it."""
    if any(path.is_file() for path in (out / "seeds").rglob("*")):
        return
    for name in ("config.yaml", "split.npz"):
        (out / name).unlink(missing_ok=True)
    for folder in (*(out / "seeds").glob("*"), out / "seeds", out):
        with suppress(OSError):  # there may be something of somebody else's in it
            folder.rmdir()


def _one_seed(
    graph: Graph,
    split: Split,
    config: Config,
    folder: Path,
    device: torch.device,
    number: int,
    sgpm: PretrainedSGPM | None,
    vectors: NDArray[np.float32] | None,
    after_epoch: Callable[[int, Trainer], None],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train one seed, or read what was found if it is done already."""
    finished = folder / "metrics.json"
    done = distributed.file_of_first(finished, device)
    checkpoint = folder / "checkpoint.safetensors"
    if done is not None:
        found_before = _found_before(done, finished, graph, sgpm)
        if distributed.is_first():
            checkpoint.unlink(missing_ok=True)  # a kill came between the last file and this
        return found_before
    if distributed.is_first():
        folder.mkdir(parents=True, exist_ok=True)
    logged = 0

    def after(trainer: Trainer) -> None:
        """Log the newest epoch as a line of JSON; the first time, also those that a resumed run had before."""
        nonlocal logged
        if not distributed.is_first():
            return
        lines = [json.dumps(row) + "\n" for row in trainer.progress.history]
        if len(lines) > logged:  # else a loss that is no number has ended it
            with (folder / "history.jsonl").open("a" if logged else "w", encoding="utf-8") as file:
                file.writelines(lines[logged:])
            logged = len(lines)
        after_epoch(number, trainer)

    fitted = fit_tokenphormer(
        graph,
        split,
        config,
        device,
        sgpm=vectors,
        checkpoint=checkpoint,
        after_epoch=after,
        say=say,
    )
    classifier = as_classifier(fitted, graph, split, config, sgpm)
    scored = scored_nodes(graph, split)
    if scored is None:
        probabilities = classifier.predict_proba()
    else:
        probabilities = np.concatenate([found for _, found in _pieces(classifier, graph, scored)])
    metrics = metrics_by_part(graph, split, probabilities)
    found = {
        "seed": config.seed,
        "graph": graph.fingerprint,
        "sgpm": None if sgpm is None else sgpm.hash,
        "metrics": {part: value.to_json() for part, value in metrics.items()},
        "calibration": calibration_of(graph, split, probabilities, fitted.method.temperature, config),
        "epochs": fitted.progress.epoch,
        "best_epoch": fitted.progress.best_epoch,
        "stopped": fitted.progress.stopped,
        "seconds": fitted.seconds,
        "peak_memory_bytes": fitted.peak_memory_bytes,
        "parameters": sum(p.numel() for p in fitted.method.module.parameters()),
        "attention": _attention(fitted, split),
    }

    def write() -> None:
        classifier.save_pretrained(folder, with_sgpm=False)  # the run has it once, for all seeds
        write_text(folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in fitted.progress.history))
        with atomic_path(folder / "probabilities.npy") as temporary, temporary.open("wb") as file:
            np.save(file, probabilities)
        write_text(finished, json.dumps(found, indent=1))
        checkpoint.unlink(missing_ok=True)

    distributed.on_first(write, device)
    return found


def _found_before(text: bytes, path: Path, graph: Graph, sgpm: PretrainedSGPM | None) -> dict[str, Any]:
    """What a seed that is done already found, if it was trained on the same things."""
    folder = path.parent
    try:
        loaded: dict[str, Any] = parse_json(text)
        same_graph = loaded["graph"] == graph.fingerprint
        same_sgpm = loaded["sgpm"] == (None if sgpm is None else sgpm.hash)
        _ = loaded["metrics"]["val"]["accuracy"], [loaded[key] for key in NEEDED]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not the metrics of a seed; delete {folder} to train it anew") from error
    if not same_graph:
        raise InputError(f"{folder}: was trained on another graph than this; choose another folder with --out")
    if not same_sgpm:
        raise InputError(f"{folder}: was trained with another SGPM, or without; choose another folder with --out")
    return loaded


def as_classifier(
    fitted: Fitted, graph: Graph, split: Split, config: Config, sgpm: PretrainedSGPM | None = None
) -> TokenphormerClassifier:
    """A trained model with the classifier's habits."""
    classifier = TokenphormerClassifier(**config.__dict__, device=str(fitted.method.source.device), sgpm=sgpm)
    classifier._take(fitted, graph, split, config, sgpm)
    return classifier


def _attention(fitted: Fitted, split: Split) -> dict[str, float]:
    """Mean readout weight of each kind of token over the test (or validation) nodes, summed within the kind."""
    method = fitted.method
    kinds = method.source.token_kinds[1:]
    nodes = torch.tensor(split.test if len(split.test) else split.val, device=method.source.device)
    method.module.eval()
    method.begin_prediction(0)
    sums = in_pieces(lambda piece: method.scores_and_attention(piece)[1].sum(dim=0), nodes, method.micro_batch)
    total = torch.stack(sums).sum(dim=0)
    weights: dict[str, float] = {}
    for kind, weight in zip(kinds, (total / max(1, len(nodes))).tolist(), strict=True):
        weights[kind] = weights.get(kind, 0.0) + weight
    return weights


def predict_run(
    folder: Path,
    source: str | None,
    out: Path,
    ids: Path | None,
    device: str,
    directed: bool | None,
    overwrite: bool,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[int, str]:
    """Predict with a finished run into a CSV or Parquet file; how many nodes, and of which graph.

    `directed` None: as in training.
    """
    where = check_device(choose_device(device))
    classifier, manifest = load_run(folder, device=device)
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"{out}: expected a name that ends in .csv or .parquet")

    def check_free() -> None:
        if out.exists() and not overwrite:
            raise InputError(f"{out}: exists already; choose another name, or say --force")

    distributed.on_first(check_free, where)
    graph = load_graph_for(folder, classifier, manifest, source, directed, say=say)
    nodes = None if ids is None else np.array(read_node_list(ids, graph), dtype=np.int64)
    same = {"run": json.dumps(manifest["files"]), "graph": graph.fingerprint, "nodes": digest([("nodes", nodes)])}
    distributed.check_same(same, where)
    names = tuple(classifier.classes_)
    if graph.stored is not None and distributed.size() == 1:
        chosen = np.arange(graph.num_nodes) if nodes is None else nodes
        write_pieces(out, graph, _pieces(classifier, graph, chosen), names)
        return len(chosen), graph.name
    probabilities = classifier.predict_proba(graph, nodes)
    write = partial(write_predictions, out, graph, probabilities, nodes=nodes, class_names=names)
    distributed.on_first(write, where)
    return len(probabilities), graph.name


def _pieces(classifier: TokenphormerClassifier, graph: Graph, nodes: NDArray[np.int64]) -> Iterator[Piece]:
    """The predictions of many nodes, some at a time."""
    method, _ = classifier._method_for(graph)
    if method.source.device.type == "cpu" and not method.passes_scores:  # else all nodes are scored for every piece
        method.micro_batch = min(method.micro_batch, READ_AT_ONCE)
    for first in range(0, max(1, len(nodes)), PREDICTED_AT_ONCE):
        some = nodes[first : first + PREDICTED_AT_ONCE]
        yield some, predict(method, some, classifier.config_, method.source.device)


def free_folder(parent: Path, name: str, resume: bool) -> Path:
    """parent/NAME, or parent/NAME-2 and so on, the first that is free; to resume, the last that holds no finished run.

    Nor a finished pre-training. If all do, it is the last one.
    """
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "graph"
    taken: list[Path] = []
    while (folder := parent / (safe if not taken else f"{safe}-{len(taken) + 1}")).exists():
        taken.append(folder)
    if not resume:
        return folder
    finished = (MANIFEST, SGPM_MANIFEST)
    unfinished = [each for each in taken if not any((each / name).exists() for name in finished)]
    return (unfinished or taken or [folder])[-1]
