"""A folder of tables larger than memory, turned into a graph on disk; `tables.py` says what the tables are.

The result is what `read_folder` makes of the same folder, to the bit. The tables are read once, a block at a time.
Memory is bounded by the caller for everything but the nodes themselves, which take some 60 bytes each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError, ResourceError
from tokenphormer.graph.blocks import Block, TableFile
from tokenphormer.graph.checks import MAX_NODES
from tokenphormer.graph.columns import Column, arrow
from tokenphormer.graph.disk import is_graph_folder, map_array, open_graph
from tokenphormer.graph.disk_writer import (
    ArrayWriter,
    FeatureBlocks,
    GraphWriter,
    new_folder,
    refuse_existing,
    write_graph,
)
from tokenphormer.graph.edge_sort import EdgeSorter
from tokenphormer.graph.feature_file import write_features_file
from tokenphormer.graph.graph import Graph
from tokenphormer.graph.id_table import IdTable, Texts, decode_into, text_keys, texts_of_column
from tokenphormer.graph.splits import PARTS, Split
from tokenphormer.graph.tables import EXPECTED, _read_features, _read_ids, column_notes, label_notes, sort_classes

DEFAULT_MEMORY = 2 << 30
LEAST_MEMORY = 64 << 20
BYTES_A_NODE = 64
"""What a node takes while its table is read: the hash of its id, its place, its label, the entries of its row."""
PIECE = 1 << 20
"""Characters of ids that are copied at a time."""
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_memory(text: str) -> int:
    """Bytes of a text like 2GB, 500 MB or 1.5g.

    >>> parse_memory("1.5 GB") == 3 << 29, parse_memory("64m") == 64 << 20
    (True, True)
    """
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) *([kmgt]?)i?b?", text.strip().lower())
    if not found:
        raise InputError(f"--memory {text!r}: expected a size such as 500MB or 2GB")
    return int(float(found[1]) * UNITS[found[2]])


def check_memory(memory: int) -> None:
    """Raise if sorting would not come to an end in so little memory."""
    if memory < LEAST_MEMORY:
        raise InputError(f"--memory: {memory:,} bytes; expected at least {LEAST_MEMORY >> 20} MB")


def convert(
    source: str | Path,
    out: str | Path,
    *,
    memory: int = DEFAULT_MEMORY,
    directed: bool = False,
    half: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Graph:
    """Write anything that `load_graph` takes as a graph on disk, and open it.

    A folder of tables is read in pieces and may be larger than memory; other sources are loaded first. `half` stores
    dense features as float16.
    """
    from tokenphormer.graph.datasets import find_dataset, load_graph

    out = Path(out)
    refuse_existing(out)
    check_memory(memory)
    if find_dataset(source) is None and Path(source).is_dir() and not is_graph_folder(Path(source)):
        convert_folder(Path(source), out, memory=memory, directed=directed, half=half, say=say)
    else:
        write_graph(load_graph(source, directed=directed), out, half=half)
    return open_graph(out)


def convert_folder(
    folder: Path, out: Path, *, memory: int, directed: bool, half: bool, say: Callable[[str], None]
) -> None:
    """Turn a folder of tables into a graph on disk."""
    nodes, edges = TableFile.open(folder, "nodes"), TableFile.open(folder, "edges")
    if nodes is None or edges is None:
        raise InputError(f"{folder}: has no {'nodes' if nodes is None else 'edges'} table; {EXPECTED}")
    Block(nodes.path, dict.fromkeys(nodes.header), 0).require("id")
    Block(edges.path, dict.fromkeys(edges.header), 0).require("source", "target")
    with new_folder(out) as temporary, GraphWriter(temporary) as writer:
        scratch = temporary / "scratch"
        scratch.mkdir()
        read = _read_nodes(nodes, scratch, writer, half)
        say(f"{read.count:,} nodes read")
        needed = read.count * BYTES_A_NODE * 4 // 3  # a quarter is left for sorting
        if needed > memory:
            raise ResourceError(
                f"{nodes.path}: {read.count:,} nodes take {needed >> 20:,} MB of memory, and --memory allows "
                f"{memory >> 20:,} MB"
            )
        y, class_names = read.labels()
        splits = read.splits(nodes, y)
        writer.write("y", y)
        width = read.width or write_features_file(folder / "features.npz", read.count, writer, half)
        table = _write_ids(nodes, read, scratch, writer)
        room = memory - read.count * BYTES_A_NODE
        weighted = "weight" in edges.header
        with EdgeSorter(scratch, read.count, directed=directed, weighted=weighted, memory=room) as sorter:
            _read_edges(edges, nodes, table, sorter)
            say(f"{sorter.listed:,} edges read; sorting")
            try:
                done = sorter.write(writer)
            except InputError as error:
                raise InputError(f"{folder}: {error}") from error
        for path in scratch.iterdir():
            path.unlink()
        scratch.rmdir()
        notes = [f"{read.count} nodes from {nodes.path.name}, {sorter.listed} edges from {edges.path.name}"]
        notes += [f"edges taken as {'directed' if directed else 'undirected'}", *done]
        notes += column_notes(nodes.header, edges.header, edges.path.name)
        bare = int((y < 0).sum())
        notes += [f"{bare} nodes have no label"] if bare and class_names else []
        notes += label_notes(class_names)
        writer.finish(
            name=folder.resolve().name or "graph",
            directed=directed,
            class_names=class_names,
            splits=splits,
            notes=tuple(notes),
            num_features=width,
        )


# -------------------------------------------------------------------- nodes


@dataclass
class _Nodes:
    """What is kept of the nodes table."""

    count: int = 0
    width: int = 0
    """Feature columns."""
    longest: int = 1
    """Characters of the longest id."""
    class_numbers: dict[str, int] = field(default_factory=dict)
    """Class names in the order in which they came, the empty one for no label."""
    label_pieces: list[NDArray[np.int32]] = field(default_factory=list)
    part_pieces: list[NDArray[np.int8]] = field(default_factory=list)

    def labels(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Class numbers in the order of the sorted names."""
        if not self.label_pieces:
            return np.full(self.count, -1, dtype=np.int64), ()
        names = sort_classes(name for name in self.class_numbers if name)
        place = {name: number for number, name in enumerate(names)}
        number = np.array([place.get(name, -1) for name in self.class_numbers], dtype=np.int64)
        return number[np.concatenate(self.label_pieces)], names

    def splits(self, nodes: TableFile, y: NDArray[np.int64]) -> tuple[Split, ...]:
        """The split column, if it has an entry."""
        if not self.part_pieces:
            return ()
        part = np.concatenate(self.part_pieces)
        bare = np.flatnonzero((part < len(PARTS)) & (y < 0))
        if bare.size:
            row = int(bare[0])
            raise InputError(
                f"{Block(nodes.path, {}, 0).where(row)}: split is {PARTS[part[row]]!r}, but the node has no label "
                f"({bare.size} such nodes); a split may hold labelled nodes only"
            )
        if (part == len(PARTS)).all():
            return ()
        train, val, test = (np.flatnonzero(part == number) for number in range(len(PARTS)))
        return (Split(train, val, test, name="given"),)


