"""IDX files, in which MNIST and the sets made in its image (Fashion-MNIST, EMNIST, KMNIST) are published.

References:
    http://yann.lecun.com/exdb/mnist/ (the format: two zero bytes, type, number of dimensions, sizes, numbers)
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from tfaccel.data.characters import read_decompressed
from tfaccel.errors import DataError

_DTYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_NAME = re.compile(r"(train|test|t10k)[-_.](images|labels)[-_.]idx[13](-ubyte)?(\.gz|\.bz2|\.xz|\.zst|\.zip)?$", re.I)
_ARRAYS = {"images": "x", "labels": "y"}


def find_idx_files(folder: Path) -> dict[str, Path]:
    """The IDX files of images and labels in a folder: name of the array, such as "x_train" -> file.

    Raises:
        DataError: if there are two files for one array, such as those of two parts of EMNIST.
    """
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        name = _NAME.search(file.name)
        if name is None or not file.is_file():
            continue
        part = "train" if name[1].lower() == "train" else "test"
        array = f"{_ARRAYS[name[2].lower()]}_{part}"
        other = found.setdefault(array, file)
        if other is not file and other.name.lower() != file.name.lower().removesuffix(name[4] or ""):
            raise DataError(
                f"{folder} has two files of the {name[2]} to {part} with: {other.name} and {file.name}. Keep one set "
                "of four files in a folder."
            )
    return found


def read_idx_arrays(folder: Path) -> dict[str, np.ndarray]:
    """The arrays x_train, y_train, x_test and y_test of the IDX files in a folder.

    Raises:
        DataError: if a file is missing, cannot be read, or does not hold what its header says.
    """
    files = find_idx_files(folder)
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in files]
    if missing:
        what = {name: f"the {'images' if name[0] == 'x' else 'labels'} to {name[2:]} with" for name in missing}
        raise DataError(
            f"{folder} has IDX files, but none of {' and of '.join(what.values())}. Four are needed, named as MNIST's: "
            "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, "
            "compressed or not."
        )
    return {name: read_idx(file) for name, file in files.items()}


def read_idx(path: Path) -> np.ndarray:
    """The array of an IDX file, which may be compressed.

    Raises:
        DataError: if it cannot be read, is no IDX file, or its length is not the one that its header says.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     _ = Path(file.name).write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]))
        ...     read_idx(Path(file.name)).tolist()
        [[7, 8, 9]]
    """
    content = read_decompressed(path)
    dtype = _DTYPES.get(content[2]) if len(content) >= 4 and content[:2] == b"\0\0" else None
    if dtype is None or not content[3]:
        raise DataError(f"{path} is not an IDX file: it begins with {content[:4].hex(' ') or 'nothing'}.")
    start = 4 + 4 * content[3]
    shape = tuple(map(int, np.frombuffer(content[4:start][: len(content[4:start]) // 4 * 4], ">u4")))
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if len(shape) != content[3] or len(content) - start != num_bytes:
        raise DataError(
            f"{path} is damaged: its header says {num_bytes:,} bytes of shape {shape}, and "
            f"{max(0, len(content) - start):,} follow. Copy it again."
        )
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
