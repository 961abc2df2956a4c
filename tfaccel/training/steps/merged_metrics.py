"""Metrics whose state is not a sum over the examples: merged by their own `merge_state`, or updated with all rows.

The state of most Keras metrics over N replicas is the sum of the replicas' states; a running maximum, for example,
does not add up. A metric that defines `merge_state(metrics)` merges the replicas' states itself. Any other such metric
is updated on every replica with the rows of the whole global batch (`GATHERED`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private import private_api, private_layers
from tfaccel.training.steps.all_reduce import mean_over_replicas, sum_over_replicas
from tfaccel.training.steps.gather_rows import gather_nest, gather_states
from tfaccel.training.steps.global_batch import check_runs, current_share, replica_share
from tfaccel.training.steps.overrides import left_by_user
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.tracing import TraceAgain

GATHERED: weakref.WeakSet[keras.metrics.Metric] = weakref.WeakSet()
_USED: weakref.WeakSet[keras.metrics.Metric] = weakref.WeakSet()  # whose results a step computes with


class ComputesWithResults(TraceAgain):
    """While tracing: a step computes with metric results, and must be traced again with those over all replicas."""


def metrics_in(model: keras.Model) -> list[keras.metrics.Metric]:
    """All metrics of a model, including those nested inside compiled ones, each once."""
    found: dict[int, keras.metrics.Metric] = {}
    stack = list(model.metrics)
    while stack:
        metric = stack.pop(0)
        inner = list(getattr(metric, "metrics", ()))
        if not inner:
            found[id(metric)] = metric
        stack = inner + stack
    return list(found.values())


def own_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """The metrics that are not Keras's, or call a function that is not."""

    def is_of_keras(metric: keras.metrics.Metric) -> bool:
        parts = (type(metric), private_layers.function_of_metric(metric))
        return all(part is None or part.__module__.startswith("keras.") for part in parts)

    return [metric for metric in metrics_in(model) if not is_of_keras(metric)]


def merges_itself(metric: keras.metrics.Metric) -> bool:
    """Whether the metric's class defines `merge_state`."""
    return callable(getattr(metric, "merge_state", None))


