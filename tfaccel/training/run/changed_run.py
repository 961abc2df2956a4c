"""What may change in a run that goes on, and what may not.

How a run was built (the settings of its layers, optimizers and loss, and the length of an epoch) is saved with it, so
that it is not continued with a model that has the same weights but computes something else: another activation, dropout
rate or learning rate. What a checkpoint restores anyway (weights, seeds) and what depends on the plan and not on the
user (names, dtypes, accumulation, synchronized statistics) is left out.

The number of accumulation steps may be multiplied. A checkpoint counts batches, `accumulation_steps` of them per
optimizer step. If each is split into `k` batches, the position and the optimizers' counters are `k` times as large.
Accumulated gradients are sums of the batches' means, and the sum over `k` parts of a batch is `k` times its mean.

A run may become longer, if it equals one that had all epochs from the start.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import RunDirError
from tfaccel.planning.compile_arguments import CompiledByModel, described
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import LearningRateScaling, compile_arguments
from tfaccel.planning.workload import Workload
from tfaccel.training.private.private_api import raw_iterations
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.run_options import CONTINUE, EXTEND_SCHEDULE, NEW, STRETCH
from tfaccel.training.schedules import AccumulatedSchedule
from tfaccel.training.steps.model_parts import (
    accumulators_by_replica,
    get_accumulators,
    get_optimizers,
    inner_optimizer,
    stepping_optimizers,
    untracked_variables,
)

_MAX_CHARACTERS = 120  # of a saved value; longer ones, such as vocabularies, are saved as a digest
_LEFT_OUT = {
    "name",
    "seed",
    "dtype",
    "synchronized",
    "gradient_accumulation_steps",
    "build_config",
    "compile_config",
    "registered_name",
    "module",
    "batch_shape",
    "batch_input_shape",
}
_OF_MODELS = {"layers", "input_layers", "output_layers"}

_OTHER = object()  # in place of a value that JSON does not have
_ANEW = "Train the longer run in a new directory, from its start"


def built_settings(model: keras.Model, *, num_batches: int | None, batch_size: int) -> dict[str, Any]:
    """The settings of a compiled model and its data, as JSON values.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5)])
        >>> model.compile("sgd", "mse")
        >>> built = built_settings(model, num_batches=3, batch_size=32)
        >>> built["layer 1"]["rate"], built["optimizer"]["class"], built["loss"]
        (0.5, 'SGD', 'mse')
    """
    layers = {f"layer {number}": _settings(layer) for number, layer in enumerate(_get_layers(model), start=1)}
    optimizers = {owner: _settings(optimizer) for owner, optimizer in get_optimizers(model).items()}
    data = {"batches": num_batches, "rows of a batch": batch_size}
    return {**layers, **optimizers, "loss": _plain(described(getattr(model, "loss", None))), "an epoch": data}


def check_built(run_dir: RunDir, built: dict[str, Any]) -> None:
    """Records how a run is built, unless the run that is resumed was built otherwise."""
    built = json.loads(json.dumps(built))
    differs = None if run_dir.built is None else difference(run_dir.built, built)
    if differs is not None:
        raise run_dir.holds_another(*differs)
    run_dir.config = {**run_dir.config, "built": built}


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting that differs: its name, and its value in each of two `built_settings`; None if none does.

    The length of an epoch counts only if the batches have the same size.

    Example:
        >>> difference({"layer 1": {"class": "Dropout", "rate": 0.5}}, {"layer 1": {"class": "Dropout", "rate": 0.4}})
        ('rate of layer 1 (Dropout)', 0.5, 0.4)
    """
    for part in {**there, **here}:
        pair = there.get(part), here.get(part)
        if pair[0] == pair[1]:
            continue
        if not all(isinstance(one, Mapping) for one in pair):
            shown = [one.get("class", one) if isinstance(one, Mapping) else one for one in pair]
            return part, shown[0], shown[1]
        if part == "an epoch" and len({one["rows of a batch"] for one in pair}) > 1:  # type: ignore[index]
            continue
        for name in {**pair[0], **pair[1]}:  # type: ignore[dict-item]
            values = [one.get(name) for one in pair]  # type: ignore[union-attr]
            if values[0] != values[1]:
                kind = f" ({pair[1]['class']})" if name != "class" and "class" in pair[1] else ""  # type: ignore[index,operator]
                return f"{name} of {part}{kind}", values[0], values[1]
    return None


