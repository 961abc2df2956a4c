"""Runs a user's script up to its first `Model.fit`, trains a few steps there in one of four ways, and ends.

    python -m tfaccel.training.check_program '{"script": "train.py", "arguments": [], "way": "one", ...}'

The ways are "one" (plain Keras on one device), "rounded" (the same from weights that are moved by rounding), "keras"
(plain Keras on several replicas) and "tfaccel" (`tfaccel.fit` on several replicas). The replicas are logical CPUs,
under a `MirroredStrategy` in whose scope the script runs. Layers that draw random numbers in training run in inference
mode in all of them, since replicas draw other numbers than one device.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.processes.child import end_with_parent
from tfaccel.training.fit import fit
from tfaccel.training.private import private_api
from tfaccel.training.private.private_trainer import Done, replace_fit
from tfaccel.training.proof.one_device import draws, in_inference_mode
from tfaccel.training.runtime import set_seeds, split_cpu
from tfaccel.training.steps.engine import get_engine

_DEFAULT_BATCH_SIZE = 32
_ROUNDING = 2.0**-16  # of a weight: what sums over many rows round in float32
_LEFT_OUT = ("callbacks", "validation_data", "validation_split", "initial_epoch", "validation_steps", "verbose")


def main(argv: list[str]) -> int:
    """Runs the script; returns the exit status. What was found is in the file `out`."""
    order = json.loads(argv[0])
    end_with_parent()
    split_cpu(order["num_replicas"])
    devices = [f"CPU:{number}" for number in range(order["num_replicas"])]
    strategy = None if order["way"] in ("one", "rounded") else tf.distribute.MirroredStrategy(devices)
    replace_fit(lambda model, arguments: _train(model, arguments, order))
    set_seeds(0)
    script = Path(order["script"]).resolve()
    sys.argv = [str(script), *order["arguments"]]
    sys.path.insert(0, str(script.parent))
    sys.stdin = io.StringIO()  # nobody answers a script that asks; standard input itself tells of the parent's end
    try:
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            runpy.run_path(str(script), run_name="__main__")
    except Done:
        return 0
    except SystemExit as error:
        if error.code not in (None, 0):
            sys.stderr.write(f"{error.code}\n" if isinstance(error.code, str) else "")
            return 1
    return 3  # the script has ended without calling `fit`


def _train(model: keras.Model, arguments: dict[str, Any], order: dict[str, Any]) -> None:
    """Trains twice: what the first call makes of the model is kept, the second one is timed."""
    given = {name: value for name, value in arguments.items() if name not in _LEFT_OUT}
    given |= {"epochs": 1, "verbose": 0, "shuffle": False} | _cut(given, order["num_steps"])
    train: Any = fit if order["way"] == "tfaccel" else keras.Model.fit
    still = [layer for layer in private_api.all_layers(model) if layer is not model and draws(layer)]
    before = _optimizer_steps(model)
    if order["way"] == "rounded":
        given["callbacks"] = [_MovesWeights()]
    with in_inference_mode(still):
        history = train(model, **given)
        num_steps = history.params.get("steps") or _optimizer_steps(model) - before or order["num_steps"]
        weights = {f"{place}:{one.path}": np.asarray(one) for place, one in enumerate(model.weights)}
        started = time.perf_counter()
        train(model, **given)
    save: Any = np.savez
    save(order["out"] + ".npz", **weights)
    found = {
        "losses": {name: float(values[-1]) for name, values in history.history.items()},
        "num_steps": num_steps,
        "steps_per_second": num_steps / (time.perf_counter() - started),
        "causes": _causes(model, given, len(still)),
        "unproven": _unproven(model) if train is fit else [],
    }
    partial = Path(order["out"] + ".partial")
    partial.write_text(json.dumps(found))
    os.replace(partial, order["out"])


class _MovesWeights(keras.callbacks.Callback):
    """Moves the weights by as much as rounding does, once, as soon as there are any."""

    has_moved = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called before each step; the model may be built in the first one."""
        if self.has_moved:
            return
        generator = np.random.default_rng(0)
        for weight in self.model.trainable_variables:
            if weight.dtype == "float32":
                signs = generator.choice([-1.0, 1.0], weight.shape)
                weight.assign(weight * (1.0 + _ROUNDING * signs).astype("float32"))
                self.has_moved = True


def _optimizer_steps(model: keras.Model) -> int:
    iterations = getattr(model.optimizer, "iterations", None)
    return 0 if iterations is None else int(iterations.numpy())


def _unproven(model: keras.Model) -> list[str]:
    """Why the first step on several replicas could not be compared with one device's, or the others differ from it."""
    proof = get_engine(model).checks.proofs.get("train")
    if proof is None:
        return []
    if proof.failure:
        return [f"no step can be compared: {proof.failure}"]
    return ["random numbers drawn outside of layers, of which each replica has its own"] if proof.draws else []


def _cut(given: dict[str, Any], num_steps: int) -> dict[str, Any]:
    """Arguments of `fit` for a few steps: the first rows of arrays, with as uneven a last batch as all rows have."""
    x, batch_size = given.get("x"), given.get("batch_size") or _DEFAULT_BATCH_SIZE
    leaves = [leaf for leaf in keras.tree.flatten(x) if leaf is not None]
    if isinstance(x, tf.data.Dataset):
        return {"x": x.take(num_steps), "steps_per_epoch": None}
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "__getitem__") for leaf in leaves):
        return {"steps_per_epoch": given.get("steps_per_epoch") or num_steps}
    num_rows = len(leaves[0])
    wanted = num_steps * batch_size
    wanted = num_rows if num_rows < wanted else wanted - batch_size + (num_rows % batch_size or batch_size)

    def first(value: Any) -> Any:
        return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[:wanted], value)

    return {name: first(given[name]) for name in ("x", "y", "sample_weight") if given.get(name) is not None}


def _causes(model: keras.Model, given: dict[str, Any], num_still: int) -> list[str]:
    """What in a model and its data is known to differ between one device and several replicas of plain Keras."""
    optimizer, batch_size = model.optimizer, given.get("batch_size") or _DEFAULT_BATCH_SIZE
    leaves = [leaf for leaf in keras.tree.flatten(given.get("x")) if hasattr(leaf, "shape") and len(leaf.shape)]
    is_uneven = bool(leaves) and len(leaves[0]) % batch_size
    layers = private_api.all_layers(model)
    normalizing = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    clips = [name for name in ("clipvalue", "clipnorm", "global_clipnorm") if getattr(optimizer, name, None)]
    found = {
        "an uneven last batch": is_uneven,
        "sample weights": given.get("sample_weight") is not None or given.get("class_weight") is not None,
        "masks": any(getattr(layer, "mask_zero", False) for layer in layers),
        f"the optimizer's {', '.join(clips)}": clips,
        "BatchNormalization over the rows of a replica": not all(layer.synchronized for layer in normalizing),
        "gradient accumulation": getattr(optimizer, "gradient_accumulation_steps", None),
    }
    causes = [cause for cause, applies in found.items() if applies]
    if num_still:
        causes.append(f"{num_still} layer{'s' * (num_still > 1)} drew no random numbers in this comparison")
    return causes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
