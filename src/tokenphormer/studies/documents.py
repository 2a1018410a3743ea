"""Does a graph document tell non-isomorphic graphs apart, and leave isomorphic ones alone? (Lemma 2, appendix A.1.)

The paper's proof compares limiting laws dᵢ / 2|E|. Here that criterion stands beside stronger ones that the same
document offers: visit laws at every position, colour refinement (the yardstick of message passing), the patterns of
sentences, and the words themselves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from tokenphormer.graph import Graph
from tokenphormer.sgpm import GraphDocument
from tokenphormer.sgpm.settings import SGPMSettings
from tokenphormer.studies.census import connected_graphs, refined_colours
from tokenphormer.studies.documents_plot import plot
from tokenphormer.studies.documents_rows import CensusRow, Documents, LengthRow, PairRow, SampleRow
from tokenphormer.studies.laws import common_base
from tokenphormer.studies.patterns import compare_laws, document_signature, pattern_keys, pattern_laws
from tokenphormer.studies.results import write_results
from tokenphormer.studies.small_graphs import Pair, known_pairs
from tokenphormer.walks import Kind, sample_walks

SENTENCE_KINDS: tuple[Kind, ...] = ("uniform", "non_backtracking")
MAX_LENGTH = 8
CENSUS_NODES = (3, 4, 5, 6, 7)
CENSUS_LENGTHS = (2, 3, 4, 5, 6)
SENTENCES = (1, 10, 100, 1000)
SEEDS = 100


def study(
    pairs: Sequence[Pair] | None = None,
    nodes: Sequence[int] = CENSUS_NODES,
    max_length: int = MAX_LENGTH,
    seeds: int = SEEDS,
) -> Documents:
    """The study on some pairs (default: the well-known ones) and on all connected graphs of some sizes."""
    chosen = known_pairs() if pairs is None else list(pairs)
    rows, lengths, samples = [], [], []
    for pair in chosen:
        by_length = length_rows(pair, max_length)
        rows.append(pair_row(pair, by_length))
        lengths += by_length
        revealing = [row.length for row in by_length if row.kind == "non_backtracking" and reveals(row)]
        samples += sample_rows(pair, min(revealing), seeds) if revealing else []
    census = [row for n in nodes for row in census_rows(n)]
    return Documents(rows, lengths, samples, census)


def limit_signature(graph: Graph) -> Hashable:
    """The paper's criterion: the multiset of dᵢ / 2|E|."""
    return tuple(sorted(Fraction(d, graph.num_directed_edges) for d in graph.degree.tolist()))


def limit_set(graph: Graph) -> Hashable:
    """The same as the paper writes it, a set: values that occur twice count once."""
    return frozenset(Fraction(d, graph.num_directed_edges) for d in graph.degree.tolist())


def visit_signature(graph: Graph, length: int) -> Hashable:
    """Of every node, the chances that it is word 0 … `length` of a uniform sentence from a random node."""
    n = graph.num_nodes
    law = [Fraction(1, n)] * n
    profile: list[list[Fraction]] = [[value] for value in law]
    for _ in range(length):
        given = [value / int(degree) for value, degree in zip(law, graph.degree, strict=True)]
        law = [sum((given[u] for u in graph.neighbours(v).tolist()), Fraction(0)) for v in range(n)]
        for values, value in zip(profile, law, strict=True):
            values.append(value)
    return tuple(sorted(map(tuple, profile)))


def length_rows(pair: Pair, max_length: int) -> list[LengthRow]:
    """Compare the patterns of the two graphs' sentences at every length."""
    rows = []
    base = common_base([pair.a, pair.b])
    for kind in SENTENCE_KINDS:
        for length in range(1, max_length + 1):
            a, b = (pattern_laws(graph, kind, length, base) for graph in (pair.a, pair.b))
            tv, first, second = compare_laws(a, b, base**length)
            told = document_signature(a) != document_signature(b)
            assert told or tv == 0
            rows.append(LengthRow(pair.name, kind, length, told, tv, float(np.mean(first)), float(np.mean(second))))
    return rows


def reveals(row: LengthRow) -> bool:
    """Whether a sentence of one graph may have a pattern that the other cannot have."""
    return row.only_first > 0 or row.only_second > 0


