"""SGPM, the Self-supervised Graph Pre-train Model: a bidirectional Transformer that guesses masked nodes of walks.

The paper's section "SGPM-token". The input of a position is the sum of four vectors: of the node, of the position,
of the node's features (projected), and of its centrality.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokenphormer.model import EncoderLayer, ModelSettings, dropout
from tokenphormer.sgpm.settings import SGPMSettings
from tokenphormer.tokens.operators import FeatureRows

SPECIAL = ("PAD", "UNK", "CLS", "SEP", "MASK")
"""Words of the vocabulary behind the nodes, in this order. Sentences of one length need no PAD; its place is kept."""
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))


class SGPM(nn.Module):
    """States of the positions of sentences, and scores of nodes at them."""

    def __init__(
        self, num_nodes: int, num_features: int, num_bins: int, max_nodes: int, settings: SGPMSettings
    ) -> None:
        super().__init__()
        h = settings.hidden_channels
        self.num_nodes, self.settings = num_nodes, settings
        self.table = nn.Parameter(torch.empty(num_nodes + len(SPECIAL), h))
        self.positions = nn.Parameter(torch.empty(max_nodes + 2, h)) if settings.use_positions else None
        self.features = nn.Linear(num_features, h, bias=False) if settings.use_features and num_features else None
        self.centrality = nn.Parameter(torch.empty(num_bins, h)) if settings.use_centrality else None
        self.input_norm = nn.LayerNorm(h)
        wide = settings.ffn_channels or 4 * h
        shape = ModelSettings(
            hidden_channels=h,
            num_layers=settings.num_layers,
            num_heads=settings.num_heads,
            ffn_channels=wide,
            dropout=settings.dropout,
            attention_dropout=settings.dropout,
        )
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(settings.num_layers))
        self.output_norm = nn.LayerNorm(h)
        self.transform = nn.Sequential(nn.Linear(h, h), nn.GELU(), nn.LayerNorm(h))
        self.output_bias = nn.Parameter(torch.zeros(num_nodes, 1))
        for weight in (self.table, self.positions, self.centrality):
            if weight is not None:
                nn.init.normal_(weight, std=0.02)  # BERT's

    def project(self, rows: FeatureRows, dtype: torch.dtype) -> Tensor | None:
        """(rows, h) features as the inputs have them; None where they have none."""
        return None if self.features is None else rows.project(self.features.weight.t().to(dtype))

    def forward(
        self,
        words: Tensor,
        nodes: Tensor,
        projected: Tensor | None,
        bins: Tensor,
        dtype: torch.dtype,
        table: Tensor | None = None,
    ) -> Tensor:
        """(B, N, h) states. `words` (B, N) are rows of the table, or of `table` where only some of it is in use.

        `nodes` (B, N) are rows of `projected` (R, h) and of `bins` (R), −1 where there is no node to be seen.
        """
        N = words.shape[1]
        shown = nodes >= 0
        word = F.embedding(words, self.table if table is None else table)
        if not self.settings.use_tokens:  # which of the special words stands there has to be known still
            word = word * ~shown[..., None]
        total = word.float()
        if self.positions is not None:
            total = total + self.positions[:N]
        if projected is not None:
            total = total + F.embedding(nodes.clamp(min=0), projected).float() * shown[..., None]
        if self.centrality is not None:
            total = total + F.embedding(bins[nodes.clamp(min=0)], self.centrality) * shown[..., None]
        H = self.input_norm(total).to(dtype)
        H = dropout(H, self.settings.dropout if self.training else 0.0)
        for layer in self.layers:
            H = layer(H)
        normed: Tensor = F.layer_norm(
            H, H.shape[-1:], self.output_norm.weight.to(dtype), self.output_norm.bias.to(dtype), self.output_norm.eps
        )
        return normed

    def guess(self, states: Tensor) -> Tensor:
        """(M, h) what is compared with the table's rows, from states of positions."""
        weight, norm = self.transform[0], self.transform[2]
        assert isinstance(weight, nn.Linear)
        assert isinstance(norm, nn.LayerNorm)
        dtype = states.dtype
        wide = F.gelu(F.linear(states, weight.weight.to(dtype), weight.bias.to(dtype)))
        return F.layer_norm(wide, norm.normalized_shape, norm.weight.to(dtype), norm.bias.to(dtype), norm.eps)
