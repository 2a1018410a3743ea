"""Draw the pictures of the documentation from the embedded graph: the four walks, and the token sequence of a node.

    python scripts/docs_pictures.py docs/pictures

Walks, features and names are those of `debian`; nothing is invented for the picture but where things stand. The seed
was chosen so that one draw shows what the kinds do: the uniform walk turns back, both jump walks pass over a node.
"""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import FancyBboxPatch
from numpy.typing import NDArray
from PIL import Image

from tokenphormer import load_graph, sample_walks
from tokenphormer.evaluation.plots import GRID, INK, MUTED, save_figure
from tokenphormer.graph import Graph
from tokenphormer.hops import propagate, propagation_matrix
from tokenphormer.studies.figures import KIND_COLOURS, KIND_NAMES
from tokenphormer.walks import KINDS, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NODE, SEED, STEPS, HOPS = "hugin", 665, 4, 3
WORDS = Path(__file__).parents[1] / "docs" / "datasets" / "debian-words.txt"
PAPER_WHITE = "#fcfcfa"
"""Pictures have their own light ground, so that they can be read on a dark page too."""
SAYS = {
    "uniform": "any neighbour, so it may turn back",
    "non_backtracking": "any neighbour but the last node",
    "jump": "any node within 3 steps",
    "non_backtracking_jump": "the same, but not the last node",
}
Place = tuple[float, float]


def walk_of(graph: Graph, kind: Kind, number: int = 0) -> list[int]:
    """The nodes of one walk from `NODE`."""
    drawn = sample_walks(graph, kind, num_walks=2, length=STEPS, nodes=[graph.index_of(NODE)], seed=SEED)
    return [int(node) for node in drawn[0, number] if node >= 0]


# ---------------------------------------------------------------- the four walks


def four_walks(graph: Graph) -> Figure:
    """One walk of each kind on the same neighbourhood."""
    from matplotlib.figure import Figure

    walks = {kind: walk_of(graph, kind) for kind in KINDS}
    places = rings(graph)
    assert all(node in places for walk in walks.values() for node in walk), "a walk leaves the picture"
    figure = Figure(figsize=(10, 8.6), facecolor=PAPER_WHITE)
    room = {"left": 0.01, "right": 0.99, "bottom": 0.01, "top": 0.95, "wspace": 0.02, "hspace": 0.1}
    for kind, axes in zip(KINDS, figure.subplots(2, 2, gridspec_kw=room).flat, strict=True):
        draw_walk(axes, graph, places, kind, walks[kind])
    return figure


def rings(graph: Graph) -> dict[int, Place]:
    """Where `NODE`, its neighbours and theirs stand: on two rings, each node near those that it is joined to."""
    start = graph.index_of(NODE)
    inner = [int(node) for node in graph.neighbours(start)]
    angle = {node: 2 * math.pi * number / len(inner) for number, node in enumerate(inner)}
    outer = sorted({int(w) for v in inner for w in graph.neighbours(v)} - {start, *inner})

    def wished(node: int) -> float:
        near = [angle[int(v)] for v in graph.neighbours(node) if int(v) in angle]
        return math.atan2(sum(map(math.sin, near)), sum(map(math.cos, near))) % (2 * math.pi)

    order = sorted(outer, key=wished)
    places = {start: (0.0, 0.0)} | {v: (0.52 * math.cos(angle[v]), 0.52 * math.sin(angle[v])) for v in inner}
    for number, node in enumerate(order):
        turn = 2 * math.pi * (number + 0.5) / len(order)
        places[node] = (math.cos(turn), math.sin(turn))
    return places


