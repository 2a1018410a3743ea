"""`PretrainedSGPM`: a pre-trained model and the vectors it has for nodes; one safetensors file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hashing import digest, mix64_array
from tokenphormer.sgpm.document import CONTEXT, GraphDocument
from tokenphormer.sgpm.masking import plain_batch
from tokenphormer.sgpm.model import SGPM
from tokenphormer.sgpm.pretraining import GraphInputs, Pretrainer
from tokenphormer.sgpm.settings import SGPMSettings
from tokenphormer.tensor_files import load_tensors, save_tensors

VectorKind = Literal["static", "contextual"]
VECTOR_KINDS: tuple[VectorKind, ...] = ("static", "contextual")
SGPM_FILE = "sgpm.safetensors"
BATCH = 2048


def document_fingerprint(graph: Graph) -> str:
    """SHA-256 of what pre-training reads: edges, weights, direction and features. Labels are not among them."""
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
    return digest([*edges, *features], str(graph.directed))


@dataclass(frozen=True, eq=False)
class PretrainedSGPM:
    """A model, what it needs to read a graph, and the graph it was pre-trained on."""

    model: SGPM
    settings: SGPMSettings
    edges: NDArray[np.float64]
    """Between the bins of centrality."""
    node_keys: NDArray[np.int64]
    """(n) a hash of each node's own id and features; empty if the graph had no ids."""
    meta: dict[str, Any]
    """`graph` (name, fingerprint, num_nodes, num_features), `history`, `version`."""

    @classmethod
    def of(cls, trainer: Pretrainer, version: str) -> PretrainedSGPM:
        """What a pre-training came to."""
        graph = trainer.graph
        about = {
            "name": graph.name,
            "fingerprint": document_fingerprint(graph),
            "num_nodes": graph.num_nodes,
            "num_features": graph.num_features,
        }
        meta = {"graph": about, "history": trainer.progress.history, "version": version}
        return cls(trainer.model, trainer.settings, trainer.edges, _node_keys(graph), meta)

    @property
    def hash(self) -> str:
        """SHA-256 of the weights."""
        state = self.model.state_dict()
        return digest((name, state[name].detach().cpu().numpy()) for name in sorted(state))

    def save(self, path: str | Path) -> None:
        """Write the file, atomically."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {"edges": torch.tensor(self.edges), "node_keys": torch.tensor(self.node_keys)}
        save_tensors(path, tensors, {"settings": self.settings.to_dict(), **self.meta})

    @classmethod
    def load(cls, path: str | Path, device: torch.device) -> PretrainedSGPM:
        """Read a file that `save` wrote, or a folder that holds one."""
        path = Path(path)
        if path.is_dir():
            path = path / SGPM_FILE
        tensors, meta = load_tensors(path)
        try:
            values: Any = meta.pop("settings")
            settings = SGPMSettings().replace(values)
            weights = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
            about: Any = meta["graph"]
            edges = tensors["edges"].numpy()
            max_nodes = len(weights["positions"]) - 2 if "positions" in weights else 1
            model = SGPM(about["num_nodes"], about["num_features"], len(edges) + 1, max_nodes, settings)
            model.load_state_dict(weights)
            keys = tensors["node_keys"].numpy()
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{path}: not a pre-trained SGPM of this version ({error})") from error
        return cls(model.to(device).eval(), settings, edges, keys, meta)

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
        what = "; ".join(different) or "the same sizes, but other edges or features"
        raise InputError(
            f"the SGPM was pre-trained on another graph, '{about['name']}': {what}. Pre-train one for '{graph.name}'"
        )

    # ---------------------------------------------------------------- vectors

    def vectors(self, graph: Graph, kind: VectorKind, device: torch.device) -> NDArray[np.float32]:
        """(n, h) the SGPM-token's vector of each node, before its projection; each column has about the size of 1.

        `static` is the node's row of the table, `contextual` its mean state over sentences that start at it.
        On another graph than that of pre-training, nodes it knows (by their own ids and features) keep their rows; the
        others are read in context as unknown words with features and centrality, and where rows are asked for, they
        get the one that the model would guess.
        """
        if kind not in VECTOR_KINDS:
            raise InputError(f"sgpm_token: {kind!r}; expected one of {', '.join(VECTOR_KINDS)}")
        if graph.num_features != self.meta["graph"]["num_features"] and self.settings.use_features:
            expected = self.meta["graph"]["num_features"]
            raise InputError(f"the SGPM was pre-trained with {expected} features, this graph has {graph.num_features}")
        known = self._known(graph)
        everyone = bool((known >= 0).all())
        if kind == "static":
            table = self.model.table.detach()[: self.model.num_nodes]
            scale = table.std(dim=0).clamp(min=1e-6)
            found = table.to(device)[torch.tensor(known, device=device).clamp(min=0)]
            if not everyone:
                guessed = self._read(graph, known, device, guess=True)
                found = torch.where(torch.tensor(known >= 0, device=device)[:, None], found, guessed)
            vectors = (found - table.mean(dim=0).to(device)) / scale.to(device)
        else:
            # States left a LayerNorm, so their size is about 1 already; it is the same on another graph.
            vectors = self._read(graph, known, device, guess=False)
        result: NDArray[np.float32] = vectors.float().cpu().numpy()
        return result

    def _known(self, graph: Graph) -> NDArray[np.int64]:
        """(n) each node's row of the table, −1 where it has none."""
        if self.is_of(graph):
            return np.arange(graph.num_nodes)
        keys, row = np.full(graph.num_nodes, -1, dtype=np.int64), _node_keys(graph)
        if len(row) and len(self.node_keys):
            order = np.argsort(self.node_keys, kind="stable")
            place = np.searchsorted(self.node_keys[order], row).clip(max=len(order) - 1)
            keys = np.where(self.node_keys[order[place]] == row, order[place], -1)
        return keys

    def _read(self, graph: Graph, known: NDArray[np.int64], device: torch.device, *, guess: bool) -> Tensor:
        """(n, h) mean state of each node at the head of its sentences; as a guess at its row, if asked for."""
        if not graph.num_directed_edges:
            walks = [torch.arange(graph.num_nodes, device=device)[:, None]]
            numbers, document = [0], None
        else:
            document = GraphDocument(graph, self.settings)
            numbers, walks = [CONTEXT + i for i in range(self.settings.context_sentences)], []
        most = (len(self.model.positions) - 2) if self.model.positions is not None else 1 << 30
        inputs = GraphInputs(graph, self.settings, self.edges, device)
        rows = torch.tensor(known, device=device)
        total = torch.zeros(graph.num_nodes, self.settings.hidden_channels, device=device)
        self.model.to(device).eval()
        with torch.no_grad():
            for number in numbers:
                if document is not None:
                    drawn = document.sentences(number, device)
                    clipped = type(drawn)(drawn.walks, drawn.counts.clamp(max=most))
                    walks = list(clipped.batches(BATCH))
                for sentences in walks:
                    words, nodes = plain_batch(sentences, self.model.num_nodes, rows)
                    projected, seen, bins = inputs.features(self.model, nodes, torch.float32)
                    states = self.model(words, seen, projected, bins, torch.float32)[:, 1]
                    total.index_add_(0, sentences[:, 0], self.model.guess(states) if guess else states)
        return total / len(numbers)


def _node_keys(graph: Graph) -> NDArray[np.int64]:
    """(n) a 63-bit hash of each node's own id and feature row; empty without ids, which say nothing then."""
    if graph.node_ids is None:
        return np.zeros(0, dtype=np.int64)
    key = np.array([_text_key(str(name)) for name in graph.node_ids], dtype=np.uint64)
    x: Any = graph.x
    if x is not None:
        weights = mix64_array(np.arange(1, graph.num_features + 1, dtype=np.uint64))
        sparse = not isinstance(x, np.ndarray)
        bits = (x.data if sparse else np.ascontiguousarray(x)).astype(np.float32).view(np.uint32).astype(np.uint64)
        mixed = mix64_array((bits + np.uint64(1)) * (weights[x.indices] if sparse else weights))
        if sparse:
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
            rows = sums[x.indptr[1:]] - sums[x.indptr[:-1]]
        else:
            rows = mixed.sum(axis=1, dtype=np.uint64)
        key = mix64_array(key ^ mix64_array(rows))
    return (key >> np.uint64(1)).astype(np.int64)


def _text_key(text: str) -> int:
    from hashlib import blake2b

    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
