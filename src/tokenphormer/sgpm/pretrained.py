"""`PretrainedSGPM`: a pre-trained model and the vectors it has for nodes; one safetensors file."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hashing import digest, mix64_array
from tokenphormer.sgpm.document import CONTEXT, GraphDocument, Sentences
from tokenphormer.sgpm.masking import plain_batch
from tokenphormer.sgpm.model import SGPM, UNK
from tokenphormer.sgpm.pretraining import GraphInputs, Pretrainer
from tokenphormer.sgpm.settings import SGPMSettings
from tokenphormer.tensor_files import load_tensors, save_tensors

VectorKind = Literal["static", "contextual"]
VECTOR_KINDS: tuple[VectorKind, ...] = ("static", "contextual")
SGPM_FILE = "sgpm.safetensors"
BATCH = 2048
KEY_ELEMENTS = 1 << 22
"""Features hashed at a time."""


def document_fingerprint(graph: Graph) -> str:
    """SHA-256 of what pre-training reads: edges, weights, direction and features. Labels are not among them."""
    return digest([], " ".join(_fingerprints(graph).values()))


def _fingerprints(graph: Graph) -> dict[str, str]:
    """One for the edges, one for the features."""
    x: Any = graph.x
    features: list[tuple[str, Any]] = [("x", x)]
    if x is not None and not isinstance(x, np.ndarray):
        features = [("x.indptr", x.indptr.astype(np.int64)), ("x.indices", x.indices.astype(np.int64))]
        features += [("x.data", x.data), ("x.shape", np.asarray(x.shape))]
    edges: list[tuple[str, Any]] = [
        ("indptr", graph.indptr),
        ("indices", graph.indices),
        ("edge_weight", graph.edge_weight),
    ]
    return {"edges": digest(edges, str(graph.directed)), "features": digest(features)}


@dataclass(frozen=True, eq=False)
class PretrainedSGPM:
    """A model, what it needs to read a graph, and the graph it was pre-trained on."""

    model: SGPM
    settings: SGPMSettings
    edges: NDArray[np.float64]
    """Between the bins of centrality."""
    node_keys: NDArray[np.int64]
    """(n) a hash of each node's own id and features; empty if the graph had no ids."""
    guesses: Tensor
    """(2, h) mean and deviation of what the model guesses for its own nodes when they are shown as unknown."""
    meta: dict[str, Any]
    """`graph` (name, fingerprints, num_nodes, num_features), `history`, `version`."""

    @classmethod
    def of(cls, trainer: Pretrainer, version: str) -> PretrainedSGPM:
        """What a pre-training came to."""
        graph = trainer.graph
        about = {
            "name": graph.name,
            "fingerprint": document_fingerprint(graph),
            **_fingerprints(graph),
            "num_nodes": graph.num_nodes,
            "num_features": graph.num_features,
        }
        meta = {"graph": about, "history": trainer.progress.history, "version": version}
        known, device = np.arange(graph.num_nodes), trainer.device
        read = _read(trainer.model, trainer.edges, graph, known, device, guess=True, hide=True)
        guesses = torch.stack([read.mean(dim=0), read.std(dim=0, correction=0)])
        return cls(trainer.model, trainer.settings, trainer.edges, _node_keys(graph), guesses, meta)

    @property
    def hash(self) -> str:
        """SHA-256 of the weights."""
        state = self.model.state_dict()
        return digest((name, state[name].detach().cpu().numpy()) for name in sorted(state))

    def save(self, path: str | Path) -> None:
        """Write the file, atomically."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {"edges": torch.tensor(self.edges), "node_keys": torch.tensor(self.node_keys)}
        tensors["guesses"] = self.guesses
        save_tensors(path, tensors, {"settings": self.settings.to_dict(), **self.meta})

    @classmethod
    def load(cls, path: str | Path, device: torch.device, content: bytes | None = None) -> PretrainedSGPM:
        """Read a file that `save` wrote, or a folder that holds one; or `content`, what such a file holds."""
        path = Path(path)
        if content is None and path.is_dir():
            path = path / SGPM_FILE
        tensors, meta = load_tensors(path, content)
        try:
            values: Any = meta.pop("settings")
            settings = SGPMSettings().replace({"unit_features": False} | values)  # there was none at first
            weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
            about: Any = meta["graph"]
            edges = tensors["edges"].numpy()
            max_nodes = len(weights["positions"]) - 2 if "positions" in weights else 1
            _ = [str(about[key]) for key in ("name", "fingerprint", "edges", "features")]
            model = SGPM(about["num_nodes"], about["num_features"], len(edges) + 1, max_nodes, settings)
            model.load_state_dict(weights)
            keys, guesses = tensors["node_keys"].numpy(), tensors["guesses"].to(device)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise InputError(f"{path}: not a pre-trained SGPM of this version ({error})") from error
        return cls(model.to(device).eval(), settings, edges, keys, guesses, meta)

    def is_of(self, graph: Graph) -> bool:
        """Whether it was pre-trained on this graph."""
        return bool(self.meta["graph"]["fingerprint"] == document_fingerprint(graph))

    def check(self, graph: Graph) -> None:
        """Raise unless it was pre-trained on this graph, saying what differs."""
        about = self.meta["graph"]
        if self.is_of(graph):
            return
        different = [
            f"{name.removeprefix('num_')} {about[name]} there, {getattr(graph, name)} here"
            for name in ("num_nodes", "num_features")
            if about[name] != getattr(graph, name)
        ]
        other = " and ".join(part for part, found in _fingerprints(graph).items() if found != about[part])
        what = "; ".join(different) or f"the same sizes, but other {other}"
        raise InputError(
            f"the SGPM was pre-trained on another graph, '{about['name']}': {what}. Pre-train one for '{graph.name}'"
        )

    # ---------------------------------------------------------------- vectors

    def vectors(self, graph: Graph, kind: VectorKind, device: torch.device) -> NDArray[np.float32]:
        """(n, h) the SGPM-token's vector of each node, before its projection; each column has about the size of 1.

        `static` is the node's row of the table, `contextual` its mean state over sentences that start at it.
        On another graph than that of pre-training, nodes it knows (by their own ids and features) keep their rows; the
        others are read in context as unknown words with features and centrality. Where rows are asked for, what the
        model would guess there stands in for one: it is what rows are compared with, so it points where they do.
        """
        if kind not in VECTOR_KINDS:
            raise InputError(f"sgpm_token: {kind!r}; expected one of {', '.join(VECTOR_KINDS)}")
        if graph.num_features != self.meta["graph"]["num_features"] and self.settings.use_features:
            expected = self.meta["graph"]["num_features"]
            raise InputError(f"the SGPM was pre-trained with {expected} features, this graph has {graph.num_features}")
        known = self._known(graph)
        if kind == "contextual":
            # States left a LayerNorm, so their size is about 1 already; it is the same on another graph.
            vectors = _read(self.model, self.edges, graph, known, device, guess=False)
        else:
            table = self.model.table.detach()[: self.model.num_nodes].to(device)
            rows = (table - table.mean(dim=0)) / table.std(dim=0, correction=0).clamp(min=1e-6)
            place = torch.tensor(known, device=device)
            vectors = rows[place.clamp(min=0)]
            if (known < 0).any():
                mean, deviation = self.guesses.to(device)
                guessed = _read(self.model, self.edges, graph, known, device, guess=True)
                scaled = (guessed - mean) / deviation.clamp(min=1e-3)  # of numbers whose size is about 1
                vectors = torch.where(place[:, None] >= 0, vectors, scaled)
        result: NDArray[np.float32] = vectors.cpu().numpy()
        return result

    def _known(self, graph: Graph) -> NDArray[np.int64]:
        """(n) each node's row of the table, −1 where it has none."""
        if self.is_of(graph):
            return np.arange(graph.num_nodes)
        keys = _node_keys(graph)
        if not len(keys) or not len(self.node_keys):
            return np.full(graph.num_nodes, -1, dtype=np.int64)
        order = np.argsort(self.node_keys, kind="stable")
        place = order[np.searchsorted(self.node_keys[order], keys).clip(max=len(order) - 1)]
        return np.where(self.node_keys[place] == keys, place, -1)


