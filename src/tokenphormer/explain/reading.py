"""What the model reads for a node: the inputs of its tokens, and which nodes' features are mixed into them.

The input of token t is W₁x_v + b + W₂τ_t, and every τ_t is a sum of feature rows, τ_t = Σ_u M_tu x_u: for the self
token the node itself, for hop k a row of Âᵏ, for a walk the shares of the nodes it visits. So whatever is taken out
of a token is a change of the mixture M, and no features have to be read again. Without `include_own` the self token is
W₁x_v + b, with nothing mixed in, and all others W₂τ_t.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenphormer.explain.neighbours import Ints, SparseRow, score_share
from tokenphormer.model import Tokenphormer
from tokenphormer.tokens.source import TokenSettings
from tokenphormer.training.loop import check_finite, in_pieces
from tokenphormer.training.tokenphormer import TokenphormerMethod

PIECE = 1 << 23
"""Numbers in the token states of the sequences that are worked on at once."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Reading:
    """The token sequences of B nodes in one draw of walks."""

    module: Tokenphormer
    settings: TokenSettings
    nodes: Ints
    """(B) indices."""
    kinds: tuple[str, ...]
    """(T) the kind of each token; the self token stands first."""
    inputs: Tensor
    """(B, T, h) in float32."""
    walks: Ints
    """(B, m, length + 1) the walks of the last m tokens; −1 where one has ended."""
    score_share: Tensor
    """(B, 1) share of these scores in the node's final ones; 1 unless class scores are passed on to neighbours."""
    score_rest: Tensor
    """(B, C) what neighbours' scores add; they are held as they are."""
    temperature: float = 1.0
    """By which scores are divided before they become probabilities."""

    @property
    def num_walks(self) -> int:
        """m."""
        return int(self.walks.shape[1])

    @property
    def num_classes(self) -> int:
        """C."""
        last = self.module.head[-1]
        assert isinstance(last, nn.Linear)
        return last.out_features

    @property
    def alone(self) -> Reading:
        """The same without what neighbours' scores add."""
        one, zero = torch.ones_like(self.score_share), torch.zeros_like(self.score_rest)
        return dataclasses.replace(self, score_share=one, score_rest=zero)

    @property
    def pieces(self) -> int:
        """Sequences that are worked on at once."""
        _, T, h = self.inputs.shape
        return max(1, PIECE // (T * (h + T)))

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """(B, C) of all classes, nothing removed; an error where the graph's numbers are too large for the model."""
        found = self.of_variants(np.arange(len(self.nodes)), lambda rows: self.inputs[rows])
        check_finite(found, self.nodes)
        return found

    @cached_property
    def final_scores(self) -> Tensor:
        """(B, C) class scores, those of neighbours added."""
        with torch.no_grad():
            return self.score_share * self.module.encode(self.inputs)[0] + self.score_rest

    def of_variants(self, owner: Ints, build: Callable[[Tensor], Tensor]) -> NDArray[np.float64]:
        """(V, C) for changed sequences, all of one length, of the nodes at places `owner`, (V).

        `build` makes the inputs of some of them, (…, T, h), given their numbers.
        """
        if not len(owner):
            return np.zeros((0, self.num_classes))
        whose = torch.tensor(owner, device=self.inputs.device)

        def score(rows: Tensor) -> Tensor:
            own = self.module.encode(build(rows))[0]
            final = self.score_share[whose[rows]] * own + self.score_rest[whose[rows]]
            return F.softmax(final / self.temperature, dim=1)

        numbers = torch.arange(len(owner), device=self.inputs.device)
        result: NDArray[np.float64] = torch.cat(in_pieces(score, numbers, self.pieces)).double().cpu().numpy()
        return result

    def of_kept(self, owner: Ints, keep: NDArray[np.bool_]) -> NDArray[np.float64]:
        """(V, C) when variant i is the sequence of node `owner[i]` with the tokens of `keep[i]` only, (V, T).

        There are no positional encodings, so a token is removed by leaving it out of the sequence. Variants of one
        length are one batch. The self token always stays: the readout stands on it.
        """
        assert keep[:, 0].all(), "the self token cannot be left out"
        result = np.empty((len(keep), self.num_classes))
        length = keep.sum(axis=1)
        for size in np.unique(length):
            chosen = np.flatnonzero(length == size)
            place = torch.tensor(keep[chosen].nonzero()[1].reshape(len(chosen), size), device=self.inputs.device)
            whose = torch.tensor(owner[chosen], device=self.inputs.device)

            def build(rows: Tensor, whose: Tensor = whose, place: Tensor = place) -> Tensor:
                return self.inputs[whose[rows, None], place[rows]]

            result[chosen] = self.of_variants(owner[chosen], build)
        return result


def read(method: TokenphormerMethod, nodes: Ints, draw: int = 0, final_scores: Tensor | None = None) -> Reading:
    """What the model reads for some nodes, in the walks of one vote.

    `final_scores` are those of all nodes after they were passed on to neighbours, where the settings say so.
    In float32 whatever the precision of prediction: with three digits, as bfloat16 has, small changes drown.
    """
    source, module = method.source, method.module
    module.eval()
    source.begin_prediction(draw)
    where = torch.tensor(nodes, device=source.device)
    with torch.no_grad():
        inputs = module.embed(source.batch(where), torch.float32)
    settings = source.settings
    walks = np.zeros((len(nodes), 0, settings.walk_length + 1), np.int64)
    if settings.num_walks:
        walks = source.walks(where).cpu().numpy().astype(np.int64)
    share, rest = torch.ones(len(nodes), 1, device=where.device), torch.zeros(len(nodes), 1, device=where.device)
    if final_scores is not None:
        weights = method.score_weights.tolist()
        shares = [score_share(source.graph, int(v), weights) for v in nodes]
        share = torch.tensor(shares, dtype=torch.float32, device=where.device)[:, None]
        with torch.no_grad():
            rest = final_scores[where] - share * method.own_scores(where)
    kinds = tuple(source.token_kinds)
    return Reading(module, settings, nodes, kinds, inputs, walks, share, rest, method.temperature)


def all_final_scores(method: TokenphormerMethod, draw: int) -> Tensor | None:
    """(n, C) class scores passed on to neighbours, in the walks of one vote; None where they are not passed on."""
    if not method.passes_scores:
        return None
    method.module.eval()
    method.begin_prediction(draw)
    with torch.no_grad():
        return method.scores(torch.arange(method.source.graph.num_nodes, device=method.source.device))


def own_scores(method: TokenphormerMethod, nodes: Ints, draw: int) -> Tensor:
    """(V, C) what some nodes' own tokens say, in the walks of one vote."""
    method.module.eval()
    method.begin_prediction(draw)
    where = torch.tensor(nodes, device=method.source.device)
    return torch.cat(in_pieces(method.own_scores, where, method.source.graph.num_nodes))


def project_rows(method: TokenphormerMethod, nodes: Ints) -> tuple[Tensor, Tensor]:
    """(U, h) W₁x_u and W₂x_u, as it is pooled, of some nodes, in float32."""
    module = method.module.eval()
    batch = method.source.batch(torch.tensor(nodes, device=method.source.device))
    place = batch.tokens.column.view(*batch.shape, -1)[:, 0, 0]  # the self token begins with its node's row
    both = torch.cat([module.self_part.weight, module.token_part.weight]).t()
    with torch.no_grad():
        own, other = batch.rows.project(both)[place].chunk(2, dim=1)
        return own, module.activate(other)


def walk_shares(walks: Ints, settings: TokenSettings) -> tuple[Ints, Floats]:
    """(…, m, E) the nodes that walks pool, −1 for none, and the share of each in its token."""
    visited = walks if settings.include_start else walks[..., 1:]
    share = (visited >= 0).astype(np.float32)
    if settings.walk_pooling == "mean":
        share /= np.maximum(share.sum(axis=-1, keepdims=True), 1)
    return visited, share


@dataclass(frozen=True, eq=False)
class Mixture:
    """M of one node: which share each of some nodes has in each of its tokens."""

    nodes: Ints
    """(U) indices, ascending; all that the walks pool are among them."""
    matrix: Floats
    """(T, U) of the tokens as they are; the SGPM-token's row is empty, since no features are mixed into it."""
    settings: TokenSettings

    @property
    def holds_own(self) -> Floats:
        """(T) 1 for the tokens whose input has W₁x_v of the node itself."""
        held = np.full(len(self.matrix), self.settings.include_own, np.float32)
        held[0] = 1
        return held

    @property
    def pooled(self) -> Floats:
        """(T, U) the share of each W₂x_u in the input of each token; M itself, but for a self token without W₂x_v."""
        if self.settings.include_own:
            return self.matrix
        without = self.matrix.copy()
        without[0] = 0
        return without

    @classmethod
    def of(cls, reading: Reading, hops: Sequence[SparseRow], nodes: Ints) -> Mixture:
        """The mixture of a reading of one node; `hops` are the rows of Â … Âᴷ."""
        (node,), T = reading.nodes, len(reading.kinds)
        matrix = np.zeros((T, len(nodes)), np.float32)
        matrix[0, np.searchsorted(nodes, node)] = 1
        for k, (read_nodes, shares) in enumerate(hops, 1):
            _, ours, theirs = np.intersect1d(nodes, read_nodes, assume_unique=True, return_indices=True)
            matrix[reading.kinds.index(f"hop {k}"), ours] = shares[theirs]
        found = cls(nodes, matrix, reading.settings)
        matrix[T - reading.num_walks :] = found.of_walks(reading.walks)[0]
        return found

    def of_walks(self, walks: Ints) -> Floats:
        """(V, m, U) the rows of walk-tokens, for V versions of the walks, (V, m, length + 1)."""
        visited, share = walk_shares(walks, self.settings)
        rows = np.zeros((*walks.shape[:2], len(self.nodes)), np.float32)
        version, walk, _ = np.indices(visited.shape)
        np.add.at(rows, (version, walk, np.searchsorted(self.nodes, visited)), share)
        return rows
