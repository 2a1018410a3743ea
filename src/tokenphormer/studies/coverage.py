"""How much of a node's neighbourhood do its walks visit? (Appendix A.2; section "Graph Serialization", case 2.)

The paper says that coverage grows exponentially with the number of walks, and that on most datasets the walk-tokens
cover all nodes within k hops. Measured here: the mean share of the nodes within k hops that m walks of 4 steps visit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tokenphormer.graph import Graph, load_graph
from tokenphormer.hashing import hash_order
from tokenphormer.studies.figures import KIND_COLOURS, finish, legend_below, name_of, panels, percent_axis
from tokenphormer.studies.results import Cell, write_results
from tokenphormer.walks import KINDS, sample_walks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOPS = (1, 2, 3)
STEPS = 4
WALKS = (1, 2, 4, 8, 16, 32, 64, 100, 200, 400, 1000)
PAPER_WALKS = 100
STARTS = 500
"""Start nodes, chosen by a hash; a graph of fewer nodes has all of them."""


@dataclass(frozen=True)
class CoverageRow:
    """What so many walks of a kind see of the nodes within so many hops."""

    graph: str
    kind: str
    hops: int
    walks: int
    share: float
    """Of the nodes within `hops` hops, the start left out; the mean over start nodes."""
    complete: float
    """Share of start nodes of which every node within `hops` hops is visited."""
    neighbourhood: float
    """Mean number of nodes within `hops` hops."""


@dataclass(frozen=True)
class Coverage:
    """All rows of the study."""

    rows: list[CoverageRow]
    seed: int

    @property
    def findings(self) -> dict[str, Cell]:
        """The figures that the page quotes: the paper's 100 walks."""
        found: dict[str, Cell] = {"seed": self.seed, "steps of a walk": STEPS}
        for row in self.rows:
            if row.walks == PAPER_WALKS and row.kind in ("mixed", "uniform"):
                place = f"{row.graph}, {row.kind}, {row.walks} walks, {row.hops} hops"
                found[f"{place}: share"] = row.share
                found[f"{place}: complete"] = row.complete
        return found


def study(graphs: Sequence[Graph] | None = None, seed: int = 0, starts: int = STARTS) -> Coverage:
    """The study on some graphs; default: debian and Cora."""
    chosen = [load_graph("debian"), load_graph("cora")] if graphs is None else list(graphs)
    return Coverage([row for graph in chosen for row in coverage_rows(graph, seed, starts)], seed)


def coverage_rows(graph: Graph, seed: int, starts: int = STARTS, walks: Sequence[int] = WALKS) -> list[CoverageRow]:
    """All kinds of walk, and a quarter of each, on one graph."""
    nodes = start_nodes(graph, seed, starts)
    distance = hop_distances(graph, nodes, max(HOPS))
    firsts: dict[str, Pairs] = {}
    for kind in KINDS:
        drawn = sample_walks(graph, kind, max(walks), STEPS, nodes, seed=seed).numpy()
        firsts[kind] = first_visits(drawn)
    # Of m mixed walks each kind has m / 4: walk number i of a kind is number 4·i + its place.
    mixed = [Pairs(p.start, p.node, 4 * p.walk + place) for place, p in enumerate(firsts.values())]
    parts = ([p.start for p in mixed], [p.node for p in mixed], [p.walk for p in mixed])
    firsts["mixed"] = Pairs(*map(np.concatenate, parts))
    rows = []
    for name, pairs in firsts.items():
        for hops in HOPS:
            size = np.bincount(distance.start[distance.walk <= hops], minlength=len(nodes))
            for number in [m for m in walks if name != "mixed" or m % len(KINDS) == 0]:
                seen = visited(pairs, distance, hops, number, len(nodes))
                share, complete = float((seen / size).mean()), float((seen == size).mean())
                rows.append(CoverageRow(graph.name, name, hops, number, share, complete, float(size.mean())))
    return rows


