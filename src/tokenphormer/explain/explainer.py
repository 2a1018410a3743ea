"""`Explainer`: a trained model and a graph; asked for a node, it says what the prediction rests on."""

from __future__ import annotations

import operator
from collections import defaultdict
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tokenphormer.errors import InputError
from tokenphormer.explain.attention import attention_rollout, readout_attention
from tokenphormer.explain.explanation import (
    Edge,
    Explanation,
    Importance,
    MethodName,
    Neighbour,
    Node,
    Part,
    Token,
    check_method,
)
from tokenphormer.explain.neighbours import Ints, SparseRow, distances, hop_rows, score_row
from tokenphormer.explain.occlusion import group_drops, node_drops, score_drops, step_drops, token_drops
from tokenphormer.explain.reading import Mixture, Reading, all_final_scores, own_scores, project_rows, read, walk_shares
from tokenphormer.graph import Graph
from tokenphormer.training.calibration import soften
from tokenphormer.training.tokenphormer import TokenphormerMethod

MAX_NODES = 200
"""Nodes whose removal is tried: those that tokens read most."""
MAX_STEPS = 200
"""Steps whose removal is tried: those that most walks take."""

Scores = NDArray[np.float64]


class Explainer:
    """Explains the predictions of a trained model on one graph; `TokenphormerClassifier.explain` makes one."""

    def __init__(self, method: TokenphormerMethod, graph: Graph, classes: tuple[str, ...], votes: int = 1) -> None:
        self.method, self.graph, self.classes, self.votes = method, graph, classes, votes
        self._final_scores: dict[int, Tensor | None] = {}

    def explain(self, node: int | str, method: MethodName | Literal["auto"] = "auto") -> Explanation:
        """What the prediction of a node rests on; the node by its id (a string) or its index (a whole number)."""
        chosen = check_method(method)
        index = self.index_of(node)
        with self.method.source.lock:  # several threads may ask at once
            return self._explain(index, chosen)

    def _explain(self, index: int, chosen: MethodName) -> Explanation:
        readings = [self.read(np.array([index]), draw) for draw in range(self.votes)]
        probabilities = self._probabilities(readings)
        first, second = np.argsort(-probabilities, kind="stable")[:2]
        work = _Work(self, index, readings, chosen, (int(first), int(second)))
        nodes, nodes_left_out = work.nodes()
        edges, edges_left_out = work.edges()
        neighbours, neighbours_left_out = work.neighbours()
        return Explanation(
            graph=self.graph.name,
            node=self.graph.id_of(index),
            label=self.label_of(index),
            method=chosen,
            classes=self.classes,
            probabilities=tuple(probabilities.tolist()),
            votes=self.votes,
            predicted=self.classes[first],
            runner_up=self.classes[second],
            tokens=tuple(sorted(work.tokens(), key=_most_important)),
            parts=tuple(sorted(work.parts(), key=_most_important)),
            nodes=tuple(sorted(nodes, key=_most_important)),
            edges=tuple(sorted(edges, key=_most_important)),
            nodes_left_out=nodes_left_out,
            edges_left_out=edges_left_out,
            neighbours=tuple(sorted(neighbours, key=_most_important)),
            neighbours_left_out=neighbours_left_out,
        )

    def _probabilities(self, readings: list[Reading]) -> Scores:
        """(C) of one node, as `predict` has them: the mean over the draws, and only then the temperature."""
        temperature = self.method.temperature
        drawn = [soften(reading.probabilities, 1 / temperature) for reading in readings]
        mean: Scores = np.mean(drawn, axis=0)
        return soften(mean, temperature).reshape(-1)

    def index_of(self, node: int | str) -> int:
        """The index of a node given by its id or its index."""
        if isinstance(node, str):
            return self.graph.index_of(node)
        try:
            index = operator.index(node)
        except TypeError:
            raise InputError(f"node: {node!r}; expected an id (a string) or an index (a whole number)") from None
        if not 0 <= index < self.graph.num_nodes:
            raise InputError(f"node: {index}, but the graph has nodes 0 to {self.graph.num_nodes - 1}")
        return index

    def read(self, nodes: Ints, draw: int = 0) -> Reading:
        """What the model reads for some nodes in one draw of walks."""
        with self.method.source.lock:
            if draw not in self._final_scores:
                self._final_scores[draw] = all_final_scores(self.method, draw)
            return read(self.method, nodes, draw, self._final_scores[draw])

    def label_of(self, node: int) -> str:
        """The class of a node where the graph knows it, else empty."""
        return self.graph.class_names[self.graph.y[node]] if self.graph.y[node] >= 0 else ""

    def distances(self, node: int, targets: Ints) -> dict[int, int]:
        """Edges from a node to each of the targets that can be reached."""
        return distances(self.graph, node, targets)


