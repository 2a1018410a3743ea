"""What the processes of `test_distributed.py` do: `python -m tests.ranks train|talk|cli …`, in each of them.

Light on imports: every test pays for them once a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.tiny import CPU, tiny_config, tiny_graph
from tests.training.methods import LinearMethod, linear_trainer
from tokenphormer import distributed
from tokenphormer.errors import InputError, exit_code
from tokenphormer.graph import Split
from tokenphormer.sgpm import PretrainedSGPM, SGPMSettings, pretraining
from tokenphormer.sgpm.pretrain_run import find_or_pretrain
from tokenphormer.training import fit
from tokenphormer.training.checkpoint import save_checkpoint
from tokenphormer.training.loop import Trainer, predict

GRAPH = tiny_graph()
SPLIT = Split(range(31), range(31, 45), range(45, 60))
"""31 nodes in batches of 10: the last batch is one node, and of several ranks one alone has a part in it."""
EXACT: dict[str, Any] = {
    "precision": "float32",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "weight_decay": 0.1,
    "patience": 100,
}
CASES: dict[str, dict[str, Any]] = {
    "one batch": {"max_epochs": 20},
    "uneven batches": {"max_epochs": 5, "batch_size": 10},
    "weights of classes": {"max_epochs": 5, "batch_size": 10, "class_weights": "balanced", "label_smoothing": 0.1},
    "fresh walks": {"max_epochs": 5, "batch_size": 10, "fresh_walks": True, "laplacian_pe": 2, "gradient_clip": 0.1},
    "scores passed on": {"max_epochs": 5, "batch_size": 10, "score_hops": 2},
}
"""20 updates each."""
SMALL_SGPM: dict[str, Any] = {
    "train_sentences": 3,
    "val_sentences": 2,
    "mean_length": 3.0,
    "hidden_channels": 8,
    "num_layers": 1,
    "num_heads": 2,
    "epochs": 2,
    "batch_size": 20,
    "learning_rate": 1e-3,
    "dropout": 0.0,
    "gradient_clip": 0.5,
    "precision": "float32",
}
"""Sentences of every length make batches of their own: some are of one sentence, in which one rank alone has a part."""
PRETRAININGS: dict[str, dict[str, Any]] = {"whole softmax": {}, "sampled softmax": {"negatives": 7}}
FEW = [7, 3, 7]
"""Nodes to predict; of four ranks one has none."""


def trained(case: str, device: torch.device = CPU) -> dict[str, torch.Tensor]:
    """What training gives in this rank: the last weights, the history, predictions and walks."""
    last: dict[str, torch.Tensor] = {}

    def keep(trainer: Trainer) -> None:
        last.update({f"weight {n}": t.cpu().clone() for n, t in trainer.method.module.state_dict().items()})
        last["updates"] = torch.tensor(trainer.progress.updates)

    config = tiny_config(**(EXACT | CASES[case]))
    fitted = fit.fit_tokenphormer(GRAPH, SPLIT, config, device, after_epoch=keep)
    last["history"] = torch.tensor([[row["train_loss"], row["val_loss"]] for row in fitted.progress.history])
    for name, nodes in (("all", np.arange(60)), ("few", np.array(FEW))):
        last[f"predicted {name}"] = torch.from_numpy(
            predict(fitted.method, nodes, config.replace({"votes": 2}), device)
        )
    fitted.method.source.begin_epoch(3)
    last["walks"] = fitted.method.source.walks(torch.arange(60, device=device)).cpu()
    return last


def pretrained(case: str, device: torch.device = CPU) -> dict[str, torch.Tensor]:
    """What pre-training gives in this rank; with a vocabulary that counts as large, or not."""
    changes = PRETRAININGS[case]
    before = pretraining.SPARSE_VOCABULARY
    pretraining.SPARSE_VOCABULARY = 3 if "negatives" in changes else before
    try:
        trainer = pretraining.Pretrainer(GRAPH, SGPMSettings(**(SMALL_SGPM | changes)), device)
    finally:
        pretraining.SPARSE_VOCABULARY = before
    assert trainer.sparse == ("negatives" in changes)
    trainer.run()
    found = {f"weight {name}": tensor.cpu() for name, tensor in trainer.model.state_dict().items()}
    rows = [[row[name] for name in ("train_loss", "val_loss", "val_accuracy")] for row in trainer.progress.history]
    counts = torch.tensor([trainer.progress.sentences, trainer.progress.tokens])
    return found | {"history": torch.tensor(rows), "counts": counts}


def short_of_memory() -> dict[str, torch.Tensor]:
    """Training where only the last rank cannot hold more than three nodes."""
    memory = 3 if distributed.rank() == distributed.size() - 1 else 10**9
    method = LinearMethod(memory=memory)
    linear_trainer(method, max_epochs=10).run()
    return dict(method.module.state_dict()) | {"memory": torch.tensor(memory)}


def train(out: Path) -> None:
    """Every case, into one file a rank; and a checkpoint that is no checkpoint. No thread of gloo's outlives it."""
    train_joined(out)
    tasks = Path("/proc/self/task")  # Linux has it
    threads = [(task / "comm").read_text() for task in tasks.iterdir()] if tasks.exists() else []
    assert not [name for name in threads if "gloo" in name], threads


