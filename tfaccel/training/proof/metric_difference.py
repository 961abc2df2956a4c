"""Whether the metrics of a step on several replicas are those of one device, also within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.private.private_losses import loss_trackers
from tfaccel.training.proof.state import State
from tfaccel.training.proof.variable_difference import Tolerance
from tfaccel.training.steps.merged_metrics import GATHERED, get_result, merges_itself, metrics_in
from tfaccel.training.steps.model_parts import unlisted_metrics
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.step_graphs import flat_logs

_ROUNDING = 1e-6  # of what a metric has added up so far


class MetricDifference:
    """The metrics of a model before and after a step.

    A metric's state over all replicas is the sum of their states; that of a gathered metric is the same on all. What a
    step adds to it must give the result that it gives on one device.

    Args:
        model: the compiled model.
        replicas: its replicas.

    Attributes:
        names: the names of all its metrics, also those that only layers and losses refer to.
        variables: what their states are made of.
        names_of_results: those of their results in logs.
        begun: whether they held rows before the step.
        differing: the metrics that differed in the last step.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._replicas = replicas
        self._model = model
        trackers = [one for one in loss_trackers(model) if one is not None]
        metrics = {id(one): one for one in (*metrics_in(model), *unlisted_metrics(model))}
        self._metrics = [metric for metric in metrics.values() if metric.variables]
        self._of_losses = {id(tracker) for tracker in trackers}
        self.names = sorted({metric.name for metric in self._metrics})
        self.variables = [variable for metric in self._metrics for variable in metric.variables]
        self.names_of_results: set[str] = set()
        self.begun = False
        self.differing: list[keras.metrics.Metric] = []
        self._ratios: dict[int, float] = {}  # of what one device and all replicas have added to the count of a mean
        self._before = State([])

    def begin(self, before: State) -> None:
        """Takes note of the state before a step, which holds all of the model's variables."""
        with self._replicas.local(self._model.metrics_variables, 0):
            self.names_of_results = set(flat_logs(self._model.get_metrics_result()))
        self._before = before
        states = [self._before[one] for metric in self._metrics for one in self._components(metric)]
        numbers = [state for state in states if state.dtype.kind == "f" and np.isfinite(state).all()]
        self.begun = any(state.any() for state in numbers)

    def of_step(self, many: State, one: State, tolerance: Tolerance) -> Iterator[tuple[str, float]]:
        """Yields the names of the metrics that differ, and by how much.

        Args:
            many: the state of all replicas after the step.
            one: the state after a step of one device, which holds it in the components of the first replica.
            tolerance: how large a difference may be.
        """
        self.differing = []
        for metric in self._metrics:
            if merges_itself(metric) or any(v.dtype == "string" for v in metric.variables):
                continue
            before = [np.asarray(self._before[v]) for v in self._replicas.components(metric.variables, 0)]
            of_one = [np.asarray(one[v]) for v in self._replicas.components(metric.variables, 0)]
            of_all = self._state_of_all(metric, many)
            largest = max((float(np.abs(v).max(initial=0.0)) for v in before if np.isfinite(v).all()), default=0.0)
            if self.begun and metric not in GATHERED:
                start = self._state_of_all(metric, self._before)
                of_all = [value - first for value, first in zip(of_all, start, strict=True)]
                of_one = [value - first for value, first in zip(of_one, before, strict=True)]
            if isinstance(metric, keras.metrics.Mean):  # a scalar of each replica counts as one value
                count = [variable is metric.count for variable in metric.variables].index(True)
                self._ratios[id(metric)] = float(of_one[count] / of_all[count]) if of_all[count] else 1.0
            added = max((float(np.abs(v).max(initial=0.0)) for v in of_one), default=0.0)
            rounding = _ROUNDING * largest / added if np.isfinite(added) and added else 0.0
            results = [self._results(metric, state) for state in (of_all, of_one)]
            for value, of_device in zip(*results, strict=True):
                differs, relative = tolerance.of_log(value, of_device)
                if differs and relative > rounding:
                    self.differing.append(metric)
                    yield metric.name, relative
                    break

    def gather(self) -> list[keras.metrics.Metric]:
        """Lets every replica update the metrics that differed with the rows of all; returns them.

        Not those of losses. Call it with the state from before the step.
        """
        found = [one for one in self.differing if one not in GATHERED and id(one) not in self._of_losses]
        for metric in found:
            summed = self._state_of_all(metric, self._before) if self.begun else []
            GATHERED.add(metric)
            for i in range(len(self._replicas.devices) if self.begun else 0):
                for variable, total in zip(self._replicas.components(metric.variables, i), summed, strict=True):
                    variable.assign(total * self._ratios.get(id(metric), 1.0))
        return found

    def _components(self, metric: keras.metrics.Metric) -> list[tf.Variable]:
        local = range(len(self._replicas.devices))
        return [one for i in local for one in self._replicas.components(metric.variables, i)]

    def _state_of_all(self, metric: keras.metrics.Metric, state: State) -> list[np.ndarray]:
        """The state over all replicas: the sum of theirs, or the first one's of a gathered metric."""
        is_alike = metric in GATHERED
        local = range(1 if is_alike else len(self._replicas.devices))
        parts = [[np.asarray(state[v]) for v in self._replicas.components(metric.variables, i)] for i in local]
        sums = [np.sum(values, axis=0, dtype=values[0].dtype) for values in zip(*parts, strict=True)]
        return sums if is_alike else self._replicas.sum_arrays_over_workers(sums)

    def _results(self, metric: keras.metrics.Metric, state: list[np.ndarray]) -> list[Any]:
        kept = State(self._replicas.components(metric.variables, 0))
        with self._replicas.local(metric.variables, 0):
            for variable, value in zip(metric.variables, state, strict=True):
                variable.assign(value)
            try:
                return [np.asarray(one) for one in keras.tree.flatten(get_result(metric))]
            finally:
                kept.put_back()
