"""What fuzzing has found once: each input that broke something, and is refused in words now."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tokenphormer import TokenphormerClassifier
from tokenphormer.benchmark.rows import read_rows
from tokenphormer.errors import InputError
from tokenphormer.evaluation.run_folder import load_run
from tokenphormer.evaluation.runs import _found_before
from tokenphormer.files import parse_json
from tokenphormer.graph import Graph, load_graph
from tokenphormer.graph.columns import arrow
from tokenphormer.graph.disk import open_graph, read_header
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.graph.external import parse_memory
from tokenphormer.serve.guard import Guard
from tokenphormer.serve.settings import ServeSettings
from tokenphormer.sgpm import PretrainedSGPM
from tokenphormer.sgpm.pretrain_run import load_pretrained, pretrain
from tokenphormer.sgpm.settings import SMALL, SGPMSettings
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.training.settings import Config

DEEP = "[" * 100_000
TINY_SGPM = SMALL | {"hidden_channels": 8, "num_layers": 1, "num_heads": 2, "epochs": 1, "train_sentences": 2}


# ---------------------------------------------------------------- JSON nested too deep: a RecursionError


def test_deep_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="without end"):
        parse_json(DEEP)
    assert parse_json(b'{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("graph.json", open_graph),
        ("run.json", load_run),
        ("sgpm.json", lambda folder: load_pretrained(folder, tiny_graph(), CPU)),
    ],
)
def test_deep_manifests(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        read(tmp_path)


def test_deep_metrics_of_a_seed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the metrics of a seed"):
        _found_before(DEEP.encode(), tmp_path / "metrics.json", tiny_graph(), None)


def test_deep_rows(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "rows.jsonl").write_text(DEEP)
    assert read_rows([tmp_path], said.append) == []
    assert "not a whole row" in said[0]


@pytest.mark.parametrize("value", [{}, [], {"a": 1}])
def test_rows_whose_names_are_no_names(tmp_path: Path, value: object) -> None:
    said: list[str] = []
    row = {"kind": "pretrain", "model": "mlp", "dataset": "debian", "study": "main", "status": "done", "format": 1}
    lines = [json.dumps(row), json.dumps(row | {"model": value}), json.dumps(row | {"trial": value})]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    assert read_rows([tmp_path], said.append) == [row]
    assert len(said) == 2


# ---------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "header", [b"{'descr': (", b"{'descr': " + b"[" * 5000, b"\xff\xfe", b"{'descr': '<f4'" + b" " * 9]
)
def test_headers_that_are_no_python(header: bytes) -> None:
    """NumPy reads a header as Python's text, and lets out the tokeniser's errors."""
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with pytest.raises(ValueError, match=r"."):
        read_header(io.BytesIO(content))


def test_a_raw_file_with_such_a_header(tmp_path: Path) -> None:
    raw = tmp_path / "Amazon" / "Photo" / "raw"
    raw.mkdir(parents=True)
    with zipfile.ZipFile(raw / "amazon_electronics_photo.npz", "w") as archive:
        archive.writestr("adj_data.npy", b"\x93NUMPY\x01\x00\x0b\x00{'descr': (")
    with pytest.raises(InputError, match=r"photo\.npz: not a readable \.npz"):
        load_graph("photo", root=tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"attr_indices": np.array([0, 1, 2**30])},
        {"attr_indices": np.array([0, 1, -5])},
        {"attr_indptr": np.array([0, 10**6, 2, 3])},
        {"attr_shape": np.array([3, 2**40])},
        {"adj_indices": np.array([7, 0])},
        {"adj_shape": np.array([3])},
    ],
    ids=lambda change: next(iter(change)),
)
def test_sparse_matrices_that_point_outside(tmp_path: Path, change: dict[str, Any]) -> None:
    """PyG makes a dense matrix of one, and SciPy then wrote where the indices said: a segmentation fault."""
    arrays: dict[str, Any] = {"adj_data": np.ones(2), "adj_indices": np.array([1, 0])}
    arrays |= {"adj_indptr": np.array([0, 1, 2, 2]), "adj_shape": np.array([3, 3]), "labels": np.arange(3)}
    arrays |= {"attr_data": np.ones(3), "attr_indices": np.arange(3), "attr_indptr": np.arange(4)}
    arrays |= {"attr_shape": np.array([3, 3])}
    raw = tmp_path / "Amazon" / "Photo" / "raw"
    raw.mkdir(parents=True)
    np.savez(raw / "amazon_electronics_photo.npz", **arrays)
    assert load_graph("photo", root=tmp_path).num_nodes == 3
    np.savez(raw / "amazon_electronics_photo.npz", **(arrays | change))
    with pytest.raises(InputError, match=r"photo\.npz: not a readable \.npz"):
        load_graph("photo", root=tmp_path)


def test_a_page_of_a_table_that_says_it_is_huge(tmp_path: Path) -> None:
    """Converting made a buffer as large as a damaged page of Parquet said that it was: here, 1.8 GB."""
    pa = arrow()
    pa.parquet.write_table(pa.table({"id": ["a", "b"]}), tmp_path / "nodes.parquet")
    path = tmp_path / "edges.parquet"
    pa.parquet.write_table(pa.table({"source": ["a"] * 50, "target": ["b"] * 50}), path, use_dictionary=False)
    content = path.read_bytes()
    # Behind "PAR1" stands the first page's header: its type, its size and its size on disk, each behind an 0x15.
    begin = content.index(b"\x15", content.index(b"\x15", 6) + 1) + 1
    end = next(at for at in range(begin, begin + 5) if content[at] < 0x80) + 1
    path.write_bytes(content[:begin] + b"\xfe\xff\xff\xff\x0d" + content[end:])
    code = (
        "import resource, sys; from pathlib import Path; from tokenphormer.errors import InputError\n"
        "from tokenphormer.graph.external import convert\n"
        "import pyarrow.parquet, pyarrow.compute, pyarrow.csv\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: convert(sys.argv[1], sys.argv[1] + '-out')\n"
        "except InputError as error: print('refused', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=100, check=True
    )
    word, kilobytes = done.stdout.split()
    assert word == "refused"
    assert int(kilobytes) < 300_000


# ---------------------------------------------------------------- values of another kind inside hashed files


@pytest.mark.parametrize("config", ["", "text", [], 3, None])
def test_weights_whose_settings_are_no_settings(tmp_path: Path, config: object) -> None:
    graph = tiny_graph()
    classifier = TokenphormerClassifier(**tiny_config(max_epochs=1).__dict__, device="cpu")
    classifier.fit(graph, tiny_split(graph)).save_pretrained(tmp_path)
    weights, meta = load_tensors(tmp_path / "model.safetensors")
    save_tensors(tmp_path / "model.safetensors", weights, meta | {"config": config})
    with pytest.raises(InputError, match=r"model\.safetensors: its description is not one of this version"):
        TokenphormerClassifier.from_pretrained(tmp_path)


@pytest.mark.parametrize("key", ["settings", "name", "fingerprint", "edges", "features", "num_nodes"])
def test_an_sgpm_that_does_not_say_what_it_is_of(tmp_path: Path, key: str) -> None:
    graph = tiny_graph()
    pretrain(graph, SGPMSettings().replace(TINY_SGPM), tmp_path / "sgpm", CPU)
    path = tmp_path / "sgpm" / "sgpm.safetensors"
    weights, meta = load_tensors(path)
    about = dict(meta["graph"])  # type: ignore[call-overload]  # JSON
    about.pop(key, None)
    save_tensors(path, weights, meta | {"graph": about} | ({"settings": ""} if key == "settings" else {}))
    with pytest.raises(InputError, match="not a pre-trained SGPM of this version"):
        PretrainedSGPM.load(path, CPU)
    manifest = tmp_path / "sgpm" / "sgpm.json"
    values = json.loads(manifest.read_text()) | {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    manifest.write_text(json.dumps(values))
    with pytest.raises(InputError, match="not a pre-trained SGPM of this version"):
        load_pretrained(tmp_path / "sgpm", tiny_graph(seed=1), CPU)


# ---------------------------------------------------------------- words


@pytest.mark.parametrize("text", ["9" * 400, f"1.{'9' * 400}GB", "9" * 19 + "t"])
def test_sizes_beyond_any_number(text: str) -> None:
    with pytest.raises(InputError, match="expected a size such as"):
        parse_memory(text)


def test_a_class_of_a_high_number() -> None:
    """Every number below it became a class with a name: gigabytes for three labels."""
    assert Graph.from_edges([[0], [1]], y=[0, 1000]).num_classes == 1001
    with pytest.raises(InputError, match="number the classes from 0 on"):
        Graph.from_edges([[0], [1]], y=[0, 10**9])


def test_an_id_of_five_thousand_digits() -> None:
    graph = Graph.from_edges([[0, 1], [1, 2]])
    assert graph.index_of("2") == 2
    with pytest.raises(InputError, match="no node"):
        graph.index_of("9" * 5000)


async def nobody(scope: object, receive: object, send: object) -> None:
    raise AssertionError("was asked")


def test_an_address_that_is_no_ascii() -> None:
    import asyncio

    answers: list[Any] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/nodes/",
        "query_string": b"a=\xff",
        "client": ("127.0.0.1", 1),
    }
    scope["headers"] = [(b"host", b"127.0.0.1")]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    asyncio.run(Guard(nobody, ServeSettings())(scope, receive, send))
    assert answers[0]["status"] == 400
    assert "ASCII" in json.loads(answers[1]["body"])["error"]["message"]


# ---------------------------------------------------------------- graphs on disk


def test_counts_that_are_no_numbers(tmp_path: Path) -> None:
    write_graph(tiny_graph(), tmp_path / "g")
    path = tmp_path / "g" / "graph.json"
    manifest = json.loads(path.read_text())
    manifest.pop("sha256", None)
    for name in ("num_nodes", "num_features", "num_directed_edges", "num_self_loops"):
        for value in (float("inf"), float("nan"), "1e5", None, [], -1):
            path.write_text(json.dumps(manifest | {name: value}))
            with pytest.raises(InputError, match=r"graph\.json|\.npy"):
                open_graph(tmp_path / "g", verify=True)


def test_settings_longer_than_any(tmp_path: Path) -> None:
    """PyYAML took seconds for 64 kB of them, and its time grows faster than the text."""
    path = tmp_path / "config.yaml"
    path.write_text("# all is well\n" * 2000)
    assert Config.from_yaml(path) == Config()
    path.write_text("# all is well\n" * 5000)
    with pytest.raises(InputError, match=r"config\.yaml: longer than the 32,768 characters"):
        Config.from_yaml(path)
    with pytest.raises(InputError, match="dropout: longer than"):
        Config().replace({"dropout": "0" * 40_000})
