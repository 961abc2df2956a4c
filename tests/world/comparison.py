"""Trains the models of the table with plain Keras on one device and with tfaccel, and says how far they are apart.

    python comparison.py FOLDER [NAME ...]            # no strategy, and two replicas
    python comparison.py FOLDER [NAME ...]            # as a worker of a cluster: that worker's part of two replicas

Writes for each model and placement a line of JSON: name, placement, outcome, remark, seconds. Outcomes are "bit-equal",
"equal" (within 1e-5), "refused" (as the table says), "not built" (TensorFlow cannot make its variables on several
workers, as the table says) and "wrong". What one device gives is left in FOLDER for workers.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from world import MODELS, NUM_EPOCHS, WorldModel

import tfaccel
from tfaccel.errors import TfaccelError
from tfaccel.parity.compare import largest_difference
from tfaccel.parity.training_run import Trainer, Values
from tfaccel.processes.quiet_start import keep_loaded_objects
from tfaccel.training.steps.model_parts import get_optimizers

HERE = Path(__file__).parent
NUM_REPLICAS = 2
TOLERANCE = 1e-5
EVALUATE_ARGUMENTS = ("x", "y", "sample_weight", "batch_size", "steps")
PREDICT_ARGUMENTS = ("x", "batch_size", "steps")
# What the model's own class makes of `fit`, `evaluate` and `predict`.
PLAIN_KERAS = Trainer(
    lambda model, **arguments: model.fit(**arguments),
    lambda model, **arguments: model.evaluate(**arguments),
    lambda model, **arguments: model.predict(**arguments),
)
TFACCEL = Trainer(partial(tfaccel.fit, exact_kernels=True), tfaccel.evaluate, tfaccel.predict)
# Each replica has seeds of its own, and the states of its own rows; both show in the weights.
NOT_COMPARED = ("seed_generator_state", "rnn_state")


def main(arguments: Sequence[str]) -> None:
    """Runs the models named, or all of them, in the order of the table."""
    folder, names = Path(arguments[0]), arguments[1:]
    all_models(names)
    keep_loaded_objects()
    # Graphs this small take longer to optimise than to run, and the two sides must not be optimised differently.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    is_worker = "TF_CONFIG" in os.environ
    if is_worker:
        strategy: tf.distribute.Strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        split = [tf.config.LogicalDeviceConfiguration()] * NUM_REPLICAS
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], split)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(NUM_REPLICAS)])
    for name in names or MODELS:
        model = MODELS[name]
        references = folder / f"{name}.pickle"
        if is_worker:
            write(name, "two workers", compared, model, pickle.loads(references.read_bytes())[1], strategy)
        else:
            try:
                alone, for_replicas = one_device(model)
            except Exception as error:
                traceback.print_exc()
                alone, for_replicas = {}, {"plain Keras raised": np.array(repr(error)[:500])}
            references.write_bytes(pickle.dumps((alone, for_replicas)))
            write(name, "no strategy", compared, model, alone, None)
            write(name, "two replicas", compared, model, for_replicas, strategy)


def all_models(names: Sequence[str] = ()) -> dict[str, WorldModel]:
    """The table, with the models of every file beside this one, or of those that define the names."""
    for path in sorted(HERE.glob("models_*.py")):
        if not names or re.search(rf"^def ({'|'.join(names)})\b", path.read_text(), re.MULTILINE):
            importlib.import_module(path.stem)
    return MODELS


def write(name: str, placement: str, compare: Any, *arguments: Any) -> None:
    started = time.perf_counter()
    try:
        outcome, remark = compare(*arguments)
    except Exception as error:
        traceback.print_exc(limit=-8)
        outcome, remark = "wrong", f"{type(error).__name__}: {error}"[:1500]
    sys.stdout.write(json.dumps([name, placement, outcome, remark, round(time.perf_counter() - started, 2)]) + "\n")
    sys.stdout.flush()
    if outcome == "wrong" and placement == "two workers":
        os._exit(1)  # the other worker may wait for this one, and collectives that failed once fail ever after


def one_device(model: WorldModel) -> tuple[Values, Values | None]:
    """What plain Keras gives on one device: the model itself, and what several replicas are compared with."""
    alone = run(model, PLAIN_KERAS, model.build)
    if model.refused:
        return alone, None
    if model.for_reference is not None:
        reference = model.for_reference
        return alone, run(model, PLAIN_KERAS, lambda: reference(NUM_REPLICAS))
    return alone, alone if model.for_replicas is None else run(model, PLAIN_KERAS, model.for_replicas)


def compared(model: WorldModel, reference: Values | None, strategy: tf.distribute.Strategy | None) -> tuple[str, str]:
    """Outcome and remark of training with tfaccel."""
    if strategy is not None and model.refused:
        return refused(model, strategy, model.refused)
    if strategy is not None and model.not_built and "TF_CONFIG" in os.environ:
        return not_built(model, strategy)
    build = model.build if strategy is None else model.for_replicas or model.build
    values = run(model, TFACCEL, build, strategy)
    difference, where = largest_difference(values, reference or {})
    if difference == 0.0:
        return "bit-equal", ""
    within = strategy is not None and difference <= TOLERANCE
    return "equal" if within else "wrong", f"{difference:.2g} at {where}"


def refused(model: WorldModel, strategy: tf.distribute.Strategy, words: str) -> tuple[str, str]:
    """Whether `fit` refuses the model before anything is trained, with the right words."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        built = model.build()
    before = built.get_weights()
    try:
        TFACCEL.fit(built, **model.data(), epochs=1, shuffle=False, verbose=0)
    except TfaccelError as error:
        changed = before and not all(map(np.array_equal, before, built.get_weights()))
        fits = re.search(words, str(error)) is not None
        return "refused" if fits and not changed else "wrong", f"{'weights changed; ' if changed else ''}{error}"
    return "wrong", f"trains, and should be refused: {words}"


