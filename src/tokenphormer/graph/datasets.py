"""Graphs by name: the paper's nine datasets (and Texas) through PyG, and a small one inside the package.

Raw files are looked for under a data root (`root`, else `$TOKENPHORMER_DATA`, else the per-user cache) in the
folders that the PyG classes expect, and downloaded there if absent. Built graphs are cached per user.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from tokenphormer.errors import InputError, TokenphormerError
from tokenphormer.files import load_arrays
from tokenphormer.graph.graph import FORMAT, Graph
from tokenphormer.graph.raw_files import RawFile, data_root, quiet, read_optional, read_raw_files, user_cache
from tokenphormer.graph.splits import Split

SPARSE_BELOW = 0.25
"""Features with a smaller share of non-zeros are kept sparse."""
BUILD = 1
"""Version of what this file makes of the raw files; part of the cache's key."""


@dataclass(frozen=True)
class PaperFigures:
    """A dataset's row in the paper's table of datasets, as printed."""

    nodes: int
    edges: int
    classes: int
    features: int
    diameter: int


@dataclass(frozen=True)
class Dataset:
    """A graph that has a name."""

    name: str
    description: str
    pyg_class: str
    """Class in `torch_geometric.datasets`; empty for a graph inside the package."""
    pyg_name: str | None
    """Its `name` argument, if it takes one."""
    folder: str
    """Folder under the data root; the raw files lie in its `raw`. For an embedded graph, the file's name."""
    files: tuple[str, ...]
    """Names of the raw files."""
    protocol: str
    """The split protocol that the paper used, or the nearest that can be repeated."""
    paper: PaperFigures | None = None
    has_directions: bool = False
    """Whether the raw edges have a direction."""
    fixed_split: str | None = None
    """A further file under the data root with one fixed split (arrays train, valid, test)."""

    @property
    def embedded(self) -> bool:
        """Whether the graph comes inside the package."""
        return not self.pyg_class

    def pyg_arguments(self, root: Path) -> dict[str, str]:
        """Arguments of the PyG class such that it reads `root/<folder>/raw`."""
        arguments = {"root": str(root / Path(self.folder).parts[0])}
        return arguments if self.pyg_name is None else {**arguments, "name": self.pyg_name}


def _planetoid(pyg_name: str, description: str, paper: PaperFigures) -> Dataset:
    name = pyg_name.lower()
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{name}.{part}" for part in parts)
    folder = f"Planetoid/{pyg_name}"
    return Dataset(name, description, "Planetoid", pyg_name, folder, files, "stratified", paper)


def _geom_gcn(name: str, description: str, pyg_class: str, prefix: str) -> Dataset:
    tables = ("out1_node_feature_label.txt", "out1_graph_edges.txt")
    files = (*tables, *(f"{prefix}_split_0.6_0.2_{number}.npz" for number in range(10)))
    pyg_name = name if pyg_class == "WebKB" else None
    folder = pyg_class if pyg_name is None else f"{pyg_class}/{name}"
    return Dataset(name, description, pyg_class, pyg_name, folder, files, "geom-gcn", has_directions=True)


