"""Leaks are found where they are planted, and only there."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tests.tiny import tiny_graph
from tokenphormer.benchmark.leaks import Leaks, find_leaks
from tokenphormer.graph import Graph, Split, load_graph, make_split

FORMS = {"dense": np.asarray, "sparse": sp.csr_array}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Any:
    return FORMS[request.param]


def clean() -> Graph:
    """A graph without a leak: features that overlap, labels on all nodes."""
    return tiny_graph()


def planted(columns: np.ndarray[Any, Any], form: Any) -> Leaks:
    """The clean graph with further columns."""
    graph = clean()
    wide = np.concatenate([graph.x, columns.astype(np.float32)], axis=1)
    graph = dataclasses.replace(graph, x=form(wide))
    return find_leaks(graph, make_split(graph))


def test_nothing_is_found_where_nothing_is(form: Any) -> None:
    graph = dataclasses.replace(clean(), x=form(clean().x))
    found = find_leaks(graph, make_split(graph))
    assert dataclasses.astuple(found)[2:6] == (0, 0, 0, 0)
    assert found.fine
    assert (found.dataset, found.split) == ("tiny", "stratified-0")


def test_a_node_in_two_parts() -> None:
    graph = clean()
    split = make_split(graph)
    object.__setattr__(split, "test", np.append(split.test, split.train[:2]))  # no Split can be made like this
    found = find_leaks(graph, split)
    assert found.shared_nodes == 2
    assert not found.fine


def twins(form: Any, x: np.ndarray[Any, Any]) -> Graph:
    """A star: nodes 1 to 5 hang on node 0 and differ by their features alone."""
    return Graph.from_edges([[0] * 5, [1, 2, 3, 4, 5]], num_nodes=6, x=form(x), y=[0, 1, 0, 1, 0, 1])


def test_the_same_node_twice(form: Any) -> None:
    x = np.eye(6, dtype=np.float32)
    x[2] = x[1]
    graph = twins(form, x)
    assert find_leaks(graph, Split([0, 1], [3], [2, 4])).duplicates == 1
    assert find_leaks(graph, Split([0, 3], [1], [2, 4])).duplicates == 1  # of a validation node
    assert find_leaks(graph, Split([0, 3], [4], [1, 2])).duplicates == 0  # within test they tell nothing
    assert find_leaks(graph, Split([0, 1], [3], [2, 4])).fine  # said, but a property of the data


def test_the_same_features_in_another_place(form: Any) -> None:
    x = np.eye(6, dtype=np.float32)
    x[2] = x[0]
    x[3] = x[4] = 0
    graph = twins(form, x)
    found = find_leaks(graph, Split([0, 3], [1], [2, 4]))
    assert found.same_features == 1  # 2 as 0; that 3 and 4 have none makes them no pair
    assert found.duplicates == 1  # but 3 and 4 are alike in everything


@pytest.mark.parametrize(
    "form", [*FORMS.values(), lambda x: sp.csr_array((x.ravel(), np.indices(x.shape).reshape(2, -1)))]
)
def test_a_zero_is_a_zero_however_it_is_written(form: Any) -> None:
    x = np.eye(6, dtype=np.float32)
    x[2] = x[1]
    x[2, 0] = -0.0
    found = find_leaks(twins(form, x), Split([0, 1], [3], [2, 4]))
    assert (found.duplicates, found.same_features) == (1, 1)


def test_isolated_nodes_without_features_are_no_pair() -> None:
    graph = Graph.from_edges([[0], [1]], num_nodes=4, x=np.zeros((4, 2), np.float32), y=[0, 1, 0, 1])
    assert find_leaks(graph, Split([0, 2], [1], [3])).duplicates == 0


def test_a_graph_without_features() -> None:
    graph = dataclasses.replace(clean(), x=None)
    found = find_leaks(graph, make_split(graph))
    assert (found.label_columns, found.same_features) == (0, 0)


Y = np.arange(60) % 3


@pytest.mark.parametrize(
    "columns",
    [
        (Y == 1)[:, None],
        np.where(Y == 2, np.linspace(1, 2, 60), 0)[:, None],  # of any strength
        Y[:, None],  # as a number
        np.array([-0.5, 0.25, 7.0])[Y][:, None],
        np.array([1.0, 1.0, 2.0])[Y][:, None],  # that tells one class from the others
    ],
)
def test_a_label_among_the_features(columns: np.ndarray[Any, Any], form: Any) -> None:
    found = planted(columns, form)
    assert found.label_columns == 1
    assert not found.fine


def test_all_labels_among_the_features(form: Any) -> None:
    assert planted(np.eye(3)[Y], form).label_columns == 3


@pytest.mark.parametrize(
    "columns",
    [
        np.ones((60, 1)),
        np.zeros((60, 1)),
        ((Y == 1) & (np.arange(60) > 3))[:, None],  # all but one of its class
        ((Y == 1) | (np.arange(60) == 0))[:, None],  # and one more
        np.random.default_rng(0).normal(size=(60, 3)),
    ],
)
def test_columns_that_only_look_like_labels(columns: np.ndarray[Any, Any], form: Any) -> None:
    assert planted(columns, form).label_columns == 0


def test_a_rare_word_of_a_tiny_class_is_no_label(form: Any) -> None:
    x = np.zeros((8, 1), np.float32)
    x[[6, 7]] = 1
    graph = Graph.from_edges([[0, 1], [1, 2]], num_nodes=8, x=form(x), y=[0, 0, 0, 1, 1, 1, 2, 2])
    assert find_leaks(graph, Split([0, 3, 6], [1, 4], [2, 5, 7])).label_columns == 0


def test_nodes_without_labels_are_left_out() -> None:
    graph = tiny_graph(unlabelled=6)
    one_hot = np.eye(3, dtype=np.float32)[Y]
    one_hot[-6:] = 1
    graph = dataclasses.replace(graph, x=one_hot)
    assert find_leaks(graph, make_split(graph)).label_columns == 3


def test_edges_between_training_and_test() -> None:
    graph = Graph.from_edges([[0, 0, 1, 2], [1, 2, 2, 3]], num_nodes=4, y=[0, 1, 0, 1])
    split = Split([0, 1], [3], [2])
    found = find_leaks(graph, split)
    assert found.train_test_edges == 2  # 0–2 and 1–2
    assert found.fine  # the benchmark is transductive: methods are given the whole graph, without labels
    assert not find_leaks(graph, split, transductive=False).fine
    apart = Graph.from_edges([[0, 2], [1, 3]], num_nodes=4, y=[0, 1, 0, 1])
    assert find_leaks(apart, split, transductive=False).fine


def test_directed_edges_count_whichever_way_they_go() -> None:
    edges = [[0, 2, 2], [2, 1, 3]]  # training → test, test → training, test → validation
    graph = Graph.from_edges(edges, num_nodes=4, y=[0, 1, 0, 1], directed=True)
    found = find_leaks(graph, Split([0, 1], [3], [2]), transductive=False)
    assert (found.train_test_edges, found.fine) == (2, False)


def test_the_embedded_graph() -> None:
    graph = load_graph("debian")
    found = find_leaks(graph, make_split(graph))
    assert found.fine
    assert found.duplicates > 100  # families of packages; docs/benchmark.md says what that means
