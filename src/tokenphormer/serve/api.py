"""The routes of the JSON API, as FastAPI has them, and of the page's own files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.responses import JSONResponse, Response

from tokenphormer import __version__
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.explain import MethodName
from tokenphormer.serve import schemas as s
from tokenphormer.serve.explorer import Explorer
from tokenphormer.serve.guard import error_body
from tokenphormer.serve.jobs import BusyError, SlowError, Worker
from tokenphormer.serve.predictions import Order, Part, Status, Wanted
from tokenphormer.serve.settings import ServeSettings
from tokenphormer.serve.static import StaticFile, static_files

ABOUT = """Predictions and explanations of a trained run.

Nodes are named by their own ids. Where the server was started with a token, send `Authorization: Bearer TOKEN`.
Whatever goes wrong is told as `{"error": {"status", "message", "details": [{"where", "message"}]}}`.
"""
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": s.ErrorBody, "description": text}
    for status, text in {
        401: "The token is missing or wrong.",
        404: "No node has this id.",
        413: "The request is too large.",
        422: "Something in the request is wrong; `details` says what.",
        429: "Too many requests.",
        503: "Still loading, or too much is waiting.",
        504: "The answer took too long.",
    }.items()
}
MAX_DETAILS = 20


class Json(JSONResponse):
    """ASCII: ids of people's files may hold half a surrogate pair, which UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        """Plain values as bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


@dataclass
class Service:
    """What the routes share."""

    explorer: Explorer
    worker: Worker
    map_bytes: bytes | None = None
    map_failed: bool = False
    about: dict[str, Any] = field(default_factory=dict)


async def _service(request: Request) -> Service:
    service = cast("Service", request.app.state.service)
    if not service.explorer.ready:
        raise HTTPException(503, "the run is still being loaded; try again in a moment", {"Retry-After": "1"})
    return service


Served = Annotated[Service, Depends(_service)]
OneId = Annotated[str, Query(max_length=s.MAX_ID, description="A node's own id.")]
Method = Annotated[
    MethodName, Query(description="How weights are found: `occlusion` is the faithful one, attention the quick one.")
]


def _index(service: Service, node_id: str, where: str = "id") -> int:
    index = service.explorer.predictions.index_of(node_id)
    if index is None:
        raise HTTPException(404, f"{where}: the graph has no node {node_id[:100]!r}")
    return index


def _class(service: Service, name: str | None, where: str) -> int | None:
    if name is None:
        return None
    classes = service.explorer.graph.class_names
    if name not in classes:
        raise InputError(f"{where}: the graph has no class {name[:100]!r}")
    return classes.index(name)


# ---------------------------------------------------------------- state

state = APIRouter(tags=["state"])


@state.get("/health", summary="Whether the server is up")
async def health() -> dict[str, str]:
    """Always `ok`; it says nothing of the run."""
    return {"status": "ok"}


@state.get("/ready", summary="Whether the run is loaded", response_model=s.Readiness)
async def ready(request: Request) -> Json:
    """200 once predictions can be asked for, 503 before."""
    service = cast("Service", request.app.state.service)
    is_ready = service.explorer.ready
    place = "failed" if service.map_failed else "being made" if service.map_bytes is None else "ready"
    return Json({"ready": is_ready, "map": place}, 200 if is_ready else 503)


# ---------------------------------------------------------------- the run

api = APIRouter(prefix="/api", responses=ERRORS)


@api.get("/run", tags=["run"], summary="The run in a few facts", response_model=s.About)
async def about(service: Served) -> Json:
    """The graph, its classes, the split, accuracies, and how many predictions are right, wrong and uncertain."""
    if not service.about:
        service.about = service.explorer.about()
    return Json(service.about)


@api.get("/nodes", tags=["run"], summary="Find nodes", response_model=s.Found)
def nodes(
    service: Served,
    query: Annotated[str, Query(max_length=s.MAX_ID, description="Part of an id.")] = "",
    status: Annotated[Status, Query(description="Only such predictions.")] = "all",
    part: Annotated[Part | None, Query(description="Only this part of the split.")] = None,
    truth: Annotated[str | None, Query(max_length=s.MAX_ID, description="Only nodes of this class.")] = None,
    predicted: Annotated[str | None, Query(max_length=s.MAX_ID, description="Only nodes predicted so.")] = None,
    neighbour_of: Annotated[str | None, Query(max_length=s.MAX_ID, description="Only neighbours of this node.")] = None,
    order: Annotated[Order, Query(description="`sure` and `unsure`: by the predicted class's probability.")] = "graph",
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=s.MAX_IDS)] = 50,
) -> Json:
    """Nodes that match everything that is given, a page at a time."""
    predictions = service.explorer.predictions
    near = None if neighbour_of is None else _index(service, neighbour_of, "neighbour_of")
    classes = _class(service, truth, "truth"), _class(service, predicted, "predicted")
    found = predictions.find(Wanted(query, status, part, *classes, near, order))
    page = found[offset : offset + limit].tolist()
    return Json({"total": len(found), "offset": offset, "nodes": [predictions.brief(node) for node in page]})


@api.get("/confusion", tags=["run"], summary="True against predicted classes", response_model=s.Confusion)
async def confusion(
    service: Served,
    part: Annotated[Part | Literal["all"], Query(description="The part of the split.")] = "test",
) -> Json:
    """Counts of the labelled nodes of a part."""
    return Json(service.explorer.predictions.confusion(part))


