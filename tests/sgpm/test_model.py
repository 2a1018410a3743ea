"""SGPM: its input is the sum of four vectors, each of which can be left out, and it reads in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.sgpm.graphs import quick
from tests.tiny import CPU
from tokenphormer.sgpm.model import CLS, MASK, PAD, SEP, SGPM, SPECIAL, UNK
from tokenphormer.tokens.operators import FeatureRows

N, FEATURES, BINS, MOST = 9, 4, 3, 6
WORDS = torch.tensor([[N + CLS, 3, N + MASK, 7, 1, N + SEP], [N + CLS, 0, 2, N + UNK, 8, N + SEP]])
SEEN = torch.tensor([[-1, 3, -1, 7, 1, -1], [-1, 0, 2, 5, 8, -1]])
X = torch.randn(N, FEATURES, generator=torch.Generator().manual_seed(1))
BIN = torch.arange(N) % BINS
INPUTS = ("tokens", "positions", "features", "centrality")


def build(seed: int = 0, **changes: Any) -> SGPM:
    torch.manual_seed(seed)
    model = SGPM(N, FEATURES, BINS, MOST, quick(**changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases too, so that leaving one out would show
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def states(model: SGPM, words: Tensor = WORDS, seen: Tensor = SEEN, x: Tensor = X, bins: Tensor = BIN) -> Tensor:
    projected = model.project(FeatureRows.on(CPU, x.numpy()), torch.float32)
    found: Tensor = model(words, seen, projected, bins, torch.float32)
    return found.detach()


def summed(model: SGPM, **changes: Any) -> Tensor:
    """What enters the first norm."""
    caught: list[Tensor] = []
    hook = model.input_norm.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    states(model, **changes)
    hook.remove()
    return caught[0].detach()


# ---------------------------------------------------------------- the sum


def test_the_input_is_the_sum_of_four() -> None:
    model = build()
    assert model.features is not None
    assert model.positions is not None
    assert model.centrality is not None
    found = summed(model)
    for row in range(2):
        for place in range(6):
            node = int(SEEN[row, place])
            expected = model.table[WORDS[row, place]] + model.positions[place]
            if node >= 0:
                expected = expected + model.features.weight @ X[node] + model.centrality[BIN[node]]
            torch.testing.assert_close(found[row, place], expected.detach())


def parts(model: SGPM) -> dict[str, Tensor]:
    """(2, 6, h) what each of the four inputs adds."""
    seen = (SEEN >= 0)[..., None]
    found = {"tokens": model.table[WORDS]}
    found["positions"] = torch.zeros(()) if model.positions is None else model.positions[:6].expand(2, 6, -1)
    found["features"] = torch.zeros(()) if model.features is None else (X[SEEN] @ model.features.weight.t()) * seen
    found["centrality"] = torch.zeros(()) if model.centrality is None else model.centrality[BIN[SEEN]] * seen
    return {name: tensor.detach() for name, tensor in found.items()}


@pytest.mark.parametrize("off", INPUTS)
def test_an_input_left_out_is_missing_from_the_sum_and_nothing_else(off: str) -> None:
    model = build(**{f"use_{off}": False})
    added = parts(model)
    assert off == "tokens" or not added[off].any()
    expected = sum((added[name] for name in INPUTS if name != off), torch.zeros(()))
    if off == "tokens":  # which special word stands there has to be known still
        expected = expected + added["tokens"] * (SEEN < 0)[..., None]
    torch.testing.assert_close(summed(model), expected)
    names = {name for name, _ in model.named_parameters()}
    everything = {name for name, _ in build().named_parameters()}
    gone = {"tokens": set(), "positions": {"positions"}, "features": {"features.weight"}, "centrality": {"centrality"}}
    assert everything - names == gone[off]


def swapped_words(model: SGPM) -> Tensor:
    other = WORDS.clone()
    other[0, 1] = 4  # another node's vector with the same node's features
    return states(model, words=other)


def other_order(model: SGPM) -> Tensor:
    order = [0, 3, 1, 4, 2, 5]
    found = states(model, words=WORDS[:, order], seen=SEEN[:, order])
    return found[:, torch.argsort(torch.tensor(order))]


def other_features(model: SGPM) -> Tensor:
    return states(model, x=X + F.one_hot(torch.arange(N) % FEATURES, FEATURES).float())


def other_bins(model: SGPM) -> Tensor:
    return states(model, bins=(BIN + 1) % BINS)


CHANGES: dict[str, Callable[[SGPM], Tensor]] = {
    "tokens": swapped_words,
    "positions": other_order,
    "features": other_features,
    "centrality": other_bins,
}


@pytest.mark.parametrize("off", [None, *INPUTS])
def test_states_depend_on_the_inputs_that_are_there_and_on_no_other(off: str | None) -> None:
    model = build(**({} if off is None else {f"use_{off}": False}))
    before = states(model)
    for name, change in CHANGES.items():
        same = torch.allclose(change(model), before, atol=1e-5)
        assert same == (name == off), name


def test_without_features_of_the_graph_there_are_none() -> None:
    model = SGPM(N, 0, BINS, MOST, quick()).eval()
    assert model.features is None
    assert model(WORDS, SEEN, None, BIN, torch.float32).isfinite().all()


# ---------------------------------------------------------------- what can be seen from where


def test_a_masked_node_cannot_be_seen() -> None:
    """Node 6 stands nowhere: its row, features and bin change nothing."""
    model = build()
    before = states(model)
    hidden, other = X.clone(), BIN.clone()
    hidden[6], other[6] = 100.0, 0
    with torch.no_grad():
        model.table[6] += 100
    assert torch.equal(states(model, x=hidden, bins=other), before)


@pytest.mark.parametrize("changed", [1, 4])
def test_it_reads_in_both_directions(changed: int) -> None:
    model = build()
    other = WORDS.clone()
    other[0, changed] = 5
    difference = (states(model, words=other) - states(model)).abs().amax(dim=2)
    assert (difference[0] > 1e-6).all()  # every position has seen it
    assert not difference[1].any()  # and no other sentence


def test_the_five_special_words() -> None:
    assert SPECIAL == ("PAD", "UNK", "CLS", "SEP", "MASK")
    assert list(range(5)) == [PAD, UNK, CLS, SEP, MASK]
    assert len(build().table) == N + 5


# ---------------------------------------------------------------- pieces of the table, and guesses


def test_some_rows_of_the_table_are_enough() -> None:
    model = build()
    used, place = torch.unique(WORDS, return_inverse=True)
    projected = model.project(FeatureRows.on(CPU, X.numpy()), torch.float32)
    found = model(place, SEEN, projected, BIN, torch.float32, table=model.table[used])
    assert torch.equal(found.detach(), states(model))


def test_guesses_go_through_the_transform() -> None:
    model = build()
    H = torch.randn(3, 8)
    torch.testing.assert_close(model.guess(H), model.transform(H))


def test_the_encoder_is_that_of_the_equations() -> None:
    """Against torch's own pre-norm encoder layer with the same weights."""
    model = build()
    twin = nn.TransformerEncoderLayer(8, 2, 32, 0.0, F.gelu, batch_first=True, norm_first=True)
    (layer,) = model.layers
    names = {
        "self_attn.in_proj_": "query_key_value.",
        "self_attn.out_proj.": "output.",
        "linear1.": "widen.",
        "linear2.": "narrow.",
        "norm1.": "attention_norm.",
        "norm2.": "ffn_norm.",
    }
    own = layer.state_dict()
    twin.load_state_dict({t + kind: own[s + kind] for t, s in names.items() for kind in ("weight", "bias")})
    H = model.input_norm(summed(model))
    torch.testing.assert_close(states(model), model.output_norm(twin(H)).detach(), rtol=1e-4, atol=1e-5)


def test_the_width_of_the_feed_forward_network() -> None:
    assert build().layers[0].widen.weight.shape == (32, 8)  # type: ignore[union-attr]
    assert build(ffn_channels=5).layers[0].widen.weight.shape == (5, 8)  # type: ignore[union-attr]


def test_sentences_of_one_and_none_at_all() -> None:
    model = build()
    alone = states(model, words=torch.tensor([[N + CLS, 3, N + SEP]]), seen=torch.tensor([[-1, 3, -1]]))
    assert alone.shape == (1, 3, 8)
    assert alone.isfinite().all()
    none = torch.zeros(0, 4, dtype=torch.int64)
    assert states(model, words=none, seen=none).shape == (0, 4, 8)


def test_dropout_is_only_for_training() -> None:
    model = build(dropout=0.5)
    assert torch.equal(states(model), states(model))
    model.train()
    assert not torch.equal(states(model), states(model))


def test_in_bfloat16_it_is_nearly_the_same() -> None:
    model = build()
    projected = model.project(FeatureRows.on(CPU, X.numpy()), torch.bfloat16)
    found = model(WORDS, SEEN, projected, BIN, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.detach().float(), states(model), rtol=0.1, atol=0.1)
