"""The report of a run: one HTML file that needs nothing but itself, neither network nor scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.evaluation import html, plots
from tokenphormer.evaluation.breakdown import wilson_interval
from tokenphormer.evaluation.metrics import Metrics
from tokenphormer.files import atomic_path

PART_NAMES = {"train": "training", "val": "validation", "test": "test"}
MAX_OPEN_CLASSES = 20

# Belt and braces: even if something slipped through the escaping, a browser would run and fetch nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, eq=False)
class Report:
    """All that a report shows. Strings may hold anything; they are escaped on the way out."""

    title: str
    graph: Mapping[str, str]
    """What the graph is: name, nodes, edges, …"""
    settings: Mapping[str, object]
    split_name: str
    split_sizes: tuple[int, int, int]
    split_hash: str
    metrics: Mapping[str, Metrics]
    """By part: train, val, test. The headline is about test, or about the last part where there is no test."""
    class_names: Sequence[str]
    nodes: NDArray[np.int64]
    """(m) node indices of the headline part."""
    probabilities: NDArray[np.floating[Any]]
    """(m, C) what the model gives those nodes."""
    labels: NDArray[np.int64]
    """(m) their true classes."""
    degree: NDArray[np.int64]
    """(m) how many neighbours they have."""
    homophily: NDArray[np.float64]
    """(m) as `node_homophily` gives it."""
    history: Sequence[plots.Epoch] = ()
    attention: Mapping[str, float] | None = None
    """Mean attention on each kind of token; None or empty for a model without."""
    comparison: Sequence[tuple[str, float]] = ()
    """Other methods on the same split: name and accuracy."""
    calibration: Mapping[str, Any] | None = None
    """If a temperature was fitted: `temperature`, and the calibration error of each part `before` and `after`."""
    seeds: Sequence[float] = ()
    """Accuracy of the headline part for each seed, if the run was repeated."""
    seconds: float = 0.0
    peak_memory_bytes: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        if not self.metrics:
            raise InputError("report: expected the metrics of at least one part of the split, got none")
        each = (self.nodes, self.labels, self.probabilities, self.degree, self.homophily)
        sizes = tuple(map(len, each))
        if set(sizes) != {self.headline.count}:
            raise InputError(
                f"report: nodes, labels, probabilities, degree and homophily have {sizes} rows, but part '{self.part}' "
                f"was evaluated on {self.headline.count} nodes"
            )

    @property
    def part(self) -> str:
        """The part that the headline is about."""
        return "test" if "test" in self.metrics else list(self.metrics)[-1]

    @property
    def headline(self) -> Metrics:
        """The metrics of that part."""
        return self.metrics[self.part]

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(m) which nodes of that part are predicted rightly."""
        right: NDArray[np.bool_] = self.probabilities.argmax(axis=1) == self.labels
        return right


def write_report(path: str | Path, report: Report) -> None:
    """Write the report as one HTML file, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    """The whole page as a string; the same report gives the same string."""
    sections = [
        _headline(report),
        _results(report),
        _training(report),
        _classes(report),
        _errors(report),
        _attention(report),
        _provenance(report),
    ]
    return page(report.title, "".join(section for section in sections if section))


def page(title: str, body: str) -> str:
    """A whole HTML page with the report's style, which loads nothing from anywhere."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{html.text(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}</main>
