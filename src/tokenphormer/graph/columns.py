"""One table of a user, CSV or Parquet, as columns that know which line or row each cell came from."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError

Column = Any
"""A `pyarrow.ChunkedArray`."""
BLOCK_BYTES = 1 << 24
"""How much of a CSV is parsed at a time; a single row must fit into it."""
BOOLEANS = {"true": 1.0, "false": 0.0}
SHOWN = 12
"""Names of columns that an error lists."""
SAVED_INDEX = ("__index_level_", "Unnamed: ")
KNOWN = {"nodes": ("id", "label", "split"), "edges": ("source", "target", "weight")}
"""Names of columns that mean something, of each table; all others of a nodes table are features."""


def arrow() -> Any:
    """pyarrow, imported when first needed; Any because it carries no types."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.csv
    import pyarrow.parquet
    import pyarrow.types

    return pyarrow


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of one file, by name, in the order of the file."""

    path: Path
    columns: dict[str, Column]
    num_rows: int

    def where(self, row: int, column: str | None = None) -> str:
        """Where a cell stands, in the words of its file: a line of a CSV, a row of a Parquet file."""
        place = _line_of(self.path, row) if self.path.suffix == ".csv" else f"row {row} (counted from 0)"
        return f"{self.path}, {place}" + ("" if column is None else f", column '{column}'")

    def require(self, *names: str) -> None:
        """Raise unless the table has all of these columns."""
        missing = [name for name in names if name not in self.columns]
        if not missing:
            return
        header = list(self.columns)
        came = ", ".join(f"'{name}'" for name in header[:SHOWN])
        came += f" and {len(header) - SHOWN} more" if len(header) > SHOWN else ""
        named = "; name the columns in its first line" if self.path.suffix == ".csv" else ""
        twins = [name for name in header if meant(name, header, self.path.stem) == missing[0]]
        named = f"; names are compared exactly: call '{twins[0]}' '{missing[0]}'" if twins else named
        hint = _separator_hint(header) or named
        raise InputError(f"{self.path}: lacks the column '{missing[0]}'; its columns are {came}{hint}")

    def strings(self, name: str) -> Column:
        """A column as strings; whole numbers become their decimal form, what is missing the empty string."""
        pa = arrow()
        column = self.columns[name]
        if not len(column):  # an empty table of pandas has no types
            return pa.chunked_array([], pa.large_string())
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        tests = (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_integer,
            pa.types.is_null,
        )
        if not any(test(kind) for test in tests):
            raise InputError(
                f"{self.path}, column '{name}': expected strings or integers, got {kind}; "
                f"convert it first (in pandas: astype('Int64') or astype(str))"
            )
        try:
            return column.cast(kind).cast(pa.large_string()).fill_null("")
        except pa.ArrowException as error:
            raise InputError(f"{self.path}, column '{name}': cannot be read as strings ({error})") from error

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column as float64, booleans as 0 and 1; what is missing in a Parquet file is NaN."""
        pa = arrow()
        column = self.columns[name]
        if self.path.suffix == ".csv":
            try:
                column = column.cast(pa.float64())
            except pa.ArrowInvalid:
                return self._numbers_by_hand(name)
        elif not any(
            test(column.type)
            for test in (
                pa.types.is_integer,
                pa.types.is_floating,
                pa.types.is_boolean,
                pa.types.is_decimal,
                pa.types.is_null,
            )
        ):
            raise InputError(
                f"{self.path}, column '{name}': expected numbers, got {column.type}; "
                f"drop the column, or encode it as numbers{self._name_hint(name)}"
            )
        numbers: NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
        return numbers

    def _numbers_by_hand(self, name: str) -> NDArray[np.float64]:
        """The slow way, for booleans, spaces around numbers, and the place of the first cell that is none."""
        numbers = np.empty(self.num_rows)
        for row, text in enumerate(self.columns[name].to_pylist()):
            bare = text.strip()
            try:
                numbers[row] = BOOLEANS[bare.lower()] if bare.lower() in BOOLEANS else float(bare)
                if "_" in bare:  # Python reads 1_000; nothing else does
                    raise ValueError
            except ValueError:
                found = "an empty cell" if not bare else repr(text[:60])
                commas = "; write decimals with points, and thousands without commas" if _has_comma(bare) else ""
                raise InputError(
                    f"{self.where(row, name)}: expected a number, found {found}; "
                    f"mend the cell, drop the column, or encode it as numbers{commas}{self._name_hint(name)}"
                ) from None
        return numbers

    def _name_hint(self, name: str) -> str:
        """What to do if a column of other things than numbers is called nearly as one that is no feature."""
        known = meant(name, self.columns, self.path.stem)
        return "" if known is None else f"; if it is the column '{known}', call it so: names are compared exactly"


