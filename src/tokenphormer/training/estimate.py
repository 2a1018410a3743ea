"""What a training will take of the machine, before it starts: memory, disk and time.

Memory and disk are counted; time is arithmetic divided by how fast this machine multiplies matrices just now, so take
it for the order of magnitude.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tokenphormer.graph import Graph, Split
from tokenphormer.model import Tokenphormer
from tokenphormer.tokens.resident import is_resident, resident_bytes
from tokenphormer.tokens.source import projects_whole
from tokenphormer.tokens.stored_hops import COLUMN_BYTES, hop_bytes
from tokenphormer.training.loop import compute_dtype
from tokenphormer.training.settings import Config
from tokenphormer.training.tokenphormer import activation_bytes, as_taken, micro_batch, row_bytes

PROGRAM_BYTES = 400 << 20
"""Python with its libraries."""
CONTEXT_BYTES = 500 << 20
"""What CUDA itself takes of a GPU."""
SHARE_OF_RATE = 0.25
"""Of the rate of one large product, what a whole step reaches; measured with `benchmarks/bench_large.py`."""
RATE_SECONDS = 0.3
"""How long that rate is measured: other programs take turns of some hundredths of a second."""
HOP_SECONDS = 3e-9
"""For one feature to pass one edge, on one core."""
LOAD_RATE, GPU_HOP_RATE = 3e9, 1e12
"""Bytes a second that go from a disk to a GPU when the system has them in memory, and that a hop gathers there."""


@dataclass(frozen=True)
class Estimate:
    """What a training needs."""

    host_bytes: int
    """Memory of the process. Pages of a graph on disk come on top where there is room, and go when there is not."""
    gpu_bytes: int
    """Memory of the GPU; 0 without."""
    resident_bytes: int
    """Of that, the edges, features and hop features of a graph on disk that stay there; 0 where they do not."""
    disk_bytes: int
    """Hop features that are not there yet."""
    prepare_seconds: float
    """To make those."""
    epoch_seconds: float
    max_epochs: int

    @property
    def longest_seconds(self) -> float:
        """If validation keeps improving to the last epoch."""
        return self.prepare_seconds + self.max_epochs * self.epoch_seconds

    def to_json(self) -> dict[str, Any]:
        """For scripts: bytes and seconds."""
        return dataclasses.asdict(self) | {"longest_seconds": self.longest_seconds}

    def lines(self) -> list[str]:
        """For people."""
        gpu = f"{self.gpu_bytes / 1e9:.1f} GB" if self.gpu_bytes else "none is used"
        if self.gpu_bytes and self.resident_bytes:
            gpu += f", of which {self.resident_bytes / 1e9:.1f} GB are the graph and its hop features, which stay there"
        return [
            f"host memory   {self.host_bytes / 1e9:.1f} GB",
            f"GPU memory    {gpu}",
            f"disk          {self.disk_bytes / 1e9:.1f} GB for hop features, beside the graph",
            f"time          {self.epoch_seconds:.2g} s an epoch, at most {_duration(self.longest_seconds)} for "
            f"{self.max_epochs} epochs (rough)",
        ]


def estimate(graph: Graph, split: Split, config: Config, device: torch.device) -> Estimate:
    """Count what `fit_tokenphormer` will take with the same arguments; nothing is trained and nothing written."""
    graph = as_taken(graph, config)
    n, h, tokens = graph.num_nodes, config.hidden_channels, 1 + config.num_hops + config.num_walks
    encodings = config.laplacian_pe + config.walk_pe
    width = graph.num_features + encodings
    with torch.device("meta"):
        model = Tokenphormer(max(1, width), max(2, graph.num_classes), config)
    parameters = sum(p.numel() for p in model.parameters())
    whole = projects_whole(graph, h)
    fixed = 16 * parameters + (4 * n * h * (2 + config.num_hops) if whole else 0)
    most = micro_batch(config, tokens, fixed, device, 0 if whole else row_bytes(config, width))
    number = 4 if compute_dtype(device, config) is torch.float32 else 2
    reads = 1 + config.num_walks * config.walk_length

    def step_bytes(batch: int, activations: float) -> int:
        """The rows that a batch reads, what is projected and stacked of them, its tokens and their activations."""
        visited = n if whole else min(n, batch * reads)
        rows = visited * (4 * width + 6 * number * h) + batch * config.num_hops * 4 * (width + 2 * h)
        entries = batch * tokens * (2 + config.walk_length) * 40  # which rows a token sums
        return int(rows + entries + batch * activations)

    activations = activation_bytes(config, tokens, number)
    held, seen = _scored(config, n, split, most)
    training = step_bytes(held, activations)
    # Without gradients a layer's numbers are dropped as the next is worked out.
    predicting = step_bytes(min(most, max(1, *split.sizes)), activations / (2 * config.num_layers))
    step = fixed + max(training, predicting)
    scaled = config.normalise_features
    stays = graph.stored is not None and not encodings and is_resident(graph, config.num_hops, device, normalise=scaled)
    kept = resident_bytes(graph, config.num_hops, normalise=scaled) if stays else 0
    hops = 0 if stays else hop_bytes(graph, config.hop_normalisation, config.num_hops, normalise=scaled)
    host = PROGRAM_BYTES + 8 * n + 4 * n * encodings * (1 + config.num_hops)
    if graph.stored is None:
        host += _array_bytes(graph) * (3 if config.num_hops else 1)
    working = min(2 * 4 * n * width, max(COLUMN_BYTES, 8 * n)) + 16 * n if hops else 0
    on_gpu = device.type != "cpu"
    host += working if on_gpu else max(working, step)
    each = _node_products(config, tokens) + 2 * (1 if whole else reads) * width * 2 * h
    rate = _matrix_rate(config, device) * SHARE_OF_RATE
    threads = max(1, torch.get_num_threads())
    passed = graph.num_directed_edges * width * config.num_hops  # features times edges
    prepare = HOP_SECONDS * passed / threads if hops else 0.0
    if stays:
        number = 4 if graph.x is None else graph.x.dtype.itemsize
        prepare = (_array_bytes(graph) - graph.y.nbytes) / LOAD_RATE + number * passed / GPU_HOP_RATE
    return Estimate(
        host_bytes=host + (0 if on_gpu else kept),
        gpu_bytes=CONTEXT_BYTES + step + (kept + 8 * n if stays else _edge_bytes(graph)) if on_gpu else 0,
        resident_bytes=kept,
        disk_bytes=hops,
        prepare_seconds=prepare,
        epoch_seconds=seen * each / rate,
        max_epochs=config.max_epochs,
    )


def _scored(config: Config, n: int, split: Split, most: int) -> tuple[int, int]:
    """How many nodes' activations a step holds, and how many nodes an epoch takes forward; backward counts as two."""
    train, val, _ = split.sizes
    batch = max(1, min(config.batch_size, train))
    draws = 2 if config.consistency else 1
    if not config.score_hops:  # for consistency as many nodes again are drawn from the graph
        return draws * draws * min(most, batch), 3 * draws * draws * train + val
    updates, pieces = -(-train // config.batch_size), -(-n // most)  # every update scores all nodes
    if pieces == 1:
        return draws * n, (3 * draws * updates + 1) * n
    return -(-n // pieces), (4 * draws * updates + 1) * n  # a piece is worked out again in the backward pass


def _array_bytes(graph: Graph) -> int:
    x = graph.x
    each = 4 if x is None or graph.stored is None else x.dtype.itemsize  # in memory it is in single precision
    features = 0 if x is None else each * x.size if isinstance(x, np.ndarray) else 12 * x.nnz
    return int(features) + _edge_bytes(graph) + graph.y.nbytes


def _edge_bytes(graph: Graph) -> int:
    weights = 0 if graph.edge_weight is None else graph.edge_weight.nbytes
    return graph.indptr.nbytes + graph.indices.nbytes + weights


def _node_products(config: Config, tokens: int) -> float:
    """Multiplications and additions for one node's tokens in the encoder."""
    h, wide = config.hidden_channels, config.ffn_channels or 2 * config.hidden_channels
    return config.num_layers * 2.0 * tokens * (4 * h * h + 2 * h * wide + 2 * tokens * h)


def _matrix_rate(config: Config, device: torch.device) -> float:
    """Multiplications and additions a second in a product such as the encoder's."""
    h, rows = config.hidden_channels, 4096
    dtype = compute_dtype(device, config)
    left, right = torch.ones(rows, h, dtype=dtype, device=device), torch.ones(h, 2 * h, dtype=dtype, device=device)
    seconds: list[float] = []
    while len(seconds) < 5 or sum(seconds) < RATE_SECONDS:
        began = time.perf_counter()
        float((left @ right)[0, 0])  # waits for the result
        seconds.append(time.perf_counter() - began)
    return 2.0 * rows * h * 2 * h / float(np.median(seconds))


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
