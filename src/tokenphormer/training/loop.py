"""The only training loop: AdamW, warm-up and decay, micro-batches, early stopping on validation.

An epoch's randomness is a function of (seed, epoch) alone, so a run that was killed and resumed at an epoch's
beginning goes on exactly as if nothing had happened.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenphormer import distributed
from tokenphormer.errors import InputError, ResourceError
from tokenphormer.hashing import GOLDEN, hash_order, mix64
from tokenphormer.training.calibration import soften
from tokenphormer.training.settings import TrainingSettings

State = dict[str, Tensor]
Row = dict[str, float]


class Method(Protocol):
    """What the loop trains: a module, and how it scores nodes."""

    @property
    def module(self) -> nn.Module:
        """What has the weights."""

    @property
    def micro_batch(self) -> int:
        """Nodes scored at once, to begin with; halved when memory runs out."""

    @property
    def scores_all(self) -> bool:
        """Whether every pass scores all nodes of the graph, so that smaller batches take no less memory."""

    def shrink(self) -> int:
        """Halve what such a pass works on at a time; how many nodes that is now, 0 if it cannot be less."""

    def begin_epoch(self, epoch: int) -> None:
        """Called before each training epoch, 1, 2, …"""

    def begin_prediction(self, draw: int) -> None:
        """Called before predictions; `draw` numbers the votes, 0 first."""

    def scores(self, nodes: Tensor) -> Tensor:
        """(B, C) class scores, float32."""

    def loss(self, nodes: Tensor, criterion: Callable[[Tensor], Tensor]) -> Tensor:
        """The loss of a batch, summed over its nodes; `criterion` is the summed cross-entropy of (B, C) scores."""


@dataclass
class Progress:
    """Where a training stands; all that a checkpoint has to keep besides weights and the optimiser."""

    epoch: int = 0
    updates: int = 0
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_loss: float = math.inf
    history: list[Row] = field(default_factory=list)
    stopped: str = ""
    """Why training is over; empty while it is not."""


@dataclass(frozen=True)
class Labelled:
    """Nodes and their classes: the only labels that training sees."""

    nodes: NDArray[np.int64]
    classes: NDArray[np.int64]


def learning_rate(update: int, settings: TrainingSettings) -> float:
    """Linear warm-up, then polynomial decay to `end_learning_rate`; updates count from 1.

    >>> settings = TrainingSettings(learning_rate=1.0, end_learning_rate=0.0, warmup_updates=10, decay_updates=20)
    >>> [learning_rate(u, settings) for u in (5, 10, 15, 30)]
    [0.5, 1.0, 0.5, 0.0]
    """
    s = settings
    if update <= s.warmup_updates:
        return s.learning_rate * update / max(1, s.warmup_updates)
    if update >= s.decay_updates:
        return s.end_learning_rate
    left = (s.decay_updates - update) / (s.decay_updates - s.warmup_updates)
    return float(s.end_learning_rate + (s.learning_rate - s.end_learning_rate) * left**s.decay_power)


class Trainer:
    """One training: `run` to the end, or `load` a checkpoint's state first."""

    def __init__(
        self,
        method: Method,
        train: Labelled,
        val: Labelled,
        num_classes: int,
        settings: TrainingSettings,
        device: torch.device,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        check_labels(train, val, num_classes)
        self.method, self.settings, self.device, self.say = method, settings, device, say
        self.train_nodes, self.num_classes = train.nodes, num_classes
        self.labels = torch.zeros(int(max(train.nodes.max(), val.nodes.max())) + 1, dtype=torch.int64, device=device)
        for part in (train, val):
            self.labels[torch.tensor(part.nodes, device=device)] = torch.tensor(part.classes, device=device)
        self.val_nodes = torch.tensor(val.nodes, device=device)
        self.class_weight = _class_weights(train, num_classes, settings).to(device)
        fused = device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            method.module.parameters(), lr=0.0, weight_decay=settings.weight_decay, fused=fused
        )
        self.progress = Progress()
        self.best: State = {}
        self.averages: list[Tensor] = []
        """The running mean of each parameter, if the settings ask for one and there was an update."""
        self.micro_batch = method.micro_batch
        self._batches: dict[str, list[Tensor]] = {}
        self._orders: dict[int, Tensor] = {}
        self._whole_weight: Tensor | None = None

    # ---------------------------------------------------------------- the loop

    def run(self, after_epoch: Callable[[Trainer], None] = lambda _: None) -> Progress:
        """Train until stopping is due, leave the best weights in the module, and say how it went."""
        with _deterministic(self.settings.deterministic, self.device):
            while not self.progress.stopped:
                self._epoch()
                after_epoch(self)
        if not self.best:
            raise InputError(
                f"training found no weights to keep: {self.progress.stopped}; "
                "lower learning_rate, set gradient_clip, or scale the features"
            )
        self.method.module.load_state_dict(self.best)
        return self.progress

    def _epoch(self) -> None:
        p, s = self.progress, self.settings
        began = time.perf_counter()
        epoch = p.epoch + 1
        # Ranks drop out different things; the first, what a single process would.
        torch.manual_seed(mix64(mix64(s.seed) ^ (epoch * GOLDEN) ^ (distributed.rank() << 48)) >> 1)
        self.method.begin_epoch(epoch)
        self.method.module.train()
        losses = [self._update(batch) for batch in self._training_batches(epoch)]
        train_loss = float(torch.stack(losses).mean())
        if not math.isfinite(train_loss):
            first = next(i for i, loss in enumerate(losses) if not torch.isfinite(loss))
            update = p.updates - len(losses) + first + 1
            self._give_up(f"the loss was {float(losses[first])} at update {update} of epoch {epoch}")
            return
        with self._averaged():
            accuracy, val_loss = self._validate()
            if not math.isfinite(val_loss):  # of weights that are no numbers, the accuracy could still look good
                self._give_up(f"the validation loss was {val_loss} after update {p.updates} of epoch {epoch}")
                return
            if (accuracy, -val_loss) > (p.best_accuracy, -p.best_loss):
                p.best_epoch, p.best_accuracy, p.best_loss = epoch, accuracy, val_loss
                self.best = {name: tensor.detach().clone() for name, tensor in self.method.module.state_dict().items()}
        p.epoch = epoch
        row = {"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss, "val_accuracy": accuracy}
        row |= {"learning_rate": learning_rate(p.updates, s), "seconds": time.perf_counter() - began}
        p.history.append(row)
        if epoch - p.best_epoch >= s.patience:
            p.stopped = f"no better validation result for {s.patience} epochs"
        elif epoch >= s.max_epochs:
            p.stopped = f"all {s.max_epochs} epochs are done"

    def _give_up(self, reason: str) -> None:
        self.progress.stopped = reason
        if self.best:
            self.say(f"stopped: {reason}; the best weights, of epoch {self.progress.best_epoch}, are kept")

    def _training_batches(self, epoch: int) -> Iterator[list[Tensor]]:
        """Batches as lists of micro-batches. One batch for all nodes keeps its order, so that it can be cached."""
        size = self.settings.batch_size
        if len(self.train_nodes) <= size:
            yield self._pieces("train", torch.tensor(self.train_nodes))
            return
        for nodes in torch.split(self._order(epoch), size):
            yield even_split(distributed.share(nodes), self.micro_batch)
        self._orders = {epoch + 1: self._order(epoch + 1)}  # while a GPU still works on this epoch

    def _order(self, epoch: int) -> Tensor:
        """The training nodes as an epoch takes them."""
        if epoch not in self._orders:
            seed = mix64(mix64(self.settings.seed + 1) ^ (epoch * GOLDEN))
            order = torch.from_numpy(hash_order(self.train_nodes, seed))
            # From pinned memory, the copy does not wait for what the GPU has still to do.
            order = order.pin_memory() if self.device.type == "cuda" else order
            self._orders[epoch] = order.to(self.device, non_blocking=True)
        return self._orders[epoch]

    def _pieces(self, name: str, nodes: Tensor) -> list[Tensor]:
        """The same tensors each time, for as long as the micro-batch stays the same."""
        key = f"{name} {self.micro_batch}"
        if key not in self._batches:
            mine = distributed.share(nodes.to(self.device))
            self._batches[key] = [piece.clone() for piece in even_split(mine, self.micro_batch)]
        return self._batches[key]

    def _update(self, pieces: list[Tensor]) -> Tensor:
        """One step of the optimiser on a batch; its loss."""
        s, p = self.settings, self.progress
        loss = self._gradients(pieces)
        if s.gradient_clip:
            nn.utils.clip_grad_norm_(self.method.module.parameters(), s.gradient_clip)
        if s.l2:
            pairs = [(w.grad, w.detach()) for w in self.method.module.parameters() if w.grad is not None]
            torch._foreach_add_([grad for grad, _ in pairs], [weight for _, weight in pairs], alpha=s.l2)
        p.updates += 1
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(p.updates, s)
        self.optimiser.step()
        if s.weight_average:
            self._average()
        return loss

    def _average(self) -> None:
        """Bring the running mean up to date; what was before the first updates is soon forgotten."""
        weights = [weight.detach() for weight in self.method.module.parameters()]
        if not self.averages:
            self.averages = [weight.clone() for weight in weights]
        updates = self.progress.updates
        kept = min(self.settings.weight_average, (updates - 1) / (updates + 3))
        torch._foreach_lerp_(self.averages, weights, 1 - kept)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The module with the running mean as its weights, if there is one. Copied: recorded GPU work knows places."""
        if not self.averages:
            yield
            return
        weights = [weight.detach() for weight in self.method.module.parameters()]
        last = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, self.averages)
        try:
            yield
        finally:
            torch._foreach_copy_(weights, last)

    def _gradients(self, pieces: list[Tensor]) -> Tensor:
        """The gradients and the loss of a batch, of which `pieces` are this rank's."""
        weight = self._weight(pieces)
        while True:  # without a word to other ranks, which may have memory enough
            try:
                loss = self._own_gradients(pieces, weight)
                break
            except torch.OutOfMemoryError as error:
                pieces = list(torch.split(torch.cat(pieces), self._halve(pieces, error)))
        distributed.sum_gradients(self.method.module.parameters())
        return distributed.total(loss)

    def _weight(self, pieces: list[Tensor]) -> Tensor:
        """What the nodes of a batch weigh on all ranks together; found once if the batch is always the same."""
        if self._whole_weight is not None:
            return self._whole_weight
        weight = distributed.total(torch.cat([self.class_weight[self.labels[nodes]] for nodes in pieces]).sum())
        if len(self.train_nodes) <= self.settings.batch_size:
            self._whole_weight = weight
        return weight

    def _own_gradients(self, pieces: list[Tensor], weight: Tensor) -> Tensor:
        """This rank's part of the gradients and of the loss; `weight` is that of the whole batch's nodes."""
        self.optimiser.zero_grad(set_to_none=True)
        loss: Tensor | None = None  # a step of a small model is short: each call to a GPU that can be spared counts
        for nodes in pieces:
            if not len(nodes):  # this rank has no part in the batch
                continue
            criterion = partial(
                F.cross_entropy,
                target=self.labels[nodes],
                weight=self.class_weight,
                reduction="sum",
                label_smoothing=self.settings.label_smoothing,
            )
            part = self.method.loss(nodes, criterion) / weight
            torch.autograd.backward(part)
            loss = part.detach() if loss is None else loss + part.detach()
        return torch.zeros((), device=self.device) if loss is None else loss

    def _halve(self, pieces: list[Tensor], error: Exception) -> int:
        """Work on half as many nodes at a time from now on; the size of a batch's pieces."""
        largest = max(map(len, pieces))
        if self.method.scores_all:
            size, told = self.method.shrink(), "all nodes of the graph are now scored"
        else:
            size, told = largest // 2, "the batch is now worked off"
            self.micro_batch = max(1, size)
        if not size:
            raise _too_little_memory(error, self.method.scores_all) from error
        self.optimiser.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        self.say(f"out of memory: {told} {size} nodes at a time")
        return largest if self.method.scores_all else size

    # ---------------------------------------------------------------- prediction

    def _validate(self) -> tuple[float, float]:
        self.method.module.eval()
        self.method.begin_prediction(0)
        while True:
            try:
                return self._accuracy_and_loss()
            except torch.OutOfMemoryError as error:
                self._halve(self._pieces("val", self.val_nodes), error)

    def _accuracy_and_loss(self) -> tuple[float, float]:
        correct = torch.zeros((), device=self.device)
        loss = torch.zeros((), device=self.device)
        for nodes in self._pieces("val", self.val_nodes):
            if not len(nodes):
                continue
            with torch.no_grad():
                scores = self.method.scores(nodes)
            loss += F.cross_entropy(scores, self.labels[nodes], reduction="sum")
            correct += (scores.argmax(dim=1) == self.labels[nodes]).sum()
        count = len(self.val_nodes)
        both = distributed.total(torch.stack([correct, loss])).tolist()  # one wait for the GPU
        return both[0] / count, both[1] / count


def even_split(nodes: Tensor, most: int) -> list[Tensor]:
    """As few pieces of at most `most` nodes as there can be, all about as large."""
    pieces = -(-len(nodes) // max(1, most))
    return list(torch.split(nodes, max(1, -(-len(nodes) // max(1, pieces)))))


def compute_dtype(device: torch.device, settings: TrainingSettings) -> torch.dtype:
    """bfloat16 where the settings ask for it: by default on GPUs. Weights stay float32."""
    narrow = settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")
    return torch.bfloat16 if narrow else torch.float32


def predict(
    method: Method, nodes: NDArray[np.int64], settings: TrainingSettings, device: torch.device
) -> NDArray[np.float32]:
    """(len(nodes), C) probabilities, averaged over `votes` draws of the walks; every rank has all of them.

    Of a method that has a temperature, as Tokenphormer may, they are softened by it. Where a graph's numbers are too
    large for the model there are none, and an error says so: the first class would look like a prediction.
    """
    method.module.eval()
    everyone = torch.tensor(np.asarray(nodes, dtype=np.int64), device=device)
    places = distributed.share(torch.arange(len(everyone), device=device))
    mine, total = everyone[places], torch.zeros(0)
    shrink = method.shrink if method.scores_all else None
    for draw in range(settings.votes):
        method.begin_prediction(draw)
        drawn = in_pieces(lambda piece: F.softmax(method.scores(piece), dim=1), mine, method.micro_batch, shrink)
        total = torch.cat(drawn) if not draw else total + torch.cat(drawn)
    if not distributed.alone():
        whole = torch.zeros(len(everyone), total.shape[1], device=device)
        whole[places] = total
        total = distributed.total(whole)
    result: NDArray[np.float32] = (total / settings.votes).cpu().numpy()
    check_finite(result, nodes)
    return soften(result, getattr(method, "temperature", 1.0))


def check_finite(probabilities: NDArray[np.floating], nodes: NDArray[np.int64]) -> None:
    """Raise unless the probabilities of all nodes, (len(nodes), C), are numbers."""
    lost = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if lost.size:
        raise InputError(
            f"node {nodes[lost[0]]} (counted from 0): its class scores are not finite "
            f"({lost.size} of {len(nodes)} nodes); features and edge weights must be of the size they had in training"
        )


def in_pieces(
    compute: Callable[[Tensor], Tensor], nodes: Tensor, size: int, shrink: Callable[[], int] | None = None
) -> list[Tensor]:
    """What `compute` gives for at most `size` nodes at a time, without gradients; fewer when memory runs out.

    Where every pass takes all nodes of the graph, fewer would not help: `shrink` is called instead, as in training.
    """
    size = max(1, min(size, len(nodes)))
    while True:
        try:
            with torch.no_grad():
                return [compute(piece) for piece in torch.split(nodes, size)]
        except torch.OutOfMemoryError as error:
            left = size // 2 if shrink is None else shrink()
            if not left:
                raise _too_little_memory(error, shrink is not None) from error
            size = left if shrink is None else size
            torch.cuda.empty_cache()


def _too_little_memory(error: Exception, scores_all: bool = False) -> ResourceError:
    if scores_all:
        return ResourceError(f"out of memory ({error}): every pass scores all nodes of the graph; use smaller settings")
    return ResourceError(f"out of memory with a single node at a time ({error}); use fewer or smaller tokens")


def check_labels(train: Labelled, val: Labelled, num_classes: int) -> None:
    """Raise unless there are nodes of two classes to learn from, and some to say when to stop."""
    if num_classes < 2:
        raise InputError(f"there is {num_classes} class; telling classes apart takes at least 2")
    for name, part in (("train", train), ("val", val)):
        if not len(part.nodes):
            raise InputError(
                f"the split's part '{name}' has no labelled node; training needs some: label more nodes (a stratified "
                "split takes three of a class to have one for validation), or say in a column 'split' which is for what"
            )
    if len(np.unique(train.classes)) < 2:
        raise InputError("all training nodes are of one class; there is nothing to tell apart")


def _class_weights(train: Labelled, num_classes: int, settings: TrainingSettings) -> Tensor:
    if settings.class_weights == "none":
        return torch.ones(num_classes)
    counts = np.bincount(train.classes, minlength=num_classes)
    present = counts > 0
    weight = np.where(present, len(train.classes) / (present.sum() * np.maximum(counts, 1)), 0.0)
    return torch.tensor(weight, dtype=torch.float32)


@contextmanager
def _deterministic(wanted: bool, device: torch.device) -> Iterator[None]:
    threads = torch.get_num_threads()
    if wanted and device.type == "cpu":
        torch.set_num_threads(1)  # gradients are sums over a batch, and each number of threads adds up in its own order
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses products on a GPU
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.set_num_threads(threads)
