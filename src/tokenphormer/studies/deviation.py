"""How far are sampled information types from their probabilities? (Appendix A.2, "Analysis of Walk Coverage".)

The information type of a walk is the labels of its nodes, in order. Of n walks from a node, N have a given type of
probability p: N ~ B(n, p), for the walks are independent. The paper says P(|N/n − p| > ε) ≤ exp(−2ε²n)/n. Hoeffding's
inequality gives 2·exp(−2ε²n). No factor 1/n can be had: for ε = c/√n the left side tends to 2·(1 − Φ(c/√(p(1 − p)))),
which is above 0, and exp(−2c²)/n to 0. Here are measured and exact chances beside both bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from tokenphormer.evaluation.plots import BLUE, INK, ORANGE, SKY
from tokenphormer.graph import Graph, load_graph
from tokenphormer.studies.coverage import start_nodes
from tokenphormer.studies.figures import finish, legend_below, panels
from tokenphormer.studies.laws import transition_matrix
from tokenphormer.studies.results import Cell, write_results
from tokenphormer.walks import sample_walks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 2
EPSILONS = (0.05, 0.1, 0.2)
WALKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
STARTS = 100
REPEATS = 1000


@dataclass(frozen=True)
class DeviationRow:
    """Deviations of more than ε of all information types of some start nodes, with n walks."""

    graph: str
    epsilon: float
    walks: int
    types: int
    """Pairs of a start node and an information type that it can have."""
    exact: float
    """P(|N/n − p| > ε) by the binomial law, of the type where it is largest."""
    measured: float
    """Of that type, the share of repeats with a larger deviation than ε."""
    exact_mean: float
    """The mean over all types."""
    measured_mean: float
    hoeffding: float
    """2·exp(−2ε²n), at most 1."""
    paper: float
    """exp(−2ε²n)/n."""
    above_paper: float
    """Share of types whose exact probability is above the paper's bound."""


@dataclass(frozen=True)
class MissedRow:
    """Information types that n walks do not sample at all."""

    graph: str
    walks: int
    types: int
    missed: float
    """Measured share of types that are not among the walks."""
    exact: float
    """The mean of (1 − p)ⁿ."""


@dataclass(frozen=True)
class Deviation:
    """All rows of the study."""

    deviations: list[DeviationRow]
    missed: list[MissedRow]
    seed: int
    repeats: int

    @property
    def findings(self) -> dict[str, Cell]:
        """The figures that the page quotes."""
        worst = max(self.deviations, key=lambda row: row.exact / row.paper if row.paper > 1e-300 else 0.0)
        found: dict[str, Cell] = {"seed": self.seed, "steps of a walk": STEPS, "repeats": self.repeats}
        found["rows above Hoeffding's bound, exact"] = sum(row.exact > row.hoeffding for row in self.deviations)
        found["rows above the paper's bound, exact"] = sum(row.exact > row.paper for row in self.deviations)
        found["rows"] = len(self.deviations)
        found["largest ratio of exact to the paper's bound"] = worst.exact / worst.paper
        found["where"] = f"{worst.graph}, ε = {worst.epsilon}, n = {worst.walks}"
        for row in self.missed:
            if row.walks == 100:
                found[f"{row.graph}: share of types that 100 walks miss"] = row.missed
        return found


def hoeffding_bound(walks: int, epsilon: float) -> float:
    """P(|N/n − p| > ε) ≤ 2·exp(−2ε²n) for every p (Hoeffding 1963, theorem 2, for both sides)."""
    return min(1.0, 2 * math.exp(-2 * epsilon**2 * walks))


def paper_bound(walks: int, epsilon: float) -> float:
    """The right side as the paper has it, exp(−2ε²n)/n. It does not hold."""
    return math.exp(-2 * epsilon**2 * walks) / walks


def exceedance(p: NDArray[np.float64], walks: int, epsilon: float) -> NDArray[np.float64]:
    """P(|N/n − p| > ε) for N ~ B(n, p), exactly."""
    # Outcomes are whole numbers, and p ± ε may be one up to rounding: a hair more than ε is not more.
    low = np.ceil(walks * (p - epsilon) - 1e-9) - 1
    high = np.floor(walks * (p + epsilon) + 1e-9)
    return np.asarray(binom.cdf(low, walks, p) + binom.sf(high, walks, p), dtype=np.float64)


def type_probabilities(graph: Graph, start: int, steps: int) -> NDArray[np.float64]:
    """(classesˢᵗᵉᵖˢ) the probability of each type: P^{l₁, …, lₖ} = Π P^{lᵢ}, the row of `start` summed up."""
    classes, P = graph.num_classes, transition_matrix(graph)
    law = {start: np.ones(1)}  # node → (types so far) probability to be there
    for step in range(steps):
        ahead: dict[int, NDArray[np.float64]] = {}
        for node, mass in law.items():
            row = slice(*P.indptr[node : node + 2])
            for neighbour, chance in zip(P.indices[row].tolist(), P.data[row].tolist(), strict=True):
                types = ahead.setdefault(neighbour, np.zeros(classes ** (step + 1)))
                types[graph.y[neighbour] :: classes] += mass * chance
        law = ahead
    total: NDArray[np.float64] = np.sum(list(law.values()), axis=0)
    return np.minimum(total, 1.0)  # a sum of fractions may end a hair above 1


