"""Attention as an explanation: the readout's weights, and attention rolled through the layers.

Rollout is that of Quantifying Attention Flow in Transformers (ACL 2020), https://arxiv.org/abs/2005.00928.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.explain.reading import Reading
from tokenphormer.model import EncoderLayer, Tokenphormer
from tokenphormer.training.loop import in_pieces


def readout_attention(reading: Reading) -> NDArray[np.float64]:
    """(B, T) the readout's weights αₖ (the paper's equation 6); they sum to 1, the self token has none."""
    return _by_pieces(reading, _readout)


def attention_rollout(reading: Reading) -> NDArray[np.float64]:
    """(B, T) how much of each token's input reaches the node's state, by attention alone; they sum to 1.

    With Aₗ the attention of layer l, averaged over heads, and half of every token kept by the residual sum,
    R = ½(A_L + I) … ½(A₁ + I). The readout adds the self token whole to the mean of the others by α: half and half.
    """
    return _by_pieces(reading, _rollout)


def _by_pieces(reading: Reading, compute: Callable[[Tokenphormer, Tensor], Tensor]) -> NDArray[np.float64]:
    numbers = torch.arange(len(reading.nodes), device=reading.inputs.device)
    found = in_pieces(lambda rows: compute(reading.module, reading.inputs[rows]), numbers, reading.pieces)
    result: NDArray[np.float64] = torch.cat(found).double().cpu().numpy()
    return result


def _readout(module: Tokenphormer, H: Tensor) -> Tensor:
    return F.pad(module.encode(H)[1], (1, 0))


def _rollout(module: Tokenphormer, H: Tensor) -> Tensor:
    readout = _readout(module, H)  # (B, T)
    rolled = torch.eye(H.shape[1], device=H.device).expand(len(H), -1, -1)  # (B, T, T): states from inputs
    H = module.enter(H)
    for layer in module.layers:
        assert isinstance(layer, EncoderLayer)
        rolled = (layer_attention(layer, H) @ rolled + rolled) / 2
        H = layer(H)
    readout[:, 0] = 1
    share = readout / readout.sum(dim=1, keepdim=True)
    return (share[:, None] @ rolled).squeeze(1)


def layer_attention(layer: EncoderLayer, H: Tensor) -> Tensor:
    """(B, T, T) the weights softmax(QKᵀ / √d) of one layer, averaged over its heads."""
    B, T, h = H.shape
    q, k, _ = layer.query_key_value(layer.attention_norm(H)).view(B, T, 3, layer.num_heads, -1).permute(2, 0, 3, 1, 4)
    weight: Tensor = F.softmax(q @ k.transpose(2, 3) * (h // layer.num_heads) ** -0.5, dim=3)
    return weight.mean(dim=1)
