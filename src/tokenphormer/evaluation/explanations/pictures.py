"""Pictures of explanations, in the style of the report's."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.evaluation.explanations.words import ARROW, amount, verdict
from tokenphormer.evaluation.plots import (
    BLUE,
    GRID,
    INK,
    MUTED,
    ORANGE,
    WIDTH,
    new_figure,
    percent_ticks,
    plain_text,
    small_text,
    style_axes,
)
from tokenphormer.explain import Neighbour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tokenphormer.explain import Edge, Explanation, Node, Token

MAX_TOKENS = 10
MAX_NODES = 12
RADIUS = 1.25
"""Inches from the explained node to the outermost ring."""
LABEL_LENGTH = 60
"""Letters in the line above a bar."""
PAGE = "#ffffff"
"""What is behind a picture; pages put their own background in its place."""


def token_plot(explanation: Explanation) -> Figure:
    """The tokens with the largest effect, for the predicted class and, by occlusion, for the runner-up."""
    figure = new_figure(WIDTH, _tokens_height(explanation))
    draw_tokens(figure.subplots(), explanation)
    return figure


def neighbourhood_plot(explanation: Explanation) -> Figure:
    """The nodes with the largest effect around the explained one, by distance, and the steps between them."""
    figure = new_figure(WIDTH, 2.7 * RADIUS + 0.8)
    draw_neighbourhood(figure.subplots(), explanation)
    return figure


def explanation_figure(explanation: Explanation) -> Figure:
    """Both, under one line that says what is predicted: what goes into a picture file."""
    figure = new_figure(2 * WIDTH, max(2.7 * RADIUS + 0.8, _tokens_height(explanation)) + 0.3)
    figure.suptitle(
        verdict(explanation), fontsize=11, color=INK, fontweight="bold", x=0.02, ha="left", parse_math=False
    )
    left, right = figure.subplots(1, 2)
    draw_tokens(left, explanation)
    draw_neighbourhood(right, explanation)
    return figure


def _tokens_height(explanation: Explanation) -> float:
    return 1.2 + 0.46 * max(2, len(_bars(explanation)))


def _bars(explanation: Explanation) -> list[Token | Neighbour]:
    """What is drawn as bars: tokens; where there are none, the neighbours that pass their scores on."""
    each: tuple[Token | Neighbour, ...] = explanation.tokens or explanation.neighbours
    return sorted(each, key=lambda one: -abs(one.importance))[:MAX_TOKENS]


def draw_tokens(axes: Axes, explanation: Explanation) -> None:
    """Bars, each with the token's name above it and its number at the edge."""
    e = explanation
    occluded = e.method == "occlusion"
    tokens = _bars(e)
    title = "Tokens with the largest effect" if occluded else "Tokens with the most attention"
    title = "Neighbours whose scores have the largest effect" if tokens and not e.tokens else title
    style_axes(axes, title, "probability lost when it is removed" if occluded else "share of the attention", grid="x")
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    if not tokens:
        axes.text(
            0.5, 0.5, "There is no token but the node's own", ha="center", transform=axes.transAxes, **small_text()
        )
        return
    series = [([token.importance for token in tokens], BLUE, e.predicted)]
    if occluded:
        series.append(([token.runner_up or 0.0 for token in tokens], ORANGE, e.runner_up))
        axes.set_title(title, loc="left", pad=22, **_bold())  # room for the legend
    height, across = 0.46 / len(series), axes.get_yaxis_transform()
    for number, (values, colour, name) in enumerate(series):
        rows = np.arange(len(tokens)) + 0.12 + height * (number + 0.5)
        axes.barh(rows, values, color=colour, height=height * 0.9, label=f"for {plain_text(name)}")
        for row, value in zip(rows, values, strict=True):
            right: dict[str, Any] = {"ha": "right", "va": "center_baseline", "fontsize": 7.5, "transform": across}
            axes.text(1, row, amount(value, e.method), color=colour, **right)
    for place, token in enumerate(tokens):
        above: dict[str, Any] = {"va": "center", "transform": across, "fontsize": 8, "color": INK, "in_layout": False}
        axes.text(0, place - 0.1, _label(token), parse_math=False, **above)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    highest = max(max(0.0, *values) for values, _, _ in series)
    lowest = min(min(0.0, *values) for values, _, _ in series)
    axes.set_xlim(1.03 * lowest - 1e-9, highest + 0.2 * (highest - lowest) + 1e-9)  # numbers stand at the right
    axes.set_ylim(len(tokens) - 0.3, -0.45)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(percent_ticks())
    if occluded:
        spot: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2, "borderaxespad": 0.1}
        legend = axes.legend(frameon=False, fontsize=8, labelcolor=INK, handlelength=1.2, borderpad=0, **spot)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _bold() -> dict[str, Any]:
    return {"fontsize": 10, "color": INK, "fontweight": "bold"}


