"""Graphs on disk that stay on the device whole: the numbers of `stored_hops`, by the kernel and by its plain twin."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import CPU, tiny_config, tiny_graph, tiny_split
from tests.tokens.test_stored_hops import WIDTH, N, graph_on_disk
from tokenphormer.errors import InputError
from tokenphormer.graph import Graph, to_device
from tokenphormer.graph.disk import open_graph
from tokenphormer.graph.disk_writer import write_graph
from tokenphormer.graph.to_device import read_tensor, stored_tensor
from tokenphormer.hops import NORMALISATIONS, Normalisation, propagate, propagation_matrix
from tokenphormer.tokens import TokenSettings, TokenSource
from tokenphormer.tokens import resident as module
from tokenphormer.tokens.resident import VARIABLE, is_resident, propagate_on_device, resident, resident_bytes
from tokenphormer.tokens.stored_hops import row_normalised, stored_hops
from tokenphormer.training.estimate import estimate
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.loop import predict
from tokenphormer.training.tokenphormer import TokenphormerMethod
from tokenphormer.walks import sampling
from tokenphormer.walks.sampling import csr_tensors

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")


def by_kernel(graph: Graph, x: torch.Tensor, normalisation: Normalisation, scale: Any) -> torch.Tensor:
    """One hop by the Triton kernel; interpreted where there is no GPU."""
    kernel = pytest.importorskip("tokenphormer.tokens.hop_kernel", reason="needs triton")
    csr = csr_tensors(graph, DEVICE)
    left, right = module._scales(csr.indptr, normalisation)
    right = right if scale is None else scale if right is None else right * scale
    out = torch.empty_like(x)
    kernel.one_hop(csr.indptr, csr.indices, left, right, normalisation == "symmetric", x, out)
    return out


# ---------------------------------------------------------------- hops


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("changes", [{}, {"self_loops": True}, {"directed": True}], ids=["plain", "loops", "directed"])
def test_hops_are_those_on_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    normalisation: Normalisation,
    normalise: bool,
    half: bool,
) -> None:
    monkeypatch.setattr(module, "EDGES_AT_ONCE", 300)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 64)
    _, graph = graph_on_disk(tmp_path, half=half, **changes)
    expected = stored_hops(graph, normalisation, 3, normalise=normalise)
    found = resident(graph, normalisation, 3, DEVICE, normalise=normalise)
    assert found is not None
    close = 1e-3 if half else 1e-6  # of the largest number that was added: float16 has 11 bits
    for a, b in zip(expected, found.hops, strict=True):
        assert b.dtype == (torch.float16 if half else torch.float32)
        near(b, a, close)
    twin = propagate_on_device(graph, csr_tensors(graph, CPU), found.x.cpu(), normalisation, 1, _cpu(found.scale))
    one = by_kernel(graph, found.x, normalisation, found.scale)
    near(one, twin[0].numpy(), close)
    rows = found.rows(torch.tensor([7, 5, 299], device=DEVICE)).dense
    x = np.asarray(graph.x)[[7, 5, 299]].astype(np.float32)
    assert rows is not None
    np.testing.assert_allclose(rows.cpu(), row_normalised(x) if normalise else x, rtol=1e-6)


def near(found: torch.Tensor, expected: Any, close: float) -> None:
    wanted = np.asarray(expected, dtype=np.float32)
    np.testing.assert_allclose(found.float().cpu(), wanted, rtol=close, atol=close * float(np.abs(wanted).max()))


def _cpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.cpu()


@pytest.mark.parametrize("width", [1, 3, 128, 200])
def test_widths_and_long_rows(tmp_path: Path, width: int) -> None:
    """A hub with all nodes around it, rows of every length below that, and nodes without an edge."""
    rng = np.random.default_rng(0)
    star = np.stack([np.zeros(40, dtype=int), np.arange(1, 41)])
    edges = np.concatenate([star, rng.integers(0, 45, (2, 60))], axis=1)
    graph = Graph.from_edges(edges, num_nodes=50, x=rng.normal(size=(50, width)).astype(np.float32))
    write_graph(graph, tmp_path / "g", half=True)
    stored = open_graph(tmp_path / "g")
    x = stored_tensor(stored, "x", DEVICE)
    for normalisation in NORMALISATIONS:
        (expected,) = stored_hops(stored, normalisation, 1)
        found = by_kernel(stored, x, normalisation, None)
        near(found, expected, 1e-3)


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("piece", [7, 64, 1 << 20])
def test_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(to_device, "PIECE", piece)
    for number, array in enumerate([np.arange(1000), np.arange(12.0).reshape(3, 4).astype(np.float16), np.zeros(0)]):
        np.save(tmp_path / f"{number}.npy", array)
        found = read_tensor(tmp_path / f"{number}.npy", DEVICE).cpu().numpy()
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"a\.npy: ends too early"):
        read_tensor(tmp_path / "a.npy", DEVICE)


def test_another_array_in_its_place_is_not_read_from_the_file(tmp_path: Path) -> None:
    _, graph = graph_on_disk(tmp_path)
    other = dataclasses.replace(graph, x=np.ones((N, WIDTH), np.float32))
    assert not is_resident(other, 1, DEVICE)
    assert bool((stored_tensor(other, "x", DEVICE) == 1).all())


# ---------------------------------------------------------------- batches and training


@pytest.mark.parametrize("changes", [{}, {"normalise_features": True}, {"num_walks": 0}, {"num_hops": 0}], ids=str)
def test_predictions_are_those_of_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    write_graph(tiny_graph(), tmp_path / "g")
    graph = open_graph(tmp_path / "g")
    config = tiny_config(**({"num_hops": 2} | changes))
    fitted = fit_tokenphormer(graph, tiny_split(graph), config, CPU)
    assert fitted.method.source.resident is not None
    assert not (tmp_path / "g" / "cache").exists(), "nothing is written"
    monkeypatch.setenv(VARIABLE, "no")
    other = TokenphormerMethod(open_graph(tmp_path / "g"), config, 3, CPU, weights=fitted.method.module.state_dict())
    assert other.source.resident is None
    everyone = np.arange(graph.num_nodes)
    found = predict(fitted.method, everyone, config, CPU)
    assert np.allclose(found, predict(other, everyone, config, CPU), atol=1e-5)


def test_it_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, graph = graph_on_disk(tmp_path)
    first = TokenSource(graph, TokenSettings(num_hops=2), DEVICE).resident
    assert TokenSource(graph, TokenSettings(num_hops=2), DEVICE, seed=1).resident is first
    other = TokenSource(graph, TokenSettings(num_hops=1), DEVICE).resident
    assert other is not None
    assert len(other.hops) == 1
    assert len(sampling._tensors[graph]) == 1, "walks share the edges"


def test_other_settings_have_hops_of_their_own(tmp_path: Path) -> None:
    """In an order where each of the two settings changes alone, since the last one is kept."""
    _, graph = graph_on_disk(tmp_path)
    pairs = [(normalisation, normalise) for normalisation in NORMALISATIONS for normalise in (False, True)]
    for normalisation, normalise in [*pairs, *sorted(pairs, key=lambda pair: pair[1])]:
        found = resident(graph, normalisation, 2, DEVICE, normalise=normalise)
        assert found is not None
        x = row_normalised(np.asarray(graph.x)) if normalise else np.asarray(graph.x)
        near(found.hops[1], propagate(propagation_matrix(graph, normalisation), x, 2)[1], 1e-6)
        assert (found.scale is None) == (not normalise)


def test_what_keeps_the_other_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, changes in (("weights", {"edge_weight": np.ones(900)}), ("sparse", {"sparse": True}), ("none", {})):
        (tmp_path / name).mkdir()
        _, graph = graph_on_disk(tmp_path / name, **changes)
        assert is_resident(graph, 1, CPU) == (name == "none")
    assert TokenSource(graph, TokenSettings(num_hops=1, walk_pe=2), DEVICE).resident is None
    monkeypatch.setenv(VARIABLE, "auto")
    assert not is_resident(graph, 1, CPU)
    monkeypatch.setenv(VARIABLE, "no")
    assert not is_resident(graph, 1, CPU)
    monkeypatch.setenv(VARIABLE, "maybe")
    with pytest.raises(InputError, match="TOKENPHORMER_RESIDENT: 'maybe'; expected auto, yes or no"):
        is_resident(graph, 1, CPU)


def test_whether_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, graph = graph_on_disk(tmp_path, half=True)
    needed = resident_bytes(graph, 3)
    edges = 8 * (N + 1) + 4 * graph.num_directed_edges
    assert needed == edges + 2 * N * WIDTH * 4 + 4 * N
    assert resident_bytes(graph, 3, normalise=True) == needed + 4 * N
    monkeypatch.setenv(VARIABLE, "auto")
    gpu, free = torch.device("cuda:0"), needed + module.reserve_bytes(graph)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 60)
    for there, fits in ((free - 40, True), (free - 41, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, there=there: (there, 0))
        assert is_resident(graph, 3, gpu) == fits
        assert not is_resident(graph, 3, gpu, normalise=True)
    monkeypatch.setattr(module, "has_tensors", lambda *_: True)  # walks were drawn before, from the same edges
    for there, fits in ((free - 40 - edges, True), (free - 41 - edges, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, there=there: (there, 0))
        assert is_resident(graph, 3, gpu) == fits
    monkeypatch.setenv("TOKENPHORMER_SHARE_GPU", "1")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 0))
    assert not is_resident(graph, 3, gpu)


def test_memory_that_runs_out_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way is then taken."""
    _, graph = graph_on_disk(tmp_path)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module, "_make", fail)
    source = TokenSource(graph, TokenSettings(num_hops=1), CPU)
    assert source.resident is None
    assert len(source._parts) == 2


