"""Runs a step both ways: by the engine on all replicas, each on its share of the rows, and by Keras on one device.

All that a step can change is compared: weights, optimizer slots, metrics, logs, variables outside of the model that
the step reads or writes, and the replicas' copies of them with each other. The engine's own step is compared, and its
result stays. If something differs, the device runs the step once more on the rows in reverse order; what that changes
is rounding, and shows how much of it there is.

Layers that draw random numbers, and BatchNormalization over a replica's own rows, run on one device on each replica's
rows with that replica's seeds and moving statistics (`ReplicaLayers`).

A step of its own, after which all is put back, is compared instead (`is_apart`) where that is not possible: random
numbers are then constants, the same on all replicas and on one device; BatchNormalization over a replica's own rows is
in inference mode; and where slots or embeddings are not on every replica as Keras has them, both ways take a step of
plain gradient descent. Where rounding decides whether 16-bit gradients overflow, so that a loss scale skips the step in
one of the two ways, that scale is lower.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import IteratorBatches
from tfaccel.training.private.private_layers import losses_of_one_device
from tfaccel.training.private.private_random import still_random
from tfaccel.training.private.private_tensorflow import (
    SCRATCH,
    LookupTable,
    changed_tables,
    unoptimized_calls,
    what_cannot_run_again,
)
from tfaccel.training.proof.detached_step import DetachedStep, State, StepAhead
from tfaccel.training.proof.differences import (
    MetricDifference,
    Tolerance,
    difference,
    get_slots,
    is_noise,
    is_rounded,
    kind_of,
    nearby,
    size_of_step,
    slots_of_slices,
    without_multiple,
)
from tfaccel.training.proof.one_device import (
    ReplicaLayers,
    accumulated_by_all,
    every_nth_row,
    get_num_rows,
    get_specs,
    in_inference_mode,
    normalizing_layers,
    reversed_rows,
    without_side_effects,
)
from tfaccel.training.proof.proof import SHARED, Proof, agreed, agreed_way, as_arrays, get_reason
from tfaccel.training.steps.gradient_update import build_optimizer, plain_descent
from tfaccel.training.steps.gradients import densify
from tfaccel.training.steps.loss_scaling import get_scales, lower_scales
from tfaccel.training.steps.merged_metrics import concrete_function, is_read_later
from tfaccel.training.steps.model_parts import (
    accumulators_by_replica,
    followers_of_weights,
    get_optimizers,
    get_seeds,
    get_variables,
    has_own_logs,
    untracked_variables,
)
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.replica_state import average_drifting, is_seed
from tfaccel.training.steps.step_graphs import as_tensors, get_logs, metric_results

if TYPE_CHECKING:
    from tfaccel.training.steps.engine import Engine

_BATCHES = IteratorBatches()
_MAX_LOWERED, _MAX_NEARBY = 6, 8  # how often loss scales are lowered after an overflow; directions to move weights in


class StepProof:
    """One kind of step, traced for one device, which is compared with the engine's on any batch.

    Args:
        data: a global batch, as eager tensors.
        spec: the specs of all batches; None if they are all alike.
        every: n, to compare a step of its own on every n-th row, where one device has no memory for all of them.

    Attributes:
        is_apart: whether a step of its own is compared, not the engine's.
        has_fewer_rows: whether some rows of a batch are compared, not all.
        failure: why the step cannot be compared; empty if it can.
        is_too_large: whether one device had no memory for a batch.
        metrics: which metrics differed in the last step that was compared.
        seeded: random numbers that are the same on all replicas, since their seed is.
    """

    def __init__(self, engine: Engine, kind: str, data: Any, spec: Any, *, every: int = 1) -> None:
        self._engine, self._kind, self._every = engine, kind, every
        self._model, self._replicas = engine.model, engine.replicas
        self._by_replica, self._normalizing = normalizing_layers(self._model) if kind == "train" else ([], [])
        self._is_plain = kind == "train" and not engine.has_state_of_keras
        self._specs = get_specs(self.get_rows(data), spec)
        self.has_fewer_rows, self.is_too_large = every > 1, False
        self._graphs: list[tf.Graph] = []
        self._drawn, self.seeded = list[bool](), list[tf.Tensor]()
        self._before, self._accumulated = State([]), dict[int, np.ndarray]()
        self._of_one: StepAhead | None = None
        self.failure, self._one_overflows = "", False
        self._on_shares: ReplicaLayers | None = None
        if kind == "train" and self._replicas.num_workers == 1 and not self._is_plain:
            self._on_shares = ReplicaLayers(self._model, self._replicas)
        self.is_apart = self._is_plain or (self._on_shares is None and bool(self._by_replica)) or every > 1
        self.metrics = MetricDifference(self._model, self._replicas)
        optimizer = get_optimizers(self._model).get("optimizer")
        if kind == "train" and optimizer is not None:
            build_optimizer(optimizer, self._model.trainable_variables, self._replicas.strategy)
        try:
            self._trace()
        except Exception as error:  # the step itself may fail, and says so when it is really run
            self.failure = get_reason(error)
        self.failure, self.is_apart = agreed_way(self.failure, self.is_apart, self._replicas)

    def _trace(self) -> None:
        runs_on_shares = True
        try:
            self._step_of_one = DetachedStep(self._traced(self._run_one, self._drawn))
        except Exception:
            if self.is_apart or not self._on_shares:
                raise
            runs_on_shares = False  # a layer takes other rows than its share
        if self._drawn or not (self.is_apart or runs_on_shares):  # the engine's step draws other numbers
            self._trace_apart()  # constants may make rows alike, whose variance is rounding alone
        if self.is_apart:
            self.trace_replicas()
        self.failure = next(filter(None, map(what_cannot_run_again, self._graphs)), "")

    def _trace_apart(self) -> None:
        self.is_apart = True
        self._step_of_one = DetachedStep(self._traced(self._run_one, []))

    def trace_replicas(self) -> None:
        """Traces the step of all replicas, where it is compared apart from the engine's; again after a change."""
        self._step_of_all = self._traced(self._run_all, [])

    def get_rows(self, data: Any) -> Any:
        """The rows of a batch that are compared."""
        return data if self._every == 1 else every_nth_row(data, self._every)

    def has_shapes(self, data: Any) -> bool:
        """Whether the steps were traced for rows of these shapes."""
        try:
            pairs = zip(tf.nest.flatten(self._specs), tf.nest.flatten(get_specs(data)), strict=True)
            return all(spec is None or spec.is_compatible_with(one) for spec, one in pairs)
        except ValueError:
            return False

    def has_rows_for_all(self, data: Any) -> bool:
        """Whether each replica has a row for layers that run on its share of the rows."""
        return self.is_apart or not self._on_shares or get_num_rows(data) >= self._replicas.num_replicas

    @property
    def num_bytes(self) -> int:
        """The size of what is taken note of before each step that is compared."""
        return sum((variable.shape.num_elements() or 0) * variable.dtype.size for variable in self._variables)

    def run_alone(self, rows: Any) -> Any:
        """Runs the step of one device on some rows, whose shapes it takes; changes nothing."""
        return None if self.failure else self._step_of_one(rows, State(self._variables))

    def begin(self, data: Any) -> None:
        """Takes note of the state that the engine's step is about to begin with, and starts the step of one device."""
        trains, self._before = self._kind == "train", State(self._variables)
        self._accumulated = accumulated_by_all(self._model, self._replicas, self._before) if trains else {}
        if self._kind != "predict":
            self._accumulated |= self.metrics.begin(self._before)
        if not self.failure:
            other = self._reversed(data) if trains else None
            self._of_one = StepAhead(self._step_of_one, data, self._before, self._accumulated, other=other)

    def wait(self) -> None:
        """Waits for the end of the step of one device; both at once would take the memory of both."""
        if self._of_one is not None:
            self._of_one.wait()

    def compare(self, data: Any, results: Any) -> Proof:
        """Compares the engine's step after it has run; its result stays as it is.

        Args:
            results: its logs; or, of a prediction, its outputs.
        """
        after = State(self._variables)
        if not self.is_apart:
            found = self._agreed(data, lambda: (as_arrays(results), after))
            if not (self._one_overflows or (found.differing and self._on_shares)):
                return found
            if self._on_shares:
                self._trace_apart()  # tells more of rounding: rows in another order give what they gave
        try:
            self.put_back()
            self.trace_replicas()
            return self.compare_apart(data)
        finally:
            after.put_back()

    def compare_apart(self, data: Any) -> Proof:
        """Compares a step on a batch, after which all is put back."""
        before = State(self._variables)
        try:
            average_drifting(self._model, self._replicas)  # else layers in inference mode would use a replica's own
            for _ in range(_MAX_LOWERED + 1):
                self.begin(data)
                self.wait()
                found = self._agreed(data, lambda: self._ran_by_all(data))
                if not self._one_overflows:
                    break
                self.put_back()
                lower_scales(self._model, self._replicas)
            return found
        finally:
            before.put_back()
            self._before = before

    def put_back(self) -> None:
        """Gives all variables the values that they had when the step began."""
        self._before.put_back()

    # --- Steps --------------------------------------------------------------------------------------------------------

    def _traced(self, run: Callable[[Any], Any], drawn: list[bool]) -> Callable[[Any], Any]:
        """A step as a graph, with constants for random numbers; `drawn` takes note of those."""
        contexts = self._engine.contexts(trains=self._kind == "train", on_one_device=run == self._run_one)

        def traced(data: Any) -> Any:
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context(self._model))
                if self.is_apart:
                    stack.enter_context(in_inference_mode(self._normalizing if self._drawn else self._by_replica))
                elif self._on_shares:
                    stack.enter_context(self._on_shares.on_shares(data))
                if self._is_plain:
                    stack.enter_context(plain_descent())
                return run(data)

        layers = self._on_shares
        when = (lambda: not layers.runs) if layers is not None else lambda: True
        with without_side_effects(self._model), still_random(drawn, when=when, seeded=self.seeded):
            function = concrete_function(tf.function(traced, autograph=False), self._specs)
        self._graphs.append(function.graph)
        return function

    def _run_one(self, data: Any) -> Any:
        options = self._engine.options
        one = OneReplica(
            self._model,
            self._replicas,
            jit_compile=False,
            combine_slices=densify if options.sum_duplicate_indices else None,
            leaves_out=options.leaves_out and self._kind == "train",
        )
        with losses_of_one_device():
            results = getattr(one, self._kind)(_BATCHES, data)
        return results if self._kind == "predict" else as_tensors(results)

    def _run_all(self, data: Any) -> Any:
        results = getattr(self._engine.new_steps(compiles=False), self._kind)(_BATCHES, data)
        if self._kind == "predict":
            return self._replicas.concatenate(results)
        metrics = metric_results(self._model, self._replicas)
        return as_tensors(get_logs(self._model, self._replicas, self._kind, results, metrics))

    def _ran_by_all(self, data: Any) -> tuple[Any, State]:
        """The results and the state after a step of all replicas, apart from the engine's."""
        self.put_back()
        with unoptimized_calls():
            results = as_arrays(self._step_of_all(data))
        return results, State(self._variables)

    @cached_property
    def _of_model(self) -> list[keras.Variable]:
        return get_variables(self._model)

    @property
    def _trained(self) -> set[str]:
        return {variable.path for variable in self._model.trainable_variables}

    @property
    def _components(self) -> list[tf.Variable]:
        return list({id(one): one for one in self._replicas.copies(self._of_model)}.values())

    @property
    def _outer(self) -> list[tf.Variable]:
        """The variables outside of the model that the steps read or write, except for scratch."""
        known = {id(component) for component in self._components}
        found = {id(one): one for graph in self._graphs for one in graph.variables if id(one) not in known}
        return [one for one in found.values() if one.dtype != tf.resource and not getattr(one, SCRATCH, False)]

    @cached_property
    def _variables(self) -> list[tf.Variable]:
        return [*self._components, *self._outer, *self._tables]

    @cached_property
    def _tables(self) -> list[LookupTable]:
        return [] if self.failure else changed_tables(self._graphs[0])

    # --- Comparing ----------------------------------------------------------------------------------------------------

    def _agreed(self, data: Any, run: Callable[[], tuple[Any, State]]) -> Proof:
        """What comparing the results and the state that `run` returns has shown on any worker."""
        self._one_overflows = self.is_too_large = False
        if self.failure:
            return self._proof(failure=self.failure)
        try:
            proof = self._compared(data, *self._ended(run))
        except Exception as error:
            proof = self._proof(failure=get_reason(error))
            self.is_too_large = isinstance(error, tf.errors.ResourceExhaustedError)
        names = [*(name for name, *_ in self._compared_variables()), *(f"log {one}" for one in self.metrics.names)]
        flags = self.is_too_large, self._one_overflows
        proof, (self.is_too_large, self._one_overflows) = agreed(proof, names, flags, self._replicas)
        return proof

    def _ended(self, run: Callable[[], tuple[Any, State]]) -> tuple[Any, State]:
        """What `run` returns; all workers sum the states of metrics, whatever it raises on one of them."""
        after = self._before
        try:
            results, after = run()
        finally:
            if self._kind != "predict":
                self.metrics.end(after)
        return results, after

    def _compared(self, data: Any, results: Any, many: State) -> Proof:
        """Compares results and state of all replicas with what one device makes of the step."""
        if self._of_one is None:
            raise RuntimeError("begin() was not called")
        own, one = self._of_one.result()
        scales = self._replicas.components(get_scales(self._model), 0)
        self._one_overflows = any(bool(many[scale] != one[scale]) for scale in scales)
        variables = self._differences(many, one, tolerance := Tolerance.of_model(self._model))
        for again, looser in self._rounded_otherwise(data, tolerance):
            if any(differs for differs, _ in variables.values()):
                others = self._differences(many, one, looser, again())
                variables = {name: min(found, others[name]) for name, found in variables.items()}
        found = {name: relative for name, (differs, relative) in variables.items() if differs}
        for name, relative in self._differing_results(results, as_arrays(own), many, one, tolerance):
            found[name] = max(relative, found.get(name, 0.0))
        return self._proof(
            num_rows=get_num_rows(data),
            num_variables=len(variables),
            largest=max((found or {name: relative for name, (_, relative) in variables.items()}).values(), default=0.0),
            differing=tuple(sorted(found, key=lambda name: -found[name])),
        )

    def _rounded_otherwise(self, data: Any, tolerance: Tolerance) -> Iterator[tuple[Callable[[], State], Tolerance]]:
        """Steps of one device that differ from its first one by rounding, and the tolerance with each.

        The order of the rows changes sums over them. Other kernels, such as XLA's or those for fewer rows, round what
        each row gives, which may move a ReLU over its bend: so do, in some directions, weights that are moved a little.
        """
        rows, ahead = self._reversed(data), self._of_one
        if rows is not None and ahead is not None:
            yield lambda: (ahead.of_other() or self._step_of_one(rows, self._before, self._accumulated))[1], tolerance
        for direction in range(_MAX_NEARBY if self._kind == "train" else 0):
            yield partial(self._step_nearby, data if rows is None else rows, direction), tolerance.of_nearby

    def _reversed(self, data: Any) -> Any | None:
        """The rows in reverse order, in each share; None if a row at another place is given other random numbers."""
        shares = None if self.is_apart else self._on_shares or None
        if shares is not None and shares.draws:
            return None
        return reversed_rows(data, self._replicas.num_replicas if shares else 1)

    def _step_nearby(self, rows: Any, direction: int) -> State:
        """The state after a step of one device with weights that are moved a little, and moved back after it."""
        moved = nearby(self._before, self._replicas.components(self._model.trainable_variables, 0), direction)
        after = self._step_of_one(rows, self._before, self._accumulated | moved)[1]
        own = {id(one): after[one] - moved[id(one)] + self._before[one] for one in after.variables if id(one) in moved}
        return State(after.variables, {id(one): after[one] for one in after.variables} | own)

    def _differences(
        self, many: State, one: State, tolerance: Tolerance, again: State | None = None
    ) -> dict[str, tuple[bool, float]]:
        """Name of a variable or table -> whether it differs on any replica, and by how much; see `difference`."""
        again = again or one
        compared = sorted(self._compared_variables(), key=lambda each: each[0] not in self._trained)
        slots = {slot.path for optimizer in get_optimizers(self._model).values() for slot in optimizer.variables}
        trained, numbers = self._trained, {name for name, first, *_ in compared if not first.shape.rank}
        counts = numbers - trained - slots  # numbers that a step counts or adapts: each is of its own kind
        kinds = [
            name if name in counts else kind_of(name, is_trained=name in trained, is_slot=name in slots)
            for name, *_ in compared
        ]
        largest: dict[str, float] = {}  # the largest step of a kind: of all first moments, say
        for kind, (_, first, *_) in zip(kinds, compared, strict=True):
            largest[kind] = max(size_of_step(self._before[first], one[first]), largest.get(kind, 0.0))
        own = {id(one) for one in self._on_shares.components} if self._on_shares and not self.is_apart else set()
        weights: list[tf.Variable] = []  # that do not differ by more than rounding
        found: dict[str, tuple[bool, float]] = {}
        of_slices = slots_of_slices(self._engine.get_steps("train").own_rows if self._kind == "train" else ())
        for kind, (name, first, copies, has_slots) in zip(kinds, compared, strict=True):
            scaled = replace(tolerance, scale=largest[kind])
            if name in of_slices:
                scaled = scaled.of_slices(size_of_step(self._before[first], one[first]))
            found.setdefault(name, (False, 0.0))  # several may have one name
            for copy in copies:
                base = copy if id(copy) in own else first
                if copy is not first and base is first and np.array_equal(many[copy], many[first]):
                    continue  # as compared already
                values = self._before[base], one[base], again[base]
                result = difference(*values, many[copy], scaled, has_slots=False)
                if result[0]:  # by more than what rounding of other variables explains?
                    states = self._before, one, many
                    near = get_slots(self._model, self._replicas, name, states, largest) if has_slots else []
                    near = [slot for slot in near if slot[1].shape == first.shape]
                    value = many[copy]
                    if name not in trained | slots:
                        rounded = [np.asarray(many[one_of], np.float64) - one[one_of] for one_of in weights]
                        value = without_multiple(value, one[base], rounded)
                    by_slots = has_slots and (not near or any(moved.any() for _, moved, _ in near))
                    noise = is_noise(near, tolerance)
                    result = difference(*values, value, scaled, has_slots=by_slots, noise=noise)
                found[name] = max(found[name], result)
            if name in trained and not found[name][0] and is_rounded(one[first]):
                weights.append(first)
        for table in self._tables:
            differs = not all(
                np.array_equal(*pair) or (is_rounded(pair[1]) and not tolerance.of_output(*pair)[0])
                for pair in zip(*(LookupTable.in_order(state[table]) for state in (many, one)), strict=True)
            )
            found[table.name] = differs, float(differs)
        return found

    def _differing_results(
        self, results: Any, own: Any, many: State, one: State, tolerance: Tolerance
    ) -> Iterator[tuple[str, float]]:
        """The outputs, metrics and logs that differ."""
        if self._kind == "predict":
            for place, (output, of_one) in enumerate(zip(tf.nest.flatten(results), tf.nest.flatten(own), strict=True)):
                differs, relative = tolerance.of_output(output, of_one)
                if differs:
                    yield f"output {place}", relative
            return
        for name in sorted(set(results) & set(own) - self._results_of_metrics(own)):
            differs, relative = tolerance.of_log(results[name], own[name])
            if differs:
                yield f"log {name}", relative
        for name, relative in self.metrics.of_step(one, tolerance):
            yield f"log {name}", relative

    def _results_of_metrics(self, logs: Any) -> set[str]:
        """The logs that are results of metrics, which are compared themselves: they may hold the rows of steps before.

        As in Keras, all logs of a custom step are if the names are those of all metrics; see `get_logs`.
        """
        names = self.metrics.names_of_results
        if not has_own_logs(self._model, self._kind):
            return names if self.metrics.begun else set()
        return names if set(logs) == names else {one for one in names if is_read_later(self._model, one, names)}

    def _compared_variables(self) -> Iterator[tuple[str, tf.Variable, list[tf.Variable], bool]]:
        """Name, the component of one device, the components of all replicas, and whether an optimizer has slots for it.

        Seeds, the states of metrics and of stateful layers, accumulated gradients and placed slots are a replica's own.
        """
        optimizers = get_optimizers(self._model).values()
        own = [v for one in optimizers for v in (*accumulators_by_replica(one), *get_seeds(one))]
        weights = {id(one) for one in self._model.weights}  # a metric may assign one of them
        own += [one for one in (*self._model.metrics_variables, *self.metrics.variables) if id(one) not in weights]
        own += [*untracked_variables(self._model), *filter(is_seed, self._of_model)]
        if not self._engine.has_state_of_keras:
            own += [v for one in optimizers for v in one.variables]
        left_out = {id(variable) for variable in own}
        shapes = {tuple(slot.shape) for one in optimizers for slot in one.variables if slot.shape.rank}
        trained = {id(variable) for variable in self._model.trainable_variables}
        follows = {id(slot) for one in optimizers for slot in followers_of_weights(one)}
        for variable in self._of_model:
            if id(variable) in left_out:
                continue
            copies = self._replicas.copies([variable])
            has_slots = not self._is_plain and id(variable) in trained and tuple(variable.shape) in shapes
            has_slots |= id(variable) in follows
            yield variable.path, copies[0], copies, has_slots
        for one in self._outer:
            is_shared = not self._replicas.strategy.extended.variable_created_in_scope(one)
            yield re.sub(r"(/replica_\d+)?(:\d+)?$", "", one.name) + SHARED * is_shared, one, [one], False

    def _proof(self, **of: Any) -> Proof:
        return Proof(kind=self._kind, num_replicas=self._replicas.num_replicas, draws=bool(self._drawn), **of)
