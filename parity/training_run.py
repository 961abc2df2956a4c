"""One training run of a case, and all its values to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.parity.case import ParityCase
from tfaccel.parity.datasets import (
    CLASS_WEIGHTS,
    NUM_EPOCHS,
    Arrays,
    arrays,
    data_arguments,
    input_arguments,
    validation_argument,
)
from tfaccel.parity.models import MODELS
from tfaccel.parity.optimizers import build_optimizer
from tfaccel.training.evaluate import evaluate, predict
from tfaccel.training.fit import fit

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Trainer:
    """The three functions that train, evaluate and predict; each takes the model first."""

    fit: Callable[..., keras.callbacks.History]
    evaluate: Callable[..., Any]
    predict: Callable[..., Any]


PLAIN_KERAS = Trainer(keras.Model.fit, keras.Model.evaluate, keras.Model.predict)
TFACCEL = Trainer(fit, evaluate, predict)


def compiled_model(case: ParityCase, *, reference: bool, jit_compile: bool) -> keras.Model:
    """The case's compiled model, with the initial weights that all runs of the case share."""
    kind = MODELS[case.model]
    model = kind.build(case, reference)
    if case.model == "gan":
        model.compile(jit_compile=jit_compile)
        model({name: tf.zeros([1, value.shape[1]]) for name, value in arrays(case).x.items()})
    else:
        model.compile(optimizer=build_optimizer(case), jit_compile=jit_compile, **kind.compile_arguments(case))
    set_initial_weights(model)
    return model


def set_initial_weights(model: keras.Model) -> None:
    """Sets random trainable weights, equal for equal layer names, around constant initial values (such as ones)."""
    for variable in model.trainable_variables:
        rng = np.random.default_rng(list(variable.path.encode()))
        initial = variable.numpy()
        start = initial.flat[0] if np.all(initial == initial.flat[0]) else 0.0
        fan_in = np.prod(variable.shape[:-1]) if len(variable.shape) > 1 else 16
        variable.assign(start + rng.normal(size=variable.shape) / np.sqrt(fan_in))


def training_run(
    case: ParityCase, trainer: Trainer, model: keras.Model, *, data: Arrays | None = None, **fit_arguments: Any
) -> Values:
    """Trains for `NUM_STEPS` steps, on the case's data if no other is given; returns every value that must match."""
    data = data or arrays(case)
    evaluates = case.model != "gan"
    if evaluates:
        fit_arguments["validation_data"] = validation_argument(case, data)
    if case.weighting == "class_weights":
        fit_arguments["class_weight"] = CLASS_WEIGHTS
    history = trainer.fit(
        model, **data_arguments(case, data), epochs=NUM_EPOCHS, shuffle=False, verbose=0, **fit_arguments
    )
    values = {f"history of {name}": np.asarray(numbers) for name, numbers in history.history.items()}
    values |= variable_values(model, MODELS[case.model].optimizers)
    if evaluates:
        logs = trainer.evaluate(model, **data_arguments(case, data), verbose=0, return_dict=True)
        values |= {f"evaluation of {name}": np.asarray(number) for name, number in logs.items()}
    outputs = trainer.predict(model, **input_arguments(case, data), verbose=0)
    for path, output in keras.tree.flatten_with_path(outputs):
        values["predictions" + "".join(f" {part}" for part in path)] = np.asarray(output)
    return values


# Not compared: each replica has its own gradient accumulators, seeds and row states, and references keep statistics per
# share, which have no counterpart. All of these affect the weights, which are compared.
_NOT_COMPARED = ("gradient_accumulator", "seed_generator_state", "rnn_state", "share_mean", "share_variance")


def variable_values(model: keras.Model, optimizers: tuple[str, ...]) -> Values:
    """Every weight, on every replica of this process, and the state of the optimizers (attributes of the model)."""
    variables = {f"weight {v.path}": v for v in model.variables}
    for optimizer_name in optimizers:
        optimizer = getattr(model, optimizer_name)
        named = enumerate(v.path.split("/")[-1] for v in optimizer.variables)  # the scope depends on where it was built
        names = [f"{optimizer_name}'s {name} ({index})" for index, name in named]
        variables |= dict(zip(names, optimizer.variables, strict=True))
    kept = {name: v for name, v in variables.items() if not any(part in name for part in _NOT_COMPARED)}
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return {name: v.numpy() for name, v in kept.items()}
    each = strategy.run(lambda: [tf.identity(v.value) for v in kept.values()])
    values = {}
    for name, value in zip(kept, each, strict=True):
        for replica, local in enumerate(strategy.experimental_local_results(value)):
            values[f"{name} on replica {replica}" if replica else name] = local.numpy()
    return values
