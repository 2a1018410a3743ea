"""Occlusion: what a probability loses when something is removed from what the model reads.

- A token is removed by leaving it out of the sequence. Walks of one kind with the same steps are equal tokens, which
  stand in for each other: they are removed together, and each has an equal part of what that changes.
- A node is removed by taking its features for zero wherever the model reads them: in walk-tokens, in hop-tokens, and,
  for the explained node, in the self token and in W₁x_v. Shares are not renormalised: this is exactly the same model
  on the same graph with the features of one node blank, linear in what is pooled of them, and a walk that visits
  nothing else stays defined. Renormalised, it would ask another question: what if walks had never come there.
- A step is removed by ending every walk that takes it just before. Here the pool is renormalised, since that is what
  the model does with a walk that ends: the mean over the nodes it did visit. Hop-tokens stay as they are.
- Scores that a neighbour passes on are removed by not adding them; all others stay as they are.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.explain.neighbours import Ints
from tokenphormer.explain.reading import Mixture, Reading

Drops = NDArray[np.float64]
ROUNDING = 1e-6
"""What is left of a token's input when all of it was taken away, beside what it was, at most."""


def equal_tokens(reading: Reading) -> Ints:
    """(B, T) numbers that tokens of one node share if they are walks of one kind with the same steps."""
    first = len(reading.kinds) - reading.num_walks
    groups = np.tile(np.arange(len(reading.kinds)), (len(reading.nodes), 1))
    kind = np.unique(np.array(reading.kinds[first:], dtype=np.str_), return_inverse=True)[1]
    for row, walks in zip(groups, reading.walks, strict=True):
        if len(walks):
            _, same = np.unique(np.column_stack([kind, walks]), axis=0, return_inverse=True)
            row[first:] = first + same.ravel()
    return groups


def token_drops(reading: Reading) -> Drops:
    """(B, T, C) what each class loses with each token: equal tokens share what they lose together, self has 0."""
    groups = equal_tokens(reading)
    owners, members = [], []
    for b, row in enumerate(groups):
        present = np.unique(row[1:])
        owners.append(np.full(len(present), b))
        members.append(row == present[:, None])
    owner, member = np.concatenate(owners), np.concatenate(members)
    lost = reading.probabilities[owner] - reading.of_kept(owner, ~member)
    drops = np.zeros((*groups.shape, lost.shape[1]))
    for b, tokens, change in zip(owner, member, lost, strict=True):
        drops[b, tokens] = change / tokens.sum()
    return drops


def group_drops(reading: Reading, groups: NDArray[np.bool_]) -> Drops:
    """(G, C) what each class of a single node loses with each group of tokens, (G, T), removed together."""
    owner = np.zeros(len(groups), np.int64)
    return reading.probabilities - reading.of_kept(owner, ~groups)


def node_drops(reading: Reading, mixture: Mixture, rows: tuple[Tensor, Tensor], chosen: Ints) -> Drops:
    """(V, C) what each class of a single node loses without the features of `chosen` places of the mixture.

    `rows` are W₁x_u and W₂x_u, as it is pooled, of the mixture's nodes. Where rows are activated, something is pooled
    of a blank one too.
    """
    own, other = rows
    with torch.no_grad():
        other = other - reading.module.activate(torch.zeros_like(other[:1]))
    share = torch.tensor(mixture.pooled, device=other.device).t()  # (U, T)
    place = torch.tensor(chosen, device=other.device)
    explained = torch.tensor(mixture.nodes[chosen] == reading.nodes[0], device=other.device)
    holds_own = torch.tensor(mixture.holds_own, device=other.device)

    def build(numbers: Tensor) -> Tensor:
        u = place[numbers]
        lost = share[u][:, :, None] * other[u][:, None, :]  # (V, T, h)
        lost += holds_own[:, None] * (explained[numbers, None] * own[u])[:, None, :]
        return _left(reading, reading.inputs[0] - lost)

    return reading.probabilities - reading.of_variants(np.zeros(len(chosen), np.int64), build)


def _left(reading: Reading, inputs: Tensor) -> Tensor:
    """(V, T, h) the same inputs, but 0 where rounding alone has left something: a norm of tokens would enlarge it."""
    left = inputs.abs().amax(dim=2, keepdim=True) > ROUNDING * reading.inputs[0].abs().amax(dim=1, keepdim=True)
    return inputs * left


def score_drops(reading: Reading, added: Tensor) -> Drops:
    """(V, C) what each class of a single node loses without each of the scores, (V, C), that neighbours add to it."""
    final = reading.final_scores - added
    left: Drops = F.softmax(final / reading.temperature, dim=1).double().cpu().numpy()
    return reading.probabilities - left


def step_drops(reading: Reading, mixture: Mixture, other: Tensor, steps: Ints, directed: bool) -> Drops:
    """(V, C) what each class of a single node loses when walks end before each of the `steps`, (V, 2) node pairs.

    Undirected, a step counts in both directions. `other` is W₂x_u of the mixture's nodes.
    """
    first = len(reading.kinds) - reading.num_walks
    whole = mixture.matrix[first:]

    def build(numbers: Tensor) -> Tensor:
        ended = end_before(reading.walks[0], steps[numbers.cpu().numpy()], directed)
        change = torch.tensor(mixture.of_walks(ended) - whole, device=other.device)  # (V, m, U)
        inputs = reading.inputs[0].repeat(len(numbers), 1, 1)
        inputs[:, first:] += change @ other
        return _left(reading, inputs)

    return reading.probabilities - reading.of_variants(np.zeros(len(steps), np.int64), build)


def end_before(walks: Ints, steps: Ints, directed: bool) -> Ints:
    """(V, m, length + 1) the walks, ended before they take each of the `steps`, (V, 2), for the first time.

    >>> end_before(np.array([[0, 1, 2, 1]]), np.array([[0, 1], [2, 1]]), directed=True).tolist()
    [[[0, -1, -1, -1]], [[0, 1, 2, -1]]]
    """
    here, there = walks[None, :, :-1], walks[None, :, 1:]
    source, target = steps[:, 0, None, None], steps[:, 1, None, None]
    taken = (here == source) & (there == target)
    if not directed:
        taken |= (here == target) & (there == source)
    gone = np.logical_or.accumulate(taken, axis=2)  # (V, m, length)
    ended = np.repeat(walks[None], len(steps), axis=0)
    ended[:, :, 1:][gone] = -1
    return ended
