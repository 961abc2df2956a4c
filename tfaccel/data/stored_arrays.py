"""Arrays from `.npy` and `.npz` files from anywhere: nothing is unpickled, and sizes are checked before reading."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from tfaccel.errors import in_one_line

_ZIP = b"PK"


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of a `.npz` file by name, or the array of a `.npy` file under the name "".

    Args:
        path: the file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not such a file, holds Python objects, or arrays of another size than it claims, or arrays
            that do not fit into this machine's memory; the message says which array, but not which file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/a.npz", x=np.zeros((2, 3)))
        ...     np.save(f"{folder}/b.npy", np.array([{}], dtype=object))
        ...     print(read_arrays(f"{folder}/a.npz")["x"].shape)
        ...     read_arrays(f"{folder}/b.npy")
        Traceback (most recent call last):
        ...
        ValueError: it holds Python objects, which run code when they are loaded
    """
    with open(path, "rb") as file:
        is_archive = file.read(len(_ZIP)) == _ZIP
        file.seek(0)
        if not is_archive:
            _check_array(file, os.fstat(file.fileno()).st_size, "it")
            file.seek(0)
            return {"": np.load(file, allow_pickle=False)}
        check_archive(file)
        try:
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(in_one_line(error)) from error


def check_archive(file: IO[bytes], *, max_bytes: int | None = None) -> None:
    """Checks the arrays in a `.npz` file, without reading them, and rewinds the file.

    Args:
        file: the file.
        max_bytes: maximum size of all arrays; None for this machine's memory.

    Raises:
        ValueError: as `read_arrays` does.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if total > (memory if max_bytes is None else max_bytes):
                raise ValueError(f"its arrays take {total:,} bytes, more than this machine's memory")
            for member in members:
                with archive.open(member) as stored:
                    _check_array(stored, member.file_size, f"array {Path(member.filename).stem!r}")
    except (zipfile.BadZipFile, zlib.error, RuntimeError) as error:  # RuntimeError: encrypted
        raise ValueError(in_one_line(error)) from error
    file.seek(0)


def _check_array(file: IO[bytes], num_bytes: int, name: str) -> None:
    """Checks the header of an array whose file has this size."""
    version = npy.read_magic(file)
    readers: dict[tuple[int, int], Any] = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"{name} is in version {version[0]}.{version[1]} of NumPy's format; write it with numpy.savez")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which run code when they are loaded")
    claimed, held = math.prod(shape) * dtype.itemsize, num_bytes - file.tell()
    if claimed != held:
        raise ValueError(f"{name} claims {claimed:,} bytes of values, but there are {held:,}")
