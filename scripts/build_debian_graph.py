"""Build the graph `debian`: packages of a Debian release, linked where one asks for the other.

    python scripts/build_debian_graph.py --out src/tokenphormer/graph/debian.npz \
        --words docs/datasets/debian-words.txt [--dump FILE] [--snapshot TEXT]
    python scripts/build_debian_graph.py --report src/tokenphormer/graph/debian.npz

Without `--dump`, the package index is what `apt-cache dumpavail` prints; run `apt-get update` before.
The same dump gives the same file, byte for byte. `docs/datasets/debian.md` is the dataset's card.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tokenphormer.errors import InputError, TokenphormerError
from tokenphormer.files import atomic_path
from tokenphormer.graph import Graph, make_split

RELATIONS = ("Depends", "Pre-Depends", "Recommends", "Suggests")
MIN_COMPONENT = 3
MIN_PACKAGES = 5
MAX_WORDS = 3000
SEEDS = (0, 1, 2)

# The sections of more than 300 packages in bookworm that name a subject. Left out are programming languages
# and kinds of file (libs, doc, fonts ...), which a package's name decides, and desktops and catch-alls
# (gnome, utils, misc ...), which are no subject. With each section come the words that give it away: those of
# its title on Debian's package pages (x11 is "X Window System software") and their forms.
SECTIONS: dict[str, str] = {
    "admin": "administration administrative administrator administrators admins utilities utility",
    "editors": "editor edit edits editing",
    "games": "game gaming gameplay",
    "graphics": "graphic graphical",
    "mail": "mails mailer mailers mailing email emails",
    "math": "maths mathematics mathematical",
    "net": "network networks networked networking",
    "science": "sciences scientific scientist scientists",
    "sound": "sounds audio",
    "text": "texts textual processing",
    "web": "www website websites",
    "x11": "xorg window windows windowing system software",
}

# Direct aliases of the other sections' names: no classes here, but one rule for all names is plainer.
OTHER_ALIASES = (
    "lib library libraries documentation docs development header headers util crate crates node nodejs js "
    "font module modules cran go db databases debugging localisation latex interpreter shell electronic"
)
STOP_WORDS = (
    "an and are as at be by for from has in into is it its of on or other that the their this to using via "
    "which with your"
)


class Package(NamedTuple):
    """What the graph needs of one entry of the package index."""

    name: str
    section: str
    summary: str
    related: frozenset[str]


def read_dump(dump: Path | None) -> bytes:
    """The package index: a file, or what `apt-cache dumpavail` prints now."""
    if dump is None:
        try:
            return subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise InputError(
                f"apt-cache dumpavail: {error}; run this on a Debian system after `apt-get update`, "
                f"or give a saved index with --dump"
            ) from error
    try:
        return dump.read_bytes()
    except OSError as error:
        raise InputError(f"--dump {dump}: {error.strerror}") from error


def parse_dump(text: str) -> dict[str, Package]:
    """The packages of an index by name; of several entries of one package the first counts."""
    packages: dict[str, Package] = {}
    for entry in re.split(r"\n\s*\n", text):
        # Of a field that goes on over several lines only the first line is wanted: the relations are one
        # line each, and the short description is the first line of `Description`.
        lines = (line.partition(":") for line in entry.splitlines() if line[:1].strip())
        fields = {name: value.strip() for name, _, value in lines}
        name = fields.get("Package")
        if name and name not in packages:
            section = fields.get("Section", "").rpartition("/")[2]
            packages[name] = Package(name, section, fields.get("Description", ""), parse_relations(fields))
    if not packages:
        raise InputError("the index holds no line 'Package: …'; expected what `apt-cache dumpavail` prints")
    return packages


def parse_relations(fields: Mapping[str, str]) -> frozenset[str]:
    """Names in the relation fields, alternatives included, without versions and architectures.

    >>> sorted(parse_relations({"Depends": "vim (>= 2:9.0) | nvi, perl:any", "Suggests": "aspell"}))
    ['aspell', 'nvi', 'perl', 'vim']
    """
    parts = (part for relation in RELATIONS for part in re.split(r"[,|]", fields.get(relation, "")))
    names = (re.split(r"[\s:(\[<]", part.strip(), maxsplit=1)[0] for part in parts)
    return frozenset(name for name in names if name)


def revealing_words(archive_sections: Iterable[str]) -> frozenset[str]:
    """Section names (of the whole archive, and their parts) with their aliases: never features."""
    names = {part for section in archive_sections for part in (section, *section.split("-"))}
    return frozenset(names).union(OTHER_ALIASES.split(), SECTIONS, " ".join(SECTIONS.values()).split())


def words_of(package: Package, revealing: frozenset[str]) -> frozenset[str]:
    """Words of the short description that may be features: lower case, at least two letters or digits.

    Stop words, revealing words and the package's own name and its parts are left out, also where digits are
    added to them (python3, gimp2).
    """
    plain = unicodedata.normalize("NFKD", package.summary).encode("ascii", "ignore").decode().lower()
    own = {package.name, *re.split(r"[-.+]", package.name), *re.split(r"[-.+\d]+", package.name)}
    banned = revealing.union(own, STOP_WORDS.split())
    found = set(re.findall(r"[a-z0-9]{2,}", plain))
    return frozenset(w for w in found if not w.isdigit() and banned.isdisjoint((w, w.strip("0123456789"))))


def build(packages: Mapping[str, Package]) -> tuple[Graph, list[str]]:
    """The graph of the chosen sections, and the word of every feature column."""
    chosen = sorted(name for name, package in packages.items() if package.section in SECTIONS)
    chosen = _in_components(chosen, _edges(chosen, packages))
    if not chosen:
        wanted = ", ".join(SECTIONS)
        raise InputError(f"the index holds no {MIN_COMPONENT} linked packages of the sections {wanted}")
    revealing = revealing_words(package.section for package in packages.values())
    words = [words_of(packages[name], revealing) for name in chosen]
    counts = Counter(word for row in words for word in row)
    frequent = sorted((w for w in counts if counts[w] >= MIN_PACKAGES), key=lambda w: (-counts[w], w))
    vocabulary = sorted(frequent[:MAX_WORDS])
    classes = sorted(SECTIONS)
    graph = Graph.from_edges(
        _edges(chosen, packages),
        num_nodes=len(chosen),
        x=_features(words, vocabulary),
        y=[classes.index(packages[name].section) for name in chosen],
        node_ids=chosen,
        class_names=tuple(classes),
        name="debian",
    )
    return graph, vocabulary


def _edges(names: Sequence[str], packages: Mapping[str, Package]) -> NDArray[np.int64]:
    """(2, E) sorted pairs of positions in `names`, each linked pair once."""
    position = {name: index for index, name in enumerate(names)}
    pairs = {
        (min(position[name], position[other]), max(position[name], position[other]))
        for name in names
        for other in packages[name].related
        if other in position and other != name
    }
    return np.asarray(sorted(pairs), dtype=np.int64).reshape(-1, 2).T


def _in_components(names: Sequence[str], edges: NDArray[np.int64]) -> list[str]:
    """The names in components of at least `MIN_COMPONENT` packages."""
    _, component = sp.csgraph.connected_components(_adjacency(edges, len(names)), directed=False)
    large = np.bincount(component, minlength=1) >= MIN_COMPONENT
    return [name for name, number in zip(names, component, strict=True) if large[number]]


def _adjacency(edges: NDArray[np.int64], num_nodes: int) -> sp.csr_array:
    return sp.csr_array((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(num_nodes, num_nodes))


def _features(words: Sequence[frozenset[str]], vocabulary: Sequence[str]) -> sp.csr_array:
    column = {word: index for index, word in enumerate(vocabulary)}
    rows = [sorted(column[word] for word in row if word in column) for row in words]
    indptr = np.cumsum([0, *map(len, rows)])
    indices = np.asarray([index for row in rows for index in row], dtype=np.int32)
    return sp.csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(words), len(vocabulary)))


def _sparse(graph: Graph) -> sp.csr_array:
    if not isinstance(graph.x, sp.csr_array):
        raise InputError(f"graph '{graph.name}': expected sparse features, as this script writes them")
    return graph.x


def neighbour_averages(graph: Graph) -> sp.csr_array:
    """[X, ÂX, Â²X] with Â the row-normalised adjacency: a node's words, its neighbours', theirs."""
    x = _sparse(graph)
    ones = np.ones(graph.num_directed_edges, dtype=np.float32)
    adjacency = sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.num_nodes, graph.num_nodes))
    average = sp.diags_array((1 / np.maximum(graph.degree, 1)).astype(np.float32)) @ adjacency
    one_hop = average @ x
    return sp.csr_array(sp.hstack([x, one_hop, average @ one_hop]))


def logistic_accuracy(graph: Graph, features: sp.csr_array, seed: int, tol: float = 1e-4) -> float:
    """Test accuracy in per cent of scikit-learn's logistic regression (C = 1) on a stratified split."""
    from sklearn.linear_model import LogisticRegression

    split = make_split(graph, "stratified", seed)
    model = LogisticRegression(C=1.0, tol=tol, max_iter=2000)
    model.fit(features[split.train], graph.y[split.train])
    return 100 * float(model.score(features[split.test], graph.y[split.test]))


