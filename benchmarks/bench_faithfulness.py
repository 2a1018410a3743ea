"""How faithful explanations are: `python -m benchmarks.bench_faithfulness`, beside PyG's GNNExplainer on a GCN.

For each dataset a Tokenphormer and a two-layer GCN are trained on the same split. Test nodes are drawn at random, and
for each the most important tokens (of the GCN: edges) are removed, or alone left: once by attention, rollout, occlusion
or GNNExplainer, once at random. Rows go to a JSONL file, a table to the screen; intervals are of the mean over nodes.
The two models have other units and other accuracies: what to compare is each explanation with its model's random row.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.explain import Explainer as PyGExplainer
from torch_geometric.explain import GNNExplainer
from torch_geometric.nn import GCNConv

from benchmarks.bench_walks import machine
from tokenphormer.baselines.base import FULL_GRAPH_TRAINING, Task
from tokenphormer.baselines.gcn import GCN, GCNSettings
from tokenphormer.benchmark.rows import origin
from tokenphormer.evaluation.breakdown import Z_95
from tokenphormer.explain.explanation import METHODS
from tokenphormer.explain.faithfulness import Curves, Rule, kept_at_random, kept_units, token_curves
from tokenphormer.explain.reading import read
from tokenphormer.graph import Graph, Split, load_graph
from tokenphormer.training.fit import fit_tokenphormer
from tokenphormer.training.loop import Labelled, Trainer, predict
from tokenphormer.training.presets import SMALL, split_for
from tokenphormer.training.settings import Config, TrainingSettings

CPU = torch.device("cpu")
SHARE = 0.2
"""Share of the units at which the table gives fidelity; the rows have the whole curves."""
MEASURES = ("fidelity_plus", "fidelity_minus", "deletion_area", "insertion_area", "over_random")
NAMES = {"random": "random tokens", "attention": "readout attention", "rollout": "attention rollout"}
GNN_EXPLAINERS: dict[str, dict[str, float]] = {
    "GNNExplainer, PyG's defaults": {},
    # Of six settings the best on the first 25 of the nodes of Cora that are used here. With the defaults nearly all
    # masks end high, and their order says little.
    "GNNExplainer, sparser": {"lr": 0.05, "edge_size": 0.2, "edge_ent": 0.1},
}
Row = dict[str, object]


def tokenphormer_rows(graph: Graph, split: Split, nodes: np.ndarray, config: Config) -> list[Row]:
    """Random tokens and the three explanations of Tokenphormer."""
    method = fit_tokenphormer(graph, split, config, CPU).method
    accuracy = _accuracy(predict(method, split.test, config, CPU), graph, split)
    reading = read(method, nodes)
    about: Row = {"model": "Tokenphormer", "accuracy": accuracy, "units": len(reading.kinds) - 1.0}
    rules: tuple[Rule, ...] = ("random", *METHODS)
    found, seconds = dict[str, list[Curves]](), dict[str, float]()
    for rule in rules:
        began = time.perf_counter()
        found[NAMES.get(rule, rule)] = token_curves(reading, rule)
        seconds[NAMES.get(rule, rule)] = time.perf_counter() - began
    return [about | row for row in summaries(found, seconds)]


class LocalGCN(nn.Module):
    """The layers of a trained GCN around one node, messages given their weights: removing one changes no other."""

    def __init__(self, trained: GCN) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for conv in trained.convs:
            assert isinstance(conv, GCNConv)
            twin = GCNConv(conv.in_channels, conv.out_channels, normalize=False)
            twin.load_state_dict(conv.state_dict())
            self.convs.append(twin.requires_grad_(False))
        first = self.convs[0]
        assert isinstance(first, GCNConv)
        with torch.no_grad():
            self.projected = first.lin(trained.task.x)
        first.lin = nn.Identity()  # done once for all

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor, loop_weight: Tensor) -> Tensor:
        """(nodes, C) class scores from projected features; every node also hears itself, and that is not masked."""
        itself = torch.arange(len(x)).expand(2, -1)
        edges, weights = torch.cat([edge_index, itself], dim=1), torch.cat([weight, loop_weight])
        for layer, conv in enumerate(self.convs):
            x = conv(F.relu(x) if layer else x, edges, weights)
        return x


def gcn_rows(graph: Graph, split: Split, nodes: np.ndarray, epochs: int) -> list[Row]:
    """Random edges and GNNExplainer of a two-layer GCN. Units: the directed edges whose messages reach the node."""
    task = Task.of(graph, split.train, CPU)
    trained = GCN(task, GCNSettings())
    settings = TrainingSettings(**FULL_GRAPH_TRAINING | {"max_epochs": 300, "patience": 50})  # type: ignore[arg-type]
    train, val = (Labelled(part, graph.y[part]) for part in (split.train, split.val))
    Trainer(trained, train, val, graph.num_classes, settings, CPU).run()
    accuracy = _accuracy(predict(trained, split.test, settings, CPU), graph, split)
    local = LocalGCN(trained.eval()).eval()
    rng = np.random.default_rng(0)
    found: dict[str, list[Curves]] = {name: [] for name in ("random edges", "edge occlusion", *GNN_EXPLAINERS)}
    seconds, units = dict.fromkeys(found, 0.0), []
    with torch.no_grad():
        whole = F.softmax(trained(), dim=1)
    for node in nodes.tolist():
        around = Neighbourhood(local, task, node)
        if not around.num_edges:
            continue  # nothing to explain by edges
        units.append(around.num_edges)
        everything = np.ones((1, around.num_edges), bool)
        torch.testing.assert_close(around.predict(everything)[0], float(whole[node].max()), rtol=0, atol=1e-4)
        for rule, curves in found.items():
            began = time.perf_counter()
            if rule == "random edges":
                keep = kept_at_random(around.num_edges, rng)
            elif rule == "edge occlusion":
                keep = kept_units(-around.predict(~np.eye(around.num_edges, dtype=bool)))
            else:
                keep = kept_units(around.edge_mask(epochs, GNN_EXPLAINERS[rule]))
            curves.append(Curves.of(around.predict(keep)))
            seconds[rule] += time.perf_counter() - began
    about: Row = {"model": "GCN", "accuracy": accuracy, "units": float(np.mean(units))}
    return [about | row for row in summaries(found, seconds)]


class Neighbourhood:
    """What a two-layer GCN reads for one node: the edges whose messages reach it, with their weights in the graph."""

    def __init__(self, model: LocalGCN, task: Task, node: int) -> None:
        source, target = task.edge_index
        near = torch.zeros(task.num_nodes, dtype=torch.bool)
        near[node] = True
        near[source[target == node]] = True
        chosen = task.edge_index[:, near[target]]  # the first layer's messages go to it and to its neighbours
        places, edges = torch.unique(torch.cat([torch.tensor([node]), chosen.flatten()]), return_inverse=True)
        degree = torch.tensor(task.graph.degree[places.numpy()] + 1.0, dtype=torch.float32)
        self.model, self.x, self.centre = model, model.projected[places], int(edges[0])
        self.edge_index, self.loop_weight = edges[1:].view(2, -1), 1 / degree
        self.weight = (degree[self.edge_index[0]] * degree[self.edge_index[1]]) ** -0.5
        self.num_edges = self.edge_index.shape[1]
        self.winner = int(self._scores(torch.ones(self.num_edges, dtype=torch.bool)).argmax())

    def _scores(self, keep: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = self.model(self.x, self.edge_index[:, keep], self.weight[keep], self.loop_weight)
        return scores[self.centre]

    def predict(self, keep: np.ndarray) -> np.ndarray:
        """(V) probability of the class that was predicted, when only the edges of each row of `keep` send messages."""
        return np.array([float(F.softmax(self._scores(row), dim=0)[self.winner]) for row in torch.tensor(keep)])

    def edge_mask(self, epochs: int, settings: dict[str, float]) -> np.ndarray:
        """(E) GNNExplainer's importance of every edge for the model's own prediction."""
        explainer = PyGExplainer(
            self.model,
            GNNExplainer(epochs=epochs, **settings),
            explanation_type="model",
            edge_mask_type="object",
            model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
        )
        torch.manual_seed(0)
        weights = {"weight": self.weight, "loop_weight": self.loop_weight}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Tensor = explainer(self.x, self.edge_index, index=self.centre, **weights).edge_mask
        return found.detach().double().numpy()


def summaries(found: dict[str, list[Curves]], seconds: dict[str, float]) -> list[Row]:
    """Means over nodes, half the widths of their 95 % intervals, the mean curves; the first rule is the random one.

    `over_random` is the area between the two curves, insertion minus deletion, less that of random order, node by node.
    """
    rows, chance = [], _between(next(iter(found.values())))
    for rule, curves in found.items():
        row: Row = {"explanation": rule, "nodes": len(curves), "share": SHARE, "seconds": seconds[rule]}
        measured = {
            "fidelity_plus": [c.fidelity_plus(SHARE) for c in curves],
            "fidelity_minus": [c.fidelity_minus(SHARE) for c in curves],
            "deletion_area": [c.deletion_area for c in curves],
            "insertion_area": [c.insertion_area for c in curves],
            "over_random": list(_between(curves) - chance),
        }
        for name, values in measured.items():
            row[name], row[f"{name}_95"] = float(np.mean(values)), half_width(values)
        for name in ("deletion", "insertion"):
            row[name] = np.mean([getattr(c, name) for c in curves], axis=0).round(4).tolist()
        rows.append(row)
    return rows


def _between(curves: list[Curves]) -> np.ndarray:
    return np.array([c.insertion_area - c.deletion_area for c in curves])


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean, by its standard error."""
    return float(Z_95 * np.std(values, ddof=1) / np.sqrt(len(values)))


