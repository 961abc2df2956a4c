"""The noun `Proof`: what running a step on several replicas and on one device has shown; and the refusal of a step.

The refusal says what differs, what couples the rows, and what can be done.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import in_one_line
from tfaccel.training.private import private_api
from tfaccel.training.private.private_random import still_random
from tfaccel.training.proof.detached_step import State
from tfaccel.training.proof.one_device import CALLS_PYTHON, in_inference_mode, some_rows, without_side_effects
from tfaccel.training.steps.gather_rows import get_losses
from tfaccel.training.steps.merged_metrics import flat_logs, metrics_in
from tfaccel.training.steps.model_parts import get_variables, has_own_test_step, has_own_train_step, moved_by_gradients
from tfaccel.training.steps.overrides import attributes_of_each, keeps_methods, replaces
from tfaccel.training.steps.replicas import Replicas

if TYPE_CHECKING:
    from tfaccel.training.steps.engine import Engine

_MAX_ROWS = 64
_CLOSE = 1e-3
SHARED = ", created outside the strategy's scope (create it within)"  # behind the names of what replicas share
_ADVICE = (
    "Return one value per row instead of a sum, use tfaccel.ops.all_gather_rows for rows that are compared or counted "
    "together, and tfaccel.ops.sum_over_replicas for what is summed over them; clip gradients by the optimizer's "
    "`global_clipnorm`, or in the step after tfaccel.ops.mean_over_replicas, as for gradients that the step keeps; or "
    "build the model outside the strategy to train on one replica. check_rows=False skips this check."
)
_SEED_ADVICE = "call keras.random with a keras.random.SeedGenerator as `seed`"


def make_refusal(engine: Engine, kind: str, data: Any, proof: Proof, seeded: Sequence[tf.Tensor]) -> str:
    """The message for a step that differs from one device's.

    Args:
        engine: the engine that ran it; the model has its state from before.
        seeded: random numbers that are the same on all replicas.
    """
    logs, variables = proof.logs, proof.variables
    shared = [one for one in variables if one.endswith(SHARED)]
    what = f"{shared[0]}, is assigned by each replica" if shared else _mixing_layer(engine, kind, data)
    what = what or _seeded_rows(seeded, proof.num_rows) or _blamed(engine.model, kind, proof)
    many = "s" if len(variables) > 1 else ""
    paths = ", ".join(variables[:3]).replace(SHARED, "")
    named = [f"{len(variables)} variable{many} ({paths})"] if variables else []
    named += [f"logs ({', '.join(logs[:3])})"] if logs else []
    named += ["predictions"] if len(proof.differing) > len(variables) + len(logs) else []
    return (
        f"{what}, so {proof.num_replicas} replicas, each of which sees only its own rows of the batch, do not give the "
        f"results of one device. After one {type(engine.model).__name__}.{kind}_step on {proof.num_rows} rows, they "
        f"differ in {' and '.join(named)}, by up to {proof.largest:.1g} of the size. {_ADVICE}"
    )


def make_refusal_of_copies(names: Sequence[str], proof: Proof) -> str:
    """The message for variables of which each replica has made a value of its own."""
    return (
        f"{names[0]} is assigned a value that depends on the rows of the batch, so {proof.num_replicas} replicas, each "
        f"of which sees only its own rows of the batch, hold values of it that differ. This shows only now: in none of "
        f"the {proof.num_steps} steps that were compared with one device's did it matter. {_ADVICE}"
    )


def _seeded_rows(seeded: Sequence[tf.Tensor], num_rows: int) -> str:
    """Says which operation draws the same random numbers for the rows of each replica; "" if there is none."""
    names = [one.op.name for one in seeded if one.shape.rank and one.shape[0] in (None, num_rows)]
    if not names:
        return ""
    return f"{names[0]} draws the same random numbers on every replica, since its seed is the same ({_SEED_ADVICE})"


def _blamed(model: keras.Model, kind: str, proof: Proof) -> str:
    """What of a step whose layers process each row alone."""
    step = f"{type(model).__name__}.{kind}_step"
    logs, others = proof.logs, proof.variables  # which the step assigns
    applied = {variable.path for variable in moved_by_gradients(model)}
    if kind == "predict":
        return f"What {step} predicts for one row depends on the other rows of the batch"
    if others and not any(name in applied for name in others):
        return f"{others[0]} is assigned a value that depends on the rows of the batch"
    if {"train": has_own_train_step, "test": has_own_test_step}[kind](model):
        if kind == "test" or (logs and len(logs) == len(proof.differing)):
            log = logs[0] if logs else proof.differing[0]
            return f"Log {log!r} of {step} is neither a metric's result nor a mean over the rows of the batch"
        return f"The gradients that {step} applies are not means over the rows of the batch"
    if not keeps_methods(model, keras.Model, "compute_loss"):
        return f"{type(model).__name__}.compute_loss is not a mean over the rows of the batch"
    adding = private_api.names_of_layers_that_add_losses(model)
    of_loss = proof.loss_differs or any(name in applied for name in others)
    if of_loss and adding:
        return f"A loss added by layer {', '.join(adding)} is neither a mean over the rows nor one value per row"
    if of_loss and not proof.loss_differs:
        name = next(one for one in others if one in applied)
        return (
            f"{name} is changed by something else than the mean over the rows of the batch: the loss "
            f"({names_of_losses(model)}) is none, the gradient is sparse, or a layer assigns it"
        )
    if of_loss:
        return (
            f"The loss ({names_of_losses(model)}) is not a mean over the rows: it compares the rows of a batch, "
            "sums over them, or divides by something other than their number"
        )
    replaced = [one for one in ("compute_metrics", "get_metrics_result") if replaces(model, keras.Model, one)]
    if replaced and logs[0] not in {metric.name for metric in metrics_in(model)}:
        return f"Log {logs[0]!r} of {type(model).__name__}.{replaced[0]} is not a mean over the rows of the batch"
    return f"Metric {logs[0]!r} is not made of one value per row"


def names_of_losses(model: keras.Model) -> str:
    """The names of the compiled losses, joined by commas."""
    losses = [getattr(one, "name", None) or getattr(one, "__name__", one) for one in get_losses(model)]
    return ", ".join(map(str, losses))


@dataclass
class _Called:
    """What a layer has returned for some rows, and the gradient of the model's output with respect to it."""

    kind: str
    output: tf.Tensor
    gradient: tf.Tensor | None = None


