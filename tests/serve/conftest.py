"""A small trained run, and the explorer that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.serve.client import Client
from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tokenphormer.evaluation.runs import train_run
from tokenphormer.graph import Graph
from tokenphormer.serve.api import Service, create_app
from tokenphormer.serve.explorer import Explorer, open_run
from tokenphormer.serve.server import load
from tokenphormer.serve.settings import ServeSettings

Wanted = Callable[..., dict[str, Any]]
ClientWith = Callable[..., Client]


def write_run(folder: Path, graph: Graph, **changes: Any) -> Path:
    """A trained run on a graph, both in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "graph.npz"
    graph.save(source)
    config = tiny_config(**({"num_walks": 8, "num_hops": 2, "max_epochs": 8} | changes))
    train_run(graph, str(source), tiny_split(graph), config, folder / "run", CPU)
    return folder / "run"


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("served"), tiny_graph(unlabelled=6))


@pytest.fixture(scope="session")
def explorer(run_folder: Path) -> Explorer:
    made = Explorer(open_run(run_folder, "cpu"))
    load(Service(made, None))  # type: ignore[arg-type]  # no worker is needed to load
    return made


@pytest.fixture(scope="session")
def app(explorer: Explorer) -> FastAPI:
    app = create_app(explorer, ServeSettings(rate=1e9))
    load(app.state.service)
    return app


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Iterator[Client]:
    made = Client(app)
    yield made
    made.close()


@pytest.fixture
def client_with(app: FastAPI) -> Iterator[ClientWith]:
    """Makes clients of the same app behind other settings."""
    made: list[Client] = []

    def make(app: FastAPI = app, **settings: Any) -> Client:
        made.append(Client(app, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def get(client: Client) -> Wanted:
    """GET that must succeed."""

    def call(path: str, **parameters: object) -> dict[str, Any]:
        answer = client.get(path, params={name: str(value) for name, value in parameters.items()})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    return call
