"""Tables larger than memory: the rows of a CSV or Parquet file, a block at a time, read as `columns.py` reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numba import njit

from tokenphormer.errors import InputError
from tokenphormer.graph.columns import BLOCK_BYTES, Table, arrow, check_by_hand, check_header, has_rows, table_path

CELL_BYTES = 32
"""About what a cell of a Parquet file takes while it is read."""
BETWEEN, PLAIN, QUOTED, CLOSING = range(4)
"""Where the reader of a CSV stands: before a cell, in a plain one, in a quoted one, behind a quote in that."""
QUOTE, COMMA, LINE_FEED, RETURN = b'",\n\r'


@dataclass(frozen=True, eq=False)
class Block(Table):
    """Some rows of a table; what they say of themselves counts from the table's beginning."""

    first_row: int = 0

    def where(self, row: int, column: str | None = None) -> str:
        """Where a cell stands, in the words of its file."""
        return super().where(self.first_row + row, column)


@dataclass(frozen=True)
class TableFile:
    """A table that is read block by block, as often as one likes."""

    path: Path
    header: tuple[str, ...]

    @classmethod
    def open(cls, folder: Path, stem: str) -> TableFile | None:
        """`stem`.csv or `stem`.parquet of a folder; None if it has neither."""
        path = table_path(folder, stem)
        if path is None:
            return None
        header = _csv_header(path) if path.suffix == ".csv" else _parquet_header(path)
        check_header(path, header)
        return cls(path, tuple(header))

    def blocks(self, only: tuple[str, ...] = ()) -> Iterator[Block]:
        """All rows in order; of all columns, or of those named that the table has. The first block may be empty."""
        names = [name for name in self.header if not only or name in only]
        read = self._csv_blocks if self.path.suffix == ".csv" else self._parquet_blocks
        yield from read(names)

    def _csv_blocks(self, names: list[str]) -> Iterator[Block]:
        pa = arrow()
        kinds = {f"f{number}": pa.large_string() for number in range(len(self.header))}
        first_row = -1  # the header is read as a row
        try:
            with pa.csv.open_csv(
                str(self.path),
                read_options=pa.csv.ReadOptions(autogenerate_column_names=True, block_size=BLOCK_BYTES),
                parse_options=pa.csv.ParseOptions(newlines_in_values=True),
                convert_options=pa.csv.ConvertOptions(column_types=kinds),
            ) as reader:
                if len(reader.schema) != len(self.header):
                    raise InputError(
                        f"{self.path}: not a readable CSV: its first line is ambiguous; quote the names in it"
                    )
                for batch in reader:
                    start = -min(first_row, 0)
                    columns = {
                        name: pa.chunked_array([batch.column(self.header.index(name)).slice(start)]) for name in names
                    }
                    yield Block(self.path, columns, batch.num_rows - start, first_row + start)
                    first_row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            with self.path.open("rb") as file:
                check_by_hand(self.path, file, to_the_end=True)
                file.seek(0)
                if has_rows(file):
                    raise InputError(f"{self.path}: not a readable CSV ({error})") from error
            nothing = pa.chunked_array([], pa.large_string())
            yield Block(self.path, dict.fromkeys(names, nothing), 0)

    def _parquet_blocks(self, names: list[str]) -> Iterator[Block]:
        pa = arrow()
        rows = max(1024, BLOCK_BYTES // (CELL_BYTES * len(names)))
        first_row = 0
        try:
            # Columns are read as they are needed; read ahead, they would all be held until the file is closed. Mapped,
            # not buffered: a buffer is made as large as a damaged page says that it is.
            options = {"page_checksum_verification": True, "pre_buffer": False, "memory_map": True}
            with pa.parquet.ParquetFile(self.path, **options) as file:
                for batch in file.iter_batches(batch_size=rows, columns=names):
                    table = pa.Table.from_batches([batch])
                    table.validate(full=True)
                    columns = {name: table.column(name) for name in names}
                    yield Block(self.path, columns, table.num_rows, first_row)
                    first_row += table.num_rows
        except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.path}: not a readable Parquet file ({error})") from error


@njit(cache=True)
def _follow_quotes(content: Any, state: Any) -> Any:
    """Where the reader of a CSV stands after some bytes, or −1 where a closing quote is followed by a letter."""
    for byte in content:
        if state == QUOTED:
            state = CLOSING if byte == QUOTE else QUOTED
        elif byte in (COMMA, LINE_FEED, RETURN):
            state = BETWEEN
        elif state == CLOSING:
            if byte != QUOTE:
                return -1
            state = QUOTED
        elif state == BETWEEN:
            state = QUOTED if byte == QUOTE else PLAIN
    return state


def _quotes_close(file: BinaryIO) -> bool:
    """Whether every quoted cell ends, and nothing but a comma or a line's end follows it; pyarrow does not look."""
    state = BETWEEN
    for piece in iter(lambda: file.read(1 << 22), b""):
        state = _follow_quotes(np.frombuffer(piece, np.uint8), state)
        if state < 0:
            return False
    return state != QUOTED


def _csv_header(path: Path) -> list[str]:
    """The names of the columns; a file whose quotes are not in order is refused."""
    try:
        with path.open("rb") as file:
            start = file.read(1 << 16)
            if len(start) < 1 << 16 and not start.strip(b"\xef\xbb\xbf\r\n \t"):
                raise InputError(f"{path}: is empty; expected a first line with the names of the columns")
            file.seek(3 if start.startswith(b"\xef\xbb\xbf") else 0)
            fine = _quotes_close(file)
            file.seek(0)
            return [name.strip() for name in check_by_hand(path, file, to_the_end=not fine)]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _parquet_header(path: Path) -> list[str]:
    pa = arrow()
    try:
        with pa.parquet.ParquetFile(path) as file:
            header = list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error
    if not header:
        raise InputError(f"{path}: has no columns")
    return header
