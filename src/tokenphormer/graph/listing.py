"""The table of named datasets: what is on disk, how large it is, and what the paper says of it."""

from __future__ import annotations

from pathlib import Path

from tokenphormer.errors import TokenphormerError
from tokenphormer.graph.datasets import DATASETS, Dataset, embedded_path, load_graph
from tokenphormer.graph.raw_files import data_root, missing_files, where_to_put
from tokenphormer.graph.statistics import MAX_WORK, Bounds, graph_statistics

Cell = int | float | str | None
MEASURED = ("nodes", "edges", "classes", "features", "components", "homophily", "diameter", "radius")
PAPER = ("nodes", "edges", "classes", "features", "diameter")


def dataset_rows(root: str | Path | None = None, *, max_work: float = MAX_WORK) -> list[dict[str, Cell]]:
    """One row a dataset: its figures, the paper's (`paper_…`), split protocol, status. Downloads nothing.

    Figures of an absent dataset are None, as are the paper's where it prints none.
    """
    return [_row(dataset, data_root(root), max_work) for dataset in DATASETS.values()]


def _row(dataset: Dataset, root: Path, max_work: float) -> dict[str, Cell]:
    measured: dict[str, Cell] = dict.fromkeys(MEASURED)
    status = _status(dataset, root)
    if not status.startswith("absent"):
        try:
            measured = _measure(dataset, root, max_work)
        except TokenphormerError as error:
            status = f"unusable: {error}"
    paper = {f"paper_{key}": getattr(dataset.paper, key, None) for key in PAPER}
    words = {"protocol": dataset.protocol, "status": status, "description": dataset.description}
    return {"name": dataset.name, **measured, **paper, **words}


def _status(dataset: Dataset, root: Path) -> str:
    if dataset.embedded:
        path = embedded_path(dataset)
        return "embedded" if path.is_file() else f"absent: this installation lacks {path.name}"
    return f"absent: {where_to_put(dataset, root)}" if missing_files(dataset, root) else "on disk"


def _measure(dataset: Dataset, root: Path, max_work: float) -> dict[str, Cell]:
    found = graph_statistics(load_graph(dataset.name, root=root), max_work=max_work)
    return {
        "nodes": found.nodes,
        "edges": found.edges,
        "classes": found.classes,
        "features": found.features,
        "components": found.components,
        "homophily": found.edge_homophily,
        "diameter": _number_or_range(found.diameter),
        "radius": _number_or_range(found.radius),
    }


def _number_or_range(bounds: Bounds) -> int | str:
    low, high = bounds
    return low if low == high else f"{low} to {high}"
