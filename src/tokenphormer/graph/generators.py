"""Graphs of any size for trials of scale, the same to the bit for the same seed on every machine.

A degree-corrected block model (Karrer, Newman: Stochastic blockmodels and community structure in networks, Phys. Rev.
E 83, 2011), drawn edge by edge. Nodes have ranks; rank r belongs to class r mod C. Every rank sends out D/2 edges. A
share `homophily` of them stays within the class, the others go anywhere, and where there are m ranks to choose from,
number ⌊m·u²⌋ is taken, so that the degree of rank r falls as r^-½: a power law of exponent 3. A node's number is its
rank shuffled, so neither class nor degree can be read off it.

Features are the class's own pattern of ±1, weak, under noise many times as strong: from one node's features alone
classes can hardly be told apart, from those of its neighbours together they can.

Every random number is a hash of the seed and of what it is for (`hashing.py`), and only exact arithmetic follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError
from tokenphormer.graph.checks import MAX_NODES
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import FeatureBlocks, GraphWriter, cell, new_folder
from tokenphormer.graph.edge_sort import EdgeSorter
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.splits import Split
from tokenphormer.hashing import GOLDEN, MASK64, mix64, mix64_array

if TYPE_CHECKING:
    import torch

Ints = NDArray[np.int64]
PIECE = 1 << 20
"""Edges, or feature values, that are drawn at a time."""
ORDER, CHOICE, TARGET, NOISE, PATTERN, PARTS = range(6)
"""What a random number is for."""
SIGNAL = 1.0
"""Length of a class's pattern; the noise has length 1 in every direction."""


@dataclass(frozen=True)
class BlockModel:
    """A degree-corrected block model with features and labels.

    `degree` is the mean before repeated edges merge; an odd one counts as the even one below, as D/2 edges are drawn.
    """

    num_nodes: int
    degree: int = 20
    num_features: int = 64
    num_classes: int = 10
    seed: int = 0
    homophily: float = 0.7
    """Share of the edges that stay within their class for certain."""
    num_train: int = 10_000
    """Nodes for training; at most a quarter of all."""
    num_val: int | None = field(default=None, repr=False)
    """Nodes for validation, likewise; None: as many as for training."""
    num_test: int | None = field(default=None, repr=False)
    """Nodes for test, likewise."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_nodes", 4, MAX_NODES),
            ("degree", 2, 10_000),
            ("num_features", 1, 100_000),
            ("num_classes", 2, min(self.num_nodes // 2, 10_000)),
            ("num_train", 1, MAX_NODES),
            ("num_val", 1, MAX_NODES),
            ("num_test", 1, MAX_NODES),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InputError(f"--{name.removeprefix('num_')} {value}: expected from {least} to {most}")
        if not 0 <= self.homophily <= 1:
            raise InputError(f"--homophily {self.homophily}: expected a share from 0 to 1")

    # ---------------------------------------------------------------- random numbers

    def _hash(self, purpose: int, number: NDArray[np.uint64]) -> NDArray[np.uint64]:
        base = np.uint64(mix64(mix64(self.seed) + (purpose + 1) * GOLDEN))
        return mix64_array(base + number * np.uint64(GOLDEN))

    def _shuffled(self, purpose: int, numbers: Ints, *, back: bool = False) -> Ints:
        """A permutation of the numbers below n, or its inverse.

        Three rounds, on the next power of two, of x ^= x >> half its bits and of x ↦ a·x + b with an odd a: both can
        be undone. What ends beyond n goes round again.
        """
        bits = (self.num_nodes - 1).bit_length()
        half, mask = np.uint64((bits + 1) // 2), np.uint64((1 << bits) - 1)
        odd = [mix64(self.seed + (8 * purpose + i + 1) * GOLDEN) | 1 for i in range(3)]
        rounds = [np.uint64(pow(a, -1, 1 << 64) if back else a) for a in (reversed(odd) if back else odd)]
        shift = np.uint64(mix64(self.seed + (8 * purpose + 4) * GOLDEN))
        x = numbers.astype(np.uint64)
        left = np.arange(len(x))
        while len(left):
            part = x[left]
            for factor in rounds:
                if back:
                    part = ((part - shift) * factor) & mask
                    part ^= part >> half
                else:
                    part ^= part >> half
                    part = (part * factor + shift) & mask
            x[left] = part
            left = left[part >= np.uint64(self.num_nodes)]
        return x.astype(np.int64)

    # ---------------------------------------------------------------- the graph

    def nodes_of(self, ranks: Ints) -> Ints:
        """The nodes that have some ranks."""
        return self._shuffled(ORDER, ranks)

    def ranks_of(self, nodes: Ints) -> Ints:
        """The ranks of some nodes."""
        return self._shuffled(ORDER, nodes, back=True)

    def classes_of(self, nodes: Ints) -> Ints:
        """(m) the classes of some nodes."""
        return self.ranks_of(nodes) % self.num_classes

    def edges(self) -> Iterator[tuple[Ints, Ints]]:
        """All edges as they are drawn, in pieces: loops and repetitions too."""
        each = max(1, self.degree // 2)
        total = self.num_nodes * each
        for first in range(0, total, PIECE):
            number = np.arange(first, min(first + PIECE, total))
            source = number // each
            label = source % self.num_classes
            raw = number.astype(np.uint64)
            stays = self._hash(CHOICE, raw) < np.uint64(min(int(self.homophily * 2**64), MASK64))
            # 31 bits squared stay below 2⁶², and times m below 2³¹ the upper half is kept: ⌊m·u²⌋, exactly.
            u = self._hash(TARGET, raw) >> np.uint64(33)
            square = (u * u) >> np.uint64(30)  # 32 bits
            members = (self.num_nodes - label + self.num_classes - 1) // self.num_classes
            choices = np.where(stays, members, self.num_nodes).astype(np.uint64)
            drawn = ((square * choices) >> np.uint64(32)).astype(np.int64)
            target = np.where(stays, drawn * self.num_classes + label, drawn)
            yield self.nodes_of(source), self.nodes_of(target)

    def features(self, nodes: Ints) -> NDArray[np.float32]:
        """(m, F) the features of some nodes."""
        width = self.num_features
        columns: NDArray[np.uint64] = np.arange(width, dtype=np.uint64)
        bits = self._hash(NOISE, nodes.astype(np.uint64)[:, None] * np.uint64(width) + columns)
        # The sum of four 16-bit numbers is nearly normal; its variance is 2³²/3, its mean 2¹⁷ − 2.
        four = [(bits >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
        noise = (four[0] + four[1] + four[2] + four[3]).astype(np.float32) - np.float32(2**17 - 2)
        noise *= np.float32(math.sqrt(3) / 2**16)
        table: NDArray[np.uint64] = np.arange(self.num_classes * width, dtype=np.uint64).reshape(-1, width)
        sign = (self._hash(PATTERN, table) >> np.uint64(63)).astype(np.float32) * 2 - 1
        strength = np.float32(SIGNAL / math.sqrt(width))
        x: NDArray[np.float32] = noise + strength * sign[self.classes_of(nodes)]
        return x

    def asked(self) -> list[int]:
        """Nodes for training, validation and test that were asked for."""
        return [self.num_train if size is None else size for size in (self.num_train, self.num_val, self.num_test)]

    def split(self) -> Split:
        """Three disjoint parts, each at most a quarter of all nodes."""
        ends = np.cumsum([max(1, min(size, self.num_nodes // 4)) for size in self.asked()])
        train, val, test = np.split(self._shuffled(PARTS, np.arange(ends[-1])), ends[:2])
        return Split(train, val, test, name="given")

    @property
    def note(self) -> str:
        """What a graph's manifest says of where it came from."""
        parts = [f"{name}={getattr(self, name)}" for name in ("num_val", "num_test") if getattr(self, name) is not None]
        return ", ".join([f"generated: {self}", *parts])


