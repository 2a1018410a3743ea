"""A run folder: what `tokenphormer train` writes and `tokenphormer predict` reads.

run.json            the manifest, written last: versions, hashes of the files below; its presence says "whole"
config.yaml         every setting
split.npz           the split, with its hash
metrics.json        of every seed, and mean ± std
predictions.csv     one line a node, with the user's own ids and class names (of the best seed by validation)
model.safetensors   the weights of that seed (`TokenphormerClassifier.from_pretrained` reads the folder)
report.html, model_card.md
seeds/K/            model.safetensors, history.jsonl, metrics.json of each seed
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer.classifier import WEIGHTS_FILE, TokenphormerClassifier
from tokenphormer.errors import InputError, InterruptedTrainingError
from tokenphormer.evaluation import plots
from tokenphormer.evaluation.breakdown import node_homophily
from tokenphormer.evaluation.compare import yardsticks
from tokenphormer.evaluation.metrics import Metrics, evaluate
from tokenphormer.evaluation.report import Report, write_report
from tokenphormer.files import atomic_path
from tokenphormer.graph import Graph, Split, load_graph
from tokenphormer.graph.splits import PARTS
from tokenphormer.graph.tables import read_node_list
from tokenphormer.training.fit import Fitted, fit_tokenphormer
from tokenphormer.training.loop import Trainer, in_pieces
from tokenphormer.training.settings import Config

FORMAT = 1
MANIFEST = "run.json"
HOW_TO_GO_ON = "run the same command with --resume to go on"


@dataclass(frozen=True)
class Summary:
    """What a run found, in a few numbers."""

    folder: Path
    test_accuracy: list[float]
    test_macro_f1: list[float]
    val_accuracy: list[float]
    epochs: list[int]
    seconds: float
    peak_memory_bytes: int
    comparison: list[tuple[str, float]]

    def accuracy_text(self) -> str:
        """Mean ± std over the seeds, for people."""
        values, part = self.test_accuracy, "test accuracy"
        if not values:
            values, part = self.val_accuracy, "validation accuracy (the split has no test nodes)"
        spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        return f"{np.mean(values):.2%}{spread} {part}" + (f", {len(values)} seeds" if len(values) > 1 else "")

    def to_json(self) -> dict[str, object]:
        """One machine-readable value."""
        return {
            "folder": str(self.folder),
            "seeds": len(self.val_accuracy),
            "test_accuracy": _mean(self.test_accuracy),
            "test_accuracy_std": _std(self.test_accuracy),
            "test_macro_f1": _mean(self.test_macro_f1),
            "val_accuracy": _mean(self.val_accuracy),
            "epochs": self.epochs,
            "seconds": self.seconds,
            "peak_memory_mb": self.peak_memory_bytes / 1e6,
            "comparison": dict(self.comparison),
        }


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _std(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


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
    after_epoch: Callable[[int, Trainer], None] = lambda _seed, _trainer: None,
    say: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Train with `seeds` seeds, beginning at the config's, and write the run folder `out`."""
    _claim(out, split, config, seeds, resume)
    try:
        done = []
        for number in range(seeds):
            seeded = config.replace({"seed": config.seed + number})
            folder = out / "seeds" / str(seeded.seed)
            done.append(_one_seed(graph, split, seeded, folder, device, number, after_epoch, say))
        return _finish(graph, graph_source, split, config, out, device, done, compare, command)
    except InterruptedTrainingError as stop:
        raise InterruptedTrainingError(f"{stop}; {HOW_TO_GO_ON}", stop.signal) from stop
    except KeyboardInterrupt as stop:  # while something else than the epochs was going on
        raise InterruptedTrainingError(f"stopped; {HOW_TO_GO_ON}") from stop
    except InputError:
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
) -> Summary:
    """Choose the best seed and write everything but the seeds' own files."""
    best = max(range(len(done)), key=lambda i: done[i]["metrics"]["val"]["accuracy"])
    comparison = yardsticks(graph, split, device) if compare else []
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
    )
    _write_rest(out, graph, graph_source, split, config, chosen, summary, done[best], command)
    return summary


