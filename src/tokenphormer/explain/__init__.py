"""Explanations: which tokens, nodes and edges a prediction rests on, and how faithful that is."""

from tokenphormer.explain.explainer import Explainer
from tokenphormer.explain.explanation import (
    METHODS,
    Edge,
    Explanation,
    Importance,
    MethodName,
    Neighbour,
    Node,
    Part,
    Token,
)

__all__ = [
    "METHODS",
    "Edge",
    "Explainer",
    "Explanation",
    "Importance",
    "MethodName",
    "Neighbour",
    "Node",
    "Part",
    "Token",
]
