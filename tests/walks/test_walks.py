"""Bit-identity of the versions, properties of every step, and the errors of `sample_walks`."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from tests.walks.graphs import AWKWARD, extreme_weights, random_graph, transition, weighted
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph import Graph
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.hashing import mix64, mix64_array, mix64_tensor
from tokenphormer.walks import KINDS, Kind, sample_walks
from tokenphormer.walks.reference import Walker, integer_weights
from tokenphormer.walks.sampling import Backend, check_device

FAST: tuple[Backend, ...] = ("numba", "portable")


def draw(graph: Graph, kind: Kind, backend: Backend, **options: int) -> NDArray[np.int32]:
    return sample_walks(graph, kind, 5, 6, seed=3, backend=backend, **options).numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("graph", AWKWARD, ids=lambda g: g.name)
def test_versions_are_bit_identical_on_awkward_graphs(graph: Graph, backend: Backend, kind: Kind) -> None:
    np.testing.assert_array_equal(draw(graph, kind, backend), draw(graph, kind, "reference"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_versions_are_bit_identical_on_random_graphs(
    kind: Kind, backend: Backend, directed: bool, weights: bool
) -> None:
    graph = random_graph(1, directed=directed, weights=weights)
    np.testing.assert_array_equal(draw(graph, kind, backend), draw(graph, kind, "reference"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(len(AWKWARD)))
def test_triton_kernel_is_bit_identical(kind: Kind, number: int) -> None:
    """On a GPU where there is one, else under Triton's interpreter (conftest.py)."""
    pytest.importorskip("triton", reason="triton has no wheel for this platform")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    graph = AWKWARD[number]
    walks = sample_walks(graph, kind, 4, 3, seed=8, device=device, backend="triton")
    expected = sample_walks(graph, kind, 4, 3, seed=8, backend="reference")
    np.testing.assert_array_equal(walks.cpu().numpy(), expected.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_triton_kernel_on_long_walks_and_part_blocks(kind: Kind) -> None:
    """Beyond 63 steps the kernel writes rows directly; 33 walks leave a block with one."""
    pytest.importorskip("triton", reason="triton has no wheel for this platform")
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    graph = AWKWARD[3]
    for num_walks, length in ((33, 1), (3, 64 if "jump" not in kind else 65)):
        walks = sample_walks(graph, kind, num_walks, length, nodes=[1], device=device, backend="triton")
        expected = sample_walks(graph, kind, num_walks, length, nodes=[1], backend="reference")
        np.testing.assert_array_equal(walks.cpu().numpy(), expected.numpy())


def test_walks_whose_attempts_run_out_are_drawn_from_the_law() -> None:
    """The kernels mark them −2, and what comes out is what the reference draws."""
    graph = extreme_weights()
    from tokenphormer.walks import numba_kernel
    from tokenphormer.walks.reference import base_key
    from tokenphormer.walks.sampling import csr_arrays

    raw = np.empty((200, 4), np.int32)
    starts = np.zeros(1, np.int64)
    base = np.uint64(base_key(0, "non_backtracking_jump"))
    assert numba_kernel.jump(*csr_arrays(graph), starts, 200, 3, base, raw, 3, False)
    assert (raw == -2).any()
    walks = sample_walks(graph, "non_backtracking_jump", 200, 3, nodes=[0], backend="numba").numpy()
    assert walks.min() >= -1
    expected = sample_walks(graph, "non_backtracking_jump", 200, 3, nodes=[0], backend="reference")
    np.testing.assert_array_equal(walks, expected.numpy())
    portable = sample_walks(graph, "non_backtracking_jump", 200, 3, nodes=[0], backend="portable")
    np.testing.assert_array_equal(walks, portable.numpy())
    for backend in ("numba", "portable"):
        chosen = sample_walks(graph, "non_backtracking_jump", 200, 3, nodes=[3, 0], backend=backend).numpy()
        np.testing.assert_array_equal(chosen[1], walks[0], "whatever the place of a node among those asked for")


@pytest.mark.parametrize("kind", KINDS)
def test_subsets_orders_and_counts_change_nothing(kind: Kind) -> None:
    graph = random_graph(2)
    everything = sample_walks(graph, kind, 8, 5, seed=1).numpy()
    nodes = [17, 3, 3, 60, 0]
    np.testing.assert_array_equal(sample_walks(graph, kind, 8, 5, nodes=nodes, seed=1).numpy(), everything[nodes])
    np.testing.assert_array_equal(sample_walks(graph, kind, 3, 5, seed=1).numpy(), everything[:, :3])
    np.testing.assert_array_equal(sample_walks(graph, kind, 8, 2, seed=1).numpy(), everything[:, :, :3])
    assert (sample_walks(graph, kind, 8, 5, seed=2).numpy() != everything).any()


@pytest.mark.parametrize("kind", KINDS)
def test_one_and_two_threads_agree(kind: Kind) -> None:
    graph = random_graph(3, n=200, edges=900, weights=True)
    before = numba.get_num_threads()
    try:
        results = []
        for threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(threads)
            results.append(sample_walks(graph, kind, 20, 6).numpy())
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(results[0], results[1])


def test_many_threads_agree() -> None:
    code = (
        "import hashlib, numba; from tests.walks.graphs import random_graph; from tokenphormer.walks import *\n"
        "g = random_graph(3, n=200, edges=900)\n"
        "print(numba.get_num_threads(), *(hashlib.sha256(sample_walks(g, k, 20, 6).numpy().tobytes()).hexdigest()"
        " for k in KINDS))"
    )
    answers = {}
    for threads in ("1", "16"):
        environment = os.environ | {"NUMBA_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        count, *hashes = done.stdout.split()
        assert count == threads
        answers[threads] = hashes
    assert answers["1"] == answers["16"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_processes_that_were_forked_draw_the_same_walks() -> None:
    """Those of a data loader, say: OpenMP ends them if they use it after their parent did."""
    code = (
        "import os; from tests.walks.graphs import *; from tokenphormer.walks import *\n"
        "graphs = [random_graph(3), extreme_weights()]\n"
        "draw = lambda: [sample_walks(graph, kind, 5, 6).tolist() for graph in graphs for kind in KINDS]\n"
        "expected = draw()\n"
        "child = os.fork()\n"
        "if not child: os._exit(0 if draw() == expected else 3)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_these_walks_never_change() -> None:
    """A seed is a promise across versions: these were drawn by the first one."""
    graph = Graph.from_edges([[0, 1, 2, 3, 4, 0, 1], [1, 2, 3, 4, 0, 2, 4]])
    drawn = {kind: sample_walks(graph, kind, 1, 6, nodes=[0], seed=2025).flatten().tolist() for kind in KINDS}
    assert drawn == {
        "uniform": [0, 4, 3, 2, 0, 1, 4],
        "non_backtracking": [0, 2, 1, 0, 2, 3, 4],
        "jump": [0, 1, 3, 4, 3, 1, 2],
        "non_backtracking_jump": [0, 4, 1, 2, 3, 1, 2],
    }


def test_walks_by_weights_never_change() -> None:
    drawn = {kind: sample_walks(weighted(), kind, 1, 6, nodes=[0], seed=2025).flatten().tolist() for kind in KINDS}
    assert drawn == {
        "uniform": [0, 3, 4, 3, 4, 3, 4],
        "non_backtracking": [0, 2, 1, 0, 2, 1, 4],
        "jump": [0, 1, 4, 3, 4, 2, 1],
        "non_backtracking_jump": [0, 4, 3, 1, 0, 3, 4],
    }
    rare = sample_walks(extreme_weights(), "non_backtracking_jump", 16, 2, nodes=[0], seed=2025)
    assert rare[0, :, 2].tolist() == [3, 2, 3, 3, 3, 3, 3, 3, 2, 3, 3, 3, 3, 2, 2, 2], (
        "drawn from the law, after as many attempts as ever"
    )


@settings(max_examples=60, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=40),
    directed=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    radius=st.integers(1, 4),
)
def test_every_step_is_allowed(edges: list[tuple[int, int]], directed: bool, seed: int, radius: int) -> None:
    graph = Graph.from_edges(np.array(edges, dtype=np.int64).reshape(-1, 2).T, 12, directed=directed)
    adjacency = np.zeros((12, 12))
    for node in range(12):
        adjacency[node, graph.neighbours(node)] = 1
    distance = shortest_path(adjacency, unweighted=True)
    for kind in KINDS:
        walks = sample_walks(graph, kind, 4, 5, jump_radius=radius, seed=seed).numpy().reshape(-1, 6)
        for walk in walks.tolist():
            for step in range(1, 6):
                before, after = walk[step - 1], walk[step]
                if before == -1:
                    assert after == -1
                elif after == -1:
                    assert graph.degree[before] == 0
                elif "jump" in kind:
                    assert 1 <= distance[before, after] <= radius
                else:
                    assert adjacency[before, after] == 1
                if kind == "non_backtracking" and step > 1 and after >= 0 and after == walk[step - 2]:
                    assert graph.degree[before] == 1
                if kind == "non_backtracking_jump" and step > 1 and after >= 0 and after == walk[step - 2]:
                    near = np.flatnonzero((distance[before] >= 1) & (distance[before] <= radius))
                    assert set(near.tolist()) <= {before, after}


def test_integer_weights_are_exact() -> None:
    """Sums and ratios of the integers are those of the weights."""
    graph = random_graph(4, weights=True)
    running = integer_weights(graph)
    assert running is not None
    assert graph.edge_weight is not None
    for node in range(graph.num_nodes):
        row = slice(graph.indptr[node], graph.indptr[node + 1])
        weight = graph.edge_weight[row]
        if len(weight):
            parts = np.diff(running[row], prepend=0)
            assert parts.min() >= 1
            assert running[row][-1] < 2**61
            np.testing.assert_allclose(parts / running[row][-1], weight / weight.sum(), rtol=1e-12)


def test_integer_weights_by_hand() -> None:
    """Two of up to 2.5 < 2²: by 2⁶⁰⁻²⁻²; two of up to 1 < 2¹: by 2⁶⁰⁻²⁻¹, and what is too small for that is 1."""
    graph = Graph.from_edges([[0, 0, 1, 1], [1, 2, 0, 2]], edge_weight=[1.0, 2.5, 1e-300, 1.0], directed=True)
    running = integer_weights(graph)
    assert running is not None
    assert running.tolist() == [2**56, 2**56 + 5 * 2**55, 1, 1 + 2**57]


@pytest.mark.parametrize("graph", AWKWARD, ids=lambda g: g.name)
def test_chances_are_those_of_the_matrix(graph: Graph) -> None:
    """The chance that j steps end outside a set: a row of Pʲ summed over what is outside."""
    P = transition(graph)
    walker = Walker(graph, "jump", 3, 0)
    for node in range(graph.num_nodes):
        for avoid in ({node}, {node, (node + 1) % graph.num_nodes}):
            outside = [u for u in range(graph.num_nodes) if u not in avoid]
            for steps in (1, 2, 3, 4):
                expected = np.linalg.matrix_power(P, steps)[node, outside].sum()
                assert walker.chance(node, steps, avoid) == pytest.approx(expected, abs=1e-14)


def test_a_copy_of_a_graph_on_disk_walks_by_its_own_edges(tmp_path: Path) -> None:
    graph = random_graph(1, weights=True)
    assert graph.edge_weight is not None
    write_graph(graph, tmp_path / "g")
    stored = open_graph(tmp_path / "g")
    other = dataclasses.replace(stored, edge_weight=graph.edge_weight**20)
    expected = sample_walks(dataclasses.replace(other, stored=None), "uniform")
    assert (sample_walks(other, "uniform") == expected).all()
    assert (sample_walks(stored, "uniform") == sample_walks(graph, "uniform")).all()
    loop = dataclasses.replace(stored, indptr=np.array([0, 1]), indices=np.zeros(1, np.int32), edge_weight=None)
    assert loop.num_self_loops == 1


def test_mix_is_the_same_in_python_numpy_and_torch() -> None:
    values = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    expected = [mix64(int(v)) for v in values]
    assert mix64_array(values).tolist() == expected
    assert [z % 2**64 for z in mix64_tensor(torch.tensor(values.astype(np.int64))).tolist()] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "random"}, "kind: 'random'; expected one of uniform, non_backtracking"),
        ({"num_walks": 0}, "num_walks: 0; expected a whole number of at least 1"),
        ({"num_walks": 2**62}, f"num_walks: {2**62}; expected at most 2147483647"),
        ({"length": 10**20}, f"length: {10**20}; expected at most 2147483647"),
        ({"kind": "jump", "jump_radius": 10**20}, "jump_radius: .*; expected at most 2147483647"),
        ({"num_walks": 2**30, "length": 2**30}, "walks of .* steps from 5 nodes are more than an array can hold"),
        ({"device": None}, "device: None; expected 'cpu', 'cuda'"),
        ({"length": 0}, "length: 0; expected"),
        ({"length": 2.5}, "length: 2.5; expected"),
        ({"jump_radius": 0}, "jump_radius: 0"),
        ({"nodes": [0, 99]}, "nodes, entry 1: node 99, but the graph has nodes 0 to 4"),
        ({"nodes": [-1]}, "nodes, entry 0: node -1"),
        ({"nodes": [0.5]}, "nodes: expected a list of node indices"),
        ({"nodes": [[0]]}, "nodes: expected a list of node indices"),
        ({"nodes": ["a"]}, r"nodes: expected a list of node indices, .* with graph\.index_of"),
        ({"seed": 1.5}, "seed: 1.5"),
        ({"backend": "cython"}, "backend: 'cython'"),
        ({"device": "toaster"}, "device: 'toaster'"),
    ],
)
def test_bad_requests_say_what_is_wrong(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        sample_walks(AWKWARD[0], **({"kind": "uniform"} | options))


def test_missing_gpu_is_said() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ResourceError, match="torch cannot use it here"):
        sample_walks(AWKWARD[0], "uniform", device="cuda")


