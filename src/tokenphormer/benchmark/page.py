"""The benchmark as a page: accuracy with intervals, and accuracy against time and memory, dataset by dataset."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tokenphormer.benchmark.methods import entry
from tokenphormer.benchmark.tables import (
    DEVICES,
    REFERENCES,
    CellResult,
    axes_of,
    compared_methods,
    difference_text,
    half_width,
    notes,
)
from tokenphormer.evaluation import html, plots
from tokenphormer.evaluation.report import page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = ("tokenphormer", "tokenphormer+")


def html_page(cells: list[CellResult]) -> str:
    """A self-contained page."""
    columns, methods = axes_of(cells)
    at = {(cell.method, cell.column): cell for cell in cells}
    strong = [number for number, method in enumerate(methods) if method in OURS]
    head = ["method", *columns]
    ours = [[entry(m).title, *(_ours(at[m, c]) for c in columns)] for m in methods]
    body = ["<h1>Benchmark</h1>", html.table("Test accuracy in percent, re-run here", head, ours, strong)]
    printed = [m for m in methods if any(at[m, c].paper for c in columns)]
    paper = [[entry(m).title, *(_paper(at[m, c]) for c in columns)] for m in printed]
    if printed:
        body.append(html.table("The same from the paper, on splits that cannot be had", head, paper))
    for reference in REFERENCES:
        gaps = [
            [entry(m).title, *(difference_text(at[m, c].differences.get(reference)) for c in columns)]
            for m in compared_methods(cells, reference)
        ]
        if gaps:
            title = f"Paired difference to {entry(reference).title} and its 95 % interval"
            body.append(html.table(title, head, gaps))
    body.append("<ul>" + "".join(f"<li>{html.text(line)}</li>" for line in notes(cells)) + "</ul>")
    for number, name in enumerate(columns):
        ran = sorted((c for c in cells if c.column == name and c.mean is not None), key=lambda c: -(c.mean or 0.0))
        if len(ran) > 1:
            body.append(f"<h2>{html.text(name)}</h2>")
            label = f"Test accuracy of {len(ran)} methods on {name}, the best on top"
            body.append(html.figure(f"accuracy-{number}", accuracy_plot(ran), label))
            label = f"Accuracy against time and memory on {name}; numbers are those of the plot above"
            device, left_out = usual_device(ran)
            told = f"Numbers: the methods of the plot above{f', on {DEVICES[device]}' if device in DEVICES else ''}."
            for known, why in ((True, "since run elsewhere"), (False, "since their rows do not say where they ran")):
                names = [entry(cell.method).title for cell in left_out if bool(cell.device) is known]
                told += f" Not drawn, {why}: {', '.join(names)}." if names else ""
            body.append(html.figure(f"cost-{number}", cost_plot(ran, device), label, told))
    return page("Benchmark", "\n".join(body))


def _ours(cell: CellResult) -> str:
    if cell.mean is None:
        return cell.status
    spread = f" ± {cell.std:.2f}" if cell.std is not None else ""
    count = "" if cell.n == 10 else f" (n = {cell.n})"
    return f"{cell.mean:.2f}{spread}{count}" + (f"; {cell.marks}" if cell.marks else "")


def _paper(cell: CellResult) -> str:
    return f"{cell.paper[0]:.2f} ± {cell.paper[1]:.2f}" if cell.paper else "–"


def accuracy_plot(cells: list[CellResult]) -> Figure:
    """Mean accuracies in the order given, the first on top, with 95 % intervals of the mean over splits."""
    figure = plots.new_figure(plots.WIDTH, 0.9 + 0.22 * len(cells))
    axes = figure.subplots()
    for place, cell in enumerate(cells):
        half = 0.0 if cell.std is None else half_width(cell.std, cell.n)
        colour = plots.ORANGE if cell.method in OURS else plots.BLUE
        axes.errorbar(cell.mean or 0.0, -place, xerr=half, fmt="o", color=colour, markersize=4, linewidth=1.2)
    names = [f"{entry(cell.method).title}  {number}" for number, cell in enumerate(cells, start=1)]
    axes.set_yticks([-place for place in range(len(cells))], names)
    plots.style_axes(axes, "Accuracy, 95 % interval", "percent", grid="x")
    return figure


def usual_device(cells: list[CellResult]) -> tuple[str, list[CellResult]]:
    """What most of the cells were run on, and the cells that were not: their costs cannot be compared."""
    device = Counter(cell.device for cell in cells).most_common(1)[0][0]
    return device, [cell for cell in cells if cell.device != device]


def cost_plot(cells: list[CellResult], device: str) -> Figure:
    """Accuracy against seconds a run and peak memory of what ran on `device`; numbers are places in the order given."""
    figure = plots.new_figure(plots.WIDTH, 5.6)
    panels = (("seconds", "Against time", "seconds a run"), ("memory_mb", "Against memory", "peak memory, MB"))
    for axes, (name, title, label) in zip(figure.subplots(2, 1), panels, strict=True):
        for number, cell in enumerate(cells, start=1):
            if cell.device != device:
                continue
            value = max(getattr(cell, name) or 0.0, 1e-3)
            colour = plots.ORANGE if cell.method in OURS else plots.BLUE
            axes.text(value, cell.mean or 0.0, str(number), color=colour, fontsize=9, ha="center", va="center")
            axes.plot(value, cell.mean or 0.0, alpha=0)  # so that the axes reach there
        axes.set_xscale("log")
        axes.margins(0.08)
        plots.style_axes(axes, title, label)
    return figure
