"""Walks to a file, in pieces: as a `.npy` larger than memory, or as text, one sentence a line.

The text is the paper's *graph document* (Definition 1): every walk is a sentence, every node a word.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokenphormer.errors import InputError
from tokenphormer.files import atomic_path
from tokenphormer.graph import Graph
from tokenphormer.walks.reference import Kind
from tokenphormer.walks.sampling import check_request, sample_into, sample_walks

PIECE = 1 << 26
"""Bytes of walks held at a time."""
AS_LISTS = 16
"""How much more memory walks need as Python lists, on their way to text."""


def write_walks(
    path: str | Path,
    graph: Graph,
    kind: Kind,
    num_walks: int = 10,
    length: int = 4,
    nodes: ArrayLike | None = None,
    jump_radius: int = 3,
    seed: int = 0,
    device: str = "cpu",
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Draw walks straight into `path` (`.npy` or `.txt`); returns the number of walks.

    Memory stays at one piece of some 64 MB. The file appears whole or not at all. `progress` is told after each
    piece how many start nodes are done.
    """
    path = Path(path)
    chosen = check_request(graph, kind, num_walks, length, nodes, jump_radius, seed)
    num_walks, length, jump_radius, seed = map(int, (num_walks, length, jump_radius, seed))  # NumPy's overflow
    starts = np.arange(graph.num_nodes) if chosen is None else chosen
    if path.suffix not in (".npy", ".txt"):
        raise InputError(f"{path}: expected a name that ends in .npy (an array) or .txt (one walk a line)")
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; choose another name, or say --force (overwrite=True)")
    if path.suffix == ".npy":
        with atomic_path(path) as temporary:
            shape = (len(starts), num_walks, length + 1)
            if 0 in shape:
                with temporary.open("wb") as file:
                    np.save(file, np.zeros(shape, np.int32))
            else:
                walks = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.int32, shape=shape)
                _reserve(temporary)
                for first, piece in _pieces(starts, num_walks * (length + 1) * 4):
                    here = walks[first : first + len(piece)]
                    if device == "cpu":
                        sample_into(here, graph, kind, piece, jump_radius, seed)
                    else:
                        drawn = sample_walks(graph, kind, num_walks, length, piece, jump_radius, seed, device)
                        here[:] = drawn.cpu().numpy()
                    if progress:
                        progress(first + len(piece))
                walks.flush()
                del walks
        return len(starts) * num_walks
    words = _words(graph)
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as text:
        for first, piece in _pieces(starts, num_walks * (length + 1) * 4 * AS_LISTS):
            drawn = sample_walks(graph, kind, num_walks, length, piece, jump_radius, seed, device)
            for walk in drawn.view(-1, length + 1).tolist():
                text.write(" ".join(words[node] for node in walk if node >= 0) + "\n")
            if progress:
                progress(first + len(piece))
    return len(starts) * num_walks


def _pieces(starts: NDArray[np.int64], row_bytes: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    rows = max(1, PIECE // row_bytes)
    for first in range(0, len(starts), rows):
        yield first, starts[first : first + rows]


def _reserve(path: Path) -> None:
    """Take the whole file's space now: a disk found full later, through the mapping, kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _words(graph: Graph) -> list[str]:
    words = [graph.id_of(node) for node in range(graph.num_nodes)]
    for node, word in enumerate(words):
        if not word or any(character.isspace() for character in word):
            raise InputError(
                f"node {node} is called {word!r}: a sentence's words are set apart by blanks, so ids with blanks "
                "cannot be written as text; write a .npy instead"
            )
    return words
