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
    n, counts = trainer.graph.num_nodes, _pair_counts(trainer)
    after, before = _most_frequent(counts), _most_frequent(sp.csr_array(counts.T))
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


def _pair_counts(trainer: Pretrainer) -> sp.csr_array:
    """(n, n) how often each word stood right before each other in the training sentences."""
    n = trainer.graph.num_nodes
    counts = sp.csr_array((n, n), dtype=np.int64)
    for number in trainer.document.training_numbers(1).tolist():
        drawn = trainer.document.sentences(number, trainer.device)
        walks, sizes = drawn.walks.cpu().numpy(), drawn.counts.cpu().numpy()
        inside = np.arange(1, walks.shape[1])[None] < sizes[:, None]
        pair = walks[:, :-1][inside], walks[:, 1:][inside]
        counts = counts + sp.csr_array((np.ones(len(pair[0]), np.int64), pair), shape=(n, n))
    return counts


def _most_frequent(counts: sp.csr_array) -> NDArray[np.int64]:
    """(n) the column with the highest count of each row, the lowest of equals; −1 if there is none."""
    sizes = np.diff(counts.indptr)
    row = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((counts.indices, -counts.data, row))
    best = np.full(len(sizes), -1, dtype=np.int64)
    best[sizes > 0] = counts.indices[order[counts.indptr[:-1][sizes > 0]]]
    return best