def _accuracy(probabilities: np.ndarray, graph: Graph, split: Split) -> float:
    return float(np.mean(probabilities.argmax(axis=1) == graph.y[split.test]))


def report(rows: list[Row]) -> str:
    """A Markdown table."""
    measures = "fidelity+ ↑ | fidelity− ↓ | deletion ↓ | insertion ↑ | over random ↑"
    lines = [f"| dataset | model | explanation | nodes | {measures} |", "|---|---|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        cells = [f"{row[name]:.3f} ± {row[f'{name}_95']:.3f}".replace("-", "−") for name in MEASURES]
        cells[-1] = "" if str(row["explanation"]).startswith("random") else cells[-1]
        name = f"{row['model']}, {row['units']:.0f} {'edges' if row['model'] == 'GCN' else 'tokens'}"
        lines.append(f"| {row['dataset']} | {name} | {row['explanation']} | {row['nodes']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["debian", "cora", "citeseer"])
    parser.add_argument("--nodes", type=int, default=100, help="test nodes to explain")
    parser.add_argument("--epochs", type=int, default=200, help="of GNNExplainer")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-gcn", action="store_true")
    parser.add_argument("--out", type=Path, help="append the rows to this JSONL file")
    options = parser.parse_args()
    about: Row = {"machine": machine() | {"torch-geometric": version("torch-geometric")}, "commit": origin()["commit"]}
    print(json.dumps(about))
    rows: list[Row] = []
    for name in options.datasets:
        graph = load_graph(name)
        split = split_for(graph, "auto", None)
        config = Config().replace(SMALL).replace(Config.parse_overrides(options.changes))
        nodes = np.random.default_rng(0).permutation(split.test)[: options.nodes]
        found = tokenphormer_rows(graph, split, nodes, config)
        found += [] if options.no_gcn else gcn_rows(graph, split, nodes, options.epochs)
        where: Row = {"dataset": name, "split": split.hash, "config": config.hash}
        rows += [where | row for row in found]
        print(f"{name}: done", flush=True)
    print(report(rows))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("a") as file:
            file.writelines(json.dumps(row | about) + "\n" for row in rows)


if __name__ == "__main__":
    main()