def meant(name: str, header: Iterable[str], table: str) -> str | None:
    """The column that a name stands for but for capitals and blanks, where the table has none that is called so.

    >>> meant("Label ", ["id", "Label "], "nodes"), meant("Label", ["label", "Label"], "nodes")
    ('label', None)
    """
    known = name.strip().lower()
    return known if known != name and known in KNOWN.get(table, ()) and known not in header else None


def _has_comma(text: str) -> bool:
    """Whether a text is a number but for its commas."""
    return re.fullmatch(r"[+-]?[0-9.]*,[0-9.,]*(e[+-]?[0-9]+)?", text, re.IGNORECASE) is not None


def table_path(folder: Path, stem: str) -> Path | None:
    """`stem`.csv or `stem`.parquet of a folder; None if it has neither."""
    files = [path for path in (folder / f"{stem}.csv", folder / f"{stem}.parquet") if path.exists()]
    if len(files) == 2:
        raise InputError(f"{folder}: has both {stem}.csv and {stem}.parquet; remove or rename the one not to be read")
    if not files:
        return None
    return files[0]


def read_table(folder: Path, stem: str) -> Table | None:
    """Read `stem`.csv or `stem`.parquet of a folder; None if it has neither."""
    path = table_path(folder, stem)
    if path is None:
        return None
    header, columns = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
    check_header(path, header)
    return Table(path, dict(zip(header, columns, strict=True)), len(columns[0]))


def check_header(path: Path, header: list[str]) -> None:
    """Raise if a column has no name of its own."""
    for number, name in enumerate(header, start=1):
        if name == "" or name.startswith(SAVED_INDEX):
            if not name and number > 1:  # commas at the ends of lines: a spreadsheet's empty columns
                raise InputError(f"{path}: column {number} has no name; name it, or remove it from every line")
            came = f"is called '{name}'" if name else "has no name"
            raise InputError(
                f"{path}: column {number} {came}, which looks like a saved pandas index; "
                "name it, or write the table with index=False"
            )
        if header.index(name) != number - 1:
            raise InputError(f"{path}: has more than one column '{name}'; expected every name once")


def _read_csv(path: Path) -> tuple[list[str], list[Column]]:
    """Read every cell as a string: pyarrow is fast and refuses ragged rows, the csv module says where."""
    pa = arrow()
    content = _read_bytes(path)
    if not content.strip(b"\xef\xbb\xbf\r\n \t"):
        raise InputError(f"{path}: is empty; expected a first line with the names of the columns")
    # pyarrow takes a quoted field that never ends for a long one, and so swallows rows.
    header = check_by_hand(path, io.BytesIO(content), to_the_end=b'"' in content)
    kinds = {f"f{number}": pa.large_string() for number in range(len(header))}
    owned = _owned(content)
    del content
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(owned),
            read_options=pa.csv.ReadOptions(autogenerate_column_names=True, block_size=BLOCK_BYTES),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=kinds),
        )
    except (pa.ArrowException, OSError) as error:
        check_by_hand(path, io.BytesIO(memoryview(owned)), to_the_end=True)
        if has_rows(io.BytesIO(memoryview(owned))):
            raise InputError(f"{path}: not a readable CSV ({error})") from error
        return [name.strip() for name in header], [pa.chunked_array([], pa.large_string()) for _ in header]
    if table.num_columns != len(header):
        raise InputError(f"{path}: not a readable CSV: its first line is ambiguous; quote the names in it")
    return [name.strip() for name in header], [column.slice(1) for column in table.columns]


