"""What the tests of explanations share: small graphs with awkward nodes, and models whose tokens all matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.tiny import CPU, tiny_config
from tokenphormer.graph import Graph
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import TokenphormerMethod

ISOLATED = 19
SELF_LOOPED = 3
LEAF = 18
"""Its only neighbour is node 0."""

CASES: list[dict[str, Any]] = [
    {},
    {"walk_pooling": "sum", "include_start": True, "hop_normalisation": "none"},
    {"num_layers": 2, "num_heads": 2, "final_norm": True, "hop_normalisation": "row"},
    {"num_hops": 0},
    {"num_walks": 0},
    {"num_walks": 0, "num_hops": 0},
    {"sgpm": True},
    {"graph": {"directed": True}},
    {"graph": {"weighted": True}, "normalise_features": True},
    {"score_hops": 3},
    {"score_hops": 2, "score_learned": True, "row_activation": True},
    {"include_own": False, "token_activation": True, "num_layers": 2, "ffn_channels": 12},
    {"include_own": False, "sgpm": True, "row_activation": True},
]


def awkward_graph(directed: bool = False, weighted: bool = False, **changes: Any) -> Graph:
    """20 nodes: one isolated, one with an edge to itself, one leaf; ids that are not numbers."""
    rng = np.random.default_rng(5)
    edges = np.concatenate([rng.integers(0, 18, (2, 40)), [[0, SELF_LOOPED], [LEAF, SELF_LOOPED]]], axis=1)
    if not directed:
        edges = np.unique(np.sort(edges, axis=0), axis=1)
    values: dict[str, Any] = {
        "edge_index": edges,
        "num_nodes": 20,
        "x": rng.normal(0, 1, (20, 4)).astype(np.float32),
        "y": np.where(np.arange(20) == 7, -1, np.arange(20) % 3),
        "edge_weight": rng.random(edges.shape[1]) + 0.2 if weighted else None,
        "directed": directed,
        "self_loops": True,
        "node_ids": [f"node <{v}> & ü" for v in range(20)],
        "class_names": ("red", "blue", "green"),
        "name": "awkward",
    }
    return Graph.from_edges(**(values | changes))


def config_of(**changes: Any) -> Config:
    return tiny_config(**({"num_walks": 8, "walk_length": 3, "num_hops": 2} | changes))


def vectors_of(graph: Graph) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(0, 1, (graph.num_nodes, 6)).astype(np.float32)


def method_of(
    graph: Graph, *, sgpm: bool = False, weights: dict[str, torch.Tensor] | None = None, **changes: Any
) -> TokenphormerMethod:
    """A model with large random weights, so that whatever is removed shows."""
    config = config_of(**changes)
    vectors = vectors_of(graph) if sgpm else None
    method = TokenphormerMethod(graph, config, 3, CPU, sgpm=vectors, weights=weights)
    if weights is None:
        generator = torch.Generator().manual_seed(1)
        scale = {"head.2": 0.3, "readout": 2.0}  # probabilities away from 0 and 1, attention away from even
        with torch.no_grad():
            for name, parameter in method.module.named_parameters():
                size = scale.get(name.removesuffix(".weight").removesuffix(".bias"), 0.6)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
    return method


def added_to(method: TokenphormerMethod, own: torch.Tensor) -> torch.Tensor:
    """(T, h) what the inputs of a node's tokens have beside what is pooled, `own` is W₁x_v."""
    held = own + method.module.self_part.bias
    everywhere = method.source.settings.include_own
    return torch.stack([held if everywhere or kind == "self" else 0 * own for kind in method.source.token_kinds])


def case_of(case: dict[str, Any]) -> tuple[Graph, TokenphormerMethod]:
    """The graph and the model of one of the cases."""
    changes = dict(case)
    graph = awkward_graph(**changes.pop("graph", {}))
    return graph, method_of(graph, **changes)