def test_the_estimate_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_graph(tiny_graph(), tmp_path / "g", half=True)
    graph = open_graph(tmp_path / "g")
    config = tiny_config(num_hops=3)
    found = estimate(graph, tiny_split(graph), config, CPU)
    assert found.resident_bytes == resident_bytes(graph, 3)
    assert found.disk_bytes == 0
    assert found.prepare_seconds > 0
    assert not any("which stay there" in line for line in found.lines())
    there = dataclasses.replace(found, gpu_bytes=10**11, resident_bytes=9 * 10**10)
    assert any("100.0 GB, of which 90.0 GB are the graph and its hop features" in line for line in there.lines())
    monkeypatch.setenv(VARIABLE, "no")
    assert estimate(graph, tiny_split(graph), config, CPU).resident_bytes == 0


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
def test_training_on_a_gpu_keeps_the_graph_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "auto")
    monkeypatch.delenv("TOKENPHORMER_SHARE_GPU", raising=False)
    write_graph(tiny_graph(300), tmp_path / "g", half=True)
    graph, gpu = open_graph(tmp_path / "g"), torch.device("cuda")
    config = tiny_config(num_hops=2, precision="float32", num_walks=8, max_epochs=5, batch_size=50, dropout=0.0)
    guess = estimate(graph, tiny_split(graph), config, gpu)
    assert guess.resident_bytes == resident_bytes(graph, 2)
    fitted = fit_tokenphormer(graph, tiny_split(graph), config, gpu)
    kept = fitted.method.source.resident
    assert kept is not None
    assert kept.x.is_cuda
    assert not (tmp_path / "g" / "cache").exists()
    assert len(sampling._tensors[graph]) == 1, "cuda and cuda:0 are the same"
    everyone = np.arange(graph.num_nodes)
    found = predict(fitted.method, everyone, config, gpu)
    here = {name: tensor.cpu() for name, tensor in fitted.method.module.state_dict().items()}
    monkeypatch.setenv(VARIABLE, "no")
    other = TokenphormerMethod(open_graph(tmp_path / "g"), config, 3, CPU, weights=here)
    np.testing.assert_allclose(found, predict(other, everyone, config, CPU), atol=0.01)


@pytest.mark.gpu
def test_a_hop_over_more_than_two_to_the_31_edges_and_numbers() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 40e9:
        pytest.skip(f"needs 40 GB of GPU memory, {free / 1e9:.0f} are free")
    from tokenphormer.tokens import hop_kernel

    nodes, degree, width = 30_000_000, 75, 128
    assert nodes * degree > 2**31
    torch.manual_seed(0)
    indptr = torch.arange(nodes + 1, device="cuda") * degree
    indices = torch.randint(nodes, (nodes * degree,), dtype=torch.int32, device="cuda")
    x = torch.empty(nodes, width, dtype=torch.float16, device="cuda").normal_()
    out = torch.empty_like(x)
    left, right = module._scales(indptr, "symmetric")
    hop_kernel.one_hop(indptr, indices, left, right, True, x, out)
    for row in (0, nodes // 2, nodes - 1):
        around = indices[row * degree : (row + 1) * degree].long()
        expected = (x[around].float().sum(dim=0) + x[row].float()) / (degree + 1)
        torch.testing.assert_close(out[row].float(), expected, rtol=2e-3, atol=2e-3)
