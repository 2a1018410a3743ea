"""Pictures of a run. Every function returns a `matplotlib.figure.Figure`; none needs a display or touches pyplot.

Colours are those of Okabe and Ito, which readers with any common colour blindness can tell apart.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.evaluation.breakdown import HOMOPHILY_LABELS, bin_by_degree, bin_by_homophily, wilson_interval
from tokenphormer.evaluation.metrics import Metrics, calibration_bins
from tokenphormer.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#2b2f36", "#6b7280", "#d9dde3"
BLUE, SKY, ORANGE, GREEN = "#0072b2", "#79bfe8", "#d55e00", "#009e73"
WIDTH = 4.6
"""Inches. Narrow, so that 9 points are still readable when a telephone shrinks the picture to its own width."""
FORMATS = (".png", ".svg", ".pdf")
MAX_NUMBERED_CLASSES = 20
MAX_NAMED_CLASSES = 40

Epoch = Mapping[str, float | None]
"""One epoch: epoch, train_loss, val_loss, val_accuracy, learning_rate; any but `epoch` may be missing."""


# -------------------------------------------------------------------- learning


def best_epoch(history: Sequence[Epoch]) -> int | None:
    """The position in `history` of the highest val_accuracy, ties by lower val_loss, then the earlier one."""
    accuracy, loss = _series(history, "val_accuracy"), _series(history, "val_loss")
    if np.isnan(accuracy).all() and np.isnan(loss).all():
        return None
    return int(np.lexsort((np.nan_to_num(loss, nan=np.inf), -np.nan_to_num(accuracy, nan=-np.inf)))[0])


def learning_curves(history: Sequence[Epoch]) -> Figure:
    """Losses, validation accuracy and learning rate by epoch, one panel each; the best epoch is marked."""
    loss_lines = [("train_loss", "training", BLUE), ("val_loss", "validation", ORANGE)]
    panels = [
        ("Loss", loss_lines, 3.0),
        ("Validation accuracy", [("val_accuracy", "validation", ORANGE)], 3.0),
        ("Learning rate", [("learning_rate", "learning rate", GREEN)], 1.5),
    ]
    held = [
        (title, [line for line in lines if not np.isnan(_series(history, line[0])).all()], height)
        for title, lines, height in panels
    ]
    held = [panel for panel in held if panel[1]]
    if not held:
        return message_figure("No epochs were recorded")
    heights = [height for _, _, height in held]
    figure = new_figure(WIDTH, 0.6 + 0.58 * sum(heights))
    grid = figure.subplots(len(held), 1, sharex=True, squeeze=False, height_ratios=heights)
    epochs, best = _series(history, "epoch"), best_epoch(history)
    marker = "o" if len(history) < 3 else None
    for axes, (title, lines, _) in zip(grid[:, 0], held, strict=True):
        for key, name, colour in lines:
            axes.plot(epochs, _series(history, key), color=colour, label=name, linewidth=1.5, marker=marker)
        if best is not None:
            axes.axvline(epochs[best], color=MUTED, linewidth=1, linestyle="--", label="_best")
        if title == "Validation accuracy" and best is not None:
            accuracy = _series(history, "val_accuracy")[best]
            title += f": best {_percent(accuracy)} at epoch {epochs[best]:g}"
            axes.plot(epochs[best], accuracy, "o", color=ORANGE, markersize=5)
            axes.yaxis.set_major_formatter(percent_ticks())
        if len(lines) > 1:
            # In the row of the title, where no curve can run into it.
            above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 2, "borderaxespad": 0.2}
            axes.legend(frameon=False, fontsize=9, labelcolor=INK, **above)
        style_axes(axes, title)
    grid[-1, 0].set_xlabel("epoch", fontsize=9, color=INK)
    if len(history) > 1:
        grid[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    else:
        grid[-1, 0].set_xticks(epochs)
    return figure


# -------------------------------------------------------------------- classes


def pretraining_curves(history: Sequence[Epoch], bigram: float | None = None) -> Figure:
    """Loss and share of masked nodes guessed right by epoch; a line for what the neighbouring word alone would tell."""
    figure = new_figure(WIDTH, 4.4)
    above, below = figure.subplots(2, 1, sharex=True)
    epochs = _series(history, "epoch")
    for key, name, colour in (("train_loss", "training", BLUE), ("val_loss", "validation", ORANGE)):
        above.plot(epochs, _series(history, key), color=colour, label=name, linewidth=1.5, marker="o", markersize=3)
    above.legend(frameon=False)
    style_axes(above, "Loss at masked nodes")
    below.plot(epochs, _series(history, "val_accuracy"), color=ORANGE, linewidth=1.5, marker="o", markersize=3)
    if bigram is not None:
        below.axhline(bigram, color=MUTED, linewidth=1, linestyle="--")
        below.text(epochs[0], bigram, " neighbouring word alone", va="bottom", **small_text())
    below.yaxis.set_major_formatter(percent_ticks())
    below.set_ylim(0, 1)
    style_axes(below, "Masked nodes guessed right (validation)", "epoch")
    return figure


def confusion_matrix_plot(metrics: Metrics, class_names: Sequence[str]) -> Figure:
    """True against predicted classes, shaded by the share of the true class; counts in the cells up to 20 classes."""
    counts = np.asarray(metrics.confusion)
    size = len(counts)
    if len(class_names) != size:
        raise InputError(f"class_names: expected {size} names, got {len(class_names)}")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(max(0.42 * size, 2.4), 7.5)
    figure = new_figure(max(side + 2.2, WIDTH), side + 1.5)
    axes = figure.subplots()
    # Cells as shapes stay sharp at any size; beyond a few hundred of them one small picture is lighter.
    mesh = axes.pcolormesh(shares, cmap=_blues(), vmin=0, vmax=1, rasterized=size > MAX_NUMBERED_CLASSES)
    axes.set_aspect("equal")
    axes.invert_yaxis()
    if size <= MAX_NUMBERED_CLASSES:
        widest = len(f"{counts.max():,}")
        font = min(9.0, side / size * 72 / (0.75 * max(widest, 2)))
        for (row, column), count in np.ndenumerate(counts):
            colour = "#ffffff" if shares[row, column] > 0.55 else "#16181d"
            if count:
                place = (column + 0.5, row + 0.5)
                axes.text(*place, f"{count:,}", ha="center", va="center", fontsize=font, color=colour)
    step = math.ceil(size / MAX_NAMED_CLASSES)
    ticks = np.arange(0, size, step)
    names = [plain_text(name) for name in class_names[::step]]
    font = 9.0 if size <= MAX_NUMBERED_CLASSES else 7.0
    style_axes(axes, "Confusion matrix", grid=None)
    flat = max(map(len, names)) * 0.085 < side / size  # inches a letter, and inches a column
    turned = {} if flat else _turned()
    # Else a class called "$a$" would be read as a formula, and "$^$" as a broken one.
    axes.set_xticks(ticks + 0.5, names, fontsize=font, parse_math=False, **turned)
    axes.set_yticks(ticks + 0.5, names, fontsize=font, parse_math=False)
    axes.set_xlabel("predicted class", fontsize=9, color=INK)
    axes.set_ylabel("true class", fontsize=9, color=INK)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, shrink=0.8, aspect=25, format=percent_ticks(), ticks=[0, 0.5, 1])
    bar.set_label("share of the true class", fontsize=9, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK, length=0)
    bar.outline.set_visible(False)
    return figure


def attention_by_kind(attention: Mapping[str, float]) -> Figure:
    """Mean attention of the readout on each kind of token, as bars in the given order."""
    if not attention:
        return message_figure("No attention was recorded")
    values = np.asarray(list(attention.values()), dtype=np.float64)
    figure = new_figure(WIDTH, 1.0 + 0.32 * len(values))
    axes = figure.subplots()
    places = np.arange(len(values))
    axes.barh(places, values, color=BLUE, height=0.65)
    for place, value in zip(places, values, strict=True):
        axes.annotate(_percent(value), (value, place), (4, 0), textcoords="offset points", va="center", **small_text())
    axes.invert_yaxis()
    axes.set_xlim(0, max(float(values.max()), 0.01) * 1.18)
    axes.xaxis.set_major_formatter(percent_ticks())
    style_axes(axes, "Attention by kind of token", "share of the attention", grid="x")
    axes.set_yticks(places, [plain_text(kind, 30) for kind in attention], fontsize=9, parse_math=False)
    return figure


# -------------------------------------------------------------------- where errors sit


def accuracy_by_degree(degree: NDArray[np.integer[Any]], correct: NDArray[np.bool_]) -> Figure:
    """Accuracy of nodes grouped by degree (0, 1, 2, 3–4, 5–8, …), with Wilson's 95 % intervals and counts."""
    _same_length("degree", degree, correct)
    bins, names = bin_by_degree(degree)
    first = int(bins.min()) if bins.size else 0
    return _accuracy_bars(bins - first, names[first:], correct, "Accuracy by degree", "degree (number of nodes)")


