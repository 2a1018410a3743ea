"""GRAND+: Scalable Graph Random Neural Networks (WWW 2022), https://arxiv.org/abs/2203.06389."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenphormer.baselines.base import Baseline, Task, at_least, check_choice, shares
from tokenphormer.graph import Graph
from tokenphormer.hashing import hash_order, mix64
from tokenphormer.hops import propagation_matrix
from tokenphormer.model import dropout
from tokenphormer.threads import launch

PROPAGATIONS = ("ppr", "average", "single")
BLOCK = 32
"""Rows that a thread pushes before it looks for more."""
POOL_KEY = 0x9BD1F2A64C3E5087
"""Sets the choice of the pool apart from that of the split, which is by the hash of the same seed."""


@dataclass(frozen=True)
class GRANDPlusSettings:
    """Defaults are those published for Cora, but for `r_max` (there 1e-7) and the warm-up, which counts epochs."""

    propagation: str = "ppr"
    """Π = Σ w_n Pⁿ: `ppr` w_n ∝ α (1 − α)ⁿ, `average` all alike, `single` the last alone."""
    order: int = 20
    """N: the highest power."""
    alpha: float = 0.2
    top_k: int = 32
    """Entries kept of a row of Π."""
    r_max: float = 1e-5
    """A residue is pushed on if it is larger than this times the node's degree; 1e-5 is published for Pubmed."""
    num_views: int = 2
    """S: random propagations of a node in a training step."""
    dropnode: float = 0.5
    """Share of a row's entries that a random propagation leaves out."""
    unlabelled_pool: int = 10_000
    """Unlabelled nodes at most whose consistency is trained."""
    unlabelled_batch: int = 100
    """Of these, so many in a step."""
    consistency: float = 1.5
    """λ: the weight of their loss after the warm-up."""
    warmup_epochs: int = 100
    temperature: float = 0.1
    """T: of the sharpened mean of a node's views."""
    hidden_channels: int = 64
    num_layers: int = 2
    batch_norm: bool = False
    input_dropout: float = 0.5
    dropout: float = 0.7

    def __post_init__(self) -> None:
        check_choice("propagation", self.propagation, PROPAGATIONS)
        at_least(1, top_k=self.top_k, num_views=self.num_views, unlabelled_batch=self.unlabelled_batch)
        at_least(1, hidden_channels=self.hidden_channels, num_layers=self.num_layers, warmup_epochs=self.warmup_epochs)
        at_least(0, order=self.order, r_max=self.r_max, consistency=self.consistency)
        at_least(0, unlabelled_pool=self.unlabelled_pool)
        at_least(0.01, temperature=self.temperature)
        shares(alpha=self.alpha, dropnode=self.dropnode, input_dropout=self.input_dropout, dropout=self.dropout)


