"""The map: all nodes in two dimensions by what the model makes of them, worked out once and kept in the run folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.files import atomic_path, load_arrays, parse_json
from tokenphormer.hashing import hash_order
from tokenphormer.training.loop import in_pieces
from tokenphormer.training.tokenphormer import TokenphormerMethod

FORMAT = 1
MAP_FILE = "map.npz"
MAX_NODES = 20_000
"""Nodes on the map: all, or of a larger graph a sample. More take minutes, and cover each other."""
PCA_CHANNELS = 50
"""Channels that t-SNE sees; further ones are mostly noise, and cost time."""
PERPLEXITY = 30.0
FEW = 8
"""Fewer nodes than this have no neighbourhoods to speak of: they stand in a circle."""


@dataclass(frozen=True, eq=False)
class NodeMap:
    """Places of nodes in the unit square."""

    nodes: NDArray[np.int64]
    """(m) indices, ascending."""
    places: NDArray[np.float32]
    """(m, 2) from 0 to 1."""


def load_or_make_map(
    folder: Path, identity: str, states: Callable[[], NDArray[np.float32]], nodes: NDArray[np.int64]
) -> NodeMap:
    """The map of the run folder if it is of this model and graph (`identity`), else a new one, kept there."""
    path = folder / MAP_FILE
    with suppress(InputError):  # none, one of another run, or a damaged one: it is made anew
        return _load(path, identity, nodes)
    made = NodeMap(nodes, project(states()))
    with suppress(ResourceError):  # a folder that may only be read is no reason to go without
        _save(path, made, identity)
    return made


def chosen_nodes(num_nodes: int) -> NDArray[np.int64]:
    """The nodes on the map.

    >>> chosen_nodes(3).tolist(), len(chosen_nodes(1_000_000))
    ([0, 1, 2], 20000)
    """
    everyone = np.arange(num_nodes)
    return everyone if num_nodes <= MAX_NODES else np.sort(hash_order(everyone, 0)[:MAX_NODES])


def node_states(method: TokenphormerMethod, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
    """(m, h) what the readout makes of each node (the paper's equation 7): the head's input."""
    module, found = method.module, list[Tensor]()
    module.eval()
    method.begin_prediction(0)
    handle = module.head.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    try:

        def read(piece: Tensor) -> Tensor:
            found.clear()
            module.encode(module.embed(method.source.batch(piece), method.dtype))
            return found[0]

        where = torch.tensor(nodes, device=method.source.device)
        states = torch.cat(in_pieces(read, where, method.micro_batch))
    finally:
        handle.remove()
    result: NDArray[np.float32] = states.float().cpu().numpy()
    return result


def project(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """(m, 2) places from 0 to 1 by principal components and t-SNE (JMLR 2008); the same states, the same places."""
    m = len(states)
    if m < FEW:
        turn = 2 * np.pi * np.arange(m) / m
        return (0.5 + 0.4 * np.column_stack([np.cos(turn), np.sin(turn)])).astype(np.float32)
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # On one core: requests are answered meanwhile.
    with threadpool_limits(1):
        reduced = _principal_components(states)
        if reduced.shape[1] < 2 or not reduced[:, 1].std() > 1e-6:  # t-SNE begins with the first two
            return _to_unit_square(np.column_stack([reduced[:, 0], np.zeros(m)]))
        tsne = TSNE(perplexity=min(PERPLEXITY, (m - 1) / 3), init="pca", random_state=0, n_jobs=1)
        return _to_unit_square(tsne.fit_transform(reduced))


def _principal_components(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """(m, 50 or fewer) the directions in which states differ most, first the first."""
    centred = states.astype(np.float64) - states.mean(axis=0, dtype=np.float64)
    centred /= max(float(centred.std()), 1e-12)
    _, directions = np.linalg.eigh(centred.T @ centred)  # ascending
    result: NDArray[np.float32] = (centred @ directions[:, ::-1][:, :PCA_CHANNELS]).astype(np.float32)
    return result


def _to_unit_square(places: NDArray[Any]) -> NDArray[np.float32]:
    """Both axes in the same measure, centred."""
    low, high = places.min(axis=0), places.max(axis=0)
    size = max(float((high - low).max()), 1e-12)
    result: NDArray[np.float32] = ((places - (low + high) / 2) / size + 0.5).astype(np.float32)
    return result


def _save(path: Path, made: NodeMap, identity: str) -> None:
    meta = np.frombuffer(json.dumps({"format": FORMAT, "identity": identity}).encode(), np.uint8)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, nodes=made.nodes, places=made.places, meta=meta)


def _load(path: Path, identity: str, nodes: NDArray[np.int64]) -> NodeMap:
    arrays: dict[str, Any] = dict(load_arrays(path, required=("nodes", "places", "meta")))
    try:
        meta = parse_json(arrays["meta"].tobytes())
        known = meta == {"format": FORMAT, "identity": identity} and np.array_equal(arrays["nodes"], nodes)
        places = arrays["places"].astype(np.float32)
        fine = known and places.shape == (len(nodes), 2) and bool((np.abs(places - 0.5) <= 0.5 + 1e-6).all())
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: not a map ({error})") from error
    if not fine:
        raise InputError(f"{path}: not the map of this run")
    return NodeMap(nodes, places)