def generate(
    model: BlockModel,
    out: str | Path,
    *,
    memory: int,
    half: bool = False,
    device: torch.device | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Graph:
    """Draw a graph straight to disk, in bounded memory, and open it. `half` stores features as float16.

    With a `device`, a GPU, it is drawn and sorted there (`device_generator.py`), and is the same to the bit; `memory`
    then bounds nothing, since next to none of the host's is taken.
    """
    with new_folder(out) as temporary, GraphWriter(temporary) as writer:
        split = model.split()
        if list(split.sizes) != model.asked():
            train, val, test = split.sizes
            say(f"{train:,} nodes for training, {val:,} for validation, {test:,} for test: at most a quarter for each")
        if device is None:
            notes = _write(model, writer, temporary, memory, half, say)
        else:
            from tokenphormer.graph.device_generator import write_on_device

            notes = write_on_device(model, writer, device, half=half, say=say)
        writer.finish(
            name=Path(out).resolve().name or "graph",
            directed=False,
            class_names=tuple(map(str, range(model.num_classes))),
            splits=(split,),
            notes=(model.note, *notes),
            num_features=model.num_features,
        )
    return open_graph(out)


def _write(
    model: BlockModel, writer: GraphWriter, folder: Path, memory: int, half: bool, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Features, labels and edges; what was done to the edges."""
    n = model.num_nodes

    def blocks() -> FeatureBlocks:
        step = max(1, PIECE // model.num_features)
        for first in range(0, n, step):
            nodes = np.arange(first, min(first + step, n))
            yield model.features(nodes), lambda row, column: cell("x", 0, row, column)

    writer.features(blocks(), half=half)
    y = writer.array("y", np.int64)
    for first in range(0, n, PIECE):
        y.append(model.classes_of(np.arange(first, min(first + PIECE, n))))
    say(f"{n:,} nodes drawn")
    scratch = folder / "scratch"
    scratch.mkdir()
    with EdgeSorter(scratch, n, directed=False, weighted=False, memory=memory) as sorter:
        for source, target in model.edges():
            sorter.add(source, target)
        say(f"{sorter.listed:,} edges drawn; sorting")
        notes = sorter.write(writer)
    scratch.rmdir()
    return notes
