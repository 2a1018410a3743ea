"""SGPM-tokens in Tokenphormer: the classifier and runs use them, also on graphs that pre-training never saw."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from tests.sgpm.graphs import quick
from tests.sgpm.test_pretrained import grown
from tests.tiny import CPU, TINY, contents, tiny_config, tiny_graph, tiny_split, write_folder
from tokenphormer import TokenphormerClassifier
from tokenphormer.classifier import _sgpm
from tokenphormer.errors import InputError
from tokenphormer.evaluation.runs import predict_run, train_run
from tokenphormer.graph import Graph, load_graph
from tokenphormer.sgpm import PretrainedSGPM, SGPMSettings
from tokenphormer.sgpm.pretrain_run import load_pretrained, pretrain

GRAPH = tiny_graph()
SPLIT = tiny_split(GRAPH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished pre-training. Tests do not change it."""
    out = tmp_path_factory.mktemp("use") / "sgpm"
    pretrain(GRAPH, quick(epochs=6), out, CPU)
    return out


def fitted(sgpm: object, **changes: Any) -> TokenphormerClassifier:
    return TokenphormerClassifier(**(TINY | changes), device="cpu", sgpm=sgpm).fit(GRAPH, SPLIT)


# ---------------------------------------------------------------- the classifier


def test_the_token_is_there_and_its_projection_is_trained(folder: Path) -> None:
    with_token, without = fitted(folder), fitted(None)
    kinds = with_token.method_.source.token_kinds
    assert kinds[:2] == ["self", "sgpm"]
    assert [kind for kind in kinds if kind != "sgpm"] == without.method_.source.token_kinds
    assert with_token.method_.module.sgpm_part.weight.shape == (8, 8)
    assert without.method_.module.sgpm_part is None
    longer = fitted(folder, max_epochs=6, patience=6)
    assert not np.allclose(
        longer.method_.module.sgpm_part.weight.detach(), with_token.method_.module.sgpm_part.weight.detach()
    )
    assert not np.array_equal(with_token.predict_proba(), without.predict_proba())


def test_vectors_of_both_kinds_reach_the_model(folder: Path) -> None:
    pretrained = load_pretrained(folder, GRAPH, CPU)
    for kind in ("static", "contextual"):
        clf = fitted(pretrained, sgpm_token=kind)
        batch = clf.method_.source.batch(torch.tensor([5, 2]))
        np.testing.assert_array_equal(batch.sgpm.numpy(), pretrained.vectors(GRAPH, kind, CPU)[[5, 2]])  # type: ignore[arg-type]


def test_ways_to_name_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrained = PretrainedSGPM.load(folder, CPU)
    expected = fitted(folder).predict_proba()
    for given in (str(folder), str(folder / "sgpm.safetensors"), pretrained):
        np.testing.assert_array_equal(fitted(given).predict_proba(), expected)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tokenphormer.classifier.default_settings", lambda _: quick())
    auto = fitted("auto")
    assert auto.sgpm_.settings == quick()
    assert len(list((tmp_path / "tokenphormer" / "sgpm").iterdir())) == 1
    monkeypatch.setattr("tokenphormer.sgpm.Pretrainer.step", None)  # it is not trained a second time
    np.testing.assert_array_equal(fitted("auto").predict_proba(), auto.predict_proba())


def test_scikit_learn_can_copy_it(folder: Path) -> None:
    clf = clone(fitted(PretrainedSGPM.load(folder, CPU)))
    assert not hasattr(clf, "weights_")
    assert clf.fit(GRAPH, SPLIT).score() >= 0
    assert clone(TokenphormerClassifier(sgpm=str(folder))).sgpm == str(folder)


def test_another_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tiny_graph(seed=1)
    with pytest.raises(InputError, match="pre-trained on another graph, 'tiny': the same sizes, but other edges and f"):
        TokenphormerClassifier(**TINY, device="cpu", sgpm=folder).fit(other, tiny_split(other))
    with pytest.raises(InputError, match=r"sgpm\.safetensors: no such file"):
        fitted(tmp_path)
    bare = Graph.from_edges(np.zeros((2, 0), int), 60, x=GRAPH.x, y=GRAPH.y, class_names=GRAPH.class_names, name="bare")
    with pytest.raises(InputError, match="graph 'bare' has no edges: there is nothing to walk on"):
        _sgpm("auto", bare, CPU)