def report(path: Path) -> str:
    """The numbers of the dataset card, from the graph file alone."""
    graph = Graph.load(path)
    x = _sparse(graph)
    sources = np.repeat(np.arange(graph.num_nodes), graph.degree)
    edges = np.stack([sources, graph.indices.astype(np.int64)])
    _, component = sp.csgraph.connected_components(_adjacency(edges, graph.num_nodes), directed=False)
    components = np.bincount(component)
    sizes = np.bincount(graph.y, minlength=graph.num_classes)
    hubs = np.argsort(-graph.degree, kind="stable")[:5]
    words_a_node = np.diff(x.indptr)
    lines = [
        f"file                 {path.stat().st_size:,} bytes",
        f"fingerprint          {graph.fingerprint}",
        f"nodes                {graph.num_nodes:,}",
        f"edges                {graph.num_edges:,}",
        f"mean degree          {graph.degree.mean():.2f}, median {np.median(graph.degree):.0f}",
        f"highest degrees      {', '.join(f'{graph.id_of(int(v))} {graph.degree[v]}' for v in hubs)}",
        f"isolated nodes       {int((graph.degree == 0).sum())}",
        f"components           {len(components)}, the largest of {components.max():,} nodes",
        f"features             {graph.num_features:,} words, {words_a_node.mean():.2f} a node",
        f"nodes without words  {int((words_a_node == 0).sum())}",
        f"edge homophily       {(graph.y[sources] == graph.y[graph.indices]).mean():.3f}",
        f"classes              {graph.num_classes}",
        *(f"  {name:<18} {size:,}" for name, size in zip(graph.class_names, sizes, strict=True)),
        f"largest class        {100 * sizes.max() / graph.num_nodes:.1f} %",
    ]
    for name, features in (("words alone", x), ("[X, ÂX, Â²X]", neighbour_averages(graph))):
        scores = [logistic_accuracy(graph, features, seed) for seed in SEEDS]
        lines.append(f"{name:<20} {np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f} %")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and write, or report; the exit code."""
    parser = argparse.ArgumentParser(description="Build the graph of Debian packages, or report on it.")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="write the graph to this .npz")
    task.add_argument("--report", type=Path, metavar="NPZ", help="print the card's numbers of a built graph")
    parser.add_argument("--dump", type=Path, help="a saved `apt-cache dumpavail` instead of running it")
    parser.add_argument("--words", type=Path, help="write the vocabulary here, a word a line in column order")
    parser.add_argument("--snapshot", help="archive and date of the index, for the graph's notes")
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    options = parser.parse_args(arguments)
    try:
        if options.report:
            print(report(options.report))
            return 0
        for path in (options.out, options.words):
            if path is not None and path.exists() and not options.force:
                raise InputError(f"{path}: exists already; give another name, or --force to replace it")
        dump = read_dump(options.dump)
        graph, vocabulary = build(parse_dump(dump.decode("utf-8", "replace")))
        source = f"apt-cache dumpavail, SHA-256 {hashlib.sha256(dump).hexdigest()}"
        notes = [options.snapshot] if options.snapshot else []
        graph = dataclasses.replace(graph, notes=(*notes, source, *graph.notes))
        graph.save(options.out)
        if options.words:
            with atomic_path(options.words) as temporary:
                temporary.write_text("".join(f"{word}\n" for word in vocabulary), encoding="utf-8")
        print(f"{options.out}: {graph}, fingerprint {graph.fingerprint}")
    except TokenphormerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
