"""Does a graph document come to dᵢ / 2|E|? (The paper's Lemma 1 and appendix A.1, "Analysis of Graph Documents".)

Three questions. Which walks leave dᵢ / 2|E| unchanged? How far from it are the visit frequencies of a document with
infinitely many sentences of a given length? And how close does a drawn document come as its sentences grow in number?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from tokenphormer.evaluation.plots import BLUE, MUTED, ORANGE
from tokenphormer.graph import Graph, load_graph
from tokenphormer.graph.statistics import component_labels
from tokenphormer.sgpm import GraphDocument
from tokenphormer.sgpm.settings import SGPMSettings
from tokenphormer.studies.figures import KIND_COLOURS, finish, legend_below, name_of, panels, small
from tokenphormer.studies.laws import Law, degree_law, jump_limit, position_laws, step_law, total_variation
from tokenphormer.studies.results import Cell, write_results
from tokenphormer.walks import KINDS, Kind, sample_walks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

START_NAMES = ("every node", "by degree", "one node")
LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SENTENCES = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Stationary:
    """Whether a kind of walk leaves the degree law unchanged."""

    graph: str
    kind: str
    tv_moved: float
    """Total variation between dᵢ / 2|E| and the law of the position 20 steps later."""
    tv_moved_from_jump_limit: float | None
    """The same for dᵢ (1 − Kᵢᵢ), which the plain jump leaves unchanged."""
    tv_of_limits: float | None
    """Total variation between those two laws."""


@dataclass(frozen=True)
class Floor:
    """What a document of infinitely many sentences is away from dᵢ / 2|E|, exactly."""

    graph: str
    part: str
    kind: str
    start: str
    length: int
    tv: float


@dataclass(frozen=True)
class Drawn:
    """A drawn document: visit frequencies against dᵢ / 2|E|, and against its own infinite version."""

    graph: str
    start: str
    length: str
    sentences: int
    words: int
    tv: float
    tv_from_own_limit: float | None


@dataclass(frozen=True)
class Convergence:
    """All rows of the study."""

    stationary: list[Stationary]
    floors: list[Floor]
    drawn: list[Drawn]
    between_components: dict[str, float]
    """Of each graph, the distance that no length takes away."""
    seed: int

    @property
    def findings(self) -> dict[str, Cell]:
        """The figures that the page quotes."""
        found: dict[str, Cell] = {"seed": self.seed}
        for name, tv in self.between_components.items():
            found[f"{name}, every node: tv that no length takes away"] = tv
        for row in self.drawn:  # the last one of each kind, which is the largest
            found[f"{row.graph}, {row.start}, length {row.length}: tv of the largest document"] = row.tv
        for floor in self.floors:
            if floor.kind == "non_backtracking" and floor.start == "every node" and floor.length == max(LENGTHS):
                found[f"{floor.graph}, {floor.part}: tv at length {floor.length}, infinitely many sentences"] = floor.tv
        return found


def study(graphs: Sequence[Graph] | None = None, seed: int = 0) -> Convergence:
    """The study on some graphs; default: debian and Cora."""
    chosen = [load_graph("debian"), load_graph("cora")] if graphs is None else list(graphs)
    stationary: list[Stationary] = []
    floors: list[Floor] = []
    drawn: list[Drawn] = []
    for graph in chosen:
        whole = {"whole graph": graph, "largest component": largest_component(graph)}
        stationary += [stationary_row(graph, kind) for kind in KINDS]
        for part, piece in whole.items():
            for kind in KINDS if part == "largest component" else KINDS[:2]:
                floors += floor_rows(piece, graph.name, part, kind)
        drawn += document_rows(graph, seed)
        for start in START_NAMES[:2]:
            drawn += fixed_length_rows(graph, start, 10, seed)
    weighted = weighted_example()
    stationary += [stationary_row(weighted, kind) for kind in KINDS]
    between = {graph.name: between_components(graph) for graph in chosen}
    return Convergence(stationary, floors, drawn, between, seed)


def weighted_example() -> Graph:
    """A triangle with a tail, one edge ten times as heavy: where weights make non-backtracking walks different."""
    edges = [[0, 0, 1, 2], [1, 2, 2, 3]]
    return Graph.from_edges(edges, edge_weight=[10.0, 1.0, 1.0, 1.0], name="weighted triangle with a tail")


def largest_component(graph: Graph) -> Graph:
    """The graph of the largest component's nodes."""
    labels = component_labels(graph)
    place = np.cumsum(labels == 0) - 1
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    inside = (labels[source] == 0) & (source <= graph.indices)
    edges = np.stack([place[source[inside]], place[graph.indices[inside]]])
    weight = None if graph.edge_weight is None else graph.edge_weight[inside]
    n = int((labels == 0).sum())
    return Graph.from_edges(edges, num_nodes=n, edge_weight=weight, self_loops=True, name=graph.name)