def _read_parquet(path: Path) -> tuple[list[str], list[Column]]:
    pa = arrow()
    content = _owned(_read_bytes(path))
    try:
        table = pa.parquet.ParquetFile(pa.BufferReader(content), page_checksum_verification=True).read()
        table.validate(full=True)  # strings that are not UTF-8, indices beyond their dictionary
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({error})") from error
    if table.num_columns == 0:
        raise InputError(f"{path}: has no columns")
    return list(table.schema.names), list(table.columns)


def _owned(content: bytes) -> Any:
    """A copy in memory of pyarrow's: its threads may drop what they read late, and Python's own only Python can free.

    In a process that is about to end, that would abort it.
    """
    copy = arrow().allocate_buffer(len(content))
    memoryview(copy).cast("B")[:] = content
    return copy


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _records(file: BinaryIO, strict: bool) -> Iterator[tuple[int, list[str]]]:
    """The line on which each record begins, and its cells; empty lines are no records."""
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    before = csv.field_size_limit(BLOCK_BYTES)  # Python's own, 128 kB, is less than pyarrow takes
    try:
        reader = csv.reader(text, strict=strict)
        line = 1
        for record in reader:
            if record:
                yield line, record
            line = reader.line_num + 1
    finally:
        csv.field_size_limit(before)
        text.detach()  # the file is its opener's to close


def check_by_hand(path: Path, file: BinaryIO, to_the_end: bool) -> list[str]:
    """The header of a CSV; raises with the line of the first ragged, misquoted or undecodable record.

    `file` is what lies at `path`, from which a pipe could not be read again.
    """
    header: list[str] | None = None
    line = 0
    try:
        for line, record in _records(file, strict=True):
            if header is None:
                header = record
                if header[0].strip().lower().startswith("sep=") and not any(header[1:]):
                    said = "is what a spreadsheet writes above the names of the columns; remove this line"
                    raise InputError(f"{path}, line {line}: {header[0].strip()!r} {said}{_separator_hint(header)}")
                if not to_the_end:
                    return header
            elif len(record) != len(header):
                hint = _separator_hint(header)
                came = f", {header[0][:60]!r}" if hint and len(header) == 1 else ""
                raise InputError(
                    f"{path}, line {line}: {len(record)} columns, but the first line has {len(header)}{came}{hint}"
                )
    except UnicodeDecodeError:
        line = _line_of_bad_byte(file)
        raise InputError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    except csv.Error as error:
        hint = _separator_hint([_first_line(file)] if header is None else header)
        raise InputError(f"{path}, in the row after line {line}: not a readable CSV ({error}){hint}") from error
    if header is None:
        raise InputError(f"{path}: is empty; expected a first line with the names of the columns")
    return header


def has_rows(file: BinaryIO) -> bool:
    """Whether a CSV has a record behind its header; pyarrow cannot read a header alone that no line's end follows."""
    return len(list(islice(_records(file, strict=False), 2))) == 2


def _separator_hint(header: list[str]) -> str:
    """What to do if names of columns have separators in them, as spreadsheets of some languages write."""
    if not any(separator in name for name in header for separator in (";", "\t", "|")):
        return ""
    return "; separate the columns with commas, and write decimals with points"


def _first_line(file: BinaryIO) -> str:
    """The first line of a CSV as text, if it has no comma; else nothing."""
    file.seek(0)
    line = file.readline(BLOCK_BYTES).decode("utf-8", "replace")
    return "" if "," in line else line


def _line_of_bad_byte(file: BinaryIO) -> int:
    file.seek(0)
    for number, line in enumerate(file, 1):
        try:
            line.decode("utf-8-sig")
        except UnicodeDecodeError:
            return number
    raise AssertionError("the text is UTF-8 after all")


def _line_of(path: Path, row: int) -> str:
    if path.is_file():  # not a pipe, which has been read to its end: opened again, it would be waited for
        with suppress(OSError, UnicodeDecodeError, csv.Error), path.open("rb") as file:
            for number, (line, _) in enumerate(_records(file, strict=False), start=-1):
                if number == row:
                    return f"line {line}"
    return f"data row {row + 1}"
