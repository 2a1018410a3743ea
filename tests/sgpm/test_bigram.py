"""The yardstick of a neighbouring word, against dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
import torch

from tests.sgpm.graphs import cycle, pieces, quick
from tests.tiny import CPU, tiny_graph
from tests.walks.graphs import directed_with_sinks
from tokenphormer.graph import Graph
from tokenphormer.sgpm import Pretrainer
from tokenphormer.sgpm.bigram import bigram_accuracy
from tokenphormer.sgpm.model import UNK


def slow_bigram(trainer: Pretrainer) -> float:
    after: dict[int, Counter[int]] = defaultdict(Counter)
    before: dict[int, Counter[int]] = defaultdict(Counter)
    for number in trainer.document.training_numbers(1).tolist():
        drawn = trainer.document.sentences(number, CPU)
        for walk, count in zip(drawn.walks.tolist(), drawn.counts.tolist(), strict=True):
            for here, there in pairwise(walk[:count]):
                after[here][there] += 1
                before[there][here] += 1

    def most(counts: Counter[int]) -> int:
        return min(counts, key=lambda node: (-counts[node], node)) if counts else -1

    n, right, total = trainer.graph.num_nodes, 0, 0
    for batch in trainer.validation_batches():
        truth = batch.words.scatter(1, batch.places, batch.targets).tolist()
        for sentence, places, targets in zip(truth, batch.places.tolist(), batch.targets.tolist(), strict=True):
            for place, target in zip(places, targets, strict=True):
                left, follow = sentence[place - 1], sentence[place + 1]
                guess = most(after[left]) if left < n else most(before[follow]) if follow < n else -1
                right += guess == target
                total += 1
    return right / total


@pytest.mark.parametrize("graph", [tiny_graph(), pieces(), cycle(), directed_with_sinks()], ids=lambda g: g.name)
def test_against_dictionaries(graph: Graph) -> None:
    trainer = Pretrainer(graph, quick(mean_length=5.0, mask_share=0.3, unknown_share=0.1), CPU)
    assert any((batch.words == graph.num_nodes + UNK).any() for batch in trainer.validation_batches())
    found = bigram_accuracy(trainer)
    assert 0 < found < 1
    assert found == pytest.approx(slow_bigram(trainer))


def test_on_a_path_of_two_it_knows_everything() -> None:
    trainer = Pretrainer(Graph.from_edges([[0], [1]]), quick(unknown_share=0.0), CPU)
    assert bigram_accuracy(trainer) == 1.0


def test_it_disturbs_nothing() -> None:
    trainer = Pretrainer(tiny_graph(), quick(), CPU)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    bigram_accuracy(trainer)
    assert torch.equal(torch.rand(3), expected)
