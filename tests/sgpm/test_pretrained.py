"""Vectors of nodes, known and unknown; and files that are what they say, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from tests.sgpm.graphs import cycle, pieces, pretrained_trainer, quick, relabelled
from tests.tiny import CPU, contents, tiny_graph
from tests.walks.graphs import directed_with_sinks
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.sgpm import GraphDocument, PretrainedSGPM, pretraining
from tokenphormer.sgpm.document import CONTEXT
from tokenphormer.sgpm.model import CLS, SEP, UNK
from tokenphormer.sgpm.pretrained import _node_keys, document_fingerprint
from tokenphormer.sgpm.pretraining import unit_rows
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.tokens.operators import FeatureRows

GRAPH = tiny_graph()


def rebuilt(graph: Graph, **changes: Any) -> Graph:
    """The same graph with something changed."""
    source = np.repeat(np.arange(graph.num_nodes), graph.degree)
    values: dict[str, Any] = {
        "edge_index": np.stack([source, graph.indices]),
        "num_nodes": graph.num_nodes,
        "x": graph.x,
        "y": graph.y,
        "node_ids": graph.node_ids,
        "class_names": graph.class_names,
        "directed": graph.directed,
        "name": graph.name,
    }
    return Graph.from_edges(**(values | changes))


def grown(graph: Graph = GRAPH, extra: int = 10) -> Graph:
    """The graph in another order with new nodes among the old, each tied to two of them."""
    n = graph.num_nodes
    rng = np.random.default_rng(3)
    new = np.arange(n, n + extra)
    source = np.repeat(np.arange(n), graph.degree)
    ties = np.stack([np.repeat(new, 2), rng.integers(0, n, 2 * extra)])
    x = np.concatenate([np.asarray(graph.x), rng.normal(size=(extra, graph.num_features)).astype(np.float32)])
    ids = np.array([graph.id_of(v) for v in range(n)] + [f"new {v}" for v in new])
    y = np.concatenate([graph.y, np.zeros(extra, int)])
    order = rng.permutation(n + extra)  # place → node
    place = np.argsort(order)
    edges = place[np.concatenate([np.stack([source, graph.indices]), ties], axis=1)]
    return Graph.from_edges(
        edges, n + extra, x=x[order], y=y[order], node_ids=ids[order], class_names=graph.class_names, name="grown"
    )


@pytest.fixture(scope="module")
def pretrained() -> PretrainedSGPM:
    """Tests do not change it."""
    return PretrainedSGPM.of(pretrained_trainer(GRAPH, mean_length=3.0), "test")


# ---------------------------------------------------------------- vectors of known nodes


def test_static_vectors_are_the_rows_of_the_table_standardised(pretrained: PretrainedSGPM) -> None:
    table = pretrained.model.table.detach().numpy()[:60].astype(np.float64)
    expected = (table - table.mean(axis=0)) / table.std(axis=0)
    found = pretrained.vectors(GRAPH, "static", CPU)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def slow_unit_rows(graph: Graph) -> np.ndarray:
    return np.stack([row / max(np.sqrt((row**2).sum()), 1e-30) for row in np.asarray(graph.x)])


def slow_states(pretrained: PretrainedSGPM, graph: Graph, known: list[int], *, guess: bool) -> np.ndarray:
    """The mean state of each node at the head of its sentences, one sentence at a time."""
    model, settings, n = pretrained.model.eval(), pretrained.settings, pretrained.model.num_nodes
    document = GraphDocument(graph, settings)
    projected = None if graph.x is None else model.project(FeatureRows.on(CPU, slow_unit_rows(graph)), torch.float32)
    bins = torch.tensor(np.searchsorted(pretrained.edges, graph.degree))
    most = 1 << 30 if model.positions is None else len(model.positions) - 2
    found = np.zeros((graph.num_nodes, settings.hidden_channels))
    for node in range(graph.num_nodes):
        for i in range(settings.context_sentences):
            drawn = document.sentences(CONTEXT + i, CPU, np.array([node]))
            sentence = drawn.walks[0, : drawn.counts[0]].tolist()[:most]
            rows = [known[v] if known[v] >= 0 else n + UNK for v in sentence]
            words = torch.tensor([[n + CLS, *rows, n + SEP]])
            with torch.no_grad():
                states = model(words, torch.tensor([[-1, *sentence, -1]]), projected, bins, torch.float32)
                state = model.guess(states[:, 1]) if guess else states[:, 1]
            found[node] += state[0].numpy() / settings.context_sentences
    return found


def test_contextual_vectors_are_mean_states_at_the_head(pretrained: PretrainedSGPM) -> None:
    found = pretrained.vectors(GRAPH, "contextual", CPU)
    expected = slow_states(pretrained, GRAPH, list(range(60)), guess=False)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert found.std() == pytest.approx(1.0, abs=0.2)


def test_vectors_do_not_depend_on_how_features_are_read(
    pretrained: PretrainedSGPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pretrained.vectors(GRAPH, "contextual", CPU)
    monkeypatch.setattr(pretraining, "SPARSE_VOCABULARY", 3)
    np.testing.assert_allclose(pretrained.vectors(GRAPH, "contextual", CPU), whole, rtol=1e-4, atol=1e-5)


def test_other_vectors_are_refused(pretrained: PretrainedSGPM) -> None:
    with pytest.raises(InputError, match="sgpm_token: 'dynamic'; expected one of static, contextual"):
        pretrained.vectors(GRAPH, "dynamic", CPU)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the SGPM was pre-trained with 5 features, this graph has 3"):
        pretrained.vectors(tiny_graph(num_features=3), "static", CPU)


# ---------------------------------------------------------------- nodes it knows, and nodes it does not


def test_nodes_are_known_by_their_ids_and_features(pretrained: PretrainedSGPM) -> None:
    graph = grown()
    expected = [-1 if graph.id_of(v).startswith("new") else GRAPH.index_of(graph.id_of(v)) for v in range(70)]
    assert expected.count(-1) == 10
    assert pretrained._known(graph).tolist() == expected
    x = np.array(graph.x)
    x[[3, 4]] += 1  # somebody else by the same name
    expected[3] = expected[4] = -1
    assert pretrained._known(rebuilt(graph, x=x)).tolist() == expected


def test_on_its_own_graph_places_are_enough(pretrained: PretrainedSGPM) -> None:
    for ids in (None, [f"other {v}" for v in range(60)]):
        assert pretrained._known(rebuilt(GRAPH, node_ids=ids)).tolist() == list(range(60))
    assert set(pretrained._known(rebuilt(grown(), node_ids=None)).tolist()) == {-1}


def test_nobody_is_known_where_the_graph_of_pretraining_had_no_ids() -> None:
    pretrained = PretrainedSGPM.of(pretrained_trainer(rebuilt(GRAPH, node_ids=None)), "test")
    assert len(pretrained.node_keys) == 0
    assert set(pretrained._known(grown()).tolist()) == {-1}


@pytest.mark.parametrize("kind", ["static", "contextual"])
def test_vectors_on_a_graph_with_new_nodes(pretrained: PretrainedSGPM, kind: Any) -> None:
    graph = grown()
    known = pretrained._known(graph).tolist()
    found = pretrained.vectors(graph, kind, CPU)
    new = np.array(known) < 0
    if kind == "contextual":
        expected = slow_states(pretrained, graph, known, guess=False)
    else:
        guesses = slow_states(pretrained, graph, known, guess=True)
        mean, deviation = pretrained.guesses.numpy()
        own = pretrained.vectors(GRAPH, "static", CPU)
        expected = np.where(new[:, None], (guesses - mean) / deviation, own[known])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    # Who reads the vectors was trained on those of known nodes: the others have to be of their size.
    assert found[new].std() == pytest.approx(found[~new].std(), rel=0.7)


def test_what_guesses_are_scaled_by_is_what_unknown_nodes_would_have(pretrained: PretrainedSGPM) -> None:
    """Each node of the graph, shown as unknown at the head of its own sentences."""
    everyone = np.zeros((60, 8))
    for node in range(60):
        known = list(range(60))
        known[node] = -1
        document = GraphDocument(GRAPH, pretrained.settings)
        for i in range(2):
            drawn = document.sentences(CONTEXT + i, CPU, np.array([node]))
            sentence = drawn.walks[0, : drawn.counts[0]].tolist()
            rows = [60 + UNK, *sentence[1:]]
            projected = pretrained.model.project(FeatureRows.on(CPU, slow_unit_rows(GRAPH)), torch.float32)
            bins = torch.tensor(np.searchsorted(pretrained.edges, GRAPH.degree))
            with torch.no_grad():
                states = pretrained.model(
                    torch.tensor([[60 + CLS, *rows, 60 + SEP]]),
                    torch.tensor([[-1, *sentence, -1]]),
                    projected,
                    bins,
                    torch.float32,
                )
                everyone[node] += pretrained.model.guess(states[:, 1])[0].numpy() / 2
    mean, deviation = pretrained.guesses.numpy()
    np.testing.assert_allclose(mean, everyone.mean(axis=0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(deviation, everyone.std(axis=0), rtol=1e-3, atol=1e-5)


def test_new_nodes_are_read_by_features_and_centrality(pretrained: PretrainedSGPM) -> None:
    graph = grown()
    new = [v for v in range(70) if graph.id_of(v).startswith("new")]
    x = np.array(graph.x)
    x[new] += 1
    for kind in ("static", "contextual"):
        one = pretrained.vectors(graph, kind, CPU)  # type: ignore[arg-type]
        other = pretrained.vectors(rebuilt(graph, x=x), kind, CPU)  # type: ignore[arg-type]
        assert (np.abs(one - other)[new].max(axis=1) > 1e-3).all()


@pytest.mark.parametrize("kind", ["static", "contextual"])
@pytest.mark.parametrize(
    "graph",
    [
        tiny_graph(num_nodes=33, seed=9, node_ids=None),
        Graph.from_edges(np.zeros((2, 0), int), 4, x=np.ones((4, 5), np.float32)),
        Graph.from_edges([np.arange(99), np.arange(1, 100)], 103, x=np.ones((103, 5), np.float32)),
    ],
    ids=["new", "no edges", "long path and nodes alone"],
)
def test_vectors_on_new_graphs_of_every_kind(pretrained: PretrainedSGPM, graph: Graph, kind: Any) -> None:
    found = pretrained.vectors(graph, kind, CPU)
    assert found.shape == (graph.num_nodes, 8)
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 100


def test_sentences_longer_than_any_in_pretraining_are_cut() -> None:
    pretrained = PretrainedSGPM.of(pretrained_trainer(cycle(6)), "test")
    assert pretrained.model.positions is not None
    graph = cycle(60)
    assert GraphDocument(graph, pretrained.settings).max_nodes > len(pretrained.model.positions) - 2
    found = pretrained.vectors(graph, "contextual", CPU)
    np.testing.assert_allclose(found, slow_states(pretrained, graph, [-1] * 60, guess=False), rtol=1e-3, atol=1e-5)
    without = PretrainedSGPM.of(pretrained_trainer(cycle(6), use_positions=False), "test")
    assert np.isfinite(without.vectors(graph, "contextual", CPU)).all()


@pytest.mark.parametrize("name", ["pieces", "directed", "one node"])
def test_awkward_graphs_have_finite_vectors(name: str) -> None:
    loop = Graph.from_edges([[0], [0]], self_loops=True)
    graph = {"pieces": pieces(), "directed": directed_with_sinks(), "one node": loop}[name]
    pretrained = PretrainedSGPM.of(pretrained_trainer(graph), "test")
    for kind in ("static", "contextual"):
        assert np.isfinite(pretrained.vectors(graph, kind, CPU)).all()  # type: ignore[arg-type]
    assert np.isfinite(
        pretrained.vectors(rebuilt(pieces(), x=graph.x if name == "pieces" else None), "static", CPU)
    ).all()


# ---------------------------------------------------------------- keys


def test_keys_are_the_same_however_features_are_stored() -> None:
    x = np.array(GRAPH.x)
    x[x < 0.3] = 0
    dense, sparse = rebuilt(GRAPH, x=x), rebuilt(GRAPH, x=sp.csr_array(x))
    data, columns, rows = x.ravel(), np.tile(np.arange(5), 60), np.arange(0, 301, 5)
    with_zeros = Graph(GRAPH.indptr, GRAPH.indices, x=sp.csr_array((data, columns, rows)), node_ids=GRAPH.node_ids)
    assert with_zeros.x is not None
    assert with_zeros.x.nnz == 300  # type: ignore[union-attr]
    expected = _node_keys(dense)
    assert len(set(expected.tolist())) == 60
    assert expected.min() >= 0
    np.testing.assert_array_equal(_node_keys(sparse), expected)
    np.testing.assert_array_equal(_node_keys(with_zeros), expected)


def test_features_in_half_precision(tmp_path: Path) -> None:
    """Of a graph on disk: they are read as the same numbers in float32 are."""
    x = (100 * np.array(GRAPH.x)).astype(np.float16)  # some squares are beyond half precision
    write_graph(rebuilt(GRAPH, x=x), tmp_path / "half", half=True)
    half, single = open_graph(tmp_path / "half"), rebuilt(GRAPH, x=x.astype(np.float32))
    assert half.x is not None
    assert half.x.dtype == np.float16
    np.testing.assert_array_equal(_node_keys(half), _node_keys(single))
    np.testing.assert_array_equal(unit_rows(half.x), unit_rows(x.astype(np.float32)))
    found, expected = (PretrainedSGPM.of(pretrained_trainer(graph, epochs=1), "1") for graph in (half, single))
    assert found.hash == expected.hash


def test_keys_tell_ids_values_and_columns_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.zeros((60, 5), np.float32)
    x[:, 0] = 1
    keys = _node_keys(rebuilt(GRAPH, x=x))
    other_column = _node_keys(rebuilt(GRAPH, x=np.roll(x, 1, axis=1)))
    other_value = _node_keys(rebuilt(GRAPH, x=2 * x))
    no_features = _node_keys(rebuilt(GRAPH, x=None))
    other_ids = _node_keys(rebuilt(GRAPH, x=x, node_ids=[f"{v}" for v in range(60)]))
    together = np.concatenate([keys, other_column, other_value, no_features, other_ids])
    assert len(set(together.tolist())) == 300
    monkeypatch.setattr("tokenphormer.sgpm.pretrained.KEY_ELEMENTS", 7)  # a row at a time
    np.testing.assert_array_equal(_node_keys(rebuilt(GRAPH, x=x)), keys)


# ---------------------------------------------------------------- which graph it is of


def test_its_own_graph_whatever_the_labels_and_the_name(pretrained: PretrainedSGPM) -> None:
    for graph in (GRAPH, relabelled(GRAPH, None), rebuilt(GRAPH, name="other", node_ids=None)):
        pretrained.check(graph)
        assert pretrained.is_of(graph)


def test_another_graph_is_refused_with_what_differs(pretrained: PretrainedSGPM) -> None:
    x = np.array(GRAPH.x)
    x[7, 2] += 1
    edges = np.array([[0], [1]])
    cases = [
        (tiny_graph(num_nodes=45), r"nodes 60 there, 45 here\. Pre-train one for 'tiny'"),
        (tiny_graph(num_features=3), r"features 5 there, 3 here"),
        (tiny_graph(num_nodes=45, num_features=3), r"nodes 60 there, 45 here; features 5 there, 3 here"),
        (rebuilt(GRAPH, x=x), r"the same sizes, but other features\."),
        (rebuilt(GRAPH, edge_index=edges), r"the same sizes, but other edges\."),
        (rebuilt(GRAPH, directed=True), r"the same sizes, but other edges\."),
        (rebuilt(GRAPH, edge_weight=np.full(GRAPH.num_directed_edges, 2.0)), r"the same sizes, but other edges\."),
        (rebuilt(GRAPH, edge_index=edges, x=x), r"the same sizes, but other edges and features\."),
    ]
    for graph, message in cases:
        assert not pretrained.is_of(graph)
        with pytest.raises(InputError, match=rf"^the SGPM was pre-trained on another graph, 'tiny': {message}"):
            pretrained.check(graph)


def test_the_fingerprint_is_of_what_is_read() -> None:
    assert document_fingerprint(GRAPH) == document_fingerprint(relabelled(GRAPH, None))
    sparse = rebuilt(GRAPH, x=sp.csr_array(np.asarray(GRAPH.x)))
    prints = [document_fingerprint(g) for g in (GRAPH, sparse, rebuilt(GRAPH, directed=True), tiny_graph(seed=1))]
    assert len(set(prints)) == 4


# ---------------------------------------------------------------- files


def test_a_file_brings_everything_back(pretrained: PretrainedSGPM, tmp_path: Path) -> None:
    pretrained.save(tmp_path / "sgpm.safetensors")
    for path in (tmp_path, tmp_path / "sgpm.safetensors"):
        loaded = PretrainedSGPM.load(path, CPU)
        assert loaded.settings == pretrained.settings
        assert loaded.hash == pretrained.hash
        assert loaded.meta["graph"] == pretrained.meta["graph"]
        assert loaded.meta["history"] == pretrained.meta["history"]
        for graph in (GRAPH, grown()):
            for kind in ("static", "contextual"):
                np.testing.assert_array_equal(
                    loaded.vectors(graph, kind, CPU),  # type: ignore[arg-type]
                    pretrained.vectors(graph, kind, CPU),  # type: ignore[arg-type]
                )
    loaded.save(tmp_path / "again.safetensors")
    assert contents(tmp_path)["again.safetensors"] == contents(tmp_path)["sgpm.safetensors"]


def test_files_from_before_features_were_scaled_are_read_as_they_were_written(tmp_path: Path) -> None:
    pretrained = PretrainedSGPM.of(pretrained_trainer(GRAPH, unit_features=False), "test")
    pretrained.save(tmp_path / "new.safetensors")
    tensors, meta = load_tensors(tmp_path / "new.safetensors")
    old: Any = meta["settings"]
    del old["unit_features"]
    save_tensors(tmp_path / "old.safetensors", tensors, meta)
    loaded = PretrainedSGPM.load(tmp_path / "old.safetensors", CPU)
    assert not loaded.settings.unit_features
    np.testing.assert_array_equal(
        loaded.vectors(GRAPH, "contextual", CPU), pretrained.vectors(GRAPH, "contextual", CPU)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"use_positions": False},
        {"use_features": False},
        {"unit_features": False},
        {"use_centrality": False},
        {"use_tokens": False},
        {"centrality": "core"},
    ],
    ids=str,
)
def test_files_of_every_kind_of_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    pretrained = PretrainedSGPM.of(pretrained_trainer(GRAPH, **changes), "test")
    pretrained.save(tmp_path / "s.safetensors")
    loaded = PretrainedSGPM.load(tmp_path / "s.safetensors", CPU)
    graph = grown()
    np.testing.assert_array_equal(loaded.vectors(graph, "static", CPU), pretrained.vectors(graph, "static", CPU))


def test_damaged_files_are_refused(pretrained: PretrainedSGPM, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    pretrained.save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 4
    for damaged in (b"", whole[:100], whole[:-1], bytes(flipped), b"PK\3\4"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"s\.safetensors: "):
            PretrainedSGPM.load(path, CPU)
    with pytest.raises(InputError, match=r"sgpm\.safetensors: no such file"):
        PretrainedSGPM.load(tmp_path, CPU)


def test_files_of_something_else_are_refused(pretrained: PretrainedSGPM, tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    pretrained.save(path)
    tensors, meta = load_tensors(path)
    settings: Any = meta["settings"]
    about: Any = meta["graph"]
    without = {name: tensor for name, tensor in tensors.items() if name != "edges"}
    cases: list[tuple[dict[str, torch.Tensor], dict[str, object]]] = [
        (without, meta),
        ({name: t for name, t in tensors.items() if name != "guesses"}, meta),
        (tensors | {"model.table": torch.zeros(2, 8)}, meta),
        (tensors, {key: value for key, value in meta.items() if key != "settings"}),
        (tensors, {key: value for key, value in meta.items() if key != "graph"}),
        (tensors, meta | {"graph": about | {"num_nodes": 5}}),
        (tensors, meta | {"settings": settings | {"num_layers": 2}}),
        (tensors, meta | {"settings": [1]}),
    ]
    for changed, described in cases:
        save_tensors(path, changed, described)
        with pytest.raises(InputError, match=r"s\.safetensors: not a pre-trained SGPM of this version"):
            PretrainedSGPM.load(path, CPU)
    save_tensors(path, tensors, meta | {"settings": settings | {"depth": 2}})
    with pytest.raises(InputError, match="'depth' is no setting"):
        PretrainedSGPM.load(path, CPU)


def test_the_hash_is_of_the_weights(pretrained: PretrainedSGPM) -> None:
    same = PretrainedSGPM.of(pretrained_trainer(GRAPH, mean_length=3.0), "another version")
    assert same.hash == pretrained.hash
    assert PretrainedSGPM.of(pretrained_trainer(GRAPH, seed=1), "test").hash != pretrained.hash


def test_settings_of_these_tests_read_several_sentences() -> None:
    assert quick().context_sentences == 2
