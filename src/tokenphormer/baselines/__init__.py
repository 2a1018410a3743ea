"""The rival methods, one file each, by name: `load_baseline("gcn")` is the class, built with (task, settings)."""

from __future__ import annotations

import difflib
from importlib import import_module

from tokenphormer.baselines.base import FULL_GRAPH_TRAINING, Baseline, Task
from tokenphormer.errors import InputError

PAPER_BASELINES = {
    "gcn": "gcn.GCN",
    "gat": "gat.GAT",
    "sage": "sage.GraphSAGE",
    "appnp": "appnp.APPNP",
    "jknet": "jknet.JKNet",
    "gprgnn": "gprgnn.GPRGNN",
    "gatv2": "gatv2.GATv2",
    "grand_plus": "grand_plus.GRANDPlus",
    "gt": "gt.GT",
    "graphormer": "graphormer.Graphormer",
    "san": "san.SAN",
    "gophormer": "gophormer.Gophormer",
    "ans_gt": "ans_gt.ANSGT",
    "graphgps": "graphgps.GraphGPS",
    "exphormer": "exphormer.Exphormer",
    "gapformer": "gapformer.Gapformer",
    "nagphormer": "nagphormer.NAGphormer",
}
"""The paper's seventeen, in the order of its table."""
YARDSTICKS = {
    "mlp": "mlp.MLP",
    "label_propagation": "label_propagation.LabelPropagation",
    "gcn_tuned": "tuned.TunedGCN",
    "gat_tuned": "tuned.TunedGAT",
    "sage_tuned": "tuned.TunedGraphSAGE",
}
"""What an honest table needs besides."""
BASELINES = PAPER_BASELINES | YARDSTICKS


def load_baseline(name: str) -> type[Baseline]:
    """The class of a baseline; an unknown name is an error that offers the nearest ones."""
    if name not in BASELINES:
        near = difflib.get_close_matches(name, BASELINES, n=3, cutoff=0.4)
        raise InputError(f"{name!r} is no baseline; nearest: {', '.join(near or BASELINES)}")
    module, _, attribute = BASELINES[name].partition(".")
    found: type[Baseline] = getattr(import_module(f"tokenphormer.baselines.{module}"), attribute)
    return found


__all__ = ["BASELINES", "FULL_GRAPH_TRAINING", "PAPER_BASELINES", "YARDSTICKS", "Baseline", "Task", "load_baseline"]
