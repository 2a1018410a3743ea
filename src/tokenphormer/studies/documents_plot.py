"""The figures of the study of graph documents: the pairs, how fast sentences tell them apart, and the census."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokenphormer.evaluation.plots import BLUE, GREEN, INK, ORANGE, SKY
from tokenphormer.graph import Graph
from tokenphormer.studies.documents_rows import Documents, PairRow
from tokenphormer.studies.figures import ROSE, draw_graph, finish, legend, panels, small
from tokenphormer.studies.small_graphs import known_pairs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("two triangles / hexagon", "decalin / bicyclopentyl", "rook 4 × 4 / Shrikhande")
LINES = {"two triangles / hexagon": GREEN, "K3,3 / prism": SKY, "decalin / bicyclopentyl": BLUE, DRAWN[2]: ORANGE}
CRITERIA: tuple[tuple[str, int | None, str, str], ...] = (
    ("limit", None, "the limit dᵢ / 2|E|", INK),
    ("visits", None, "visit laws at every position", GREEN),
    ("colours", None, "colour refinement (1-WL)", ROSE),
    ("non_backtracking", 3, "patterns, 3 steps", SKY),
    ("non_backtracking", 4, "patterns, 4 steps", BLUE),
)


def plot(result: Documents) -> dict[str, Figure]:
    """Two figures."""
    return {"pairs": _plot_pairs(result), "told-apart": _plot_lines(result)}


def _plot_pairs(result: Documents) -> Figure:
    figure, axes = panels(2, len(DRAWN), 1.9)
    pairs = {pair.name: pair for pair in known_pairs()}
    rows = {row.pair: row for row in result.pairs}
    for column, name in enumerate(DRAWN):
        graphs = pairs[name].a, pairs[name].b
        for panel, graph, title in zip(axes[:, column], graphs, name.split(" / "), strict=True):
            draw_graph(panel, graph, _places(graph))
            panel.set(xlim=(-2.6, 2.6), ylim=(-1.25, 1.25))  # the same for all, so that they stand in rows
            panel.set_title(title, fontsize=9, color=INK)
        if name in rows:
            panel.text(0.5, -0.08, _verdict(rows[name]), ha="center", va="top", transform=panel.transAxes, **small())
    return figure


def _verdict(row: PairRow) -> str:
    same = {True: "the same", False: "different"}
    length = row.non_backtracking_length
    patterns = "the same as far as looked at" if length is None else f"different from {length} steps on"
    return f"limit dᵢ / 2|E|: {same[row.same_limit]}\ncolour refinement: {same[row.same_colours]}\npatterns: {patterns}"


def _places(graph: Graph) -> list[tuple[float, float]]:
    """Two circles for two rings, else one."""
    rings = {"two triangles": 3, "bicyclopentyl": 5}.get(graph.name, graph.num_nodes)
    places = []
    for node in range(graph.num_nodes):
        side = 1 if node < rings else -1  # the second ring is a mirror image, so that first nodes face each other
        turn = 2 * math.pi * (node % rings) / rings
        centre = 0.0 if rings == graph.num_nodes else -1.45 * side
        places.append((centre + side * math.cos(turn), math.sin(turn)))
    return places


def _plot_lines(result: Documents) -> Figure:
    figure, grid = panels(1, 2, 3.4)
    axes = grid[0]
    for name, colour in LINES.items():
        for kind, dash in (("non_backtracking", "-"), ("uniform", ":")):
            rows = [row for row in result.lengths if row.pair == name and row.kind == kind and row.tv > 0]
            label = name if kind == "non_backtracking" else None
            line = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 3.5, "linewidth": 1.4}
            axes[0].plot([row.length for row in rows], [row.tv for row in rows], label=label, **line)
    finish(axes[0], "Patterns of two graphs' sentences", "steps of a sentence", "total variation", log="y")
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    legend(axes[0], loc="lower left", title="solid: non-backtracking\ndotted: uniform", title_fontsize=8)
    for criterion, length, name, colour in CRITERIA:
        census = [row for row in result.census if (row.criterion, row.length) == (criterion, length) and row.confused]
        line = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.4}
        axes[1].plot([row.nodes for row in census], [row.share for row in census], label=name, **line)
    finish(axes[1], "Pairs of connected graphs left together", "nodes", "share of all pairs", log="y")
    sizes = sorted({row.nodes for row in result.census})
    axes[1].set_xticks(sizes)
    axes[1].text(0.98, 0.97, "no point: none", ha="right", va="top", transform=axes[1].transAxes, **small())
    legend(axes[1], loc="lower left")
    return figure
