"""A graph of a few dozen nodes in place of every dataset."""

from __future__ import annotations

import dataclasses

import pytest

from tests.tiny import tiny_graph
from tokenphormer.benchmark import grid, running, sgpm_study, variants
from tokenphormer.graph import Graph
from tokenphormer.graph.splits import Split, stratified_split


@pytest.fixture
def tiny_datasets(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Whatever a dataset is called, it is this graph; with ten fixed splits, so that every protocol can be had."""
    graph = tiny_graph()
    drawn = [stratified_split(graph.y, 1000 + number, train=0.48, val=0.32) for number in range(10)]
    fixed = tuple(Split(s.train, s.val, s.test, name=f"geom-gcn-{number}") for number, s in enumerate(drawn))
    graph = dataclasses.replace(graph, splits=fixed)
    for module in (grid, running, sgpm_study, variants):
        monkeypatch.setattr(module, "dataset", lambda name: graph)
    return graph
