"""Run folders: what they hold, that it is true, what is refused, and what is left when something breaks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.sgpm.graphs import quick
from tests.tiny import CLASS_NAMES, CPU, contents, tiny_config, tiny_graph, tiny_split, write_folder
from tokenphormer.classifier import TokenphormerClassifier
from tokenphormer.errors import InputError, InterruptedTrainingError, ResourceError
from tokenphormer.evaluation import run_folder, runs
from tokenphormer.evaluation.explanations.run import explain_run
from tokenphormer.evaluation.run_folder import Summary, load_graph_for, load_run, write_plots
from tokenphormer.evaluation.runs import free_folder, predict_run, train_run
from tokenphormer.graph import Graph, Split, load_graph
from tokenphormer.graph.datasets import drops_directions
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.serve.explorer import Explorer, open_run
from tokenphormer.sgpm.pretrain_run import pretrain
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.settings import Config

SOURCE = tiny_graph(num_nodes=66, unlabelled=6)
FILES = {
    "run.json",
    "config.yaml",
    "split.npz",
    "metrics.json",
    "predictions.csv",
    "model.safetensors",
    "report.html",
    "model_card.md",
}
SEED_FILES = {"model.safetensors", "history.jsonl", "metrics.json", "probabilities.npy"}


@dataclass(frozen=True)
class Run:
    source: Path
    graph: Graph
    split: Split
    config: Config
    folder: Path
    summary: Summary


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with three seeds on a folder of tables. Tests do not change it."""
    base = tmp_path_factory.mktemp("run")
    source = write_folder(SOURCE, base / "mine")
    graph = load_graph(source)
    split, config = tiny_split(graph), tiny_config(max_epochs=4, votes=2)
    summary = train_run(graph, str(source), split, config, base / "out", CPU, seeds=3, command="the command")
    return Run(source, graph, split, config, base / "out", summary)


def train(out: Path, graph: Graph | None = None, split: Split | None = None, **options: Any) -> Summary:
    graph = graph or tiny_graph()
    config = options.pop("config", tiny_config(max_epochs=2))
    return train_run(graph, "somewhere", split or tiny_split(graph), config, out, CPU, **options)


def read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"id": str, "label": str, "split": str}, keep_default_na=False)


# ---------------------------------------------------------------- what is in it


def test_the_files(run: Run) -> None:
    expected = FILES | {f"seeds/{seed}/{name}" for seed in range(3) for name in SEED_FILES}
    assert contents(run.folder).keys() == expected


def test_the_manifest_tells_the_truth(run: Run) -> None:
    manifest = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    hashes = {name: hashlib.sha256((run.folder / name).read_bytes()).hexdigest() for name in FILES - {"run.json"}}
    assert manifest["files"] == hashes
    assert manifest["format"] == 1
    assert manifest["command"] == "the command"
    assert (manifest["config"], manifest["split"]) == (run.config.hash, run.split.hash)
    assert manifest["graph"] == {
        "source": str(run.source),
        "name": "mine",
        "directed": False,
        "weighted": False,
        "fingerprint": run.graph.fingerprint,
        "path": str(run.source.resolve()),
    }
    assert {"python", "torch", "tokenphormer", "platform"} <= manifest["environment"].keys()


def test_settings_and_split_can_be_read_again(run: Run) -> None:
    assert Config.from_yaml(run.folder / "config.yaml") == run.config
    assert Split.load(run.folder / "split.npz").hash == run.split.hash


def test_predictions_speak_the_language_of_the_user(run: Run) -> None:
    table = read(run.folder / "predictions.csv")
    assert table["id"].tolist() == [SOURCE.id_of(node) for node in range(66)]
    assert set(table["predicted"]) <= set(CLASS_NAMES)
    assert table["label"].tolist() == [CLASS_NAMES[c] if c >= 0 else "" for c in SOURCE.y]
    assert table.columns.tolist() == [
        "id",
        "label",
        "split",
        "predicted",
        "probability",
        *[f"p:{name}" for name in run.graph.class_names],
    ]
    for part in ("train", "val", "test"):
        assert np.flatnonzero(table["split"] == part).tolist() == getattr(run.split, part).tolist()
    assert (table["split"][60:] == "").all()


