"""Which graphs a graph document tells apart: the census, the criteria, the well-known pairs."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from tokenphormer.graph import Graph
from tokenphormer.studies import census, documents, patterns, small_graphs
from tokenphormer.studies.documents_rows import longer_than
from tokenphormer.studies.laws import common_base, weighted_walks
from tokenphormer.walks import Kind, sample_walks

PAIRS = {pair.name: pair for pair in small_graphs.known_pairs()}


def to_networkx(graph: Graph) -> nx.Graph:
    result: nx.Graph = nx.Graph()
    result.add_nodes_from(range(graph.num_nodes))
    result.add_edges_from(zip(np.repeat(np.arange(graph.num_nodes), graph.degree), graph.indices, strict=True))
    return result


def signature(graph: Graph, kind: Kind, length: int, base: int) -> object:
    return patterns.document_signature(patterns.pattern_laws(graph, kind, length, base))


# ---------------------------------------------------------------- graphs


def test_there_are_as_many_graphs_as_there_are() -> None:
    assert [len(census.graph_codes(n)) for n in range(1, 7)] == [1, 2, 4, 11, 34, 156]
    assert [len(census.connected_graphs(n)) for n in range(1, 7)] == [1, 1, 2, 6, 21, 112]
    graphs = [to_networkx(graph) for graph in census.connected_graphs(5)]
    assert all(nx.is_connected(graph) for graph in graphs)
    assert not any(nx.is_isomorphic(a, b) for i, a in enumerate(graphs) for b in graphs[:i])


def test_names_of_nodes_do_not_change_the_canonical_number() -> None:
    rng = np.random.default_rng(0)
    for code in rng.integers(0, 1 << 15, 5).tolist():
        graph = to_networkx(census.decode(code, 6))
        order = dict(enumerate(rng.permutation(6).tolist()))
        moved = nx.relabel_nodes(graph, order)
        pairs = enumerate(census._pairs(6))
        other = sum(1 << bit for bit, pair in pairs if moved.has_edge(*pair))
        assert census.canonical(np.array([code]), 6) == census.canonical(np.array([other]), 6)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=lambda pair: pair.name)
def test_pairs_are_what_they_are_called(pair: small_graphs.Pair) -> None:
    assert nx.is_isomorphic(to_networkx(pair.a), to_networkx(pair.b)) == pair.isomorphic


def test_the_strongly_regular_pair() -> None:
    for graph in (small_graphs.rook(), small_graphs.shrikhande()):
        A = nx.to_numpy_array(to_networkx(graph), nodelist=range(16))
        # 6 neighbours; 2 common ones, of neighbours and of others alike.
        np.testing.assert_array_equal(A @ A, 4 * np.eye(16) + 2)
    assert nx.is_isomorphic(to_networkx(small_graphs.petersen()), nx.petersen_graph())


# ---------------------------------------------------------------- criteria


@pytest.mark.parametrize("name", ["hexagon / K6", "two triangles / hexagon", "rook 4 × 4 / Shrikhande"])
def test_the_limit_does_not_tell_regular_graphs_apart(name: str) -> None:
    a, b = PAIRS[name].a, PAIRS[name].b
    assert documents.limit_signature(a) == documents.limit_signature(b)
    assert documents.visit_signature(a, 20) == documents.visit_signature(b, 20)


def test_the_limit_tells_some_apart_and_as_a_set_fewer() -> None:
    path = small_graphs.spider(1, 2)
    assert documents.limit_signature(path) != documents.limit_signature(small_graphs.cycle(4))
    assert documents.limit_set(small_graphs.cycle(4)) == documents.limit_set(small_graphs.complete(4))
    rows = {row.criterion: row.confused for row in documents.census_rows(6, lengths=())}
    assert rows["limit as a set"] > rows["limit"] > rows["visits"] > rows["colours"] > 0


def test_colour_refinement_agrees_with_networkx() -> None:
    graphs = [*census.connected_graphs(5), PAIRS["K3,3 / prism"].a, PAIRS["K3,3 / prism"].b]
    ours = census.refined_colours(graphs)
    theirs = []
    for graph in map(to_networkx, graphs):
        nx.set_node_attributes(graph, "alike", "colour")
        theirs.append(nx.weisfeiler_lehman_graph_hash(graph, node_attr="colour", iterations=8))
    for i in range(len(graphs)):
        for j in range(i):
            assert (ours[i] == ours[j]) == (theirs[i] == theirs[j])


def test_visit_laws_never_tell_more_than_colours() -> None:
    graphs = census.connected_graphs(6)
    colours = census.refined_colours(graphs)
    visits = [documents.visit_signature(graph, 8) for graph in graphs]
    same = [(i, j) for i in range(len(graphs)) for j in range(i) if colours[i] == colours[j]]
    assert same
    assert all(visits[i] == visits[j] for i, j in same)


# ---------------------------------------------------------------- patterns


def test_patterns_forget_names_only() -> None:
    walks = np.array([[4, 5, 6, 4], [9, 2, 3, 9], [4, 5, 4, 5], [1, 2, 3, 4], [1, 2, 3, 2]])
    keys = patterns.pattern_keys(walks)
    assert keys[0] == keys[1]
    assert len(np.unique(keys)) == 4


@pytest.mark.parametrize("kind", ["uniform", "non_backtracking"])
def test_isomorphic_graphs_have_the_same_patterns(kind: Kind) -> None:
    for graph in (small_graphs.decalin(), small_graphs.spider(1, 2, 3), small_graphs.prism()):
        base = common_base([graph])
        for seed in (1, 2, 3):
            other = small_graphs.relabelled(graph, seed)
            assert other.indices.tolist() != graph.indices.tolist()
            assert signature(graph, kind, 5, base) == signature(other, kind, 5, base)


def test_drawn_patterns_follow_their_law() -> None:
    graph, length, count = small_graphs.bicyclopentyl(), 5, 4000
    base = common_base([graph])
    law = patterns.pattern_laws(graph, "non_backtracking", length, base)[3]
    drawn = patterns.pattern_keys(sample_walks(graph, "non_backtracking", count, length, [3]).numpy()[0])
    assert set(drawn.tolist()) <= set(law.keys.tolist())
    p = law.weights / base**length
    share = np.array([(drawn == key).mean() for key in law.keys])
    assert (np.abs(share - p) <= 5 * np.sqrt(p * (1 - p) / count) + 1e-12).all()


FIRST = {
    "hexagon / K6": 3,
    "two triangles / hexagon": 3,
    "K3,3 / prism": 3,
    "decalin / bicyclopentyl": 5,
    "rook 4 × 4 / Shrikhande": 7,
}


def sentences(graph: Graph, length: int, base: int) -> object:
    """What non-backtracking sentences say; of 16 nodes that are all alike, those of one will do."""
    if graph.num_nodes < 16:
        return signature(graph, "non_backtracking", length, base)
    walks, weight = weighted_walks(graph, "non_backtracking", 0, length, base)
    keys, which = np.unique(patterns.pattern_keys(walks), return_inverse=True)
    return keys.tolist(), np.bincount(which, weight).tolist()


@pytest.mark.parametrize("name", FIRST)
def test_the_least_length_that_tells(name: str) -> None:
    a, b = PAIRS[name].a, PAIRS[name].b
    base = common_base([a, b])
    told = [sentences(a, length, base) != sentences(b, length, base) for length in range(1, FIRST[name] + 1)]
    assert told == [False] * (FIRST[name] - 1) + [True]


def test_only_the_rook_goes_round_four_that_are_all_joined() -> None:
    """0 1 2 0 3 1 2 3 visits all six pairs of four nodes: there are such fours on the board and not in Shrikhande's."""
    key = patterns.pattern_keys(np.array([[0, 1, 2, 0, 3, 1, 2, 3]]))[0]
    drawn = [
        patterns.pattern_keys(sample_walks(graph, "non_backtracking", 20_000, 7, [0, 5]).numpy().reshape(-1, 8))
        for graph in (small_graphs.rook(), small_graphs.shrikhande())
    ]
    assert (drawn[0] == key).any()
    assert not (drawn[1] == key).any()


