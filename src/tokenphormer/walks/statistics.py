"""What a set of walks looks like, in a few numbers."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import ArrayLike

from tokenphormer.graph import Graph
from tokenphormer.walks.reference import Kind
from tokenphormer.walks.sampling import sample_walks


def walk_statistics(
    graph: Graph,
    kind: Kind,
    num_walks: int = 10,
    length: int = 4,
    nodes: ArrayLike | None = None,
    jump_radius: int = 3,
    seed: int = 0,
    device: str = "cpu",
) -> dict[str, str]:
    """Draw walks and describe them, ready to print: how far they come, how often they return."""
    sample_walks(graph, kind, 1, 1, [0], jump_radius, seed, device)  # compiles, which is not what is timed
    began = time.perf_counter()
    walks = sample_walks(graph, kind, num_walks, length, nodes, jump_radius, seed, device).cpu().numpy()
    seconds = time.perf_counter() - began
    flat = walks.reshape(-1, length + 1)
    steps = flat[:, 1:] >= 0
    count = int(steps.sum())
    visited = np.sort(walks[:, :, 1:].reshape(len(walks), num_walks * length), axis=1)
    distinct = ((visited[:, 1:] != visited[:, :-1]) & (visited[:, 1:] >= 0)).sum(axis=1) + (visited[:, 0] >= 0)
    second = flat[:, 2:] >= 0  # and further: only they can lead straight back
    returns = (flat[:, 2:] == flat[:, :-2]) & second
    return {
        "graph": f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges",
        "walks": f"{len(flat):,} × {length} steps, {kind}",
        "steps taken": f"{count:,}",
        "walks that ended early": f"{int((~steps).any(axis=1).sum()):,}",
        "nodes seen from one start": f"{distinct.mean():.1f} on average" if len(walks) else "none",
        "steps straight back": f"{returns.sum() / second.sum():.1%}" if second.any() else "none",
        "same class as the start": _same_class(graph, walks),
        "steps a second": f"{count / seconds / 1e6:.1f} million on {device}",
    }


def _same_class(graph: Graph, walks: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> str:
    if not graph.num_classes:
        return "unknown: no labels"
    start, after = walks[:, :, :1], walks[:, :, 1:]
    known = (graph.y[start] >= 0) & (after >= 0) & (graph.y[np.maximum(after, 0)] >= 0)
    equal = (graph.y[start] == graph.y[np.maximum(after, 0)]) & known
    counts = zip(equal.sum(axis=(0, 1)).tolist(), known.sum(axis=(0, 1)).tolist(), strict=True)
    shares = [f"{same / both:.0%}" if both else "none" for same, both in counts]  # both ends have a label
    return ", ".join(f"step {number}: {share}" for number, share in enumerate(shares, 1))