def test_the_best_seed_is_that_of_validation(tmp_path: Path) -> None:
    """Of three seeds that are done the second is the best on validation nodes, another one on test nodes."""
    train(tmp_path / "out", seeds=3)
    for seed, (val, test) in enumerate([(0.5, 0.9), (0.9, 0.5), (0.7, 0.95)]):
        path = tmp_path / "out" / "seeds" / str(seed) / "metrics.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        found["metrics"]["val"]["accuracy"], found["metrics"]["test"]["accuracy"] = val, test
        path.write_text(json.dumps(found), encoding="utf-8")
    (tmp_path / "out" / "run.json").unlink()
    summary = train(tmp_path / "out", seeds=3, resume=True)
    assert (summary.val_accuracy, summary.test_accuracy) == ([0.5, 0.9, 0.7], [0.9, 0.5, 0.95])
    assert json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))["best_seed"] == 1


def test_costs_are_those_of_all_seeds(run: Run) -> None:
    seeds = [json.loads((run.folder / f"seeds/{seed}/metrics.json").read_text(encoding="utf-8")) for seed in range(3)]
    assert run.summary.seconds == pytest.approx(sum(found["seconds"] for found in seeds))
    assert run.summary.peak_memory_bytes == max(found["peak_memory_bytes"] for found in seeds)


def test_attention_is_the_mean_of_test_nodes_or_else_of_validation_nodes(run: Run) -> None:
    fitted = fit_tokenphormer(run.graph, run.split, run.config, CPU)
    kinds = fitted.method.source.token_kinds[1:]
    without = Split(run.split.train, run.split.val, [])
    for split, nodes in ((run.split, run.split.test), (without, run.split.val)):
        found = runs._attention(fitted, split)
        with torch.no_grad():
            weight = fitted.method.scores_and_attention(torch.tensor(nodes))[1].mean(dim=0).tolist()
        expected = {kind: sum(w for k, w in zip(kinds, weight, strict=True) if k == kind) for kind in kinds}
        assert found == pytest.approx(expected, abs=1e-6)
        assert sum(found.values()) == pytest.approx(1, abs=1e-5)


def test_metrics_are_those_of_the_predictions(run: Run) -> None:
    table = read(run.folder / "predictions.csv")
    metrics = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
    best = json.loads((run.folder / "seeds" / str(metrics["best_seed"]) / "metrics.json").read_text(encoding="utf-8"))
    for part in ("train", "val", "test"):
        rows = table[table["split"] == part]
        assert best["metrics"][part]["accuracy"] == pytest.approx((rows["label"] == rows["predicted"]).mean())
        assert best["metrics"][part]["count"] == len(rows)
    probabilities = table[[f"p:{name}" for name in run.graph.class_names]].to_numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(probabilities.max(axis=1), table["probability"], atol=1e-6)
    assert [run.graph.class_names[c] for c in probabilities.argmax(axis=1)] == table["predicted"].tolist()


def test_the_best_seed_is_chosen_on_validation(run: Run) -> None:
    metrics = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
    chosen = run.folder / "seeds" / str(metrics["best_seed"])
    assert run.summary.val_accuracy[metrics["best_seed"]] == max(run.summary.val_accuracy)
    assert (run.folder / "model.safetensors").read_bytes() == (chosen / "model.safetensors").read_bytes()


def test_three_seeds_give_mean_and_deviation(run: Run) -> None:
    accuracy = run.summary.test_accuracy
    found = run.summary.to_json()
    assert len(accuracy) == 3
    assert found["test_accuracy"] == pytest.approx(np.mean(accuracy))
    assert found["test_accuracy_std"] == pytest.approx(np.std(accuracy, ddof=1))
    text = f"{100 * np.mean(accuracy):.2f}% ± {100 * np.std(accuracy, ddof=1):.2f} test accuracy, 3 seeds"
    assert run.summary.accuracy_text() == text
    seeds = [(run.folder / "seeds" / str(seed) / "model.safetensors").read_bytes() for seed in range(3)]
    assert len(set(seeds)) == 3
    assert (
        json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))["test_accuracy"] == found["test_accuracy"]
    )


