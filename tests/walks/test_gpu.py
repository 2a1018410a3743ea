"""The Triton kernels on a real GPU against the Numba kernels on the CPU, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.walks.graphs import random_graph
from tokenphormer.graph import Graph, load_graph
from tokenphormer.walks import KINDS, Kind, sample_walks

pytestmark = pytest.mark.gpu


def hubs() -> Graph:
    """A few nodes with most of the edges, many leaves and pairs."""
    rng = np.random.default_rng(0)
    heavy = np.minimum((rng.pareto(0.8, 60_000) * 3).astype(np.int64), 19_999)
    return Graph.from_edges([heavy, rng.integers(0, 20_000, 60_000)], num_nodes=20_500, name="hubs")


GRAPHS = {
    "debian": lambda: load_graph("debian"),
    "hubs": hubs,
    "sparse": lambda: random_graph(7, n=50_000, edges=40_000),
    "directed": lambda: random_graph(8, n=20_000, edges=60_000, directed=True),
    "weighted": lambda: random_graph(9, n=20_000, edges=60_000, weights=True),
    "weighted and directed": lambda: random_graph(10, n=5_000, edges=15_000, directed=True, weights=True),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GRAPHS)
def test_gpu_and_cpu_draw_the_same_walks(name: str, kind: Kind) -> None:
    graph = GRAPHS[name]()
    there = sample_walks(graph, kind, 20, 8, seed=5, device="cuda")
    assert there.is_cuda
    here = sample_walks(graph, kind, 20, 8, seed=5)
    np.testing.assert_array_equal(there.cpu().numpy(), here.numpy())
    if name in ("debian", "weighted"):
        portable = sample_walks(graph, kind, 20, 8, seed=5, device="cuda", backend="portable")
        np.testing.assert_array_equal(portable.cpu().numpy(), here.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_subset_of_nodes(kind: Kind) -> None:
    graph = load_graph("debian")
    nodes = [5000, 3, 3, 7]
    there = sample_walks(graph, kind, 7, 3, nodes=nodes, seed=1, device="cuda").cpu().numpy()
    np.testing.assert_array_equal(there, sample_walks(graph, kind, 7, 3, nodes=nodes, seed=1).numpy())


def test_more_than_two_to_the_31_edges() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 30e9:
        pytest.skip(f"needs 30 GB of GPU memory, {free / 1e9:.0f} are free")
    nodes, degree = 120_000_000, 18
    torch.manual_seed(0)
    indices = torch.randint(nodes, (nodes * degree,), dtype=torch.int32, device="cuda").cpu().numpy()
    torch.cuda.empty_cache()
    graph = Graph(np.arange(nodes + 1, dtype=np.int64) * degree, indices, directed=True)
    assert graph.num_directed_edges > 2**31
    starts = np.r_[0:500, nodes - 500 : nodes]
    for kind in KINDS:
        there = sample_walks(graph, kind, 10, 6, nodes=starts, device="cuda").cpu().numpy()
        np.testing.assert_array_equal(there, sample_walks(graph, kind, 10, 6, nodes=starts).numpy())
