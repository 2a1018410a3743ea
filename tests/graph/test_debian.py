"""The embedded graph `debian`, and the script that built it."""

from __future__ import annotations

import importlib.resources
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.sparse as sp

from tokenphormer.graph import Graph

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "build_debian_graph.py"
WORDS = ROOT / "docs" / "datasets" / "debian-words.txt"
CARD = ROOT / "docs" / "datasets" / "debian.md"
FINGERPRINT = "9eda07443d0bd6e4c4f08c86719bf925be255b0a79e62cb75104b59e3c9052c2"

DUMP = """\
Package: painter
Version: 1.0
Section: graphics
Depends: painter-data (= 1.0), libpaint2 (>= 2.0) | libpaint1, web-gallery:any [amd64]
Description: Painter for sétting 3D canvas tools and the graphics library
 A long text that is no feature: zeppelin.
Tag: role::program,
 use::editing

Package: painter-data
Section: non-free/graphics
Suggests: painter, painter-data
Description: canvas tools for painter
Depends: not-in-the-index

Package: web-gallery
Section: contrib/web
Pre-Depends: painter-data
Recommends: painter <!nocheck>
Description: canvas tools gallery2 python3 sites

Package: lonely
Section: games
Description: canvas tools of a package that nothing asks for

Package: pair-one
Section: games
Depends: pair-two
Description: canvas tools

Package: pair-two
Section: games
Description: canvas tools

Package: libpaint2
Section: libs
Depends: painter
Description: canvas tools

Package: painter
Section: mail
Description: a second entry of the same package
"""


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_debian_graph", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def graph_file() -> Path:
    return Path(str(importlib.resources.files("tokenphormer.graph") / "debian.npz"))


@pytest.fixture(scope="module")
def debian() -> Graph:
    return Graph.load(graph_file())


# -------------------------------------------------------------------- the frozen graph


def test_file_is_small_and_the_frozen_one(debian: Graph) -> None:
    assert graph_file().stat().st_size <= 1_000_000
    assert debian.fingerprint == FINGERPRINT
    assert (debian.name, debian.directed, debian.splits) == ("debian", False, ())
    assert debian.notes[0].startswith("Debian 12 (bookworm)")


def test_counts_are_those_of_the_card(debian: Graph) -> None:
    card = CARD.read_text(encoding="utf-8")
    assert (debian.num_nodes, debian.num_edges, debian.num_classes) == (7709, 15289, 12)
    assert f"| packages (nodes) | {debian.num_nodes:,} |" in card
    assert f"| edges | {debian.num_edges:,} |" in card
    assert f"| words (features) | {debian.num_features:,}, " in card
    assert debian.fingerprint in card
    for name, size in zip(debian.class_names, np.bincount(debian.y), strict=True):
        assert f"| {name} | {size:,} |" in card


def test_every_node_has_a_label_and_an_edge(debian: Graph) -> None:
    assert debian.y.min() >= 0
    assert np.bincount(debian.y).min() >= 200
    assert debian.degree.min() >= 1
    rows = np.repeat(np.arange(debian.num_nodes), debian.degree)
    assert not (rows == debian.indices).any()


def test_ids_are_sorted_package_names(debian: Graph) -> None:
    assert debian.node_ids is not None
    ids = debian.node_ids.tolist()
    assert ids == sorted(set(ids))
    assert debian.class_names[debian.y[debian.index_of("nethack-console")]] == "games"
    assert debian.index_of("postfix") in debian.neighbours(debian.index_of("postfix-mysql"))


def test_features_are_binary_and_few_rows_are_empty(debian: Graph) -> None:
    assert isinstance(debian.x, sp.csr_array)
    assert debian.x.dtype == np.float32
    assert set(debian.x.data.tolist()) == {1.0}
    assert debian.x.sum(axis=0).min() >= 5
    assert (np.diff(debian.x.indptr) == 0).mean() < 0.05


def test_no_word_gives_the_section_away(debian: Graph, builder: ModuleType) -> None:
    words = WORDS.read_text(encoding="utf-8").splitlines()
    assert words == sorted(set(words))
    assert len(words) == debian.num_features
    archive = ["python", "perl", "libs", "doc", "devel", "utils", "kernel", "fonts", "video", "gnu-r", "java"]
    aliases = ["mathematics", "network", "scientific", "audio", "email", "website", "game", "library", "xorg"]
    assert not set(words) & {*debian.class_names, *archive, *aliases}
    assert not set(words) & builder.revealing_words(archive)