def _claim(out: Path, split: Split, config: Config, seeds: int, resume: bool) -> None:
    """Take the folder, or go on in it; a folder with anything else in it is left alone."""
    if seeds < 1:
        raise InputError(f"--seeds {seeds}: expected at least 1")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; expected the name of a folder to write")
    started = (out / "config.yaml").exists()
    if out.exists() and any(out.iterdir()):
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
        for left in out.rglob(".*.partial"):  # what a kill left half-written
            left.unlink(missing_ok=True)
    else:
        _write_text(out / "config.yaml", config.to_yaml())
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
    after_epoch: Callable[[int, Trainer], None],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train one seed, or read what was found if it is done already."""
    finished = folder / "metrics.json"
    if finished.exists():
        try:
            loaded: dict[str, Any] = json.loads(finished.read_text(encoding="utf-8"))
            same_graph = loaded["graph"] == graph.fingerprint
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{finished}: not the metrics of a seed; delete {folder} to train it anew") from error
        if not same_graph:
            raise InputError(f"{folder}: was trained on another graph than this; choose another folder with --out")
        return loaded
    checkpoint = folder / "checkpoint.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    fitted = fit_tokenphormer(
        graph,
        split,
        config,
        device,
        checkpoint=checkpoint,
        after_epoch=lambda trainer: after_epoch(number, trainer),
        say=say,
    )
    classifier = as_classifier(fitted, graph, split, config)
    probabilities = classifier.predict_proba()
    metrics = _metrics(graph, split, probabilities)
    classifier.save_pretrained(folder)
    _write_text(folder / "history.jsonl", "".join(json.dumps(row) + "\n" for row in fitted.progress.history))
    with atomic_path(folder / "probabilities.npy") as temporary, temporary.open("wb") as file:
        np.save(file, probabilities)
    found = {
        "seed": config.seed,
        "graph": graph.fingerprint,
        "metrics": {part: value.to_json() for part, value in metrics.items()},
        "epochs": fitted.progress.epoch,
        "best_epoch": fitted.progress.best_epoch,
        "stopped": fitted.progress.stopped,
        "seconds": fitted.seconds,
        "peak_memory_bytes": fitted.peak_memory_bytes,
        "parameters": sum(p.numel() for p in fitted.method.module.parameters()),
        "attention": _attention(fitted, split),
    }
    _write_text(finished, json.dumps(found, indent=1))
    checkpoint.unlink(missing_ok=True)
    return found


def as_classifier(fitted: Fitted, graph: Graph, split: Split, config: Config) -> TokenphormerClassifier:
    """A trained model with the classifier's habits."""
    classifier = TokenphormerClassifier(**config.__dict__, device=str(fitted.method.source.device))
    classifier._take(fitted, graph, split, config)
    return classifier


def _metrics(graph: Graph, split: Split, probabilities: NDArray[np.float32]) -> dict[str, Metrics]:
    parts = {part: getattr(split, part) for part in PARTS}
    return {part: evaluate(probabilities[nodes], graph.y[nodes]) for part, nodes in parts.items() if len(nodes)}


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


