"""`Explorer`: a finished run in memory, and what can be asked of it. It knows nothing of HTTP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenphormer.classifier import WEIGHTS_FILE, TokenphormerClassifier
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.evaluation.run_folder import left_behind, load_run, own_source
from tokenphormer.explain import Explainer, Explanation, MethodName
from tokenphormer.graph import Graph, Split, load_graph
from tokenphormer.serve.jobs import Recent
from tokenphormer.serve.neighbourhood import Neighbourhood, neighbourhood
from tokenphormer.serve.new_nodes import NewEdge, NewNode, extended
from tokenphormer.serve.predictions import UNCERTAIN_MARGIN, Predictions, Row, share
from tokenphormer.serve.projection import NodeMap, chosen_nodes, load_or_make_map, node_states
from tokenphormer.training.loop import predict
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import TokenphormerMethod
from tokenphormer.walks.sampling import check_device, choose_device

KEPT_EXPLANATIONS = 128
"""Each is some 50 kB."""


@dataclass(frozen=True, eq=False)
class OpenRun:
    """What lies in a run folder, checked, and the run's own graph."""

    folder: Path
    classifier: TokenphormerClassifier
    graph: Graph
    split: Split
    manifest: dict[str, Any]

    @property
    def identity(self) -> str:
        """What the map of the nodes depends on."""
        return f"{self.manifest['files'][WEIGHTS_FILE]} {self.graph.fingerprint}"


def open_run(folder: Path, device: str = "auto", source: str | None = None) -> OpenRun:
    """Read a finished run and its graph: from where the run had it, or from where it is now (`source`)."""
    classifier, manifest = load_run(folder, device=device)
    own = manifest["graph"]
    where = source or own_source(folder, manifest, "--graph")
    other = left_behind(where, manifest, "--graph")
    try:
        graph = classifier.prepared(load_graph(where, directed=own["directed"]))
    except InputError as error:
        raise InputError(f"{error}{other}") from error
    if graph.fingerprint != own["fingerprint"]:
        hint = f"name where that is with --graph{other}"
        raise InputError(f"{where}: is not the graph that the run was trained on; {hint}")
    split = Split.load(folder / "split.npz")
    split.check(graph)
    return OpenRun(folder, classifier, graph, split, manifest)


