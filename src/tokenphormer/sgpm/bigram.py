"""What a predictor that knows only the neighbouring word would get right: the yardstick for masked-node modelling."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from tokenphormer.sgpm.pretraining import Pretrainer


def bigram_accuracy(trainer: Pretrainer) -> float:
    """Share of the validation's masked nodes that follow most often, in the training sentences, on the node before.

    At the head of a sentence it goes by the node behind. It is told those neighbours even where they are masked, so
    it is rather too good.
    """
    n = trainer.graph.num_nodes
    after, before = _most_frequent(trainer), None
    before = after if not trainer.graph.directed else _most_frequent(trainer, backwards=True)
    right = total = 0
    for batch in trainer.validation_batches():
        truth = batch.words.clone()
        truth.scatter_(1, batch.places, batch.targets)
        words = truth.cpu().numpy()
        places, targets = batch.places.cpu().numpy(), batch.targets.cpu().numpy()
        left = np.take_along_axis(words, places - 1, axis=1)
        follow = np.take_along_axis(words, places + 1, axis=1)
        lonely = (left >= n) & (follow >= n)
        guess = np.where(left < n, after[np.minimum(left, n - 1)], before[np.minimum(follow, n - 1)])
        right += int(((guess == targets) & ~lonely).sum())
        total += targets.size
    return right / total


def _most_frequent(trainer: Pretrainer, backwards: bool = False) -> NDArray[np.int64]:
    """(n) the word seen most often after each (before, backwards), the lowest of equals; −1 if there was none."""
    n = trainer.graph.num_nodes
    counts = sp.csr_array((n, n), dtype=np.int64)
    for number in trainer.document.training_numbers(1).tolist():
        drawn = trainer.document.sentences(number, trainer.device)
        walks, sizes = drawn.walks.cpu().numpy(), drawn.counts.cpu().numpy()
        inside = np.arange(1, walks.shape[1])[None] < sizes[:, None]
        pair = walks[:, :-1][inside], walks[:, 1:][inside]
        source, target = pair[::-1] if backwards else pair
        counts = counts + sp.csr_array((np.ones(len(source), np.int64), (source, target)), shape=(n, n))
    counts.sort_indices()
    best = np.full(n, -1, dtype=np.int64)
    sizes = np.diff(counts.indptr)
    row = np.repeat(np.arange(n), sizes)
    order = np.lexsort((counts.indices, -counts.data, row))
    first = counts.indptr[:-1][sizes > 0]
    best[sizes > 0] = counts.indices[order[first]]
    return best
