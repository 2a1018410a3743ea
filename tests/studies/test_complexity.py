"""Counted operations and kept bytes, exactly; times only in that they are there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tokenphormer.studies import complexity


@pytest.mark.parametrize("shape", [(3, 7, 16), (2, 40, 8), (1, 5, 512)])
def test_operations_are_those_that_torch_counts(shape: complexity.Shape) -> None:
    """One layer forward, with attention as plain products: fused on a CPU, torch does not count it."""
    nodes, tokens, width = shape
    model = complexity.encoder(width)
    H = torch.randn(nodes, tokens, width)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.layers[0](H)
    attention, linear = complexity.operations(*shape)
    assert counter.get_total_flops() == attention + linear
    share = complexity.attention_share(*shape)
    assert share == pytest.approx(tokens / (tokens + 4 * width))


def test_attention_is_the_smaller_part_at_the_papers_sizes() -> None:
    assert complexity.attention_share(*complexity.PAPER) < 0.05


def test_slopes_of_power_laws() -> None:
    x = [1, 2, 4, 8]
    assert complexity.slope(x, [3 * v**1.7 for v in x]) == pytest.approx(1.7)
    assert complexity.slope(x, [5.0] * 4) == pytest.approx(0)


def test_kept_bytes_are_linear_in_nodes() -> None:
    one, two, four = (complexity.kept_bytes((nodes, 12, 16)) for nodes in (1, 2, 4))
    assert two - one == (four - two) / 2
    assert one > 12 * 16 * 4  # more than the input alone


def test_the_matrix_of_attention_is_kept_only_where_it_is_not_fused() -> None:
    fused, plain = complexity.memory_row(64), complexity.memory_row(288)
    assert (fused.attention, fused.bytes_per_token_squared) == ("fused", 0)
    assert (plain.attention, plain.bytes_per_token_squared) == ("plain", 4)  # one float for each pair of tokens


def test_memory_is_linear_in_the_width() -> None:
    small, large = (complexity.memory_row(width) for width in (32, 64))
    assert large.bytes_per_token / small.bytes_per_token == pytest.approx(2, rel=0.03)


def test_threads_come_back() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with complexity.one_thread():
            assert torch.get_num_threads() == 1
            raise RuntimeError("inside")

    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="inside"):
            fail()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_study_writes_what_it_says(tmp_path: Path) -> None:
    sweeps = {
        "nodes": ((1, 4, 8), (2, 4, 8)),
        "tokens, width 16": ((1, 4, 16), (1, 8, 16)),
        "width, 16 tokens": ((1, 4, 8), (1, 4, 16)),
    }
    result = complexity.study(sweeps, graphs=(20, 40), repeats=1)
    slopes = {row.sweep: row for row in result.slopes}
    assert slopes["nodes"].operations == pytest.approx(1)
    assert slopes["tokens, width 16"].claimed == 2
    assert all(row.seconds > 0 for row in result.costs)
    assert all(np.isfinite(row.seconds) for row in result.slopes)
    names = {path.name for path in complexity.write(result, tmp_path)}
    assert {"costs.csv", "slopes.csv", "memory.csv", "steps.csv", "time.png", "memory.svg"} <= names
