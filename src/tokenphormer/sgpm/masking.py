"""Masked-node modelling: which positions are to be guessed, and what stands there instead."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenphormer import distributed
from tokenphormer.sgpm.model import CLS, MASK, SEP, UNK
from tokenphormer.sgpm.settings import SGPMSettings

MASKED, REPLACED = 0.8, 0.1
"""Of the positions to guess; the rest stays as it is, so that the model cannot trust what it sees there."""


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Sentences of one length as the model reads them: CLS, N nodes, SEP."""

    words: Tensor
    """(B, N + 2) words: node numbers, or num_nodes + PAD … MASK."""
    nodes: Tensor
    """(B, N + 2) the node whose features and centrality are seen, −1 where none."""
    places: Tensor
    """(B, k) the positions to guess."""
    targets: Tensor
    """(B, k) the nodes that belong there."""

    def share(self) -> MaskedBatch:
        """The sentences that are this rank's, of several processes."""
        words, nodes, places, targets = map(distributed.share, (self.words, self.nodes, self.places, self.targets))
        return MaskedBatch(words, nodes, places, targets)


def plain_batch(sentences: Tensor, num_nodes: int, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(B, N + 2) words and nodes of sentences (B, N) with nothing hidden; nodes that are not `known` (n) are UNK."""
    B = len(sentences)
    edge = sentences.new_full((B, 1), num_nodes)
    words = sentences if known is None else torch.where(known[sentences] >= 0, known[sentences], num_nodes + UNK)
    none = sentences.new_full((B, 1), -1)
    return torch.cat([edge + CLS, words, edge + SEP], dim=1), torch.cat([none, sentences, none], dim=1)


def mask(sentences: Tensor, num_nodes: int, settings: SGPMSettings, chance: float) -> MaskedBatch:
    """Hide nodes of sentences (B, N); random numbers are torch's.

    Every sentence has the same number of nodes to guess, ⌊share · N + chance⌋ and at least one, so that all shapes are
    known beforehand; `chance` is a random number from 0 to 1 of the whole batch, so the share is right on average
    (of sentences long enough that it makes one node).
    """
    B, N = sentences.shape
    device = sentences.device
    k = min(N, max(1, math.floor(settings.mask_share * N + chance)))
    places = torch.rand(B, N, device=device).topk(k, dim=1).indices
    targets = sentences.gather(1, places)
    kind = torch.rand(B, k, device=device)
    other = torch.randint(num_nodes, (B, k), device=device)
    stays = torch.where(kind < MASKED + REPLACED, other, targets)
    hidden = kind < MASKED
    words, nodes = sentences.clone(), sentences.clone()
    if settings.unknown_share:
        unknown = torch.rand(B, N, device=device) < settings.unknown_share
        words = torch.where(unknown, num_nodes + UNK, words)
    words.scatter_(1, places, torch.where(hidden, num_nodes + MASK, stays))
    nodes.scatter_(1, places, torch.where(hidden, -1, stays))
    edge, none = sentences.new_full((B, 1), num_nodes), sentences.new_full((B, 1), -1)
    return MaskedBatch(
        torch.cat([edge + CLS, words, edge + SEP], dim=1), torch.cat([none, nodes, none], dim=1), places + 1, targets
    )
