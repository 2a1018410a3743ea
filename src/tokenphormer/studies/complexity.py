"""Time and memory of the Transformer against nodes, tokens and width (appendix A.4, "Complexity Analysis").

The paper: time O(|V|·N_t²·d), memory O(S_b·N_t² + S_b·N_t·d) beside the weights. Counted out, a layer of width d takes
4·N_t²·d multiplications and additions for attention and 16·N_t·d² for its linear maps, forward, a node; so the
second term, which the paper leaves out, is the larger one as long as N_t < 4·d. Times are of one core's own clock, the
best of some repeats; memory is what the layers keep for the backward pass, counted to the byte.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tokenphormer.benchmark.rows import origin
from tokenphormer.evaluation.plots import BLUE, GREEN, MUTED, ORANGE
from tokenphormer.graph import Graph
from tokenphormer.model import ModelSettings, Tokenphormer
from tokenphormer.studies.figures import ROSE, finish, legend, panels
from tokenphormer.studies.results import Cell, write_results
from tokenphormer.tokens import TokenSettings, TokenSource

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Shape = tuple[int, int, int]
"""Nodes of a batch, tokens a node, hidden channels."""
SWEEPS: dict[str, tuple[Shape, ...]] = {
    "nodes": tuple((nodes, 32, 64) for nodes in (32, 64, 128, 256, 512)),
    "tokens, width 16": tuple((2, tokens, 16) for tokens in (256, 512, 1024, 2048, 4096)),
    "tokens, width 512": tuple((8, tokens, 512) for tokens in (8, 16, 32, 64, 128)),
    "width, 2048 tokens": tuple((1, 2048, width) for width in (32, 64, 128, 256)),
    "width, 16 tokens": tuple((16, 16, width) for width in (128, 256, 512, 1024)),
}
CLAIMED = {"tokens": 2, "width": 1, "nodes": 1}
"""The exponents of O(|V|·N_t²·d)."""
TITLES = {"tokens": "Tokens a node", "width": "Hidden channels", "nodes": "Nodes"}
GRAPHS = (500, 1000, 2000, 4000, 8000)
PAPER: Shape = (2000, 104, 512)
"""A batch of the paper: a self token, 3 hop-tokens, 100 walk-tokens."""


@dataclass(frozen=True)
class CostRow:
    """One size: forward and backward through encoder, readout and head."""

    sweep: str
    nodes: int
    tokens: int
    width: int
    seconds: float
    kept_bytes: int
    """What the forward pass keeps for the backward pass, weights not counted."""
    operations: int
    """Multiplications and additions of one layer forward: attention and linear maps."""
    attention_share: float
    """Attention's part of them."""


@dataclass(frozen=True)
class SlopeRow:
    """The exponent that fits a sweep: the slope of its logarithms."""

    sweep: str
    claimed: int
    seconds: float
    seconds_at_the_end: float
    """Between the two largest sizes, where fixed costs weigh least."""
    operations: float
    kept_bytes: float


@dataclass(frozen=True)
class MemoryRow:
    """Bytes kept for one node as a·N_t + b·N_t² + c: exactly, by three sizes."""

    attention: str
    width: int
    bytes_per_token: float
    bytes_per_token_squared: float


@dataclass(frozen=True)
class StepRow:
    """The whole graph once: making all tokens, and forward and backward over all nodes."""

    nodes: int
    token_seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Complexity:
    """All rows of the study. Times are of the machine it ran on; the other columns are the same everywhere."""

    costs: list[CostRow]
    slopes: list[SlopeRow]
    memory: list[MemoryRow]
    steps: list[StepRow]

    @property
    def findings(self) -> dict[str, Cell]:
        """The figures that the page quotes, and the machine."""
        about = origin()
        found: dict[str, Cell] = {key: str(about["hardware"][key]) for key in ("cpu", "cores")}
        found["torch"] = about["versions"]["torch"]
        nodes = [row.nodes for row in self.steps]
        found["slope of the time to make tokens against nodes"] = slope(nodes, [r.token_seconds for r in self.steps])
        found["slope of the time of a step against nodes"] = slope(nodes, [r.step_seconds for r in self.steps])
        found["share of attention at the paper's sizes"] = attention_share(*PAPER)
        return found


