"""A run folder: what `tokenphormer train` writes and `tokenphormer predict` reads.

run.json            the manifest, written last: versions, hashes of the files below; its presence says "whole"
config.yaml         every setting
split.npz           the split, with its hash
metrics.json        of every seed, and mean ± std
predictions.csv     one line a node, with the user's own ids and class names (of the best seed by validation);
                    of a graph on disk only the nodes of the split
model.safetensors   the weights of that seed (`TokenphormerClassifier.from_pretrained` reads the folder)
report.html, model_card.md
sgpm.safetensors    the SGPM behind the SGPM-token, if there is one
seeds/K/            model.safetensors, history.jsonl, metrics.json of each seed
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer.classifier import RUN_FILE, WEIGHTS_FILE, TokenphormerClassifier
from tokenphormer.errors import InputError
from tokenphormer.evaluation import plots
from tokenphormer.evaluation.breakdown import node_homophily
from tokenphormer.evaluation.metrics import Metrics, evaluate
from tokenphormer.evaluation.prediction_files import rows_of, scored_nodes, write_pieces
from tokenphormer.evaluation.report import Report, write_report
from tokenphormer.files import atomic_path, parse_json
from tokenphormer.graph import Graph, Split, load_graph
from tokenphormer.graph.datasets import drops_directions, find_dataset
from tokenphormer.graph.splits import PARTS
from tokenphormer.sgpm.pretrained import SGPM_FILE, PretrainedSGPM
from tokenphormer.training.calibration import soften
from tokenphormer.training.settings import Config

FORMAT = 1
MANIFEST = RUN_FILE
Calibration = dict[str, Any]
"""`temperature`, and the calibration error of each part of the split `before` it and `after`."""


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
    calibration: Calibration | None = None
    """Of the best seed, if its probabilities were calibrated."""

    def accuracy_text(self) -> str:
        """Mean ± std over the seeds, for people."""
        values, part = self.test_accuracy, "test accuracy"
        if not values:
            values, part = self.val_accuracy, "validation accuracy (the split has no test nodes)"
        spread = f" ± {100 * np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        return f"{np.mean(values):.2%}{spread} {part}" + (f", {len(values)} seeds" if len(values) > 1 else "")

    def calibration_text(self) -> str:
        """What the temperature did, for people."""
        assert self.calibration is not None
        part = "test" if "test" in self.calibration["after"] else "val"
        before, after = (self.calibration[when][part] for when in ("before", "after"))
        name = {"test": "test", "val": "validation"}[part]
        return f"temperature {self.calibration['temperature']:.3f}: {name} calibration error {before:.2%} → {after:.2%}"

    def to_json(self) -> dict[str, object]:
        """One machine-readable value."""
        found: dict[str, object] = {
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
        return found if self.calibration is None else found | {"calibration": self.calibration}


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _std(values: list[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def metrics_by_part(graph: Graph, split: Split, probabilities: NDArray[np.float32]) -> dict[str, Metrics]:
    """Metrics of train, val and test, as far as they have nodes, from the probabilities of `scored_nodes`."""
    parts, scored = {part: getattr(split, part) for part in PARTS}, scored_nodes(graph, split)
    return {
        part: evaluate(probabilities[rows_of(nodes, scored)], graph.y[nodes])
        for part, nodes in parts.items()
        if len(nodes)
    }


def calibration_of(
    graph: Graph, split: Split, probabilities: NDArray[np.float32], temperature: float, config: Config
) -> Calibration | None:
    """The temperature, and the calibration error of each part before and after it; None where none was fitted."""
    if not config.calibrate:
        return None
    before, after = (
        {part: value.calibration_error for part, value in metrics_by_part(graph, split, each).items()}
        for each in (soften(probabilities, 1 / temperature), probabilities)
    )
    return {"temperature": temperature, "before": before, "after": after}


def write_run(
    out: Path,
    graph: Graph,
    graph_source: str,
    split: Split,
    config: Config,
    chosen: Path,
    summary: Summary,
    found: dict[str, Any],
    command: str,
    sgpm: PretrainedSGPM | None = None,
) -> None:
    """Write everything but the seeds' own files: the best seed's predictions and weights, the report, the manifest."""
    scored = scored_nodes(graph, split)
    probabilities, history = read_seed(chosen, graph, scored)
    write_predictions(out / "predictions.csv", graph, probabilities, nodes=scored, split=split)
    write_text(out / "metrics.json", json.dumps(summary.to_json() | {"best_seed": found["seed"]}, indent=1))
    with atomic_path(out / WEIGHTS_FILE) as temporary:
        shutil.copyfile(chosen / WEIGHTS_FILE, temporary)
    if sgpm is not None:
        sgpm.save(out / SGPM_FILE)
    nodes = split.test if len(split.test) else split.val
    metrics = metrics_by_part(graph, split, probabilities)
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
            probabilities=probabilities[rows_of(nodes, scored)],
            labels=graph.y[nodes],
            degree=graph.indptr[nodes + 1] - graph.indptr[nodes],
            homophily=node_homophily(graph, nodes),
            history=history,
            attention=found["attention"],
            comparison=summary.comparison,
            calibration=found.get("calibration"),
            seeds=summary.test_accuracy or summary.val_accuracy,
            seconds=summary.seconds,
            peak_memory_bytes=summary.peak_memory_bytes,
            environment=environment,
            command=command,
        ),
    )
    write_text(out / "model_card.md", _model_card(graph, graph_source, split, config, summary, found, metrics, sgpm))
    files = [
        "config.yaml",
        "split.npz",
        "metrics.json",
        "predictions.csv",
        WEIGHTS_FILE,
        "report.html",
        "model_card.md",
    ] + ([SGPM_FILE] if sgpm is not None else [])
    manifest = {
        "format": FORMAT,
        "graph": {
            "source": graph_source,
            "name": graph.name,
            "directed": graph.directed,
            "weighted": graph.edge_weight is not None,
            "fingerprint": graph.fingerprint,
        }
        | _place(graph_source),
        "split": split.hash,
        "config": config.hash,
        "command": command,
        "environment": environment,
        "files": {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in files},
    }
    write_text(out / MANIFEST, json.dumps(manifest, indent=1))


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
    chosen = np.arange(graph.num_nodes) if nodes is None else nodes
    write_pieces(path, graph, [(chosen, probabilities)], class_names or graph.class_names, split)


def load_run(folder: str | Path, *, device: str = "auto") -> tuple[TokenphormerClassifier, dict[str, Any]]:
    """The trained classifier and the manifest of a finished run; files that were changed are refused."""
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.exists():
        what = "holds no finished run (run.json is missing)" if folder.is_dir() else "no such folder"
        raise InputError(f"{folder}: {what}")
    try:
        manifest: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
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


def _place(source: str) -> dict[str, str]:
    """Where a graph that is no dataset lies, whatever the working folder."""
    return {} if find_dataset(source) or not Path(source).exists() else {"path": str(Path(source).resolve())}


def own_source(folder: Path, manifest: dict[str, Any], option: str) -> str | Path:
    """Where the run's own graph is: as it was named, seen from here, or else where it was when the run was trained."""
    own = manifest["graph"]
    named, path = str(own["source"]), own.get("path")
    if find_dataset(named) or Path(named).exists():
        return named
    if path is not None and Path(str(path)).exists():
        return Path(str(path))
    places = f"{named!r}" if path is None else f"{named!r}, then at {path}"
    raise InputError(
        f"{folder / MANIFEST}: the run's own graph was {places}, which is no dataset and no path that exists, "
        f"seen from {Path.cwd()}; name where it is now as {option}"
    )


