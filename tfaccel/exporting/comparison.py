"""Loads exported files in a fresh process with their own runtime, and compares them with the Keras model.

Besides ordinary rows, files get rows of edge values, which converted models may treat in another way: both signs,
zeros, halves, extremes, NaN, odd texts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.errors import ExportError
from tfaccel.exporting.fresh_process import ERROR, load_arrays, save_arrays
from tfaccel.processes.child import ProcessError, last_words, run_program

TOLERANCE = 1e-4  # relative to the largest output, or to 1 if that is larger
_OF_TENSORFLOW = ("keras", "saved_model")  # they share one fresh process, since TensorFlow takes seconds to start
_MAX_SECONDS = 600.0
_MAX_REASON_LENGTH = 400  # characters
_MAX_INPUTS = 8  # of models whose inputs are tried one by one as well
_TEXTS = {"zero": b"", "positive": b"a", "negative": "\u00c4 \u4e2d".encode(), "largest": b"x" * 1000}

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class EdgeCase:
    """Rows of one kind, and what the Keras model gives for them.

    Args:
        name: of the kind and of the inputs, such as "negative values of x".
        rows: inputs: arrays by name.
        wanted: the outputs.
    """

    name: str
    rows: Arrays
    wanted: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A file that must give the same outputs as the Keras model.

    Args:
        kind: "keras", "saved_model", "litert" or "onnx".
        path: the file or folder.
        rows: inputs: arrays by name.
        wanted: outputs of the Keras model.
        signatures: its signatures.
        edges: rows of edge values, on which a difference is reported, not refused; their outputs have the first names
            of `wanted`.
    """

    kind: str
    path: Path
    rows: Arrays
    wanted: Arrays
    signatures: tuple[str, ...] = ()
    edges: Sequence[EdgeCase] = ()


def differences(files: Sequence[Comparison], modules: Sequence[str] = ()) -> list[tuple[float, float, str]]:
    """For each file, the largest absolute difference from the Keras model's outputs, the largest absolute output, and
    what differs on edge values, in words.

    Args:
        files: one of each kind; each is loaded in a process that loads only its runtime.
        modules: the user's modules that define layers.

    Raises:
        ExportError: if a file cannot be used there, or differs by more than 1e-4 of the largest output (or of 1).
    """
    together = [file for file in files if file.kind in _OF_TENSORFLOW]
    found: dict[str, tuple[Arrays, Arrays]] = {}
    for group in [together, *([file] for file in files if file not in together)]:
        found |= _outputs_of_fresh_process(group, modules) if group else {}
    return [_compared(file, *found[file.kind]) for file in files]


def _compared(file: Comparison, outputs: Arrays, of_edges: Arrays) -> tuple[float, float, str]:
    try:
        difference, size = largest_difference(outputs, file.wanted, file.path.name)
    except ExportError as error:
        raise ExportError(f"{error} Nothing was written. Please report this model.") from error
    if ERROR in of_edges:
        return difference, size, f"For edge values, {file.path.name} fails: {of_edges[ERROR]}"
    start = 0
    for case in file.edges:
        rows = slice(start, start + len(next(iter(case.rows.values()))))
        start = rows.stop
        wanted = dict(zip(file.wanted, case.wanted, strict=False))
        try:
            largest_difference({name: array[rows] for name, array in of_edges.items()}, wanted, file.path.name)
        except ExportError as error:
            return difference, size, f"For {case.name}: {error}"
    return difference, size, ""


def _outputs_of_fresh_process(files: Sequence[Comparison], modules: Sequence[str]) -> dict[str, tuple[Arrays, Arrays]]:
    """Kind of each file -> its outputs for its rows, and for those of edge values."""
    try:
        return _outputs(files, modules, has_edges=True)
    except ExportError:
        if not any(file.edges for file in files):
            raise
    found, ended = _outputs(files, modules, has_edges=False), {ERROR: np.array("it ends its process.")}
    return {file.kind: (found[file.kind][0], ended if file.edges else {}) for file in files}


def _outputs(
    files: Sequence[Comparison], modules: Sequence[str], *, has_edges: bool
) -> dict[str, tuple[Arrays, Arrays]]:
    with tempfile.TemporaryDirectory(prefix="tfaccel-check-") as folder:
        jobs: list[tuple[str, str, str, str, bool]] = []
        for file in files:
            edges = _joined(file.edges) if has_edges else {}
            for is_edges, rows in ((False, file.rows), (True, edges)):
                if rows:
                    start = str(Path(folder, f"{file.kind}_{is_edges}"))
                    save_arrays(f"{start}.npz", rows)
                    jobs.append((file.kind, str(file.path), f"{start}.npz", f"{start}_outputs.npz", is_edges))
        _run(json.dumps({"jobs": jobs, "modules": list(modules)}), ", ".join(file.path.name for file in files))
        found = {(kind, is_edges): load_arrays(outputs) for kind, _, _, outputs, is_edges in jobs}
        return {file.kind: (found[file.kind, False], found.get((file.kind, True), {})) for file in files}