def test_chances_of_telling_patterns() -> None:
    rows = documents.sample_rows(PAIRS["K3,3 / prism"], 3, 400, sentences=(1, 3))
    for row in rows:
        assert row.measured == pytest.approx(row.chance, abs=4 * np.sqrt(row.chance * (1 - row.chance) / 400))
    assert rows[0].chance < rows[1].chance < 1
    # A prism's non-backtracking walk closes a triangle in 3 steps with 1/6, from each of 6 nodes; K3,3 has none.
    assert rows[0].chance == pytest.approx(1 - (5 / 6) ** 6)


def test_how_far_the_patterns_of_two_graphs_are_apart() -> None:
    """Of three steps a prism closes a triangle with 1/6, and K3,3 goes nowhere twice: 5/6 of their laws is the same."""
    pair = PAIRS["K3,3 / prism"]
    base = common_base([pair.a, pair.b])
    k33, prism = (patterns.pattern_laws(graph, "non_backtracking", 3, base) for graph in (pair.a, pair.b))
    for laws, chances in (((k33, prism), (0, 1 / 6)), ((prism, k33), (1 / 6, 0)), ((prism, prism), (0, 0))):
        tv, *found = patterns.compare_laws(*laws, base**3)
        assert tv == pytest.approx(max(chances))
        assert found == [pytest.approx([chance] * 6) for chance in chances]


