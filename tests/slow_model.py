"""Tokenphormer once more, written straight from the paper's equations: every token is built from features, one by one.

Independent of src/tokenphormer/model.py and tokens/: it reads only the graph, the walks and the weights.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from tokenphormer.graph import Graph

Weights = dict[str, Tensor]


def dense_features(graph: Graph) -> np.ndarray:
    return graph.x.toarray() if sp.issparse(graph.x) else np.asarray(graph.x)


def hop_features(graph: Graph, X: np.ndarray, hops: int, normalisation: str) -> list[np.ndarray]:
    n = graph.num_nodes
    A = np.zeros((n, n))
    for v in range(n):
        row = slice(graph.indptr[v], graph.indptr[v + 1])
        A[v, graph.indices[row]] = 1 if graph.edge_weight is None else graph.edge_weight[row]
    if normalisation == "symmetric":
        A = A + np.eye(n)
        root = np.diag(1 / np.sqrt(A.sum(1)))
        A = root @ A @ root
    elif normalisation == "row":
        A = np.diag([1 / d if d else 0 for d in A.sum(1)]) @ A
    return [np.linalg.matrix_power(A, k) @ X for k in range(1, hops + 1)]


def token(x: np.ndarray, tau: np.ndarray) -> Tensor:
    return torch.tensor(np.concatenate([x, tau]), dtype=torch.float64)


def tokens_of(
    node: int,
    X: np.ndarray,
    hops: list[np.ndarray],
    walks: np.ndarray,
    pooling: str,
    include_start: bool,
    include_own: bool = True,
) -> Tensor:
    """(T, 2F): [x_v ; τ] for self, hops and walks; without x_v in all but self, and [x_v ; 0] for that, if so asked."""
    own = X[node]
    x = own if include_own else np.zeros_like(own)
    sequence = [token(own, x)] + [token(x, hop[node]) for hop in hops]
    for walk in walks:
        visited = [u for u in (walk if include_start else walk[1:]) if u >= 0]
        total = np.zeros(X.shape[1])
        for u in visited:
            total = total + X[u]
        if pooling == "mean" and visited:
            total = total / len(visited)
        sequence.append(token(x, total))
    return torch.stack(sequence)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    return (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + eps) * weight + bias


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def forward(
    tokens: Tensor,
    w: Weights,
    num_layers: int,
    num_heads: int,
    final_norm: bool,
    include_own: bool = True,
) -> Tensor:
    """(C) class scores of one node."""
    W = torch.cat([w["self_part.weight"], w["token_part.weight"]], dim=1)  # (h, 2F), W·[x ; τ] + b
    H = [W @ t + (w["self_part.bias"] if include_own or not i else 0) for i, t in enumerate(tokens)]
    if "token_norm.weight" in w:
        H = [gelu(layer_norm(t, w["token_norm.weight"], w["token_norm.bias"], 1e-10)) for t in H]
    for layer in range(num_layers):
        p = {k.removeprefix(f"layers.{layer}."): v for k, v in w.items() if k.startswith(f"layers.{layer}.")}
        normed = [layer_norm(t, p["attention_norm.weight"], p["attention_norm.bias"]) for t in H]
        qkv = [p["query_key_value.weight"] @ t + p["query_key_value.bias"] for t in normed]
        h = len(H[0])
        d = h // num_heads
        attended = []
        for i in range(len(H)):
            heads = []
            for head in range(num_heads):
                part = slice(head * d, (head + 1) * d)
                q = qkv[i][:h][part]
                scores = torch.stack([q @ other[h : 2 * h][part] / math.sqrt(d) for other in qkv])
                weight = torch.exp(scores) / torch.exp(scores).sum()
                heads.append(sum(weight[j] * qkv[j][2 * h :][part] for j in range(len(H))))
            attended.append(p["output.weight"] @ torch.cat(heads) + p["output.bias"])
        H = [t + a for t, a in zip(H, attended, strict=True)]
        for i, t in enumerate(H):
            z = p["widen.weight"] @ layer_norm(t, p["ffn_norm.weight"], p["ffn_norm.bias"]) + p["widen.bias"]
            H[i] = t + p["narrow.weight"] @ gelu(z) + p["narrow.bias"]
    if final_norm:
        H = [layer_norm(t, w["final_norm.weight"], w["final_norm.bias"]) for t in H]
    out = H[0]
    if len(H) > 1:
        scores = torch.stack([(w["readout.weight"] @ t)[0] for t in H[1:]])
        weight = torch.exp(scores) / torch.exp(scores).sum()
        out = out + sum(weight[k] * H[k + 1] for k in range(len(H) - 1))
    z = torch.relu(w["head.0.weight"] @ out + w["head.0.bias"])
    return w["head.2.weight"] @ z + w["head.2.bias"]