def train_joined(out: Path) -> None:
    with distributed.joined(os.environ.get("RANKS_DEVICE", "cpu")) as own:
        device = torch.device(own)
        found = {f"{case}: {name}": value for case in CASES for name, value in trained(case, device).items()}
        if device != CPU:  # what follows has nothing to do with devices, but for pre-training
            if distributed.size() == 1:
                cases = {case: pretrained(case, device) for case in PRETRAININGS}
                found |= {f"{case}: {name}": value for case, values in cases.items() for name, value in values.items()}
            save_file(found, out / f"{distributed.rank()}.safetensors", {"backend": dist.get_backend()})
            return
        found |= {f"memory: {name}": value for name, value in short_of_memory().items()}
        found |= {f"{case}: {name}": value for case in PRETRAININGS for name, value in pretrained(case).items()}
        save_file(found, out / f"{distributed.rank()}.safetensors")
        refuse(out)


def refuse(out: Path) -> None:
    """Checkpoints that are none, which only the first rank's host can read: what each rank says to them."""
    good, bad = out / f"checkpoint-{distributed.rank()}", out / f"bad-{distributed.rank()}"
    trainer = linear_trainer(LinearMethod())
    save_checkpoint(good, trainer, {})
    whole = good.read_bytes()
    changed = bytes([whole[-1] ^ 1])
    for content in (b"", b"not a checkpoint", whole[:-1], whole[:-1] + changed, whole):
        bad.write_bytes(content if distributed.is_first() else b"")
        try:
            fit.fit_tokenphormer(GRAPH, SPLIT, tiny_config(), CPU, checkpoint=bad)
            told = "accepted"
        except InputError as error:
            told = str(error)
        with (out / f"refused-{distributed.rank()}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{told}\n")


# ---------------------------------------------------------------- what they say to each other


def agree() -> object:
    first = distributed.is_first()
    return {
        "highest": distributed.highest([distributed.rank(), -distributed.rank()], CPU),
        "bytes": [len(distributed.from_first(b"x" * n if first else None, CPU) or b"") for n in (0, 1, 100_000)],
        "nothing": distributed.from_first(None if first else b"y", CPU),
        "text": distributed.text_of_first("ä" if first else "b", CPU),
        "same": distributed.check_same({"graph": "one", "split": "two"}, CPU),
    }


def differ() -> None:
    distributed.check_same({"graph": "one", "split": f"two {distributed.rank()}"}, CPU)


def fail_on_one() -> None:
    if not distributed.is_first():
        raise InputError("row 7 is wrong")
    distributed.total(torch.ones(1))


def fail_on_first() -> None:
    def work() -> None:
        raise InputError("the folder is taken")

    distributed.on_first(work, CPU)


def fail_alike() -> None:
    raise InputError("all of us see it")


