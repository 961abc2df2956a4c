"""Checkpoints of the complete training state: JSON and plain arrays, committed by a rename, checked by SHA-256.

A checkpoint holds what an uninterrupted run has in memory between two steps: weights, optimizer state, dropout seeds
and states of recurrent layers (neither of which Keras saves), accumulated gradients, metric state, callback state, and
the position in the data. A resumed run ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import RunDirError
from tfaccel.files import finite
from tfaccel.training.steps.model_parts import accumulators_by_replica, optimizers_of, untracked_variables
from tfaccel.training.steps.replica_state import align_seeds, average_drifting, seed_variables, write_seeds
from tfaccel.training.steps.replicas import Replicas

logger = logging.getLogger("tfaccel")

FORMAT = 1


def read_state(model: keras.Model, replicas: Replicas) -> dict[str, np.ndarray]:
    """The state of a model and its optimizers as arrays. All workers must call it together.

    Moving statistics are averaged over the replicas first. Metrics and accumulated gradients are partial sums; they are
    stored per replica, along a new first axis, so that a resumed sum is bit-identical. So are the states of recurrent
    layers, which belong to the replica's rows.
    """
    align_seeds(model, replicas)
    average_drifting(model, replicas)
    state = {f"seed/{i}": v.numpy() for i, v in enumerate(seed_variables(model))}
    for name, variable, is_by_replica in _variables(model):
        parts = [component.numpy() for component in _components(variable, replicas)]
        state[name] = _of_all_workers(np.stack(parts), replicas) if is_by_replica else parts[0]
    return state


def write_state(model: keras.Model, replicas: Replicas, state: dict[str, np.ndarray]) -> None:
    """Writes the state that `read_state` returned to all replicas.

    Raises:
        RunDirError: if the state belongs to another model.
    """
    seeds = seed_variables(model)
    if f"seed/{len(seeds)}" in state:  # the stopped run had created Keras's global seed generator
        keras.random.uniform(())
        seeds = seed_variables(model)
    expected = {f"seed/{i}" for i in range(len(seeds))} | {name for name, _, _ in _variables(model)}
    if expected != set(state):
        odd = sorted(expected ^ set(state))[0]
        if all(name.startswith("state/") for name in expected - set(state)) and not set(state) - expected:
            names = ", ".join(variable.path for variable in untracked_variables(model))
            raise RunDirError(
                "The checkpoint was written by an older version of tfaccel, without the states of recurrent layers "
                f"({names:.200}), so the run cannot continue exactly. Start over in a new run directory."
            )
        raise RunDirError(f"The checkpoint belongs to another model or optimizer: {odd} is in only one of them.")
    for name, variable, is_by_replica in _variables(model):
        parts = [state[name]] * replicas.num_replicas
        if is_by_replica:
            split = _rows_for if name.startswith("state/") else _parts_for
            parts = split(state[name], replicas.num_replicas)
        if tuple(parts[0].shape) != tuple(variable.shape):
            raise RunDirError(
                f"The checkpoint belongs to another model: {name} ({variable.path}) has shape {tuple(parts[0].shape)} "
                f"there and {tuple(variable.shape)} here."
            )
        for replica, component in enumerate(_components(variable, replicas)):
            component.assign(parts[replicas.first_replica + replica])
    if seeds:
        write_seeds(model, replicas, [state[f"seed/{i}"] for i in range(len(seeds))])


def _variables(model: keras.Model) -> Iterator[tuple[str, keras.Variable, bool]]:
    """Yields name, variable, and whether each replica has a value of its own: a partial sum, or states of its rows."""
    for i, variable in enumerate(model.weights):
        yield f"weight/{i}", variable, False
    for i, variable in enumerate(model.metrics_variables):
        yield f"metric/{i}", variable, True
    for i, variable in enumerate(untracked_variables(model)):
        yield f"state/{i}", variable, True
    for owner, optimizer in optimizers_of(model).items():
        accumulators = {id(v) for v in accumulators_by_replica(optimizer)}
        for i, variable in enumerate(optimizer.variables):
            yield f"{owner}/{i}", variable, id(variable) in accumulators


def _components(variable: keras.Variable, replicas: Replicas) -> list[tf.Variable]:
    return [replicas.components([variable], replica)[0] for replica in range(len(replicas.devices))]


def _parts_for(parts: np.ndarray, num_replicas: int) -> list[np.ndarray]:
    """Partial sums for another number of replicas: the total on the first one, zeros on the others."""
    if len(parts) == num_replicas:
        return list(parts)
    total = np.sum(parts, axis=0, dtype=parts.dtype)
    return [total] + [np.zeros_like(total)] * (num_replicas - 1)


def _rows_for(parts: np.ndarray, num_replicas: int) -> list[np.ndarray]:
    """The states of the rows of a global batch for another number of replicas, in the order of the rows."""
    if len(parts) == num_replicas:
        return list(parts)
    rows = parts.reshape(-1, *parts.shape[2:])
    return np.array_split(rows, num_replicas)


def _of_all_workers(parts: np.ndarray, replicas: Replicas) -> np.ndarray:
    """The values of all replicas, in order, gathered from the local ones of each worker."""
    if replicas.num_workers == 1:
        return parts
    strategy, first = replicas.strategy, replicas.first_replica
    values = strategy.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(parts[context.replica_id_in_sync_group - first][None])
    )
    gathered: np.ndarray = strategy.gather(values, axis=0).numpy()
    return gathered


# --- On disk ----------------------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, arrays: dict[str, np.ndarray], position: dict[str, Any], *, keep: int = 2) -> Path:
    """Writes a checkpoint, and deletes all but the newest `keep`.

    Args:
        folder: the folder of checkpoints.
        arrays: name -> array.
        position: JSON-serializable; its `step` names the checkpoint.
    """
    final = folder / f"step_{position['step']:010d}"
    temporary = folder / f".{final.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        np.savez(temporary / "arrays.npz", **{name: _plain(array) for name, array in arrays.items()})  # type: ignore[arg-type]
        header = {
            "format": FORMAT,
            "sha256": _digest(temporary / "arrays.npz"),
            "dtypes": {name: str(array.dtype) for name, array in arrays.items()},
            "position": finite(position),
        }
        header["sha256_of_header"] = _digest_of_header(header)
        (temporary / "state.json").write_text(json.dumps(header, indent=1))
        for file in temporary.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in checkpoints(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(folder: Path) -> list[Path]:
    """Committed checkpoints, oldest first."""
    return sorted(folder.glob("step_*")) if folder.is_dir() else []


def load_newest(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Arrays and position of the newest complete checkpoint; broken ones are skipped with a warning."""
    for path in reversed(checkpoints(folder)):
        try:
            return _load(path)
        except (OSError, ValueError, TypeError, KeyError) as error:
            logger.warning("The checkpoint %s is broken (%s); an older one is used.", path, error)
    return None


