"""Loads exported files in a fresh process with their own runtime, and compares them with the Keras model."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from tfaccel.errors import ExportError
from tfaccel.exporting.edge_rows import EdgeCase, first_difference, joined
from tfaccel.exporting.fresh_process import ERROR, without_texts
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
        edges: rows of edge values, on which a difference is reported, not refused.
        edge_names: names of the outputs for these.
    """

    kind: str
    path: Path
    rows: Arrays
    wanted: Arrays
    signatures: tuple[str, ...] = ()
    edges: tuple[EdgeCase, ...] = ()
    edge_names: tuple[str, ...] = ()


def differences(files: Sequence[Comparison], modules: Sequence[str] = ()) -> list[tuple[float, float, str]]:
    """For each file, the largest absolute difference from the Keras model's outputs, the largest absolute output, and
    what differs on edge values, in words.

    Args:
        files: each is loaded in a process that loads only its runtime.
        modules: the user's modules that define layers.

    Raises:
        ExportError: if a file cannot be used there, or differs by more than 1e-4 of the largest output (or of 1).
    """
    found: dict[int, tuple[Arrays, Arrays]] = {}
    places = range(len(files))
    together = [place for place in places if files[place].kind in _OF_TENSORFLOW]
    groups = [[place] for place in places if place not in together]
    for group in [together, *groups] if together else groups:
        outputs = _outputs_of_fresh_process([files[place] for place in group], modules)
        found |= dict(zip(group, outputs, strict=True))
    return [_compared(files[place], *found[place]) for place in places]


def _compared(file: Comparison, outputs: Arrays, of_edges: Arrays) -> tuple[float, float, str]:
    try:
        difference, size = largest_difference(outputs, file.wanted, file.path.name)
    except ExportError as error:
        raise ExportError(f"{error} Nothing was written. Please report this model.") from error
    if ERROR in of_edges:
        return difference, size, f"For edge values, {file.path.name} fails: {of_edges[ERROR]}"
    compare = partial(largest_difference, file=file.path.name)
    return difference, size, first_difference(list(file.edges), list(file.edge_names), of_edges, compare)


def _outputs_of_fresh_process(files: Sequence[Comparison], modules: Sequence[str]) -> list[tuple[Arrays, Arrays]]:
    """The outputs for the rows of each file, and for those of edge values."""
    try:
        return _outputs(files, modules, has_edges=True)
    except ExportError:
        if not any(file.edges for file in files):
            raise
    ended = {ERROR: np.array("it ends its process.")}
    pairs = zip(files, _outputs(files, modules, has_edges=False), strict=True)
    return [(outputs, ended if file.edges else {}) for file, (outputs, _) in pairs]


def _outputs(files: Sequence[Comparison], modules: Sequence[str], *, has_edges: bool) -> list[tuple[Arrays, Arrays]]:
    with tempfile.TemporaryDirectory(prefix="tfaccel-check-") as folder:
        jobs, may_fail = [], []
        for number, file in enumerate(files):
            names = [str(Path(folder, f"{kind}_{number}.npz")) for kind in ("rows", "outputs")]
            np.savez(names[0], **without_texts(file.rows))  # type: ignore[arg-type]
            jobs.append([file.kind, str(file.path), *names])
            edge_names = [f"{name}.edges" for name in names]
            if file.edges and has_edges:
                with open(edge_names[0], "wb") as target:
                    np.savez(target, **without_texts(joined(list(file.edges))))  # type: ignore[arg-type]
                may_fail.append([file.kind, str(file.path), *edge_names])
        order = {"jobs": jobs, "may_fail": may_fail, "modules": list(modules)}
        _run(json.dumps(order), ", ".join(file.path.name for file in files))
        edges = [f"{job[3]}.edges" for job in jobs]
        of_edges = [_read(edge) if Path(edge).exists() else {} for edge in edges]
        return list(zip([_read(job[3]) for job in jobs], of_edges, strict=True))


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
