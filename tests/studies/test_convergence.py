"""Where a graph document comes to dᵢ / 2|E|, and where it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import CPU
from tests.walks.graphs import barbell, bipartite, leaf_chains, random_graph
from tokenphormer.graph import Graph
from tokenphormer.sgpm import GraphDocument
from tokenphormer.sgpm.settings import SGPMSettings
from tokenphormer.studies import convergence
from tokenphormer.studies.laws import degree_law, jump_limit, position_laws, total_variation
from tokenphormer.studies.small_graphs import cycle
from tokenphormer.walks import KINDS, Kind


def parts() -> Graph:
    """A triangle and a path: half of the nodes each, 3 of 5 edges in the triangle."""
    return Graph.from_edges([[0, 1, 2, 3, 4], [1, 2, 0, 4, 5]], name="parts")


def tv(graph: Graph, kind: Kind, start: str, length: int) -> float:
    law = convergence.visit_law(graph, kind, convergence.start_law(graph, start), length)
    return total_variation(law, degree_law(graph))


@pytest.mark.parametrize("kind", ["uniform", "non_backtracking"])
@pytest.mark.parametrize("graph", [barbell(), bipartite(), leaf_chains(), parts()], ids=lambda g: g.name)
def test_sentences_that_begin_by_degree_are_exact_at_every_length(graph: Graph, kind: Kind) -> None:
    for length in (1, 2, 7, 30):
        assert tv(graph, kind, "by degree", length) == 0


@pytest.mark.parametrize("kind", ["uniform", "non_backtracking"])
@pytest.mark.parametrize("start", ["every node", "one node"])
def test_other_starts_vanish_with_the_length_and_only_so(kind: Kind, start: str) -> None:
    distances = [tv(barbell(), kind, start, length) for length in (1, 10, 100, 1000, 10_000)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.01
    # Sums of positions differ from the limit by a bounded amount, so that frequencies do as 1 / length.
    assert distances[-1] == pytest.approx(distances[-2] / 10, rel=0.02)


def test_a_bipartite_graph_has_no_limit_of_positions_but_one_of_visits() -> None:
    graph = bipartite()
    start = convergence.start_law(graph, "one node")
    last = list(position_laws(graph, "uniform", start, 501))[-2:]
    assert total_variation(*last) == pytest.approx(1)  # on one side now, on the other then
    assert tv(graph, "uniform", "one node", 500) < 0.005


def test_on_a_cycle_the_non_backtracking_walk_goes_round() -> None:
    assert tv(cycle(7), "non_backtracking", "one node", 6) == 0  # every node once
    assert tv(cycle(7), "uniform", "one node", 6) > 0.1


def test_components_keep_their_share() -> None:
    graph = parts()
    between = convergence.between_components(graph)
    assert between == pytest.approx(abs(3 / 6 - 3 / 5))
    assert tv(graph, "uniform", "every node", 10_000) == pytest.approx(between, abs=1e-4)
    assert convergence.between_components(barbell()) == 0


@pytest.mark.parametrize("weights", [None, [10.0, 1.0, 1.0, 1.0, 2.0]])
def test_nodes_without_edges_and_weights_are_in_the_share_of_components(weights: list[float] | None) -> None:
    """A node without edges has sentences of one word, which long ones of others make vanish."""
    graph = Graph.from_edges([[0, 0, 1, 2, 4], [1, 2, 2, 3, 5]], num_nodes=9, edge_weight=weights)
    between = convergence.between_components(graph)
    assert tv(graph, "uniform", "every node", 20_000) == pytest.approx(between, abs=1e-4)


def test_the_largest_component_keeps_its_weights_and_self_loops() -> None:
    edges = [[0, 0, 1, 2, 2, 4], [1, 2, 2, 3, 2, 5]]
    graph = Graph.from_edges(edges, edge_weight=[10.0, 1.0, 2.0, 3.0, 4.0, 5.0], self_loops=True)
    part = convergence.largest_component(graph)
    assert part.num_self_loops == 1
    inside = degree_law(graph)[:4]
    assert degree_law(part) == pytest.approx(inside / inside.sum())


def test_the_largest_component_is_a_graph_of_its_own() -> None:
    graph = Graph.from_edges([[0, 2, 3, 4, 2], [1, 3, 4, 5, 5]], num_nodes=7, name="g")
    part = convergence.largest_component(graph)
    assert (part.num_nodes, part.num_edges, part.name) == (4, 4, "g")
    assert part.degree.tolist() == [2, 2, 2, 2]


def test_one_node_is_that_of_the_most_edges() -> None:
    graph = Graph.from_edges([[0, 1, 2, 2, 2], [1, 2, 3, 4, 5]])
    assert convergence.start_law(graph, "one node").tolist() == [0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_floors_are_those_of_whole_sentences(kind: Kind) -> None:
    graph = barbell()
    rows = convergence.floor_rows(graph, "name", "part", kind, lengths=(1, 4, 9))
    starts = convergence.START_NAMES if kind in ("uniform", "non_backtracking") else ("every node", "by degree")
    expected = [convergence.Floor("name", "part", kind, s, n, tv(graph, kind, s, n)) for s in starts for n in (1, 4, 9)]
    assert rows == expected


def test_the_jump_leaves_its_own_limit_unchanged() -> None:
    graph = barbell()
    row = convergence.stationary_row(graph, "jump")
    assert row.tv_moved_from_jump_limit == 0
    assert row.tv_of_limits == total_variation(degree_law(graph), jump_limit(graph)) > 0.01
    other = convergence.stationary_row(graph, "non_backtracking_jump")
    assert other.tv_moved_from_jump_limit is other.tv_of_limits is None


def test_drawn_documents_come_to_their_own_law() -> None:
    graph = convergence.largest_component(random_graph(5))
    for start in ("every node", "by degree"):
        rows = convergence.fixed_length_rows(graph, start, 4, seed=1, sentences=(10, 1000))
        few, many = rows
        assert many.sentences > 50 * few.sentences
        assert many.words == 5 * many.sentences
        assert many.tv_from_own_limit is not None
        assert many.tv_from_own_limit < 0.01
        # Starting at every node, more sentences do not help beyond what the length allows.
        floor = tv(graph, "non_backtracking", start, 4)
        assert many.tv == pytest.approx(floor, abs=0.01)
        assert (floor > 0.05) == (start == "every node")
        assert rows != convergence.fixed_length_rows(graph, start, 4, seed=2, sentences=(10, 1000))


def test_documents_of_the_language_model_are_counted_whole() -> None:
    graph = convergence.largest_component(random_graph(5))
    rows = convergence.document_rows(graph, 0, sentences=(1, 3))
    assert [row.sentences for row in rows] == [graph.num_nodes, 3 * graph.num_nodes]
    assert rows[0].words > 2 * rows[0].sentences
    assert rows == convergence.document_rows(graph, 0, sentences=(1, 3))
    assert rows != convergence.document_rows(graph, 1, sentences=(1, 3))
    drawn = GraphDocument(graph, SGPMSettings(seed=0)).sentences(0, CPU)
    words = np.concatenate([walk[:count] for walk, count in zip(drawn.walks, drawn.counts, strict=True)])
    counts = np.bincount(words, minlength=graph.num_nodes)
    assert (rows[0].words, rows[0].tv) == (len(words), total_variation(counts / len(words), degree_law(graph)))


def test_the_study_asks_of_the_whole_graph_and_of_its_largest_component() -> None:
    graph = random_graph(5, n=20, edges=15)
    found, piece = convergence.study([graph], seed=4), convergence.largest_component(graph)
    asked = [("whole graph", graph, kind) for kind in KINDS[:2]] + [
        ("largest component", piece, kind) for kind in KINDS
    ]
    floors = [convergence.floor_rows(each, graph.name, part, kind) for part, each, kind in asked]
    assert found.floors == [row for rows in floors for row in rows]
    drawn = [convergence.document_rows(graph, 4)]
    drawn += [convergence.fixed_length_rows(graph, start, 10, 4) for start in ("every node", "by degree")]
    assert found.drawn == [row for rows in drawn for row in rows]
    for first, *_, last in drawn:
        told = found.findings[f"{graph.name}, {last.start}, length {last.length}: tv of the largest document"]
        assert told == last.tv != first.tv
    told = found.findings[f"{graph.name}, whole graph: tv at length 256, infinitely many sentences"]
    assert told == tv(graph, "non_backtracking", "every node", 256) > 0
    assert found.findings[f"{graph.name}, every node: tv that no length takes away"] == convergence.between_components(
        graph
    )


def test_the_study_is_the_same_every_time_and_writes_what_it_says(tmp_path: Path) -> None:
    graph = random_graph(5, n=20, edges=30)
    graph = Graph.from_edges(np.stack([np.repeat(np.arange(graph.num_nodes), graph.degree), graph.indices]), name="g")
    first, second = (convergence.study([graph]) for _ in range(2))
    assert first == second
    stays = {(row.graph, row.kind): row.tv_moved == 0 for row in first.stationary}
    assert stays["g", "uniform"]
    assert stays["g", "non_backtracking"]
    assert not stays["g", "jump"]
    assert not stays["weighted triangle with a tail", "non_backtracking"]
    written = convergence.write(first, tmp_path)
    names = {"stationary.csv", "lengths.csv", "sentences.csv", "findings.json"}
    assert {path.name for path in written} == names | {
        f"{n}.{s}" for n in ("lengths", "sentences") for s in ("png", "svg")
    }
    assert all(path.stat().st_size for path in written)