def _load(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    header = dict(json.loads((path / "state.json").read_text()))
    if header.pop("sha256_of_header") != _digest_of_header(header):
        raise ValueError("the SHA-256 of its state.json does not match")
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']}, not {FORMAT}")
    if _digest(path / "arrays.npz") != header["sha256"]:
        raise ValueError("the SHA-256 of its arrays.npz does not match")
    with np.load(path / "arrays.npz", allow_pickle=False) as stored:
        arrays = {name: _typed(stored[name], header["dtypes"][name]) for name in stored.files}
    return arrays, header["position"]


def to_bytes(arrays: dict[str, np.ndarray], position: dict[str, Any]) -> bytes:
    """A checkpoint as bytes, to send to another worker; `from_bytes` reads it."""
    header = {"dtypes": {name: str(array.dtype) for name, array in arrays.items()}, "position": position}
    content = io.BytesIO()
    plain = {name: _plain(array) for name, array in arrays.items()}
    np.savez(content, **plain)  # type: ignore[arg-type]
    return json.dumps(header).encode() + b"\n" + content.getvalue()


def from_bytes(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and position passed to `to_bytes`."""
    line, _, rest = content.partition(b"\n")
    header = json.loads(line)
    with np.load(io.BytesIO(rest)) as found:
        return {name: _typed(found[name], header["dtypes"][name]) for name in found.files}, header["position"]


def _plain(array: np.ndarray) -> np.ndarray:
    """An array with a dtype that NumPy's file format supports; others, such as bfloat16, as unsigned integers."""
    return array if array.dtype.kind in "biufcSU" else array.view(np.uint8 if array.dtype.itemsize == 1 else np.uint16)


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
    return array if str(array.dtype) == dtype else array.view(tf.dtypes.as_dtype(dtype).as_numpy_dtype)


def _digest_of_header(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
