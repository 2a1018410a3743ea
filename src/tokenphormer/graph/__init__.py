"""Graphs: the `Graph` value, readers for people's own data, conversions, datasets by name, splits."""

from tokenphormer.graph.convert import from_networkx, from_pyg, from_scipy, to_networkx, to_pyg, to_scipy
from tokenphormer.graph.datasets import DATASETS, load_graph
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.splits import PROTOCOLS, Split, make_split
from tokenphormer.graph.tables import read_folder, write_folder

__all__ = [
    "DATASETS",
    "PROTOCOLS",
    "Graph",
    "Split",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "load_graph",
    "make_split",
    "read_folder",
    "to_networkx",
    "to_pyg",
    "to_scipy",
    "write_folder",
]
