"""Named datasets: the real files where they are, made-up ones where the promise is about trust or absence."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import socket
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenphormer.errors import DatasetMissingError, InputError
from tokenphormer.graph import Graph, make_split, raw_files
from tokenphormer.graph.datasets import DATASETS, Dataset, embedded_path, find_dataset, load_graph, passed_over
from tokenphormer.graph.external import convert
from tokenphormer.graph.listing import dataset_rows

REAL = Path(__file__).parents[2].parent / "shared" / "datasets"
PYG_DOWNLOAD = raw_files.download
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the raw datasets are not beside the repository")


@pytest.fixture(scope="module")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, cache_home: Path) -> None:
    def offline(dataset: Dataset, folder: Path) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(raw_files, "download", offline)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    monkeypatch.delenv("TOKENPHORMER_DATA", raising=False)
    monkeypatch.delenv("TOKENPHORMER_UNVERIFIED", raising=False)


def listing(folder: Path) -> list[tuple[str, int, int]]:
    paths = sorted(folder.rglob("*"))
    return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]


# ---------------------------------------------------------------- the real files

COUNTS = {
    "cora": (2708, 5278, 7, 1433),
    "citeseer": (3327, 4552, 6, 3703),
    "pubmed": (19717, 44324, 3, 500),
    "photo": (7650, 119081, 8, 745),
    "dblp": (17716, 52867, 4, 1639),
    "flickr": (7575, 239738, 9, 12047),
}
DIRECTED = {"cornell": (183, 298, 5, 1703), "wisconsin": (251, 515, 5, 1703), "actor": (7600, 30019, 5, 932)}
LOOPS = {"cornell": 3, "wisconsin": 16, "actor": 93}


@needs_real
@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    before = listing(REAL / DATASETS[name].folder)
    graph = load_graph(name.upper(), root=REAL)
    assert (graph.num_nodes, graph.num_edges, graph.num_classes, graph.num_features) == COUNTS[name]
    assert graph.name == name
    assert isinstance(graph.x, np.ndarray) == (name == "photo")  # the only one with over a quarter non-zero
    assert graph.x is not None
    assert graph.x.dtype == np.float32
    again = load_graph(name, root=REAL)
    assert again.fingerprint == graph.fingerprint
    assert [split.hash for split in again.splits] == [split.hash for split in graph.splits]
    assert listing(REAL / DATASETS[name].folder) == before


@needs_real
@pytest.mark.parametrize("name", DIRECTED)
def test_counts_of_directed_sets(name: str) -> None:
    nodes, edges, classes, features = DIRECTED[name]
    directed, plain = load_graph(name, root=REAL, directed=True), load_graph(name, root=REAL)
    assert directed.directed
    assert not plain.directed
    assert directed.num_edges == edges - LOOPS[name]
    assert f"dropped {LOOPS[name]} self-loops" in directed.notes
    assert (plain.num_nodes, plain.num_classes, plain.num_features) == (nodes, classes, features)
    assert plain.num_edges < directed.num_edges < plain.num_directed_edges
    assert [split.name for split in plain.splits] == [f"geom-gcn-{number}" for number in range(10)]
    assert make_split(plain, "geom-gcn", 9) is plain.splits[9]
    assert sum(plain.splits[0].sizes) == nodes


@needs_real
@pytest.mark.parametrize(
    ("name", "sizes", "public"),
    [
        ("cora", (1626, 542, 540), (140, 500, 1000)),
        ("citeseer", (1997, 666, 664), (120, 500, 1000)),
        ("pubmed", (11830, 3944, 3943), (60, 500, 1000)),
    ],
)
def test_split_sizes_of_the_paper(name: str, sizes: tuple[int, int, int], public: tuple[int, int, int]) -> None:
    graph = load_graph(name, root=REAL)
    assert make_split(graph, DATASETS[name].protocol).sizes == sizes
    assert [(split.name, split.sizes) for split in graph.splits] == [("public", public)]


@needs_real
def test_fixed_split_of_photo() -> None:
    (split,) = load_graph("photo", root=REAL).splits
    assert (split.name, split.sizes) == ("fixed-0", (4590, 1530, 1530))


@needs_real
def test_rows_give_the_papers_diameters() -> None:
    rows = {row["name"]: row for row in dataset_rows(REAL)}
    assert set(rows) == set(DATASETS)
    for name in COUNTS:
        assert rows[name]["status"] == "on disk"
        assert rows[name]["diameter"] == rows[name]["paper_diameter"]
        assert rows[name]["nodes"] == rows[name]["paper_nodes"]
    assert [rows["cora"][key] for key in ("components", "radius")] == [78, 10]
    assert rows["cora"]["homophily"] == pytest.approx(0.81, abs=0.001)
    assert rows["actor"]["paper_nodes"] is None


@needs_real
@pytest.mark.parametrize("name", [name for name in DATASETS if not DATASETS[name].embedded])
def test_every_raw_file_has_a_known_hash(name: str) -> None:
    dataset = DATASETS[name]
    known = raw_files.known_hashes()
    assert all(f"{dataset.folder}/raw/{file}" in known for file in dataset.files)
    assert raw_files.missing_files(dataset, REAL) == []


def test_directions_that_are_not_there() -> None:
    with pytest.raises(InputError, match="'cora' has no edge directions"):
        load_graph("cora", directed=True)


def test_the_embedded_graph() -> None:
    if not embedded_path(DATASETS["debian"]).is_file():
        pytest.skip("the embedded graph has not been built")
    assert load_graph("debian").num_nodes > 100


# ---------------------------------------------------------------- names and paths


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(InputError, match=r"'coraa'.*nearest: cora.*nodes\.csv and edges\.csv"):
        load_graph("coraa")


def test_a_bare_name_is_the_dataset_and_a_path_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[Path, bool]] = []

    def read_folder(folder: Path, directed: bool) -> Graph:
        read.append((folder, directed))
        return Graph.from_edges([[0], [1]])

    tables = types.ModuleType("tokenphormer.graph.tables")
    monkeypatch.setattr(tables, "read_folder", read_folder, raising=False)
    monkeypatch.setitem(sys.modules, "tokenphormer.graph.tables", tables)
    monkeypatch.chdir(tmp_path)
    Path("cora").mkdir()
    load_graph("./cora")
    load_graph(Path("cora"), directed=True)
    assert read == [(Path("cora"), False), (Path("cora"), True)]
    with pytest.raises(DatasetMissingError):
        load_graph("cora", root=tmp_path / "empty")


def test_a_folder_of_a_dataset_s_name_is_passed_over_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert passed_over("cora") is None
    Path("cora").mkdir()
    assert passed_over("cora") is None  # holds no graph: perhaps what an earlier run wrote
    Path("cora/nodes.parquet").touch()
    note = "taken for the dataset, not for the folder here of that name; to take the folder, say ./cora"
    assert passed_over("cora") == passed_over(" cora ") == f"cora: {note}"
    for source in ("./cora", Path("cora"), str(tmp_path / "cora"), "mine"):
        assert find_dataset(source) is None
        assert passed_over(source) is None
    assert find_dataset("Cora") == DATASETS["cora"]
    Graph.from_edges([[0], [1]]).save("photo.npz")
    convert("photo.npz", "photo")
    assert passed_over("photo")


def test_a_saved_graph(tmp_path: Path) -> None:
    graph = Graph.from_edges([[0, 1], [1, 2]])
    graph.save(tmp_path / "mine.npz")
    assert load_graph(tmp_path / "mine.npz").fingerprint == graph.fingerprint
    assert load_graph(str(tmp_path / "mine.npz")).fingerprint == graph.fingerprint
    with pytest.raises(InputError, match="undirected"):
        load_graph(tmp_path / "mine.npz", directed=True)
    (tmp_path / "mine.txt").write_text("0 1")
    with pytest.raises(InputError, match=r"mine\.txt: expected a folder"):
        load_graph(tmp_path / "mine.txt")


# ---------------------------------------------------------------- made-up raw files


def write_cornell(root: Path) -> Path:
    raw = root / "WebKB" / "cornell" / "raw"
    raw.mkdir(parents=True)
    rows = "".join(f"{node}\t0,{node % 2},1,0,0\t{node % 2}\n" for node in range(6))
    (raw / "out1_node_feature_label.txt").write_text(f"node_id\tfeature\tlabel\n{rows}")
    (raw / "out1_graph_edges.txt").write_text("a\tb\n0\t1\n1\t0\n1\t2\n3\t3\n4\t5\n")
    mask = np.arange(6)
    for number in range(10):
        parts = {"train_mask": mask < 3, "val_mask": mask == 3, "test_mask": mask > 3}
        np.savez(raw / f"cornell_split_0.6_0.2_{number}.npz", allow_pickle=True, **parts)
    return raw


def write_photo(root: Path, **more: object) -> Path:
    raw = root / "Amazon" / "Photo" / "raw"
    raw.mkdir(parents=True)
    arrays: dict[str, object] = {
        **{"adj_data": [1.0, 1.0], "adj_indices": [1, 2], "adj_indptr": [0, 1, 2, 2], "adj_shape": [3, 3]},
        **{"attr_data": [1.0], "attr_indices": [0], "attr_indptr": [0, 1, 1, 1], "attr_shape": [3, 9]},
        "labels": [0, 1, 0],
        **more,
    }
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, **{key: np.asarray(value) for key, value in arrays.items()})
    (raw / "amazon_electronics_photo.npz").write_bytes(buffer.getvalue())
    return raw


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_text_file_with_another_hash_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = write_cornell(tmp_path)
    before = listing(tmp_path)
    with pytest.raises(InputError, match=r"feature_label\.txt: SHA-256 is .*TOKENPHORMER_UNVERIFIED=1"):
        load_graph("cornell", root=tmp_path)
    monkeypatch.setenv("TOKENPHORMER_UNVERIFIED", "1")
    monkeypatch.setenv("TOKENPHORMER_DATA", str(tmp_path))
    raw.chmod(0o555)
    graph = load_graph("cornell")
    raw.chmod(0o755)
    assert (graph.num_nodes, graph.num_edges) == (6, 3)
    assert load_graph("cornell", directed=True).num_edges == 4
    assert graph.splits[0].test.tolist() == [4, 5]
    assert any("out1_graph_edges.txt is not the known file" in note for note in graph.notes)
    assert listing(tmp_path) == before


def test_a_pickle_with_another_hash_is_never_read(tmp_path: Path) -> None:
    raw = tmp_path / "Planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True)
    for file in DATASETS["cora"].files:
        (raw / file).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(InputError, match=r"ind\.cora\.x: SHA-256 is .*pickle: loading it runs code"):
        load_graph("cora", root=tmp_path)
    assert not (tmp_path / "exploded").exists()
    pickle.loads((raw / "ind.cora.x").read_bytes())
    assert (tmp_path / "exploded").exists()  # so the bomb was live


def test_an_unknown_npz_is_taken_without_its_pickles(tmp_path: Path) -> None:
    write_photo(tmp_path, class_names=np.array([Bomb(tmp_path / "exploded")], dtype=object))
    graph = load_graph("photo", root=tmp_path)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (3, 2, 9)
    assert any("is not the known file" in note for note in graph.notes)
    assert not (tmp_path / "exploded").exists()


def test_an_npz_that_needs_a_pickle_is_refused(tmp_path: Path) -> None:
    write_photo(tmp_path, labels=np.array([Bomb(tmp_path / "exploded")] * 3, dtype=object))
    with pytest.raises(InputError, match=r"'photo': its raw files cannot be read .*labels"):
        load_graph("photo", root=tmp_path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("keep", [0, 1, 300])
def test_a_truncated_npz_is_refused(tmp_path: Path, keep: int) -> None:
    file = write_photo(tmp_path) / "amazon_electronics_photo.npz"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"amazon_electronics_photo\.npz: not a readable \.npz"):
        load_graph("photo", root=tmp_path)


def test_a_broken_cache_file_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photo(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    graph = load_graph("photo", root=tmp_path)
    (cached,) = (tmp_path / "home").rglob("photo-*.npz")
    cached.write_bytes(cached.read_bytes()[:100])
    assert load_graph("photo", root=tmp_path).fingerprint == graph.fingerprint
    assert Graph.load(cached).fingerprint == graph.fingerprint


def test_changed_raw_files_are_not_answered_from_the_cache(tmp_path: Path) -> None:
    write_photo(tmp_path / "a")
    write_photo(tmp_path / "b", labels=[2, 1, 0])
    assert load_graph("photo", root=tmp_path / "a").y.tolist() == [0, 1, 0]
    assert load_graph("photo", root=tmp_path / "b").y.tolist() == [2, 1, 0]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photo(tmp_path)
    (tmp_path / "file").write_text("a file where the cache folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_graph("photo", root=tmp_path).num_nodes == 3


# ---------------------------------------------------------------- absent files


def test_offline_and_absent_says_where_to_put_what(tmp_path: Path) -> None:
    with pytest.raises(DatasetMissingError) as caught:
        load_graph("flickr", root=tmp_path)
    message = str(caught.value)
    raw = tmp_path / "AttributedGraphDataset" / "flickr" / "raw"
    assert f"put attrs.npz, edgelist.txt, labels.txt into {raw}" in message
    assert "no network in tests" in message
    assert listing(tmp_path) == []


def test_rows_of_an_empty_root(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in dataset_rows(tmp_path)}
    assert str(rows["dblp"]["status"]).startswith("absent: put dblp.npz into ")
    assert rows["dblp"]["nodes"] is None
    assert rows["dblp"]["paper_edges"] == 52864
    write_cornell(tmp_path)
    rows = {row["name"]: row for row in dataset_rows(tmp_path)}
    assert str(rows["cornell"]["status"]).startswith("unusable: ")


def test_a_download_moves_into_place_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "Amazon/Photo/raw/amazon_electronics_photo.npz"

    def download(dataset: Dataset, folder: Path) -> None:
        write_photo(folder)
        known = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        monkeypatch.setattr(raw_files, "known_hashes", lambda: {name: known})

    monkeypatch.setattr(raw_files, "download", download)
    assert load_graph("photo", root=tmp_path / "new").num_nodes == 3
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert files == ["new/Amazon/Photo/raw/amazon_electronics_photo.npz"]


def test_a_download_that_is_another_file_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `.npz` that a user puts there may be another one; one that came over the network may not."""
    monkeypatch.setattr(raw_files, "download", lambda dataset, folder: write_photo(folder))
    with pytest.raises(InputError, match=r"SHA-256 is .*what was downloaded is corrupt or another version"):
        load_graph("photo", root=tmp_path)
    assert listing(tmp_path) == []
    monkeypatch.setenv("TOKENPHORMER_UNVERIFIED", "1")
    assert load_graph("photo", root=tmp_path).num_nodes == 3


