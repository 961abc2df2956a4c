"""Metrics whose state is not a sum over the examples: merged by their own `merge_state`, or updated with all rows.

The state of most Keras metrics over N replicas is the sum of the replicas' states; a running maximum, for example,
does not add up. A metric that defines `merge_state(metrics)` merges the replicas' states itself. Any other such metric
is updated on every replica with the rows of the whole global batch (`GATHERED`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api, private_layers
from tfaccel.training.steps.all_reduce import mean_over_replicas, sum_over_replicas
from tfaccel.training.steps.gather_rows import gather_nest
from tfaccel.training.steps.global_batch import replica_share
from tfaccel.training.steps.overrides import attributes_of_each, instance_attributes, left_by_user
from tfaccel.training.steps.replicas import Replicas

GATHERED: weakref.WeakSet[keras.metrics.Metric] = weakref.WeakSet()


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


def gathered_updates(metrics: list[keras.metrics.Metric]) -> list[tuple[keras.metrics.Metric, dict[str, Any]]]:
    """Attributes that update each metric in `GATHERED` with the rows of all replicas."""

    def update(metric: keras.metrics.Metric) -> Callable[..., Any]:
        def update_state(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = keras.tree.map_structure(_number_of_all, gather_nest((args, kwargs)))
            with replica_share(None):  # as one device would
                return left_by_user(metric, "update_state")(*args, **kwargs)

        return update_state

    return [(metric, {"update_state": update(metric)}) for metric in metrics if metric in GATHERED]


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
            found.append((metric, {"result": lambda m=metric: _merged_result(m, replicas)}))
    return found


def _first_result(metric: keras.metrics.Metric, replicas: Replicas) -> Any:
    with replicas.local(metric.variables, 0):
        return get_result(metric)


def _merged_result(metric: keras.metrics.Metric, replicas: Replicas) -> Any:
    """`result` after merging the states of all replicas with `merge_state`; the metric itself is unchanged."""
    states = [_states_of_replicas(variable, replicas) for variable in metric.variables]
    twins = [_twin(metric) for _ in range(replicas.num_replicas - 1)]
    mapping = []
    for replica, one in enumerate([metric, *twins]):
        mapping += [(v, tf.cast(state[replica], v.dtype)) for v, state in zip(one.variables, states, strict=True)]
    with keras.StatelessScope(state_mapping=mapping):
        metric.merge_state(twins)
        return get_result(metric)


def get_result(metric: keras.metrics.Metric) -> Any:
    """A copy of the current result: a metric may return a variable, whose value changes later."""
    return keras.tree.map_structure(
        lambda value: tf.identity(keras.ops.convert_to_tensor(value)), left_by_user(metric, "result")()
    )


def _states_of_replicas(variable: keras.Variable, replicas: Replicas) -> tf.Tensor:
    """The replicas' values of a variable, stacked."""
    strategy = replicas.strategy
    if replicas.num_workers == 1:
        return tf.stack([replicas.components([variable], r)[0].read_value() for r in range(replicas.num_replicas)])
    values = strategy.run(lambda: private_api.tf_variable(variable).read_value()[None])
    return strategy.gather(values, axis=0)


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


class NotedResults:
    """The metric results that a custom step returns as logs, under any name.

    A replica's running result does not describe the global batch; the metric's result over all replicas does.

    Attributes:
        of_logs: name of a log -> the metric, and the log's key in the metric's result if that is a dict.
    """

    def __init__(self) -> None:
        self.of_logs: dict[str, tuple[keras.metrics.Metric, str | None]] = {}
        self._results: list[tuple[Any, keras.metrics.Metric]] = []

    @contextlib.contextmanager
    def while_tracing(self, metrics: list[keras.metrics.Metric]) -> Iterator[None]:
        """Records what each metric's `result` returns while all replicas are traced."""

        def noting(metric: keras.metrics.Metric) -> Callable[[], Any]:
            def result() -> Any:
                value = left_by_user(metric, "result")()
                self._results.append((value, metric))
                return value

            return result

        with attributes_of_each((metric, {"result": noting(metric)}) for metric in metrics):
            yield
        self._results.clear()

    def look_at(self, logs: Any) -> Any:
        """Finds metric results among the logs of a step, and returns the logs."""
        for name, value in (logs or {}).items():
            for result, metric in self._results:
                if value is result:
                    names = value if isinstance(value, dict) else {None: value}
                    self.of_logs.update({key or name: (metric, key) for key in names})
        return logs

    def over_replicas(self, replicas: Replicas) -> dict[str, Any]:
        """The recorded logs as metric results over all replicas. Call it in the strategy's scope."""
        logs = {}
        for name, (metric, key) in self.of_logs.items():
            attributes = [attributes for _, attributes in own_results([metric], replicas)]
            with instance_attributes(metric, attributes[0] if attributes else {}):
                result = metric.result()
            logs[name] = result if key is None else result[key]
        return logs