def _get_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a model and of the models in it, in order."""
    for layer in model.layers:
        if isinstance(layer, keras.Model) and layer.layers:
            yield from _get_layers(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            yield layer


def _settings(one: Any) -> dict[str, Any]:
    """The class and config of a layer or optimizer; the class alone where it has no config."""
    config: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # whatever the user's class raises
        config = dict(one.get_config())
    plain = {name: _plain(value) for name, value in config.items() if _counts(name)}
    return {"class": type(one).__qualname__, **{name: value for name, value in plain.items() if value is not _OTHER}}


def _counts(name: str) -> bool:
    return name not in _LEFT_OUT | _OF_MODELS and not name.endswith("_initializer")


def _plain(value: Any) -> Any:
    """A value as JSON, long ones as a digest; `_OTHER` for objects and functions, whose text may vary."""
    plain = _nested(value)
    if plain is _OTHER:
        return plain
    text = json.dumps(plain)
    if len(text) <= _MAX_CHARACTERS:
        return plain
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _nested(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        found = [_nested(part) for part in value]
        return _OTHER if any(part is _OTHER for part in found) else found
    if not isinstance(value, Mapping):
        return _OTHER
    if value.get("class_name") == "__lambda__":  # byte code with the numbers of its lines
        return _OTHER
    if value.get("class_name") == AccumulatedSchedule.__name__:
        return _nested(value["config"]["schedule"])
    parts = {str(name): _nested(part) for name, part in value.items() if _counts(str(name))}
    return {name: part for name, part in parts.items() if part is not _OTHER}


def parts_per_batch(position: dict[str, Any], accumulation_steps: int) -> int:
    """The number of batches into which each batch of a checkpoint is split.

    Args:
        position: the position of a checkpoint; without `accumulation_steps`, it has those of the run.

    Example:
        >>> parts_per_batch({"step": 3, "accumulation_steps": 2}, 4)
        2
    """
    before = position.get("accumulation_steps", accumulation_steps)
    if accumulation_steps % before:
        raise RunDirError(
            f"The checkpoint was written with accumulation_steps={before}, and can be continued with a multiple of it "
            f"only. Received: accumulation_steps={accumulation_steps}. Use accumulation_steps={before}, or a new run "
            "directory."
        )
    return int(accumulation_steps // before)


def in_parts(position: dict[str, Any], parts: int) -> dict[str, Any]:
    """A position counted in batches that are `parts` times smaller.

    Example:
        >>> in_parts({"epoch": 1, "step_in_epoch": 3, "step": 8}, 2)
        {'epoch': 1, 'step_in_epoch': 6, 'step': 16}
    """
    return {**position, **{name: parts * position[name] for name in ("step_in_epoch", "step")}}


def positions(left_out: list[list[int]], accumulation_steps: int) -> frozenset[tuple[int, int]]:
    """The epochs and steps, from 0, of batches that are left out.

    Args:
        left_out: epoch, step and accumulation steps of each, as noted in the run directory.
        accumulation_steps: of the plan, which may since have been multiplied, so that batches are smaller.

    Example:
        >>> sorted(positions([[0, 3, 1]], 2))
        [(0, 6), (0, 7)]
    """
    found = set()
    for epoch, step, earlier_steps in left_out:
        parts = accumulation_steps // earlier_steps
        found |= {(epoch, step * parts + part) for part in range(parts)}
    return frozenset(found)


def state_in_parts(
    state: dict[str, np.ndarray], model: keras.Model, parts: int, *, num_replicas: int
) -> dict[str, np.ndarray]:
    """The state of a checkpoint, for optimizers that accumulate over `parts` times as many batches."""
    if parts == 1:
        return state
    if any(name.startswith("state/") for name in state):
        names = ", ".join(variable.path for variable in untracked_variables(model))
        raise RunDirError(
            f"The checkpoint holds states of recurrent layers ({names:.200}), one for each row of a batch, and cannot "
            "be continued in smaller batches. Use the accumulation_steps of the checkpoint, or a new run directory."
        )
    changed = dict(state)
    for owner, optimizer in get_optimizers(model).items():
        stepping, inner = stepping_optimizers(optimizer), inner_optimizer(optimizer)
        counters = {id(raw_iterations(one)) for one in (inner, *stepping)}  # a `MultiOptimizer` counts as well
        accumulators = {id(v) for one in stepping for v in get_accumulators(one)}
        by_replica = {id(v) for v in accumulators_by_replica(optimizer)}
        old = [state[f"{owner}/{i}"] for i in range(sum(name.startswith(f"{owner}/") for name in state))]
        is_new = len(old) == len(optimizer.variables) - len(accumulators)  # the checkpoint has no accumulators
        rest = iter(old)
        for i, variable in enumerate(optimizer.variables):
            if id(variable) in accumulators and is_new:
                shape = (num_replicas, *variable.shape) if id(variable) in by_replica else tuple(variable.shape)
                changed[f"{owner}/{i}"] = np.zeros(shape, keras.backend.standardize_dtype(variable.dtype))
                continue
            value = next(rest)
            scaled = id(variable) in counters or id(variable) in accumulators
            changed[f"{owner}/{i}"] = (value * np.asarray(parts, value.dtype)) if scaled else value
    return changed


def step_in_split_epoch(workload: Workload, plan: Plan, parts: int, *, seed: int, epoch: int, step: int) -> int:
    """Checks that an epoch can continue in smaller batches; returns its next step, at most the epoch's length."""
    size = plan.global_batch_size // plan.accumulation_steps
    smaller = workload.train_data(size, seed=seed, epoch=epoch)
    whole = workload.train_data(size * parts, seed=seed, epoch=epoch)
    if not _have_equal_rows(whole.skip(step // parts).take(1), smaller.skip(step).take(parts)):
        raise RunDirError(
            f"The rows of workload {workload.name!r} come in another order, or are augmented differently, in batches "
            f"of {size}, so that an epoch cannot be continued with accumulation_steps={plan.accumulation_steps}. Start "
            "over with it in a new run directory."
        )
    length = int(smaller.cardinality())
    return min(step, length) if length > 0 else step


def why_epochs_differ(workload: Workload, plan: Plan) -> str | None:
    """Why an epoch has other optimizer steps in batches that are half as large; None if it has the same.

    Batches are accumulated across the end of an epoch, and all with equal weights, so an epoch must divide into whole
    batches.
    """
    size = plan.global_batch_size // plan.accumulation_steps
    whole, halves = (workload.train_data(rows, seed=0, epoch=0) for rows in (size, size // 2))
    if _shapes_of_rows(whole.take(1)) != _shapes_of_rows(halves.take(2)):
        return "the rows of a batch are padded to the longest of them"
    batches, half_batches = int(whole.cardinality()), int(halves.cardinality())
    if {_static_rows(whole), _static_rows(halves)} == {size, size // 2} and batches >= 0:  # all batches are full
        if half_batches == 2 * batches:
            return None
        return f"an epoch has {batches} batches of {size} rows, but {half_batches} of {size // 2}"
    rows = int(workload.train_data(1, seed=0, epoch=0).cardinality())
    rows = rows if rows >= 0 else workload.num_train_examples or 0
    if rows <= 0:
        return (
            "it is not known whether an epoch divides into whole batches (give the dataset a length with "
            "`tf.data.experimental.assert_cardinality`, or the workload num_train_examples)"
        )
    return f"an epoch of {rows} rows does not divide into batches of {size}" if rows % size else None


def _static_rows(dataset: tf.data.Dataset) -> int | None:
    """The number of rows of every batch, if it is fixed."""
    leaves = [leaf for leaf in keras.tree.flatten(dataset.element_spec) if leaf is not None and leaf.shape.rank]
    return leaves[0].shape[0] if leaves else None


def _shapes_of_rows(dataset: tf.data.Dataset) -> set[tuple[Any, ...]]:
    """The shapes of the rows of each batch, in the order of the tensors of a batch."""
    return {
        tuple(leaf.shape[1:] for leaf in keras.tree.flatten(batch) if isinstance(leaf, tf.Tensor)) for batch in dataset
    }


def _have_equal_rows(some: tf.data.Dataset, others: tf.data.Dataset) -> bool:
    """Whether the batches of two datasets have the same rows in the same order."""
    if _shapes_of_rows(some) != _shapes_of_rows(others):  # padded to the longest row
        return False
    found = [[keras.tree.flatten(batch) for batch in dataset] for dataset in (some, others)]
    leaves = [[tf.concat(parts, axis=0) for parts in zip(*batches, strict=True)] for batches in found]
    return len(leaves[0]) == len(leaves[1]) and all(
        one.shape == other.shape and bool(tf.reduce_all(tf.equal(one, other)))
        for one, other in zip(*leaves, strict=True)
    )


def check_same_when_longer(
    workload: Workload, scaling: LearningRateScaling | None, *, num_steps: int | None, more_steps: int | None
) -> None:
    """Checks that nothing of a run depends on its number of optimizer steps."""
    if scaling is not None and scaling.warm_up:
        raise RunDirError(
            f"scaling_warm_up={scaling.warm_up} is a fraction of all steps, so a longer run warms up longer. {_ANEW}."
        )
    if isinstance(workload.compile_args, CompiledByModel):
        return
    before, after = (_deep(compile_arguments(workload, num_steps=steps)) for steps in (num_steps, more_steps))
    place = _first_difference(before, after, "")
    if place is not None:
        name, was, would_be = place
        raise RunDirError(
            f"This run depends on its number of steps: {name} is {was!r:.80} for the {num_steps} steps that it was "
            f"begun with, and {would_be!r:.80} for {more_steps}. {_ANEW}. Runs can go on whose rates do not depend "
            "on it; in recipes: --schedule=constant --warm_up=0 --weight_decay=NUMBER. Others need extend_schedule "
            f"(--extend_schedule): {', '.join(EXTEND_SCHEDULE)}."
        )


HOW_AGAIN = "This run was extended with extend_schedule={!r}. Say again what becomes of it (--extend_schedule)."


def extended_schedule(
    how: str, before: int | None, after: int | None, *, extended: Mapping[str, Any], epochs: int
) -> dict[str, Any]:
    """What the learning rate schedule of a run that goes on is made for: a number of `steps`, from step `offset` on.

    Args:
        how: "continue", "stretch" or "new"; see `train`.
        before, after: the number of steps that the schedule was made for, and of optimizer steps in the longer run.
        extended: what this returned when the run was extended before; empty if it was not.
        epochs: of the longer run.

    Raises:
        RunDirError: if a number of steps is not known.

    Example:
        >>> extended_schedule("new", 100, 250, extended={}, epochs=5)
        {'epochs': 5, 'how': 'new', 'steps': 150, 'offset': 100}
    """
    offset = extended.get("offset", 0)
    if before is None or after is None:
        raise RunDirError(
            f"extend_schedule={how!r} needs the number of batches in an epoch, which is unknown. {_ANEW}."
        )
    steps, start = {
        CONTINUE: (before, offset),
        STRETCH: (after, 0),
        NEW: (after - offset - before, offset + before),
    }[how]
    return {"epochs": epochs, "how": how, "steps": steps, "offset": start}


def _deep(value: Any) -> Any:
    """A compile argument as JSON values, functions with the values that they have kept."""
    if isinstance(value, dict):
        return {str(name): _deep(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_deep(part) for part in value]
    if inspect.isfunction(value):
        kept = [cell.cell_contents for cell in value.__closure__ or ()]
        return {"function": value.__qualname__, "keeps": described([*kept, *(value.__defaults__ or ())])}
    try:
        return described(value)
    except RuntimeError as error:  # Keras's base classes of schedules and optimizers
        raise RunDirError(
            f"Whether {type(value).__name__} depends on the number of steps is not known, because what it holds has no "
            f"`get_config`. Write it, or train the longer run in a new directory."
        ) from error


def _first_difference(one: Any, other: Any, name: str) -> tuple[str, Any, Any] | None:
    parts, others = (dict(enumerate(each)) if isinstance(each, list) else each for each in (one, other))
    if isinstance(parts, dict) and type(one) is type(other) and parts.keys() == others.keys():
        pairs = (_first_difference(parts[key], others[key], _joined(name, str(key))) for key in parts)
        return next(filter(None, pairs), None)
    return None if one == other else (name, one, other)


def _joined(name: str, key: str) -> str:
    """The name of a part, without the levels that only this description has."""
    return name if name and key in ("config", "keeps") else f"{name}.{key}" if name else key
