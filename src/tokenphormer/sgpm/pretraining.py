"""Pre-training: masked-node modelling on the graph document, without any label.

The document is read in chunks of some 65,000 sentences (on a GPU 262,000). All randomness of a chunk is a function of
(seed, epoch, chunk), so a run that was killed goes on from the last chunk it kept as if nothing had happened. Of
several processes (torchrun) all draw the same batches and masks, and each works on its part of the sentences.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tokenphormer import distributed
from tokenphormer.errors import InputError, InterruptedTrainingError
from tokenphormer.graph import Graph
from tokenphormer.graph.checks import Features
from tokenphormer.hashing import GOLDEN, mix64
from tokenphormer.sgpm import softmax
from tokenphormer.sgpm.centrality import bin_edges, bins_of, centrality_of
from tokenphormer.sgpm.document import GraphDocument, Sentences
from tokenphormer.sgpm.masking import MaskedBatch, mask
from tokenphormer.sgpm.model import SGPM
from tokenphormer.sgpm.settings import SPARSE_VOCABULARY, SGPMSettings
from tokenphormer.signals import put_off_signals
from tokenphormer.tensor_files import load_tensors, save_tensors
from tokenphormer.tokens.operators import FeatureRows

CHUNK = 1 << 16
"""Sentences drawn, sorted by length and shuffled together."""
GPU_CHUNK = 1 << 18
"""The same on a GPU, which reads them in seconds; the fewer chunks, the fewer batches that are not whole."""
CHECKPOINT_SECONDS = 60.0
"""How often the state is written, …"""
CHECKPOINT_SHARE = 0.05
"""… unless writing would take more than this share of the time: a million nodes are 12 GB."""
LARGE_VALIDATION = 1 << 12
"""Sentences judged by on a graph whose softmax is sampled; they are judged exactly, against all nodes."""
Row = dict[str, float]


@dataclass
class PretrainProgress:
    """Where a pre-training stands."""

    epoch: int = 0
    """Whole epochs done."""
    chunk: int = 0
    """Chunks done of the next one."""
    sentences: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch_loss: float = 0.0
    """Sum of the losses of the epoch that is under way."""
    epoch_guesses: int = 0
    best_epoch: int = 0
    best_loss: float = math.inf
    history: list[Row] = field(default_factory=list)
    stopped: str = ""


class GraphInputs:
    """What the model reads of a graph besides its walks: features and centrality, on a device."""

    def __init__(self, graph: Graph, settings: SGPMSettings, edges: NDArray[np.float64], device: torch.device) -> None:
        self.graph, self.device = graph, device
        bins = bins_of(centrality_of(graph, settings.centrality), edges)
        self.bins = torch.tensor(bins, device=device)
        wanted = settings.use_features and graph.num_features > 0
        self.whole = graph.num_nodes <= SPARSE_VOCABULARY
        self._unit = settings.unit_features
        self._rows = self._on_device(graph.x) if wanted and self.whole else None
        self.wanted = wanted

    def _on_device(self, x: Any) -> FeatureRows:
        return FeatureRows.on(self.device, unit_rows(x) if self._unit else x)

    def project(self, model: SGPM, dtype: torch.dtype) -> Tensor | None:
        """(n, h) projected features of all nodes; None where there are none, or too many nodes."""
        return None if self._rows is None else model.project(self._rows, dtype)

    def features(
        self, model: SGPM, nodes: Tensor, dtype: torch.dtype, projected: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Projected features, the rows of `nodes` in them, and the bins of those rows; each row is projected once.

        `projected` is what `project` gave, where weights that stay the same make it worth keeping.
        """
        if not self.wanted or self._rows is not None:
            return (self.project(model, dtype) if projected is None else projected), nodes, self.bins
        visited, place = torch.unique(nodes.clamp(min=0), return_inverse=True)
        x: Any = self.graph.x
        rows = self._on_device(x[visited.cpu().numpy()])
        return model.project(rows, dtype), torch.where(nodes >= 0, place, -1), self.bins[visited]