def _label(token: Token | Neighbour) -> str:
    """One line that fits the picture: a long walk loses its middle."""
    if isinstance(token, Neighbour):
        return f"{plain_text(token.id, LABEL_LENGTH // 2)}, says {plain_text(token.says, LABEL_LENGTH // 3)}"
    if not token.path:
        return token.kind
    start = f"{token.kind.replace('_', ' ')}{f' × {token.count}' if token.count > 1 else ''}: "
    each = max(6, (LABEL_LENGTH - len(start)) // len(token.path) - len(ARROW))
    return start + ARROW.join(plain_text(name, each) for name in token.path)


def draw_neighbourhood(axes: Axes, explanation: Explanation) -> None:
    """Nodes as dots on the rings of their distances, their size by effect; steps as lines, jumps dotted.

    Where tokens read no node but its own, it is the neighbours that pass their scores on.
    """
    e = explanation
    centre = next(node for node in e.nodes if node.id == e.node)
    read: list[Node | Neighbour] = [node for node in e.nodes if node is not centre]
    others = sorted(read or e.neighbours, key=lambda n: -abs(n.importance))[:MAX_NODES]
    shown: list[Node | Neighbour] = [centre, *(n for n in others if n.importance)]
    edges = [edge for edge in e.edges if {edge.source, edge.target} <= {n.id for n in shown}]
    rings = sorted({n.distance for n in shown[1:]})
    # In inches. The innermost ring is half as wide as the outermost, whatever the distances are.
    radius = {distance: RADIUS * (0.5 + 0.5 * k / max(1, len(rings) - 1)) for k, distance in enumerate(rings)}
    angle = _angles(shown, edges)
    place = {n.id: np.array([math.cos(angle[n.id]), math.sin(angle[n.id])]) * radius[n.distance] for n in shown[1:]}
    place[centre.id] = np.zeros(2)
    circle = np.linspace(0, 2 * np.pi, 200)
    for ring in radius.values():
        axes.plot(ring * np.cos(circle), ring * np.sin(circle), color=GRID, linewidth=0.8, zorder=0)
    strongest = max((abs(edge.importance) for edge in edges), default=0.0) or 1.0
    for edge in edges:
        size, ends = abs(edge.importance) / strongest, np.array([place[edge.source], place[edge.target]])
        line: dict[str, Any] = {"linestyle": ":" if edge.jump else "-", "alpha": 0.35 + 0.65 * size}
        axes.plot(*ends.T, color=_colour(edge.importance), linewidth=0.8 + 3 * size, zorder=1, **line)
    largest = max((abs(n.importance) for n in shown[1:]), default=0.0) or 1.0
    for node in shown:
        area = 40 + 180 * (1.0 if node is centre else abs(node.importance) / largest)
        colour = INK if node is centre else _colour(node.importance)
        x, y = place[node.id]
        axes.scatter(x, y, s=area, color=colour, edgecolor=PAGE, linewidth=1, zorder=2)
        label = f"{plain_text(node.id, 15)}\n{amount(node.importance, e.method)}"
        _write_beside(axes, place[node.id], None if node is centre else angle[node.id], label)
    axes.set(xlim=(-WIDTH / 2, WIDTH / 2), ylim=(-1.4 * RADIUS, 1.3 * RADIUS), aspect="equal", anchor="N")
    axes.axis("off")
    title = "Nodes with the largest effect" if e.method == "occlusion" else "Nodes with the most attention"
    axes.set_title(title, loc="left", **_bold())
    signs = f"Blue speaks for {plain_text(e.predicted)}, orange against it.\n" if e.method == "occlusion" else ""
    passing = bool(e.neighbours) and not read
    lines = "Dots: scores that they pass on." if passing else "Lines: steps of walks; dotted: jumps."
    under = f"{signs}Rings: edges away. {lines}"
    below: dict[str, Any] = {"ha": "center", "va": "top", "transform": axes.transAxes, "linespacing": 1.4}
    axes.text(0.5, 0, under, parse_math=False, **below, **small_text())


def _write_beside(axes: Axes, place: NDArray[np.float64], angle: float | None, label: str) -> None:
    """A label outside the rings, where no line runs, tied to its node by a thin line; the centre's is under it."""
    from matplotlib.patheffects import Normal, Stroke

    text: dict[str, Any] = {"fontsize": 7.5, "color": INK, "parse_math": False, "linespacing": 1.05, "zorder": 3}
    if angle is None:
        halo = [Stroke(linewidth=2, foreground=PAGE), Normal()]
        axes.text(0, -0.14, label, ha="center", va="top", path_effects=halo, **text)
        return
    direction = np.array([math.cos(angle), math.sin(angle)])
    away = direction * 1.12 * RADIUS
    axes.plot(*np.array([place, away]).T, color=GRID, linewidth=0.8, zorder=0)
    x, y = direction * 1.16 * RADIUS
    axes.text(x, y, label, ha="left" if x > 0 else "right", va="center", **text)


def _colour(importance: float) -> str:
    return BLUE if importance >= 0 else ORANGE


def _angles(nodes: list[Node | Neighbour], edges: list[Edge]) -> dict[str, float]:
    """Every node but the first has a direction of its own; those that hang together stand side by side."""
    centre, *others = nodes
    linked: dict[str, list[str]] = defaultdict(list)
    for edge in sorted(edges, key=lambda edge: -abs(edge.importance)):
        linked[edge.source].append(edge.target)
        linked[edge.target].append(edge.source)
    order: list[str] = []
    waiting = [*(n.id for n in reversed(others)), centre.id]
    while waiting:  # depth first, from the centre
        name = waiting.pop()
        if name not in order:
            order.append(name)
            waiting += [other for other in reversed(linked[name]) if other not in order]
    step = 2 * math.pi / max(1, len(others))
    return {name: step * (k + 0.5) for k, name in enumerate(order[1:])}
