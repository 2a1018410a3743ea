"""Two graphs that hop-tokens confuse and walk-tokens tell apart, and the reverse (appendix A.3, "Analysis of tokens").

Hop-tokens are the layers of a node's message passing tree, each summed up; walk-tokens are its paths. Where layers are
equal and paths are not, hop-tokens of node v agree bit for bit, and the laws of its walk-tokens differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.evaluation.plots import BLUE, GREEN, INK, MUTED, ORANGE, SKY
from tokenphormer.graph import Graph
from tokenphormer.hops import NORMALISATIONS, Normalisation, propagate, propagation_matrix
from tokenphormer.studies.figures import ROSE, Places, draw_graph, finish, legend, name_of, panels
from tokenphormer.studies.laws import walk_law
from tokenphormer.studies.results import Cell, write_results
from tokenphormer.walks import KINDS, Kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOPS = 4
STEPS = 2
ROUNDING = 1e-6
"""Differences below are of float32, not of the graphs."""
LETTERS = "vPQRS"
"""Features are one-hot: the letter of a node. Node 0 is v, the one that is looked at."""
COLOURS = dict(zip(LETTERS, (MUTED, BLUE, ORANGE, GREEN, ROSE), strict=True))
Token = tuple[Fraction, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """Two graphs on the same nodes, and the walk whose tokens the figure shows."""

    name: str
    letters: str
    a: Graph
    b: Graph
    places: tuple[Places, Places]
    kind: Kind


@dataclass(frozen=True)
class HopRow:
    """Whether a hop-token of v is the same in both graphs."""

    case: str
    normalisation: str
    hop: int
    same_bits: bool
    largest_difference: float


@dataclass(frozen=True)
class WalkRow:
    """How far the laws of v's walk-tokens are apart."""

    case: str
    kind: str
    steps: int
    tv_of_tokens: float
    """Tokens are means of features, which forget the order of nodes."""
    tv_of_paths: float
    """The same for the features in their order."""


@dataclass(frozen=True)
class HopPair:
    """All rows of the study."""

    hops: list[HopRow]
    walks: list[WalkRow]

    @property
    def findings(self) -> dict[str, Cell]:
        """The figures that the page quotes."""
        found: dict[str, Cell] = {}
        for case in cases():
            for normalisation in NORMALISATIONS:
                rows = [row for row in self.hops if (row.case, row.normalisation) == (case.name, normalisation)]
                first = next((row.hop for row in rows if row.largest_difference > ROUNDING), None)
                found[f"{case.name}: first hop that differs, {normalisation}"] = first
            for walk in self.walks:
                if walk.case == case.name and walk.steps == STEPS:
                    found[f"{case.name}: tv of {walk.kind} tokens, {STEPS} steps"] = walk.tv_of_tokens
        return found


def cases() -> list[Case]:
    """The three pairs."""
    tree = ((0.0, 2.0), (-1.0, 1.0), (1.0, 1.0))
    path = (*tree, (-1.0, 0.0), (1.0, 0.0))
    crossed = (*tree, (1.0, 0.0), (-1.0, 0.0))
    apart = (*tree, (-1.6, 0.0), (-0.5, 0.0), (0.5, 0.0), (1.6, 0.0))
    mixed = (*tree, (-1.6, 0.0), (1.6, 0.0), (-0.5, 0.0), (0.5, 0.0))
    chain = ((0.0, 2.0), (0.0, 1.0), (0.0, 0.0))
    turned = ((0.0, 2.0), (0.0, 0.0), (0.0, 1.0))
    return [
        Case(
            "exchanged ends",
            "vPQRS",
            _graph("vPQRS", "vP vQ PR QS"),
            _graph("vPQRS", "vP vQ PS QR"),
            (path, crossed),
            "uniform",
        ),
        # Nodes 3, 4 have the letter R, nodes 5, 6 the letter S; r, s are the second of each.
        Case(
            "triangle or pentagon",
            "vPQRRSS",
            _graph("vPQRrSs", "vP vQ PR Pr QS Qs Ss"),
            _graph("vPQRrSs", "vP vQ PR PS Qr Qs Ss"),
            (apart, mixed),
            "uniform",
        ),
        Case(
            "exchanged order",
            "vPQ",
            _graph("vPQ", "vP PQ"),
            _graph("vPQ", "vQ QP"),
            (chain, turned),
            "non_backtracking",
        ),
    ]


def _graph(nodes: str, edges: str) -> Graph:
    x = np.array([[letter.upper() == each.upper() for each in LETTERS] for letter in nodes], dtype=np.float32)
    index = np.array([[nodes.index(end) for end in edge] for edge in edges.split()]).T
    return Graph.from_edges(index, num_nodes=len(nodes), x=x)


def study() -> HopPair:
    """The study; nothing in it is drawn."""
    hops, walks = [], []
    for case in cases():
        hops += [row for normalisation in NORMALISATIONS for row in hop_rows(case, normalisation)]
        walks += [walk_row(case, kind, steps) for kind in KINDS for steps in (1, STEPS, STEPS + 1, STEPS + 2)]
    return HopPair(hops, walks)