def unit_rows(x: Features) -> Features:
    """Every row scaled to length 1, as float32; empty rows stay empty.

    A projection begins with weights of about 1 / √F, so such rows come out as large as the vectors of nodes and
    positions that they are added to. Rows of hundreds of ones come out fifteen times as large.
    """
    x = x.astype(np.float32, copy=False)  # squares of half precision end at infinity from 256 on
    square: Any = x * x
    length = np.sqrt(np.asarray(square.sum(axis=1), dtype=np.float64)).ravel()
    scale = np.divide(1.0, length, out=np.zeros(len(length)), where=length > 0).astype(np.float32)
    return x * scale[:, None] if isinstance(x, np.ndarray) else sp.csr_array(sp.diags_array(scale) @ x)


class Pretrainer:
    """One pre-training: `run` to the end, or `load` a checkpoint first."""

    def __init__(self, graph: Graph, settings: SGPMSettings, device: torch.device) -> None:
        self.graph, self.settings, self.device = graph, settings, device
        self.document = GraphDocument(graph, settings)
        self.edges = bin_edges(centrality_of(graph, settings.centrality))
        self.inputs = GraphInputs(graph, settings, self.edges, device)
        torch.manual_seed(settings.seed)
        self.model = SGPM(
            graph.num_nodes, graph.num_features, len(self.edges) + 1, self.document.max_nodes, settings
        ).to(device)
        narrow = settings.precision == "bfloat16" or (settings.precision == "auto" and device.type == "cuda")
        self.dtype = torch.bfloat16 if narrow else torch.float32
        self.sparse = graph.num_nodes > SPARSE_VOCABULARY
        named = dict(self.model.named_parameters())
        large = [named.pop("table"), named.pop("output_bias")] if self.sparse else []
        # Decay draws matrices to zero, not norms, biases and embeddings.
        matrices = [p for name, p in named.items() if p.ndim == 2 and name not in ("table", "positions", "centrality")]
        others = [p for p in named.values() if not any(p is matrix for matrix in matrices)]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        gpu = device.type == "cuda"
        # On a GPU the learning rate is a tensor too, so that a step can be played again as a CUDA graph.
        self.rate = torch.zeros((), device=device)
        first = torch.optim.AdamW(groups, lr=self.rate if gpu else 0.0, betas=(0.9, 0.98), fused=gpu, capturable=gpu)
        self.optimisers: list[torch.optim.Optimizer] = [first]
        if large:
            self.optimisers.append(torch.optim.SparseAdam(large, lr=1.0))  # it takes no 0; every step sets it
        self.progress = PretrainProgress()
        self.best: dict[str, Tensor] = {}
        self.loss_sum = torch.zeros((), device=device)
        self._rows_in_use = self._rows_compared = torch.zeros(0, dtype=torch.int64, device=device)
        self._graphs = CudaGraphs(self) if gpu and distributed.alone() and not self.sparse else None

    # ---------------------------------------------------------------- the loop

    def run(self, after_chunk: Callable[[Pretrainer], None] = lambda _: None) -> PretrainProgress:
        """Train until stopping is due, and leave the best weights in the model."""
        while not self.progress.stopped:
            self._chunk()
            after_chunk(self)
        if not self.best:
            raise InputError(f"pre-training found no weights to keep: {self.progress.stopped}; lower learning_rate")
        self.model.load_state_dict(self.best)
        return self.progress

    def chunks(self, epoch: int) -> list[NDArray[np.int64]]:
        """The sentence numbers of an epoch, as many at a time as make a chunk."""
        chunk = GPU_CHUNK if self.device.type == "cuda" else CHUNK
        numbers, size = self.document.training_numbers(epoch), max(1, chunk // self.graph.num_nodes)
        return [numbers[first : first + size] for first in range(0, len(numbers), size)]

    def _chunk(self) -> None:
        p, s = self.progress, self.settings
        began = time.perf_counter()
        epoch, chunks = p.epoch + 1, self.chunks(p.epoch + 1)
        key = mix64(mix64(s.seed + 3) ^ mix64(epoch * GOLDEN + p.chunk))
        torch.manual_seed(key >> 1)
        self.model.train()
        self.loss_sum.zero_()
        guesses = sum(self._update(batch) for batch in self._batches(chunks[p.chunk], random.Random(key)))
        total = distributed.total(self.loss_sum).item()
        p.seconds += time.perf_counter() - began
        if not math.isfinite(total):
            self._give_up(f"the loss was {total} in epoch {epoch}")
            return
        p.epoch_loss += total
        p.epoch_guesses += guesses
        p.chunk += 1
        if p.chunk == len(chunks):
            self._end_epoch()

    def _batches(self, numbers: NDArray[np.int64], rng: random.Random) -> Iterator[MaskedBatch]:
        """The sentences of a chunk in batches of one length each, masked, in random order."""
        drawn = Sentences.together([self.document.sentences(number, self.device) for number in numbers.tolist()])
        order = torch.randperm(len(drawn.counts), device=self.device)
        shuffled = Sentences(drawn.walks[order], drawn.counts[order])
        batches = list(shuffled.batches(self.settings.batch_size))
        rng.shuffle(batches)
        for sentences in batches:
            # Masks must not depend on how much dropout was drawn before, which is another amount on each rank.
            torch.manual_seed(rng.getrandbits(63))
            yield mask(sentences, self.graph.num_nodes, self.settings, rng.random())

    def _update(self, batch: MaskedBatch) -> int:
        """One step of the optimisers, its losses added to `loss_sum`; how many nodes had to be guessed."""
        p, s = self.progress, self.settings
        p.sentences += len(batch.words)
        p.tokens += batch.words.numel()
        rate = learning_rate(p.sentences / (s.epochs * s.train_sentences * self.graph.num_nodes), s)
        self.rate.fill_(rate)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.rate if self.device.type == "cuda" and optimiser is self.optimisers[0] else rate
        if self._graphs is not None and len(batch.words) == s.batch_size:
            self._graphs.step(batch)
        else:
            self.step(batch)
        return batch.targets.numel()

    def step(self, batch: MaskedBatch) -> None:
        """Forward, backward and the optimisers: only work for the device, whose results nothing here waits for."""
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)
        losses = self._sampled_losses(batch) if self.sparse else self._own_losses(batch)
        if len(losses):  # a small batch may have no sentence for this rank
            torch.autograd.backward(losses.sum() / batch.targets.numel())
        dense = [q for group in self.optimisers[0].param_groups for q in group["params"]]
        distributed.sum_gradients(dense)
        if self.sparse:
            distributed.sum_rows(self.model.table, self._rows_in_use)
            distributed.sum_rows(self.model.output_bias, self._rows_compared)
        if self.settings.gradient_clip:
            large = [self.model.table, self.model.output_bias] if self.sparse else []
            clip_gradients(dense, large, self.settings.gradient_clip)
        for optimiser in self.optimisers:
            optimiser.step()
        self.loss_sum += losses.detach().sum()

    def _own_losses(self, batch: MaskedBatch) -> Tensor:
        """(M) losses of this rank's sentences, against all nodes."""
        mine = self._apart(batch)
        return self._losses(mine)[0] if len(mine.words) else self.rate.new_zeros(0)

    def _apart(self, batch: MaskedBatch) -> MaskedBatch:
        """This rank's part of a batch; from here on its random numbers, of dropout, are its own."""
        if distributed.rank():
            torch.manual_seed(mix64(torch.initial_seed() ^ (distributed.rank() << 48)) >> 1)
        return batch.share()

    def _losses(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """(M) losses and (M) whether the guess was right, against all nodes."""
        projected, rows, bins = self.inputs.features(self.model, batch.nodes, self.dtype)
        states = self.model(batch.words, rows, projected, bins, self.dtype)
        guesses = self.model.guess(_at(states, batch.places))
        table = self.model.table[: self.graph.num_nodes]
        return softmax.exact(guesses, table, self.model.output_bias[:, 0], batch.targets.reshape(-1))

    def _sampled_losses(self, batch: MaskedBatch) -> Tensor:
        """(M) losses of this rank's sentences against some nodes; only the table's rows in use have gradients."""
        n, count = self.graph.num_nodes, self.settings.negatives
        others = torch.randint(n, (count,), device=self.device)
        # Of the whole batch, so that all ranks have gradients of the same rows.
        self._rows_compared = torch.unique(torch.cat([batch.targets.reshape(-1), others]))
        self._rows_in_use = torch.unique(torch.cat([batch.words.reshape(-1), self._rows_compared]))
        mine = self._apart(batch)
        if not len(mine.words):
            return self.rate.new_zeros(0)
        rows = F.embedding(self._rows_in_use, self.model.table, sparse=True)
        bias = F.embedding(self._rows_compared, self.model.output_bias, sparse=True)[:, 0]
        targets = mine.targets.reshape(-1)
        words, right, wrong = (torch.searchsorted(self._rows_in_use, nodes) for nodes in (mine.words, targets, others))
        right_bias, wrong_bias = (bias[torch.searchsorted(self._rows_compared, nodes)] for nodes in (targets, others))
        projected, seen, bins = self.inputs.features(self.model, mine.nodes, self.dtype)
        states = self.model(words, seen, projected, bins, self.dtype, table=rows)
        guesses = self.model.guess(_at(states, mine.places))
        same = targets[:, None] == others
        return softmax.sampled(guesses, rows[right], right_bias, rows[wrong], wrong_bias, same, count / n)

    # ---------------------------------------------------------------- validation

    def _end_epoch(self) -> None:
        p, s = self.progress, self.settings
        began = time.perf_counter()
        loss, accuracy = self.validate()
        p.seconds += time.perf_counter() - began
        if not math.isfinite(loss):
            self._give_up(f"the validation loss was {loss} after epoch {p.epoch + 1}")
            return
        p.epoch, p.chunk = p.epoch + 1, 0
        row = {"epoch": p.epoch, "train_loss": p.epoch_loss / p.epoch_guesses, "val_loss": loss}
        row |= {"val_perplexity": math.exp(min(loss, 700.0)), "val_accuracy": accuracy}
        row |= {"sentences": p.sentences, "tokens": p.tokens, "seconds": p.seconds}
        p.history.append(row)
        p.epoch_loss, p.epoch_guesses = 0.0, 0
        if loss < p.best_loss:
            p.best_epoch, p.best_loss = p.epoch, loss
            self.best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        if p.epoch - p.best_epoch >= s.patience:
            p.stopped = f"no lower validation loss for {s.patience} epochs"
        elif p.epoch >= s.epochs:
            p.stopped = f"all {s.epochs} epochs are done"

    def _give_up(self, reason: str) -> None:
        self.progress.stopped = reason

    def validation_batches(self) -> Iterator[MaskedBatch]:
        """The sentences to judge by, with the same masks each time."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            key = mix64(mix64(self.settings.seed + 4))
            torch.manual_seed(key >> 1)
            rng = random.Random(key)
            for sentences in self._validation_sentences():
                for batch in sentences.batches(4 * self.settings.batch_size):
                    yield mask(batch, self.graph.num_nodes, self.settings, rng.random())

    def _validation_sentences(self) -> Iterator[Sentences]:
        numbers = self.document.validation_numbers().tolist()
        nodes = None
        if self.sparse:
            numbers = numbers[: math.isqrt(LARGE_VALIDATION)]  # of few nodes, they would say little of the others
            each = -(-LARGE_VALIDATION // len(numbers))
            nodes = np.unique(np.linspace(0, self.graph.num_nodes - 1, each).astype(np.int64))
        together = max(1, CHUNK // self.graph.num_nodes)
        for first in range(0, len(numbers), together):
            some = numbers[first : first + together]
            yield Sentences.together([self.document.sentences(number, self.device, nodes) for number in some])

    def validate(self) -> tuple[float, float]:
        """Mean loss at the masked positions of the validation sentences, and the share guessed right."""
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for batch in self.validation_batches():
                mine = batch.share()
                if len(mine.words):
                    losses, right = self._losses(mine)
                    sums += torch.stack([losses.sum(), right.sum(), torch.full_like(losses[0], len(losses))])
        loss, correct, count = distributed.total(sums).tolist()
        return loss / count, correct / count

    # ---------------------------------------------------------------- checkpoints

    def save(self, path: Path, identity: dict[str, str]) -> None:
        """Write everything that is needed to go on."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        for number, optimiser in enumerate(self.optimisers):
            for index, state in optimiser.state_dict()["state"].items():
                for name, value in state.items():
                    tensors[f"optimiser.{number}.{index}.{name}"] = torch.as_tensor(value)
        save_tensors(path, tensors, {"identity": identity, "progress": dataclasses.asdict(self.progress)})

    def load(self, path: Path, identity: dict[str, str], content: bytes | None = None) -> None:
        """Go back to what `save` wrote; refused if it belongs to something else.

        `content` is what the file holds, if that was read already.
        """
        try:
            tensors, meta = load_tensors(path, content)
        except InputError as error:
            raise InputError(f"{error}. Delete this checkpoint to begin anew") from error
        found = meta.get("identity")
        if found != identity:
            known = found if isinstance(found, dict) else {}
            other = [key for key, value in identity.items() if known.get(key) != value]
            raise InputError(
                f"{path}: is the checkpoint of another pre-training: it has another {', '.join(other) or 'origin'}. "
                "Use another folder"
            )
        try:
            self.model.load_state_dict(_group(tensors, "model."))
            for number, optimiser in enumerate(self.optimisers):
                state: dict[int, dict[str, Tensor]] = {}
                for name, tensor in _group(tensors, f"optimiser.{number}.").items():
                    index, _, key = name.partition(".")
                    state.setdefault(int(index), {})[key] = tensor
                whole = optimiser.state_dict()
                optimiser.load_state_dict({**whole, "state": {k: _numbers(v) for k, v in state.items()}})
            progress: Any = meta["progress"]
            self.progress = PretrainProgress(**progress)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: does not fit this pre-training ({error})") from error
        self.best = {name: tensor.to(self.device) for name, tensor in _group(tensors, "best.").items()}


class CudaGraphs:
    """Steps recorded once for each shape of a batch and played again: some 400 kernels for the price of one launch.

    Python needs 20 ms to send the kernels of a step off, the GPU 6 to work on them.
    """

    EAGER_STEPS = 3
    """Steps before the first recording: they make the optimiser's state, and what libraries make on first use."""

    def __init__(self, trainer: Pretrainer) -> None:
        self.trainer, self.seen = trainer, 0
        self.recorded: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, MaskedBatch]] = {}
        self.pool: Any = None

    def step(self, batch: MaskedBatch) -> None:
        """The trainer's step on a batch."""
        self.seen += 1
        if self.seen <= self.EAGER_STEPS:
            self.trainer.step(batch)
            return
        key = (*batch.words.shape, batch.places.shape[1])
        if key not in self.recorded:
            self.recorded[key] = self._record(batch)
        graph, static = self.recorded[key]
        for name in ("words", "nodes", "places", "targets"):
            getattr(static, name).copy_(getattr(batch, name))
        graph.replay()

    def _record(self, batch: MaskedBatch) -> tuple[torch.cuda.CUDAGraph, MaskedBatch]:
        static = MaskedBatch(*(getattr(batch, f.name).clone() for f in dataclasses.fields(batch)))
        graph = torch.cuda.CUDAGraph()
        for optimiser in self.trainer.optimisers:
            optimiser.zero_grad(set_to_none=True)
        with _garbage_kept(), torch.cuda.graph(graph, pool=self.pool):  # recording runs nothing
            self.trainer.step(static)
        self.pool = graph.pool()
        return graph, static


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Nothing is collected meanwhile: a CUDA graph of an earlier training, freed during a recording, would spoil it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _at(states: Tensor, places: Tensor) -> Tensor:
    """(B·k, h) the states at some positions of each sentence."""
    index = places[..., None].expand(-1, -1, states.shape[2])
    return states.gather(1, index).reshape(-1, states.shape[2])