_ALL = (
    _planetoid("Cora", "citations among machine learning papers", PaperFigures(2708, 5278, 7, 1433, 19)),
    # The raw files lack features and labels of 15 nodes: PyG gives them zeros and class 0, and the paper's
    # split sizes count them too.
    _planetoid("CiteSeer", "citations among computer science papers", PaperFigures(3327, 4522, 6, 3703, 28)),
    _planetoid("PubMed", "citations among papers on diabetes", PaperFigures(19717, 44324, 3, 500, 18)),
    Dataset(
        "photo",
        "photo goods of a shop that were bought together",
        *("Amazon", "Photo", "Amazon/Photo", ("amazon_electronics_photo.npz",), "stratified"),
        PaperFigures(7650, 238163, 8, 745, 11),
        fixed_split="fixed_splits/amazon-photo_split.npz",
    ),
    Dataset(
        "dblp",
        "citations among papers of the DBLP bibliography",
        *("CitationFull", "dblp", "CitationFull/dblp", ("dblp.npz",), "two-stage"),
        PaperFigures(17716, 52864, 4, 1639, 34),
    ),
    Dataset(
        "flickr",
        "people who share photos and follow one another, and their interests (not PyG's class `Flickr`)",
        *("AttributedGraphDataset", "flickr", "AttributedGraphDataset/flickr"),
        *(("attrs.npz", "edgelist.txt", "labels.txt"), "two-stage"),
        PaperFigures(7575, 239738, 9, 12047, 4),
    ),
    # As published by geom-gcn, Cornell's features and labels are byte for byte those of Texas (checksums.txt);
    # only edges and splits are its own. Results on the two are comparable with papers that used these files.
    _geom_gcn("cornell", "web pages of a university; features and labels as Texas's", "WebKB", "cornell"),
    _geom_gcn("wisconsin", "web pages of a university", "WebKB", "wisconsin"),
    _geom_gcn("texas", "web pages of a university", "WebKB", "texas"),
    _geom_gcn("actor", "actors who stand on the same encyclopaedia page", "Actor", "film"),
    Dataset(
        "debian",
        "software packages that depend on one another; comes with tokenphormer",
        *("", None, "debian.npz", (), "stratified"),
    ),
)

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def find_dataset(source: str | Path) -> Dataset | None:
    """The dataset that `load_graph` takes for a source: a bare name in any case; a path is none."""
    return DATASETS.get(source.strip().lower()) if isinstance(source, str) else None


def passed_over(source: str | Path) -> str | None:
    """A note if a dataset is taken, and a folder here that holds a graph has its name; else None."""
    if find_dataset(source) is None:
        return None
    from tokenphormer.graph.disk import is_graph_folder

    folder = Path(str(source).strip())
    if not is_graph_folder(folder) and not any((folder / f"nodes.{kind}").is_file() for kind in ("csv", "parquet")):
        return None
    return f"{folder}: taken for the dataset, not for the folder here of that name; to take the folder, say ./{folder}"


def load_graph(
    source: str | Path, *, root: str | Path | None = None, directed: bool = False, verify: bool = False
) -> Graph:
    """Load a graph: a dataset's name in any case, a folder with nodes and edges tables, or a saved `.npz`.

    A bare name is the dataset; `./cora`, or a `Path`, is a file or folder of one's own. Graphs are undirected
    unless `directed`. `root` is the data root of named datasets. A folder that `tokenphormer convert` wrote is a graph
    on disk: it is opened rather than loaded, and `verify` reads all of it to compare its hashes.
    """
    dataset = find_dataset(source)
    if dataset is not None:
        return _load_dataset(dataset, data_root(root), directed)
    path = Path(source)
    if path.is_dir():
        from tokenphormer.graph.disk import is_graph_folder, open_graph
        from tokenphormer.graph.tables import read_folder

        if is_graph_folder(path):
            return _as_asked(open_graph(path, verify=verify), path, directed)

        return read_folder(path, directed=directed)
    if not path.exists():
        near = difflib.get_close_matches(str(source).lower(), DATASETS, n=3)
        offer = f"nearest: {', '.join(near)}" if near else f"datasets: {', '.join(DATASETS)}"
        raise InputError(
            f"{str(source)!r} is neither a dataset nor an existing path; {offer}. "
            "A graph of your own is a path to a folder with nodes.csv and edges.csv"
        )
    if path.suffix != ".npz":
        raise InputError(f"{path}: expected a folder with nodes.csv and edges.csv, or a saved graph (.npz)")
    return _load_file(path, directed)


def drops_directions(source: str | Path) -> bool:
    """Whether `load_graph` without `directed` may drop directions there: of tables, and of some datasets.

    A saved graph, and one on disk, is as it was written.
    """
    dataset = find_dataset(source)
    if dataset is not None:
        return dataset.has_directions and not dataset.embedded
    from tokenphormer.graph.disk import is_graph_folder

    return Path(source).is_dir() and not is_graph_folder(Path(source))


def embedded_path(dataset: Dataset) -> Path:
    """The file of a graph that comes inside the package."""
    return Path(__file__).with_name(dataset.folder)


def _load_file(path: Path, directed: bool) -> Graph:
    return _as_asked(Graph.load(path), path, directed)