def draw_walk(axes: Axes, graph: Graph, places: dict[int, Place], kind: Kind, walk: list[int]) -> None:
    """The neighbourhood in grey, the walk over it in its kind's colour."""
    colour = KIND_COLOURS[kind]
    for v in places:
        for w in map(int, graph.neighbours(v)):
            if w in places:
                axes.plot(*zip(places[v], places[w], strict=True), color=GRID, linewidth=0.9, zorder=1)
    rest = np.array([place for node, place in places.items() if node not in walk])
    axes.scatter(rest[:, 0], rest[:, 1], s=22, color="#b6bcc6", zorder=2)
    for number, (v, w) in enumerate(pairwise(walk), 1):
        twice = (w, v) in pairwise(walk)
        jumps = w not in graph.neighbours(v)
        draw_step(axes, places[v], places[w], number, colour, jumps=jumps, bend=0.45 if twice else 0.18)
    for node in dict.fromkeys(walk):
        first = node == walk[0]
        axes.scatter(
            *places[node], s=90 if first else 55, color=INK if first else colour, zorder=4, edgecolors=PAPER_WHITE
        )
        name(axes, graph.id_of(node), places[node], bold=first)
    axes.set_title(KIND_NAMES[kind], loc="left", fontsize=14, color=colour, fontweight="bold", x=0.03, y=0.97)
    axes.text(0.03, 0.95, SAYS[kind], transform=axes.transAxes, fontsize=11.5, color=MUTED, va="top")
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.2, 1.45))
    axes.axis("off")


def draw_step(axes: Axes, a: Place, b: Place, number: int, colour: str, *, jumps: bool, bend: float) -> None:
    """An arrow with its number; dashed where it jumps past the edges."""
    style = {"linestyle": (0, (4, 2.5)) if jumps else "-", "connectionstyle": f"arc3,rad={bend}"}
    arrow = {"arrowstyle": "-|>,head_width=0.3,head_length=0.6", "color": colour, "linewidth": 2.2}
    axes.annotate("", b, a, arrowprops=style | arrow | {"shrinkA": 6, "shrinkB": 6}, zorder=3)
    middle = ((a[0] + b[0] + bend * (b[1] - a[1])) / 2, (a[1] + b[1] - bend * (b[0] - a[0])) / 2)
    disc = {"boxstyle": "circle,pad=0.18", "facecolor": PAPER_WHITE, "edgecolor": colour, "linewidth": 1.2}
    axes.text(*middle, str(number), fontsize=10, color=colour, ha="center", va="center", bbox=disc, zorder=7)


def name(axes: Axes, text: str, place: Place, *, bold: bool) -> None:
    """A node's id beside it, away from the centre, on a ground that keeps lines away."""
    x, y = place
    inner = math.hypot(x, y) < 0.9
    side = "right" if bold else "left" if inner and x > 0 else "center"
    above = bold or y > 0
    ground = {"boxstyle": "round,pad=0.1", "facecolor": PAPER_WHITE, "edgecolor": "none", "alpha": 0.8}
    axes.text(
        x + {"right": -0.05, "left": 0.05, "center": 0}[side],
        y + (0.045 if above else -0.06),
        text,
        fontsize=11.5,
        fontweight="bold" if bold else "normal",
        color=INK,
        ha=side,
        va="bottom" if above else "top",
        bbox=ground,
        zorder=6,
    )


# ---------------------------------------------------------------- the token sequence


def token_sequence(graph: Graph) -> Figure:
    """The tokens of a node: what each is made of, and its values for the words that they have most of."""
    from matplotlib.figure import Figure

    rows = tokens_of(graph)
    values = np.stack([values for *_, values in rows])
    words = np.array(WORDS.read_text(encoding="utf-8").split())
    top = np.argsort(-values.sum(axis=0), kind="stable")[:13]

    figure = Figure(figsize=(12, 6.4), facecolor=PAPER_WHITE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 12), ylim=(6.4, 0))
    axes.axis("off")
    axes.text(0.25, 0.42, f"What the model reads of “{NODE}”", fontsize=15, color=INK, fontweight="bold")
    for column, word in enumerate(top):
        axes.text(6.99 + 0.25 * column, 1.12, words[word], fontsize=10, color=INK, rotation=45, va="bottom")
    for number, (kind, text, colour, features) in enumerate(rows):
        y = 1.4 + 0.4 * number
        axes.add_patch(tile(0.25, y - 0.16, 1.95, 0.32, colour))
        axes.text(1.225, y, kind, fontsize=10.5, color="white", ha="center", va="center", fontweight="bold")
        axes.text(2.32, y, text, fontsize=10.5, color=INK, va="center")
        for column, word in enumerate(top):
            shade = float(np.sqrt(features[word] / values[:, top].max()))
            axes.add_patch(tile(6.88 + 0.25 * column, y - 0.15, 0.22, 0.3, colour, max(shade, 0.04)))
    foot = (
        "A column is a word of the packages’ descriptions; the darker, the more of it. A walk’s start is not counted."
    )
    axes.text(0.25, 6.17, foot, fontsize=9.5, color=MUTED)
    draw_reader(axes, graph, 1.24, 1.4 + 0.4 * (len(rows) - 1) + 0.16)
    return figure


