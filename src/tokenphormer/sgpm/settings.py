"""All settings of SGPM: its document, its model, its pre-training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenphormer.errors import InputError
from tokenphormer.settings import Settings

Centrality = Literal["degree", "pagerank", "core"]
SPARSE_VOCABULARY = 1 << 16
"""Nodes above which the softmax is sampled and only the table's rows in use are updated."""


@dataclass(frozen=True)
class SGPMSettings(Settings):
    """Defaults are the paper's, and where it is silent the authors', but for larger batches at a higher rate."""

    train_sentences: int = 100
    """Sentences that start at each node, to learn from."""
    val_sentences: int = 20
    """Further sentences of each node, to judge by; never learned from."""
    mean_length: float = 0.0
    """Mean number of steps of a sentence; 0 is the radius of the node's component."""
    length_deviation: float = 1.0
    """Standard deviation of that number."""
    fresh_sentences: bool = False
    """Draw new training sentences each epoch, rather than the same ones (the paper)."""
    hidden_channels: int = 768
    """Width of the model, and of a node's vector."""
    num_layers: int = 4
    """Transformer layers."""
    num_heads: int = 12
    """Attention heads; they share `hidden_channels` equally."""
    ffn_channels: int = 0
    """Width of the feed-forward network; 0 is four times `hidden_channels`, BERT's."""
    dropout: float = 0.1
    """Share of numbers set to zero in training."""
    use_tokens: bool = True
    """Whether the input of a position has the node's own vector in it."""
    use_positions: bool = True
    """Whether it has the position's."""
    use_features: bool = True
    """Whether it has the projected features of the node."""
    unit_features: bool = True
    """Scale each node's features to length 1 first; else long rows drown what the other parts say."""
    use_centrality: bool = True
    """Whether it has the vector of the node's centrality."""
    centrality: Centrality = "degree"
    """`degree`, `pagerank`, or `core`: the largest k for which the node is in the graph's k-core."""
    mask_share: float = 0.15
    """Share of nodes to guess, at least one a sentence: 80 % of them masked, 10 % another node, 10 % as they are."""
    unknown_share: float = 0.02
    """Share of the other nodes that are shown as unknown, with features and centrality, so that new nodes can be."""
    epochs: int = 6
    """Passes over the document at most."""
    patience: int = 2
    """Epochs without a lower validation loss before stopping."""
    batch_size: int = 512
    """Sentences to one update."""
    learning_rate: float = 5e-4
    """The highest, reached after the warm-up; then it falls to 0 in a line."""
    warmup_share: float = 0.1
    """Share of the training over which the learning rate rises."""
    weight_decay: float = 0.01
    """AdamW's."""
    gradient_clip: float = 1.0
    """Highest norm of the gradient of all weights together; 0 is no limit."""
    negatives: int = 8192
    """Nodes that a sampled softmax compares with; only graphs of more than 65,536 nodes are sampled."""
    context_sentences: int = 10
    """Sentences of a node over which its contextual vector is the mean."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on GPUs and float32 elsewhere."""
    seed: int = 0
    """Of sentences, masks, weights and dropout."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"train_sentences": 1, "val_sentences": 1, "hidden_channels": 2, "num_layers": 1, "num_heads": 1}
        least |= {"ffn_channels": 0, "epochs": 1, "patience": 1, "batch_size": 1, "negatives": 1}
        least |= {"context_sentences": 1}
        for name, value in least.items():
            _check(getattr(self, name) >= value, name, getattr(self, name), f"at least {value}")
        for name in ("learning_rate", "weight_decay", "gradient_clip", "mean_length", "length_deviation"):
            value = getattr(self, name)
            _check(0 <= value < float("inf"), name, value, "a number of at least 0")
        for name in ("dropout", "unknown_share", "warmup_share"):
            _check(0 <= getattr(self, name) < 1, name, getattr(self, name), "a share from 0 to below 1")
        _check(0 < self.mask_share < 1, "mask_share", self.mask_share, "a share between 0 and 1")
        _check(self.mean_length <= 10_000, "mean_length", self.mean_length, "at most 10000 steps")
        _check(self.length_deviation <= 1000, "length_deviation", self.length_deviation, "at most 1000 steps")
        for name in ("train_sentences", "val_sentences", "epochs"):  # so that numbers of sentences stay apart
            _check(getattr(self, name) <= 1_000_000, name, getattr(self, name), "at most 1000000")
        shared = self.hidden_channels % self.num_heads == 0
        _check(shared, "hidden_channels", self.hidden_channels, f"a multiple of num_heads={self.num_heads}")
        inputs = (self.use_tokens, self.use_features, self.use_centrality)
        _check(any(inputs), "use_tokens, use_features, use_centrality", False, "at least one of them")


def _check(fine: bool, name: str, value: object, expected: str) -> None:
    if not fine:
        raise InputError(f"{name}: {value!r}; expected {expected}")


SMALL: dict[str, object] = {
    "train_sentences": 20,
    "val_sentences": 4,
    "hidden_channels": 64,
    "num_layers": 2,
    "num_heads": 4,
    "epochs": 3,
    "batch_size": 128,
    "learning_rate": 2e-3,
}
"""A small size for CPUs: minutes where the paper's would take a day."""