def _mixing_layer(engine: Engine, kind: str, data: Any) -> str:
    """Says which layer, or that the model, makes of one row what depends on other rows; "" if there is none.

    The model is called on some rows, and on each half of them alone. A layer may mix rows in its backward pass only:
    the gradient of the model's output is then as it should be with respect to what follows, but not to what precedes.
    """
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
    if not all(isinstance(leaf, tf.Tensor | tf.RaggedTensor | tf.SparseTensor) and leaf.shape.rank for leaf in leaves):
        return ""
    half = min(_MAX_ROWS, int(leaves[0].shape[0])) // 2
    try:
        both, first, second = (
            _called(engine, kind, some_rows(data, first_row, rows))
            for first_row, rows in ((0, 2 * half), (0, half), (half, half))
        )
    except Exception:  # such as a model that its own step calls in another way
        return ""
    backward, precedes = "", False
    for name, whole in both.items():
        parts = [found[name] for found in (first, second) if name in found]
        if whole.output.shape[0] != 2 * half or [part.output.shape[0] for part in parts] != [half] * 2:
            continue
        layer = f"Layer {name!r} ({whole.kind})" if name else f"{whole.kind}.call"
        if _mixes(whole.output, [part.output for part in parts]):
            return f"{layer} mixes the rows of a batch"
        mixed = _mixes(whole.gradient, [part.gradient for part in parts])
        if precedes and mixed is False:
            backward = backward or f"{layer} mixes the rows of a batch in its backward pass"
        precedes = precedes or bool(mixed)
    return backward


def _mixes(whole: tf.Tensor | None, parts: list[tf.Tensor | None]) -> bool | None:
    """Whether the values of a row are others without the other half of the rows; None if they do not tell."""
    if whole is None or any(part is None for part in parts) or not np.isfinite(whole.numpy()).all():
        return None
    part = tf.concat(parts, 0).numpy()
    return bool(np.abs(whole.numpy() - part).max(initial=0.0) > _CLOSE * np.abs(part).max(initial=1e-6))


def _called(engine: Engine, kind: str, data: Any) -> dict[str, _Called]:
    """Calls the model: what each of its layers does, in order, and at last the model itself, by the name ""."""
    model, replicas = engine.model, engine.replicas
    called: dict[str, _Called] = {}
    layers = [layer for layer in private_api.all_layers(model) if layer is not model]
    normalizing = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    variables = get_variables(model)
    x = data if kind == "predict" and not isinstance(data, tuple) else keras.utils.unpack_x_y_sample_weight(data)[0]
    with without_side_effects(model), still_random([]), replicas.local(variables, 0), contextlib.ExitStack() as stack:
        stack.callback(State([private_api.tf_variable(one) for one in variables]).put_back)
        tape = stack.enter_context(tf.GradientTape(watch_accessed_variables=False))
        recorded = ((one, {"call": _recording_call(one, called, tape)}) for one in layers if one not in normalizing)
        with in_inference_mode(normalizing), attributes_of_each(recorded):
            result = private_api.call_model(model, x, training=kind == "train")
        _record("", model, result, called, tape)  # last: what the model does with what its layers give
        if "" not in called:
            return called
        output = tf.reshape(called[""].output, (tf.shape(called[""].output)[0], -1))
        target = output * output * tf.cos(tf.cast(tf.range(tf.shape(output)[1]), output.dtype))
    gradients = tape.gradient(target, [one.output for one in called.values()])
    for one, gradient in zip(called.values(), gradients, strict=True):
        one.gradient = None if gradient is None else tf.convert_to_tensor(gradient)  # that of rows of a table is sparse
    return called