def tokens_of(graph: Graph) -> list[tuple[str, str, str, NDArray[np.float32]]]:
    """Kind, what it is made of, colour and features of every token but the SGPM-token."""
    start = graph.index_of(NODE)
    x = graph.x
    assert x is not None
    features = np.asarray(x.todense() if hasattr(x, "todense") else x, np.float32)
    rows = [("self", NODE, INK, features[start])]
    matrix = propagation_matrix(graph)
    weights = np.eye(1, graph.num_nodes, start)[0]
    for hop, hidden in enumerate(propagate(matrix, features, HOPS), 1):
        weights = matrix.T @ weights
        heaviest = np.argsort(-weights, kind="stable")[:3]
        count = int((weights > 0).sum())
        text = ", ".join(graph.id_of(int(v)) for v in heaviest) + f" and {count - 3} more, by weight"
        rows.append((f"hop {hop}", text, "#6d4c9f", np.asarray(hidden[start], np.float32)))
    for kind in KINDS:
        for number in range(2):
            walk = walk_of(graph, kind, number)
            text = " → ".join(graph.id_of(v) for v in walk[1:])
            short = KIND_NAMES[kind].replace("non-backtracking", "non-backtr.")
            rows.append((short, text, KIND_COLOURS[kind], features[walk[1:]].mean(axis=0)))
    return rows


def draw_reader(axes: Axes, graph: Graph, top: float, bottom: float) -> None:
    """What happens to the tokens, from left to right."""
    axes.add_patch(tile(10.3, top, 0.62, bottom - top, "#e7eaf0"))
    middle = (top + bottom) / 2
    axes.text(10.61, middle, "Transformer", fontsize=12, color=INK, rotation=90, ha="center", va="center")
    arrow = {"arrowstyle": "-|>", "color": MUTED, "linewidth": 1.6}
    axes.annotate("", (10.3, middle), (10.16, middle), arrowprops=arrow)
    axes.annotate("", (11.06, middle), (10.92, middle), arrowprops=arrow)
    axes.text(11.5, middle - 0.5, "readout:\na weighted\nsum", fontsize=10, color=MUTED, ha="center", va="center")
    label = graph.class_names[graph.y[graph.index_of(NODE)]]
    axes.add_patch(tile(11.06, middle - 0.18, 0.88, 0.36, INK))
    axes.text(11.5, middle, label, fontsize=11, color="white", ha="center", va="center", fontweight="bold")
    axes.text(11.5, middle + 0.38, "one of 12\nclasses", fontsize=10, color=MUTED, ha="center", va="center")


def tile(x: float, y: float, width: float, height: float, colour: str, alpha: float = 1.0) -> FancyBboxPatch:
    """A rectangle with slightly round corners."""
    return FancyBboxPatch(
        (x + 0.03, y + 0.03),
        width - 0.06,
        height - 0.06,
        boxstyle="round,pad=0.03",
        color=colour,
        alpha=alpha,
        linewidth=0,
    )


def main(folder: Path) -> list[Path]:
    """Draw everything; the files."""
    graph = load_graph("debian")
    figures = {"four-walks": four_walks(graph), "token-sequence": token_sequence(graph)}
    paths = [folder / f"{stem}.png" for stem in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        save_figure(figure, path)
        with Image.open(path) as picture:
            few = picture.convert("RGB").quantize(96)  # flat colours: a third of the size, and nothing to see of it
        few.save(path, optimize=True)
    return paths


if __name__ == "__main__":
    for path in main(Path(sys.argv[1])):
        print(path)