def _read_nodes(nodes: TableFile, scratch: Path, writer: GraphWriter, half: bool) -> _Nodes:
    """Go through the nodes table: features are written at once, ids wait in a file until the longest is known."""
    read = _Nodes()

    def blocks(data: ArrayWriter, ends: ArrayWriter) -> FeatureBlocks:
        for block in nodes.blocks():
            if not block.num_rows:
                continue
            ids = _read_ids(block)
            _spill_ids(ids, read, data, ends)
            if "label" in block.columns:
                read.label_pieces.append(_codes(block.strings("label"), read.class_numbers))
            if "split" in block.columns:
                read.part_pieces.append(_parts(block))
            read.count += block.num_rows
            if read.count > MAX_NODES:
                raise InputError(f"{nodes.path}: has more than the {MAX_NODES} nodes that a graph can hold")
            names = [name for name in block.columns if name not in ("id", "label", "split")]
            if names:
                x, _ = _read_features(block)
                assert x is not None
                yield x, partial(_where, block, names)

    with ArrayWriter(scratch / "id_data.npy", "<u1") as data, ArrayWriter(scratch / "id_ends.npy", "<i8") as ends:
        read.width = writer.features(blocks(data, ends), half=half)
    if not read.count:
        raise InputError(f"{nodes.path}: has no rows; expected at least one node")
    return read


