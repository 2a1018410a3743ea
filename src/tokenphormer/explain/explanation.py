"""`Explanation`: what the prediction of one node rests on, as a frozen value that goes to JSON and back."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from tokenphormer.errors import InputError

MethodName = Literal["attention", "rollout", "occlusion"]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
AUTO: MethodName = "occlusion"
"""What `auto` means: the one that the measurement in docs/explain.md found faithful; the attentions are not."""


def check_method(given: str) -> MethodName:
    """A method by its name, or what `auto` means; raise if there is none of that name."""
    for known in METHODS:
        if given == known:
            return known
    if given != "auto":
        raise InputError(f"method: {given!r}; expected auto, {', '.join(METHODS)}")
    return AUTO


@dataclass(frozen=True)
class Importance:
    """What everything that is explained has.

    By occlusion, `importance` is the probability of the predicted class minus what is left of it when the thing is
    removed: positive speaks for the class, negative against it. By an attention it is a share of that attention.
    """

    importance: float
    runner_up: float | None
    """The same for the second most probable class; None by the attentions, which know no classes."""


@dataclass(frozen=True)
class Token(Importance):
    """A token of the sequence, all but the self token; walks with the same steps are one, their parts added up."""

    kind: str
    """`sgpm`, `hop 1` …, or a kind of walk."""
    path: tuple[str, ...]
    """Ids of a walk's nodes, the start first; empty for other tokens."""
    count: int
    """How many walks, in all draws, are this one."""
    attention: float
    """Readout weight, whatever the method; of all tokens they sum to 1."""


@dataclass(frozen=True)
class Part(Importance):
    """Some tokens together: those of one kind, all hop-tokens, all walk-tokens."""

    name: str
    tokens: int
    """Tokens of it in a sequence."""
    attention: float


@dataclass(frozen=True)
class Node(Importance):
    """A node whose features some token reads; the node that is explained is among them."""

    id: str
    label: str
    """Its class where the graph knows it, else empty. The model does not read it."""
    distance: int
    """Edges from the explained node."""
    visits: int
    """How often the walks, in all draws, step on it."""


@dataclass(frozen=True)
class Edge(Importance):
    """A step that walks take: over an edge of the graph, or a jump past one."""

    source: str
    target: str
    jump: bool
    """Whether the two are no neighbours in the graph."""
    walks: int
    """How many walks, in all draws, take it."""


@dataclass(frozen=True)
class Neighbour(Importance):
    """A node whose class scores are passed on to the one that is explained; removed is what they add."""

    id: str
    label: str
    """Its class where the graph knows it, else empty. The model does not read it."""
    distance: int
    """Edges from the explained node."""
    weight: float
    """By which its scores are multiplied before they are added."""
    says: str
    """The class that its own tokens say it is."""


@dataclass(frozen=True)
class Explanation:
    """Why a node is predicted as it is. Lists are sorted, the most important first."""

    graph: str
    node: str
    """Its id."""
    label: str
    """Its class where the graph knows it, else empty."""
    method: MethodName
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    """Of the classes, in float32 and averaged over `votes` draws of walks."""
    votes: int
    predicted: str
    runner_up: str
    tokens: tuple[Token, ...]
    parts: tuple[Part, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    nodes_left_out: int
    """Nodes that tokens read but that were not examined, those read least."""
    edges_left_out: int
    """Steps that were not examined, those taken least."""
    neighbours: tuple[Neighbour, ...] = ()
    """By occlusion, where class scores are passed on to neighbours: those whose scores weigh most."""
    neighbours_left_out: int = 0
    """Others whose scores arrive."""

    def probability(self, name: str) -> float:
        """The probability of a class."""
        return self.probabilities[self.classes.index(name)]

    def to_json(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Explanation:
        """What `to_json` wrote, after a trip through JSON."""
        try:
            lists = {
                "tokens": tuple(_build(Token, each | {"path": tuple(each["path"])}) for each in values["tokens"]),
                "parts": tuple(_build(Part, each) for each in values["parts"]),
                "nodes": tuple(_build(Node, each) for each in values["nodes"]),
                "edges": tuple(_build(Edge, each) for each in values["edges"]),
                "neighbours": tuple(_build(Neighbour, each) for each in values.get("neighbours", ())),
                "classes": tuple(values["classes"]),
                "probabilities": tuple(values["probabilities"]),
            }
            return _build(cls, values | lists)
        except (KeyError, TypeError) as error:
            raise InputError(f"not the JSON of an explanation ({error})") from error


Built = TypeVar("Built")


def _build(kind: type[Built], values: dict[str, Any]) -> Built:
    return kind(**values)
