"""Loads exported files in a fresh process with their own runtime, and compares them with the Keras model."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfaccel.errors import ExportError
from tfaccel.exporting.fresh_process import packed
from tfaccel.processes.child import ProcessError, last_words, run_program

TOLERANCE = 1e-4  # relative to the largest output, or to 1 if that is larger
_OF_TENSORFLOW = ("keras", "saved_model")  # they share one fresh process, since TensorFlow takes seconds to start
_MAX_SECONDS = 600.0
_MAX_REASON_LENGTH = 400  # characters

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A file that must give the same outputs as the Keras model.

    Args:
        kind: "keras", "saved_model", "litert" or "onnx".
        path: the file or folder.
        rows: inputs: arrays by name.
        wanted: outputs of the Keras model.
        signatures: its signatures.
    """

    kind: str
    path: Path
    rows: Arrays
    wanted: Arrays
    signatures: tuple[str, ...] = ()


def differences(files: Sequence[Comparison], modules: Sequence[str] = ()) -> list[tuple[float, float]]:
    """For each file, the largest absolute difference from the Keras model's outputs, and the largest absolute output.

    Args:
        files: each is loaded in a process that loads only its runtime.
        modules: the user's modules that define layers.

    Raises:
        ExportError: if a file cannot be used there, or differs by more than 1e-4 of the largest output (or of 1).
    """
    found: dict[int, dict[str, np.ndarray]] = {}
    places = range(len(files))
    together = [place for place in places if files[place].kind in _OF_TENSORFLOW]
    groups = [[place] for place in places if place not in together]
    for group in [together, *groups] if together else groups:
        outputs = _outputs_of_fresh_process([files[place] for place in group], modules)
        found |= dict(zip(group, outputs, strict=True))
    return [largest_difference(found[place], files[place].wanted, files[place].path.name) for place in places]


def _outputs_of_fresh_process(files: Sequence[Comparison], modules: Sequence[str]) -> list[dict[str, np.ndarray]]:
    with tempfile.TemporaryDirectory(prefix="tfaccel-check-") as folder:
        jobs = []
        for number, file in enumerate(files):
            names = [str(Path(folder, f"{kind}_{number}.npz")) for kind in ("rows", "outputs")]
            plain = {name: packed(array) if array.dtype == object else array for name, array in file.rows.items()}
            np.savez(names[0], **plain)  # type: ignore[arg-type]
            jobs.append([file.kind, str(file.path), *names])
        _run(json.dumps({"jobs": jobs, "modules": list(modules)}), ", ".join(file.path.name for file in files))
        return [_read(job[3]) for job in jobs]


def _run(order: str, names: str) -> None:
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "tfaccel.exporting.fresh_process", order]
    try:
        run_program(command, environment=environment, time_limit_seconds=_MAX_SECONDS)
    except ProcessError as error:
        how = f"it {error.how}. Its last words: {last_words(error.output)[:_MAX_REASON_LENGTH]}"
        raise ExportError(f"{names} cannot be used in a fresh process: {how}") from error


def _read(path: str) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def largest_difference(found: Arrays, wanted: Arrays, file: str) -> tuple[float, float]:
    """The largest absolute difference between outputs, and the largest absolute output.

    Strings must be equal, and NaN must occur in the same places.

    Raises:
        ExportError: if outputs are missing, or differ by more than 1e-4 of the largest (or of 1).
    """
    if set(found) != set(wanted):
        raise ExportError(f"{file} has the outputs {', '.join(found)}; the Keras model has {', '.join(wanted)}.")
    pairs = [_difference(found[name], array, f"{file}: output {name}") for name, array in wanted.items()]
    return max(difference for difference, _ in pairs), max(size for _, size in pairs)


def _difference(own: np.ndarray, wanted: np.ndarray, name: str) -> tuple[float, float]:
    if own.shape != wanted.shape:
        raise ExportError(f"{name} has shape {own.shape}; the Keras model's has {wanted.shape}.")
    if wanted.dtype.kind in "SU":
        if not np.array_equal(wanted, own):
            raise ExportError(f"{name} is {own.tolist()}; the Keras model's is {wanted.tolist()}.")
        return 0.0, 0.0
    wide, other = wanted.astype(np.float64), own.astype(np.float64)
    if not np.array_equal(np.isnan(wide), np.isnan(other)):
        raise ExportError(f"{name} is NaN in other places than the Keras model's.")
    with np.errstate(invalid="ignore"):
        apart = np.where((wide == other) | np.isnan(wide), 0.0, np.abs(wide - other))
    difference = float(np.max(apart, initial=0.0))
    size = float(np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0))
    if not difference <= TOLERANCE * max(1.0, size):
        raise ExportError(
            f"{name} differs by {difference:.3g} from the Keras model's, whose largest value is {size:.3g}. Nothing "
            "was written. Please report this model."
        )
    return difference, size