def between_components(graph: Graph) -> float:
    """½ Σ |n_c / n − E_c / E| over components c: a walk keeps to its component, and sentences begin at every node.

    Edges count by their weights. Nodes without edges do not count: their sentences have one word, however long others
    are.
    """
    labels, begun = component_labels(graph), graph.degree > 0
    edges = np.bincount(labels, degree_law(graph))
    return total_variation(np.bincount(labels, begun) / begun.sum(), edges / edges.sum())


def start_law(graph: Graph, start: str) -> Law:
    """(n) where sentences begin: at every node alike, at nodes by their degree, or at the node of the most edges."""
    if start == "by degree":
        return degree_law(graph)
    if start == "every node":
        return np.full(graph.num_nodes, 1 / graph.num_nodes)
    law = np.zeros(graph.num_nodes)
    law[int(np.argmax(graph.degree))] = 1
    return law


def visit_law(graph: Graph, kind: Kind, start: Law, length: int) -> Law:
    """(n) how often a word of infinitely many sentences of `length` steps is each node."""
    total: Law = np.sum(list(position_laws(graph, kind, start, length)), axis=0)
    share: Law = total / total.sum()
    return share


def stationary_row(graph: Graph, kind: Kind, steps: int = 20) -> Stationary:
    """Start in dᵢ / 2|E| and see whether the law of the position stays."""
    degrees = degree_law(graph)
    moved = total_variation(degrees, list(position_laws(graph, kind, degrees, steps))[-1])
    if kind != "jump":
        return Stationary(graph.name, kind, moved, None, None)
    limit = jump_limit(graph)
    after = total_variation(limit, limit @ step_law(graph, kind))
    return Stationary(graph.name, kind, moved, after, total_variation(degrees, limit))


def floor_rows(graph: Graph, name: str, part: str, kind: Kind, lengths: Sequence[int] = LENGTHS) -> list[Floor]:
    """The exact distances of documents with infinitely many sentences, for each start and length."""
    rows = []
    target = degree_law(graph)
    for start in START_NAMES if kind in KINDS[:2] else START_NAMES[:2]:
        total = np.zeros(graph.num_nodes)
        for step, law in enumerate(position_laws(graph, kind, start_law(graph, start), max(lengths))):
            total = total + law
            if step in lengths:
                tv = total_variation(total / total.sum(), target)
                rows.append(Floor(name, part, kind, start, step, tv))
    return rows


def document_rows(graph: Graph, seed: int, sentences: Sequence[int] = SENTENCES) -> list[Drawn]:
    """The document that SGPM reads: non-backtracking, lengths from N(radius of the component, 1)."""
    document = GraphDocument(graph, SGPMSettings(seed=seed))
    counts, written = np.zeros(graph.num_nodes, dtype=np.int64), 0
    rows, target = [], degree_law(graph)
    for number in range(max(sentences)):
        drawn = document.sentences(number, torch.device("cpu"))
        inside = torch.arange(drawn.walks.shape[1])[None] < drawn.counts[:, None]
        words = drawn.walks[inside].numpy()
        counts += np.bincount(words, minlength=graph.num_nodes)
        written += len(words)
        if number + 1 in sentences:
            tv = total_variation(counts / written, target)
            total = (number + 1) * graph.num_nodes
            rows.append(Drawn(graph.name, "every node", "N(radius, 1)", total, written, tv, None))
    return rows