def _group(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _numbers(state: dict[str, Tensor]) -> dict[str, Any]:
    """SparseAdam counts its steps in a plain number, AdamW in a tensor of floats."""
    return {key: value if value.is_floating_point() else int(value) for key, value in state.items()}


def clip_gradients(dense: list[nn.Parameter], sparse: list[nn.Parameter], highest: float) -> None:
    """Scale all gradients by one number, so that the norm of them together is at most `highest`.

    Of a sparse gradient only the rows that it holds are read. No row may be in it twice: its norm is then that of its
    numbers.
    """
    rows = [p.grad._values() for p in sparse if p.grad is not None]
    norm = nn.utils.get_total_norm([*(p.grad for p in dense if p.grad is not None), *rows])
    nn.utils.clip_grads_with_norm_(dense, highest, norm)
    for values in rows:
        values.mul_((highest / (norm + 1e-6)).clamp(max=1.0))  # as torch does it


def kept_epoch(history: list[Row]) -> Row:
    """The epoch whose weights a pre-training keeps: the first of the lowest validation loss."""
    return min(history, key=lambda row: row["val_loss"])


def learning_rate(done: float, settings: SGPMSettings) -> float:
    """Up in a line over `warmup_share` of the training, then down in a line to 0; `done` goes from 0 to 1."""
    if done < settings.warmup_share:
        return settings.learning_rate * done / settings.warmup_share
    return settings.learning_rate * max(0.0, (1 - done) / (1 - settings.warmup_share))


def run_with_checkpoints(
    trainer: Pretrainer,
    path: Path,
    identity: dict[str, str],
    after_chunk: Callable[[Pretrainer], None],
    say: Callable[[str], None],
) -> PretrainProgress:
    """Run to the end; now and then, and when a signal asks to stop, the state is kept in `path`."""
    several = not distributed.alone()
    # Other GPUs draw other random numbers, and ranks would not have the same masks.
    gpu = torch.cuda.get_device_name(trainer.device) if trainer.device.type == "cuda" else ""
    distributed.check_same({**identity, "GPU": gpu}, trainer.device)
    content = distributed.file_of_first(path, trainer.device) if several else None  # it may be large
    if content is not None or (not several and path.exists()):
        trainer.load(path, identity, content)
        say(f"going on after epoch {trainer.progress.epoch}, chunk {trainer.progress.chunk}")
    written, took = time.monotonic(), 0.0

    def keep(trainer: Pretrainer) -> None:
        nonlocal written, took
        now = time.monotonic()
        due = distributed.is_first() and now - written > max(CHECKPOINT_SECONDS, took / CHECKPOINT_SHARE)
        # All stop at the same chunk, and with the same signal.
        number, save = distributed.highest([signals[0] if signals else 0, int(due)], trainer.device)
        if distributed.is_first() and (number or save):
            trainer.save(path, identity)
            written = time.monotonic()
            took = written - now
        if number:
            raise InterruptedTrainingError(f"stopped; {path} holds what was learned", number)

    def both(trainer: Pretrainer) -> None:
        after_chunk(trainer)
        keep(trainer)

    with put_off_signals(say, "chunk") as signals:
        try:
            progress = trainer.run(both)
            keep(trainer)  # a signal may have come after the last chunk
        except KeyboardInterrupt as stop:  # the second one: at once
            state = f"{path} holds an earlier state" if path.exists() else "nothing was kept yet"
            raise InterruptedTrainingError(f"stopped at once; {state}") from stop
    return progress
