"""Attention over a whole graph: its mean by kind of token, hop and length of walk, for classes and degrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.evaluation.breakdown import bin_by_degree
from tokenphormer.evaluation.plots import (
    BLUE,
    INK,
    WIDTH,
    message_figure,
    new_figure,
    percent_ticks,
    plain_text,
    small_text,
    style_axes,
)
from tokenphormer.explain import Explainer
from tokenphormer.explain.attention import readout_attention
from tokenphormer.explain.reading import Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

By = Literal["all", "class", "degree"]
NUMBERS_AT_ONCE = 1 << 24
"""In the token states of the nodes that are read at once."""
MAX_GROUPS = 20
"""Classes that the picture shows; the table has all."""


@dataclass(frozen=True)
class AttentionRow:
    """The mean attention of some nodes on some of their tokens."""

    by: By
    group: str
    """A predicted class, a range of degrees, or `all`."""
    nodes: int
    part: str
    """A kind of token, `walks of 3 steps` or `walks over 2 nodes`."""
    tokens: float
    """Mean number of such tokens in a sequence."""
    attention: float
    """Mean of the attention that they have together."""
    even: float
    """What they would have if all tokens had the same."""

    @property
    def lift(self) -> float:
        """How many times the even share it is; 1 if there is no such token."""
        return self.attention / self.even if self.even else 1.0


@dataclass(frozen=True)
class AttentionSummary:
    """What `summarise_attention` found."""

    graph: str
    nodes: int
    rows: tuple[AttentionRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)

    def of(self, by: By) -> dict[str, list[AttentionRow]]:
        """The rows of one grouping, by group."""
        found: dict[str, list[AttentionRow]] = {}
        for row in self.rows:
            if row.by == by:
                found.setdefault(row.group, []).append(row)
        return found

    def table(self, by: By = "all") -> tuple[list[str], list[list[str]]]:
        """Header and rows: for all nodes shares in full, for groups how many times the even share each part has."""
        groups = self.of(by)
        if by == "all":
            rows = [
                [row.part, f"{row.tokens:.1f}", f"{row.attention:.1%}", f"{row.even:.1%}", f"{row.lift:.2f} ×"]
                for row in groups.get("all", [])
            ]
            return ["part", "tokens", "attention", "even share", "ratio"], [[_words(row[0]), *row[1:]] for row in rows]
        parts = list(dict.fromkeys(row.part for rows_of in groups.values() for row in rows_of))
        header = [by, "nodes", *map(_words, parts)]
        return header, [
            [group, f"{found[0].nodes:,}", *(f"{row.lift:.2f} ×" if row.tokens else "–" for row in found)]
            for group, found in groups.items()
        ]

    def to_markdown(self, by: By = "all") -> str:
        """The table as Markdown."""
        header, rows = self.table(by)
        lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def summarise_attention(explainer: Explainer, nodes: NDArray[np.int64] | None = None) -> AttentionSummary:
    """Mean readout attention over nodes (all, if none are named) by kind of token, hop and length of walk.

    Also by predicted class and by degree. The walks are those of the first vote. What a walk's length is depends on
    the eye: the steps it makes (all the same unless it ends early), and the different nodes it stands on.
    """
    chosen = np.arange(explainer.graph.num_nodes) if nodes is None else np.asarray(nodes, dtype=np.int64)
    if not len(chosen):
        raise InputError("summarise_attention: expected at least one node, got none")
    source, module = explainer.method.source, explainer.method.module
    size = max(1, NUMBERS_AT_ONCE // (len(source.token_kinds) * module.readout.in_features))
    pieces = [_measure(explainer.read(chosen[k : k + size])) for k in range(0, len(chosen), size)]
    counts, shares, winners = zip(*pieces, strict=True)
    count, attention, predicted = _join(counts), _join(shares), np.concatenate(winners)
    bins, bin_names = bin_by_degree(explainer.graph.degree[chosen])
    units = max(1, len(source.token_kinds) - 1)
    groupings: list[tuple[By, NDArray[np.int64], tuple[str, ...]]] = [
        ("all", np.zeros(len(chosen), np.int64), ("all",)),
        ("class", predicted, explainer.classes),
        ("degree", bins, bin_names),
    ]
    rows = []
    for by, group, names in groupings:
        for number in np.unique(group):
            here = group == number
            for part in (part for part, found in count.items() if found.any()):
                tokens, mean = float(count[part][here].mean()), float(attention[part][here].mean())
                rows.append(AttentionRow(by, names[number], int(here.sum()), part, tokens, mean, tokens / units))
    return AttentionSummary(explainer.graph.name, len(chosen), tuple(rows))


Measured = dict[str, NDArray[np.float64]]


def _measure(reading: Reading) -> tuple[Measured, Measured, NDArray[np.int64]]:
    """For each part (B) how many tokens it has and how much attention; and the predicted classes."""
    attention = readout_attention(reading)
    kinds, m = np.array(reading.kinds), reading.num_walks
    of_walks, length = attention[:, len(kinds) - m :], reading.settings.walk_length
    members = {kind: np.tile(kinds == kind, (len(attention), 1)) for kind in dict.fromkeys(reading.kinds[1:])}
    count = {kind: mask.sum(axis=1).astype(np.float64) for kind, mask in members.items()}
    share = {kind: (attention * mask).sum(axis=1) for kind, mask in members.items()}
    if m:
        ordered = np.sort(reading.walks, axis=2)
        different = (ordered >= 0) & (np.diff(ordered, axis=2, prepend=-1) != 0)
        lengths = {"walks of {} steps": (reading.walks >= 0).sum(axis=2) - 1}
        lengths["walks over {} nodes"] = different.sum(axis=2)
        for name, values in lengths.items():
            for number in range(length + 2):
                count[name.format(number)] = (values == number).sum(axis=1).astype(np.float64)
                share[name.format(number)] = (of_walks * (values == number)).sum(axis=1)
    return count, share, reading.probabilities.argmax(axis=1)


def _join(pieces: Sequence[Measured]) -> Measured:
    return {part: np.concatenate([piece[part] for piece in pieces]) for part in pieces[0]}


def _words(part: str) -> str:
    """A part as a person says it."""
    return part.replace("_", " ").replace(" 1 steps", " 1 step").replace(" 1 nodes", " 1 node")


# -------------------------------------------------------------------- picture


def summary_plot(summary: AttentionSummary) -> Figure:
    """Bars of the mean attention beside the even share; below, ratios to the even share by class and by degree."""
    everyone = summary.of("all").get("all", [])
    if not everyone:
        return message_figure("There is no token but the node's own")
    classes, degrees = summary.of("class"), summary.of("degree")
    sizes = [0.3 * len(everyone) + 0.9]
    sizes += [0.27 * min(len(groups), MAX_GROUPS) + 1.5 for groups in (classes, degrees)]
    figure = new_figure(WIDTH, sum(sizes))
    bars, by_class, by_degree = figure.subplots(3, 1, height_ratios=sizes)
    _draw_bars(bars, everyone)
    kinds = [row.part for row in everyone if not row.part.startswith("walks ")]
    _draw_ratios(by_class, classes, kinds, "By predicted class (× even share)")
    _draw_ratios(by_degree, degrees, kinds, "By degree (× even share)")
    return figure


def _draw_bars(axes: Axes, rows: list[AttentionRow]) -> None:
    places = np.arange(len(rows))
    axes.barh(places, [row.attention for row in rows], color=BLUE, height=0.62)
    axes.scatter([row.even for row in rows], places, marker="|", s=140, color=INK, linewidth=1.6, zorder=3)
    for place, row in zip(places, rows, strict=True):
        beside = {"textcoords": "offset points", "va": "center"} | small_text()
        axes.annotate(f"{row.attention:.1%}", (max(row.attention, row.even), place), (5, 0), **beside)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.2 * max(max(row.attention, row.even) for row in rows))
    axes.xaxis.set_major_formatter(percent_ticks())
    style_axes(axes, "Mean attention (line: even share)", grid="x")
    axes.set_yticks(places, [_words(row.part) for row in rows], fontsize=8)


def _draw_ratios(axes: Axes, groups: dict[str, list[AttentionRow]], parts: list[str], title: str) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    names = sorted(groups, key=lambda name: -groups[name][0].nodes)[:MAX_GROUPS]
    names = [name for name in groups if name in names]
    values = np.array([[row.lift for row in groups[name] if row.part in parts] for name in names])
    colours = LinearSegmentedColormap.from_list("ratio", ["#d55e00", "#f7f7f7", BLUE])
    reach = max(0.2, float(np.abs(np.log2(np.maximum(values, 1e-3))).clip(max=2).max()))
    shade = np.log2(np.maximum(values, 1e-3))
    axes.pcolormesh(shade, cmap=colours, vmin=-reach, vmax=reach)
    for (row, column), value in np.ndenumerate(values):
        ink = "#ffffff" if abs(shade[row, column]) > 0.6 * reach else "#16181d"
        axes.text(column + 0.5, row + 0.5, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=ink)
    style_axes(axes, title, grid=None)
    axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    turned: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(np.arange(len(parts)) + 0.5, [_words(part) for part in parts], fontsize=7.5, **turned)
    labels = [f"{plain_text(name, 18)} ({groups[name][0].nodes:,})" for name in names]
    axes.set_yticks(np.arange(len(names)) + 0.5, labels, fontsize=7.5, parse_math=False)