def type_numbers(graph: Graph, walks: NDArray[np.int32]) -> NDArray[np.int64]:
    """(…) the number of each walk's type, as `type_probabilities` counts them."""
    numbers = np.zeros(walks.shape[:-1], dtype=np.int64)
    for step in range(1, walks.shape[-1]):
        numbers = numbers * graph.num_classes + graph.y[walks[..., step]]
    return numbers


def study(
    graphs: Sequence[Graph] | None = None,
    seed: int = 0,
    starts: int = STARTS,
    repeats: int = REPEATS,
    walks: Sequence[int] = WALKS,
) -> Deviation:
    """The study on some graphs; default: debian and Cora."""
    chosen = [load_graph("debian"), load_graph("cora")] if graphs is None else list(graphs)
    deviations: list[DeviationRow] = []
    missed: list[MissedRow] = []
    for graph in chosen:
        assert (graph.y >= 0).all(), "information types are of labelled nodes"
        assert not graph.directed, "along directed edges walks may end, and then have no type"
        p, deviates, absent = _measure(graph, start_nodes(graph, seed, starts), seed, repeats, walks)
        for place, number in enumerate(walks):
            share = float(absent[place] / (len(p) * repeats))
            missed.append(MissedRow(graph.name, number, len(p), share, float(((1 - p) ** number).mean())))
            for at, epsilon in enumerate(EPSILONS):
                measured = deviates[place, at] / repeats
                deviations.append(_row(graph.name, epsilon, number, p, measured))
    return Deviation(deviations, missed, seed, repeats)


def _measure(
    graph: Graph, nodes: NDArray[np.int64], seed: int, repeats: int, walks: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """(types) p, (walks, ε, types) repeats that deviate, (walks) types that were missed, over all repeats."""
    probabilities, deviates, absent = [], [], np.zeros(len(walks), dtype=np.int64)
    for node in nodes.tolist():
        p = type_probabilities(graph, node, STEPS)
        types = np.flatnonzero(p)
        drawn = sample_walks(graph, "uniform", repeats * max(walks), STEPS, [node], seed=seed).numpy()[0]
        which = np.searchsorted(types, type_numbers(graph, drawn))
        here = np.zeros((len(walks), len(EPSILONS), len(types)), dtype=np.int64)
        for place, number in enumerate(walks):
            block = np.arange(repeats).repeat(number) * len(types) + which[: repeats * number]
            counts = np.bincount(block, minlength=repeats * len(types)).reshape(repeats, len(types))
            absent[place] += int((counts == 0).sum())
            gap = np.abs(counts / number - p[types])
            here[place] = [(gap > epsilon + 1e-12).sum(axis=0) for epsilon in EPSILONS]
        probabilities.append(p[types])
        deviates.append(here)
    return np.concatenate(probabilities), np.concatenate(deviates, axis=2), absent


def _row(name: str, epsilon: float, walks: int, p: NDArray[np.float64], measured: NDArray[np.float64]) -> DeviationRow:
    exact, bound = exceedance(p, walks, epsilon), paper_bound(walks, epsilon)
    return DeviationRow(
        graph=name,
        epsilon=epsilon,
        walks=walks,
        types=len(p),
        exact=float(exact.max()),
        measured=float(measured[exact.argmax()]),
        exact_mean=float(exact.mean()),
        measured_mean=float(measured.mean()),
        hoeffding=hoeffding_bound(walks, epsilon),
        paper=bound,
        above_paper=float((exact > bound).mean()),
    )


def plot(result: Deviation) -> dict[str, Figure]:
    """One figure: a row of panels a graph, a panel for each ε."""
    names = list(dict.fromkeys(row.graph for row in result.deviations))
    figure, axes = panels(len(names), len(EPSILONS), 2.5, sharex=True, sharey=True)
    for line, name in zip(axes, names, strict=True):
        for panel, epsilon in zip(line, EPSILONS, strict=True):
            rows = [r for r in result.deviations if (r.graph, r.epsilon) == (name, epsilon)]
            n = [r.walks for r in rows]
            panel.plot(n, [r.hoeffding for r in rows], color=INK, linestyle="--", label="2·exp(−2ε²n): Hoeffding's")
            panel.plot(n, [r.paper for r in rows], color=ORANGE, linestyle="--", label="exp(−2ε²n)/n: the paper's")
            panel.plot(n, [r.exact for r in rows], color=SKY, linewidth=3, label="exact, the worst type")
            shown = [r for r in rows if r.measured > 0]
            at = [r.walks for r in shown], [r.measured for r in shown]
            panel.plot(*at, "o", color=BLUE, markersize=4, label="measured")
            finish(panel, f"{name}: ε = {epsilon}", "walks, n" if name == names[-1] else "", log="xy")
            panel.set_ylim(1e-5, 2)
        line[0].set_ylabel("P(|N/n − p| > ε)", fontsize=9)
    legend_below(figure, axes[0, 0], 4)
    return {"deviation": figure}


def write(result: Deviation, folder: Path) -> list[Path]:
    """Write tables, findings and the figure."""
    return write_results(folder, result.findings, plot(result), deviation=result.deviations, missed=result.missed)