def attributes_in_steps(metrics: list[keras.metrics.Metric]) -> list[tuple[keras.metrics.Metric, dict[str, Any]]]:
    """Attributes of metrics while replicas are traced.

    Those in `GATHERED` are updated with the rows of all replicas. All note the results that a custom step asks for. A
    replica's running result does not describe the global batch; the metric's result over all replicas does. A result
    that is returned under the metric's name is read at the end of a window. Where a step does more with it, it is that
    over all replicas within the step, too.
    """

    def of(metric: keras.metrics.Metric) -> dict[str, Any]:
        def update_state(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = keras.tree.map_structure(_number_of_all, gather_nest((args, kwargs)))
            with replica_share(None):  # as one device would
                return left_by_user(metric, "update_state")(*args, **kwargs)

        def result() -> Any:
            share, get = current_share(), left_by_user(metric, "result")
            if share is None:
                return get()
            is_shared = (metric in _USED or tf.executing_eagerly()) and metric not in GATHERED
            value = _over_replicas(metric, get_result) if is_shared else get()
            value = tf.convert_to_tensor(value.value) if isinstance(value, keras.Variable) else value
            share.results.append((value, metric))
            return value

        return {"result": result} | ({"update_state": update_state} if metric in GATHERED else {})

    return [(metric, of(metric)) for metric in metrics]


def _number_of_all(value: Any) -> Any:
    """A number that a replica's step has computed: a loss as the mean over all replicas, a count of rows as the sum."""
    if not (isinstance(value, tf.Tensor) and value.shape.rank == 0):
        return value
    if value.dtype.is_integer:
        return sum_over_replicas(value)
    return mean_over_replicas(value) if value.dtype.is_floating else value


def own_results(metrics: list[keras.metrics.Metric], replicas: Replicas) -> list[tuple[Any, dict[str, Any]]]:
    """Attributes with a `result` over all replicas, for each metric whose state is not a sum."""
    found = []
    for metric in metrics:
        if metric in GATHERED:
            found.append((metric, {"result": lambda m=metric: _first_result(m, replicas)}))
        elif merges_itself(metric):
            found.append((metric, {"result": lambda m=metric: _merged(m, replicas, get_result)}))
    return found


def _first_result(metric: keras.metrics.Metric, replicas: Replicas) -> Any:
    with replicas.local(metric.variables, 0):
        return get_result(metric)


def merged_states(metrics: list[keras.metrics.Metric], replicas: Replicas) -> dict[int, np.ndarray]:
    """The states over all replicas of metrics that merge themselves, by the ids of the first components."""
    states = [(metric, _merged(metric, replicas, _get_state)) for metric in metrics if merges_itself(metric)]
    pairs = [pair for metric, state in states for pair in zip(metric.variables, state, strict=True)]
    return {id(replicas.components([variable], 0)[0]): value.numpy() for variable, value in pairs}


def _merged(metric: keras.metrics.Metric, replicas: Replicas, get: Callable[[Any], Any]) -> Any:
    return replicas.local_results(replicas.strategy.run(_over_replicas, args=(metric, get)))[0]


def _over_replicas(metric: keras.metrics.Metric, get: Callable[[Any], Any]) -> Any:
    """What `get` returns of a metric with the state over all replicas. Call it on each of them."""
    share, context = current_share(), tf.distribute.get_replica_context()
    check_runs()
    states = _get_state(metric)
    if share is not None:  # what a borrowed row has added does not count
        before = [share.metric_states.get(id(variable)) for variable in metric.variables]
        pairs = zip(states, before, strict=True)
        states = [now if was is None else tf.where(share.row_weight > 0, now, was) for now, was in pairs]
    if not merges_itself(metric):
        states = [context.all_reduce(tf.distribute.ReduceOp.SUM, state) for state in states]
        with keras.StatelessScope(state_mapping=list(zip(metric.variables, states, strict=True))):
            return get(metric)
    states, mapping = [gather_states(state) for state in states], []
    twins = [_twin(metric) for _ in range(context.num_replicas_in_sync - 1)]
    for replica, one in enumerate([metric, *twins]):
        mapping += [(v, state[replica]) for v, state in zip(one.variables, states, strict=True)]
    with keras.StatelessScope(state_mapping=mapping):
        metric.merge_state(twins)
        return get(metric)


def _get_state(metric: keras.metrics.Metric) -> list[tf.Tensor]:
    return [tf.identity(tf.convert_to_tensor(variable.value)) for variable in metric.variables]


def get_result(metric: keras.metrics.Metric) -> Any:
    """A copy of the current result: a metric may return a variable, whose value changes later."""
    return keras.tree.map_structure(
        lambda value: tf.identity(keras.ops.convert_to_tensor(value)), left_by_user(metric, "result")()
    )


def _twin(metric: keras.metrics.Metric) -> keras.metrics.Metric:
    """A copy of a metric with separate variables, which represent another replica's."""
    twin = _shallow_copy(metric)
    copies = {id(v): _shallow_copy(v) for v in metric.variables}

    def replaced(value: Any) -> Any:
        if isinstance(value, keras.Variable):
            return copies[id(value)]
        if isinstance(value, list):
            return [replaced(one) for one in value]
        return value

    twin.__dict__.update({name: replaced(value) for name, value in vars(metric).items() if name != "result"})
    return twin


def _shallow_copy(value: Any) -> Any:
    """Another object with the same attributes; `copy.copy` would rebuild a Keras object from its config."""
    made = object.__new__(type(value))
    made.__dict__.update(vars(value))
    return made


def check_results(model: keras.Model, logs: Any, replicas: Replicas) -> None:
    """Raises ComputesWithResults if the step of a replica, which returns `logs`, does more with a result than known."""
    with tf.init_scope(), replica_share(None):
        names = names_of_results(model, replicas)
    share, flat = current_share(), flat_logs(logs or {})
    are_all, results = set(flat) == names, [] if share is None else share.results
    returned = {id(value) for name, value in flat.items() if not (are_all or is_read_later(model, name, names))}
    used = [metric for value, metric in results if metric not in _USED and _is_used(value, returned)]
    if used:
        _USED.update(used)
        raise ComputesWithResults


def states_used(model: keras.Model) -> dict[int, tf.Tensor]:
    """What metrics with whose results a step computes hold before it, by the ids of their variables."""
    used = [metric for metric in metrics_in(model) if metric in _USED]
    return {id(v): value for metric in used for v, value in zip(metric.variables, _get_state(metric), strict=True)}


def concrete_function(function: Any, *specs: Any) -> Any:
    """Traces a function of steps: again where that turns out to be needed."""
    while True:
        with contextlib.suppress(TraceAgain):
            return function.get_concrete_function(*specs)


def _is_used(result: Any, returned: set[int]) -> bool:
    """Whether something in a graph is computed from a metric's result, or it is returned."""
    values = [value for value in keras.tree.flatten(result) if tf.is_symbolic_tensor(value)]
    return any(id(value) in returned or value.consumers() for value in values)


def names_of_results(model: keras.Model, replicas: Replicas) -> set[str]:
    """The names of all metric results in logs."""
    with replicas.local(model.metrics_variables, 0):
        return set(flat_logs(model.get_metrics_result()))


def is_read_later(model: keras.Model, name: str, results: Iterable[str]) -> bool:
    """Whether `get_logs` takes a metric's result for a log of a custom step, even if not all results are returned."""
    tracker = private_api.loss_tracker(model)
    return name in results and (tracker is None or name != tracker.name)


def flat_logs(logs: dict[str, Any]) -> dict[str, Any]:
    """Logs with nested dicts (results of several metrics) merged in, as Keras reports them."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(flat_logs(value) if isinstance(value, dict) else {name: value})
    return flat