def _read(
    model: SGPM,
    edges: NDArray[np.float64],
    graph: Graph,
    known: NDArray[np.int64],
    device: torch.device,
    *,
    guess: bool,
    hide: bool = False,
) -> Tensor:
    """(n, h) mean state of each node at the head of its sentences; as a guess at its row, if asked for.

    `known` (n) are the nodes' rows of the table; the others, and with `hide` the heads, are shown as unknown words.
    """
    settings = model.settings
    numbers = [CONTEXT + i for i in range(settings.context_sentences)]
    document = GraphDocument(graph, settings) if graph.num_directed_edges else None
    most = (len(model.positions) - 2) if model.positions is not None else 1 << 30
    inputs = GraphInputs(graph, settings, edges, device)
    rows = torch.tensor(known, device=device)
    total = torch.zeros(graph.num_nodes, settings.hidden_channels, device=device)
    model.to(device).eval()
    with torch.no_grad():
        projected = inputs.project(model, torch.float32)
        for number in numbers if document is not None else [0]:
            drawn = _alone(graph.num_nodes, device) if document is None else document.sentences(number, device)
            for sentences in Sentences(drawn.walks, drawn.counts.clamp(max=most)).batches(BATCH):
                words, nodes = plain_batch(sentences, model.num_nodes, rows)
                if hide:
                    words[:, 1] = model.num_nodes + UNK
                features, seen, bins = inputs.features(model, nodes, torch.float32, projected)
                states = model(words, seen, features, bins, torch.float32)[:, 1]
                total.index_add_(0, sentences[:, 0], model.guess(states) if guess else states)
    return total / (len(numbers) if document is not None else 1)


