"""The same seed, the same result; nodes with other numbers, batches in another order: the same law and scores."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tokenphormer.graph import Graph
from tokenphormer.hops import NORMALISATIONS, Normalisation, propagate, propagation_matrix
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.loop import Labelled, Trainer
from tokenphormer.training.tokenphormer import TokenphormerMethod
from tokenphormer.walks import KINDS, Kind, sample_walks

WALKS = 3000
GRAPHS = st.integers(3, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=n, max_size=3 * n),
        st.permutations(range(n)),
    )
)


def renamed(graph: Graph, names: NDArray[np.int64]) -> Graph:
    """The graph whose node names[v] is v here."""
    rows = np.repeat(np.arange(graph.num_nodes), graph.degree)
    order = np.argsort(names)
    x = None if graph.x is None else graph.x[order]
    return Graph.from_edges(
        [names[rows], names[graph.indices]], num_nodes=graph.num_nodes, x=x, directed=graph.directed, self_loops=True
    )


def two_samples(one: NDArray[np.int64], two: NDArray[np.int64]) -> tuple[float, int]:
    """Chi-square of two samples of the same law, and its degrees of freedom."""
    bins = int(max(one.max(), two.max())) + 2
    a, b = (np.bincount(sample + 1, minlength=bins) for sample in (one, two))
    kept = a + b > 20
    return float(((a - b) ** 2 / np.maximum(a + b, 1))[kept].sum()), max(0, int(kept.sum()) - 1)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(drawn=GRAPHS, directed=st.booleans(), kind=st.sampled_from(KINDS))
def test_walks_do_not_know_the_numbers_of_nodes(
    drawn: tuple[list[tuple[int, int]], list[int]], directed: bool, kind: Kind
) -> None:
    """The law of a walk's third node, of a graph and of the same graph with its nodes in another order."""
    edges, order = drawn
    names = np.array(order)
    graph = Graph.from_edges(np.array(edges).T, num_nodes=len(names), directed=directed)
    other = renamed(graph, names)
    back = np.append(np.argsort(names), -1)  # −1, a walk's end, stays
    statistic, freedom = 0.0, 0
    here = sample_walks(graph, kind, WALKS, 3, seed=1).numpy()
    there = sample_walks(other, kind, WALKS, 3, seed=2).numpy()
    for node in range(graph.num_nodes):
        s, f = two_samples(here[node, :, 3].astype(np.int64), back[there[names[node], :, 3]])
        statistic, freedom = statistic + s, freedom + f
    assert freedom == 0 or chi2.sf(statistic, freedom) > 1e-6


def test_the_comparison_can_fail() -> None:
    rng = np.random.default_rng(0)
    fair, loaded = rng.integers(0, 4, WALKS), rng.choice(4, WALKS, p=[0.3, 0.25, 0.25, 0.2])
    assert chi2.sf(*two_samples(fair, rng.integers(0, 4, WALKS))) > 1e-6
    assert chi2.sf(*two_samples(fair, loaded)) < 1e-6


def hop_features(graph: Graph, normalisation: Normalisation) -> list[NDArray[np.float32]]:
    assert graph.x is not None
    return [np.asarray(x) for x in propagate(propagation_matrix(graph, normalisation), graph.x, 2)]


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_hops_do_not_know_the_numbers_of_nodes(normalisation: Normalisation) -> None:
    graph = tiny_graph()
    names = np.random.default_rng(3).permutation(graph.num_nodes)
    here, there = (hop_features(each, normalisation) for each in (graph, renamed(graph, names)))
    for one, two in zip(here, there, strict=True):
        np.testing.assert_allclose(two[names], one, rtol=1e-5, atol=1e-5)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(order=st.permutations(range(20)))
def test_scores_do_not_know_the_order_of_the_batch(order: list[int]) -> None:
    graph = tiny_graph()
    torch.manual_seed(0)
    method = TokenphormerMethod(graph, tiny_config(), graph.num_classes, CPU)
    method.module.eval()
    method.begin_prediction(0)
    with torch.no_grad():
        torch.testing.assert_close(method.scores(torch.tensor(order)), method.scores(torch.arange(20))[order])


def test_training_does_not_know_the_order_of_its_nodes() -> None:
    """Batches are drawn by hash: nodes listed in another order are the same training, to the bit."""
    graph = tiny_graph()
    split, config = tiny_split(graph), tiny_config(batch_size=8, max_epochs=2)
    val = Labelled(split.val, graph.y[split.val])
    found = []
    for nodes in (split.train, split.train[::-1].copy()):
        torch.manual_seed(0)
        method = TokenphormerMethod(graph, config, graph.num_classes, CPU)
        Trainer(method, Labelled(nodes, graph.y[nodes]), val, graph.num_classes, config, CPU).run()
        found.append(method.module.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


FIRST_WALKS = """
import torch
import tokenphormer as tp
torch.set_num_threads(3)
torch.get_num_threads()  # from then on torch has begun with threads, as in any training
tp.sample_walks(tp.Graph.from_edges([[0, 1], [1, 2]]), "uniform", num_walks=2, length=2)
print(torch.get_num_threads())
"""


def test_the_first_walks_leave_torch_its_threads() -> None:
    """Numba starts its own with them, in a process that has none yet, and that set their number for torch too."""
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-c", FIRST_WALKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert done.stdout == "3\n"


def test_threads_change_no_bit_where_that_is_asked() -> None:
    graph = tiny_graph(num_nodes=900)
    split = tiny_split(graph)
    config = tiny_config(hidden_channels=64, max_epochs=3, deterministic=True)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.append(fit_tokenphormer(graph, split, config, CPU).method.module.state_dict())
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)