def operations(nodes: int, tokens: int, width: int) -> tuple[int, int]:
    """Multiplications and additions of one layer forward: QKᵀ and its product with V; the six linear maps.

    Queries, keys, values and output are 4 maps of d × d, the feed-forward network is two of d × 2d: 8·d² weights.
    """
    return nodes * 4 * tokens**2 * width, nodes * tokens * 2 * 8 * width**2


def attention_share(nodes: int, tokens: int, width: int) -> float:
    """Attention's part of the operations: N_t / (N_t + 4·d)."""
    attention, linear = operations(nodes, tokens, width)
    return attention / (attention + linear)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of the power law that fits best: the slope of log y on log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def study(
    sweeps: dict[str, tuple[Shape, ...]] = SWEEPS, graphs: Sequence[int] = GRAPHS, repeats: int = 5
) -> Complexity:
    """The study on this machine's CPU, on one core."""
    with one_thread():
        costs = [cost_row(name, shape, repeats) for name, shapes in sweeps.items() for shape in shapes]
        steps = [step_row(nodes, repeats) for nodes in graphs]
        memory = [memory_row(width) for width in (64, 512)]
    slopes = [slope_row(name, [row for row in costs if row.sweep == name]) for name in sweeps]
    return Complexity(costs, slopes, memory, steps)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def best_seconds(run: Callable[[], object], repeats: int) -> float:
    """The least time that the processor itself spent on a run; the first one, which warms up, does not count."""
    run()
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        run()
        best = min(best, time.process_time() - began)
    return best


def encoder(width: int) -> Tokenphormer:
    """The paper's one layer and one head of some width, without dropout."""
    torch.manual_seed(0)
    settings = ModelSettings(hidden_channels=width, num_heads=1, dropout=0.0, attention_dropout=0.0)
    return Tokenphormer(8, 4, settings)


def kept_bytes(shape: Shape) -> int:
    """Bytes that encoder, readout and head keep for the backward pass, each piece of memory counted once."""
    nodes, tokens, width = shape
    model = encoder(width)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor  # held, so that its place is not given to another
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores, _ = model.encode(torch.randn(nodes, tokens, width, requires_grad=True))
    del scores
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def cost_row(sweep: str, shape: Shape, repeats: int) -> CostRow:
    """Measure one size."""
    nodes, tokens, width = shape
    model = encoder(width)
    H = torch.randn(nodes, tokens, width, requires_grad=True)
    seconds = best_seconds(lambda: torch.autograd.backward(model.encode(H)[0].sum()), repeats)
    total = sum(operations(*shape))
    return CostRow(sweep, nodes, tokens, width, seconds, kept_bytes(shape), total, attention_share(*shape))


def slope_row(sweep: str, rows: Sequence[CostRow]) -> SlopeRow:
    """Fit the exponents of a sweep."""
    kind = sweep.split(",")[0]
    x = [{"nodes": row.nodes, "tokens": row.tokens, "width": row.width}[kind] for row in rows]
    return SlopeRow(
        sweep,
        CLAIMED[kind],
        slope(x, [row.seconds for row in rows]),
        slope(x[-2:], [row.seconds for row in rows[-2:]]),
        slope(x, [row.operations for row in rows]),
        slope(x, [row.kept_bytes for row in rows]),
    )


def memory_row(width: int) -> MemoryRow:
    """Solve for the linear and the quadratic part of the memory."""
    tokens = np.array([32, 64, 128])
    kept = [kept_bytes((1, int(t), width)) for t in tokens]
    c2, c1, _ = np.linalg.solve(np.stack([tokens**2, tokens, np.ones(3)], axis=1), np.array(kept))
    return MemoryRow("plain" if width > 256 else "fused", width, float(c1), float(round(c2, 6)))