@pytest.mark.parametrize("kind", ["static", "contextual"])
def test_predictions_on_graphs_that_pretraining_never_saw(folder: Path, kind: str) -> None:
    clf = fitted(folder, sgpm_token=kind, max_epochs=30, patience=30)
    new = tiny_graph(num_nodes=90, seed=7, node_ids=[f"new{node}" for node in range(90)])
    found = clf.predict_proba(new)
    assert found.shape == (90, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert clf.score(new) > 0.6  # a third would be chance
    more = grown(GRAPH)
    assert np.isfinite(clf.predict_proba(more)).all()
    alone = Graph.from_edges(np.zeros((2, 0), int), 7, x=GRAPH.x[:7])  # type: ignore[index]
    assert np.isfinite(clf.predict_proba(alone)).all()


def test_saved_and_loaded_it_needs_no_other_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(folder, tmp_path / "sgpm")
    clf = fitted(copy)
    expected = {graph.name: clf.predict_proba(graph) for graph in (GRAPH, grown(GRAPH))}
    clf.save_pretrained(tmp_path / "model")
    shutil.rmtree(copy)
    loaded = TokenphormerClassifier.from_pretrained(tmp_path / "model", device="cpu")
    for graph in (GRAPH, grown(GRAPH)):
        np.testing.assert_allclose(loaded.predict_proba(graph), expected[graph.name], atol=1e-6)
    assert fitted(loaded.sgpm).weights_.keys() == clf.weights_.keys()  # fitted again it has the token too
    monkeypatch.chdir(tmp_path / "model")
    (tmp_path / "model" / "seeds" / "0").mkdir(parents=True)
    clf.save_pretrained("seeds/0", with_sgpm=False)
    monkeypatch.chdir("seeds")
    TokenphormerClassifier.from_pretrained("0", device="cpu")  # its SGPM is two folders up, wherever one stands
    loaded.save_pretrained(tmp_path / "again")
    assert contents(tmp_path / "again")["sgpm.safetensors"] == contents(tmp_path / "model")["sgpm.safetensors"]


def test_a_model_with_somebody_elses_sgpm_is_refused(folder: Path, tmp_path: Path) -> None:
    fitted(folder).save_pretrained(tmp_path / "model")
    pretrain(GRAPH, quick(seed=1), tmp_path / "other", CPU)
    shutil.copyfile(tmp_path / "other" / "sgpm.safetensors", tmp_path / "model" / "sgpm.safetensors")
    with pytest.raises(InputError, match="is not the SGPM that the model was trained with"):
        TokenphormerClassifier.from_pretrained(tmp_path / "model")
    (tmp_path / "model" / "sgpm.safetensors").unlink()
    with pytest.raises(InputError, match=r"sgpm\.safetensors: no such file"):
        TokenphormerClassifier.from_pretrained(tmp_path / "model")


# ---------------------------------------------------------------- runs


def test_a_run_is_whole_without_the_folder_of_pretraining(tmp_path: Path) -> None:
    source = write_folder(GRAPH, tmp_path / "mine")
    graph = load_graph(source)
    pretrained = pretrain(graph, quick(), tmp_path / "sgpm", CPU)
    config = tiny_config(max_epochs=2)
    train_run(graph, str(source), tiny_split(graph), config, tmp_path / "run", CPU, sgpm=pretrained, seeds=2)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert "sgpm.safetensors" in manifest["files"]
    card = (tmp_path / "run" / "model_card.md").read_text(encoding="utf-8")
    assert "SGPM-token (static)" in card
    assert "test nodes included: test accuracy with it is transductive" in card
    shutil.rmtree(tmp_path / "sgpm")
    assert predict_run(tmp_path / "run", None, tmp_path / "own.csv", None, "cpu", False, False) == (60, "mine")
    own, before = pd.read_csv(tmp_path / "own.csv"), pd.read_csv(tmp_path / "run" / "predictions.csv")
    np.testing.assert_allclose(own["probability"], before["probability"], atol=1e-6)
    other = write_folder(grown(GRAPH), tmp_path / "grown")
    assert predict_run(tmp_path / "run", str(other), tmp_path / "new.csv", None, "cpu", False, False) == (70, "grown")
    found = pd.read_csv(tmp_path / "new.csv")
    assert np.isfinite(found["probability"]).all()


def test_a_run_does_not_go_on_with_another_sgpm(tmp_path: Path) -> None:
    one, other = (pretrain(GRAPH, quick(seed=seed, epochs=1), tmp_path / str(seed), CPU) for seed in (1, 2))
    config = tiny_config(max_epochs=1)

    def train(sgpm: PretrainedSGPM | None, seeds: int = 1) -> None:
        train_run(GRAPH, "x", SPLIT, config, tmp_path / "run", CPU, sgpm=sgpm, seeds=seeds, resume=True)

    train(one)
    (tmp_path / "run" / "run.json").unlink()  # as if it had been stopped before its second seed
    for sgpm in (other, None):
        with pytest.raises(InputError, match="was trained with another SGPM, or without"):
            train(sgpm, seeds=2)
    train(one, seeds=2)


def test_nodes_are_recognised_from_tables(tmp_path: Path) -> None:
    """Ids and features that went through CSV files are the same ids and features."""
    pretrained = pretrain(GRAPH, quick(), tmp_path / "sgpm", CPU)
    read = load_graph(write_folder(grown(GRAPH), tmp_path / "grown"))
    assert int((pretrained._known(read) >= 0).sum()) == 60
    assert SGPMSettings().context_sentences == 10