def test_every_pair_of_small_graphs_is_told_by_its_patterns() -> None:
    rows = {(row.criterion, row.length): row.confused for row in documents.census_rows(5, lengths=(2, 4))}
    assert rows["uniform", 4] == rows["non_backtracking", 4] == 0
    assert rows["non_backtracking", 2] > 0


# ---------------------------------------------------------------- words and lengths


def test_words_rebuild_the_graph() -> None:
    assert documents.rounds_to_rebuild(small_graphs.complete(6)) > documents.rounds_to_rebuild(
        small_graphs.spider(1, 2)
    )


def test_lengths_of_sentences() -> None:
    assert longer_than(2, 2) == pytest.approx(0.69146, abs=1e-5)  # P(Z > −½)
    assert longer_than(2, 7) == pytest.approx(3.4e-6, rel=0.01)


def test_the_study_writes_what_it_says(tmp_path: Path) -> None:
    pairs = [PAIRS["two triangles / hexagon"], PAIRS["decalin / the same, other names"]]
    result = documents.study(pairs, nodes=(4,), max_length=3, seeds=5)
    assert [row.non_backtracking_length for row in result.pairs] == [3, None]
    assert result.pairs[0].same_colours
    assert result == documents.study(pairs, nodes=(4,), max_length=3, seeds=5)
    names = {path.name for path in documents.write(result, tmp_path)}
    assert {"pairs.csv", "lengths.csv", "samples.csv", "census.csv", "pairs.png", "told-apart.svg"} <= names
    lines = (tmp_path / "pairs.csv").read_text().splitlines()
    assert lines[1].startswith("two triangles / hexagon,False,6,True,True,True,3,3,")


def test_the_figure_says_no_length_where_none_was_found() -> None:
    pairs = [PAIRS["two triangles / hexagon"], PAIRS["decalin / bicyclopentyl"]]
    result = documents.study(pairs, nodes=(4,), max_length=3, seeds=2)
    words = [text.get_text() for axes in documents.plot(result)["pairs"].axes for text in axes.texts]
    assert [word.splitlines()[-1] for word in words] == [
        "patterns: different from 3 steps on",
        "patterns: the same as far as looked at",
    ]
