"""Proves by running it that N replicas compute a step as one device does.

The first step is run both ways from the same state: by the engine on all replicas, each on its share of the rows, and
by Keras's own step on one device. All that a step can change is compared: weights, optimizer slots, logs, variables
outside of the model that the step reads or writes, and the replicas' copies of them with each other. The engine's
result stays. The device runs the step once more on the rows in reverse order; what that changes is rounding, and shows
how much of it there is.

Replicas draw other random numbers than one device, and the plan decides over which rows BatchNormalization takes its
statistics. A model with such layers runs a step of its own both ways before the first one, with these layers in
inference mode; then all is put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.graph_batches import IteratorBatches
from tfaccel.training.private import private_api
from tfaccel.training.private.private_losses import losses_of_one_device
from tfaccel.training.private.private_random import noting_stateful_random
from tfaccel.training.row_checks.observed_run import draws, in_inference_mode, num_rows_of
from tfaccel.training.row_checks.proof import Proof
from tfaccel.training.row_checks.variable_difference import Tolerance, difference
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.gradient_update import build_optimizer
from tfaccel.training.steps.gradients import CombineSlices
from tfaccel.training.steps.model_parts import (
    accumulators_by_replica,
    optimizers_of,
    seeds_of,
    untracked_variables,
    variables_of,
)
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.replica_state import seed_variables
from tfaccel.training.steps.replicas import Replicas, current_replica
from tfaccel.training.steps.several_replicas import SeveralReplicas
from tfaccel.training.steps.step_graphs import as_tensors, logs_of, metric_results

_BATCHES = IteratorBatches()


class StepProof:
    """The first step, which the engine runs on all replicas, beside the same step on one device.

    Create it before the step, and call `finish` after it.

    Args:
        model: a built and compiled model.
        replicas: the replicas of its strategy, all in this process.
        data: the step's global batch, as eager tensors.
        kind: "train" or "test".
        any_rows: whether the engine traces steps for any number of rows.
        combine_slices: of the optimizer's update; see `gradients.densify`.
        traced_in: the contexts in which the engine traces its steps, with fused kernels for example.
    """

    def __init__(
        self,
        model: keras.Model,
        replicas: Replicas,
        data: Any,
        kind: str,
        *,
        any_rows: bool = True,
        combine_slices: CombineSlices | None = None,
        traced_in: Sequence[Callable[[keras.Model], contextlib.AbstractContextManager[None]]] = (),
    ) -> None:
        self._model, self._replicas, self._data, self._kind = model, replicas, data, kind
        self._one = OneReplica(model, replicas, jit_compile=False, combine_slices=combine_slices)
        self._combine_slices = combine_slices
        self._traced_in = traced_in
        self._still = self._still_layers()
        self._graphs: list[Any] = []
        self._known: Proof | None = None
        self._before: _State | None = None
        try:
            self._begin(any_rows=any_rows)
        except Exception as error:  # the step itself may fail, and says so when it is really run
            self._known = self._proof(failure=_in_one_line(error))

    def _begin(self, *, any_rows: bool) -> None:
        optimizer = optimizers_of(self._model).get("optimizer")
        if self._kind == "train" and optimizer is not None:
            build_optimizer(optimizer, self._model.trainable_variables, self._replicas.strategy)
        specs, used, still = _specs(self._data, any_rows=any_rows), list[bool](), self._still
        with noting_stateful_random(used, current_replica), tf.summary.record_if(False):
            with losses_of_one_device():
                self._step_of_one = self._traced(self._run_one, specs)
            step_of_several = self._traced(self._run_several, specs) if still else None
        self.take_state()
        if used:
            self._known = self._proof(failure="it draws random numbers by tf.random")
        elif step_of_several is not None:
            own, results = step_of_several(self._data)
            logs = logs_of(self._model, self._replicas, own, results)
            try:
                self._known = self._compared({name: value.numpy() for name, value in _flat(logs)})
            finally:
                self.put_back()

    def take_state(self) -> None:
        """Takes note of the state that the step is about to begin with."""
        self._before = _State.of(self._variables)

    def finish(self, logs: dict[str, Any]) -> Proof:
        """Compares after the engine has run the step; its result stays as it is.

        Args:
            logs: those of the step.
        """
        if self._known is None:
            after = _State.of(self._variables)
            try:
                self._known = self._compared({name: np.asarray(value) for name, value in _flat(logs)})
            except Exception as error:  # such as a lack of memory on one device
                self._known = self._proof(failure=_in_one_line(error))
            finally:
                after.put_back(self._variables)
        return self._known

    def put_back(self) -> None:
        """Gives all variables the values that they had before the step."""
        if self._before is not None:
            self._before.put_back(self._variables)

    # --- Steps --------------------------------------------------------------------------------------------------------

    def _traced(self, run: Callable[[Any], Any], specs: Any) -> Callable[[Any], Any]:
        def traced(data: Any) -> Any:
            with contextlib.ExitStack() as stack:
                for context in self._traced_in:
                    stack.enter_context(context(self._model))
                stack.enter_context(in_inference_mode(self._still))
                return run(data)

        function = tf.function(traced, autograph=False).get_concrete_function(specs)
        self._graphs.append(function.graph)
        return function

    def _run_one(self, data: Any) -> Any:
        return as_tensors((self._one.train if self._kind == "train" else self._one.test)(_BATCHES, data))

    def _run_several(self, data: Any) -> Any:
        steps = SeveralReplicas(self._model, self._replicas, jit_compile=False, combine_slices=self._combine_slices)
        logs = (steps.train if self._kind == "train" else steps.test)(_BATCHES, data)
        with self._replicas.strategy.scope():
            own = {**(logs or {}), **steps.noted_results.over_replicas(self._replicas)}
        return as_tensors(own), as_tensors(metric_results(self._model, self._replicas))

    def _ran_by_one(self, data: Any) -> tuple[dict[str, Any], _State]:
        """The logs and the state after a step of one device, from the state before and with new metrics."""
        self.put_back()
        self._model.reset_metrics()
        logs = self._step_of_one(data)
        return {name: value.numpy() for name, value in _flat(logs)}, _State.of(self._variables)

    def _still_layers(self) -> list[keras.layers.Layer]:
        """The layers whose numbers are meant to differ between replicas and one device."""
        if self._kind != "train":
            return []
        alike = {id(layer) for layer in layers_alike(self._model)}
        return [
            layer
            for layer in private_api.all_layers(self._model)
            if layer is not self._model
            and (draws(layer) or (isinstance(layer, keras.layers.BatchNormalization) and id(layer) not in alike))
        ]

    # --- Variables ----------------------------------------------------------------------------------------------------

    @cached_property
    def _of_model(self) -> list[keras.Variable]:
        return variables_of(self._model)

    @cached_property
    def _outer(self) -> list[tf.Variable]:
        """The variables outside of the model that the steps read or write."""
        known = {id(component) for component in self._components}
        found = {id(one): one for graph in self._graphs for one in graph.variables if id(one) not in known}
        return [one for one in found.values() if one.dtype != tf.resource]

    @cached_property
    def _components(self) -> list[tf.Variable]:
        return self._components_of(self._of_model)

    def _components_of(self, variables: list[keras.Variable]) -> list[tf.Variable]:
        local = range(len(self._replicas.devices))
        found = [one for i in local for one in self._replicas.components(variables, i)]
        return list({id(one): one for one in found}.values())

    @property
    def _variables(self) -> list[tf.Variable]:
        return [*self._components, *self._outer]

    @cached_property
    def _seeds(self) -> list[tf.Variable]:
        of_optimizers = [seed for one in optimizers_of(self._model).values() for seed in seeds_of(one)]
        return self._replicas.components([*seed_variables(self._model), *of_optimizers], 0)

    # --- Comparing ----------------------------------------------------------------------------------------------------

    def _compared(self, logs: dict[str, np.ndarray]) -> Proof:
        """Compares the present state, and logs, of several replicas with what one device makes of the step."""
        many, before = _State.of(self._variables), self._before or _State()
        own_logs, one = self._ran_by_one(self._data)
        if any((before.values[id(v)] != one.values[id(v)]).any() for v in self._seeds):
            return self._proof(failure="it draws random numbers outside of layers with a `training` argument")
        _, again = self._ran_by_one(_reversed(self._data))
        tolerance = Tolerance.of_model(self._model)
        found: dict[str, float] = {}
        number, largest = 0, 0.0
        compared = list(self._compared_variables())
        steps = [_step(before.values[id(first)], one.values[id(first)]) for _, first, *_ in compared]
        largest_steps: dict[str, float] = {}  # by the last word of a name: of all first moments, say
        for (name, *_), step in zip(compared, steps, strict=True):
            largest_steps[_last_word(name)] = max(step, largest_steps.get(_last_word(name), 0.0))
        for name, first, copies, has_slots in compared:
            place = id(first)
            tolerance = replace(tolerance, scale=largest_steps[_last_word(name)])
            values = (before.values[place], one.values[place], again.values[place])
            number += 1
            for copy in copies:
                differs, relative = difference(*values, many.values[id(copy)], tolerance, has_slots=has_slots)
                largest = max(largest, relative if not differs else 0.0)
                if differs:
                    found[name] = max(relative, found.get(name, 0.0))
        begun = any(before.values[id(one)].any() for one in self._components_of(self._model.metrics_variables))
        for name in () if begun else sorted(set(logs) & set(own_logs)):
            differs, relative = tolerance.of_log(logs[name], own_logs[name])
            largest = max(largest, relative if not differs else 0.0)
            if differs:
                found[f"log {name}"] = relative
        worst = max(found.values(), default=largest)
        return self._proof(num_variables=number, largest=worst, differing=tuple(sorted(found, key=lambda n: -found[n])))

    def _compared_variables(self) -> Iterator[tuple[str, tf.Variable, list[tf.Variable], bool]]:
        """Name, the component of one device, the components of all replicas, and whether an optimizer has slots for it.

        Metrics are compared by their results; seeds, the states of stateful layers, and what each replica accumulates
        are its own.
        """
        optimizers = optimizers_of(self._model).values()
        own = [v for one in optimizers for v in (*accumulators_by_replica(one), *seeds_of(one))]
        own += [*self._model.metrics_variables, *seed_variables(self._model), *untracked_variables(self._model)]
        left_out = {id(variable) for variable in own}
        shapes = {tuple(slot.shape) for one in optimizers for slot in one.variables if slot.shape.rank}
        trained = {id(variable) for variable in self._model.trainable_variables}
        for variable in self._of_model:
            if id(variable) in left_out or variable.dtype == "string":
                continue
            copies = [self._replicas.components([variable], i)[0] for i in range(len(self._replicas.devices))]
            yield variable.path, copies[0], copies, id(variable) in trained and tuple(variable.shape) in shapes
        for one in self._outer:
            yield one.name.split(":")[0], one, [one], False

    def _proof(self, **fields: Any) -> Proof:
        num_rows = num_rows_of(self._data)
        return Proof(kind=self._kind, num_replicas=self._replicas.num_replicas, num_rows=num_rows, **fields)


def _step(before: np.ndarray, after: np.ndarray) -> float:
    """How far a variable has moved."""
    if after.dtype.kind not in "fiu" and after.dtype.name != "bfloat16":
        return 0.0
    return float(np.abs(after.astype(np.float64) - before.astype(np.float64)).max(initial=0.0))


def _last_word(name: str) -> str:
    return name.rpartition("_")[2]


@dataclass
class _State:
    """The values of variables, by id."""

    values: dict[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, variables: list[tf.Variable]) -> _State:
        return cls({id(variable): variable.numpy() for variable in variables})

    def put_back(self, variables: list[tf.Variable]) -> None:
        for variable in variables:
            variable.assign(self.values[id(variable)])


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _specs(data: Any, *, any_rows: bool) -> Any:
    def of(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor):
            return None if leaf is None else tf.type_spec_from_value(leaf)
        shape = [None, *leaf.shape[1:]] if any_rows and leaf.shape.rank else leaf.shape
        return tf.TensorSpec(shape, leaf.dtype)

    return keras.tree.map_structure(of, data)


def _reversed(data: Any) -> Any:
    def of(leaf: Any) -> Any:
        return tf.reverse(leaf, [0]) if isinstance(leaf, tf.Tensor) and leaf.shape.rank else leaf

    return keras.tree.map_structure(of, data)


def _flat(logs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in logs.items():
        yield from _flat(value) if isinstance(value, dict) else [(name, value)]