def fixed_length_rows(
    graph: Graph, start: str, length: int, seed: int, sentences: Sequence[int] = SENTENCES
) -> list[Drawn]:
    """Documents of one length: so many sentences from each node, or about as many in all, alike for each edge's end."""
    rows, target = [], degree_law(graph)
    limit = visit_law(graph, "non_backtracking", start_law(graph, start), length)
    degree = graph.degree if start == "by degree" else np.ones(graph.num_nodes, dtype=np.int64)
    for each in sorted({max(1, round(number * graph.num_nodes / int(degree.sum()))) for number in sentences}):
        counts, total = np.zeros(graph.num_nodes, dtype=np.int64), 0
        for times in np.unique(degree[degree > 0]).tolist():
            nodes = np.flatnonzero(degree == times)
            walks = sample_walks(graph, "non_backtracking", each * times, length, nodes, seed=seed).numpy()
            counts += visits(walks, graph.num_nodes)
            total += len(nodes) * each * times
        share = counts / counts.sum()
        tv, own = total_variation(share, target), total_variation(share, limit)
        rows.append(Drawn(graph.name, start, str(length), total, int(counts.sum()), tv, own))
    return rows


def visits(walks: NDArray[np.int32], num_nodes: int) -> NDArray[np.int64]:
    """(n) how often each node is a word of these walks."""
    return np.bincount(walks[walks >= 0], minlength=num_nodes)


def plot(result: Convergence) -> dict[str, Figure]:
    """Two figures: drawn documents by their number of sentences, and infinite ones by the length of sentences."""
    return {"sentences": _plot_drawn(result), "lengths": _plot_floors(result)}


def _plot_drawn(result: Convergence) -> Figure:
    names = list(dict.fromkeys(row.graph for row in result.drawn))
    figure, axes = panels(1, len(names), 3.3, sharey=True)
    styles = {
        ("every node", "N(radius, 1)"): (BLUE, "o", "every node alike, length N(radius, 1): SGPM's document"),
        ("every node", "10"): (ORANGE, "s", "every node alike, length 10"),
        ("by degree", "10"): (KIND_COLOURS["jump"], "^", "by degree, length 10"),
    }
    for panel, name in zip(axes[0], names, strict=True):
        for (start, length), (colour, marker, label) in styles.items():
            rows = [r for r in result.drawn if (r.graph, r.start, r.length) == (name, start, length)]
            line = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.5}
            panel.plot([r.sentences for r in rows], [r.tv for r in rows], label=label, **line)
        finish(panel, name, "sentences in the document", "total variation from dᵢ / 2|E|", log="xy")
    axes[0, -1].set_ylabel("")
    legend_below(figure, axes[0, 0], 3)
    return figure


def _plot_floors(result: Convergence) -> Figure:
    names = list(dict.fromkeys(row.graph for row in result.floors))
    figure, axes = panels(1, len(names), 3.3, sharey=True)
    for panel, name in zip(axes[0], names, strict=True):
        for kind in KINDS:
            for start, dash in (("every node", "-"), ("by degree", ":")):
                key = (name, "largest component", kind, start)
                rows = [r for r in result.floors if (r.graph, r.part, r.kind, r.start) == key and r.tv > 1e-9]
                label = f"{name_of(kind)}, {start}"
                line = {"color": KIND_COLOURS[kind], "linestyle": dash, "linewidth": 1.6}
                if rows:
                    panel.plot([r.length for r in rows], [r.tv for r in rows], label=label, **line)
        key = (name, "whole graph", "non_backtracking", "every node")
        rows = [r for r in result.floors if (r.graph, r.part, r.kind, r.start) == key]
        line = {"color": MUTED, "linestyle": "--", "linewidth": 1.2}
        label = "non-backtracking, every node, all components"
        panel.plot([r.length for r in rows], [r.tv for r in rows], label=label, **line)
        title = f"{name}: infinitely many sentences"
        finish(panel, title, "steps of a sentence", "total variation from dᵢ / 2|E|", log="xy")
    axes[0, -1].set_ylabel("")
    words = "by degree, uniform and\nnon-backtracking: 0"
    axes[0, 0].text(0.02, 0.02, words, transform=axes[0, 0].transAxes, **small())
    legend_below(figure, axes[0, 0], 3)
    return figure


def write(result: Convergence, folder: Path) -> list[Path]:
    """Write tables, findings and figures."""
    return write_results(
        folder,
        result.findings,
        plot(result),
        stationary=result.stationary,
        lengths=result.floors,
        sentences=result.drawn,
    )