def _as_asked(graph: Graph, path: Path, directed: bool) -> Graph:
    if directed and not graph.directed:
        raise InputError(f"{path}: holds an undirected graph; it cannot be loaded as a directed one")
    return graph


def _load_dataset(dataset: Dataset, root: Path, directed: bool) -> Graph:
    if dataset.embedded:
        return _load_file(embedded_path(dataset), directed)
    if directed and not dataset.has_directions:
        raise InputError(f"dataset '{dataset.name}' has no edge directions; load it without `directed`")
    raw = read_raw_files(dataset, root)
    fixed = read_optional(root, dataset.fixed_split) if dataset.fixed_split else None
    cached = _cache_path(dataset, [*raw.values(), *([fixed] if fixed else [])], directed)
    with suppress(TokenphormerError):  # absent, truncated or of another format: built anew below
        return Graph.load(cached)
    graph = _build(dataset, raw, fixed, directed)
    with suppress(TokenphormerError, OSError):  # a cache that cannot be written costs time, nothing else
        graph.save(cached)
    return graph


def _cache_path(dataset: Dataset, files: list[RawFile], directed: bool) -> Path:
    key = " ".join([f"{FORMAT}.{BUILD}", "directed" if directed else "", *(file.sha256 for file in files)])
    return user_cache() / "graphs" / f"{dataset.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"


def _build(dataset: Dataset, raw: dict[str, RawFile], fixed: RawFile | None, directed: bool) -> Graph:
    with tempfile.TemporaryDirectory(prefix="tokenphormer-") as scratch:
        data = _read_with_pyg(dataset, raw, Path(scratch))
        splits = _mask_splits(data)
        if fixed is not None:
            path = Path(scratch) / "fixed_split.npz"
            path.write_bytes(fixed.content)
            arrays: dict[str, Any] = dict(load_arrays(path, required=("train", "valid", "test")))
            splits += (Split(arrays["train"], arrays["valid"], arrays["test"], name="fixed-0"),)
    graph = Graph.from_edges(
        data.edge_index.numpy(),
        num_nodes=len(data.y),
        x=_features(data.x),
        y=data.y.numpy(),
        directed=directed,
        name=dataset.name,
        splits=splits,
    )
    notes = tuple(file.note for file in (*raw.values(), fixed) if file is not None and file.note)
    return dataclasses.replace(graph, notes=graph.notes + notes)


def _read_with_pyg(dataset: Dataset, raw: dict[str, RawFile], scratch: Path) -> Any:
    """Run the PyG class on a copy of the raw files, since it writes its own files beside them."""
    folder = scratch / dataset.folder / "raw"
    folder.mkdir(parents=True)
    for name, file in raw.items():
        (folder / name).write_bytes(file.content)
    with quiet():
        pyg_datasets = import_module("torch_geometric.datasets")
        try:
            return getattr(pyg_datasets, dataset.pyg_class)(**dataset.pyg_arguments(scratch))[0]
        except Exception as error:  # whatever a reader does on files of another make
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"dataset '{dataset.name}': its raw files cannot be read ({reason})") from error


def _mask_splits(data: Any) -> tuple[Split, ...]:
    """The splits in PyG's masks: (n, 10) from geom-gcn, (n) the public one of Planetoid, or none."""
    if "train_mask" not in data:
        return ()
    train, val, test = (data[f"{part}_mask"].numpy() for part in ("train", "val", "test"))
    if train.ndim == 1:
        return (Split(np.flatnonzero(train), np.flatnonzero(val), np.flatnonzero(test), name="public"),)
    columns = zip(train.T, val.T, test.T, strict=True)
    return tuple(
        Split(np.flatnonzero(a), np.flatnonzero(b), np.flatnonzero(c), name=f"geom-gcn-{number}")
        for number, (a, b, c) in enumerate(columns)
    )


def _features(x: Any) -> Any:
    """Sparse where the density is low; what is sparse already stays so."""
    if str(x.layout) != "torch.strided":
        return x
    dense = x.numpy()
    return sp.csr_array(dense) if np.count_nonzero(dense) < SPARSE_BELOW * dense.size else dense
