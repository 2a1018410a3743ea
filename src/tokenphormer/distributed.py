"""Several processes as one: torchrun starts them, torch.distributed joins them; here is what they say to each other.

    torchrun --nproc-per-node 2 -m tokenphormer train …

Every process (rank) has the whole graph, which ranks of a host share as a memory-mapped file, and works on its part of
each batch. Gradients are summed, so all ranks hold the same weights at all times; walks are the same for any number of
ranks, because they are functions of seed and node. In a single process every function here does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tokenphormer.errors import InputError, OtherRankError, ResourceError, TokenphormerError

TIMEOUT = timedelta(seconds=float(os.environ.get("TOKENPHORMER_TIMEOUT", "300")))
"""How long a rank waits for the others before it says that they are gone."""


def rank() -> int:
    """This process's number; 0 writes files and speaks."""
    return dist.get_rank() if _joined() else 0


def size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if _joined() else 1


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def restarted() -> bool:
    """Whether torchrun has started the processes again after one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def joined(device: torch.device) -> Iterator[torch.device]:
    """Join the other processes if torchrun started this one; gives the device of this rank."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or _joined():
        yield device
        return
    if not dist.is_available():
        raise ResourceError("this torch was built without torch.distributed; run it without torchrun")
    backend = "gloo"
    if device.type == "cuda":
        backend, local = "nccl", int(os.environ.get("LOCAL_RANK", "0"))
        if local >= torch.cuda.device_count():
            raise InputError(f"rank {local} of this host has no GPU: it has {torch.cuda.device_count()}")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise ResourceError(f"the {count} processes could not join: {_first_line(error)}") from error
    try:
        yield device
    except RuntimeError as error:
        if _lost(error):
            raise ResourceError(
                f"rank {rank()}: the other processes are gone ({_first_line(error)}); what was kept is whole, "
                "start again with --resume"
            ) from error
        raise
    finally:
        dist.destroy_process_group()


def share(nodes: Tensor) -> Tensor:
    """The part of some nodes that is this rank's: all parts together are the nodes, each once."""
    return nodes if size() == 1 else torch.tensor_split(nodes, size())[rank()]


def total(values: Tensor) -> Tensor:
    """The sum over all ranks."""
    if size() > 1:
        dist.all_reduce(values)
    return values


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of all ranks, in one message; a rank without nodes adds nothing."""
    if size() == 1:
        return
    wanted = [p for p in parameters if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
    flat = total(torch.cat([part.reshape(-1) for part in parts]))
    for parameter, piece in zip(wanted, torch.split(flat, [p.numel() for p in wanted]), strict=True):
        parameter.grad = piece.view_as(parameter).clone()


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any rank."""
    return bool(total(torch.tensor(float(flag), device=device)) > 0)


def from_first(content: bytes | None, device: torch.device) -> bytes | None:
    """What the first rank has, on all of them: a file that only its host can read."""
    if size() == 1:
        return content
    length = torch.tensor(-1 if content is None else len(content), dtype=torch.int64, device=device)
    dist.broadcast(length, 0)
    if int(length) < 0:
        return None
    if content is not None and is_first():
        message = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    else:
        message = torch.empty(int(length), dtype=torch.uint8, device=device)
    if int(length):
        dist.broadcast(message, 0)
    return bytes(message.cpu().numpy().tobytes())


def on_first(work: Callable[[], None], device: torch.device) -> None:
    """Have the first rank do something, while the others wait; if it fails, all of them fail."""
    error: BaseException | None = None
    if is_first():
        try:
            work()
        except (TokenphormerError, OSError) as failed:
            error = failed
    others = any_rank(error is not None, device)
    if error is not None:
        raise error
    if others:
        raise OtherRankError("the first process failed, and has said why")


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _lost(error: RuntimeError) -> bool:
    signs = ("Connection", "connection", "Timed out", "timed out", "timeout", "Socket", "NCCL", "gloo", "Gloo", "peer")
    return any(sign in str(error) for sign in signs)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