def test_no_node_has_a_word_of_its_own_name(debian: Graph) -> None:
    words = WORDS.read_text(encoding="utf-8").splitlines()
    assert isinstance(debian.x, sp.csr_array)
    for node in range(debian.num_nodes):
        columns = debian.x.indices[debian.x.indptr[node] : debian.x.indptr[node + 1]]
        parts = set(debian.id_of(node).replace(".", "-").replace("+", "-").split("-"))
        assert parts.isdisjoint(words[column] for column in columns)


def test_structure_adds_at_least_ten_points(debian: Graph, builder: ModuleType) -> None:
    assert isinstance(debian.x, sp.csr_array)
    alone = builder.logistic_accuracy(debian, debian.x, 0, tol=1e-2)
    averaged = builder.logistic_accuracy(debian, builder.neighbour_averages(debian), 0, tol=1e-2)
    assert 55 < alone < averaged - 10


# -------------------------------------------------------------------- the builder


def test_dump_is_parsed(builder: ModuleType) -> None:
    packages = builder.parse_dump(DUMP)
    assert sorted(packages) == sorted(
        ["painter", "painter-data", "web-gallery", "lonely", "pair-one", "pair-two", "libpaint2"]
    )
    painter = packages["painter"]
    assert painter.section == "graphics"
    assert painter.related == {"painter-data", "libpaint2", "libpaint1", "web-gallery"}
    assert painter.summary == "Painter for sétting 3D canvas tools and the graphics library"
    assert packages["painter-data"].section == "graphics"
    assert packages["web-gallery"].related == {"painter-data", "painter"}


def test_words_leave_out_names_sections_and_stop_words(builder: ModuleType) -> None:
    packages = builder.parse_dump(DUMP)
    revealing = builder.revealing_words(["python", "gnu-r"])
    assert builder.words_of(packages["painter"], revealing) == {"setting", "3d", "canvas", "tools"}
    assert builder.words_of(packages["web-gallery"], revealing) == {"canvas", "tools", "sites"}


def test_tiny_graph_is_built(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MIN_PACKAGES", 2)
    graph, vocabulary = builder.build(builder.parse_dump(DUMP))
    assert graph.node_ids.tolist() == ["painter", "painter-data", "web-gallery"]
    assert [graph.class_names[c] for c in graph.y] == ["graphics", "graphics", "web"]
    assert [graph.neighbours(v).tolist() for v in range(3)] == [[1, 2], [0, 2], [0, 1]]
    assert vocabulary == ["canvas", "tools"]
    assert graph.x.toarray().tolist() == [[1, 1], [1, 1], [1, 1]]


def test_order_of_the_dump_does_not_matter(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MIN_PACKAGES", 1)
    entries = DUMP.strip().split("\n\n")[:-1]
    first, _ = builder.build(builder.parse_dump("\n\n".join(entries)))
    second, _ = builder.build(builder.parse_dump("\n\n".join(reversed(entries))))
    assert first.fingerprint == second.fingerprint


def test_vocabulary_keeps_the_most_frequent_words(builder: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MIN_PACKAGES", 1)
    monkeypatch.setattr(builder, "MAX_WORDS", 3)
    _, vocabulary = builder.build(builder.parse_dump(DUMP))
    assert vocabulary == ["3d", "canvas", "tools"]


def test_command_writes_once_and_equal_bytes(
    builder: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builder, "MIN_PACKAGES", 2)
    dump, out, again = tmp_path / "dump", tmp_path / "a.npz", tmp_path / "b.npz"
    dump.write_text(DUMP, encoding="utf-8")
    words = tmp_path / "words.txt"
    assert builder.main(["--out", str(out), "--dump", str(dump), "--words", str(words)]) == 0
    assert builder.main(["--out", str(again), "--dump", str(dump)]) == 0
    assert out.read_bytes() == again.read_bytes()
    assert words.read_text(encoding="utf-8") == "canvas\ntools\n"
    assert Graph.load(out).num_features == 2
    assert builder.main(["--out", str(out), "--dump", str(dump)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_bytes() == again.read_bytes()


def test_bad_dumps_are_refused(builder: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "a.npz")
    empty = tmp_path / "empty"
    empty.write_text("nothing here\n", encoding="utf-8")
    assert builder.main(["--out", out, "--dump", str(empty)]) == 2
    assert "Package:" in capsys.readouterr().err
    assert builder.main(["--out", out, "--dump", str(tmp_path / "absent")]) == 2
    assert "absent" in capsys.readouterr().err
    loose = tmp_path / "loose"
    loose.write_text("Package: a\nSection: games\nDescription: b\n", encoding="utf-8")
    assert builder.main(["--out", out, "--dump", str(loose)]) == 2
    assert "linked packages" in capsys.readouterr().err