</body>
</html>
"""


# -------------------------------------------------------------------- sections


def _headline(report: Report) -> str:
    found, name = report.headline, _part(report.part)
    low, high = wilson_interval(np.array([report.correct.sum()]), np.array([found.count]))
    interval = f"95 % interval {100 * low[0]:.1f} to {100 * high[0]:.1f}, {found.count:,} nodes"
    items = [(f"{name} accuracy".capitalize(), _percent(found.accuracy), interval)]
    counts = np.asarray(found.confusion)
    known, held = len(report.class_names), int(np.count_nonzero(counts.sum(axis=0) + counts.sum(axis=1)))
    which = f"of {known} classes" if held == known else f"of {held} classes; the other {known - held} do not occur here"
    items.append(("Macro-F1", _percent(found.macro_f1), which))
    if len(report.seeds) > 1:
        mean, deviation = np.mean(report.seeds), np.std(report.seeds, ddof=1)
        items.append(
            (f"Over {len(report.seeds)} seeds", f"{100 * mean:.1f} ± {100 * deviation:.1f} %", "accuracy, mean ± std")
        )
    memory = "" if report.peak_memory_bytes is None else f"peak memory {_bytes(report.peak_memory_bytes)}"
    items.append(("Time", _duration(report.seconds), memory))
    sizes = ", ".join(f"{size:,} {_part(part)}" for part, size in zip(PART_NAMES, report.split_sizes, strict=True))
    about = [report.graph.get("name"), f"split {report.split_name}: {sizes} nodes"]
    line = " · ".join(html.text(item) for item in about if item)
    return f'<h1>{html.text(report.title)}</h1>\n<p class="muted">{line}</p>\n{html.cards(items)}\n'


def _results(report: Report) -> str:
    columns = list(report.metrics.values())
    rows = [
        ["nodes", *(f"{m.count:,}" for m in columns)],
        ["accuracy", *(_percent(m.accuracy) for m in columns)],
        ["macro-F1", *(_percent(m.macro_f1) for m in columns)],
        ["balanced accuracy", *(_percent(m.balanced_accuracy) for m in columns)],
        ["log loss", *(f"{m.log_loss:.3f}" for m in columns)],
        ["calibration error", *(_percent(m.calibration_error) for m in columns)],
    ]
    if report.calibration is not None:
        before = report.calibration["before"]
        rows.append(["before temperature scaling", *(_percent(before.get(part)) for part in report.metrics)])
    if any(m.roc_auc is not None for m in columns):
        rows.append(["area under ROC", *(_percent(m.roc_auc) for m in columns)])
        rows.append(["average precision", *(_percent(m.pr_auc) for m in columns)])
    tables = html.table("Metrics by part of the split", ["", *map(_part, report.metrics)], rows)
    if report.comparison:
        here = report.headline.accuracy
        ranked = sorted(
            [("this model", here, True), *((*other, False) for other in report.comparison)], key=lambda r: -r[1]
        )
        shown = [[name, _percent(value), "" if own else _points(value - here)] for name, value, own in ranked]
        caption = f"Accuracy on the same {_part(report.part)} nodes; difference in points"
        own_row = [number for number, row in enumerate(ranked) if row[2]]
        tables += html.table(caption, ["method", "accuracy", "difference"], shown, strong=own_row)
    return f'<h2>Results</h2>\n<div class="pair">{tables}</div>\n'


def _training(report: Report) -> str:
    calibration = plots.calibration_plot(report.probabilities, report.labels)
    error = _percent(report.headline.calibration_error)
    above = "Points above the dashed line: the model is better than it claims; below it: worse."
    if report.calibration is not None:
        value, before = report.calibration["temperature"], report.calibration["before"].get(report.part)
        above += f" A temperature of {value:.2f}, fitted on validation nodes, took the error from {_percent(before)}."
    sure = html.figure("calibration", calibration, f"Accuracy by confidence; calibration error {error}.", above)
    if not report.history:
        return f"<h2>Confidence</h2>\n{sure}\n"
    best = plots.best_epoch(report.history)
    label = f"Learning curves over {len(report.history)} epochs."
    if best is not None:
        chosen = report.history[best]
        accuracy, loss = chosen.get("val_accuracy"), chosen.get("val_loss")
        label += f" Best epoch {chosen.get('epoch')}: validation accuracy {_percent(accuracy)}"
        label += "." if loss is None else f", loss {loss:.3f}."
    caption = "Dashed: the epoch with the highest validation accuracy, ties by validation loss."
    curves = html.figure("curves", plots.learning_curves(report.history), label, caption)
    return f'<h2>Training and confidence</h2>\n<div class="pair">{curves}{sure}</div>\n'


def _classes(report: Report) -> str:
    found, names = report.headline, report.class_names
    counts = np.asarray(found.confusion)
    drawn = plots.confusion_matrix_plot(found, names)
    label = f"Confusion matrix of {found.count} {_part(report.part)} nodes in {len(names)} classes."
    wide = len(names) > 8
    picture = html.figure("confusion", drawn, label, f"Rows: true class. {found.count:,} nodes.", wide=wide)
    rows = []
    for number, name in enumerate(names):
        predicted = int(counts[:, number].sum())
        precision = counts[number, number] / predicted if predicted else None
        cells = [_percent(found.recall[number]), _percent(precision), f"{counts[number].sum():,}"]
        rows.append([name, *cells])
    table = html.table(
        f"{_part(report.part).capitalize()} nodes by class", ["class", "recall", "precision", "nodes"], rows
    )
    intro = "<p>Recall: share of a class that was found. Precision: share of its predictions that are right.</p>"
    if len(names) > MAX_OPEN_CLASSES:
        table = f"<details><summary>All {len(names)} classes</summary>{table}</details>"
    if wide:
        return f"<h2>Classes</h2>\n{intro}\n{picture}\n{table}\n"
    return f'<h2>Classes</h2>\n{intro}\n<div class="pair">{picture}{table}</div>\n'


def _errors(report: Report) -> str:
    by_degree = plots.accuracy_by_degree(report.degree, report.correct)
    by_homophily = plots.accuracy_by_homophily(report.homophily, report.correct)
    wrong = int((~report.correct).sum())
    who = f"{_part(report.part)} nodes"
    intro = f"{wrong:,} of {report.headline.count:,} {who} are predicted wrongly. Bars: accuracy with 95 % intervals."
    figures = html.figure("degree", by_degree, f"Accuracy of {who} by degree.")
    figures += html.figure(
        "homophily",
        by_homophily,
        f"Accuracy of {who} by the share of labelled neighbours with their own class.",
        "Uses all labels, those of test nodes too: a description of the graph, not an input of the model.",
    )
    return f'<h2>Where errors sit</h2>\n<p>{html.text(intro)}</p>\n<div class="pair">{figures}</div>\n'


def _attention(report: Report) -> str:
    if not report.attention:  # as in the recipes that have neither walk- nor hop-tokens
        return ""
    shares = ", ".join(f"{kind} {_percent(value)}" for kind, value in report.attention.items())
    label = f"Attention by kind of token: {shares}."
    caption = f"Mean over {_part(report.part)} nodes."
    drawn = html.figure("attention", plots.attention_by_kind(report.attention), label, caption)
    return f"<h2>Attention</h2>\n{drawn}\n"


def _provenance(report: Report) -> str:
    split = {"protocol": report.split_name, "sha256": report.split_hash}
    split |= {_part(part): f"{size:,} nodes" for part, size in zip(PART_NAMES, report.split_sizes, strict=True)}
    settings = {name: _setting(value) for name, value in report.settings.items()}
    seeds = {"accuracy by seed": ", ".join(_percent(value) for value in report.seeds)} if report.seeds else {}
    groups = [
        ("Graph and split", html.facts("Graph", report.graph) + html.facts("Split", split)),
        ("Settings", html.facts("What the run was given", settings)),
        ("Environment", html.facts("Where it ran", {**report.environment, **seeds})),
    ]
    blocks = [f"<details><summary>{name}</summary>{inner}</details>" for name, inner in groups]
    command = f"<p>Made by <code>{html.text(report.command)}</code></p>" if report.command else ""
    return f"<h2>How this was made</h2>\n{command}\n{''.join(blocks)}\n"


# -------------------------------------------------------------------- words


def _part(part: str) -> str:
    return PART_NAMES.get(part, part)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def _setting(value: object) -> str:
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _bytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
