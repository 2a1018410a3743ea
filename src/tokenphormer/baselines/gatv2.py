"""GATv2: How Attentive are Graph Attention Networks? (ICLR 2022), https://arxiv.org/abs/2105.14491."""

from __future__ import annotations

from typing import Any, ClassVar

from torch_geometric.nn import GATv2Conv

from tokenphormer.baselines.gat import GAT


class GATv2(GAT):
    """GAT with the weights softmax(aᵀ LeakyReLU(W₁ h_i + W₂ h_j)): the ranking of neighbours depends on the node.

    As in GAT, edge weights are ignored.
    """

    title = "GATv2"
    paper = "https://arxiv.org/abs/2105.14491"
    layer: ClassVar[Any] = GATv2Conv