def left_behind(found: str | Path, manifest: dict[str, Any], option: str) -> str:
    """What to do if another graph was found by the name, and the run's own is still where it was; else nothing."""
    path = manifest["graph"].get("path")
    if path is None or not Path(str(path)).exists() or Path(found).resolve() == Path(str(path)).resolve():
        return ""
    return f" (the run was trained on {path}, which is still there: name that as {option} to take it)"


def load_graph_for(
    folder: Path,
    classifier: TokenphormerClassifier,
    manifest: dict[str, Any],
    source: str | None,
    directed: bool | None = None,
    option: str = "GRAPH",
    say: Callable[[str], None] = lambda _: None,
) -> Graph:
    """The run's own graph, or the one that `source` names, as its model takes it; `option` is how a user names one.

    Edges keep their directions if those of the training did, unless `directed` says otherwise for another graph. `say`
    is told what was done to another graph of the user's own, and if it has weights or directions where the run's has
    none, or the other way round.
    """
    own = manifest["graph"]
    if source is not None:
        kept = own["directed"] and drops_directions(source) if directed is None else directed
        named = load_graph(source, directed=kept)
        if notes := _notes_on(named, source, own, directed is not None):
            say(f"{named.name}: {'; '.join(notes)}")
        return classifier.prepared(named)
    if directed is not None and directed != own["directed"]:
        trained, asked = ("directed", "--no-directed") if own["directed"] else ("undirected", "--directed")
        raise InputError(
            f"{asked}: the run was trained on a graph with {trained} edges, and without {option} that one is used; "
            f"leave {asked} out, or name a graph as {option}"
        )
    found = own_source(folder, manifest, option)
    other = left_behind(found, manifest, option)
    try:
        graph = classifier.prepared(load_graph(found, directed=own["directed"]))
    except InputError as error:
        raise InputError(f"{error}{other}") from error
    if graph.fingerprint != own["fingerprint"]:
        raise InputError(
            f"{found}: is not the graph that the run was trained on any more; name it as {option} to go on{other}"
        )
    return graph