def find_sgpm() -> object:
    """`find_or_pretrain` on hosts with a cache each (`RANKS_CACHES`): what every rank has after each call."""
    caches, found = Path(os.environ["RANKS_CACHES"]), []
    own, trained = caches / str(distributed.rank()), 0

    def count(_: object) -> None:
        nonlocal trained
        trained += 1

    def find() -> Path:
        nonlocal trained
        trained = 0
        pretrained = find_or_pretrain(GRAPH, SGPMSettings(**SMALL_SGPM), CPU, root=own, after_chunk=count)
        everyone = sorted(path.parent.parent.name for path in caches.glob("*/*/sgpm.json"))
        (chunks,) = distributed.highest([trained], CPU)  # from here on a rank may change what others have looked at
        found.append({"hash": pretrained.hash, "trained": chunks > 0, "cached": everyone})
        (kept,) = (caches / "0").iterdir()
        return kept

    kept = find()  # nobody has one
    find()  # the first rank has
    if not distributed.is_first():  # all have, the others another one
        copy = shutil.copytree(kept, own / kept.name)
        other = PretrainedSGPM.load(copy, CPU)
        with torch.no_grad():
            other.model.table.add_(1.0)
        other.save(copy / "sgpm.safetensors")
        manifest = json.loads((copy / "sgpm.json").read_text()) | {
            "sha256": hashlib.sha256((copy / "sgpm.safetensors").read_bytes()).hexdigest()
        }
        (copy / "sgpm.json").write_text(json.dumps(manifest))
    distributed.highest([0], CPU)
    find()
    if not distributed.is_first():  # all have the same
        shutil.copytree(kept, own / kept.name, dirs_exist_ok=True)
    distributed.highest([0], CPU)
    find()
    return found


def find_damaged_sgpm() -> None:
    """The cache of the first rank is damaged, the other has none."""
    own = Path(os.environ["RANKS_CACHES"]) / str(distributed.rank())
    if distributed.is_first():
        (weights,) = own.glob("*/sgpm.safetensors")
        weights.write_bytes(b"junk")
    else:
        shutil.rmtree(own)
    find_or_pretrain(GRAPH, SGPMSettings(**SMALL_SGPM), CPU, root=own)


def never_come() -> None:
    if distributed.is_first():
        distributed.total(torch.ones(1))
    time.sleep(60)  # and never notices that the first has given up


TALKS: list[Callable[[], object]] = [
    agree,
    differ,
    fail_on_one,
    fail_on_first,
    fail_alike,
    find_sgpm,
    find_damaged_sgpm,
    never_come,
]


def talk(out: Path, ports: list[str]) -> None:
    """One thing after the other, each at a port of its own; what this rank gave or raised becomes a line of JSON."""
    distributed.LOOK_SECONDS = distributed.GRACE_SECONDS = 0.5
    for work, port in zip(TALKS, ports, strict=True):
        os.environ["MASTER_PORT"] = port
        os.environ["TOKENPHORMER_TIMEOUT"] = "2" if work is never_come else "30"
        found: dict[str, object] = {"name": work.__name__}
        began = time.monotonic()
        try:
            with distributed.joined("cpu"):
                found["gave"] = work()
        except Exception as error:
            found |= {"kind": type(error).__name__, "said": str(error), "code": exit_code(error)}
        with (out / f"{os.environ['RANK']}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found | {"seconds": time.monotonic() - began}) + "\n")


# ---------------------------------------------------------------- the command line, with faults


def cli() -> None:
    """The command line, with a checkpoint every epoch; FAULT says what happens on the way.

    `slow`: epochs take 50 ms. `kill 8`: the last rank is killed at its eighth update, if it was not started again.
    """
    from tokenphormer import cli

    fit.CHECKPOINT_SECONDS = pretraining.CHECKPOINT_SECONDS = 0.0
    for kind in (Trainer, pretraining.Pretrainer):
        kind._update = faulty(kind._update)  # type: ignore[attr-defined]
    cli.main()


def faulty(update: Callable[..., object]) -> Callable[..., object]:
    fault, updates = os.environ.get("FAULT", ""), 0

    def faulty_update(*arguments: object) -> object:
        nonlocal updates
        updates += 1
        if fault == "slow":
            time.sleep(0.01)
        first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if fault == f"kill {updates}" and first_time and distributed.rank() == distributed.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return update(*arguments)

    return faulty_update


if __name__ == "__main__":
    torch.set_num_threads(1)
    what = sys.argv.pop(1)
    if what == "train":
        train(Path(sys.argv[1]))
    elif what == "talk":
        talk(Path(sys.argv[1]), sys.argv[2:])
    else:
        cli()
