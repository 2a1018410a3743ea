"""The studies by name: `tokenphormer study NAME` runs one."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tokenphormer.errors import InputError
from tokenphormer.studies import complexity, convergence, coverage, datasets, deviation, documents, hop_pair
from tokenphormer.studies.results import Findings


class Result(Protocol):
    """What every study returns."""

    @property
    def findings(self) -> Findings:
        """The figures that its page quotes."""


R = TypeVar("R", bound=Result)


@dataclass(frozen=True)
class Study:
    """A study: what it asks, and how it is run."""

    question: str
    run: Callable[[Path], Findings]
    """Runs it, writes tables and figures into a folder, and returns the figures that its page quotes."""


def _study(question: str, study: Callable[[], R], write: Callable[[R, Path], list[Path]]) -> Study:
    def run(folder: Path) -> Findings:
        result = study()
        write(result, folder)
        return result.findings

    return Study(question, run)


STUDIES: dict[str, Study] = {
    "convergence": _study("does a graph document come to dᵢ / 2|E|?", convergence.study, convergence.write),
    "documents": _study("does a graph document tell non-isomorphic graphs apart?", documents.study, documents.write),
    "hop-pair": _study(
        "which graphs do hop-tokens confuse and walk-tokens tell apart?", hop_pair.study, hop_pair.write
    ),
    "coverage": _study("how much of a neighbourhood do walks visit?", coverage.study, coverage.write),
    "deviation": _study(
        "how far are sampled information types from their probabilities?", deviation.study, deviation.write
    ),
    "complexity": _study(
        "how do time and memory grow with nodes, tokens and width?", complexity.study, complexity.write
    ),
    "datasets": _study("how large are the datasets, and what does the paper say?", datasets.study, datasets.write),
}


def find_study(name: str) -> Study:
    """A study by its name; an unknown one is an error that lists them."""
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, n=1)
        offer = f"; nearest: {near[0]}" if near else ""
        raise InputError(f"study: {name!r}; expected one of {', '.join(STUDIES)}{offer}")
    return STUDIES[name]