class Explorer:
    """Answers as plain values. `load` and `make_map` take time, the rest needs what they made."""

    def __init__(self, run: OpenRun) -> None:
        self.run, self.graph = run, run.graph
        # Compiling takes a minute and pays off over many epochs, which are over.
        self.config: Config = run.classifier.config_.replace({"compile": "no"})
        self.map: NodeMap | None = None
        self._predictions: Predictions | None = None
        self._explanations = Recent[Explanation](KEPT_EXPLANATIONS)

    def load(self) -> None:
        """Predict all nodes."""
        self.method = self._method_on(self.graph)
        self.explainer = Explainer(self.method, self.graph, self.graph.class_names, self.config.votes)
        probabilities = self._predict(self.method, np.arange(self.graph.num_nodes))
        self._predictions = Predictions(self.graph, self.run.split, probabilities)

    def make_map(self) -> None:
        """Place the nodes in two dimensions, or read where they were placed before."""
        nodes = chosen_nodes(self.graph.num_nodes)
        self.map = load_or_make_map(
            self.run.folder, self.run.identity, lambda: node_states(self._method_on(self.graph), nodes), nodes
        )

    @property
    def ready(self) -> bool:
        """Whether predictions are there."""
        return self._predictions is not None

    @property
    def predictions(self) -> Predictions:
        """Of all nodes of the graph."""
        if self._predictions is None:
            raise ResourceError("the run is still being loaded; try again in a moment")
        return self._predictions

    def _method_on(self, graph: Graph) -> TokenphormerMethod:
        classifier = self.run.classifier
        device = check_device(choose_device(classifier.device))
        sgpm = classifier.sgpm_
        vectors = None if sgpm is None else sgpm.vectors(graph, self.config.sgpm_token, device)
        C = self.graph.num_classes
        return TokenphormerMethod(graph, self.config, C, device, sgpm=vectors, weights=classifier.weights_)

    def _predict(self, method: TokenphormerMethod, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
        return predict(method, nodes, self.config, method.source.device)

    # ---------------------------------------------------------------- what is asked

    def about(self) -> Row:
        """The run in a few facts."""
        graph, split, found = self.graph, self.run.split, self.predictions
        return {
            "graph": graph.name,
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "features": graph.num_features,
            "directed": graph.directed,
            "weighted": graph.edge_weight is not None,
            "classes": graph.class_names,
            "split": {"name": split.name, "train": split.sizes[0], "val": split.sizes[1], "test": split.sizes[2]},
            "accuracy": {part: found.confusion(part)["accuracy"] for part in ("train", "val", "test")},
            "counts": found.counts(),
            "uncertain_margin": UNCERTAIN_MARGIN,
            "tokens": self.method.source.token_kinds,
            "votes": self.config.votes,
            "score_hops": self.config.score_hops,
            "command": self.run.manifest.get("command", ""),
        }

    def explain(self, node: int, method: MethodName) -> Explanation:
        """What a prediction rests on; the explanations asked for last are kept."""
        return self._explanations.get((node, method), lambda: self.explainer.explain(node, method))

    def kept_explanation(self, node: int, method: MethodName) -> Explanation | None:
        """The same if it was asked for lately; nothing is worked out."""
        return self._explanations.peek((node, method))

    def neighbourhood(self, node: int, hops: int, limit: int, walks: int, method: MethodName) -> Row:
        """What lies around a node, with the heaviest walks, if any are asked for, as paths through it."""
        tokens = [token for token in self.explain(node, method).tokens if token.path][:walks] if walks else []
        paths = [[self._index(step) for step in token.path] for token in tokens]
        visited = np.array(sorted({step for path in paths for step in path} | {node}))
        also = self.explainer.distances(node, visited)
        found: Neighbourhood = neighbourhood(self.graph, node, hops, limit, also)
        place = {index: number for number, index in enumerate(found.nodes)}
        rows = zip(found.nodes, found.distances, strict=True)
        return {
            "nodes": [self.predictions.brief(index) | {"distance": distance} for index, distance in rows],
            "edges": found.edges,
            "rings": [{"distance": r.distance, "shown": r.shown, "total": r.total} for r in found.rings],
            "walks": [
                {
                    "kind": token.kind,
                    "path": [place[step] for step in path],
                    "importance": token.importance,
                    "attention": token.attention,
                    "count": token.count,
                }
                for token, path in zip(tokens, paths, strict=True)
            ],
        }

    def _index(self, node_id: str) -> int:
        index = self.predictions.index_of(node_id)
        assert index is not None
        return index

    def predict_new(self, nodes: Sequence[NewNode], edges: Sequence[NewEdge]) -> list[Row]:
        """Predictions of nodes that the graph does not have: the same model on the graph with them in it."""
        graph = extended(self.graph, self.predictions.index_of, nodes, edges)
        new = np.arange(self.graph.num_nodes, graph.num_nodes)
        probabilities = self._predict(self._method_on(graph), new)
        return [
            {
                "id": node.id,
                "predicted": graph.class_names[row.argmax()],
                "probability": share(row.max()),
                "degree": int(graph.degree[index]),
                "probabilities": [share(p) for p in row],
            }
            for node, index, row in zip(nodes, new, probabilities, strict=True)
        ]

    def map_columns(self) -> bytes:
        """The map for the page: a JSON object of columns. Places are whole numbers from 0 to `side`."""
        assert self.map is not None
        nodes, found = self.map.nodes, self.predictions
        places = np.rint(self.map.places.astype(np.float64) * 10_000).astype(np.int64)
        columns = {
            "total": self.graph.num_nodes,
            "side": 10_000,
            "id": [self.graph.id_of(int(node)) for node in nodes],
            "x": places[:, 0].tolist(),
            "y": places[:, 1].tolist(),
            "predicted": found.predicted[nodes].tolist(),
            "label": self.graph.y[nodes].tolist(),
            "margin": np.round(found.margin[nodes].astype(np.float64), 3).tolist(),
            "part": found.part[nodes].tolist(),
        }
        return json.dumps(columns, separators=(",", ":")).encode("ascii")