def pair_row(pair: Pair, lengths: Sequence[LengthRow]) -> PairRow:
    """Apply every criterion to a pair."""
    first = {kind: [row.length for row in lengths if row.kind == kind and row.told] for kind in SENTENCE_KINDS}
    colours = refined_colours([pair.a, pair.b])
    steps = 2 * pair.a.num_nodes
    return PairRow(
        pair.name,
        pair.isomorphic,
        pair.a.num_nodes,
        limit_signature(pair.a) == limit_signature(pair.b),
        visit_signature(pair.a, steps) == visit_signature(pair.b, steps),
        colours[0] == colours[1],
        min(first["uniform"], default=None),
        min(first["non_backtracking"], default=None),
        max(rounds_to_rebuild(graph) for graph in (pair.a, pair.b)),
    )


def rounds_to_rebuild(graph: Graph, seed: int = 0, limit: int = 10_000) -> int:
    """How many sentences of every node it takes until consecutive words are all the edges."""
    document = GraphDocument(graph, SGPMSettings(seed=seed))
    seen: set[tuple[int, int]] = set()
    for number in range(limit):
        drawn = document.sentences(number, torch.device("cpu"))
        for walk, count in zip(drawn.walks.tolist(), drawn.counts.tolist(), strict=True):
            seen.update((min(edge), max(edge)) for edge in pairwise(walk[:count]))
        if len(seen) == graph.num_edges:
            return number + 1
    raise AssertionError(f"{limit} sentences a node did not hold every edge")


def sample_rows(pair: Pair, length: int, seeds: int, sentences: Sequence[int] = SENTENCES) -> list[SampleRow]:
    """Draw documents of non-backtracking sentences of one length and look for patterns the other cannot have."""
    base = common_base([pair.a, pair.b])
    laws = [pattern_laws(graph, "non_backtracking", length, base) for graph in (pair.a, pair.b)]
    _, *chances = compare_laws(laws[0], laws[1], base**length)
    known = [np.unique(np.concatenate([law.keys for law in side])) for side in laws]
    rows = []
    for count in sentences:
        revealing = np.zeros(seeds, dtype=bool)
        for graph, other in ((pair.a, known[1]), (pair.b, known[0])):
            walks = sample_walks(graph, "non_backtracking", count * seeds, length).numpy()
            strange = ~np.isin(pattern_keys(walks.reshape(-1, length + 1)), other)
            revealing |= strange.reshape(graph.num_nodes, seeds, count).any(axis=(0, 2))
        missed = math.prod((1 - p) ** count for side in chances for p in side)
        rows.append(SampleRow(pair.name, length, count, 1 - missed, float(revealing.mean())))
    return rows


def census_rows(nodes: int, lengths: Sequence[int] = CENSUS_LENGTHS) -> list[CensusRow]:
    """Every pair of connected graphs of so many nodes, by every criterion."""
    graphs = connected_graphs(nodes)
    pairs = math.comb(len(graphs), 2)

    def row(criterion: str, length: int | None, signatures: Sequence[Hashable]) -> CensusRow:
        confused = sum(math.comb(times, 2) for times in Counter(signatures).values())
        return CensusRow(nodes, len(graphs), pairs, criterion, length, confused, confused / pairs)

    simple: dict[str, Callable[[Graph], Hashable]] = {
        "limit as a set": limit_set,
        "limit": limit_signature,
        "visits": lambda graph: visit_signature(graph, 2 * nodes),
    }
    rows = [row(name, None, [signature(graph) for graph in graphs]) for name, signature in simple.items()]
    rows.append(row("colours", None, refined_colours(graphs)))
    base = common_base(graphs)
    for kind in SENTENCE_KINDS:
        for length in lengths:
            laws = [document_signature(pattern_laws(graph, kind, length, base)) for graph in graphs]
            rows.append(row(kind, length, laws))
    return rows


def write(result: Documents, folder: Path) -> list[Path]:
    """Write tables, findings and figures."""
    return write_results(
        folder,
        result.findings,
        plot(result),
        pairs=result.pairs,
        lengths=result.lengths,
        samples=result.samples,
        census=result.census,
    )
