"""Tokenphormer as a method that the training loop can train."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tokenphormer.errors import InputError
from tokenphormer.graph import Graph
from tokenphormer.hops import propagation_matrix
from tokenphormer.model import Tokenphormer, score_weights
from tokenphormer.tokens import TokenSource
from tokenphormer.tokens.operators import SparseOperator
from tokenphormer.training.loop import compute_dtype, even_split
from tokenphormer.training.settings import Config

CPU_BYTES = 256 << 20
"""Activations of a micro-batch on a CPU; more would only leave the caches."""
GPU_BYTES = 6 << 30
"""The most that training takes of a GPU, weights and features included; larger products are no faster."""


TEMPERATURE = "temperature"
"""Its name among the weights."""


MOST_NODES = 200_000
"""Graphs on disk of so many nodes are held in memory where all nodes are worked on at once; larger ones never are."""


def as_taken(graph: Graph, config: Config) -> Graph:
    """The graph as its settings take it: one on disk is held in memory if they take it whole and it is not large.

    Its features stay as they are, in half precision too, so that it is still known by its fingerprint.
    """
    small = graph.stored is not None and graph.num_nodes <= MOST_NODES
    return dataclasses.replace(graph, stored=None) if config.row_activation and small else graph


class TokenphormerMethod:
    """The model and the tokens of one graph, on one device."""

    def __init__(
        self,
        graph: Graph,
        config: Config,
        num_classes: int,
        device: torch.device,
        *,
        sgpm: NDArray[np.float32] | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> None:
        graph = as_taken(graph, config)
        self.source = TokenSource(
            graph, config, device, seed=config.seed, hidden_channels=config.hidden_channels, sgpm=sgpm
        )
        if config.row_activation and not self.source.whole:
            raise InputError(
                f"row_activation: '{graph.name}' ({graph.num_nodes:,} nodes) is too large to be projected whole, so "
                "its hops come from its features; set row_activation=false"
            )
        torch.manual_seed(config.seed)
        channels = self.source.num_features
        self.module = Tokenphormer(channels, num_classes, config, sgpm_channels=self.source.sgpm_channels).to(device)
        self.temperature = 1.0  # of predictions, not of training; fitted afterwards where the settings say so
        if weights is not None:
            self._load(weights)
        parameters = sum(p.numel() for p in self.module.parameters())
        # Weights, gradients and the optimiser's two moments; the projected rows of the graph and their gradients.
        projected = graph.num_nodes * config.hidden_channels * (2 + config.num_hops) if self.source.whole else 0
        fixed = 16 * parameters + 4 * projected
        reads = 0 if self.source.whole else row_bytes(config, channels)
        self.micro_batch = micro_batch(config, len(self.source.token_kinds), fixed, device, reads)
        self._encode: Callable[..., Any] = self.module.encode
        self._compiled = should_compile(config, device)
        if self._compiled:
            self._encode = torch.compile(self.module.encode)
        self.dtype = compute_dtype(device, config)
        self._consistency = config.consistency
        self._score_dropout = config.score_dropout
        self._score_weights = torch.tensor(score_weights(config), device=device)
        self._score_hop: SparseOperator | None = None
        if config.score_hops:
            matrix = propagation_matrix(graph, "symmetric")
            self._score_hop = SparseOperator.from_scipy(matrix, device, symmetric=not graph.directed)
            self._everyone = even_split(torch.arange(graph.num_nodes, device=device), self.micro_batch)
            self.micro_batch = graph.num_nodes  # a smaller one would only have all scores worked out more often

    def _load(self, weights: dict[str, Tensor]) -> None:
        expected = self.module.self_part.weight.shape[1]
        found = weights["self_part.weight"].shape[1] if "self_part.weight" in weights else "no"
        if found != expected:
            raise InputError(f"the model was trained on {found} features, this graph has {expected}")
        self.temperature = _temperature(weights)
        try:
            self.module.load_state_dict({name: tensor for name, tensor in weights.items() if name != TEMPERATURE})
        except RuntimeError as error:
            raise InputError(f"the weights do not fit the settings: {' '.join(str(error).split())}") from error

    @property
    def weights(self) -> dict[str, Tensor]:
        """All that was learned: the module's weights, and the temperature if there is one."""
        learned = dict(self.module.state_dict())
        if self.temperature != 1.0:
            learned[TEMPERATURE] = torch.tensor(self.temperature, dtype=torch.float64)
        return learned

    @property
    def scores_all(self) -> bool:
        """Whether every pass scores all nodes: where scores are passed on."""
        return self.passes_scores

    def shrink(self) -> int:
        """Score all nodes in pieces half as large; more pieces than one are worked out again in the backward pass."""
        size = max(map(len, self._everyone)) // 2
        if size:
            self._everyone = even_split(torch.cat(self._everyone), size)
        return size

    def begin_epoch(self, epoch: int) -> None:
        """New walks and signs where the settings say so."""
        self.source.begin_epoch(epoch)

    def begin_prediction(self, draw: int) -> None:
        """The walks of a vote."""
        self.source.begin_prediction(draw)

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores, passed on to neighbours if the settings say so."""
        return self.own_scores(nodes) if self._score_hop is None else self._passed_on(self._score_hop)[nodes]

    def own_scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores from the nodes' own tokens."""
        return self.scores_and_attention(nodes)[0]

    @property
    def passes_scores(self) -> bool:
        """Whether class scores are passed on to neighbours."""
        return self._score_hop is not None

    @property
    def score_weights(self) -> Tensor:
        """(K + 1) the weight of each step by which scores are passed on; a single 1 where they are not."""
        learned = self.module.score_weights
        return self._score_weights if learned is None else learned

    def _passed_on(self, hop: SparseOperator) -> Tensor:
        """(n, C) Σ γₖ Âᵏ S, with S the own scores of all nodes: APPNP's, or GPR-GNN's where γ is learned."""
        if len(self._everyone) == 1 or not torch.is_grad_enabled():
            own = torch.cat([self.own_scores(piece) for piece in self._everyone])
        else:  # each piece is worked out again in the backward pass, so that memory is that of one piece
            own = torch.cat([checkpoint(self.own_scores, piece, use_reentrant=False) for piece in self._everyone])
        gamma, step = self.score_weights, own
        drop = self._score_dropout if self.module.training else 0.0
        Z = gamma[0] * own
        for k in range(1, len(gamma)):
            step = (hop.dropout(drop) if drop else hop) @ step
            Z = Z + gamma[k] * step
        return Z

    def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
        """The cross-entropy of the scores, as the paper has it; and, if asked for, that of nodes with themselves."""
        if not self._consistency:
            return criterion(self.scores(nodes))
        if self._score_hop is None:  # as many nodes again, from the whole graph
            others = torch.randint(self.source.graph.num_nodes, (len(nodes),), device=nodes.device)
            drawn = [self.own_scores(torch.cat([nodes, others])) for _ in range(2)]
            known = [scores[: len(nodes)] for scores in drawn]
        else:
            drawn = [self._passed_on(self._score_hop) for _ in range(2)]
            known = [scores[nodes] for scores in drawn]
        supervised = (criterion(known[0]) + criterion(known[1])) / 2
        return supervised + self._consistency * len(nodes) * disagreement(drawn)

    def scores_and_attention(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C) class scores and (B, T − 1) readout weights."""
        tokens = self.module.embed(self.source.batch(nodes), self.dtype)
        if self._compiled and len(nodes) > 1:  # one compiled program for batches of any size
            torch._dynamo.mark_dynamic(tokens, 0)
        scores, weight = self._encode(tokens)
        return scores, weight


SHARPENING = 0.5
"""Temperature of the mean that two scorings of a node are drawn to, as in GRAND."""


def disagreement(drawn: list[Tensor]) -> Tensor:
    """How far scorings of the same nodes, each (B, C), are from their sharpened mean: GRAND's consistency loss."""
    chances = torch.stack([F.softmax(scores, dim=1) for scores in drawn])
    with torch.no_grad():
        target = chances.mean(dim=0) ** (1 / SHARPENING)
        target = target / target.sum(dim=1, keepdim=True)
    return (chances - target).square().sum(dim=2).mean()


