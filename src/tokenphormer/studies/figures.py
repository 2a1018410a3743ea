"""What the figures of the studies share: the report's colours and style, and one colour for each kind of walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.evaluation import plots
from tokenphormer.evaluation.plots import BLUE, GREEN, INK, MUTED, ORANGE
from tokenphormer.graph import Graph
from tokenphormer.walks import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROSE = "#cc79a7"
WIDE = 8.6
"""Inches: two panels of a page side by side."""
MANY_TICKS = 500
"""A logarithmic axis that spans less has ticks at 1, 2, 5 of each decade, not at 1 alone."""
KIND_COLOURS: Mapping[str, str] = {
    "uniform": BLUE,
    "non_backtracking": ORANGE,
    "jump": GREEN,
    "non_backtracking_jump": ROSE,
    "mixed": INK,
}
KIND_NAMES: Mapping[str, str] = {
    "uniform": "uniform",
    "non_backtracking": "non-backtracking",
    "jump": "jump",
    "non_backtracking_jump": "non-backtracking jump",
    "mixed": "a quarter of each",
}
Places = Sequence[tuple[float, float]]


def panels(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, NDArray[Any]]:
    """An empty figure of `rows` × `columns` panels, each `height` inches high."""
    figure = plots.new_figure(WIDE, height * rows + 0.3)
    axes: NDArray[Any] = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def finish(axes: Axes, title: str, xlabel: str, ylabel: str = "", log: str = "") -> None:
    """Style a panel; `log` names its logarithmic axes."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    if "x" in log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    if "y" in log:
        axes.set_yscale("log")
    plots.style_axes(axes, title, xlabel)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.minorticks_off()
    low, high = axes.get_ylim()
    if "y" in log and high < MANY_TICKS * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def legend(axes: Axes, **options: Any) -> None:
    """A legend without a frame."""
    axes.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=1.8, **options)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """One legend for the whole figure, below its panels."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=8, labelcolor=INK)


def small() -> dict[str, Any]:
    """Options of small grey words."""
    return plots.small_text()


def percent_axis(axes: Axes) -> None:
    """Shares as percentages, from none to all."""
    axes.yaxis.set_major_formatter(plots.percent_ticks())
    axes.set_ylim(-0.02, 1.02)


def draw_graph(
    axes: Axes, graph: Graph, places: Places, colours: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> None:
    """A small graph as a picture: nodes at `places`, with names in them where given."""
    at = np.asarray(places)
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    for u, v in zip(source.tolist(), graph.indices.tolist(), strict=True):
        if u < v:
            axes.plot(at[[u, v], 0], at[[u, v], 1], color=MUTED, linewidth=1.2, zorder=1)
    size = 45 if names is None else 260
    axes.scatter(at[:, 0], at[:, 1], s=size, c=list(colours or [BLUE] * len(at)), zorder=2, linewidths=0)
    for (x, y), name in zip(places, names or [], strict=names is not None):
        axes.text(x, y, name, ha="center", va="center", fontsize=9, color="#ffffff", fontweight="bold", zorder=3)
    axes.set_aspect("equal")
    axes.margins(0.18)
    axes.axis("off")


def name_of(kind: Kind | str) -> str:
    """A kind of walk in words."""
    return KIND_NAMES.get(kind, kind)
