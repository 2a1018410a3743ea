"""What goes in and out of the JSON API, with the limits on sizes. Unknown keys of a request are an error."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tokenphormer.serve.new_nodes import NewEdge, NewNode

MAX_ID = 1_000
"""Characters of an id."""
MAX_IDS = 1_000
"""Nodes of a batch, or of a page of a list."""
MAX_NEW_NODES = 100
MAX_NEW_EDGES = 10_000
MAX_FEATURES = 100_000
"""Numbers of a new node; the graph's own width is checked too."""
MAX_HOPS = 3
MAX_DRAWN = 300
"""Nodes of a neighbourhood."""
MAX_WALKS = 20

NodeId = Annotated[str, Field(max_length=MAX_ID, description="A node's own id.")]
Finite = Annotated[float, Field(allow_inf_nan=False, ge=-3e38, le=3e38)]
Share = Annotated[float, Field(ge=0, le=1)]


class Request(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Batch(Request):
    """Nodes of the run's graph."""

    ids: Annotated[list[NodeId], Field(min_length=1, max_length=MAX_IDS)]


class NewNodeBody(Request):
    """A new node. Give all features in order, or those that are not 0 with the columns they stand in."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ID)]
    features: Annotated[list[Finite], Field(max_length=MAX_FEATURES)]
    indices: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]] | None, Field(max_length=MAX_FEATURES)] = None

    def plain(self) -> NewNode:
        """Without pydantic."""
        return NewNode(self.id, self.features, self.indices)


class NewEdgeBody(Request):
    """An edge of which at least one end is a new node."""

    source: NodeId
    target: NodeId
    weight: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Where the graph has weights.")] = None

    def plain(self) -> NewEdge:
        """Without pydantic."""
        return NewEdge(self.source, self.target, self.weight)


class NewNodes(Request):
    """Nodes that the graph does not have, and the edges that they come with."""

    nodes: Annotated[list[NewNodeBody], Field(min_length=1, max_length=MAX_NEW_NODES)]
    edges: Annotated[list[NewEdgeBody], Field(max_length=MAX_NEW_EDGES)] = []


class Brief(BaseModel):
    """A node's prediction."""

    id: str
    predicted: str
    label: Annotated[str | None, Field(description="Its class where the graph knows it.")]
    outcome: Literal["right", "wrong", "unlabelled"]
    probability: Annotated[Share, Field(description="Of the predicted class.")]
    margin: Annotated[Share, Field(description="How far the second class is behind.")]
    uncertain: bool
    part: Annotated[Literal["train", "val", "test"] | None, Field(description="The part of the split it is in.")]
    degree: int


class Prediction(Brief):
    """The same with the probability of every class, in the order of `classes`."""

    probabilities: list[Share]


class OnePrediction(Prediction):
    """The prediction of one node."""

    classes: list[str]


class Predicted(BaseModel):
    """Predictions in the order of the request."""

    classes: list[str]
    predictions: list[Prediction]


class NewPrediction(BaseModel):
    """The prediction of a new node."""

    id: str
    predicted: str
    probability: Share
    degree: int
    probabilities: list[Share]


class NewPredicted(BaseModel):
    """Predictions in the order of the request."""

    classes: list[str]
    predictions: list[NewPrediction]


class Found(BaseModel):
    """Nodes that match, a page of them."""

    total: int
    offset: int
    nodes: list[Brief]


class DrawnNode(Brief):
    """A node of a neighbourhood."""

    distance: Annotated[int, Field(description="Edges from the node in the middle.")]


class RingOut(BaseModel):
    """How many of the nodes at a distance are shown."""

    distance: int
    shown: int
    total: Annotated[int | None, Field(description="Null beyond the hops that were asked for.")]


class Walk(BaseModel):
    """A walk-token as a path."""

    kind: str
    path: Annotated[list[int], Field(description="Places in `nodes`.")]
    importance: float
    attention: float
    count: int


class Surroundings(BaseModel):
    """A neighbourhood that can be drawn; the node itself stands first."""

    nodes: list[DrawnNode]
    edges: Annotated[list[tuple[int, int]], Field(description="Places in `nodes`.")]
    rings: list[RingOut]
    walks: list[Walk]


class Confusion(BaseModel):
    """Rows: the true class. Columns: the predicted one."""

    part: str
    classes: list[str]
    confusion: list[list[int]]
    accuracy: float | None


class SplitOut(BaseModel):
    """Sizes of the split."""

    name: str
    train: int
    val: int
    test: int


class About(BaseModel):
    """The run in a few facts."""

    graph: str
    nodes: int
    edges: int
    features: int
    directed: bool
    weighted: bool
    classes: list[str]
    split: SplitOut
    accuracy: dict[str, float | None]
    counts: dict[str, int]
    uncertain_margin: float
    tokens: list[str]
    votes: int
    score_hops: int
    command: str


class MapColumns(BaseModel):
    """The map by columns: one entry a node in each list."""

    total: Annotated[int, Field(description="Nodes of the graph; of a large one, the map shows a sample.")]
    side: Annotated[int, Field(description="Places go from 0 to this.")]
    id: list[str]
    x: list[int]
    y: list[int]
    predicted: Annotated[list[int], Field(description="Places in the run's classes.")]
    label: Annotated[list[int], Field(description="The same; −1 if unknown.")]
    margin: list[float]
    part: Annotated[list[int], Field(description="0 train, 1 val, 2 test, 3 none.")]


class Readiness(BaseModel):
    """What is there already."""

    ready: bool
    map: Literal["ready", "being made", "failed"]


class Problem(BaseModel):
    """One thing that is wrong with a request."""

    where: str
    message: str


class ErrorOut(BaseModel):
    """Why there is no answer."""

    status: int
    message: str
    details: list[Problem] = []


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorOut
