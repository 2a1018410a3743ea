"""Which launch shape of the Triton kernels is fastest: run on a GPU, `python -m benchmarks.tune_triton`."""

from __future__ import annotations

import json
from itertools import product

import torch

from benchmarks.bench_walks import SIZES, gpu_seconds, random_graph
from tokenphormer.graph import Graph
from tokenphormer.walks import KINDS, Kind, sample_walks, triton_kernel
from tokenphormer.walks.sampling import csr_tensors


def main() -> None:
    """Time every shape on a graph that fits the cache and on one that does not."""
    for size, num_walks, length in (("cora-like", 100, 4), ("10m", 4, 10)):
        graph = random_graph(*SIZES[size], "cuda")
        csr_tensors(graph, torch.device("cuda"))
        for kind in KINDS:
            for block, warps, staged in product((32, 64, 128), (1, 2, 4), (0, 64)):
                triton_kernel.LAUNCH[kind] = (block, warps)
                triton_kernel.MAX_STAGED = staged

                def draw(
                    kind: Kind = kind, walks: int = num_walks, steps: int = length, graph: Graph = graph
                ) -> object:
                    return sample_walks(graph, kind, walks, steps, device="cuda")

                best = gpu_seconds(draw, 4) * 1e3
                total = graph.num_nodes * num_walks * length
                row = {"size": size, "kind": kind, "block": block, "warps": warps, "staged": staged}
                row |= {"ms": round(best, 4), "giga_steps_a_second": round(total / best / 1e6, 2)}
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