def _run(order: str, names: str) -> None:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "tfaccel.exporting.fresh_process", order]
    try:
        run_program(command, environment=environment, time_limit_seconds=_MAX_SECONDS)
    except ProcessError as error:
        how = f"it {error.how}. Its last words: {last_words(error.output)[:_MAX_REASON_LENGTH]}"
        raise ExportError(f"{names} cannot be used in a fresh process: {how}") from error


def largest_difference(found: Arrays, wanted: Arrays, file: str) -> tuple[float, float]:
    """The largest absolute difference between outputs, and the largest absolute output.

    Strings must be equal, and NaN must occur in the same places.
    """
    if set(found) != set(wanted):
        raise ExportError(f"{file} has the outputs {', '.join(found)}; the Keras model has {', '.join(wanted)}.")
    pairs = [_difference(found[name], array, f"{file}: output {name}") for name, array in wanted.items()]
    return max(difference for difference, _ in pairs), max(size for _, size in pairs)


def _difference(own: np.ndarray, wanted: np.ndarray, name: str) -> tuple[float, float]:
    if own.shape != wanted.shape:
        raise ExportError(f"{name} has shape {own.shape}; the Keras model's has {wanted.shape}.")
    if wanted.dtype.kind in "SUO":  # texts
        if not np.array_equal(wanted, own):
            raise ExportError(f"{name} is {own.tolist()}; the Keras model's is {wanted.tolist()}.")
        return 0.0, 0.0
    kind = np.complex128 if "c" in (wanted.dtype.kind, own.dtype.kind) else np.float64
    wide, other = wanted.astype(kind), own.astype(kind)
    if not np.array_equal(np.isnan(wide), np.isnan(other)):
        raise ExportError(f"{name} is NaN in other places than the Keras model's.")
    with np.errstate(invalid="ignore"):
        apart = np.where((wide == other) | np.isnan(wide), 0.0, np.abs(wide - other))
    difference = float(np.max(apart, initial=0.0))
    size = float(np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0))
    tolerance = 0.0 if wanted.dtype.kind in "biu" else TOLERANCE * max(1.0, size)
    if not difference <= tolerance:
        raise ExportError(
            f"{name} differs by {difference:.3g} from the Keras model's, whose largest value is {size:.3g}."
        )
    return difference, size


def edge_cases(
    rows: Arrays, outputs: Callable[[Arrays], list[np.ndarray]], *, highest: int | None = None
) -> list[EdgeCase]:
    """The cases that the Keras model takes: it refuses numbers that are no tokens, or a division by zero.

    Args:
        rows: ordinary rows. In each case, all inputs or one of them have edge values.
        outputs: `outputs(rows)` calls the Keras model.
        highest: the size of its smallest embedding, if it has one.
    """
    found: list[EdgeCase] = []
    for name, changed in _changed(rows, highest):
        try:
            wanted = outputs(changed)
        except Exception:  # of TensorFlow, or of the user's layers
            continue
        found.append(EdgeCase(name, changed, tuple(wanted)))
    return found


def _changed(rows: Arrays, highest: int | None) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    targets = [tuple(rows), *([(name,) for name in rows] if 1 < len(rows) <= _MAX_INPUTS else [])]
    kinds = ("negative", "zero", "positive", "mixed", "largest", "smallest", *(["last"] if highest else []), "missing")
    for kind in kinds:
        for names in targets:
            changed = {name: _values(kind, array, highest) if name in names else array for name, array in rows.items()}
            if any(changed[name] is not rows[name] for name in names):
                yield f"{kind} values of {', '.join(names)}", changed


def _values(kind: str, like: np.ndarray, highest: int | None) -> np.ndarray:
    """Values of a kind in the shape of an array; the array itself for dtypes that have none."""
    random = np.random.default_rng(0).integers(1, 100, like.shape)
    dtype: Any = like.dtype
    is_integer, is_float = dtype.kind in "iu", dtype.kind == "f"
    if dtype.kind == "O":
        return np.full_like(like, _TEXTS[kind]) if kind in _TEXTS else like
    if dtype.kind == "b":
        return np.full_like(like, kind == "largest") if kind in ("zero", "largest") else like
    if not is_integer and not is_float:
        return like
    usual = random.astype(dtype) if is_integer else random / 7
    values: dict[str, Any] = {"zero": 0, "positive": usual}
    if dtype.kind != "u":  # mixed: both signs; halves, which are rounded to even numbers
        values |= {"negative": -usual, "mixed": usual - 50 if is_integer else random - 50.5}
    if is_float:
        # Squares of sums of the largest numbers are finite, and they are above the largest integer of 32 bits.
        is_odd = np.arange(like.size).reshape(like.shape) % 2
        values |= {"largest": np.finfo(dtype).max ** 0.25, "missing": np.where(is_odd, np.nan, usual)}
    else:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max  # odd ones too, which float32 does not hold
        values |= {"largest": most - usual, "last": min((highest or 1) - 1, most)}
        values |= {"smallest": least + usual} if dtype.kind == "i" else {}
    return np.full_like(like, values[kind]) if kind in values else like


def _joined(cases: Sequence[EdgeCase]) -> dict[str, np.ndarray]:
    """The rows of all cases, one after the other."""
    return {name: np.concatenate([case.rows[name] for case in cases]) for name in cases[0].rows} if cases else {}