def step_weights(settings: GRANDPlusSettings) -> NDArray[np.float64]:
    """(N + 1) w_0 … w_N; they sum to 1."""
    steps = np.arange(settings.order + 1)
    kinds = {"ppr": (1 - settings.alpha) ** steps, "average": np.ones(len(steps)), "single": steps == settings.order}
    weights = kinds[settings.propagation]
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def unlabelled_pool(num_nodes: int, train_nodes: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """At most `count` nodes that are not for training, drawn alike from all of these.

    Not the first by the hash of the seed: the stratified split of that seed deals nodes out in this very order,
    validation before test. Where all are taken, they stand in it.
    """
    others = np.setdiff1d(np.arange(num_nodes), train_nodes)
    return hash_order(hash_order(others, mix64(seed ^ POOL_KEY))[:count], seed)


def transition_matrix(graph: Graph) -> sp.csr_array:
    """(n, n) P = D̃^-1 (A + I)."""
    with_self = sp.csr_array(propagation_matrix(graph, "none") + sp.eye_array(graph.num_nodes, dtype=np.float32))
    P = sp.csr_array(sp.diags_array(1 / np.asarray(with_self.sum(axis=1)).ravel()) @ with_self)
    P.sort_indices()
    return P


@njit(cache=True, parallel=True, nogil=True)
def generalized_forward_push(
    indptr: Any, indices: Any, data: Any, sources: Any, weights: Any, r_max: Any, out_nodes: Any, out_values: Any
) -> None:
    """Fill `out_nodes`, `out_values` (sources, top_k) with the largest entries of the sources' rows of Σ w_n Pⁿ.

    GFPush, the paper's algorithm 2: rⁿ is pushed one step on, to rⁿ⁺¹, but only from nodes where it is more than
    `r_max` times their degree, so that the work for a row does not grow with the graph.
    """
    n, top_k = len(indptr) - 1, out_nodes.shape[1]
    for block in prange((len(sources) + BLOCK - 1) // BLOCK):
        now, following, total = np.zeros(n), np.zeros(n), np.zeros(n)
        here, there, touched = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
        for row in range(block * BLOCK, min((block + 1) * BLOCK, len(sources))):
            now[sources[row]] = 1.0
            here[0], size, known = sources[row], 1, 0
            for step in range(len(weights)):
                for i in range(size):
                    u = here[i]
                    if weights[step] > 0:
                        if total[u] == 0:
                            touched[known] = u
                            known += 1
                        total[u] += weights[step] * now[u]
                reached = 0
                for i in range(size):
                    u = here[i]
                    degree = indptr[u + 1] - indptr[u]
                    if step + 1 < len(weights) and now[u] > r_max * degree:
                        for at in range(indptr[u], indptr[u + 1]):
                            v = indices[at]
                            if following[v] == 0:
                                there[reached] = v
                                reached += 1
                            following[v] += now[u] * data[at]
                    now[u] = 0.0
                now, following = following, now
                here, there = there, here
                size = reached
            for i in range(size):
                now[here[i]] = 0.0
            order = np.argsort(-total[touched[:known]])
            for i in range(min(top_k, known)):
                out_nodes[row, i] = touched[order[i]]
                out_values[row, i] = total[touched[order[i]]]
            for i in range(known):
                total[touched[i]] = 0.0


class GRANDPlus(Baseline):
    """An MLP on randomly propagated features, trained to agree with itself; full propagation at prediction.

    The consistency loss is a mean over the whole unlabelled batch, as in the paper; the published code divides by
    the number of confident nodes, which may be 0.
    """

    title = "GRAND+"
    paper = "https://arxiv.org/abs/2203.06389"
    settings_class = GRANDPlusSettings
    # Published: batches of 50, of 140 labelled nodes.
    schedule: ClassVar[dict[str, object]] = {"learning_rate": 1e-2, "weight_decay": 1e-3, "batch_size": 512}
    space: ClassVar[dict[str, tuple[object, ...]]] = {
        "propagation": PROPAGATIONS,
        "order": (2, 4, 10, 20),
        "alpha": (0.1, 0.2, 0.4),
        "hidden_channels": (64, 256),
        "dropout": (0.2, 0.5, 0.7),
        "learning_rate": (1e-3, 5e-3, 1e-2),
        "weight_decay": (1e-5, 1e-3, 1e-2),
    }

    def __init__(self, task: Task, settings: GRANDPlusSettings) -> None:
        super().__init__(task)
        self.settings = settings
        widths = [task.x.shape[1], *[settings.hidden_channels] * (settings.num_layers - 1), task.num_classes]
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(a) if settings.batch_norm else nn.Identity() for a in widths[:-1])
        self.P = transition_matrix(task.graph)
        pool = unlabelled_pool(task.num_nodes, task.train_nodes, settings.unlabelled_pool, task.seed)
        self.pool = torch.tensor(pool, device=task.device)
        rows = np.concatenate([task.train_nodes, pool])
        nodes, values = self.push(rows)
        self.row_of = torch.zeros(task.num_nodes, dtype=torch.int64, device=task.device)
        self.row_of[torch.tensor(rows, device=task.device)] = torch.arange(len(rows), device=task.device)
        self.neighbours, self.values = (torch.tensor(array, device=task.device) for array in (nodes, values))
        self.weight_now = 0.0

    def push(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(rows, top_k) the nodes and values of the largest entries of Π's rows; 0 of node 0 where there are fewer."""
        s = self.settings
        shape = (len(rows), min(s.top_k, self.task.num_nodes))
        nodes, values = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        P = self.P
        launch()
        generalized_forward_push(P.indptr, P.indices, P.data, rows, step_weights(s), s.r_max, nodes, values)
        return nodes, values

    def begin_epoch(self, epoch: int) -> None:
        """The weight of the consistency loss: it rises in a line."""
        self.weight_now = self.settings.consistency * min(1.0, epoch / self.settings.warmup_epochs)

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores from the exactly propagated features."""
        return self.classify(self.propagated[nodes])

    def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
        """Cross-entropy of the views, and how far the views of some unlabelled nodes are from their sharpened mean."""
        s = self.settings
        count = min(s.unlabelled_batch, len(self.pool))
        drawn = self.pool[torch.randint(max(1, len(self.pool)), (count,), device=nodes.device)]
        both = torch.cat([nodes, drawn])
        views = torch.stack([self.classify(self.random_propagation(both)) for _ in range(s.num_views)])
        supervised = torch.stack([criterion(view[: len(nodes)]) for view in views]).mean()
        if not count:
            return supervised
        P = F.softmax(views[:, len(nodes) :], dim=2)
        return supervised + len(nodes) * self.weight_now * inconsistency(P, s.temperature)

    def random_propagation(self, nodes: Tensor) -> Tensor:
        """(B, F) features propagated by rows of Π of which a share of the entries is left out."""
        rows = self.row_of[nodes]
        kept = dropout(self.values[rows], self.settings.dropnode)
        kept = kept / kept.sum(dim=1, keepdim=True).clamp(min=1e-12)
        # Features have no gradient, so a bag's sum is all there is: top_k rows are read, in the same order every time.
        return F.embedding_bag(self.neighbours[rows], self.task.x, mode="sum", per_sample_weights=kept)

    @cached_property
    def propagated(self) -> Tensor:
        """(n, F) Σ w_n Pⁿ X by power iteration."""
        P = self.P.tocoo()
        at = torch.tensor(np.stack([P.row, P.col]), device=self.task.device)
        value = torch.tensor(P.data, dtype=torch.float32, device=self.task.device)
        matrix = torch.sparse_coo_tensor(at, value, P.shape, check_invariants=True).coalesce()
        X, total = self.task.x, torch.zeros_like(self.task.x)
        for step, weight in enumerate(step_weights(self.settings).tolist()):
            X = matrix @ X if step else X
            total += weight * X
        return total

    def classify(self, X: Tensor) -> Tensor:
        """(B, C) the MLP."""
        drop = (self.settings.input_dropout, self.settings.dropout) if self.training else (0.0, 0.0)
        for layer, (norm, linear) in enumerate(zip(self.norms, self.linears, strict=True)):
            X = F.relu(X) if layer else X
            X = linear(dropout(norm(X), drop[layer > 0]))
        return X


def inconsistency(P: Tensor, temperature: float) -> Tensor:
    """Squared distance of (views, B, C) probabilities to their sharpened mean, of confident nodes; a mean over B.

    A node is confident where the mean's largest probability is above 2 / C, as published; of two classes, above 0.9.
    """
    mean = P.mean(dim=0).clamp(min=1e-12)
    sharp = F.softmax(mean.log() / temperature, dim=1).detach()
    confident = mean.max(dim=1).values > min(2 / P.shape[2], 0.9)
    return ((P - sharp).square().sum(dim=2).mean(dim=0) * confident).mean()