def _notes_on(graph: Graph, source: str, own: dict[str, Any], asked: bool) -> list[str]:
    """What there is to say of a graph that a run is used on; `own` is what its manifest has of the run's own.

    `asked` is whether the user said how to take directions; else a saved graph has those it was saved with.
    """
    notes = [] if find_dataset(source) else list(graph.notes)
    weighted = graph.edge_weight is not None
    if own.get("weighted", weighted) != weighted:  # runs written before do not say
        trained, here = ("weights", "none") if own["weighted"] else ("no weights", "some")
        notes.append(f"the edges that the run was trained on have {trained}, these have {here}")
    if own["directed"] != graph.directed and not asked:
        trained, here = ("directions", "none") if own["directed"] else ("no directions", "some")
        notes.append(f"the edges that the run was trained on have {trained}, these have {here}")
    return notes


def write_plots(folder: Path, graph: Graph) -> None:
    """The main figures of the best seed as PNG files in `folder`/plots."""
    split = Split.load(folder / "split.npz")
    chosen = folder / "seeds" / str(json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["best_seed"])
    scored = scored_nodes(graph, split)
    probabilities, history = read_seed(chosen, graph, scored)
    nodes = split.test if len(split.test) else split.val
    probabilities = probabilities[rows_of(nodes, scored)]
    correct = probabilities.argmax(axis=1) == graph.y[nodes]
    metrics = evaluate(probabilities, graph.y[nodes])
    figures = {
        "learning_curves": plots.learning_curves(history),
        "confusion_matrix": plots.confusion_matrix_plot(metrics, graph.class_names),
        "accuracy_by_degree": plots.accuracy_by_degree(graph.indptr[nodes + 1] - graph.indptr[nodes], correct),
    }
    for name, figure in figures.items():
        plots.save_figure(figure, folder / "plots" / f"{name}.png")


def read_seed(
    folder: Path, graph: Graph, scored: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32], list[dict[str, float]]]:
    """The probabilities of `scored` and the epochs that a seed has left; what is missing or damaged is said."""
    try:
        probabilities: NDArray[np.float32] = np.load(folder / "probabilities.npy", allow_pickle=False)
        expected = (graph.num_nodes if scored is None else len(scored), graph.num_classes)
        if probabilities.shape != expected:
            raise ValueError(f"probabilities.npy has the shape {probabilities.shape}, not {expected}")
        if not (folder / WEIGHTS_FILE).is_file():
            raise FileNotFoundError(f"{WEIGHTS_FILE} is missing")
        return probabilities, read_history(folder)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{folder}: is not whole ({error}); delete it, and --resume trains this seed anew") from error


def read_history(folder: Path) -> list[dict[str, float]]:
    """The epochs of a seed."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]


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
    sgpm: PretrainedSGPM | None,
) -> str:
    sizes = f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_features} features"
    lines = [f"# Tokenphormer on {_markdown(graph.name)}", ""]
    lines += [f"- Graph: {_markdown(graph_source)}: {sizes}."]
    names = ", ".join(map(_markdown, graph.class_names[:30]))
    lines += [f"- Classes: {names}{' …' if graph.num_classes > 30 else ''}."]
    parts = " / ".join(f"{size:,}" for size in split.sizes)
    lines += [f"- Split: {_markdown(split.name)}, {parts} nodes, {split.hash[:16]}…"]
    seeds = len(summary.val_accuracy)
    chosen = f"; weights and figures are of seed {found['seed']}, the best on validation" if seeds > 1 else ""
    lines += [f"- Parameters: {found['parameters']:,}. Seeds: {seeds}{chosen}."]
    if summary.calibration is not None:
        lines += [f"- Calibrated on validation nodes: {summary.calibration_text()}."]
    lines += [""] + [f"- {part}: accuracy {m.accuracy:.4f}, macro-F1 {m.macro_f1:.4f}" for part, m in metrics.items()]
    reads = "The model reads a node's own features alone;"
    if config.consistency or sgpm is not None or config.laplacian_pe:
        reads = "The model is transductive: it learns from all nodes of the graph, test nodes included;"
    elif config.num_walks or config.num_hops or config.score_hops or config.walk_pe:
        reads = "The model is transductive: it learns from the neighbours of training nodes too, test nodes included;"
    lines += ["", reads, "labels of validation choose the epoch, labels of test nothing."]
    lines += ["On a new graph with the same features it predicts without training again.", ""]
    if sgpm is not None:
        seen = _markdown(sgpm.meta["graph"]["name"])
        lines += [
            f"Its SGPM-token ({config.sgpm_token}) comes from a model pre-trained, without labels, on all nodes and",
            f"edges of '{seen}', test nodes included: test accuracy with it is transductive.",
            "",
        ]
    lines += ["## Settings", "", "```yaml", config.to_yaml().rstrip(), "```", ""]
    return "\n".join(lines)


def _markdown(name: str) -> str:
    r"""A name as one line of Markdown in which no character means anything.

    >>> print(_markdown("<b>\n# C_1 *new*"))
    \<b\> \# C\_1 \*new\*
    """
    return re.sub(r"([\\`*_\[\]<>&|$~#])", r"\\\1", " ".join(name.split()))


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically. A name of a folder that is no UTF-8 has a ? in it, as in the report."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace")