def _write_rest(
    out: Path,
    graph: Graph,
    graph_source: str,
    split: Split,
    config: Config,
    chosen: Path,
    summary: Summary,
    found: dict[str, Any],
    command: str,
) -> None:
    probabilities = np.load(chosen / "probabilities.npy", allow_pickle=False)
    write_predictions(out / "predictions.csv", graph, probabilities, split=split)
    _write_text(out / "metrics.json", json.dumps(summary.to_json() | {"best_seed": found["seed"]}, indent=1))
    with atomic_path(out / WEIGHTS_FILE) as temporary:
        shutil.copyfile(chosen / WEIGHTS_FILE, temporary)
    nodes = split.test if len(split.test) else split.val
    history = _history(chosen)
    metrics = _metrics(graph, split, probabilities)
    environment = environment_of()
    write_report(
        out / "report.html",
        Report(
            title=f"Tokenphormer on {graph.name}",
            graph={
                "nodes": f"{graph.num_nodes:,}",
                "edges": f"{graph.num_edges:,}",
                "features": str(graph.num_features),
            },
            settings=config.to_dict(),
            split_name=split.name,
            split_sizes=split.sizes,
            split_hash=split.hash,
            metrics=metrics,
            class_names=graph.class_names,
            nodes=nodes,
            probabilities=probabilities[nodes],
            labels=graph.y[nodes],
            degree=graph.degree,
            homophily=node_homophily(graph),
            history=history,
            attention=found["attention"],
            comparison=summary.comparison,
            seeds=summary.test_accuracy,
            seconds=summary.seconds,
            peak_memory_bytes=summary.peak_memory_bytes,
            environment=environment,
            command=command,
        ),
    )
    _write_text(out / "model_card.md", _model_card(graph, graph_source, split, config, summary, found, metrics))
    files = [
        "config.yaml",
        "split.npz",
        "metrics.json",
        "predictions.csv",
        WEIGHTS_FILE,
        "report.html",
        "model_card.md",
    ]
    manifest = {
        "format": FORMAT,
        "graph": {
            "source": graph_source,
            "name": graph.name,
            "directed": graph.directed,
            "fingerprint": graph.fingerprint,
        },
        "split": split.hash,
        "config": config.hash,
        "command": command,
        "environment": environment,
        "files": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in files},
    }
    _write_text(out / MANIFEST, json.dumps(manifest, indent=1))


def write_predictions(
    path: Path,
    graph: Graph,
    probabilities: NDArray[np.float32],
    *,
    nodes: NDArray[np.int64] | None = None,
    split: Split | None = None,
    class_names: tuple[str, ...] | None = None,
) -> None:
    """One line a node: id, label if known, split, prediction, its probability, and every class's. CSV or Parquet."""
    import pandas as pd

    chosen = np.arange(graph.num_nodes) if nodes is None else nodes
    names = np.array(class_names or graph.class_names)
    columns: dict[str, Any] = {"id": [graph.id_of(int(node)) for node in chosen]}
    columns["label"] = np.array([*graph.class_names, ""])[graph.y[chosen]]
    if split is not None:
        part = np.full(graph.num_nodes, "", dtype="<U5")
        for name in PARTS:
            part[getattr(split, name)] = name
        columns["split"] = part[chosen]
    columns["predicted"] = names[probabilities.argmax(axis=1)]
    columns["probability"] = probabilities.max(axis=1)
    frame = pd.DataFrame(columns | {f"p:{name}": probabilities[:, c] for c, name in enumerate(names)})
    with atomic_path(path) as temporary:
        if path.suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        else:
            frame.to_csv(temporary, index=False)


