"""No memory on a GPU, for real: smaller pieces where that helps, one clear line where it does not, and nothing lost."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.test_cli import Cli, cli
from tests.tiny import tiny_graph, tiny_split, write_folder
from tokenphormer.errors import ResourceError
from tokenphormer.evaluation.runs import train_run
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.tokens import TokenSettings, TokenSource
from tokenphormer.training import fit
from tokenphormer.training.loop import Trainer
from tokenphormer.training.settings import Config

__all__ = ["cli"]  # the fixture

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
GRAPH = tiny_graph(600)
SPLIT = tiny_split(GRAPH)
WIDE: dict[str, Any] = {
    "hidden_channels": 256,
    "num_walks": 60,
    "num_layers": 2,
    "max_epochs": 4,
    "warmup_updates": 1,
    "learning_rate": 1e-3,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "precision": "float32",
    "compile": "no",
}
"""Some hundreds of megabytes for the 360 training nodes together, a few for one."""


@contextmanager
def only(more: int) -> Iterator[None]:
    """This process may have only so many bytes of the GPU beside what it holds now."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(GPU).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(GPU) + more) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        torch.cuda.empty_cache()


def take_the_rest() -> list[torch.Tensor]:
    """Leave this process nothing more of the GPU, not even gaps in what it has."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(GPU).total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved(GPU) / total)
    taken: list[torch.Tensor] = []
    for size in (16 << 20, 1 << 20, 1 << 16, 1 << 9):
        with suppress(torch.OutOfMemoryError):
            while True:
                taken.append(torch.empty(size, dtype=torch.uint8, device=GPU))
    return taken


@contextmanager
def nothing() -> Iterator[None]:
    """The same for a while."""
    with only(0):
        taken = take_the_rest()
        try:
            yield
        finally:
            taken.clear()


def run(out: Path, **options: Any) -> list[str]:
    """Train into a folder; what was said."""
    said: list[str] = []
    train_run(GRAPH, "tiny", SPLIT, Config(**WIDE), out, GPU, say=said.append, **options)
    return said


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model.safetensors")


def check_close(found: Path, expected: Path) -> None:
    """Sums over pieces round differently, and the optimiser makes much of little."""
    for name, value in weights(expected).items():
        torch.testing.assert_close(weights(found)[name], value, rtol=5e-3, atol=5e-3)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run with all the memory it likes, and how much that was."""
    out = tmp_path_factory.mktemp("memory") / "run"
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(GPU)
    before = torch.cuda.memory_reserved(GPU)
    assert not [text for text in run(out) if "memory" in text]
    return out, torch.cuda.max_memory_reserved(GPU) - before


def test_smaller_pieces_where_there_is_less(tmp_path: Path, reference: tuple[Path, int]) -> None:
    whole, needed = reference
    with only(needed // 2):
        said = run(tmp_path / "run")
    assert any(text.startswith("out of memory: the batch is now worked off ") for text in said)
    check_close(tmp_path / "run", whole)


def test_a_clear_line_where_there_is_none_and_the_run_goes_on_later(
    tmp_path: Path, reference: tuple[Path, int]
) -> None:
    whole, needed = reference
    out = tmp_path / "run"
    with nothing(), pytest.raises(ResourceError, match=r"not enough memory: |out of memory with a single node"):
        run(out)
    assert not (out / "run.json").exists()
    assert not [path for path in out.rglob("*") if path.name.endswith(".partial")]
    with only(needed // 2):
        run(out, resume=True)
    check_close(out, whole)


def test_memory_that_goes_between_epochs(
    tmp_path: Path, reference: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of the last whole epoch stays, and the rest is trained from it, in smaller pieces."""
    whole, needed = reference
    monkeypatch.setattr(fit, "CHECKPOINT_SECONDS", 0.0)
    out = tmp_path / "run"

    def take_all(_: int, trainer: Trainer) -> None:
        if trainer.progress.epoch == 2:
            taken.extend(take_the_rest())

    taken: list[torch.Tensor] = []
    with only(2 * needed), pytest.raises(ResourceError, match=r"out of memory with a single node|not enough memory"):
        run(out, after_epoch=take_all)
    taken.clear()
    assert (out / "seeds" / "0" / "checkpoint.safetensors").exists()
    with only(needed // 2):
        said = run(out, resume=True)
    assert "going on after epoch 2" in said
    check_close(out, whole)


def test_predicting_says_it_in_one_line(cli: Cli, reference: tuple[Path, int]) -> None:
    write_folder(GRAPH, Path("mine"))
    with nothing():
        answer = cli("predict", reference[0], "mine", "--out", "p.csv", "--device", "cuda")
    assert answer.code == 3, answer
    assert "not enough memory" in answer.err.splitlines()[-1] or "out of memory" in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err
    assert not Path("p.csv").exists()


def test_a_graph_that_does_not_fit_beside_what_is_there_goes_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told so by the GPU's free memory; and when that was wrong, by running out of it on the way."""
    monkeypatch.delenv("TOKENPHORMER_SHARE_GPU", raising=False)
    rng = np.random.default_rng(0)
    big = tiny_graph(20_000, num_features=200, x=rng.normal(size=(20_000, 200)).astype(np.float32))
    write_graph(big, tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    with only(40 << 20):  # 64 MB are needed
        source = TokenSource(graph, TokenSettings(num_hops=3), GPU)
    assert source.resident is None
    assert len(list((tmp_path / "g" / "cache").glob("*.npy"))) == 3
    again = TokenSource(graph, TokenSettings(num_hops=3), GPU)
    assert again.resident is not None
    nodes = torch.tensor([0, 19_999, 5], device=GPU)
    for one, other in zip(again.batch(nodes).hop_rows, source.batch(nodes).hop_rows, strict=True):
        assert one.dense is not None
        torch.testing.assert_close(one.dense, other.dense, rtol=1e-4, atol=1e-5)
