"""Runs cases with plain Keras on one device and with tfaccel under strategies, and reports differences.

A case is a function of an `Api`. Both must return the same nest of dicts, lists, numbers, strings and arrays.
"""

import importlib
import json
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfaccel

NUM_LOGICAL_CPUS = 3
PLACEMENTS = {"none": 0, "mirrored_1": 1, "mirrored_2": 2, "mirrored_3": 3}
CASES: list[tuple[Callable[["Api"], Any], tuple[str, ...], float]] = []


class Api:
    """`fit`, `evaluate` and `predict` of Keras or tfaccel, and the scope to build models in."""

    def __init__(self, placement: str | None) -> None:
        self.is_keras = placement is None
        self.num_replicas = PLACEMENTS.get(placement or "none", 1) or 1
        self._strategy = tf.distribute.get_strategy()
        if placement == "one_device":
            self._strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        elif placement and PLACEMENTS[placement]:
            self._strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(PLACEMENTS[placement])])
        self._reused: dict[Callable[[], keras.Model], tuple[keras.Model, list[np.ndarray]]] = {}

    def reused(self, build: Callable[[], keras.Model]) -> keras.Model:
        """A model shared by cases, so that its graphs are traced only once; resets all its variables."""
        if build not in self._reused:
            with self.scope():
                model = build()
                model.optimizer.build(model.trainable_variables)
            self._reused[build] = model, [v.numpy() for v in [*model.weights, *model.optimizer.variables]]
        model, values = self._reused[build]
        for variable, value in zip([*model.weights, *model.optimizer.variables], values, strict=True):
            variable.assign(value)
        return model

    def scope(self) -> Any:
        return self._strategy.scope()

    def fit(self, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        kwargs = {"verbose": 0, **kwargs}
        return model.fit(*args, **kwargs) if self.is_keras else tfaccel.fit(model, *args, **kwargs)

    def evaluate(self, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        kwargs = {"verbose": 0, **kwargs}
        return model.evaluate(*args, **kwargs) if self.is_keras else tfaccel.evaluate(model, *args, **kwargs)

    def predict(self, model: keras.Model, *args: Any, **kwargs: Any) -> Any:
        kwargs = {"verbose": 0, **kwargs}
        return model.predict(*args, **kwargs) if self.is_keras else tfaccel.predict(model, *args, **kwargs)


def same_as_keras(*placements: str, tolerance: float = 1e-5) -> Callable[[Callable[[Api], Any]], Callable[[Api], Any]]:
    """Registers a case that is compared under the given placements."""

    def register(case: Callable[[Api], Any]) -> Callable[[Api], Any]:
        CASES.append((case, placements or ("mirrored_2",), tolerance))
        return case

    return register


def main(modules: Sequence[str], names: Sequence[str] = (), *, all_placements: bool = True) -> None:
    """Writes a JSON line `[module, case, placement, difference or null]` for each case of the modules.

    Args:
        modules: names of the modules with cases.
        names: the cases to run; by default, all.
        all_placements: run each case under all of its placements; otherwise only under the last, the one with the most
            replicas.
    """
    split = [tf.config.LogicalDeviceConfiguration()] * NUM_LOGICAL_CPUS
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], split)
    # Optimizing graphs this small takes longer than running them.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for module in modules:
        importlib.import_module(module)
    plain, apis = Api(None), dict[str, Api]()
    for case, placements, tolerance in CASES:
        module, name = case.__module__, case.__name__
        if module not in modules or (names and name not in names):
            continue
        expected, error = outcome(case, plain)
        for placement in placements if all_placements else placements[-1:]:
            if placement not in apis:
                apis[placement] = Api(placement)
            received, own_error = outcome(case, apis[placement])
            if error or own_error:  # no case is meant to raise
                found = f"Keras: {error or 'no error'}; tfaccel: {own_error}"
            else:
                found = difference(expected, received, tolerance)
            sys.stdout.write(json.dumps([module, name, placement, found]) + "\n")
            sys.stdout.flush()


def outcome(case: Callable[[Api], Any], api: Api) -> tuple[Any, str | None]:
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy("float32")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)  # tfaccel must warn whenever Keras does
        try:
            result = case(api)
        except Exception as error:
            traceback.print_exc(limit=-6)
            return None, f"{type(error).__name__}: {error}"[:500]
    return {"result": result, "warns": bool(warned)}, None


def difference(expected: Any, received: Any, tolerance: float, where: str = "") -> str | None:
    """The first place where two results differ, or None."""
    if isinstance(expected, dict) and isinstance(received, dict):
        if list(expected) != list(received):
            return f"{where}: keys {list(expected)} became {list(received)}"
        pairs = [(f"{where}[{key!r}]", expected[key], received[key]) for key in expected]
    elif isinstance(expected, list | tuple) and isinstance(received, list | tuple):
        if len(expected) != len(received):
            return f"{where}: {len(expected)} items {expected!r:.400} became {len(received)}: {received!r:.400}"
        pairs = [(f"{where}[{i}]", e, r) for i, (e, r) in enumerate(zip(expected, received, strict=True))]
    else:
        return leaf_difference(expected, received, tolerance, where)
    return next((d for d in (difference(e, r, tolerance, path) for path, e, r in pairs) if d), None)


def leaf_difference(expected: Any, received: Any, tolerance: float, where: str) -> str | None:
    if isinstance(expected, float | np.ndarray | np.floating) and isinstance(
        received, float | np.ndarray | np.floating
    ):
        wanted, given = np.asarray(expected), np.asarray(received)
        if wanted.shape != given.shape:
            return f"{where}: shape {wanted.shape} became {given.shape}"
        if wanted.dtype.kind == "f":
            close = np.allclose(wanted, given, rtol=tolerance, atol=tolerance, equal_nan=True)
            return None if close else f"{where}: differs by {np.max(np.abs(wanted - given)):.3g}"
        return None if np.array_equal(wanted, given) else f"{where}: {wanted!r:.200} became {given!r:.200}"
    return (
        None
        if type(expected) is type(received) and expected == received
        else (f"{where}: {expected!r:.200} became {received!r:.200}")
    )