def _temperature(weights: dict[str, Tensor]) -> float:
    found = weights.get(TEMPERATURE, torch.ones(()))
    value = float(found) if found.numel() == 1 else math.nan
    if not 0 < value < math.inf:
        raise InputError(f"the weights do not fit the settings: a temperature of {found.tolist()}")
    return value


def activation_bytes(config: Config, tokens: int, width: int) -> int:
    """About how much one node's tokens take in a training step, at `width` bytes a number."""
    h, wide = config.hidden_channels, config.ffn_channels or 2 * config.hidden_channels
    kept = config.num_layers * (tokens * (8 * h + 2 * wide) + 2 * config.num_heads * tokens * tokens)
    passing = 4 * tokens * h
    return width * (kept + passing)


def row_bytes(config: Config, features: int) -> int:
    """What the rows that one node's walks and hops read take at most, with all that is projected and stacked of them.

    Only where a graph is not projected whole.
    """
    h, visited = config.hidden_channels, 1 + config.num_walks * config.walk_length
    return visited * (4 * features + 12 * h) + config.num_hops * 4 * (features + 2 * h)


def micro_batch(config: Config, tokens: int, fixed: int, device: torch.device, reads: int = 0) -> int:
    """Nodes whose activations fit beside `fixed` bytes: a part of a GPU's free memory, a fixed amount on a CPU.

    On a GPU, `reads` bytes for the rows that each of them reads fit in too.
    """
    if device.type == "cpu":
        return max(1, CPU_BYTES // activation_bytes(config, tokens, 4))
    free, _ = torch.cuda.mem_get_info(device)
    narrow = config.precision != "float32"
    room = min(int(0.6 * free), GPU_BYTES) - fixed
    return max(64, room // (reads + activation_bytes(config, tokens, 2 if narrow else 4)))


def should_compile(config: Config, device: torch.device) -> bool:
    """`auto`: on a GPU, if the epochs allowed are many and large enough to win back a minute of compiling."""
    if config.compile != "auto":
        return config.compile == "yes"
    work = config.max_epochs * config.batch_size * (config.num_walks + 4) * config.hidden_channels**2
    return device.type == "cuda" and work > 1e15
