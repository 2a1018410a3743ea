"""The graph document: lengths and walks have their exact laws, and a sentence is the same whoever draws it."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from tests.sgpm.graphs import RADII, cycle, pieces, quick
from tests.tiny import CPU, contents, tiny_graph
from tests.walks.graphs import directed_with_sinks
from tests.walks.test_distributions import check
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hashing import GOLDEN, mix64
from tokenphormer.sgpm import GraphDocument, write_document
from tokenphormer.sgpm.document import CONTEXT, LENGTHS, VALIDATION, Sentences
from tokenphormer.walks.reference import Walker

PIECES = pieces()


def law(mean: float, deviation: float, most: int) -> np.ndarray:
    """P(steps = 0 … most) of a normal number, rounded and at least 1."""
    edges = np.arange(most + 2) - 0.5
    share = np.diff(norm.cdf(edges, mean, deviation))
    share[1] = norm.cdf(1.5, mean, deviation)
    share[0] = 0.0
    return share / share.sum()  # beyond `most` there is next to nothing


def drawn_lengths(document: GraphDocument, numbers: int) -> np.ndarray:
    return np.stack([document.lengths(number) for number in range(numbers)])


# ---------------------------------------------------------------- lengths


@pytest.mark.parametrize("node", [0, 7, 12, 15])
def test_lengths_follow_the_rounded_normal_law_of_the_radius(node: int) -> None:
    steps = drawn_lengths(GraphDocument(PIECES, quick()), 4000)[:, node]
    counts = np.bincount(steps, minlength=12).astype(float)
    statistic, freedom = check(counts, law(RADII[node], 1.0, 11), f"node {node}")
    assert chi2.sf(statistic, freedom) > 1e-4


@pytest.mark.parametrize(("mean", "deviation"), [(10.0, 1.0), (2.5, 1.0), (6.3, 2.0), (0.2, 0.5), (30.7, 4.0)])
def test_lengths_follow_the_law_that_is_asked_for(mean: float, deviation: float) -> None:
    document = GraphDocument(cycle(30), quick(mean_length=mean, length_deviation=deviation))
    steps = drawn_lengths(document, 400)
    counts = np.bincount(steps.ravel(), minlength=81).astype(float)
    statistic, freedom = check(counts, law(mean, deviation, 80), f"N({mean}, {deviation})")
    assert chi2.sf(statistic, freedom) > 1e-4
    assert steps.max() + 1 <= document.max_nodes


def test_the_test_of_the_law_can_fail() -> None:
    steps = drawn_lengths(GraphDocument(cycle(30), quick(mean_length=10.0)), 400)
    counts = np.bincount(steps.ravel(), minlength=81).astype(float)
    statistic, freedom = check(counts, law(10.1, 1.0, 80), "shifted")
    assert chi2.sf(statistic, freedom) < 1e-4


def test_every_length_is_the_normal_number_of_its_own_hash() -> None:
    """The inverse of the normal distribution at the hash, rounded; the table in the source gives the same."""
    settings = quick(mean_length=6.3, length_deviation=2.0, seed=5)
    document = GraphDocument(cycle(50), settings)
    for number in (0, 1, VALIDATION, CONTEXT + 3):
        key = mix64(mix64(settings.seed ^ LENGTHS) ^ mix64(number + GOLDEN))
        share = np.array([(mix64(node * GOLDEN + key) >> 1) / 2**63 for node in range(50)])
        expected = np.maximum(np.floor(norm.ppf(share, 6.3, 2.0) + 0.5), 1)
        np.testing.assert_array_equal(document.lengths(number), expected)


def test_lengths_are_the_same_on_every_call_and_machine() -> None:
    document = GraphDocument(PIECES, quick(seed=7))
    found = document.lengths(3)
    np.testing.assert_array_equal(found, document.lengths(3))
    assert found.tolist() == [3, 3, 1, 3, 4, 3, 4, 1, 1, 4, 1, 1, 1, 1, 1, 1]
    drawn = document.sentences(3, CPU)
    assert drawn.walks[3, : drawn.counts[3]].tolist() == [3, 4, 5, 6]
    assert drawn.walks[7, : drawn.counts[7]].tolist() == [7, 8]
    other = GraphDocument(PIECES, quick(seed=8))
    assert any((other.lengths(i) != document.lengths(i)).any() for i in range(3))


def test_no_deviation_is_one_length() -> None:
    for mean, steps in ((6.0, 6), (6.4, 6), (6.6, 7), (0.1, 1)):
        document = GraphDocument(PIECES, quick(mean_length=mean, length_deviation=0.0))
        assert set(document.lengths(0).tolist()) == {steps}
        assert document.max_nodes == steps + 1


def test_the_mean_is_the_radius_of_the_component() -> None:
    assert GraphDocument(PIECES, quick()).mean_lengths.tolist() == RADII
    graph = tiny_graph(seed=3)
    edges = nx.Graph()
    edges.add_nodes_from(range(graph.num_nodes))
    edges.add_edges_from((v, int(u)) for v in range(graph.num_nodes) for u in graph.neighbours(v))
    found = GraphDocument(graph, quick()).mean_lengths
    for component in nx.connected_components(edges):
        assert {found[node] for node in component} == {nx.radius(edges.subgraph(component))}
    assert set(GraphDocument(graph, quick(mean_length=10.0)).mean_lengths) == {10.0}


def test_the_mean_of_the_lengths_is_near_the_radius() -> None:
    """Rounding and the least length of 1 move the mean, by amounts that can be said."""
    steps = drawn_lengths(GraphDocument(PIECES, quick()), 4000)
    for node, radius in enumerate(RADII):
        expected = (law(radius, 1.0, 11) * np.arange(12)).sum()
        assert steps[:, node].mean() == pytest.approx(expected, abs=0.1)
    assert steps[:, :7].mean() == pytest.approx(3.0, abs=0.05)


# ---------------------------------------------------------------- sentences


@pytest.mark.parametrize("graph", [PIECES, tiny_graph(), directed_with_sinks()], ids=lambda g: g.name)
def test_a_sentence_is_a_walk_of_the_engine_cut_to_its_length(graph: Graph) -> None:
    document = GraphDocument(graph, quick(seed=3))
    for number in (0, 5, VALIDATION + 1, CONTEXT):
        drawn, lengths = document.sentences(number, CPU), document.lengths(number)
        walker = Walker(graph, "non_backtracking", 1, mix64(mix64(4) ^ mix64(number)))
        for node in range(graph.num_nodes):
            walk = walker.walk(node, 0, int(lengths[node]))
            expected = [v for v in walk if v >= 0]
            count = int(drawn.counts[node])
            assert drawn.walks[node, :count].tolist() == expected


@pytest.mark.parametrize("graph", [PIECES, tiny_graph(), directed_with_sinks()], ids=lambda g: g.name)
def test_sentences_turn_back_only_where_there_is_no_other_way(graph: Graph) -> None:
    document = GraphDocument(graph, quick(mean_length=5.0))
    for number in range(20):
        drawn = document.sentences(number, CPU)
        for start, (walk, count) in enumerate(zip(drawn.walks.tolist(), drawn.counts.tolist(), strict=True)):
            sentence = walk[:count]
            assert sentence[0] == start
            for here, there in pairwise(sentence):
                assert there in graph.neighbours(here)
            for before, here, after in zip(sentence, sentence[1:], sentence[2:], strict=False):
                assert after != before or graph.degree[here] == 1


def test_a_sentence_is_the_same_whichever_way_it_is_drawn() -> None:
    graph = tiny_graph()
    document = GraphDocument(graph, quick(mean_length=4.0, length_deviation=2.0))
    whole = document.sentences(2, CPU)
    for nodes in ([0], [59, 3, 3, 17], list(range(59, -1, -1))):
        some = document.sentences(2, CPU, np.array(nodes))
        assert some.counts.tolist() == whole.counts[nodes].tolist()
        for row, node in enumerate(nodes):
            count = int(some.counts[row])
            assert some.walks[row, :count].tolist() == whole.walks[node, :count].tolist()
    again = GraphDocument(graph, quick(mean_length=4.0, length_deviation=2.0)).sentences(2, CPU)
    assert torch.equal(again.walks, whole.walks)
    assert len(document.sentences(2, CPU, np.zeros(0, dtype=np.int64)).counts) == 0


def test_nodes_alone_have_a_sentence_of_one() -> None:
    document = GraphDocument(PIECES, quick())
    drawn = document.sentences(0, CPU)
    assert drawn.counts[14:].tolist() == [1, 1]
    assert drawn.walks[14:, 0].tolist() == [14, 15]


def test_a_graph_without_edges_is_refused() -> None:
    with pytest.raises(InputError, match=r"^graph 'bare' has no edges: there is nothing to walk on"):
        GraphDocument(Graph.from_edges(np.zeros((2, 0), int), 4, name="bare"), quick())


# ---------------------------------------------------------------- numbers


def test_training_and_validation_never_share_a_number() -> None:
    for fresh in (False, True):
        document = GraphDocument(PIECES, quick(fresh_sentences=fresh, train_sentences=1_000_000, epochs=1_000_000))
        last = document.training_numbers(1_000_000)
        assert last.min() >= 0
        assert last.max() < document.validation_numbers().min()
        most = GraphDocument(PIECES, quick(val_sentences=1_000_000)).validation_numbers()
        assert most.max() < CONTEXT


def test_the_numbers_of_an_epoch() -> None:
    document = GraphDocument(PIECES, quick(train_sentences=50))
    epochs = [document.training_numbers(epoch) for epoch in (1, 2, 3)]
    for numbers in epochs:
        assert sorted(numbers.tolist()) == list(range(50))
    assert len({tuple(numbers.tolist()) for numbers in epochs}) == 3  # each in an order of its own
    fresh = GraphDocument(PIECES, quick(train_sentences=50, fresh_sentences=True))
    everything = np.concatenate([fresh.training_numbers(epoch) for epoch in (1, 2, 3)])
    assert sorted(everything.tolist()) == list(range(150))


def test_validation_sentences_do_not_depend_on_those_of_training() -> None:
    one = GraphDocument(PIECES, quick())
    other = GraphDocument(PIECES, quick(train_sentences=9, fresh_sentences=True, epochs=7))
    for number in one.validation_numbers().tolist():
        assert torch.equal(one.sentences(number, CPU).walks, other.sentences(number, CPU).walks)


# ---------------------------------------------------------------- batches


def test_batches_hold_each_sentence_once_and_one_length_each() -> None:
    document = GraphDocument(tiny_graph(), quick(mean_length=4.0, length_deviation=2.0))
    parts = [document.sentences(number, CPU) for number in range(5)]
    assert len({part.walks.shape[1] for part in parts}) > 1  # so that putting them together has to pad
    drawn = Sentences.together(parts)
    expected = [
        tuple(walk[:count])
        for part in parts
        for walk, count in zip(part.walks.tolist(), part.counts.tolist(), strict=True)
    ]
    for size in (1, 7, 64, 10_000):
        batches = list(drawn.batches(size))
        assert all(0 < len(batch) <= size for batch in batches)
        assert all(batch.dtype == torch.int64 and int(batch.min()) >= 0 for batch in batches)
        widths = [batch.shape[1] for batch in batches]
        assert widths == sorted(widths)
        found = [tuple(sentence) for batch in batches for sentence in batch.tolist()]
        assert sorted(found) == sorted(expected)
        assert len(batches) == sum(-(-n // size) for n in torch.bincount(drawn.counts).tolist())


def test_batches_keep_the_order_within_a_length() -> None:
    drawn = Sentences(torch.tensor([[5, 1], [6, -1], [7, 2], [8, -1]]), torch.tensor([2, 1, 2, 1]))
    assert [batch.tolist() for batch in drawn.batches(10)] == [[[6], [8]], [[5, 1], [7, 2]]]


# ---------------------------------------------------------------- text


@pytest.mark.parametrize("part", ["train", "val"])
def test_the_text_is_the_document(tmp_path: Path, part: str) -> None:
    document, path = GraphDocument(PIECES, quick()), tmp_path / "document.txt"
    count = write_document(document, path, part)  # type: ignore[arg-type]
    numbers = document.training_numbers(1) if part == "train" else document.validation_numbers()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == count == len(numbers) * 16
    read = [[PIECES.index_of(word) for word in line.split(" ")] for line in lines]
    drawn = [document.sentences(number, CPU) for number in numbers.tolist()]
    assert read == [
        walk[:n] for part in drawn for walk, n in zip(part.walks.tolist(), part.counts.tolist(), strict=True)
    ]
    assert list(contents(tmp_path)) == ["document.txt"]


def test_texts_without_ids_are_numbers(tmp_path: Path) -> None:
    write_document(GraphDocument(cycle(5), quick(train_sentences=1)), tmp_path / "d.txt")
    words = {word for line in (tmp_path / "d.txt").read_text().splitlines() for word in line.split(" ")}
    assert words == set("01234")


@pytest.mark.parametrize("name", ["a b", "tab\tbed", "", "no\u00a0break", "line\nbreak"])
def test_a_name_that_is_no_word_is_refused(tmp_path: Path, name: str) -> None:
    graph = Graph.from_edges([[0, 1], [1, 2]], node_ids=["x", name, "z"])
    with pytest.raises(InputError, match=r"node 1 is called .* it is no word of a text"):
        write_document(GraphDocument(graph, quick()), tmp_path / "d.txt")
    assert not contents(tmp_path)


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("precious")
    with pytest.raises(InputError, match=r"thesis\.txt: exists already"):
        write_document(GraphDocument(PIECES, quick()), path)
    assert path.read_text() == "precious"


def test_the_document_is_frozen() -> None:
    document = GraphDocument(PIECES, quick())
    with pytest.raises(dataclasses.FrozenInstanceError):
        document.settings = quick(seed=1)  # type: ignore[misc]
