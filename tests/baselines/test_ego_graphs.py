"""Ego-graphs: exact, without repetition, and a function of (key, node)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from tests.baselines.build import build, separable_graph
from tokenphormer.baselines.ego_graphs import (
    EgoGraphs,
    dense_adjacency,
    distinct,
    draw_key,
    numbered,
    read_in_groups,
    uniform,
)
from tokenphormer.graph import Graph
from tokenphormer.hashing import mix64_tensor


def egos(graph: Graph) -> EgoGraphs:
    return EgoGraphs(build("gophormer", graph=graph).task)


def test_uniform_numbers_are_strictly_between_0_and_1() -> None:
    numbers = uniform(numbered(torch.arange(100_000), torch.tensor(3)))
    assert numbers.dtype == torch.float32
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert uniform(torch.tensor([-1])).item() < 1  # all bits set
    assert uniform(torch.tensor([0])).item() > 0
    assert chisquare(np.histogram(numbers.numpy(), bins=20, range=(0, 1))[0]).pvalue > 1e-3


def test_every_subset_is_as_likely() -> None:
    rows = 30_000
    keys = mix64_tensor(torch.arange(rows))
    places = distinct(torch.full((rows,), 5), 3, keys, torch.zeros((), dtype=torch.int64))
    subsets = [tuple(sorted(row)) for row in places.tolist()]
    counts = [subsets.count(subset) for subset in combinations(range(5), 3)]
    assert sum(counts) == rows
    assert chisquare(counts).pvalue > 1e-3


def test_places_are_those_of_floyds_algorithm_a_step_at_a_time() -> None:
    sizes, keys, slot = torch.arange(40), mix64_tensor(torch.arange(40)), torch.full((40,), 7)
    for size, key, places in zip(range(40), keys.tolist(), distinct(sizes, 6, keys, slot).tolist(), strict=True):
        expected: list[int] = []
        for i in range(6):
            last = size - 6 + i
            bits = numbered(torch.tensor(key), torch.tensor(7 + i)).item() % 2**64
            place = (bits >> 32) * (last + 1) >> 32
            expected.append(last if place in expected else place)
        assert places == (expected if size > 6 else [i if i < size else -1 for i in range(6)])


def test_few_neighbours_are_all_taken() -> None:
    sizes = torch.tensor([0, 1, 2, 3])
    places = distinct(sizes, 3, torch.arange(4), torch.zeros((), dtype=torch.int64))
    assert places.tolist() == [[-1, -1, -1], [0, -1, -1], [0, 1, -1], [0, 1, 2]]


def test_no_neighbours_may_be_asked_for() -> None:
    graph, nodes = separable_graph(), torch.arange(90)
    one_step, two_steps = (egos(graph).sample(nodes, fan_outs, key=5) for fan_outs in ((4,), (4, 0)))
    assert torch.equal(one_step, two_steps)
    assert egos(graph).sample(nodes, (0, 3), key=5).tolist() == nodes[:, None].tolist()
    assert build("gophormer", graph, second_fan_out=0).scores(nodes).shape == (90, 3)


def test_ego_graphs_follow_the_edges() -> None:
    graph = separable_graph()
    tokens = egos(graph).sample(torch.arange(90), (4, 2), draw_key(0, 1, prediction=False))
    assert tokens.shape == (90, 1 + 4 + 4 * 2)
    for node, row in enumerate(tokens.tolist()):
        drawn = [token for token in row if token >= 0]
        assert row[0] == node
        assert len(set(drawn)) == len(drawn)
        first = {token for token in row[1:5] if token >= 0}
        assert first <= set(graph.neighbours(node).tolist())
        assert len(first) == min(4, graph.degree[node])
        near = {other for token in first for other in graph.neighbours(token).tolist()}
        assert {token for token in row[5:] if token >= 0} <= near


def test_a_sample_depends_on_key_and_node_alone() -> None:
    drawer, nodes = egos(separable_graph()), torch.arange(90)
    key = draw_key(3, 1, prediction=False)
    everyone = drawer.sample(nodes, (3, 2), key)
    torch.testing.assert_close(drawer.sample(nodes[[7, 50]], (3, 2), key), everyone[[7, 50]])
    for other in (draw_key(3, 2, prediction=False), draw_key(3, 1, prediction=True), draw_key(4, 1, prediction=False)):
        assert not torch.equal(drawer.sample(nodes, (3, 2), other), everyone)


def test_edges_within_an_ego_graph() -> None:
    graph = separable_graph()
    drawer = egos(graph)
    tokens = drawer.sample(torch.arange(90), (4, 2), 5)
    dense = dense_adjacency(build("gophormer", graph=graph).task)
    assert dense.sum() == graph.num_directed_edges
    valid = tokens >= 0
    expected = dense[tokens[:, :, None], tokens[:, None, :]] & valid[:, :, None] & valid[:, None, :]
    assert expected.any()
    assert torch.equal(drawer.adjacent(tokens), expected)


def test_a_graph_without_edges() -> None:
    drawer = egos(Graph.from_edges(np.zeros((2, 0), int), num_nodes=4, x=np.eye(4), y=[0, 1, 0, 1]))
    tokens = drawer.sample(torch.arange(4), (2, 2), 0)
    assert tokens.tolist() == [[node] + [-1] * 6 for node in range(4)]
    assert not drawer.adjacent(tokens).any()


def test_directions_are_kept() -> None:
    """From the row to the column, as edges lead."""
    graph = Graph.from_edges([[0, 3, 3], [3, 1, 2]], x=np.eye(4), y=[0, 1, 0, 1], directed=True)
    task = build("gophormer", graph=graph).task
    assert dense_adjacency(task).nonzero().tolist() == [[0, 3], [3, 1], [3, 2]]
    tokens = torch.tensor([[0, 3, 1, -1], [2, 1, 3, 0]])
    found = EgoGraphs(task).adjacent(tokens).nonzero().tolist()
    assert found == [[0, 0, 1], [0, 1, 2], [1, 2, 0], [1, 2, 1], [1, 3, 2]]


def test_groups_are_padded_to_their_largest_and_keep_their_order() -> None:
    tokens = torch.full((40, 6), -1)
    for row in range(40):  # from none to five others, here and there in the row
        tokens[row, 0] = row
        tokens[row, [[], [3], [1, 5], [2, 3, 4], [1, 2, 4, 5], [1, 2, 3, 4, 5]][row % 6]] = 100 + row
    widths = []

    def read(group: torch.Tensor) -> torch.Tensor:
        widths.append(group.shape[1])
        return torch.stack([group[:, 0], (group >= 0).sum(dim=1)], dim=1)

    found = read_in_groups(tokens, read)
    assert found.tolist() == [[row, 1 + row % 6] for row in range(40)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] == 6


@pytest.mark.parametrize(
    ("name", "settings"), [("gophormer", {}), ("graphormer", {"max_full_nodes": 0}), ("san", {"max_full_nodes": 0})]
)
def test_scores_are_the_same_in_groups(name: str, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    star = Graph.from_edges(np.array([[0] * 11, range(1, 12)]), num_nodes=16, x=np.eye(16), y=np.arange(16) % 2)
    method = build(name, star, train_nodes=np.arange(16), **settings).eval()
    nodes, calls = torch.arange(16), []

    def all_at_once(tokens: torch.Tensor, read: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        calls.append(len(tokens))
        return read(tokens)

    with torch.no_grad():
        found = method.scores(nodes)
        monkeypatch.setattr(f"tokenphormer.baselines.{name}.read_in_groups", all_at_once)
        torch.testing.assert_close(method.scores(nodes), found, rtol=1e-5, atol=1e-5)
    assert sum(calls) >= 16, "it does not read ego-graphs in groups"
