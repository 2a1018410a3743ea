"""How faithful an explanation is: what happens to the prediction when what it names is removed, or alone is left.

Fidelity+ and fidelity− as in GraphFramEx (LoG 2022), https://arxiv.org/abs/2206.09677, of the model's own prediction;
deletion and insertion curves as in RISE (BMVC 2018), https://arxiv.org/abs/1806.07421. What is removed are units of any
kind: tokens here, edges of another model in benchmarks/bench_faithfulness.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokenphormer.explain.attention import attention_rollout, readout_attention
from tokenphormer.explain.explanation import MethodName
from tokenphormer.explain.occlusion import token_drops
from tokenphormer.explain.reading import Reading

SHARES = np.linspace(0, 1, 11)
"""Shares of the units at which the curves are taken."""
RANDOM_ORDERS = 10
"""Random orders whose curves are averaged."""

Floats = NDArray[np.float64]
Rule = MethodName | Literal["random"]


@dataclass(frozen=True, eq=False)
class Curves:
    """What became of one prediction; `SHARES` are the places of both curves."""

    deletion: Floats
    """Probability without the most important share of the units; the first is the full one."""
    insertion: Floats
    """Probability with only the most important share of the units; the last is the full one."""

    @classmethod
    def of(cls, probabilities: Floats) -> Curves:
        """Read the probabilities of the explained class for what `kept_units` keeps, averaged over orders if many."""
        deletion, insertion = probabilities.reshape(-1, 2, len(SHARES)).mean(axis=0)
        return cls(deletion, insertion)

    def fidelity_plus(self, share: float) -> float:
        """What is lost without the most important `share`: high if it was needed."""
        return float(self.deletion[0] - np.interp(share, SHARES, self.deletion))

    def fidelity_minus(self, share: float) -> float:
        """What is lost with only the most important `share`: low if it is enough."""
        return float(self.insertion[-1] - np.interp(share, SHARES, self.insertion))

    @property
    def deletion_area(self) -> float:
        """Area under the deletion curve: low if what matters goes first."""
        return float(np.trapezoid(self.deletion, SHARES))

    @property
    def insertion_area(self) -> float:
        """Area under the insertion curve: high if what matters comes first."""
        return float(np.trapezoid(self.insertion, SHARES))


def kept_units(scores: Floats) -> NDArray[np.bool_]:
    """(22, U) the units that stay when they are deleted, and when they are inserted, the highest scores first.

    >>> keep = kept_units(np.array([1.0, 3.0]))
    >>> found = Curves.of(keep @ np.array([0.1, 0.9]))
    >>> found.deletion.round(1).tolist()[::5], found.insertion.round(1).tolist()[::5]
    ([1.0, 0.1, 0.0], [0.0, 0.9, 1.0])
    """
    rank = np.empty(len(scores), np.int64)
    rank[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    counts = np.rint(SHARES * len(scores))[:, None]
    return np.concatenate([rank >= counts, rank < counts])


def kept_at_random(units: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(22 · orders, U) the same for random orders: what an explanation that knows nothing would keep."""
    return np.concatenate([kept_units(rng.random(units)) for _ in range(RANDOM_ORDERS)])


def score_tokens(reading: Reading, method: MethodName) -> Floats:
    """(B, T) the importance of each token for each node's predicted class; the self token has none."""
    if method == "occlusion":
        predicted = reading.probabilities.argmax(axis=1)
        return token_drops(reading)[np.arange(len(predicted)), :, predicted]
    return readout_attention(reading) if method == "attention" else attention_rollout(reading)


def token_curves(reading: Reading, rule: Rule, seed: int = 0) -> list[Curves]:
    """The curves of every node of a reading; units are its tokens but the self token."""
    count, units = len(reading.nodes), len(reading.kinds) - 1
    if rule == "random":
        rng = np.random.default_rng(seed)
        keep = np.stack([kept_at_random(units, rng) for _ in range(count)])
    else:
        keep = np.stack([kept_units(scores[1:]) for scores in score_tokens(reading, rule)])
    predicted = reading.probabilities.argmax(axis=1)
    variants = keep.shape[1]
    with_self = np.pad(keep.reshape(count * variants, units), ((0, 0), (1, 0)), constant_values=True)
    left = reading.of_kept(np.repeat(np.arange(count), variants), with_self)
    of_class = left[np.arange(len(left)), np.repeat(predicted, variants)].reshape(count, variants)
    return [Curves.of(values) for values in of_class]
