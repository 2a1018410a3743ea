"""Node classification on graphs by token sequences: walks, hops and a pre-trained graph language model.

>>> import tokenphormer as tp
>>> graph = tp.load_graph("debian")
>>> tp.sample_walks(graph, "jump", num_walks=10, length=4).shape
torch.Size([7709, 10, 5])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenphormer.classifier import TokenphormerClassifier
    from tokenphormer.errors import DatasetMissingError, InputError, ResourceError, TokenphormerError
    from tokenphormer.graph.datasets import load_graph
    from tokenphormer.graph.graph import Graph
    from tokenphormer.graph.splits import Split, make_split
    from tokenphormer.walks.sampling import sample_walks

__version__ = "0.1.0"

# Looked up on first use, so that `import tokenphormer` (and `tokenphormer --help`) costs nothing.
_HOME = {
    "DatasetMissingError": "errors",
    "Graph": "graph.graph",
    "InputError": "errors",
    "ResourceError": "errors",
    "Split": "graph.splits",
    "TokenphormerClassifier": "classifier",
    "TokenphormerError": "errors",
    "load_graph": "graph.datasets",
    "make_split": "graph.splits",
    "sample_walks": "walks.sampling",
}

__all__ = [
    "DatasetMissingError",
    "Graph",
    "InputError",
    "ResourceError",
    "Split",
    "TokenphormerClassifier",
    "TokenphormerError",
    "__version__",
    "load_graph",
    "make_split",
    "sample_walks",
]


if not TYPE_CHECKING:  # for a type checker every name would be there, slips too

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'tokenphormer' has no attribute {name!r}")
        return getattr(import_module(f"tokenphormer.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