def ring_with_chords(nodes: int, seed: int = 0) -> Graph:
    """A cycle with as many random edges, and 32 random features."""
    rng = np.random.default_rng(seed)
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes])
    edges = np.concatenate([ring, rng.integers(0, nodes, (2, nodes))], axis=1)
    return Graph.from_edges(edges, num_nodes=nodes, x=rng.normal(size=(nodes, 32)).astype(np.float32))


def step_row(nodes: int, repeats: int) -> StepRow:
    """Measure a whole graph: 12 walk-tokens and 3 hop-tokens a node, width 32."""
    graph, every = ring_with_chords(nodes), torch.arange(nodes)
    settings = TokenSettings(num_walks=12, walk_length=4, num_hops=3)
    token_seconds = best_seconds(lambda: TokenSource(graph, settings, hidden_channels=32).batch(every.clone()), repeats)
    torch.manual_seed(0)
    model = Tokenphormer(32, 4, ModelSettings(hidden_channels=32, dropout=0.0, attention_dropout=0.0))
    batch = TokenSource(graph, settings, hidden_channels=32).batch(every)
    return StepRow(nodes, token_seconds, best_seconds(lambda: torch.autograd.backward(model(batch).sum()), repeats))


def plot(result: Complexity) -> dict[str, Figure]:
    """Two figures: times against tokens, width and nodes, and memory; each with the fitted exponents."""
    return {"time": _plot_time(result), "memory": _plot_memory(result)}


def _plot_time(result: Complexity) -> Figure:
    figure, axes = panels(1, 3, 3.2)
    for panel, kind in zip(axes[0], CLAIMED, strict=True):
        for sweep in result.slopes:
            if sweep.sweep.startswith(kind):
                rows = [row for row in result.costs if row.sweep == sweep.sweep]
                _line(panel, kind, rows, [row.seconds for row in rows], sweep.seconds)
        finish(panel, TITLES[kind], f"{kind} (the paper: exponent {CLAIMED[kind]})", log="xy")
    nodes = [row.nodes for row in result.steps]
    for name, colour, seconds in (
        ("whole step", ROSE, [row.step_seconds for row in result.steps]),
        ("making tokens", MUTED, [row.token_seconds for row in result.steps]),
    ):
        label = f"{name}: exponent {slope(nodes, seconds):.2f}"
        axes[0, -1].plot(nodes, seconds, "o-", color=colour, markersize=4, label=label)
    axes[0, 0].set_ylabel("seconds, forward and backward", fontsize=9)
    _legends(axes[0])
    return figure


def _plot_memory(result: Complexity) -> Figure:
    figure, axes = panels(1, 3, 3.0)
    for panel, kind in zip(axes[0], CLAIMED, strict=True):
        for sweep in result.slopes:
            if sweep.sweep.startswith(kind):
                rows = [row for row in result.costs if row.sweep == sweep.sweep]
                _line(panel, kind, rows, [row.kept_bytes / 2**20 for row in rows], sweep.kept_bytes)
        finish(panel, TITLES[kind], kind, log="xy")
    axes[0, 0].set_ylabel("MiB kept for the backward pass", fontsize=9)
    _legends(axes[0])
    return figure


def _line(axes: Axes, kind: str, rows: Sequence[CostRow], values: Sequence[float], exponent: float) -> None:
    sweep = rows[0].sweep
    colour = GREEN if kind == "nodes" else BLUE if sweep in ("tokens, width 16", "width, 2048 tokens") else ORANGE
    label = f"{sweep.split(', ')[1] if ',' in sweep else 'encoder'}: exponent {exponent:.2f}"
    axes.plot([getattr(row, kind) for row in rows], values, "o-", color=colour, markersize=4, label=label)


def _legends(line: Sequence[Axes]) -> None:
    for panel in line:
        legend(panel, loc="upper left")
        low, high = panel.get_ylim()
        panel.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend


def write(result: Complexity, folder: Path) -> list[Path]:
    """Write tables, findings and the figure."""
    return write_results(
        folder,
        result.findings,
        plot(result),
        costs=result.costs,
        slopes=result.slopes,
        memory=result.memory,
        steps=result.steps,
    )