@api.get("/map", tags=["run"], summary="All nodes in two dimensions", response_model=s.MapColumns)
async def node_map(service: Served) -> Response:
    """t-SNE of what the model makes of each node, by columns; 503 while it is still being made."""
    if service.map_bytes is None:
        message = "the map could not be made" if service.map_failed else "the map is being made; try again in a moment"
        raise HTTPException(503, message, {"Retry-After": "2"})
    return Response(service.map_bytes, media_type="application/json")


# ---------------------------------------------------------------- predictions


@api.get("/predict", tags=["predict"], summary="Predict one node", response_model=s.OnePrediction)
async def predict_one(service: Served, id: OneId) -> Json:
    """The class probabilities of a node of the run's graph."""
    predictions = service.explorer.predictions
    return Json({"classes": predictions.classes, **predictions.full(_index(service, id))})


@api.post("/predict", tags=["predict"], summary="Predict many nodes", response_model=s.Predicted)
async def predict_many(service: Served, batch: s.Batch) -> Json:
    """The class probabilities of nodes of the run's graph, in the order of the request."""
    predictions = service.explorer.predictions
    indices = [_index(service, node_id, f"ids.{number}") for number, node_id in enumerate(batch.ids)]
    return Json({"classes": predictions.classes, "predictions": [predictions.full(index) for index in indices]})


@api.post("/predict/new", tags=["predict"], summary="Predict new nodes", response_model=s.NewPredicted)
async def predict_new(service: Served, body: s.NewNodes) -> Json:
    """Nodes that the graph does not have: the same model on the graph with them in it, without training again.

    The graph on the server stays as it is.
    """
    new, edges = [node.plain() for node in body.nodes], [edge.plain() for edge in body.edges]
    explorer = service.explorer
    found = await service.worker.run(lambda: explorer.predict_new(new, edges))
    return Json({"classes": explorer.graph.class_names, "predictions": found})


# ---------------------------------------------------------------- explanations


@api.get("/explain", tags=["explain"], summary="What a prediction rests on")
async def explain(service: Served, id: OneId, method: Method = "occlusion") -> Json:
    """Tokens, nodes and steps by their importance, the most important first."""
    index, explorer = _index(service, id), service.explorer
    found = explorer.kept_explanation(index, method)
    if found is None:
        found = await service.worker.run(lambda: explorer.explain(index, method))
    return Json(found.to_json())


@api.get("/neighbourhood", tags=["explain"], summary="What lies around a node", response_model=s.Surroundings)
async def surroundings(
    service: Served,
    id: OneId,
    hops: Annotated[int, Query(ge=1, le=s.MAX_HOPS)] = 2,
    limit: Annotated[int, Query(ge=1, le=s.MAX_DRAWN, description="Nodes in all, those on walks among them.")] = 60,
    walks: Annotated[int, Query(ge=0, le=s.MAX_WALKS, description="The heaviest walk-tokens, as paths.")] = 0,
    method: Method = "occlusion",
) -> Json:
    """Rings of nodes by distance, the edges between, and the heaviest walks as paths through them."""
    index, explorer = _index(service, id), service.explorer
    return Json(await service.worker.run(lambda: explorer.neighbourhood(index, hops, limit, walks, method)))


# ---------------------------------------------------------------- the application


def create_app(explorer: Explorer, settings: ServeSettings) -> FastAPI:
    """The application without its guard; `app.state.service` is what its routes share."""
    app = FastAPI(
        title="Tokenphormer explorer",
        version=__version__,
        description=ABOUT,
        docs_url=None,  # FastAPI's own page loads its scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = Service(explorer, Worker(settings.max_waiting, settings.max_seconds))
    app.include_router(state)
    app.include_router(api)
    for path, file in static_files().items():
        app.add_route(path, _send(file), include_in_schema=False)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    for kind, status in ((InputError, 422), (BusyError, 503), (SlowError, 504), (ResourceError, 503)):
        app.add_exception_handler(kind, _answer_with(status))
    app.add_exception_handler(Exception, _answer_with(500, "something went wrong here; the server's log says what"))
    return app


def _send(file: StaticFile) -> Callable[[Request], Response]:
    def send(request: Request) -> Response:
        headers = {"etag": file.etag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    return send


def _error(status: int, message: str, details: list[dict[str, str]], headers: Any = None) -> Response:
    return Response(error_body(status, message, details), status, headers, "application/json")


def _answer_with(status: int, message: str = "") -> Callable[[Request, Exception], Response]:
    headers = {"Retry-After": "1"} if status == 503 else None
    return lambda _, error: _error(status, message or str(error), [], headers)


def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return _error(error.status_code, str(error.detail), [], error.headers)


def _invalid(request: Request, error: Exception) -> Response:
    """What is wrong and where. What was given is not repeated: it may be huge, or no JSON at all."""
    assert isinstance(error, RequestValidationError)
    found = [{"where": ".".join(map(str, e["loc"]))[:200], "message": str(e["msg"])[:300]} for e in error.errors()]
    more = f" (the first {MAX_DETAILS} of {len(found)})" if len(found) > MAX_DETAILS else ""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    unread = request.method == "POST" and not kind.endswith(("/json", "+json"))
    how = "; it is read with the header 'content-type: application/json' only" if unread else ""
    return _error(422, f"the request is not as it should be{more}{how}", found[:MAX_DETAILS])
