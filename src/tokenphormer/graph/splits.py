"""Which nodes are for training, validation and test: the protocols of the field, with their exact sizes.

Two of them are both called "60/20/20" in papers and give different numbers; a result must name its protocol.

- `stratified`      per class round(0.6·n_c) train, round(0.2·n_c) validation, the rest test
- `two-stage`       scikit-learn's `train_test_split` twice, train = int(0.6·n); the paper's Flickr and DBLP
- `class-balanced`  round(0.6·n/C) training nodes of *every* class (GPR-GNN and the spectral papers)
- `geom-gcn`        the ten fixed 48/32/20 splits that come with Cornell, Wisconsin, Texas and Actor
- `given`           what came with the data: a user's own `split` column, or another fixed split
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenphormer.errors import InputError
from tokenphormer.files import atomic_path, load_arrays, parse_json
from tokenphormer.hashing import digest, hash_order

if TYPE_CHECKING:
    from tokenphormer.graph.graph import Graph

PROTOCOLS = ("stratified", "two-stage", "class-balanced", "geom-gcn", "given")
PARTS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Split:
    """Three disjoint sets of node indices, each sorted; nodes in none of them are simply not used.

    >>> split = Split(train=[3, 0], val=[1], test=[2])
    >>> split.train.tolist(), split.sizes
    ([0, 3], (2, 1, 1))
    """

    train: NDArray[np.int64]
    val: NDArray[np.int64]
    test: NDArray[np.int64]
    name: str = "given"

    def __init__(self, train: ArrayLike, val: ArrayLike, test: ArrayLike, name: str = "given") -> None:
        object.__setattr__(self, "name", name)
        for part, given in zip(PARTS, (train, val, test), strict=True):
            nodes = np.asarray(given)
            if nodes.size == 0:
                nodes = nodes.astype(np.int64)
            if nodes.ndim != 1 or nodes.dtype.kind not in "iu":
                how = "ids into indices with graph.index_of" if nodes.dtype.kind in "OUST" else ""
                raise InputError(
                    f"split part '{part}': expected a list of node indices, got shape {nodes.shape}, dtype "
                    f"{nodes.dtype}; turn {how or 'a mask into indices with numpy.flatnonzero'}"
                )
            nodes = np.sort(nodes.astype(np.int64))
            nodes.flags.writeable = False
            object.__setattr__(self, part, nodes)
        everything = np.concatenate([self.train, self.val, self.test])
        nodes, counts = np.unique(everything, return_counts=True)
        if nodes.size and nodes[0] < 0:
            raise InputError(f"split '{name}': node index {nodes[0]} is negative")
        if (counts > 1).any():
            twice = nodes[counts > 1]
            raise InputError(f"split '{name}': node {twice[0]} stands in it twice (so do {twice.size - 1} others)")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """For pickle and copy, which make arrays that can be written to."""
        self.__dict__.update(state)
        for part in PARTS:
            getattr(self, part).flags.writeable = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many nodes train, validation and test have."""
        return len(self.train), len(self.val), len(self.test)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the three sets; equal for equal splits, whatever their names."""
        return digest((part, getattr(self, part)) for part in PARTS)

    def check(self, graph: Graph) -> None:
        """Raise if the split names nodes that the graph lacks or that have no label."""
        for part in PARTS:
            nodes = getattr(self, part)
            if nodes.size and nodes[-1] >= graph.num_nodes:
                raise InputError(
                    f"split '{self.name}', part '{part}': node index {nodes[-1]}, "
                    f"but the graph has nodes 0 to {graph.num_nodes - 1}"
                )
            bare = nodes[graph.y[nodes] < 0]
            if bare.size:
                raise InputError(
                    f"split '{self.name}', part '{part}': node {graph.id_of(int(bare[0]))!r} has no label "
                    f"({bare.size} such nodes); a split may hold labelled nodes only"
                )

    def save(self, path: str | Path) -> None:
        """Write the split as an `.npz` with its hash inside, atomically."""
        meta = json.dumps({"format": 1, "name": self.name, "sha256": self.hash})
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                train=self.train,
                val=self.val,
                test=self.test,
                meta=np.frombuffer(meta.encode(), np.uint8),
            )

    @classmethod
    def load(cls, path: str | Path) -> Split:
        """Read a split that `save` wrote; a changed or truncated file is refused."""
        arrays = load_arrays(path, required=(*PARTS, "meta"))
        try:
            meta = parse_json(arrays["meta"].tobytes())
            name, expected = str(meta["name"]), str(meta["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a split file: its 'meta' cannot be read ({error})") from error
        split = cls(arrays["train"], arrays["val"], arrays["test"], name)
        if split.hash != expected:
            raise InputError(f"{path}: the split's hash is {split.hash[:12]}…, its file says {expected[:12]}…")
        return split


def make_split(graph: Graph, protocol: str = "stratified", seed: int | None = None) -> Split:
    """Split the labelled nodes of `graph` by a named protocol.

    `seed` is the seed of a random protocol (default 0; 2021 for `two-stage`, the paper's) and the number of a
    fixed one.
    """
    if seed is not None and not isinstance(seed, int | np.integer):
        raise InputError(f"seed: {seed!r}; expected a whole number")
    seed = None if seed is None else int(seed)  # NumPy's own overflow where seeds are mixed
    if protocol == "stratified":
        return stratified_split(graph.y, seed or 0)
    if protocol == "two-stage":
        return two_stage_split(graph.y, 2021 if seed is None else seed)
    if protocol == "class-balanced":
        return class_balanced_split(graph.y, seed or 0)
    if protocol in ("geom-gcn", "given"):
        return _fixed_split(graph, protocol, seed or 0)
    raise InputError(f"unknown split protocol {protocol!r}; expected one of {', '.join(PROTOCOLS)}")


def stratified_split(y: NDArray[np.int64], seed: int = 0, train: float = 0.6, val: float = 0.2) -> Split:
    """Per class round(train·n_c) and round(val·n_c) nodes, the rest test; NAGphormer's sizes."""
    parts: tuple[list[NDArray[np.int64]], ...] = ([], [], [])
    for nodes in _nodes_by_class(y):
        order = hash_order(nodes, seed)
        first, second = round(train * len(nodes)), round(val * len(nodes))
        for part, chosen in zip(parts, np.split(order, [first, first + second]), strict=True):
            part.append(chosen)
    first_part, second_part, rest = (np.concatenate(part) for part in parts)
    return Split(first_part, second_part, rest, name=f"stratified-{seed}")


def two_stage_split(y: NDArray[np.int64], seed: int = 2021) -> Split:
    """scikit-learn's stratified split, train = int(0.6·n), the rest halved (Gophormer; the paper's DBLP)."""
    from sklearn.model_selection import train_test_split

    if not 0 <= seed < 2**32:
        raise InputError(f"two-stage split: seed {seed}; scikit-learn takes one from 0 to {2**32 - 1}")
    nodes = np.flatnonzero(y >= 0)
    try:
        train, rest = train_test_split(nodes, train_size=int(0.6 * len(nodes)), random_state=seed, stratify=y[nodes])
        val, test = train_test_split(rest, test_size=0.5, random_state=seed, stratify=y[rest])
    except ValueError as error:
        raise InputError(f"two-stage split: {error}; 'stratified' takes small classes too") from error
    return Split(train, val, test, name=f"two-stage-{seed}")


def class_balanced_split(y: NDArray[np.int64], seed: int = 0) -> Split:
    """round(0.6·n/C) training nodes of every class, round(0.2·n) of the rest validation (GPR-GNN)."""
    groups = _nodes_by_class(y)
    total = sum(len(nodes) for nodes in groups)
    per_class, num_val = round(0.6 * total / len(groups)), round(0.2 * total)
    train = np.concatenate([hash_order(nodes, seed)[:per_class] for nodes in groups])
    rest = hash_order(np.setdiff1d(np.concatenate(groups), train), seed + 1)
    return Split(train, rest[:num_val], rest[num_val:], name=f"class-balanced-{seed}")


def _nodes_by_class(y: NDArray[np.int64]) -> Sequence[NDArray[np.int64]]:
    classes = np.unique(y[y >= 0])
    if classes.size == 0:
        raise InputError(
            "no node of the graph has a label, so there is nothing to split; a nodes table has them in a column 'label'"
        )
    return [np.flatnonzero(y == c) for c in classes]


def _fixed_split(graph: Graph, protocol: str, number: int) -> Split:
    splits = [s for s in graph.splits if protocol == "given" or s.name.startswith("geom-gcn")]
    if not splits:
        hint = "add a 'split' column to its nodes table, or use 'stratified'"
        if protocol == "geom-gcn":  # which no column gives
            instead = "'given', which it has" if graph.splits else "'stratified'"
            hint = f"only some published datasets do; use {instead}"
        raise InputError(f"graph '{graph.name}' comes with no {protocol} split; {hint}")
    if not 0 <= number < len(splits):
        raise InputError(f"graph '{graph.name}' has {protocol} splits 0 to {len(splits) - 1}, not {number}")
    return splits[number]
