"""Coverage against breadth-first search and against its exact expectation."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from tests.studies.test_documents import to_networkx
from tests.walks.graphs import barbell, leaf_chains, random_graph
from tokenphormer.graph import Graph
from tokenphormer.studies import coverage
from tokenphormer.studies.figures import KIND_COLOURS
from tokenphormer.studies.laws import walk_law
from tokenphormer.walks import KINDS, Kind, sample_walks


def test_distances_are_those_of_a_search() -> None:
    graph = random_graph(4)
    nodes = coverage.start_nodes(graph, 0, 20)
    found = coverage.hop_distances(graph, nodes, 3)
    for place, node in enumerate(nodes.tolist()):
        exact = nx.single_source_shortest_path_length(to_networkx(graph), node, cutoff=3)
        here = found.start == place
        pairs = dict(zip(found.node[here].tolist(), found.walk[here].tolist(), strict=True))
        assert pairs == {v: hops for v, hops in exact.items() if hops}


def test_first_visits() -> None:
    walks = np.array([[[0, 1, 2], [0, 3, 1]], [[5, 6, -1], [5, 6, 5]]], dtype=np.int32)
    found = coverage.first_visits(walks)
    triples = set(zip(found.start.tolist(), found.node.tolist(), found.walk.tolist(), strict=True))
    assert triples == {(0, 1, 0), (0, 2, 0), (0, 3, 1), (1, 6, 0), (1, 5, 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_coverage_has_its_exact_mean(kind: Kind) -> None:
    """m walks leave a node out with (1 − h)ᵐ, where h is the chance that one walk visits it."""
    graph, steps, walks, draws = barbell(), 3, 4, 400
    for start in (0, 3):
        law = walk_law(graph, kind, start, steps)
        distance = coverage.hop_distances(graph, np.array([start]), 2)
        hit = [float(sum(mass for walk, mass in law.items() if v in walk[1:])) for v in distance.node.tolist()]
        expected = np.mean([1 - (1 - h) ** walks for h in hit])
        drawn = (
            sample_walks(graph, kind, walks * draws, steps, [start], seed=9).numpy().reshape(draws, walks, steps + 1)
        )
        seen = [
            coverage.visited(coverage.first_visits(block[None]), distance, 2, walks, 1)[0] / len(hit) for block in drawn
        ]
        assert np.mean(seen) == pytest.approx(expected, abs=5 * np.std(seen) / np.sqrt(draws))


def test_rows_grow_with_walks_and_mix_the_kinds() -> None:
    graph = random_graph(4)
    rows = coverage.coverage_rows(graph, seed=0, starts=30, walks=(4, 40, 400))
    table = {(row.kind, row.hops, row.walks): row for row in rows}
    for kind in (*KINDS, "mixed"):
        for hops in coverage.HOPS:
            few, some, many = (table[kind, hops, walks] for walks in (4, 40, 400))
            assert few.share < some.share <= many.share <= 1
            assert few.complete <= some.complete <= many.complete
    assert table["uniform", 1, 400].share > 0.999
    # Of 4 mixed walks one is of each kind.
    nodes = coverage.start_nodes(graph, 0, 30)
    walks = np.concatenate([sample_walks(graph, kind, 1, coverage.STEPS, nodes).numpy() for kind in KINDS], axis=1)
    distance = coverage.hop_distances(graph, nodes, 3)
    seen = coverage.visited(coverage.first_visits(walks), distance, 3, 4, len(nodes))
    share = (seen / np.bincount(distance.start, minlength=len(nodes))).mean()
    assert table["mixed", 3, 4].share == pytest.approx(share)


def test_rows_are_counted_node_by_node() -> None:
    """Every fourth walk of the mixture is of one kind; it has rows for whole fours alone."""
    graph = random_graph(4)
    nodes = coverage.start_nodes(graph, 3, 12)
    far = dict(nx.all_pairs_shortest_path_length(to_networkx(graph)))
    drawn = {kind: sample_walks(graph, kind, 8, coverage.STEPS, nodes, seed=3).numpy() for kind in KINDS}
    mixed = np.stack(list(drawn.values()), axis=2).reshape(len(nodes), -1, coverage.STEPS + 1)
    expected = []
    for name, walks in (*drawn.items(), ("mixed", mixed)):
        for hops in coverage.HOPS:
            around = [{v for v, d in far[node].items() if 0 < d <= hops} for node in nodes.tolist()]
            size = np.array([len(near) for near in around])
            for number in (4, 8) if name == "mixed" else (3, 4, 8):
                visited = walks[:, :number, 1:].reshape(len(nodes), -1).tolist()
                seen = np.array(
                    [len(near & set(all_of_them)) for near, all_of_them in zip(around, visited, strict=True)]
                )
                means = float((seen / size).mean()), float((seen == size).mean()), float(size.mean())
                expected.append(coverage.CoverageRow(graph.name, str(name), hops, number, *means))
    assert len(nodes) == 12 < graph.num_nodes
    assert coverage.coverage_rows(graph, seed=3, starts=12, walks=(3, 4, 8)) == expected


def test_isolated_nodes_are_no_starts() -> None:
    graph = Graph.from_edges([[0], [1]], num_nodes=4)
    assert coverage.start_nodes(graph, 0, 10).tolist() == [0, 1]


def test_the_study_writes_what_it_says(tmp_path: Path) -> None:
    graph = leaf_chains()
    result = coverage.study([graph], starts=5)
    assert result == coverage.study([graph], starts=5)
    assert {"coverage.csv", "coverage.png", "coverage.svg"} <= {p.name for p in coverage.write(result, tmp_path)}
    assert result.findings["leaf chains, uniform, 100 walks, 1 hops: complete"] == 1


def test_figures_and_findings_are_those_of_the_rows() -> None:
    graph = random_graph(4)
    result = coverage.study([graph], seed=2, starts=6)
    assert result.rows == coverage.coverage_rows(graph, 2, 6)
    for row in result.rows:
        if row.walks == 100 and row.kind in ("mixed", "uniform"):
            place = f"{graph.name}, {row.kind}, 100 walks, {row.hops} hops"
            found = result.findings[f"{place}: share"], result.findings[f"{place}: complete"]
            assert found == (row.share, row.complete)
    assert any(row.share != row.complete for row in result.rows if row.walks == 100)
    for panel, hops in zip(coverage.plot(result)["coverage"].axes, coverage.HOPS, strict=True):
        for line, kind in zip(panel.lines, KIND_COLOURS, strict=False):
            rows = [row for row in result.rows if (row.kind, row.hops) == (kind, hops)]
            assert np.array_equal(line.get_xydata(), [(row.walks, row.share) for row in rows])
