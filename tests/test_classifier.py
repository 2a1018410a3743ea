"""`TokenphormerClassifier`: scikit-learn's habits on graphs and tables, and files that give the same answers."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from safetensors import safe_open
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.tiny import CLASS_NAMES, TINY, contents, tiny_graph, tiny_split
from tokenphormer import Graph, InputError, Split, TokenphormerClassifier, make_split
from tokenphormer.graph import to_networkx, to_pyg
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.training.presets import config_for
from tokenphormer.training.settings import Config

GRAPH = tiny_graph()
SPLIT = tiny_split(GRAPH)


def classifier(**changes: Any) -> TokenphormerClassifier:
    return TokenphormerClassifier(**(TINY | {"max_epochs": 8, "device": "cpu"} | changes))


@pytest.fixture(scope="module")
def fitted() -> TokenphormerClassifier:
    return classifier().fit(GRAPH, SPLIT)


# ---------------------------------------------------------------- what suits a graph


def test_settings_that_suit_a_graph() -> None:
    """Those of `tokenphormer train`, and what is given beside them; any parameter, and none that there is not."""
    chosen = TokenphormerClassifier.for_graph(GRAPH, SPLIT, device="cpu", hidden_channels=8, random_state=3)
    assert chosen.config == config_for(GRAPH, SPLIT, torch.device("cpu")).replace({"hidden_channels": 8, "seed": 3})
    assert (chosen.device, chosen.random_state) == ("cpu", 3)
    alone = TokenphormerClassifier.for_graph(GRAPH, device="cpu", seed=2)
    assert alone.config == config_for(GRAPH, make_split(GRAPH, seed=2), torch.device("cpu")).replace({"seed": 2})
    assert clone(alone).get_params() == alone.get_params()
    assert alone.set_params(max_epochs=1).fit(GRAPH).score() >= 0
    with pytest.raises(TypeError, match="no parameter 'hidden_channel'; nearest: hidden_channels"):
        TokenphormerClassifier.for_graph(GRAPH, hidden_channel=8)
    for wrong, message in (("cora", "got the name 'cora'; read it first"), (np.eye(3), "got ndarray; a table has no")):
        with pytest.raises(InputError, match=message):
            TokenphormerClassifier.for_graph(wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- on graphs


def test_it_learns_and_answers_in_class_names(fitted: TokenphormerClassifier) -> None:
    assert fitted.classes_.tolist() == list(CLASS_NAMES)
    assert fitted.n_features_in_ == 5
    probabilities = fitted.predict_proba()
    assert probabilities.shape == (60, 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    predicted = fitted.predict()
    assert predicted.tolist() == [CLASS_NAMES[c] for c in probabilities.argmax(axis=1)]
    assert fitted.score() == np.mean(predicted[SPLIT.test] == np.array(CLASS_NAMES)[GRAPH.y[SPLIT.test]])
    assert fitted.score() > 0.6
    assert len(fitted.history_) == fitted.fitted_.progress.epoch


def test_some_nodes(fitted: TokenphormerClassifier) -> None:
    np.testing.assert_allclose(fitted.predict_proba(nodes=[7, 3]), fitted.predict_proba()[[7, 3]], atol=1e-6)
    assert fitted.predict(GRAPH, [5]).tolist() == fitted.predict()[[5]].tolist()
    assert fitted.predict_proba(nodes=[]).shape == (0, 3)
    assert fitted.score(nodes=[0, 1, 2]) in (0, 1 / 3, 2 / 3, 1)


def test_scores_are_of_labelled_nodes(fitted: TokenphormerClassifier) -> None:
    some = tiny_graph(unlabelled=6)  # the last six
    right = fitted.predict(some) == np.array(CLASS_NAMES)[GRAPH.y]
    assert fitted.score(some, np.arange(50, 60)) == pytest.approx(right[50:54].mean())
    assert fitted.score(some) == pytest.approx(right[:54].mean())
    with pytest.raises(InputError, match="score: none of 6 nodes of graph 'tiny' has a label"):
        fitted.score(some, np.arange(54, 60))
    with pytest.raises(InputError, match="score: none of 60 nodes of graph 'tiny' has a label; expected some with"):
        fitted.score(tiny_graph(unlabelled=60))
    with pytest.raises(InputError, match="score: there are no nodes; expected some with labels, so name"):
        fitted.score(nodes=[])
    without = classifier(max_epochs=1).fit(GRAPH, Split(SPLIT.train, SPLIT.val, []))
    with pytest.raises(
        InputError, match="score: the split has no test nodes; expected some with labels, so name others"
    ):
        without.score()
    assert without.score(nodes=SPLIT.val) >= 0


def test_columns_of_a_pandas_table_are_known_by_name() -> None:
    table = pd.DataFrame(GRAPH.x, columns=list("abcde"))
    ends = np.stack([np.repeat(np.arange(60), GRAPH.degree), GRAPH.indices])
    more: dict[str, Any] = {"num_nodes": 60, "y": GRAPH.y, "class_names": CLASS_NAMES}
    estimator = classifier(max_epochs=2).fit(Graph.from_edges(ends, x=table, **more), SPLIT)
    turned = Graph.from_edges(ends, x=table[list("edcba")], **more)
    assert turned.feature_names == tuple("edcba")
    np.testing.assert_array_equal(estimator.predict_proba(turned), estimator.predict_proba())
    assert Graph.from_edges(ends, x=pd.DataFrame(GRAPH.x), **more).feature_names is None  # 0, 1, … are no names


def test_columns_of_tables_and_features_of_graphs_have_the_same_names(tmp_path: Path) -> None:
    table = pd.DataFrame(GRAPH.x, columns=list("abcde"))
    more: dict[str, Any] = {"num_nodes": 60, "y": GRAPH.y, "class_names": CLASS_NAMES}
    whole, turned = (Graph.from_edges([[], []], x=x, **more) for x in (table, table[list("edcba")]))
    for estimator in (classifier(max_epochs=2).fit(table, GRAPH.y), classifier(max_epochs=2).fit(whole, SPLIT)):
        expected = estimator.predict_proba(table)
        estimator.save_pretrained(tmp_path)
        for model in (estimator, TokenphormerClassifier.from_pretrained(tmp_path, device="cpu")):
            np.testing.assert_array_equal(model.predict_proba(table), expected)
            np.testing.assert_array_equal(model.predict_proba(turned), expected)
            with pytest.raises(ValueError, match="must be in the same order"):
                model.predict(table[list("edcba")])


def test_the_training_graph_read_again_is_scored_by_its_split(fitted: TokenphormerClassifier) -> None:
    again = tiny_graph()
    right = fitted.predict() == np.array(CLASS_NAMES)[GRAPH.y]
    assert right.mean() != right[SPLIT.test].mean()
    assert fitted.score(again) == fitted.score(GRAPH) == fitted.score() == right[SPLIT.test].mean()
    assert pickle.loads(pickle.dumps(fitted)).score(GRAPH) == fitted.score()
    assert fitted.score(dataclasses.replace(again, y=np.where(np.arange(60) < 59, GRAPH.y, -1))) == right[:59].mean()


def test_scores_of_rows_of_a_table() -> None:
    """Whose classes are numbers."""
    estimator = classifier().fit(GRAPH.x, GRAPH.y)
    assert estimator.split_ is not None
    assert estimator.score(nodes=np.arange(60)) == pytest.approx(np.mean(estimator.predict() == GRAPH.y))
    assert estimator.score(nodes=np.arange(60)) > 0.5


def test_scores_of_a_table_take_a_label_a_row() -> None:
    """Not what NumPy would spread over all rows."""
    X, y = table()
    estimator = classifier().fit(X, y)
    expected = np.mean(estimator.predict(X) == y)
    assert estimator.score(X, y[:, None]) == expected
    assert estimator.score(X, y.tolist()) == estimator.score(X, pd.Series(y)) == expected
    with pytest.raises(InputError, match=r"score: expected the labels of the table's rows .* got None"):
        estimator.score(X)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator.score(X, y[:1])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([60], "nodes: 60, but the graph has nodes 0 to 59"),
        ([0, -1], "nodes: -1, but"),
        ([0.5], "expected a list of node indices, got shape .*float64"),
        (np.ones(60, bool), "turn a mask into indices with numpy.flatnonzero"),
        ([[1, 2]], r"expected a list of node indices, got shape \(1, 2\)"),
        (["a"], r"expected a list of node indices, .*; turn ids into indices with graph\.index_of"),
        (3, "expected a list of node indices, .*; put a single node into a list"),
    ],
)
def test_wrong_nodes(fitted: TokenphormerClassifier, nodes: Any, message: str) -> None:
    for method in (fitted.predict, fitted.predict_proba, fitted.score):
        with pytest.raises(InputError, match=message):
            method(nodes=nodes)


def test_names_of_graphs_are_no_graphs(fitted: TokenphormerClassifier) -> None:
    for call in (classifier().fit, fitted.predict, fitted.explainer):
        for name in ("mygraph", Path("mygraph")):
            with pytest.raises(
                InputError, match=r"expected a Graph, got the name 'mygraph'; .* load_graph\('mygraph'\)"
            ):
                call(name)  # type: ignore[operator]


def test_graphs_of_other_libraries_are_no_graphs(fitted: TokenphormerClassifier) -> None:
    of_pyg, of_networkx = ("torch_geometric.Data", "from_pyg"), ("networkx.Graph", "from_networkx")
    for other, (came, maker) in ((to_pyg(GRAPH), of_pyg), (to_networkx(GRAPH), of_networkx)):
        for call in (classifier().fit, fitted.predict):
            with pytest.raises(
                InputError, match=rf"expected a Graph, got a {came}; tokenphormer\.graph\.{maker} makes one"
            ):
                call(other)


def test_what_training_would_say_is_a_warning() -> None:
    known = Split(SPLIT.train[GRAPH.y[SPLIT.train] != 2], SPLIT.val, SPLIT.test)
    with pytest.warns(UserWarning, match="no training node is of class <b>plain</b>: it cannot be learned"):
        classifier(max_epochs=1).fit(GRAPH, known)


def test_vectors_of_an_sgpm_that_is_not_there_are_said_to_be_missing() -> None:
    with pytest.warns(UserWarning, match="sgpm_token=contextual has no effect: no pre-trained SGPM was given"):
        classifier(sgpm_token="contextual", max_epochs=1).fit(GRAPH, SPLIT)


def test_scores_of_other_classes(fitted: TokenphormerClassifier) -> None:
    bare = dataclasses.replace(GRAPH, class_names=("0", "1", "2"))
    with pytest.raises(InputError, match=r"labels of graph 'tiny' \('0', '1', '2'\) are none of the model's classes"):
        fitted.score(bare)
    one = dataclasses.replace(GRAPH, class_names=(CLASS_NAMES[0], "1", "2"))  # a class that is new is never right
    assert fitted.score(one) == np.mean((GRAPH.y == 0) & (fitted.predict() == CLASS_NAMES[0]))


def test_scores_of_texts_against_numbers(fitted: TokenphormerClassifier) -> None:
    """Nothing would be right: numbers of classes for a model that has their names, and the other way round."""
    with pytest.raises(InputError, match=r"the labels \(0, 1, 2\) are none of the model's classes \('"):
        fitted.score(GRAPH.x, GRAPH.y)
    estimator = classifier().fit(GRAPH.x, GRAPH.y)
    with pytest.raises(InputError, match=r"the labels \('0', '1', '2'\) are none of .* \(0, 1, 2\): texts on one side"):
        estimator.score(GRAPH.x, GRAPH.y.astype(str))
    assert estimator.score(GRAPH.x[:1], [7]) == 0  # a class that is new is never right


def test_random_numbers_of_others_go_on(fitted: TokenphormerClassifier) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3).tolist()
    torch.manual_seed(7)
    drawn = [torch.rand(1).item()]
    classifier(max_epochs=1).fit(GRAPH, SPLIT)
    drawn.append(torch.rand(1).item())
    fitted.predict(tiny_graph(num_nodes=45, seed=3))
    drawn.append(torch.rand(1).item())
    assert drawn == expected


def test_random_numbers_of_others_go_on_where_threads_predict(fitted: TokenphormerClassifier) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fitted.predict(tiny_graph(seed=3)), range(60)))
    assert torch.equal(torch.rand(3), expected)


def test_another_graph(fitted: TokenphormerClassifier) -> None:
    new = tiny_graph(num_nodes=45, seed=3)
    assert fitted.predict(new).shape == (45,)
    assert fitted.score(new) > 0.5
    with pytest.raises(InputError, match="the model was trained on 5 features, graph 'tiny' has 3"):
        fitted.predict(tiny_graph(num_features=3))
    # An equal graph is answered equally, though its tokens are made anew.
    np.testing.assert_array_equal(fitted.predict_proba(tiny_graph()), fitted.predict_proba())


def named(names: str, x: Any = None) -> Graph:
    """The graph with its features in the order of their names, of which `x` are the first ones."""
    assert isinstance(GRAPH.x, np.ndarray)
    order = ["abcde".index(name) for name in names if name in "abcde"]
    return dataclasses.replace(GRAPH, x=GRAPH.x[:, order] if x is None else x, feature_names=tuple(names))


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_features_are_told_by_their_names(tmp_path: Path, kind: Any) -> None:
    estimator = classifier(max_epochs=2).fit(named("abcde"), SPLIT)
    expected = estimator.predict_proba()
    estimator.save_pretrained(tmp_path)
    again = TokenphormerClassifier.from_pretrained(tmp_path, device="cpu")
    assert again.feature_names_ == estimator.feature_names_ == tuple("abcde")
    other = named("cebad")
    other = dataclasses.replace(other, x=kind(other.x))
    for model in (estimator, again):
        np.testing.assert_allclose(model.predict_proba(other), expected, atol=1e-6)
        np.testing.assert_allclose(model.predict_proba(GRAPH), expected, atol=1e-6)  # without names: as they come
        assert model.explainer(other).graph.feature_names == tuple("abcde")
    assert np.abs(again.predict_proba(dataclasses.replace(other, feature_names=None)) - expected).max() > 0.01


def test_features_of_other_names_are_refused(fitted: TokenphormerClassifier) -> None:
    estimator = classifier(max_epochs=1).fit(named("abcde"), SPLIT)
    with pytest.raises(
        InputError, match="of other names than graph 'tiny' has; missing: 'b', 'e'; additional: 'x', 'y'"
    ):
        estimator.predict(named("axcdy", GRAPH.x))
    with pytest.raises(InputError, match=r"trained on 5 features, graph 'tiny' has 4; missing: 'd'\. Give the nodes"):
        estimator.predict(named("abce"))
    with pytest.raises(InputError, match=r"trained on 5 features, graph 'tiny' has 4$"):
        estimator.predict(dataclasses.replace(named("abce"), feature_names=None))
    assert fitted.feature_names_ is None
    assert fitted.predict(named("axcdy", GRAPH.x)).tolist() == fitted.predict().tolist()  # it knows no names


@pytest.mark.parametrize("names", ["abcde", ["a", "b"], ["a", "a", "b", "c", "d"], 5])
def test_damaged_names_of_features(fitted: TokenphormerClassifier, tmp_path: Path, names: Any) -> None:
    fitted.save_pretrained(tmp_path)
    weights, meta = load_tensors(tmp_path / "model.safetensors")
    assert "feature_names" not in meta
    save_tensors(tmp_path / "model.safetensors", weights, meta | {"feature_names": names})
    with pytest.raises(InputError, match="expected a list of 5 different names"):
        TokenphormerClassifier.from_pretrained(tmp_path)


def test_numbers_too_large_to_predict_from(fitted: TokenphormerClassifier) -> None:
    """They would give no probabilities, of which the first class would be the highest."""
    graph = tiny_graph(num_nodes=12)
    wide = dataclasses.replace(graph, x=np.where(np.arange(12)[:, None] == 4, np.float32(3e38), graph.x))
    with pytest.raises(InputError, match=r"node 4 .*class scores are not finite \(\d+ of 1 nodes\); features and edge"):
        fitted.predict(wide, [4])


def test_a_split_of_its_own(fitted: TokenphormerClassifier) -> None:
    assert classifier(seed=1).fit(GRAPH).split_.hash == tiny_split(GRAPH).hash
    for split in (GRAPH.y, "stratified", [0, 1]):
        with pytest.raises(InputError, match="expected a Split beside a Graph"):
            classifier().fit(GRAPH, split)
        with pytest.raises(InputError, match="for_graph: expected a Split beside a Graph"):
            TokenphormerClassifier.for_graph(GRAPH, split)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="node index 99"):
        classifier().fit(GRAPH, Split([0, 1, 99], [2], []))


def test_a_split_that_came_with_the_graph_is_not_passed_over_in_silence() -> None:
    own, public = (
        dataclasses.replace(GRAPH, splits=(Split(SPLIT.train, SPLIT.val, SPLIT.test, name),))
        for name in ("given", "public")
    )
    for graph in (own, public):
        with pytest.warns(UserWarning, match=r"a stratified one is drawn .* give make_split\(graph, 'given'\)"):
            assert classifier(seed=1).fit(graph).split_.hash == tiny_split(GRAPH).hash
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        classifier().fit(own, make_split(own, "given"))
        classifier().fit(dataclasses.replace(public, name="cora", node_ids=None))  # `train` would not take it either


# ---------------------------------------------------------------- parameters


def test_parameters_are_the_settings() -> None:
    estimator = classifier(dropout=0.25)
    parameters = estimator.get_params()
    assert parameters.keys() == Config().__dict__.keys() | {"device", "random_state", "sgpm"}
    assert parameters["dropout"] == 0.25
    assert estimator.set_params(dropout=0.5).dropout == 0.5
    assert estimator.config == Config(**(TINY | {"max_epochs": 8, "dropout": 0.5}))
    assert clone(estimator).get_params() == estimator.get_params()
    assert "dropout=0.5" in repr(estimator)


def test_unknown_parameters() -> None:
    with pytest.raises(TypeError, match="has no parameter 'num_wlks'; nearest: num_walks"):
        TokenphormerClassifier(num_wlks=3)
    with pytest.raises(ValueError, match="Invalid parameter 'num_wlks'"):
        TokenphormerClassifier().set_params(num_wlks=3)


def test_bad_values_are_met_in_fit() -> None:
    """Not before: scikit-learn wants parameters stored unread."""
    for changes, message in (({"dropout": 2}, "dropout: 2"), ({"random_state": "x"}, "random_state: 'x'")):
        with pytest.raises(InputError, match=message):
            classifier(**changes).fit(GRAPH, SPLIT)
    with pytest.raises(InputError, match="device: 'toaster'"):
        classifier(device="toaster").fit(GRAPH, SPLIT)


def test_random_state() -> None:
    def weights(**changes: Any) -> torch.Tensor:
        found: torch.Tensor = classifier(**changes, max_epochs=1).fit(GRAPH, SPLIT).weights_["head.0.weight"]
        return found

    assert torch.equal(weights(random_state=3), weights(seed=3))
    assert torch.equal(weights(random_state=np.int64(3), seed=9), weights(seed=3))
    assert not torch.equal(weights(random_state=3), weights(random_state=4))
    one, other = (weights(random_state=np.random.RandomState(5)) for _ in range(2))
    assert torch.equal(one, other)


def test_a_random_state_is_drawn_from_once() -> None:
    estimator = classifier(random_state=np.random.RandomState(5)).fit(GRAPH, SPLIT)
    expected = int(np.random.RandomState(5).randint(2**31 - 1))
    assert estimator.config_.seed == expected
    np.testing.assert_array_equal(estimator.predict_proba(tiny_graph()), estimator.predict_proba())


def test_not_fitted_yet(tmp_path: Path) -> None:
    estimator = classifier()
    for call in (
        estimator.predict,
        estimator.predict_proba,
        estimator.score,
        lambda: estimator.save_pretrained(tmp_path),
    ):
        with pytest.raises(NotFittedError, match="not fitted yet; call fit first"):
            call()
    assert not contents(tmp_path)


@pytest.mark.parametrize("changes", [{}, {"score_hops": 2, "votes": 2}, {"laplacian_pe": 2}], ids=str)
def test_copies_answer_the_same(changes: dict[str, Any]) -> None:
    estimator = classifier(max_epochs=2, **changes).fit(GRAPH, SPLIT)
    expected = estimator.predict_proba()
    for again in (pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator)):
        np.testing.assert_array_equal(again.predict_proba(), expected)
        assert again.explain(3) == estimator.explain(3)


def test_threads_that_ask_at_once_hear_the_same() -> None:
    """Of several votes each takes walks of its own, which all that share a model read from one place."""
    estimator = classifier(max_epochs=2, votes=3).fit(GRAPH, SPLIT)
    expected, why, score = estimator.predict_proba(), estimator.explain(3), estimator.score()

    def ask(number: int) -> bool:
        if number % 4 == 0:
            return estimator.explain(3) == why
        if number % 4 == 1:
            return estimator.score() == score
        return np.array_equal(estimator.predict_proba(), expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(40)))


def test_threads_that_train_at_once_learn_the_same(fitted: TokenphormerClassifier) -> None:
    """What dropout draws from torch is the same for all threads; predictions on other graphs would begin it anew."""

    def learned(seed: int) -> list[float]:
        answers: list[float] = classifier(max_epochs=4, seed=seed).fit(GRAPH, SPLIT).predict_proba().ravel().tolist()
        return answers

    expected = [learned(seed) for seed in range(4)]
    torch.manual_seed(1)
    others = torch.rand(3)
    torch.manual_seed(1)
    with ThreadPoolExecutor(5) as pool:
        found = [pool.submit(learned, seed) for seed in range(4)]
        for _ in range(20):
            pool.submit(fitted.predict, tiny_graph(seed=3))
    assert [one.result() for one in found] == expected
    assert torch.equal(torch.rand(3), others)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("unit", ["datetime64[D]", "datetime64[ns]", "timedelta64[D]"])
def test_classes_that_no_file_can_hold(unit: str, tmp_path: Path) -> None:
    labels = np.arange(2).repeat(10).astype(unit)
    clf = TokenphormerClassifier(num_walks=0, num_hops=0, max_epochs=1, device="cpu")
    clf.fit(np.eye(20, dtype=np.float32), labels)
    assert set(clf.predict(np.eye(20))) <= set(labels)
    with pytest.raises(InputError, match=r"texts or numbers, not (datetime|timedelta)64, such as .*fit on their texts"):
        clf.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_saved_and_loaded_it_answers_the_same(fitted: TokenphormerClassifier, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path / "model")
    assert list(contents(tmp_path)) == ["model/model.safetensors"]
    loaded = TokenphormerClassifier.from_pretrained(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(GRAPH), fitted.predict_proba())
    assert loaded.predict(GRAPH).tolist() == fitted.predict().tolist()
    assert loaded.get_params() == fitted.get_params()
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert loaded.score(GRAPH, SPLIT.test) == fitted.score()
    with pytest.raises(InputError, match="has no graph with it; give one to predict on"):
        loaded.predict()
    loaded.save_pretrained(tmp_path / "again")
    again = TokenphormerClassifier.from_pretrained(str(tmp_path / "again"), device="cpu")
    np.testing.assert_array_equal(again.predict_proba(GRAPH), fitted.predict_proba())


def test_what_is_written_is_plain(fitted: TokenphormerClassifier, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        meta = json.loads(file.metadata()["tokenphormer"].partition(" ")[2])
    assert meta["classes"] == list(CLASS_NAMES)
    assert meta["num_features"] == 5
    assert Config().replace(meta["config"]) == fitted.config_
    assert meta["graph"]["fingerprint"] == GRAPH.fingerprint


def test_a_runs_model_is_not_replaced(fitted: TokenphormerClassifier, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("the run's")
    with pytest.raises(InputError, match="is a run, whose model would be lost; choose another folder"):
        fitted.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_text() == "the run's"


def test_files_that_are_refused(fitted: TokenphormerClassifier, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    tensors, meta = load_tensors(path)
    config: Any = meta["config"]
    changes: list[tuple[dict[str, Any], str]] = [
        ({"config": None}, "its description is not one of this version"),
        ({"config": config | {"warp": 9}}, "its description is not one of this version"),
        ({"classes": None}, "its description is not one of this version"),
        ({"classes": [["a"], ["b"], ["c"]]}, "its description is not one of this version"),
        ({"num_features": "many"}, "its description is not one of this version"),
    ]
    for change, message in changes:
        save_tensors(path, tensors, meta | change)
        with pytest.raises(InputError, match=message):
            TokenphormerClassifier.from_pretrained(tmp_path)
    for damaged in (b"", whole[:100], whole[:-1], b"PK\3\4" + whole, b"\x80\x04pickled"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"model\.safetensors: not a readable file of weights, perhaps truncated"):
            TokenphormerClassifier.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        TokenphormerClassifier.from_pretrained(tmp_path / "absent")


def test_weights_of_other_settings(fitted: TokenphormerClassifier, tmp_path: Path) -> None:
    fitted.save_pretrained(tmp_path)
    tensors, meta = load_tensors(tmp_path / "model.safetensors")
    config: Any = meta["config"]
    for change in ({"config": config | {"num_layers": 2}}, {"classes": ["a", "b"]}):
        save_tensors(tmp_path / "model.safetensors", tensors, meta | change)
        with pytest.raises(InputError, match="the weights do not fit the settings"):
            TokenphormerClassifier.from_pretrained(tmp_path, device="cpu").predict(GRAPH)


# ---------------------------------------------------------------- on tables


def table(kind: str = "int") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    assert isinstance(GRAPH.x, np.ndarray)
    labels: dict[str, Any] = {
        "int": GRAPH.y + 5,
        "float": GRAPH.y * 1.0,
        "bool": GRAPH.y == 0,
        "text": np.array(["a", "b", "c"])[GRAPH.y],
        "object": np.array(["a", "b", "c"], dtype=object)[GRAPH.y],
    }
    return GRAPH.x, labels[kind]


@pytest.mark.parametrize("kind", ["int", "float", "bool", "text", "object"])
def test_tables_keep_the_type_of_their_labels(kind: str, tmp_path: Path) -> None:
    X, y = table(kind)
    estimator = classifier().fit(X, y)
    assert estimator.predict(X).dtype == y.dtype
    assert set(estimator.predict(X)) <= set(y)
    assert estimator.score(X, y) == np.mean(estimator.predict(X) == y) > 0.6
    estimator.save_pretrained(tmp_path)
    loaded = TokenphormerClassifier.from_pretrained(tmp_path, device="cpu")
    assert loaded.predict(X).tolist() == estimator.predict(X).tolist()


def test_tables_of_other_shapes(tmp_path: Path) -> None:
    X, y = table()
    expected = classifier().fit(X, y).predict_proba(X)
    for make in (sp.csr_array, sp.coo_array, lambda x: x.tolist()):
        np.testing.assert_allclose(classifier().fit(make(X), y).predict_proba(make(X)), expected, atol=1e-5)
    named = pd.DataFrame(X, columns=list("abcde"))
    estimator = classifier().fit(named, y)
    assert estimator.feature_names_in_.tolist() == list("abcde")
    np.testing.assert_allclose(estimator.predict_proba(named), expected, atol=1e-6)
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.predict(named[list("bacde")])
    estimator.save_pretrained(tmp_path)
    loaded = TokenphormerClassifier.from_pretrained(tmp_path, device="cpu")
    np.testing.assert_allclose(loaded.predict_proba(named), expected, atol=1e-6)
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(named[list("bacde")])
    weights, meta = load_tensors(tmp_path / "model.safetensors")
    save_tensors(tmp_path / "model.safetensors", weights, meta | {"columns": ["a", "b"]})
    with pytest.raises(InputError, match="columns: expected a list of 5 names"):
        TokenphormerClassifier.from_pretrained(tmp_path)
    # Fitted on a graph next, nothing of the table is left.
    assert not hasattr(estimator.fit(GRAPH, SPLIT), "feature_names_in_")


def test_tables_of_few_rows() -> None:
    X, y = table()
    with pytest.raises(ValueError, match="1 sample"):
        classifier().fit(X[:1], y[:1])
    assert classifier().fit(X[[0, 1, 3]], y[[0, 1, 3]]).predict(X).shape == (60,)
    with pytest.raises(ValueError, match="requires y to be passed"):
        classifier().fit(X)


# ---------------------------------------------------------------- scikit-learn's own checks

SECOND_ARGUMENT = "its second argument is a split (fit) or nodes (score) as well as labels, and is called so"
EXPECTED_FAILURES = {
    "check_fit_score_takes_y": SECOND_ARGUMENT,
    "check_n_features_in_after_fitting": f"calls score(X, y=y); {SECOND_ARGUMENT}",
}
# What a table of a few hundred rows needs to be learned in a moment.
QUICK = TokenphormerClassifier(
    hidden_channels=16,
    num_walks=1,
    num_hops=1,
    max_epochs=20,
    warmup_updates=0,
    learning_rate=0.02,
    dropout=0.0,
    attention_dropout=0.0,
    device="cpu",
)


@parametrize_with_checks([QUICK], expected_failed_checks=lambda _: EXPECTED_FAILURES)
def test_scikit_learn_agrees(estimator: TokenphormerClassifier, check: Any) -> None:
    check(estimator)
