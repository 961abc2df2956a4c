"""A search's use of a custom `HyperModel.fit` or `Tuner.run_trial`: what it is called with, and what it may return."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np
import tensorflow as tf
from keras_tuner.engine.base_tuner import BaseTuner

from tfaccel.errors import SearchError
from tfaccel.planning.workload import Workload
from tfaccel.tuning.objective import DEFAULT_NAME, Objective
from tfaccel.tuning.private_keras_tuner import EXPLORES_SPACE, OpenOracle

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
# A search does these itself and would never call an override.
_NEVER_CALLED = (
    "__init__",
    "search",
    "on_search_begin",
    "on_search_end",
    "on_trial_begin",
    "on_trial_end",
    "pre_create_trial",
    EXPLORES_SPACE,
)


class OwnArguments:
    """The arguments of a custom training function.

    A function with a `y` parameter or `*args` gets arrays, as for `Model.fit`; any other gets `x` as a
    `tf.data.Dataset` of the workload's batches.

    Args:
        function: a bound `fit` or `run_trial`.
        given: number of leading positional arguments that are already bound.
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
        """Returns the positional and keyword arguments; without a workload, no data."""
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
    columns = zip(*map(keras.utils.unpack_x_y_sample_weight, batches.as_numpy_iterator()), strict=True)
    return {
        name: keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
        for name, parts in zip(("x", "y", "sample_weight"), columns, strict=True)
        if parts[0] is not None
    }


def _names_it_gives(function: Callable[..., Any]) -> set[str]:
    """Keywords that a function passes along with `**kwargs`, as in `fit(*args, batch_size=8, **kwargs)`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set()
    calls = [node.keywords for node in ast.walk(tree) if isinstance(node, ast.Call)]
    beside = [keywords for keywords in calls if any(keyword.arg is None for keyword in keywords)]
    return {keyword.arg for keywords in beside for keyword in keywords if keyword.arg is not None}


def own_fit_metrics(result: Any, objective: Objective, measured: Mapping[str, float] | None = None) -> dict[str, float]:
    """The metrics of a trial, from the return value of its `fit`.

    Args:
        result: a `History` (its best epoch is used), a dictionary of metrics, the objective's value, or a list of these
            (averaged).
        objective: the objective of the search.
        measured: additional values that the objective needs, such as the model's size.

    Example:
        >>> own_fit_metrics([{"score": 1.0}, {"score": 2.0}], Objective((("score", "max"),)))
        {'score': 1.5}
    """
    if isinstance(result, keras.callbacks.History):
        found = _best_epoch(result.history, objective, measured or {})
    elif isinstance(result, list | tuple) and result:
        parts = [own_fit_metrics(part, objective, measured) for part in result]
        return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
    elif isinstance(result, Mapping):
        found = {str(name): float(value) for name, value in result.items()}
    elif isinstance(result, Real | np.generic) and not isinstance(result, bool):
        found = {objective.name: float(result)}
    else:
        raise SearchError(
            "A custom fit or run_trial must return a History, a dictionary of metrics, a number, or a list of "
            f"these. Received: {type(result).__name__}."
        )
    found = {**found, **(measured or {})}
    missing = [name for name in objective.names if name not in found]
    if missing == [DEFAULT_NAME]:
        raise SearchError(
            "Unless a custom fit or run_trial returns a number, which is minimized, it needs objective=NAME:min or "
            f"NAME:max. It returned: {', '.join(found) or 'nothing'}."
        )
    if missing:
        raise SearchError(
            f"A custom fit or run_trial must return the objective {missing[0]!r}. "
            f"It returned: {', '.join(found) or 'nothing'}."
        )
    return found


def fatal_unless_metrics(result: Any, objective: Objective, measured: Mapping[str, float]) -> dict[str, float]:
    """The metrics that a `fit` or `run_trial` returned; FatalError without any: every trial would fail this way."""
    try:
        return own_fit_metrics(result, objective, measured)
    except SearchError as error:
        raise keras_tuner.errors.FatalError(str(error)) from error


def _best_epoch(
    history: Mapping[str, list[float]], objective: Objective, measured: Mapping[str, float]
) -> dict[str, float]:
    """The metrics of the best epoch; metrics missing from some epochs are left out."""
    num_epochs = max(map(len, history.values()), default=0)
    whole = {name: values for name, values in history.items() if len(values) == num_epochs}
    epochs = [{name: float(values[e]) for name, values in whole.items()} | dict(measured) for e in range(num_epochs)]
    if not epochs or not all(name in epochs[0] for name in objective.names):
        return epochs[0] if epochs else {}
    return dict(objective.best(epochs, key=objective.value))


class _LocalOracle(OpenOracle):
    """The oracle that `run_trial` sees; the chief's oracle writes the trial's file."""

    def save_trial(self, trial: Any) -> None:
        """Does nothing."""


def check_tuner(kind: Any) -> None:
    """Raises SearchError for a class that is not a Tuner, or that overrides a method that a search never calls."""
    if not (isinstance(kind, type) and issubclass(kind, BaseTuner)):
        raise SearchError(f"A tuner must be a subclass of keras_tuner.Tuner. Received: {kind!r:.200}.")
    if not issubclass(kind, keras_tuner.Tuner):
        raise SearchError(
            f"{kind.__name__} is not a subclass of keras_tuner.Tuner, and may tune other models than Keras models. Use "
            "it without tfaccel, or write a subclass of keras_tuner.Tuner with a run_trial that returns the score."
        )
    own = [entry for entry in kind.__mro__ if not entry.__module__.startswith("keras_tuner.")]
    odd = next((name for entry in own for name in _NEVER_CALLED if entry is not object and name in vars(entry)), None)
    if odd is not None:
        raise SearchError(
            f"{kind.__name__} overrides {odd}, which a search never calls, because it creates and ends trials itself. "
            "Override only run_trial."
        )


def make_tuner(
    kind: Any, space: Callable[[Any], Any] | None, fit: Callable[..., Any] | None, objective: Objective, run_dir: Path
) -> Any:
    """Creates a Tuner for one trial.

    Only `keras_tuner.Tuner.__init__` is called: that of a subclass such as `RandomSearch` would create an oracle.
    """
    tuner = kind.__new__(kind)
    oracle = _LocalOracle(objective=keras_tuner.Objective(objective.name, objective.direction))
    runs_itself = kind.run_trial is not keras_tuner.Tuner.run_trial
    if space is None and not runs_itself:
        raise SearchError(f"{kind.__name__} does not override run_trial, so it needs a space: build(hp).")
    unused = None if runs_itself else (lambda hp: None)  # the space has already been explored
    keras_tuner.Tuner.__init__(tuner, oracle, hypermodel=unused, directory=str(run_dir), project_name="tuner")
    tuner.oracle = oracle
    tuner.hypermodel = None if space is None else keras_tuner.HyperModel()
    if space is not None:
        tuner.hypermodel.build = space
        if fit is not None:
            tuner.hypermodel.fit = fit
    return tuner


def reported_metrics(tuner: Any, trial: Any) -> dict[str, float] | None:
    """The best values that `run_trial` reported by `oracle.update_trial`; None if it reported none."""
    if not trial.metrics.exists(tuner.oracle.objective.name):
        return None
    return {metric: float(trial.metrics.get_best_value(metric)) for metric in trial.metrics.metrics}
