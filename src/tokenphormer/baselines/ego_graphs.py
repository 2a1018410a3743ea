"""Ego-graphs drawn on any device; a node's sample is a function of (key, node) alone, whoever shares its batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokenphormer.baselines.base import Task
from tokenphormer.hashing import GOLDEN, mix64, mix64_tensor, shift_right, signed


def draw_key(seed: int, draw: int, *, prediction: bool) -> int:
    """The key of an epoch's samples, or of a vote's, as a signed 64-bit integer."""
    return signed(mix64(mix64(seed) ^ (2 * draw + prediction + 1)))


def row_keys(nodes: Tensor, key: int | Tensor) -> Tensor:
    """(B) a key for each node, under a common key or one each."""
    return mix64_tensor(mix64_tensor(nodes ^ key))


def numbered(keys: Tensor, number: Tensor) -> Tensor:
    """64 random bits: the `number`-th of every key."""
    return mix64_tensor(keys + number * signed(GOLDEN))


def uniform(bits: Tensor) -> Tensor:
    """Random bits as float32 strictly between 0 and 1."""
    return (shift_right(bits, 41) + 0.5) * 2.0**-23


class EgoGraphs:
    """A graph's rows on a device: draws ego-graphs and tells which of their nodes are neighbours."""

    def __init__(self, task: Task) -> None:
        graph, device = task.graph, task.device
        self.num_nodes = graph.num_nodes
        self.indptr = torch.tensor(graph.indptr, device=device)
        # One entry more than there are edges: what is read for an empty row is thrown away, but has to be there.
        self.indices = torch.zeros(len(graph.indices) + 1, dtype=torch.int64, device=device)
        self.indices[:-1] = torch.tensor(graph.indices, device=device)
        leaves, leads_to = task.ends
        last = torch.full((1,), self.num_nodes**2, device=device)
        self.edges = torch.cat([leaves * self.num_nodes + leads_to, last])  # ascending, as the rows of a Graph are

    def sample(self, nodes: Tensor, fan_outs: tuple[int, ...], key: int | Tensor) -> Tensor:
        """(B, T) nodes of the ego-graphs, the centre first, no node twice; −1 where there was none to draw.

        From the centre `fan_outs[0]` neighbours are drawn without replacement, from each of these `fan_outs[1]`, …
        """
        keys = row_keys(nodes, key)[:, None]
        tokens = frontier = nodes[:, None]
        drawn = 0
        for fan_out in fan_outs:
            there = frontier.clamp(min=0)
            start = self.indptr[there]
            degree = torch.where(frontier >= 0, self.indptr[there + 1] - start, 0)
            slot = torch.arange(frontier.shape[1], device=nodes.device) * fan_out + drawn
            place = distinct(degree, fan_out, keys, slot)  # (B, f, fan_out)
            found = torch.where(place >= 0, self.indices[start[:, :, None] + place.clamp(min=0)], -1)
            drawn += frontier.shape[1] * fan_out
            before = tokens.shape[1]
            tokens = first_seen(torch.cat([tokens, found.flatten(1)], dim=1))
            frontier = tokens[:, before:]
        return tokens

    def adjacent(self, tokens: Tensor) -> Tensor:
        """(B, T, T) whether there is an edge from the row's token to the column's."""
        wanted = tokens[:, :, None] * self.num_nodes + tokens[:, None, :]
        found = self.edges[torch.searchsorted(self.edges, wanted.clamp(min=0))] == wanted
        valid = tokens >= 0
        return found & valid[:, :, None] & valid[:, None, :]


def read_in_groups(tokens: Tensor, read: Callable[[Tensor], Tensor], groups: int = 4) -> Tensor:
    """(B, …) what `read` makes of (B, T) ego-graphs, those of like size together and padded to the largest of them.

    Where neighbours are few most of T is padding: four fifths on Citeseer. A CPU saves that; a GPU is as fast with it
    as long as kernels are short, and gets all ego-graphs at once. To `read` only the centre's place may matter.
    """
    if tokens.is_cuda or len(tokens) < 2 * groups:
        return read(tokens)
    there = tokens >= 0
    packed = tokens.gather(1, (~there).int().argsort(dim=1, stable=True))  # the centre stays first
    size = there.sum(dim=1)
    order = size.argsort()
    parts = [read(packed[rows, : int(size[rows[-1]])]) for rows in order.tensor_split(groups)]
    return torch.cat(parts)[order.argsort()]


def dense_adjacency(task: Task) -> Tensor:
    """(n, n) whether there is an edge from the row's node to the column's."""
    adjacency = torch.zeros(task.num_nodes, task.num_nodes, dtype=torch.bool, device=task.device)
    leaves, leads_to = task.ends
    adjacency[leaves, leads_to] = True
    return adjacency


def distinct(size: Tensor, count: int, keys: Tensor, slot: Tensor) -> Tensor:
    """(…, count) places drawn from 0 … size − 1 without replacement, all of them where `size` is at most `count`.

    Floyd's algorithm: the i-th draw is uniform below size − count + i + 1, and replaced by the last of these if it
    was drawn before. −1 fills the rest.
    """
    if not count:
        return size[..., None][..., :0]
    turn = torch.arange(count, device=size.device)
    last = size[..., None] - count + turn
    bits = numbered(keys[..., None], slot[..., None] + turn)
    place = (shift_right(bits, 32) * (last + 1).clamp(min=0)) >> 32
    for i in range(1, count):
        taken = (place[..., :i] == place[..., i : i + 1]).any(dim=-1)
        place[..., i] = torch.where(taken, last[..., i], place[..., i])
    few = torch.where(turn < size[..., None], turn, -1)
    return torch.where(size[..., None] > count, place, few)


def first_seen(tokens: Tensor) -> Tensor:
    """(B, T) the tokens with −1 wherever a node stands a second time in its row."""
    same = tokens[:, :, None] == tokens[:, None, :]
    return tokens.masked_fill(same.tril(diagonal=-1).any(dim=2), -1)
