"""Reading and writing files so that nothing half-written is ever taken for whole, and nothing is unpickled."""

from __future__ import annotations

import errno
import json
import os
import secrets
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tokenphormer.errors import InputError, ResourceError

LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""What systems answer whose disk has no locks."""


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; it becomes `path` when the block ends well, and vanishes if not."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected the name of a file to write")
    temporary = partial_path(path)
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


def partial_path(path: Path) -> Path:
    """A new hidden name beside `path` for what is not whole yet; what a kill leaves behind is told by it.

    Drawn, not numbered: processes in containers, or on hosts that share a disk, may have the same number.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")


def is_partial(path: Path) -> bool:
    """Whether a name is one that `partial_path` gives: of something that was being written."""
    return path.name.startswith(".") and path.name.endswith(".partial")


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Hold a folder that is to be written, made if need be; a second process that wants it is refused.

    The lock is the system's and ends with the process, however that ends. Where the system or the disk has no locks
    there is none. A folder that is empty at the end is removed.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; expected the name of a folder to write")
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = folder / LOCK

    def take() -> BinaryIO | None:
        """The lock's file, locked; None if its holder removed it, or the folder, in this moment."""
        with suppress(FileNotFoundError, FileExistsError):
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise InputError(
                    f"{folder}: another process is writing it; wait for its end, or name another"
                ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    file.close()
                    raise
                return file
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
            file.close()
        return None

    try:
        file = next(filter(None, (take() for _ in range(1000))), None)
        if file is None:
            raise ResourceError(f"cannot write {folder}: it comes and goes")
    except OSError as error:
        raise ResourceError(f"cannot write {folder}: {error.strerror or error}") from error
    with file:
        try:
            yield
        finally:
            with suppress(OSError):  # not empty, as a rule
                path.unlink()
                folder.rmdir()


def parse_json(text: str | bytes) -> Any:
    """A JSON value; ValueError for what is none, and for what is nested deeper than Python can follow."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets within brackets without end") from error


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