def not_built(model: WorldModel, strategy: tf.distribute.Strategy) -> tuple[str, str]:
    """Whether TensorFlow refuses to make the model's variables, as the table says."""
    try:
        with strategy.scope():
            model.build()
    except tf.errors.OpError as error:
        fits = re.search(model.not_built or "", str(error)) is not None
        return "not built" if fits else "wrong", str(error)[:300]
    return "wrong", f"is built, and should not be: {model.not_built}"


def run(model: WorldModel, trainer: Trainer, build: Any, strategy: tf.distribute.Strategy | None = None) -> Values:
    """Trains, evaluates and predicts; everything that is compared, by name."""
    keras.utils.clear_session()  # names begin anew
    keras.utils.set_random_seed(1)
    with (strategy or tf.distribute.get_strategy()).scope():
        built = build()
    history = trainer.fit(built, **model.data(), epochs=NUM_EPOCHS, shuffle=False, verbose=0)
    values = {f"history of {name}": np.asarray(numbers) for name, numbers in history.history.items()}
    values |= variable_values(built)
    if model.evaluates:
        logs = trainer.evaluate(built, **arguments_of(model, EVALUATE_ARGUMENTS), verbose=0, return_dict=True)
        values |= {f"evaluation of {name}": np.asarray(number) for name, number in logs.items()}
    if model.predicts:
        outputs = trainer.predict(built, **arguments_of(model, PREDICT_ARGUMENTS), verbose=0)
        for path, output in keras.tree.flatten_with_path(outputs):
            values["predictions" + "".join(f" {part}" for part in path)] = np.asarray(output)
    return values


def arguments_of(model: WorldModel, names: Sequence[str]) -> dict[str, Any]:
    """The data of `fit` as `evaluate` or `predict` takes it."""
    arguments = model.data()
    if "steps_per_epoch" in arguments:
        arguments["steps"] = arguments["steps_per_epoch"]
    return {name: value for name, value in arguments.items() if name in names}


def variable_values(model: keras.Model) -> Values:
    """Every weight and the state of every optimizer, on every replica of this process."""
    weights = [v for v in model.variables if not any(part in v.path for part in NOT_COMPARED)]
    kept = {f"weight {index} ({v.name})": v for index, v in enumerate(weights)}
    for attribute, optimizer in get_optimizers(model).items():
        iteration, *others = optimizer.variables
        used = [iteration, *others] if iteration.numpy() else [iteration]
        kept |= {f"{attribute}'s {v.name} ({index})": v for index, v in enumerate(used)}
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return {name: v.numpy() for name, v in kept.items()}
    read = tf.function(lambda: [tf.convert_to_tensor(v.value) for v in kept.values()], autograph=False)
    each = tf.function(lambda: strategy.run(read), autograph=False)()
    values = {}
    for name, value in zip(kept, each, strict=True):
        for replica, local in enumerate(strategy.experimental_local_results(value)):
            values[f"{name} on replica {replica}" if replica else name] = local.numpy()
    return values


if __name__ == "__main__":
    main(sys.argv[1:])