def accuracy_by_homophily(homophily: NDArray[np.float64], correct: NDArray[np.bool_]) -> Figure:
    """Accuracy of nodes grouped by the share of their labelled neighbours that have their own label."""
    _same_length("homophily", homophily, correct)
    xlabel = "labelled neighbours of the same class (number of nodes)"
    return _accuracy_bars(bin_by_homophily(homophily), HOMOPHILY_LABELS, correct, "Accuracy by homophily", xlabel)


def _accuracy_bars(
    bins: NDArray[np.int64], names: Sequence[str], correct: NDArray[np.bool_], title: str, xlabel: str
) -> Figure:
    if not bins.size:
        return message_figure("There are no nodes to show")
    count = np.bincount(bins, minlength=len(names))
    hits = np.bincount(bins[correct], minlength=len(names))
    held = np.flatnonzero(count)
    share = hits[held] / count[held]
    low, high = wilson_interval(hits[held], count[held])
    figure = new_figure(WIDTH, 3.0)
    axes = figure.subplots()
    axes.bar(held, share, color=SKY, width=0.7)
    # Rounding may put a bound a hair on the wrong side of its share, which errorbar refuses.
    reach = np.maximum([share - low, high - share], 0)
    axes.errorbar(held, share, reach, fmt="none", ecolor=INK, elinewidth=1.1, capsize=3)
    axes.axhline(correct.mean(), color=ORANGE, linewidth=1.2, linestyle="--")
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(percent_ticks())
    axes.set_title(f"dashed: all nodes, {_percent(correct.mean())}", loc="right", **small_text())
    style_axes(axes, title, xlabel)
    crowded = len(names) > 7
    shown = names if crowded else [textwrap.fill(name, 9) for name in names]
    between = " " if crowded else "\n"
    lines = [f"{name}{between}({total:,})" for name, total in zip(shown, count, strict=True)]
    turned = _turned() if crowded else {}
    axes.set_xticks(np.arange(len(names)), lines, fontsize=8, **turned)
    spare = max(4 - len(names), 0) / 2  # a lone bar is not to fill the picture
    axes.set_xlim(-0.6 - spare, len(names) - 0.4 + spare)
    return figure


