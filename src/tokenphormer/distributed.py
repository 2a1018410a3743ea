"""Several processes as one: torchrun starts them, torch.distributed joins them; here is what they say to each other.

    torchrun --nproc-per-node 2 -m tokenphormer train …

Every process (rank) has the whole graph, of which ranks of a host share what is memory-mapped, and works on its part of
each batch. Gradients are summed, so all ranks hold the same weights at all times; walks are the same for any number of
ranks, because they are functions of seed and node. In a single process every function here does nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tokenphormer.errors import InputError, OtherRankError, ResourceError, TokenphormerError, exit_code

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOK_SECONDS = 1.0
"""How often a rank looks whether another has failed."""
GRACE_SECONDS = 10.0
"""How long it then has to notice by itself."""
ASK_SECONDS = 3.0
"""How long a failing rank waits to hear whether another failed before it."""


def rank() -> int:
    """This process's number; 0 writes files and speaks."""
    return dist.get_rank() if _joined() else 0


def size() -> int:
    """How many processes work together."""
    return dist.get_world_size() if _joined() else 1


def alone() -> bool:
    """Whether this process has nobody to talk to."""
    return not _joined()


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def started() -> int:
    """How many processes torchrun has started, joined or not."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def may_restart() -> bool:
    """Whether torchrun starts the processes again when one of them dies (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


# ---------------------------------------------------------------- joining


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the other processes if torchrun started this one; gives the device of this rank.

    If a rank fails inside, it alone says why; the others end soon after, silently, with its exit code. A single process
    joins nobody, unless TOKENPHORMER_JOIN_ALONE=1 says so: for tests, in which what it would tell others goes its way.
    """
    joins = started() > 1 or ("RANK" in os.environ and os.environ.get("TOKENPHORMER_JOIN_ALONE") == "1")
    if not joins or _joined():
        yield device
        return
    if not dist.is_available():
        raise ResourceError("this torch was built without torch.distributed; run it without torchrun")
    # Its functions have the group of all ranks as a default, taken when it is imported. Optimisers import it: by then
    # they would hold the group for ever, its threads would outlive the group's end, and end the process with an abort.
    import torch.distributed.nn.functional  # noqa: F401
    from torch.distributed.rendezvous import rendezvous  # which such a torch does not have

    wait, fine = _timeout(), False
    try:
        store, number, count = next(rendezvous("env://", timeout=wait))
        store = dist.PrefixStore(_meet(store, number, count, wait), store)  # type: ignore[attr-defined]  # it is public
    except (RuntimeError, ValueError) as error:
        raise ResourceError(f"the {started()} processes could not join: {_reason(error)}") from error
    with _watching(store):
        try:
            backend, device = _own_device(device)
            dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=wait)
            yield device
            fine = True
        except BaseException as error:
            _end(error, store, number)
        finally:
            # NCCL's own end waits for ranks that may never come; without it, the end of the process aborts NCCL.
            if _joined() and (fine or dist.get_backend() != "nccl"):
                dist.destroy_process_group()


def _timeout() -> timedelta:
    """How long a rank waits for the others before it says that they are gone."""
    text = os.environ.get("TOKENPHORMER_TIMEOUT", "300")
    try:
        wait = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        wait = timedelta(0)
    if wait <= timedelta(0):
        raise InputError(f"TOKENPHORMER_TIMEOUT: {text!r}; expected a number of seconds above 0")
    return wait


def _meet(store: Store, number: int, count: int, wait: timedelta) -> str:
    """A name that the ranks of this start share and no earlier start had.

    The store outlives a restart, with all that dead ranks have left in it, and hosts do not even count restarts alike.
    So the first rank makes a name, and who reads one waits until it is answered: a dead rank's name never is.
    """
    own, until = uuid4().hex, time.monotonic() + wait.total_seconds()
    if number == 0:
        store.set("tokenphormer", own)
        here = [store.get(f"{own} {other}").decode() for other in range(1, count)]
        store.set(f"{own} all", " ".join(here))
        return own
    while time.monotonic() < until:
        name = store.get("tokenphormer").decode()
        store.set(f"{name} {number}", own)
        if store.check([f"{name} all"]) and own in store.get(f"{name} all").decode():
            return name
        time.sleep(0.05)
    raise ResourceError("the first of them did not answer")


def _own_device(device: str) -> tuple[str, str]:
    """The backend and the device of this rank: a GPU of its own where GPUs are asked for.

    With TOKENPHORMER_SHARE_GPU=1 ranks share GPUs and talk through the CPU: for tests, since nothing gets faster.
    """
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return "gloo", device
    if device != "cuda":
        raise InputError(f"device: {device!r}; of several processes each has a GPU of its own: say 'cuda'")
    found, local = torch.cuda.device_count(), int(os.environ.get("LOCAL_RANK", "0"))
    here = max(local + 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    shared = os.environ.get("TOKENPHORMER_SHARE_GPU") == "1"
    if here > found and not shared:
        raise InputError(f"{here} processes on a host with {found} GPUs; start one a GPU, or add --device cpu")
    # Before anything touches a GPU, or every rank would take memory of the first one.
    torch.cuda.set_device(local % found)
    return "gloo" if shared else "nccl", f"cuda:{local % found}"


# ---------------------------------------------------------------- failing


def _end(error: BaseException, store: Store, number: int) -> NoReturn:
    """Raise a rank's error if it is the first to fail, else one that is silent."""
    if isinstance(error, RuntimeError) and _lost(error):
        gone = ResourceError(
            f"rank {number}: the other processes are gone ({_reason(error)}); "
            "what is on disk is whole: go on with --resume"
        )
        gone.__cause__, error = error, gone
    before = _failed_before(error, store)
    if before is not None and isinstance(error, TokenphormerError | OSError | MemoryError | KeyboardInterrupt):
        raise OtherRankError("another process failed, and has said why", before) from error
    raise error


def _failed_before(error: BaseException, store: Store) -> int | None:
    """Note this failure for the others; the exit code of the rank that failed first, if that was another."""
    answer: list[int] = []

    def ask() -> None:
        try:
            if isinstance(error, OtherRankError) or store.add("failures", 1) > 1:
                answer.append(int(store.get("code")))
            else:
                store.set("code", str(exit_code(error)))
        except RuntimeError:  # the store is gone with its host
            return

    asking = threading.Thread(target=ask, daemon=True)  # a cut network would keep it waiting
    asking.start()
    asking.join(ASK_SECONDS)
    return answer[0] if answer else None


@contextmanager
def _watching(store: Store) -> Iterator[None]:
    """End this process when another has failed and this one does not notice, since it waits for it inside NCCL."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            try:
                failed = store.check(["code"])
            except RuntimeError:  # the store is gone with its host; whoever needs that host will notice
                return
            if failed and not over.wait(GRACE_SECONDS):
                os._exit(int(store.get("code")))  # files are written atomically: nothing is left half-done

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join(ASK_SECONDS)  # a thread that comes back from C++ while Python ends would abort the process


def _lost(error: RuntimeError) -> bool:
    """Whether an error is torch's word for ranks that do not answer; gloo's errors have no class of their own."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


# ---------------------------------------------------------------- working together


def share(nodes: Tensor) -> Tensor:
    """The part of some nodes that is this rank's: all parts together are the nodes, each once."""
    return nodes if size() == 1 else torch.tensor_split(nodes, size())[rank()]


def total(values: Tensor) -> Tensor:
    """The sum over all ranks."""
    if not alone():
        dist.all_reduce(values)
    return values


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Sum the gradients of all ranks, in one message; a rank without nodes adds nothing.

    Parameters without a gradient, where others have one, are not in use: they stay without, as in a single process.
    """
    if alone():
        return
    wanted = [p for p in parameters if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
    idle = all(p.grad is None for p in wanted)
    flat = total(torch.cat([part.reshape(-1) for part in parts]))
    for parameter, piece in zip(wanted, torch.split(flat, [p.numel() for p in wanted]), strict=True):
        if idle or parameter.grad is not None:
            parameter.grad = piece.view_as(parameter)


def sum_rows(parameter: nn.Parameter, rows: Tensor) -> None:
    """Sum sparse gradients of the same `rows` of a matrix over all ranks."""
    if alone():
        return
    if parameter.grad is None:  # this rank had no part in the batch
        nothing = parameter.new_zeros(len(rows), *parameter.shape[1:])
        parameter.grad = torch.sparse_coo_tensor(rows[None], nothing, parameter.shape, check_invariants=False)
    total(parameter.grad._values())


def highest(values: list[int], device: torch.device) -> list[int]:
    """The highest of each number over all ranks."""
    if alone():
        return values
    numbers = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    found: list[int] = numbers.tolist()
    return found


def check_same(things: Mapping[str, str], device: torch.device) -> None:
    """Refuse to work together on different things: hosts may have other files, settings or versions."""
    if alone():
        return
    numbers = [int(sha256(text.encode()).hexdigest()[:15], 16) for text in things.values()]
    found = highest([*numbers, *(-n for n in numbers)], device)
    different = [name for name, high, low in zip(things, found, found[len(numbers) :], strict=False) if high != -low]
    if different:
        raise InputError(
            f"the processes differ in: {', '.join(different)}; every host needs the same files and versions"
        )


def from_first(content: bytes | None, device: torch.device) -> bytes | None:
    """What the first rank has, on all of them: a file that only its host can read."""
    if alone():
        return content
    length = torch.tensor(-1 if content is None else len(content), dtype=torch.int64, device=device)
    dist.broadcast(length, 0)
    if int(length) < 0:
        return None
    message = torch.empty(int(length), dtype=torch.uint8, device=device)
    if len(message):
        if content is not None and is_first():
            message.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(message, 0)
    return bytes(message.cpu().numpy().tobytes())


def file_of_first(path: Path, device: torch.device) -> bytes | None:
    """What a file on the first rank's host holds; None if it has none."""
    return from_first(path.read_bytes() if is_first() and path.exists() else None, device)


def text_of_first(text: str, device: torch.device) -> str:
    """What the first rank says."""
    told = from_first(text.encode(errors="surrogateescape"), device)
    assert told is not None
    return told.decode(errors="surrogateescape")


def on_first(work: Callable[[], None], device: torch.device) -> None:
    """Have the first rank do something, while the others wait; if it fails, all of them fail."""
    error: BaseException | None = None
    if is_first():
        try:
            work()
        except (TokenphormerError, OSError) as failed:
            error = failed
    (failed_there,) = highest([int(error is not None)], device)
    if error is not None:
        raise error
    if failed_there:
        raise OtherRankError("the first process failed, and has said why")


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _reason(error: Exception) -> str:
    """What an error of torch says, without the place in its source and the advice after it."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line.rpartition(".cc:")[2].partition("] ")[2].partition(". ")[0] or line[:200]