def _recording_call(layer: keras.layers.Layer, called: dict[str, _Called], tape: tf.GradientTape) -> Callable[..., Any]:
    left = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        result = left(*args, **kwargs)
        _record(layer.name, layer, result, called, tape)
        return result

    return call


def _record(
    name: str, layer: keras.layers.Layer, result: Any, called: dict[str, _Called], tape: tf.GradientTape
) -> None:
    leaves = [leaf for leaf in keras.tree.flatten(result) if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating]
    if leaves and leaves[0].shape.rank and name not in called:
        tape.watch(leaves[0])
        called[name] = _Called(type(layer).__name__, leaves[0])


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What running one step both ways has shown.

    Attributes:
        kind: "train", "test" or "predict".
        num_replicas: how many replicas there are.
        num_rows: rows that were compared of the first batch.
        num_batch_rows: rows of the first batch; 0 if all were compared.
        num_steps: how many steps were compared so far.
        num_variables: how many variables were compared.
        largest: the largest relative difference.
        differing: what differs, the largest difference first: a variable's path, "log NAME" or "output PLACE".
        draws: whether the step draws random numbers outside of layers, which were constants.
        failure: why the step could not be run both ways; empty if it could.
    """

    kind: str
    num_replicas: int
    num_rows: int = 0
    num_batch_rows: int = 0
    num_steps: int = 1
    num_variables: int = 0
    largest: float = 0.0
    differing: tuple[str, ...] = ()
    draws: bool = False
    failure: str = ""

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not self.failure and not self.differing

    @property
    def loss_differs(self) -> bool:
        """Whether the loss, or that of an output, is among what differs."""
        return any(name == "loss" or name.endswith("_loss") for name in self.logs)

    @property
    def logs(self) -> list[str]:
        """The names of the logs that differ."""
        return [name.removeprefix("log ") for name in self.differing if name.startswith("log ")]

    @property
    def variables(self) -> list[str]:
        """The paths of the variables that differ."""
        return [name for name in self.differing if not name.startswith(("log ", "output "))]

    def __str__(self) -> str:
        what = {"train": "training", "test": "evaluation", "predict": "prediction"}[self.kind]
        if self.failure:
            return f"{what}: one step could not be compared with one device: {self.failure}"
        equal = "=" if self.holds else "differ from"
        found = f": {', '.join(self.differing[:3])}" if self.differing else ""
        rows = f"{self.num_rows} rows"
        if self.num_batch_rows:
            rows += f" (one device has no memory for all {self.num_batch_rows} of a batch)"
        return (
            f"{what}: {self.num_replicas} replicas {equal} 1 device on a step of {rows}: "
            f"{self.num_variables} variables, largest difference {self.largest:.0e}{found}"
        )


_ON_ANOTHER_WORKER = "it could not on another worker"


def agreed_way(failure: str, is_apart: bool, replicas: Replicas) -> tuple[str, bool]:
    """Why no worker can compare a step, and how they compare it: all alike, for they wait for each other meanwhile."""
    apart, failed = replicas.sum_over_workers([int(is_apart), int(bool(failure))])
    if replicas.num_workers > 1 and (failed or apart not in (0, replicas.num_workers)):
        return failure or _ON_ANOTHER_WORKER, False
    return failure, is_apart


def agreed(
    proof: Proof, names: Sequence[str], flags: Sequence[bool], replicas: Replicas
) -> tuple[Proof, Sequence[bool]]:
    """What has been shown on any worker: the same on all of them, which go on in the same way.

    Args:
        proof: what was shown on this one.
        names: of what is compared on all workers; other logs and outputs are named as on the chief.
        flags: whatever else was found.
        replicas: the replicas.
    """
    if replicas.num_workers == 1:
        return proof, flags
    others = [name for name in proof.differing if name not in names]
    asked = [proof.failure, others, *flags, *(name in proof.differing for name in names)]
    failed, differs, *counts = replicas.sum_over_workers([int(bool(one)) for one in asked])
    differing = [name for name, count in zip(names, counts[len(flags) :], strict=True) if count]
    if differs:
        differing += json.loads(replicas.bytes_of_chief(json.dumps(others).encode())) or ["log of another worker"]
    failure = proof.failure or (_ON_ANOTHER_WORKER if failed else "")
    found = replace(proof, failure=failure, differing=() if failure else tuple(differing))
    return found, [bool(count) for count in counts[: len(flags)]]


def get_reason(error: Exception) -> str:
    """Why a step could not be compared."""
    if CALLS_PYTHON in str(error):  # Keras adds the layer that was called
        return CALLS_PYTHON
    return f"{type(error).__name__}: {in_one_line(error)}"[:300]


def as_arrays(results: Any) -> Any:
    """Logs with nested ones merged in, or outputs, as arrays; other than dense tensors stay as they are."""
    if isinstance(results, dict) and any(isinstance(value, dict) for value in results.values()):
        results = flat_logs(results)
    return keras.tree.map_structure(lambda one: one.numpy() if isinstance(one, tf.Tensor) else one, results)