def hop_tokens(graph: Graph, normalisation: Normalisation) -> list[NDArray[np.float32]]:
    """[(F)] the hop-tokens 1 … `HOPS` of node 0."""
    assert isinstance(graph.x, np.ndarray)
    return [np.asarray(H)[0] for H in propagate(propagation_matrix(graph, normalisation), graph.x, HOPS)]


def hop_rows(case: Case, normalisation: Normalisation) -> list[HopRow]:
    """Compare the hop-tokens of v."""
    rows = []
    both = zip(hop_tokens(case.a, normalisation), hop_tokens(case.b, normalisation), strict=True)
    for hop, (a, b) in enumerate(both, start=1):
        difference = float(np.abs(a - b).max())
        rows.append(HopRow(case.name, normalisation, hop, a.tobytes() == b.tobytes(), difference))
    return rows


def token_law(case: Case, graph: Graph, kind: Kind, steps: int) -> dict[Token, Fraction]:
    """The law of v's walk-tokens: means of the one-hot features of the nodes after the start."""
    law: dict[Token, Fraction] = {}
    for path, mass in path_law(case, graph, kind, steps).items():
        token = tuple(Fraction(path.count(letter), len(path)) for letter in LETTERS)
        law[token] = law.get(token, Fraction(0)) + mass
    return law


def path_law(case: Case, graph: Graph, kind: Kind, steps: int) -> dict[str, Fraction]:
    """The law of the letters on v's walks, in their order."""
    law: dict[str, Fraction] = {}
    for walk, mass in walk_law(graph, kind, 0, steps).items():
        path = "".join(case.letters[node] for node in walk[1:])
        law[path] = law.get(path, Fraction(0)) + mass
    return law


def walk_row(case: Case, kind: Kind, steps: int) -> WalkRow:
    """Compare the laws of v's walks."""
    tokens = _distance(*(token_law(case, graph, kind, steps) for graph in (case.a, case.b)))
    paths = _distance(*(path_law(case, graph, kind, steps) for graph in (case.a, case.b)))
    return WalkRow(case.name, kind, steps, tokens, paths)


def _distance(a: dict[Any, Fraction], b: dict[Any, Fraction]) -> float:
    zero = Fraction(0)
    return float(sum((abs(a.get(key, zero) - b.get(key, zero)) for key in a | b), zero) / 2)


def plot(_: HopPair) -> dict[str, Figure]:
    """One figure a case: both graphs, a hop-token, the law of the walk-tokens."""
    return {case.name.replace(" ", "-"): _plot_case(case) for case in cases()}


def _plot_case(case: Case) -> Figure:
    figure, axes = panels(2, 2, 2.5)
    for panel, graph, places, name in zip(axes[0], (case.a, case.b), case.places, "ab", strict=True):
        draw_graph(panel, graph, places, [COLOURS[letter] for letter in case.letters], list(case.letters))
        panel.set(xlim=(-2.2, 2.2), ylim=(-0.35, 2.35))
        panel.set_title(f"({name})", loc="left", fontsize=10, color=INK, fontweight="bold")
    hop = 1 if case.kind == "non_backtracking" else STEPS
    tokens = [hop_tokens(graph, "none")[hop - 1] for graph in (case.a, case.b)]
    shown = [place for place, letter in enumerate(LETTERS) if letter in case.letters]
    _bars(axes[1, 0], [LETTERS[place] for place in shown], [token[shown].tolist() for token in tokens])
    finish(axes[1, 0], f"Hop-token {hop} of v: {'AX' if hop == 1 else 'A²X'}", "feature")
    laws = [token_law(case, graph, case.kind, STEPS) for graph in (case.a, case.b)]
    keys = sorted(laws[0] | laws[1], reverse=True)
    _bars(axes[1, 1], [_word(key) for key in keys], [[float(law.get(key, 0)) for key in keys] for law in laws])
    finish(axes[1, 1], f"Walk-tokens of v, {name_of(case.kind)}, {STEPS} steps", "nodes that are pooled", "probability")
    legend(axes[1, 1], ncols=2, loc="lower right", bbox_to_anchor=(1, 1.1), borderaxespad=0)
    return figure


def _bars(axes: Any, names: list[str], values: list[list[float]]) -> None:
    at = np.arange(len(names))
    for side, (heights, name, colour) in enumerate(zip(values, "ab", (BLUE, SKY), strict=True)):
        axes.bar(at + 0.4 * side - 0.2, heights, width=0.36, color=colour, label=f"({name})")
    axes.set_xticks(at, names)
    spare = max(4 - len(names), 0) / 2  # a lone pair of bars is not to fill the picture
    axes.set_xlim(-0.6 - spare, len(names) - 0.4 + spare)


def _word(token: Token) -> str:
    """The letters of a mean of `STEPS` one-hot vectors."""
    return "".join(letter * int(share * STEPS) for letter, share in zip(LETTERS, token, strict=True))


def write(result: HopPair, folder: Path) -> list[Path]:
    """Write tables, findings and figures."""
    return write_results(folder, result.findings, plot(result), hops=result.hops, walks=result.walks)