def _alone(num_nodes: int, device: torch.device) -> Sentences:
    """A sentence of one for each node, where there are no edges."""
    nodes = torch.arange(num_nodes, device=device)
    return Sentences(nodes[:, None], torch.ones_like(nodes))


def _node_keys(graph: Graph) -> NDArray[np.int64]:
    """(n) a 63-bit hash of each node's own id and feature row; empty without ids, which say nothing then.

    It is the same whether features are stored dense or sparse.
    """
    if graph.node_ids is None:
        return np.zeros(0, dtype=np.int64)
    key = np.array([_text_key(str(name)) for name in graph.node_ids], dtype=np.uint64)
    if graph.x is not None:
        step = max(1, KEY_ELEMENTS // max(1, graph.num_features))
        rows = [_row_keys(graph.x[first : first + step]) for first in range(0, graph.num_nodes, step)]
        key = mix64_array(key ^ mix64_array(np.concatenate(rows)))
    return (key >> np.uint64(1)).astype(np.int64)


def _row_keys(x: Any) -> NDArray[np.uint64]:
    """(rows) a hash of each row's values that are not 0, and of their columns."""
    entries = sp.coo_array(x.astype(np.float32, copy=False))  # SciPy knows no half precision
    there = entries.data != 0  # a sparse matrix may hold zeros
    row, column = (index[there].astype(np.uint64) for index in entries.coords)
    value = entries.data[there].view(np.uint32).astype(np.uint64)
    keys = np.zeros(entries.shape[0], dtype=np.uint64)
    np.add.at(keys, row, mix64_array((value + np.uint64(1)) * mix64_array(column + np.uint64(1))))
    return keys


def _text_key(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