def start_nodes(graph: Graph, seed: int, count: int) -> NDArray[np.int64]:
    """Some nodes that have a neighbour."""
    return np.sort(hash_order(np.flatnonzero(graph.degree > 0), seed)[:count])


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of a start (its place among the starts) and another node, with a number each."""

    start: NDArray[np.int64]
    node: NDArray[np.int64]
    walk: NDArray[np.int64]
    """The first walk that visits the node; of distances, the number of hops."""


def hop_distances(graph: Graph, nodes: NDArray[np.int64], hops: int) -> Pairs:
    """All nodes within `hops` hops of each start, the start left out, and how far they are."""
    n = graph.num_nodes
    adjacency = sp.csr_array((np.ones(graph.num_directed_edges), graph.indices, graph.indptr), shape=(n, n))
    reached = sp.csr_array((np.ones(len(nodes)), (np.arange(len(nodes)), nodes)), shape=(len(nodes), n))
    found: list[NDArray[np.int64]] = []
    known = np.arange(len(nodes)) * n + nodes
    for hop in range(1, hops + 1):
        reached = sp.csr_array(reached @ adjacency + reached)
        reached.data[:] = 1
        place = reached.tocoo()
        keys = np.setdiff1d(place.row.astype(np.int64) * n + place.col, known)
        known = np.concatenate([known, keys])
        found.append(np.stack([keys // n, keys % n, np.full(len(keys), hop)]))
    start, node, distance = np.concatenate(found, axis=1)
    return Pairs(start, node, distance)


def first_visits(walks: NDArray[np.int32]) -> Pairs:
    """Every node that the (B, m, L + 1) walks visit after the start, with the first walk that does."""
    starts, count, _ = walks.shape
    start = np.broadcast_to(np.arange(starts)[:, None, None], walks[:, :, 1:].shape)
    number = np.broadcast_to(np.arange(count)[None, :, None], walks[:, :, 1:].shape)
    there = walks[:, :, 1:] >= 0
    node = walks[:, :, 1:][there].astype(np.int64)
    n = int(node.max(initial=0)) + 1
    keys, first = np.unique(start[there] * n + node, return_index=True)  # in the order of the walks
    return Pairs(keys // n, keys % n, number[there][first])


def visited(pairs: Pairs, distance: Pairs, hops: int, walks: int, starts: int) -> NDArray[np.int64]:
    """(starts) how many of the nodes within `hops` hops the first `walks` walks visit."""
    n = int(max(pairs.node.max(initial=0), distance.node.max(initial=0))) + 1
    near = distance.walk <= hops
    seen = pairs.walk < walks
    inside = np.isin(distance.start[near] * n + distance.node[near], pairs.start[seen] * n + pairs.node[seen])
    return np.bincount(distance.start[near][inside], minlength=starts)


def plot(result: Coverage) -> dict[str, Figure]:
    """One figure: a row of panels a graph, a panel for each number of hops."""
    names = list(dict.fromkeys(row.graph for row in result.rows))
    figure, axes = panels(len(names), len(HOPS), 2.4, sharex=True, sharey=True)
    for line, name in zip(axes, names, strict=True):
        for panel, hops in zip(line, HOPS, strict=True):
            for kind, colour in KIND_COLOURS.items():
                rows = [r for r in result.rows if (r.graph, r.kind, r.hops) == (name, kind, hops)]
                panel.plot([r.walks for r in rows], [r.share for r in rows], color=colour, label=name_of(kind))
            panel.axvline(PAPER_WALKS, color="#b8bec7", linewidth=1, linestyle="--", zorder=0)
            title = f"{name}: {'1 hop' if hops == 1 else f'within {hops} hops'}"
            finish(panel, title, "walks" if name == names[-1] else "", log="x")
            percent_axis(panel)
    for line in axes:
        line[0].set_ylabel("nodes visited", fontsize=9)
    legend_below(figure, axes[0, 0], len(KIND_COLOURS))
    return {"coverage": figure}


def write(result: Coverage, folder: Path) -> list[Path]:
    """Write the table, findings and the figure."""
    return write_results(folder, result.findings, plot(result), coverage=result.rows)