class _Work:
    """One explanation while it is made: everything is an average over the draws."""

    def __init__(
        self, explainer: Explainer, index: int, readings: list[Reading], method: MethodName, classes: tuple[int, int]
    ) -> None:
        self.explainer, self.graph, self.index, self.readings = explainer, explainer.graph, index, readings
        self.method, self.classes, self.kinds = method, list(classes), readings[0].kinds
        self.attention = [readout_attention(reading)[0] for reading in readings]
        self.rolled = [attention_rollout(reading)[0] for reading in readings] if method == "rollout" else self.attention
        settings = readings[0].settings
        self.hops = hop_rows(self.graph, settings.hop_normalisation, index, settings.num_hops)

    @property
    def occluding(self) -> bool:
        return self.method == "occlusion"

    # ---------------------------------------------------------------- tokens

    def tokens(self) -> list[Token]:
        """Every token but the self token; walks with the same steps become one."""
        first, name = len(self.kinds) - self.readings[0].num_walks, self.graph.id_of
        sums: dict[tuple[str, tuple[int, ...]], Scores] = defaultdict(lambda: np.zeros(4))
        for reading, attention, rolled in zip(self.readings, self.attention, self.rolled, strict=True):
            drops = token_drops(reading)[0][:, self.classes] if self.occluding else np.column_stack([rolled, rolled])
            for t, kind in enumerate(self.kinds[1:], 1):
                walk = reading.walks[0, t - first] if t >= first else np.empty(0, np.int64)
                sums[kind, tuple(walk[walk >= 0].tolist())] += [*drops[t], attention[t], 1]
        votes = len(self.readings)
        return [
            Token(
                *self._pair(total[:2] / votes),
                kind=kind,
                path=tuple(map(name, path)),
                count=round(total[3]) if path else 1,
                attention=float(total[2] / votes),
            )
            for (kind, path), total in sums.items()
        ]

    def parts(self) -> list[Part]:
        """The tokens of each kind together, all hops, all walks, all tokens; and the scores of neighbours."""
        return self._token_parts() + self._neighbours_scores()

    @property
    def _passing(self) -> bool:
        """Whether there are scores of neighbours to be removed."""
        return self.occluding and self.explainer.method.passes_scores

    @cached_property
    def _others(self) -> SparseRow:
        """The other nodes whose class scores arrive here, and by what these are multiplied."""
        nodes, weights = score_row(self.graph, self.index, self.explainer.method.score_weights.tolist())
        return nodes[nodes != self.index], weights[nodes != self.index]

    def neighbours(self) -> tuple[list[Neighbour], int]:
        """The nodes whose class scores arrive here, and how many were left out."""
        if not self._passing:
            return [], 0
        method = self.explainer.method
        others, weights = self._others
        chosen = np.argsort(-np.abs(weights), kind="stable")[:MAX_NODES]
        if not len(chosen):
            return [], 0
        nodes, weights = others[chosen], weights[chosen]
        own = [own_scores(method, nodes, draw) for draw in range(len(self.readings))]
        factor = torch.tensor(weights, dtype=torch.float32, device=own[0].device)[:, None]
        drops = [score_drops(r, factor * scores) for r, scores in zip(self.readings, own, strict=True)]
        said = torch.stack([F.softmax(scores, dim=1) for scores in own]).mean(dim=0).argmax(dim=1).tolist()
        distance = self.explainer.distances(self.index, nodes)
        found = [
            Neighbour(
                *self._pair(drop),
                id=self.graph.id_of(int(node)),
                label=self.explainer.label_of(int(node)),
                distance=distance[int(node)],
                weight=float(weight),
                says=self.explainer.classes[says],
            )
            for node, weight, says, drop in zip(
                nodes, weights, said, np.mean(drops, axis=0)[:, self.classes], strict=True
            )
        ]
        return found, len(others) - len(chosen)

    def _neighbours_scores(self) -> list[Part]:
        """Where class scores arrive from others, what of the prediction is gone if none were passed on."""
        if not self._passing or not len(self._others[0]):
            return []
        drops = [reading.probabilities[0] - reading.alone.probabilities[0] for reading in self.readings]
        pair = self._pair(np.mean(drops, axis=0)[self.classes])
        return [Part(*pair, name="scores of neighbours", tokens=0, attention=0.0)]

    def _token_parts(self) -> list[Part]:
        kinds = np.array(self.kinds)
        is_hop, is_walk = np.char.startswith(kinds, "hop "), np.arange(len(kinds)) >= len(kinds) - self._num_walks
        groups = {kind: kinds == kind for kind in dict.fromkeys(self.kinds[1:])}
        wider = {"all hops": is_hop, "all walks": is_walk, "all tokens": np.arange(len(kinds)) > 0}
        groups |= {name: members for name, members in wider.items() if len(set(kinds[members])) > 1}
        if not groups:
            return []
        members = np.stack(list(groups.values()))
        attention = members @ np.mean(self.attention, axis=0)
        if self.occluding:
            scores = np.mean([group_drops(r, members)[:, self.classes] for r in self.readings], axis=0)
        else:
            scores = np.repeat((members @ np.mean(self.rolled, axis=0))[:, None], 2, axis=1)
        return [
            Part(*self._pair(score), name=name, tokens=int(mask.sum()), attention=float(weight))
            for (name, mask), score, weight in zip(groups.items(), scores, attention, strict=True)
        ]

    # ---------------------------------------------------------------- nodes and edges

    def nodes(self) -> tuple[list[Node], int]:
        """The nodes that tokens read, and how many were left out."""
        everyone, mixtures = self._mixtures
        read = np.sum([m.matrix.sum(axis=0) for m in mixtures], axis=0)
        itself = int(np.searchsorted(everyone, self.index))
        read[itself] = np.inf
        chosen = np.argsort(-read, kind="stable")[:MAX_NODES]
        chosen = chosen[read[chosen] > 0]
        if self.occluding:
            rows = self._rows
            drops = [node_drops(r, m, rows, chosen) for r, m in zip(self.readings, mixtures, strict=True)]
            scores = np.mean(drops, axis=0)[:, self.classes]
        else:
            shares = [w @ _spread(m, self._totals(m)) for w, m in zip(self.rolled, mixtures, strict=True)]
            scores = np.repeat(np.mean(shares, axis=0)[chosen, None], 2, axis=1)
        visits = np.zeros(len(everyone), np.int64)
        for reading in self.readings:
            visited, _ = walk_shares(reading.walks, reading.settings)
            np.add.at(visits, np.searchsorted(everyone, visited[visited >= 0]), 1)
        distance = self.explainer.distances(self.index, everyone[chosen])
        nodes = [
            Node(
                *self._pair(score),
                id=self.graph.id_of(int(everyone[place])),
                label=self.explainer.label_of(int(everyone[place])),
                distance=distance[int(everyone[place])],
                visits=int(visits[place]),
            )
            for place, score in zip(chosen, scores, strict=True)
        ]
        reached = np.unique(np.concatenate([everyone, *(row for row, _ in self.hops)]))
        return nodes, len(reached) - len(nodes)

    def edges(self) -> tuple[list[Edge], int]:
        """The steps of the walks, and how many were left out."""
        taken: dict[tuple[int, int], int] = defaultdict(int)
        forward: dict[tuple[int, int], int] = defaultdict(int)
        spread: dict[tuple[int, int], float] = defaultdict(float)
        for reading, weight in zip(self.readings, self.rolled, strict=True):
            for walk, share in zip(reading.walks[0], weight[len(self.kinds) - self._num_walks :], strict=True):
                path = walk[walk >= 0].tolist()
                for step in {self._step(a, b) for a, b in pairwise(path)}:
                    taken[step] += 1
                for a, b in pairwise(path):
                    forward[self._step(a, b)] += 1 if (a, b) == self._step(a, b) else -1
                    spread[self._step(a, b)] += share / (len(path) - 1) / len(self.readings)
        chosen = sorted(taken, key=lambda step: (-taken[step], step))[:MAX_STEPS]
        if not chosen:
            return [], 0
        steps = np.array(chosen)
        if self.occluding:
            _, mixtures = self._mixtures
            other, directed = self._rows[1], self.graph.directed
            drops = [step_drops(r, m, other, steps, directed) for r, m in zip(self.readings, mixtures, strict=True)]
            scores = np.mean(drops, axis=0)[:, self.classes]
        else:
            scores = np.array([[spread[step]] * 2 for step in chosen])
        found = []
        for step, score in zip(chosen, scores, strict=True):
            # Undirected, it is told in the direction that most walks take.
            source, target = step if forward[step] >= 0 else step[::-1]
            jump = target not in self.graph.neighbours(source)
            ends = self.graph.id_of(source), self.graph.id_of(target)
            found.append(Edge(*self._pair(score), *ends, jump=jump, walks=taken[step]))
        return found, len(taken) - len(chosen)

    def _step(self, a: int, b: int) -> tuple[int, int]:
        return (a, b) if self.graph.directed or a <= b else (b, a)

    @property
    def _num_walks(self) -> int:
        return self.readings[0].num_walks

    @cached_property
    def _mixtures(self) -> tuple[Ints, list[Mixture]]:
        """Nodes that tokens read: all that walks visit, and of the others those that hops read most."""
        visited = [r.walks[r.walks >= 0] for r in self.readings]
        core = np.unique(np.concatenate([[self.index], *visited]))
        most = core[:0]
        if self.hops:
            reached, same = np.unique(np.concatenate([row for row, _ in self.hops]), return_inverse=True)
            read = np.bincount(same, np.concatenate([shares for _, shares in self.hops]))
            most = reached[np.argsort(-read, kind="stable")][:MAX_NODES]
        everyone = np.union1d(core, most).astype(np.int64)
        return everyone, [Mixture.of(reading, self.hops, everyone) for reading in self.readings]

    @cached_property
    def _rows(self) -> tuple[Tensor, Tensor]:
        return project_rows(self.explainer.method, self._mixtures[0])

    def _totals(self, mixture: Mixture) -> Scores:
        """(T) the sum of every token's shares, those of nodes outside the mixture too."""
        totals: Scores = mixture.matrix.sum(axis=1).astype(np.float64)
        for k, (_, shares) in enumerate(self.hops, 1):
            totals[self.kinds.index(f"hop {k}")] = shares.sum()
        return totals

    def _pair(self, score: Scores) -> tuple[float, float | None]:
        """Importance for the predicted class and for the runner-up."""
        return float(score[0]), float(score[1]) if self.occluding else None


def _spread(mixture: Mixture, totals: Scores) -> Scores:
    """(T, U) the share of each node in each token, as parts of one."""
    shares: Scores = mixture.matrix / np.where(totals > 0, totals, 1)[:, None]
    return shares


def _most_important(each: Importance) -> float:
    return -each.importance
