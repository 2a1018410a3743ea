"""Predictions as a table, one line a node: CSV or Parquet, for more nodes than fit into memory too."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokenphormer.files import atomic_path
from tokenphormer.graph import Graph, Split
from tokenphormer.graph.splits import PARTS

if TYPE_CHECKING:
    import pandas as pd

Piece = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Some nodes, and their (nodes, classes) probabilities."""


def scored_nodes(graph: Graph, split: Split) -> NDArray[np.int64] | None:
    """The nodes that a training run predicts: of a graph on disk those of the split, else all (None)."""
    return None if graph.stored is None else np.sort(np.concatenate([getattr(split, part) for part in PARTS]))


def rows_of(nodes: NDArray[np.int64], scored: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Where the predictions of some nodes stand among those of `scored`."""
    return nodes if scored is None else np.searchsorted(scored, nodes)


def write_pieces(
    path: Path, graph: Graph, pieces: Iterable[Piece], class_names: tuple[str, ...], split: Split | None = None
) -> None:
    """Write predictions as they come: id, label if known, split, prediction, its probability, and every class's."""
    part = None
    if split is not None:
        part = np.full(graph.num_nodes, len(PARTS), dtype=np.int8)
        for number, name in enumerate(PARTS):
            part[getattr(split, name)] = number
    names = np.array([_writable(name) for name in class_names])
    tables = (_table(graph, nodes, values, names, part) for nodes, values in pieces)
    with atomic_path(path) as temporary:
        if path.suffix == ".parquet":
            _write_parquet(temporary, tables)
            return
        with temporary.open("w", encoding="utf-8", newline="") as file:
            for number, table in enumerate(tables):
                # The csv module quotes the line ends that it writes, and no others: an id's own would break its row.
                broken = any("\r" in text for text in (*table, *table["id"], *table["label"], *table["predicted"]))
                quoting: Literal[0, 2] = csv.QUOTE_NONNUMERIC if broken else csv.QUOTE_MINIMAL
                table.to_csv(file, index=False, header=number == 0, quoting=quoting)


def _table(
    graph: Graph,
    nodes: NDArray[np.int64],
    probabilities: NDArray[np.float32],
    names: NDArray[np.str_],
    part: NDArray[np.int8] | None,
) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {"id": [_writable(graph.id_of(int(node))) for node in nodes]}
    columns["label"] = np.array([*map(_writable, graph.class_names), ""])[graph.y[nodes]]
    if part is not None:
        columns["split"] = np.array([*PARTS, ""])[part[nodes]]
    columns["predicted"] = names[probabilities.argmax(axis=1)]
    columns["probability"] = probabilities.max(axis=1)
    return pd.DataFrame(columns | {f"p:{name}": probabilities[:, c] for c, name in enumerate(names)})


def _writable(text: str) -> str:
    r"""The text as UTF-8 can hold it: of half a surrogate pair, as names of files may have, the escape.

    >>> print(_writable("caf\u00e9 \ud800"))
    café \ud800
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _write_parquet(path: Path, tables: Iterable[pd.DataFrame]) -> None:
    import pyarrow
    import pyarrow.parquet

    writer = None
    try:
        for table in tables:
            rows = pyarrow.Table.from_pandas(table, preserve_index=False)
            writer = writer or pyarrow.parquet.ParquetWriter(path, rows.schema)
            writer.write_table(rows)
    finally:
        if writer is not None:
            writer.close()
