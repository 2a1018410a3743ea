"""The graph document (the paper's Definition 1): sentences are non-backtracking walks, drawn when they are needed.

Sentence i of node v is a function of (graph, settings, v, i): its length is drawn from N(μ, σ²) by a hash, its nodes
are the first walk of the engine under a seed made of i. Nothing is stored, and any sentence can be drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.files import atomic_path
from tokenphormer.graph import Graph
from tokenphormer.graph.statistics import component_labels, radius_by_component
from tokenphormer.hashing import GOLDEN, hash_order, mix64, mix64_array
from tokenphormer.sgpm.settings import SGPMSettings
from tokenphormer.walks import sample_walks

VALIDATION = 1 << 40
"""Sentence numbers from here on are for validation; training does not come so far."""
CONTEXT = 1 << 41
"""And these are read for contextual vectors."""
LENGTHS = 0x5E17E9CE
"""Sets the random numbers of lengths apart from those of walks."""
SPREAD = 6
"""Lengths stay within so many standard deviations of their mean."""


@dataclass(frozen=True, eq=False)
class GraphDocument:
    """The sentences of a graph."""

    graph: Graph
    settings: SGPMSettings

    def __post_init__(self) -> None:
        if not self.graph.num_directed_edges:
            raise InputError(
                f"graph '{self.graph.name}' has no edges: there is nothing to walk on; train without an SGPM-token"
            )

    @cached_property
    def mean_lengths(self) -> NDArray[np.float64]:
        """(n) μ of each node: the setting, or the radius of its component."""
        if self.settings.mean_length:
            return np.full(self.graph.num_nodes, self.settings.mean_length)
        return radius_by_component(self.graph)[component_labels(self.graph)].astype(np.float64)

    @cached_property
    def max_nodes(self) -> int:
        """The most nodes that a sentence can have."""
        low, table = self._law
        return max(1, math.floor(float(self.mean_lengths.max())) + low + len(table)) + 1

    @property
    def _law(self) -> tuple[int, NDArray[np.uint64]]:
        """Of the steps beyond ⌊μ⌋, which all nodes share: radii are whole numbers."""
        return _rounded_normal(self.settings.mean_length % 1.0, self.settings.length_deviation)

    def lengths(self, number: int) -> NDArray[np.int64]:
        """(n) steps of every node's sentence of this number: N(μ, σ²) rounded, at least 1.

        The normal number comes from one hash, by a table of its distribution: the same on every machine.
        """
        key = mix64(mix64(self.settings.seed ^ LENGTHS) ^ mix64(number + GOLDEN))
        nodes = np.arange(self.graph.num_nodes, dtype=np.uint64)
        drawn = mix64_array(nodes * np.uint64(GOLDEN) + np.uint64(key)) >> np.uint64(1)  # 63 bits
        low, table = self._law
        steps = np.floor(self.mean_lengths).astype(np.int64) + low + np.searchsorted(table, drawn, side="right")
        least_one: NDArray[np.int64] = np.maximum(steps, 1)
        return least_one

    def sentences(self, number: int, device: torch.device, nodes: NDArray[np.int64] | None = None) -> Sentences:
        """Sentence `number` of every node, or of some."""
        lengths = self.lengths(number)
        lengths = lengths if nodes is None else lengths[nodes]
        seed = mix64(mix64(self.settings.seed + 1) ^ mix64(number))
        most = int(lengths.max()) if len(lengths) else 1
        walks = sample_walks(self.graph, "non_backtracking", 1, most, nodes, seed=seed, device=str(device))[:, 0]
        there = (walks >= 0).sum(dim=1)  # a dead end may come first
        counts = torch.minimum(there, torch.from_numpy(lengths + 1).to(device))
        return Sentences(walks, counts)

    def training_numbers(self, epoch: int) -> NDArray[np.int64]:
        """The sentence numbers of an epoch (1, 2, …), in the order they are read in."""
        count, seed = self.settings.train_sentences, self.settings.seed
        first = (epoch - 1) * count if self.settings.fresh_sentences else 0
        return hash_order(np.arange(first, first + count), mix64(mix64(seed + 2) ^ (epoch * GOLDEN)))

    def validation_numbers(self) -> NDArray[np.int64]:
        """The sentence numbers that are judged by."""
        return np.arange(VALIDATION, VALIDATION + self.settings.val_sentences)

    def texts(self, numbers: NDArray[np.int64]) -> Iterator[str]:
        """Sentences as text: the nodes' own ids with blanks between."""
        words = [self.graph.id_of(node) for node in range(self.graph.num_nodes)]
        for node, word in enumerate(words):
            if not word or any(character.isspace() for character in word):
                raise InputError(f"node {node} is called {word!r}: with a blank in it, it is no word of a text")
        for number in numbers.tolist():
            drawn = self.sentences(number, torch.device("cpu"))
            for walk, count in zip(drawn.walks.tolist(), drawn.counts.tolist(), strict=True):
                yield " ".join(words[node] for node in walk[:count])


@dataclass(frozen=True, eq=False)
class Sentences:
    """Some sentences, on a device."""

    walks: Tensor
    """(S, L) nodes, int32; behind a sentence's end there is more of the walk, or −1."""
    counts: Tensor
    """(S) how many nodes belong to the sentence."""

    @classmethod
    def together(cls, parts: list[Sentences]) -> Sentences:
        """Several as one."""
        width = max(part.walks.shape[1] for part in parts)
        walks = [torch.nn.functional.pad(p.walks, (0, width - p.walks.shape[1]), value=-1) for p in parts]
        return cls(torch.cat(walks), torch.cat([part.counts for part in parts]))

    def batches(self, size: int) -> Iterator[Tensor]:
        """(≤ size, N) nodes, int64: sentences of one length each, so that nothing is padded; the shortest first.

        Within a length they stand in the order they had.
        """
        order = torch.argsort(self.counts, stable=True)
        first = 0
        for count, how_many in enumerate(torch.bincount(self.counts).tolist()):
            here = order[first : first + how_many]
            first += how_many
            for piece in torch.split(here, size):
                if len(piece):
                    yield self.walks[piece, :count].long()


def _rounded_normal(mean: float, deviation: float) -> tuple[int, NDArray[np.uint64]]:
    """The law of a rounded normal number: its least value, and the 63-bit thresholds between its values.

    A draw below the first threshold is the least value, one from the first on the next, and so on.
    """
    low, high = (math.floor(mean + side * SPREAD * deviation + 0.5) for side in (-1, 1))
    edges = np.arange(low, high) + 0.5  # none where there is no deviation
    below = [0.5 * math.erfc((mean - edge) / (deviation * math.sqrt(2))) for edge in edges.tolist()]
    return low, np.array([min(int(share * 2**63), 2**63 - 1) for share in below], dtype=np.uint64)


def write_document(document: GraphDocument, path: str | Path, part: Literal["train", "val"] = "train") -> int:
    """Write the sentences of a part as text, one a line; returns their number."""
    path = Path(path)
    if path.exists():
        raise InputError(f"{path}: exists already; choose another name")
    numbers = document.training_numbers(1) if part == "train" else document.validation_numbers()
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(text + "\n" for text in document.texts(numbers))
    return len(numbers) * document.graph.num_nodes