def calibration_plot(probabilities: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> Figure:
    """Accuracy against confidence, and how many nodes have which confidence. On the diagonal a model is honest."""
    bins = calibration_bins(probabilities, labels)
    figure = new_figure(WIDTH, 3.9)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    held = bins.count > 0
    low, high = wilson_interval(np.rint(bins.accuracy[held] * bins.count[held]).astype(np.int64), bins.count[held])
    share = bins.accuracy[held]
    upper.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle="--")
    reach = np.maximum([share - low, high - share], 0)
    line = {"fmt": "o-", "color": BLUE, "markersize": 4.5, "linewidth": 1.3, "elinewidth": 1}
    upper.errorbar(bins.confidence[held], share, reach, **line)
    upper.set_ylim(0, 1.03)
    upper.set_xlim(-0.02, 1.02)
    upper.yaxis.set_major_formatter(percent_ticks())
    upper.set_title("dashed: ideal", loc="right", **small_text())
    style_axes(upper, f"Calibration error {_percent(bins.error)}")
    upper.set_ylabel("accuracy", fontsize=9, color=INK)
    middles = (bins.edges[1:] + bins.edges[:-1]) / 2
    lower.bar(middles, bins.count, color=BLUE, width=0.9 / len(bins.count))
    lower.yaxis.get_major_locator().set_params(nbins=3, integer=True)
    lower.xaxis.set_major_formatter(percent_ticks())
    style_axes(lower, "Number of nodes", "confidence: probability of the predicted class")
    return figure


