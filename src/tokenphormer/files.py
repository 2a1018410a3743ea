"""Reading and writing files so that nothing half-written is ever taken for whole, and nothing is unpickled."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError, ResourceError


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; it becomes `path` when the block ends well, and vanishes if not."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected the name of a file to write")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # where it could not even be made, the reason is on its way already
            temporary.unlink(missing_ok=True)


def load_arrays(path: str | Path, required: Sequence[str] = ()) -> dict[str, NDArray[np.generic]]:
    """Read every array of an `.npz`; truncated files and pickled objects are refused."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise InputError(f"{path}: not an .npz archive")
        # Not numpy.load: it stops where the array's own header says, so that a damaged header escapes the
        # checksum, which is compared only once a member has been read to its end.
        with zipfile.ZipFile(path) as archive:
            arrays = {name.removesuffix(".npy"): _read_member(archive, name) for name in archive.namelist()}
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except InputError:
        raise
    # A damaged archive fails in zipfile, a decompressor, the tokeniser, the allocator …: the list has no end.
    except Exception as error:
        if isinstance(error, ValueError) and "pickle" in str(error).lower():
            raise InputError(f"{path}: holds pickled Python objects, which are never loaded") from error
        raise InputError(f"{path}: not a readable .npz, perhaps truncated ({error})") from error
    missing = [name for name in required if name not in arrays]
    if missing:
        raise InputError(f"{path}: lacks the array '{missing[0]}'; it holds {', '.join(arrays) or 'nothing'}")
    return arrays


def _read_member(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    with archive.open(name) as member:
        array: NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"member '{name}' is longer than its array")
        return array