def load_run(folder: str | Path, *, device: str = "auto") -> tuple[TokenphormerClassifier, dict[str, Any]]:
    """The trained classifier and the manifest of a finished run; files that were changed are refused."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.exists():
        what = "holds no finished run (run.json is missing)" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: {what}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known = manifest["format"]
        if known == FORMAT:
            expected = manifest["files"][WEIGHTS_FILE]
            _ = [manifest["graph"][key] for key in ("source", "directed", "fingerprint")]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{path}: not a manifest of a run ({error})") from error
    if known != FORMAT:
        raise InputError(f"{path}: a run of format {known}; this version reads format {FORMAT}")
    weights = folder / WEIGHTS_FILE
    if not weights.is_file() or hashlib.sha256(weights.read_bytes()).hexdigest() != expected:
        raise InputError(f"{weights}: is missing or not the file that the run wrote (its SHA-256 is another)")
    return TokenphormerClassifier.from_pretrained(folder, device=device), manifest


def predict_run(
    folder: Path, source: str | None, out: Path, ids: Path | None, device: str, directed: bool, overwrite: bool
) -> tuple[int, str]:
    """Predict with a finished run into a CSV or Parquet file; how many nodes, and of which graph."""
    classifier, manifest = load_run(folder, device=device)
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"{out}: expected a name that ends in .csv or .parquet")
    if out.exists() and not overwrite:
        raise InputError(f"{out}: exists already; choose another name, or say --force")
    own = manifest["graph"]
    graph = load_graph(source or own["source"], directed=own["directed"] if source is None else directed)
    if source is None and graph.fingerprint != own["fingerprint"]:
        raise InputError(
            f"{own['source']}: is not the graph that the run was trained on any more; name it as GRAPH to predict on it"
        )
    nodes = None if ids is None else np.array(read_node_list(ids, graph), dtype=np.int64)
    probabilities = classifier.predict_proba(graph, nodes)
    write_predictions(out, graph, probabilities, nodes=nodes, class_names=tuple(classifier.classes_))
    return len(probabilities), graph.name


def write_plots(folder: Path, graph: Graph) -> None:
    """The main figures of the best seed as PNG files in `folder`/plots."""
    split = Split.load(folder / "split.npz")
    chosen = folder / "seeds" / str(json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["best_seed"])
    probabilities = np.load(chosen / "probabilities.npy", allow_pickle=False)
    nodes = split.test if len(split.test) else split.val
    correct = probabilities[nodes].argmax(axis=1) == graph.y[nodes]
    metrics = evaluate(probabilities[nodes], graph.y[nodes])
    figures = {
        "learning_curves": plots.learning_curves(_history(chosen)),
        "confusion_matrix": plots.confusion_matrix_plot(metrics, graph.class_names),
        "accuracy_by_degree": plots.accuracy_by_degree(graph.degree[nodes], correct),
    }
    for name, figure in figures.items():
        plots.save_figure(figure, folder / "plots" / f"{name}.png")


def _history(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]


def free_folder(parent: Path, name: str, resume: bool) -> Path:
    """parent/NAME, or parent/NAME-2 and so on, the first that is free; to resume, the last that is not."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or "graph"
    number, last = 1, parent / safe
    while (folder := parent / (safe if number == 1 else f"{safe}-{number}")).exists():
        number, last = number + 1, folder
    return last if resume else folder


def environment_of() -> dict[str, str]:
    """Versions and hardware."""
    packages = ("tokenphormer", "torch", "numpy", "scipy", "numba", "scikit-learn")
    found = {"python": platform.python_version(), "platform": platform.platform()}
    found |= {name: version(name) for name in packages if name != "tokenphormer"}
    from tokenphormer import __version__

    found["tokenphormer"] = __version__
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _model_card(
    graph: Graph,
    graph_source: str,
    split: Split,
    config: Config,
    summary: Summary,
    found: dict[str, Any],
    metrics: dict[str, Metrics],
) -> str:
    lines = [f"# Tokenphormer on {graph.name}", ""]
    lines += [
        f"- Graph: {graph_source}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features} features."
    ]
    lines += [f"- Classes: {', '.join(graph.class_names[:30])}{' …' if graph.num_classes > 30 else ''}."]
    lines += [
        f"- Split: {split.name}, {split.sizes[0]:,} / {split.sizes[1]:,} / {split.sizes[2]:,} nodes, {split.hash[:16]}…"
    ]
    lines += [f"- Parameters: {found['parameters']:,}. Seeds: {len(summary.val_accuracy)}."]
    lines += [""] + [f"- {part}: accuracy {m.accuracy:.4f}, macro-F1 {m.macro_f1:.4f}" for part, m in metrics.items()]
    lines += [
        "",
        "The model is transductive in its features: hop- and walk-tokens of training nodes read the features of",
    ]
    lines += [
        "all their neighbours, test nodes included; labels of validation choose the epoch, labels of test nothing."
    ]
    lines += ["On a new graph with the same features it predicts without training again.", ""]
    lines += ["## Settings", "", "```yaml", config.to_yaml().rstrip(), "```", ""]
    return "\n".join(lines)


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