def _where(block: Block, names: list[str], row: int, column: int) -> str:
    return block.where(row, names[column])


def _spill_ids(ids: Column, read: _Nodes, data: ArrayWriter, ends: ArrayWriter) -> None:
    read.longest = max(read.longest, arrow().compute.max(arrow().compute.utf8_length(ids)).as_py())
    offsets, text = texts_of_column(ids)
    ends.append(offsets[1:] - offsets[0] + data.rows)
    data.append(text[offsets[0] : offsets[-1]])


def _codes(column: Column, numbers: dict[str, int]) -> NDArray[np.int32]:
    """Class names as numbers; new names get the next ones."""
    coded = column.combine_chunks().dictionary_encode()
    for name in coded.dictionary.to_pylist():
        numbers.setdefault(name, len(numbers))
    here = np.array([numbers[name] for name in coded.dictionary.to_pylist()], dtype=np.int32)
    codes: NDArray[np.int32] = here[np.asarray(coded.indices)]
    return codes


def _parts(block: Block) -> NDArray[np.int8]:
    numbers: dict[str, int] = {name: number for number, name in enumerate((*PARTS, ""))}
    column = block.strings("split")
    codes = _codes(column, numbers)
    bad = np.flatnonzero(codes > len(PARTS))
    if bad.size:
        row = int(bad[0])
        found = column[row].as_py()
        raise InputError(f"{block.where(row, 'split')}: {found!r}; expected train, val, test or nothing")
    return codes.astype(np.int8)


def _write_ids(nodes: TableFile, read: _Nodes, scratch: Path, writer: GraphWriter) -> IdTable:
    """Write the ids, all as wide as the longest, and make the table that finds them."""
    offsets = np.zeros(read.count + 1, dtype=np.int64)
    offsets[1:] = map_array(scratch / "id_ends.npy")
    ids: Texts = offsets, map_array(scratch / "id_data.npy")
    keys = np.empty(read.count, dtype=np.uint64)
    rows = writer.array("ids", f"<U{read.longest}")
    step = max(1, PIECE // read.longest)
    for first in range(0, read.count, step):
        piece = offsets[first : first + step + 1]
        letters = np.zeros((len(piece) - 1, read.longest), dtype=np.uint32)
        decode_into(piece, ids[1], letters)
        rows.append(letters.view(f"<U{read.longest}")[:, 0])
        keys[first : first + step] = text_keys(piece, ids[1])
    table = IdTable.of(ids, keys)
    again = table.repetition()
    if again is not None:
        block = Block(nodes.path, {}, 0)
        row, first_row = again
        name = bytes(ids[1][offsets[row] : offsets[row + 1]]).decode()
        before = block.where(first_row).removeprefix(f"{nodes.path}, ")
        raise InputError(f"{block.where(row, 'id')}: {name!r} is a node already in {before}")
    writer.ids(table.keys, table.rows)
    return table


# -------------------------------------------------------------------- edges


def _read_edges(edges: TableFile, nodes: TableFile, table: IdTable, sorter: EdgeSorter) -> None:
    for block in edges.blocks(("source", "target", "weight")):
        ends = []
        for name in ("source", "target"):
            column = block.strings(name)
            end = table.find(texts_of_column(column))
            unknown = np.flatnonzero(end < 0)
            if unknown.size:
                row = int(unknown[0])
                raise InputError(
                    f"{block.where(row, name)}: {column[row].as_py()[:60]!r} is no id of {nodes.path.name} "
                    "(ids are compared exactly, spaces included)"
                )
            ends.append(end)
        sorter.add(ends[0], ends[1], _read_weights(block) if "weight" in block.columns else None)


def _read_weights(block: Block) -> NDArray[np.float64]:
    weight = block.numbers("weight")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight > 0)))
    if bad.size:
        row = int(bad[0])
        raise InputError(
            f"{block.where(row, 'weight')}: {weight[row]}; weights must be positive and finite "
            "(leave an edge of weight 0 out)"
        )
    return weight
