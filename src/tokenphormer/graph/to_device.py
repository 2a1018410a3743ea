"""Arrays of a graph on disk as tensors on a device, read straight from their files.

Several threads read pieces into pinned buffers of their own and copy them on, so that neither a second copy of the
array nor its mapped pages ever stand in the host's memory: 43 GB go to a GPU through half a gigabyte.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.graph.disk import read_header
from tokenphormer.graph.graph import Graph

READERS = 8
"""Threads that read a file, on a machine that has as many cores."""
PIECE = 1 << 26
"""Bytes that a thread reads at a time."""
Name = Literal["indptr", "indices", "x"]
PLACES: dict[Name, int] = {"indptr": 0, "indices": 1, "x": 3}
"""Where they stand in `Graph.content`."""


def is_of_folder(graph: Graph, name: Name) -> bool:
    """Whether an array is still the one that the graph was opened with, rather than another put in its place."""
    stored = graph.stored
    return stored is not None and getattr(graph, name) is stored.content[PLACES[name]]


def stored_tensor(graph: Graph, name: Name, device: torch.device) -> Tensor:
    """A copy of an array of a graph on disk on a device."""
    stored = graph.stored
    if stored is None or not is_of_folder(graph, name):
        return torch.tensor(getattr(graph, name), device=device)
    return read_tensor(stored.folder / f"{name}.npy", device)


def read_tensor(path: Path, device: torch.device) -> Tensor:
    """A `.npy` file as a tensor on a device."""
    with path.open("rb") as file:
        dtype, shape, offset = read_header(file)
    result = torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=device)
    flat = result.view(-1).view(torch.uint8)
    firsts = range(0, len(flat), PIECE)
    threads = max(1, min(READERS, os.cpu_count() or 1, len(firsts)))
    on_gpu, cuda = device.type == "cuda", _cuda()
    if on_gpu:  # what may still be going on in the memory that the result was given
        cuda.synchronize(device)

    def copy(number: int) -> None:
        with ExitStack() as held:
            if on_gpu:  # a stream of its own, so that no thread waits for another's copy
                held.enter_context(cuda.device(device))
                held.enter_context(cuda.stream(cuda.Stream(device)))
            own = held.enter_context(path.open("rb", buffering=0))
            buffer = torch.empty(min(PIECE, len(flat)), dtype=torch.uint8, pin_memory=on_gpu)
            for first in firsts[number::threads]:
                piece = buffer[: min(PIECE, len(flat) - first)]
                own.seek(offset + first)
                _fill(piece.numpy().data, own, path)
                flat[first : first + len(piece)].copy_(piece)  # waits until the copy is done

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy, range(threads)))
    if on_gpu:
        cuda.synchronize(device)
    return result


def _cuda() -> Any:
    return torch.cuda  # parts of which have no types


def _fill(buffer: memoryview, file: FileIO, path: Path) -> None:
    while len(buffer):
        count = file.readinto(buffer)
        if not count:
            raise InputError(f"{path}: ends too early")
        buffer = buffer[count:]