def test_the_report_and_the_card_name_the_result(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    best = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))["best_seed"]
    assert f"{100 * run.summary.test_accuracy[best]:.1f} %" in page
    assert "<b>plain</b>" not in page
    assert "&lt;b&gt;plain&lt;/b&gt;" in page
    card = (run.folder / "model_card.md").read_text(encoding="utf-8")
    assert f"test: accuracy {run.summary.test_accuracy[best]:.4f}" in card
    assert f"Seeds: 3; weights and figures are of seed {best}, the best on validation." in card
    assert "The model is transductive" in card


def test_history_has_a_row_for_each_epoch(run: Run) -> None:
    lines = (run.folder / "seeds" / "1" / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, run.summary.epochs[1] + 1))


def test_figures_on_request(run: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(run.folder, tmp_path / "copy")
    write_plots(copy, run.graph)
    assert len(list((copy / "plots").glob("*.png"))) == 3


def test_no_test_nodes(tmp_path: Path) -> None:
    graph = tiny_graph()
    summary = train(tmp_path / "out", graph, Split(range(40), range(40, 60), []))
    assert summary.test_accuracy == []
    assert summary.to_json()["test_accuracy"] is None
    assert "validation accuracy (the split has no test nodes)" in summary.accuracy_text()
    assert (tmp_path / "out" / "run.json").exists()
    train(tmp_path / "two", graph, Split(range(40), range(40, 60), []), seeds=2)
    assert "Over 2 seeds" in (tmp_path / "two" / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    graph, said = tiny_graph(), list[str]()
    without = Split(range(40), range(40, 60), [])
    assert train(tmp_path / "a", graph, without, compare=True, say=said.append).comparison == []
    bare = tiny_graph(x=None)
    config = tiny_config(max_epochs=2, walk_pe=3)
    assert train(tmp_path / "b", bare, config=config, compare=True, say=said.append).comparison == []
    reasons = ("the split has no test nodes", "graph 'tiny' has no features")
    assert said[-2:] == [f"--compare: {reason}, so there is nothing to compare with" for reason in reasons]


# ---------------------------------------------------------------- predicting


def predict(run: Run, out: Path, source: Path | None = None, ids: Path | None = None) -> pd.DataFrame:
    predict_run(run.folder, None if source is None else str(source), out, ids, "cpu", False, False)
    return read(out) if out.suffix == ".csv" else pd.read_parquet(out)


def test_predictions_on_the_own_graph_are_those_of_the_run(run: Run, tmp_path: Path) -> None:
    again, before = predict(run, tmp_path / "p.csv"), read(run.folder / "predictions.csv")
    pd.testing.assert_frame_equal(again, before.drop(columns="split"), check_exact=False, atol=1e-6)
    assert predict_run(run.folder, None, tmp_path / "q.csv", None, "cpu", False, False) == (66, "mine")


def test_predictions_as_parquet(run: Run, tmp_path: Path) -> None:
    found = predict(run, tmp_path / "p.parquet")
    csv = predict(run, tmp_path / "p.csv")
    assert found["id"].tolist() == csv["id"].tolist()
    assert found["predicted"].tolist() == csv["predicted"].tolist()
    np.testing.assert_allclose(found["probability"], csv["probability"], atol=1e-6)


def test_predictions_on_a_graph_never_seen(run: Run, tmp_path: Path) -> None:
    new = tiny_graph(num_nodes=45, seed=7, node_ids=[f"new{node}" for node in range(45)])
    found = predict(run, tmp_path / "p.csv", write_folder(new, tmp_path / "new"))
    assert found["id"].tolist() == [f"new{node}" for node in range(45)]
    accuracy = (found["predicted"].to_numpy() == np.array(CLASS_NAMES)[new.y]).mean()
    assert accuracy > 0.6  # a third would be chance


def test_columns_are_told_by_their_names(run: Run, tmp_path: Path) -> None:
    """In another order they give the same predictions; renamed ones are refused."""
    source = write_folder(SOURCE, tmp_path / "mine")
    table = pd.read_csv(source / "nodes.csv", keep_default_na=False)
    table[["id", "x3", "label", "x1", "x0", "x4", "x2"]].to_csv(source / "nodes.csv", index=False)
    found, expected = predict(run, tmp_path / "p.csv", source), predict(run, tmp_path / "q.csv")
    pd.testing.assert_frame_equal(found, expected, check_exact=False, atol=1e-6)
    assert open_run(run.folder, "cpu", str(source)).graph.fingerprint == run.graph.fingerprint
    table.rename(columns={"x1": "y1"}).to_csv(source / "nodes.csv", index=False)
    with pytest.raises(InputError, match="graph 'mine' has; missing: 'x1'; additional: 'y1'"):
        predict(run, tmp_path / "r.csv", source)
    with pytest.raises(InputError, match="missing: 'x1'; additional: 'y1'"):
        explain_run(run.folder, None, str(source), "auto", None, "cpu", False, False)
    with pytest.raises(InputError, match="missing: 'x1'; additional: 'y1'"):
        open_run(run.folder, "cpu", str(source))


def test_predictions_for_some_nodes(run: Run, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text(f"{SOURCE.id_of(65)}\n{SOURCE.id_of(3)}\n", encoding="utf-8")
    found, whole = predict(run, tmp_path / "p.csv", ids=ids), read(run.folder / "predictions.csv")
    assert found["id"].tolist() == [SOURCE.id_of(65), SOURCE.id_of(3)]
    np.testing.assert_allclose(found["probability"], whole["probability"][[65, 3]], atol=1e-6)


def test_predictions_that_are_refused(run: Run, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("nobody\n")
    narrow = write_folder(tiny_graph(num_features=3), tmp_path / "narrow")
    (tmp_path / "old.csv").write_text("precious")
    before = contents(tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"ids": ids}, r"ids\.txt, line 1: graph 'mine' has no node 'nobody'"),
        ({"source": narrow}, "the model was trained on 5 features, graph 'narrow' has 3"),
        ({"out": tmp_path / "p.txt"}, "expected a name that ends in .csv or .parquet"),
        ({"out": tmp_path / "old.csv"}, "exists already"),
        ({"source": tmp_path / "absent"}, "neither a dataset nor an existing path"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            predict(run, **({"out": tmp_path / "p.csv"} | options))
    assert contents(tmp_path) == before


def test_a_graph_that_changed_on_disk(run: Run, tmp_path: Path) -> None:
    source = shutil.copytree(run.source, tmp_path / "mine")
    copy = shutil.copytree(run.folder, tmp_path / "run")
    manifest = json.loads((copy / "run.json").read_text(encoding="utf-8"))
    manifest["graph"]["source"] = str(source)
    (copy / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert predict_run(copy, None, tmp_path / "a.csv", None, "cpu", False, False)[0] == 66
    lines = (source / "edges.csv").read_text(encoding="utf-8").splitlines()
    (source / "edges.csv").write_text("\n".join(lines[:40]), encoding="utf-8")
    with pytest.raises(InputError, match="is not the graph that the run was trained on any more"):
        predict_run(copy, None, tmp_path / "b.csv", None, "cpu", False, False)
    assert predict_run(copy, str(source), tmp_path / "c.csv", None, "cpu", False, False)[0] == 66


def test_a_directed_graph_stays_directed(tmp_path: Path) -> None:
    source = write_folder(SOURCE, tmp_path / "mine")
    edges = (source / "edges.csv").read_text(encoding="utf-8").splitlines()
    (source / "edges.csv").write_text("\n".join(edges[:150]), encoding="utf-8")  # most edges from one end only
    graph = load_graph(source, directed=True)
    train_run(graph, str(source), tiny_split(graph), tiny_config(max_epochs=1), tmp_path / "out", CPU)
    out = tmp_path / "out"
    assert predict_run(out, None, tmp_path / "p.csv", None, "cpu", None, False) == (66, "mine")
    # Read anew from the same tables it is the same graph, unless told otherwise.
    before = read(out / "predictions.csv").drop(columns="split")
    for directed, same in ((None, True), (True, True), (False, False)):
        predict_run(out, str(source), tmp_path / "q.csv", None, "cpu", directed, True)
        assert np.allclose(read(tmp_path / "q.csv")["probability"], before["probability"], atol=1e-6) == same
    classifier, manifest = load_run(out, device="cpu")
    assert load_graph_for(out, classifier, manifest, str(source)).directed
    undirected = tiny_graph(num_nodes=20)
    undirected.save(tmp_path / "saved.npz")
    assert not load_graph_for(out, classifier, manifest, str(tmp_path / "saved.npz")).directed  # it has no directions
    with pytest.raises(InputError, match="--no-directed: the run was trained on a graph with directed edges"):
        predict_run(out, None, tmp_path / "r.csv", None, "cpu", False, False)


def test_from_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph is found by the name it was given, then where it was; else the message says whose name that is."""
    (tmp_path / "a" / "deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    graph = load_graph(write_folder(SOURCE, Path("mine")))
    train_run(graph, "mine", tiny_split(graph), tiny_config(max_epochs=1), Path("out"), CPU)
    own = json.loads(Path("out/run.json").read_text(encoding="utf-8"))["graph"]
    assert (own["source"], own["path"]) == ("mine", str((tmp_path / "a" / "mine").resolve()))

    def used(run: str) -> None:
        assert predict_run(Path(run), None, tmp_path / "p.csv", None, "cpu", None, True) == (66, "mine")
        assert explain_run(Path(run), None, None, "auto", None, "cpu", None, False)
        assert open_run(Path(run), "cpu").graph.num_nodes == 66

    monkeypatch.chdir("deeper")
    used("../out")
    (tmp_path / "a").rename(tmp_path / "b")  # moved together
    monkeypatch.chdir(tmp_path / "b")
    used("out")
    monkeypatch.chdir("deeper")
    whose = r"run\.json: the run's own graph was 'mine', then at .*mine, which is no dataset and no path"
    for option, call in (
        ("GRAPH", lambda: predict_run(Path("../out"), None, tmp_path / "q.csv", None, "cpu", None, False)),
        ("--graph", lambda: explain_run(Path("../out"), None, None, "auto", None, "cpu", None, False)),
        ("--graph", lambda: open_run(Path("../out"), "cpu")),
    ):
        with pytest.raises(InputError, match=f"{whose}.*name where it is now as {option}"):
            call()
    # A run of before has no path.
    manifest = json.loads(Path("../out/run.json").read_text(encoding="utf-8"))
    del manifest["graph"]["path"]
    Path("../out/run.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError, match="the run's own graph was 'mine', which is no dataset"):
        predict_run(Path("../out"), None, tmp_path / "q.csv", None, "cpu", None, False)
    monkeypatch.chdir("..")
    used("out")


def test_a_converted_copy_of_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose model takes whole graphs reads a small one on disk whole, and says what to do with a larger one."""
    source, out = write_folder(SOURCE, tmp_path / "mine"), tmp_path / "out"
    graph = load_graph(source)
    config = tiny_config(max_epochs=1, row_activation=True, score_hops=2)
    train_run(graph, str(source), tiny_split(graph), config, out, CPU)
    write_graph(graph, tmp_path / "disk")
    write_graph(graph, tmp_path / "half", half=True)
    before = read(out / "predictions.csv").drop(columns="split")
    for name, near in (("disk", 1e-6), ("half", 1e-2)):
        assert predict_run(out, str(tmp_path / name), tmp_path / "p.csv", None, "cpu", None, True)[0] == 66
        found = read(tmp_path / "p.csv")
        assert found["id"].tolist() == before["id"].tolist()
        np.testing.assert_allclose(found["probability"], before["probability"], atol=near)
    node = SOURCE.id_of(3)
    assert explain_run(out, node, str(tmp_path / "disk"), "auto", None, "cpu", None, False).startswith(f"{node}: ")
    explorer = Explorer(open_run(out, "cpu", str(tmp_path / "disk")))
    explorer.load()
    assert explorer.ready
    for place in ("classifier", "training.tokenphormer"):
        monkeypatch.setattr(f"tokenphormer.{place}.MOST_NODES", 65)
    with pytest.raises(InputError, match=r"\(66 nodes\) is on disk, with more than 65 nodes, .* row_activation=false"):
        predict_run(out, str(tmp_path / "disk"), tmp_path / "p.csv", None, "cpu", None, True)
    monkeypatch.setattr("tokenphormer.tokens.source.WHOLE_GRAPH_BYTES", 100)
    with pytest.raises(InputError, match=r"\(66 nodes\) is too large, .* row_activation=false"):
        predict_run(out, None, tmp_path / "p.csv", None, "cpu", None, True)


@pytest.mark.parametrize("kind", [None, "static"])
def test_a_graph_in_half_precision_is_known_again(tmp_path: Path, kind: str | None) -> None:
    """By a model that takes whole graphs, and by its SGPM, which would read all nodes as unknown ones otherwise."""
    source, out = tmp_path / "half", tmp_path / "out"
    write_graph(tiny_graph(num_nodes=66, node_ids=None), source, half=True)
    graph, changes = load_graph(source), {} if kind is None else {"sgpm_token": kind}
    config = tiny_config(max_epochs=1, row_activation=True, score_hops=2, num_hops=1, **changes)
    sgpm = None if kind is None else pretrain(graph, quick(), tmp_path / "sgpm", CPU)
    train_run(graph, str(source), tiny_split(graph), config, out, CPU, sgpm=sgpm)
    before = read(out / "predictions.csv").drop(columns="split")
    for given in (None, str(source)):
        predict_run(out, given, tmp_path / "p.csv", None, "cpu", None, True)
        pd.testing.assert_frame_equal(read(tmp_path / "p.csv"), before, rtol=1e-5)
    assert explain_run(out, "3", None, "auto", None, "cpu", None, False).startswith("3: ")
    explorer = Explorer(open_run(out, "cpu"))
    explorer.load()
    np.testing.assert_allclose(explorer.predictions.confidence, before["probability"], rtol=1e-5)


def test_directions_that_the_run_does_not_have(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"undirected edges, and without GRAPH .* leave --directed out, or name"):
        predict_run(run.folder, None, tmp_path / "r.csv", None, "cpu", True, False)
    with pytest.raises(InputError, match=r"--directed: .* or name a graph as --graph"):
        explain_run(run.folder, None, None, "auto", None, "cpu", True, False)
    assert predict_run(run.folder, str(run.source), tmp_path / "r.csv", None, "cpu", True, False) == (66, "mine")


@pytest.mark.parametrize(("source", "drops"), [("cora", False), ("Cornell ", True), ("debian", False)])
def test_datasets_with_directions(source: str, drops: bool) -> None:
    assert drops_directions(source) == drops


# ---------------------------------------------------------------- runs that are damaged or of another kind


def damage(run: Run, folder: Path, name: str, content: bytes | None) -> Path:
    copy = shutil.copytree(run.folder, folder / "copy")
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_bytes(content)
    return copy


@pytest.mark.parametrize("place", [9, 0.5, -1])
def test_a_bit_flipped_in_the_weights(run: Run, tmp_path: Path, place: float) -> None:
    content = bytearray((run.folder / "model.safetensors").read_bytes())
    content[int(place * len(content)) if place == 0.5 else int(place)] ^= 4
    copy = damage(run, tmp_path, "model.safetensors", bytes(content))
    with pytest.raises(InputError, match="not the file that the run wrote"):
        load_run(copy)
    with pytest.raises(InputError, match=r"model\.safetensors: "):
        TokenphormerClassifier.from_pretrained(copy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"holds no finished run \(run\.json is missing\)"),
        (b"", "not a manifest of a run"),
        (b"[]", "not a manifest of a run"),
        (b"{}", "not a manifest of a run"),
        (b'{"format": 1}', "not a manifest of a run"),
        (b'{"format": 1, "files": {"model.safetensors": "0"}}', "not a manifest of a run"),
        (b'{"format": 2}', "a run of format 2; this version reads format 1"),
        (b"\xff\xfe", "not a manifest of a run"),
    ],
)
def test_manifests_of_another_kind(run: Run, tmp_path: Path, content: bytes | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_run(damage(run, tmp_path, "run.json", content))


def test_folders_without_a_run(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        load_run(tmp_path / "absent")
    with pytest.raises(InputError, match="is missing or not the file"):
        load_run(damage(run, tmp_path, "model.safetensors", None))


# ---------------------------------------------------------------- folders that are taken


def test_a_finished_folder_is_left_alone(run: Run) -> None:
    before = contents(run.folder)
    for resume in (False, True):
        with pytest.raises(InputError, match="holds a finished run; choose another folder with --out"):
            train(run.folder, resume=resume)
    assert contents(run.folder) == before


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="is not empty and holds no run; choose another folder with --out"):
        train(tmp_path, resume=resume)
    with pytest.raises(InputError, match=r"thesis\.tex: is a file; expected the name of a folder"):
        train(tmp_path / "thesis.tex", resume=resume)
    assert contents(tmp_path) == {"thesis.tex": b"precious"}


def test_an_empty_folder_is_fine_and_no_seeds_are_not(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--seeds 0: expected at least 1"):
        train(tmp_path, seeds=0)
    assert not contents(tmp_path)
    train(tmp_path)
    assert (tmp_path / "run.json").exists()


def stop_at(number: int) -> Any:
    """Ctrl-C in the second epoch of the seed with this number."""

    def after_epoch(seed_number: int, trainer: Any) -> None:
        if (seed_number, trainer.progress.epoch) == (number, 2):
            raise KeyboardInterrupt

    return after_epoch


def test_a_run_that_was_stopped_goes_on_to_the_same_end(tmp_path: Path) -> None:
    config = tiny_config(max_epochs=3, fresh_walks=True)
    with pytest.raises(InterruptedTrainingError, match=r"stopped in epoch 3; .*; run the same command with --resume"):
        train(tmp_path / "a", seeds=2, config=config, after_epoch=stop_at(1))
    assert not (tmp_path / "a" / "run.json").exists()
    (tmp_path / "a" / "seeds" / "1" / ".checkpoint.safetensors.99.partial").write_text("what a kill leaves")
    with pytest.raises(InputError, match="holds a run that was stopped; add --resume to go on"):
        train(tmp_path / "a", seeds=2, config=config)
    resumed = train(tmp_path / "a", seeds=2, config=config, resume=True)
    unbroken = train(tmp_path / "b", seeds=2, config=config)
    assert resumed.test_accuracy == unbroken.test_accuracy
    one, other = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert one.keys() == other.keys()
    for name in ("predictions.csv", "model.safetensors", "seeds/1/model.safetensors"):
        assert one[name] == other[name], name


def test_going_on_with_something_else_is_refused(tmp_path: Path) -> None:
    graph, config = tiny_graph(), tiny_config(max_epochs=2)
    with pytest.raises(InterruptedTrainingError):
        train(tmp_path, graph, seeds=2, config=config, after_epoch=stop_at(1))
    before = contents(tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"config": config.replace({"dropout": 0.2})}, "was begun with other settings than these"),
        ({"split": Split(range(30), range(30, 60), [])}, "was begun with another split"),
        ({"graph": tiny_graph(x=np.ones((60, 5)))}, r"seeds/0: was trained on another graph than this"),
    ]
    for options, message in cases:
        with pytest.raises(InputError, match=message):
            train(tmp_path, **({"graph": graph, "config": config, "seeds": 2, "resume": True} | options))
    assert contents(tmp_path) == before
    (tmp_path / "seeds" / "0" / "metrics.json").write_text("{")
    with pytest.raises(InputError, match=r"metrics\.json: not the metrics of a seed; delete .*0 to train it anew"):
        train(tmp_path, graph, config=config, seeds=2, resume=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("probabilities.npy", None),
        ("probabilities.npy", b""),
        ("probabilities.npy", b"\x93NUMPY"),
        ("history.jsonl", None),
        ("history.jsonl", b'{"epoch": 1'),
        ("model.safetensors", None),
        ("metrics.json", b'{"graph": "GRAPH", "sgpm": null, "metrics": {"val": {"accuracy": 1}}}'),
    ],
)
def test_going_on_with_a_seed_that_is_not_whole(tmp_path: Path, name: str, content: bytes | None) -> None:
    """Say a disk was too full for a copy: the seed is named, and can be trained anew."""
    graph = tiny_graph()
    whole = train(tmp_path, graph)
    for path in (tmp_path / "run.json", tmp_path / "seeds" / "0" / name):
        path.unlink()
    if content is not None:
        (tmp_path / "seeds" / "0" / name).write_bytes(content.replace(b"GRAPH", graph.fingerprint.encode()))
    with pytest.raises(InputError, match=r"seeds/0.*delete .*anew"):
        train(tmp_path, graph, resume=True)
    shutil.rmtree(tmp_path / "seeds" / "0")
    assert train(tmp_path, graph, resume=True).test_accuracy == whole.test_accuracy


def test_probabilities_of_another_graph(tmp_path: Path) -> None:
    train(tmp_path)
    (tmp_path / "run.json").unlink()
    np.save(tmp_path / "seeds" / "0" / "probabilities.npy", np.ones((7, 3), np.float32) / 3)
    with pytest.raises(InputError, match=r"seeds/0: is not whole \(probabilities.npy has the shape \(7, 3\), not"):
        train(tmp_path, resume=True)


def test_stopped_while_the_report_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_report", interrupt)
        with pytest.raises(InterruptedTrainingError, match=r"^stopped; run the same command with --resume to go on$"):
            train(tmp_path)
    assert not (tmp_path / "run.json").exists()
    train(tmp_path, resume=True)
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize("place", range(0, 12, 2))
def test_a_full_disk_leaves_no_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """The disk is full from the n-th file on; with room again, the run can be gone on with."""
    synced, left = os.fsync, [place]

    def fsync(number: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(ResourceError, match=r"cannot write .*: No space left on device"):
            train(tmp_path / "out")
    assert not (tmp_path / "out" / "run.json").exists()
    assert not list(tmp_path.rglob("*.partial"))
    train(tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "run.json").exists()


def test_names_of_folders(tmp_path: Path) -> None:
    assert free_folder(tmp_path, "a/b c", False) == tmp_path / "a_b_c"
    assert free_folder(tmp_path, "..", False) == tmp_path / "graph"
    for name in ("g", "g-2"):
        assert free_folder(tmp_path, "g", False) == tmp_path / name
        (tmp_path / name).mkdir()
    assert free_folder(tmp_path, "g", True) == tmp_path / "g-2"
    (tmp_path / "g-2" / "run.json").touch()
    assert free_folder(tmp_path, "g", True) == tmp_path / "g", "the other one is finished"
    (tmp_path / "g" / "run.json").touch()
    assert free_folder(tmp_path, "g", True) == tmp_path / "g-2"
    assert free_folder(tmp_path, "new", True) == tmp_path / "new"
    for name in ("g-sgpm", "g-sgpm-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "g-sgpm-2" / "sgpm.json").touch()
    assert free_folder(tmp_path, "g-sgpm", True) == tmp_path / "g-sgpm", "the other pre-training is finished"


def test_every_epoch_is_logged_as_it_ends(tmp_path: Path) -> None:
    graph, seen = tiny_graph(), []

    def look(number: int, trainer: object) -> None:
        lines = (tmp_path / "run" / "seeds" / "0" / "history.jsonl").read_text().splitlines()
        seen.append([json.loads(line)["epoch"] for line in lines])

    train_run(graph, "tiny", tiny_split(graph), tiny_config(), tmp_path / "run", CPU, after_epoch=look)
    assert seen
    assert seen == [list(range(1, number + 1)) for number in range(1, len(seen) + 1)]
