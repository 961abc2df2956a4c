"""Arrays for a child process and from it: batches through a pipe, weights by path in a file."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

_HEADER = struct.Struct("<cQ")  # what kind of message, and the bytes that follow
BATCH, END = b"B", b"E"


def write_batch(stream: IO[bytes], arrays: Sequence[np.ndarray]) -> None:
    """Writes the arrays of one batch.

    Example:
        >>> pipe = io.BytesIO()
        >>> write_batch(pipe, [np.arange(3)])
        >>> write_end(pipe)
        >>> _ = pipe.seek(0)
        >>> [[array.tolist() for array in batch] for batch in read_part(pipe)]
        [[[0, 1, 2]]]
    """
    body = io.BytesIO()
    for array in arrays:
        np.lib.format.write_array(body, np.asarray(array), allow_pickle=False)
    stream.write(_HEADER.pack(BATCH, body.tell()))
    stream.write(body.getbuffer())


def write_end(stream: IO[bytes]) -> None:
    """Writes that a part (the training data, say) is complete."""
    stream.write(_HEADER.pack(END, 0))
    stream.flush()


def read_part(stream: IO[bytes]) -> Iterator[list[np.ndarray]]:
    """The batches up to the end of a part.

    Raises:
        EOFError: if the pipe ends before, since its other side is gone.
    """
    while True:
        kind, size = _HEADER.unpack(_exactly(stream, _HEADER.size))
        if kind == END:
            return
        body, arrays = io.BytesIO(_exactly(stream, size)), []
        while body.tell() < size:
            arrays.append(np.lib.format.read_array(body, allow_pickle=False))
        yield arrays


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name to a `.npz` file."""
    np.savez(path, **arrays)  # type: ignore[arg-type]


def named_arrays(weights: Mapping[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Weights by path as arrays with names, to be saved.

    Example:
        >>> sorted(named_arrays({"dense": [np.zeros(1), np.ones(1)]}))
        ['dense:0', 'dense:1']
    """
    return {f"{path}:{number}": array for path, arrays in weights.items() for number, array in enumerate(arrays)}


def arrays_by_path(saved: Any) -> dict[str, list[np.ndarray]]:
    """The weights that `named_arrays` named."""
    found: dict[str, list[np.ndarray]] = {}
    for name in saved.files:
        found.setdefault(name.rpartition(":")[0], []).append(saved[name])
    return found


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the other side of the pipe is gone")
    return data
