"""The arguments for a custom `HyperModel.fit` or `Tuner.run_trial`: the data and settings that it accepts."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import SearchError
from tfaccel.planning.workload import Workload

# Arguments that a search can pass, named as in `Model.fit`; Keras Tuner takes them in `Tuner.search`.
NAMES = (
    "x",
    "y",
    "sample_weight",
    "validation_data",
    "batch_size",
    "epochs",
    "initial_epoch",
    "steps_per_epoch",
    "callbacks",
    "verbose",
)


class OwnArguments:
    """The arguments of a custom training function.

    A function with a `y` parameter or `*args` gets arrays, as for `Model.fit`; any other gets `x` as a
    `tf.data.Dataset` of the workload's batches.

    Args:
        function: a bound `fit` or `run_trial`.
        given: number of leading positional arguments that are already bound.

    Raises:
        SearchError: if it requires an argument that a search cannot pass.
    """

    def __init__(self, function: Callable[..., Any], *, given: int) -> None:
        kinds = inspect.Parameter
        parameters = list(inspect.signature(function).parameters.values())
        by_name = [p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)][given:]
        self.named = {p.name for p in by_name}
        self.by_position = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
        self._by_any_name = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        self._passed_on = _names_it_gives(function)
        self.wants_arrays = self.by_position or "y" in self.named
        unknown = [p.name for p in by_name if p.default is kinds.empty and p.name not in NAMES]
        if unknown:
            raise SearchError(
                f"{getattr(function, '__qualname__', function)} needs {', '.join(map(repr, unknown))}, which a search "
                f"cannot pass. Name its parameters as in Model.fit: {', '.join(NAMES)}."
            )

    def takes(self, name: str) -> bool:
        """Whether it accepts this argument and does not itself pass one of that name along with `**kwargs`."""
        return name in self.named or (self._by_any_name and name not in self._passed_on)

    def of(
        self,
        workload: Workload | None,
        *,
        batch_size: int,
        seed: int,
        epochs: int,
        initial_epoch: int = 0,
        callbacks: Sequence[Any] = (),
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and keyword arguments.

        Args:
            workload: source of the data; None for no data.
            batch_size: examples per batch.
            seed, epochs, initial_epoch: training settings.
            callbacks: Keras callbacks.
        """
        known: dict[str, Any] = {"callbacks": list(callbacks), "epochs": epochs, "verbose": 0}
        if initial_epoch:
            known["initial_epoch"] = initial_epoch
        position: tuple[Any, ...] = ()
        if workload is not None and self.wants_arrays:
            data = _arrays(workload.train_data(batch_size, seed=seed, epoch=0))
            if self.by_position:
                position = tuple(data.pop(name) for name in ("x", "y") if name in data)
            known |= {"batch_size": batch_size, **data}
            if workload.validation_data is not None:
                known["validation_data"] = tuple(_arrays(workload.validation_data(batch_size)).values())
        elif workload is not None:
            known |= _batches(workload, batch_size, seed, range(initial_epoch, epochs))
        return position, {name: value for name, value in known.items() if self.takes(name)}


def _batches(workload: Workload, batch_size: int, seed: int, epochs: range) -> dict[str, Any]:
    """All epochs consecutively, each in its seeded order."""
    passes = [workload.train_data(batch_size, seed=seed, epoch=epoch) for epoch in epochs]
    held_out = None if workload.validation_data is None else workload.validation_data(batch_size)
    steps = int(passes[0].cardinality())
    if steps < 0:
        steps = sum(1 for _ in passes[0])
    joined = functools.reduce(lambda before, one: before.concatenate(one), passes)
    return {"x": joined.prefetch(tf.data.AUTOTUNE), "validation_data": held_out, "steps_per_epoch": steps}


def _arrays(batches: tf.data.Dataset) -> dict[str, Any]:
    """All examples of a dataset as arrays: inputs, targets and, optionally, sample weights."""
    parts = [keras.utils.unpack_x_y_sample_weight(batch) for batch in batches.as_numpy_iterator()]
    x, y, weights = (_joined([part[place] for part in parts]) for place in range(3))
    data = {"x": x, "y": y, "sample_weight": weights}
    return {name: value for name, value in data.items() if value is not None}


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return type(first)(_joined(columns) for columns in zip(*parts, strict=True))
    return None if first is None else np.concatenate(parts)


def _names_it_gives(function: Callable[..., Any]) -> set[str]:
    """Keywords that a function passes along with `**kwargs`, as in `fit(*args, batch_size=8, **kwargs)`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set()
    calls = [node.keywords for node in ast.walk(tree) if isinstance(node, ast.Call)]
    beside = [keywords for keywords in calls if any(keyword.arg is None for keyword in keywords)]
    return {keyword.arg for keywords in beside for keyword in keywords if keyword.arg is not None}
