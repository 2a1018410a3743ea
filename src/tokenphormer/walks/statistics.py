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
    returns = (flat[:, 2:] == flat[:, :-2]) & (flat[:, 2:] >= 0)
    share = returns.sum() / max(1, int((flat[:, 2:] >= 0).sum()))
    return {
        "graph": f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges",
        "walks": f"{len(flat):,} × {length} steps, {kind}",
        "steps taken": f"{count:,}",
        "walks that ended early": f"{int((~steps).any(axis=1).sum()):,}",
        "nodes seen from one start": f"{distinct.mean():.1f} on average" if len(walks) else "none",
        "steps straight back": f"{share:.1%}",
        "same class as the start": _same_class(graph, walks),
        "steps a second": f"{count / seconds / 1e6:.1f} million on {device}",
    }


def _same_class(graph: Graph, walks: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> str:
    start, after = walks[:, :, :1], walks[:, :, 1:]
    known = (graph.y[start] >= 0) & (after >= 0) & (graph.y[np.maximum(after, 0)] >= 0)
    if not known.any():
        return "unknown: no labels"
    equal = (graph.y[start] == graph.y[np.maximum(after, 0)]) & known
    shares = equal.sum(axis=(0, 1)) / np.maximum(known.sum(axis=(0, 1)), 1)
    return ", ".join(f"step {number}: {value:.0%}" for number, value in enumerate(shares, 1))
