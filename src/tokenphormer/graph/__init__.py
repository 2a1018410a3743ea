"""Graphs: the `Graph` value, readers for people's own data, datasets by name, splits."""

from tokenphormer.graph.datasets import DATASETS, load_graph
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.splits import PROTOCOLS, Split, make_split

__all__ = ["DATASETS", "PROTOCOLS", "Graph", "Split", "load_graph", "make_split"]