def test_no_nodes_and_one_node() -> None:
    assert sample_walks(AWKWARD[0], "uniform", 2, 3, nodes=[]).shape == (0, 2, 4)
    alone = Graph.from_edges(np.zeros((2, 0), np.int64), num_nodes=1)
    for kind in KINDS:
        assert sample_walks(alone, kind, 2, 2).tolist() == [[[0, -1, -1], [0, -1, -1]]]


def test_seeds_of_any_size_are_taken_modulo_two_to_the_64() -> None:
    graph = random_graph(5)
    for seed in (-1, 2**64 - 1):
        walks = sample_walks(graph, "uniform", 2, 3, seed=seed).numpy()
        np.testing.assert_array_equal(walks, sample_walks(graph, "uniform", 2, 3, seed=2**64 - 1).numpy())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", ["reference", *FAST])
def test_integers_of_numpy_are_as_good(backend: Backend) -> None:
    graph = random_graph(1)
    for kind in KINDS:
        small = sample_walks(graph, kind, np.int8(100), np.int16(3), None, np.int8(2), np.int64(7), backend=backend)
        assert (small == sample_walks(graph, kind, 100, 3, None, 2, 7, backend=backend)).all()


def test_a_device_that_torch_was_not_built_for_is_told_in_a_line() -> None:
    with pytest.raises(ResourceError, match="'vulkan', but torch cannot use it here") as told:
        check_device("vulkan")
    assert len(str(told.value)) < 300