def test_a_bad_download_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(dataset: Dataset, folder: Path) -> None:
        write_cornell(folder)

    monkeypatch.setattr(raw_files, "download", download)
    with pytest.raises(InputError, match="SHA-256"):
        load_graph("cornell", root=tmp_path)
    assert listing(tmp_path) == []


def test_a_users_own_file_survives_the_download_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(dataset: Dataset, folder: Path) -> None:
        write_cornell(folder)

    monkeypatch.setattr(raw_files, "download", download)
    monkeypatch.setenv("TOKENPHORMER_UNVERIFIED", "1")
    raw = write_cornell(tmp_path)
    (raw / "out1_graph_edges.txt").write_text("a\tb\n0\t5\n")
    (raw / "cornell_split_0.6_0.2_3.npz").unlink()
    assert load_graph("cornell", root=tmp_path).num_edges == 1
    assert (raw / "cornell_split_0.6_0.2_3.npz").is_file()


def test_pygs_download_is_stopped_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: Any) -> None:
        for name in self.raw_file_names:
            Path(self.raw_dir, name).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))

    with raw_files.quiet():
        pyg_datasets = import_module("torch_geometric.datasets")
    monkeypatch.setattr(pyg_datasets.Planetoid, "download", download)
    PYG_DOWNLOAD(DATASETS["cora"], tmp_path)
    found = sorted(path.name for path in (tmp_path / "Planetoid/Cora/raw").iterdir())
    assert found == sorted(DATASETS["cora"].files)
    assert not (tmp_path / "exploded").exists()


def test_a_failing_pyg_download_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: object) -> None:
        raise ConnectionError("cut off")

    with raw_files.quiet():
        pyg_datasets = import_module("torch_geometric.datasets")
    monkeypatch.setattr(pyg_datasets.WebKB, "download", download)
    monkeypatch.setattr(raw_files, "download", PYG_DOWNLOAD)
    before = socket.getdefaulttimeout()
    with pytest.raises(DatasetMissingError, match=r"12 of its 12 raw files .*cut off"):
        load_graph("texas", root=tmp_path)
    assert socket.getdefaulttimeout() == before