# -------------------------------------------------------------------- saving


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as .png, .svg or .pdf, atomically; equal figures give equal files."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise InputError(f"{path}: expected a name that ends in {', '.join(FORMATS)}")
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
    with atomic_path(path) as temporary, quiet_fonts(), _rc({"svg.hashsalt": "tokenphormer"}):
        figure.savefig(temporary, format=suffix[1:], dpi=160, metadata=undated)


def svg_text(figure: Figure) -> str:
    """The figure as SVG without a background, its words as text that a reader can select and search."""
    import io

    buffer = io.StringIO()
    bare = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with quiet_fonts(), _rc({"svg.fonttype": "none", "svg.hashsalt": "tokenphormer"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=bare)
    return buffer.getvalue()


@contextmanager
def quiet_fonts() -> Iterator[None]:
    """Class names in a script that the plot font lacks are drawn as boxes; that is no reason to warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*Glyph .* missing from", category=UserWarning)
        yield


def _rc(settings: dict[Any, str]) -> AbstractContextManager[None]:
    import matplotlib

    # The writer of SVG takes these two from nowhere else; they hold for the length of one call.
    return matplotlib.rc_context(settings)


# -------------------------------------------------------------------- style


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, laid out so that nothing is cut off."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def message_figure(text: str) -> Figure:
    """A figure that only says why there is nothing to draw."""
    figure = new_figure(WIDTH, 1.2)
    figure.text(0.5, 0.5, text, ha="center", va="center", fontsize=10, color=MUTED)
    return figure


def style_axes(axes: Axes, title: str, xlabel: str = "", grid: Literal["x", "y"] | None = "y") -> None:
    """The look of all axes: a title at the left, light lines, no box."""
    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.tick_params(labelsize=9, colors=INK, length=0, pad=5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.set_axisbelow(True)
    if grid is not None:
        axes.grid(axis=grid, color=GRID, linewidth=0.8)


def _turned() -> dict[str, Any]:
    return {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}


def small_text() -> dict[str, Any]:
    """How remarks in a figure are set."""
    return {"fontsize": 8, "color": MUTED}


def _blues() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("blues", ["#f4f7fa", "#7fb8d9", BLUE, "#003a5c"])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def percent_ticks() -> Any:
    """Ticks that show shares as percent."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{100 * value:.6g} %")


def plain_text(name: str, limit: int = 24) -> str:
    """A name on one line: no control characters, at most `limit` long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in name).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _series(history: Sequence[Epoch], key: str) -> NDArray[np.float64]:
    """One column of the history; NaN where an epoch lacks it or it is not finite."""
    given = [epoch.get(key) for epoch in history]
    values = np.asarray([np.nan if value is None else value for value in given], dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def _same_length(name: str, values: NDArray[Any], correct: NDArray[np.bool_]) -> None:
    if values.shape != correct.shape or correct.ndim != 1:
        raise InputError(f"{name} and correct: expected one value a node each, got {values.shape} and {correct.shape}")
