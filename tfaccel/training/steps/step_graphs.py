"""The traced graphs of one kind of step: their inputs, and when another one is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import keras
import tensorflow as tf

from tfaccel.data.feeds import ArrayBatches, CallFeed, GraphBatches, IteratorBatches
from tfaccel.training.private import private_api
from tfaccel.training.private.private_random import noting_stateful_random
from tfaccel.training.private.private_tensorflow import outside_variables, unsaved_state
from tfaccel.training.stages.micro_batches import MicroBatches, window_of_micro_batches
from tfaccel.training.steps.clocks import InputClock
from tfaccel.training.steps.merged_metrics import concrete_function, flat_logs, is_read_later, metrics_in, own_results
from tfaccel.training.steps.model_parts import (
    get_optimizers,
    get_variables,
    has_own_logs,
    have_values,
    unlisted_variables,
)
from tfaccel.training.steps.overrides import attributes_of_each
from tfaccel.training.steps.replicas import Replicas, current_replica
from tfaccel.training.steps.tracing import TraceAgain, TraceStates

if TYPE_CHECKING:
    from tfaccel.training.steps.engine import Engine

STEPS_PER_FLAG = 4  # on GPUs, every so many steps the host is told whether the losses are finite
# Called before each graph call with the kind of step, and what it keeps that no checkpoint holds ("" if nothing).
OnUnsavedState = Callable[[str, str], None]


class Steps(Protocol):
    """What a model computes in its steps, which graphs are traced from.

    Attributes:
        finite: while tracing: whether the loss and gradients of the last step were finite; None if that is not checked.
        gathers_rows: whether a step that was traced gathers rows over the replicas.
        has_sparse_gradients: whether the gradients of a traced step include `IndexedSlices`, which are reduced.
        own_rows: the variables whose sparse gradients have rows of each replica's own, with their optimizers.
        takes_fixed_shapes: whether the rows of all batches of a graph call must be known before it.
    """

    gathers_rows: bool

    @property
    def finite(self) -> tf.Tensor | None: ...

    @property
    def has_sparse_gradients(self) -> bool: ...

    @property
    def own_rows(self) -> Sequence[tuple[keras.optimizers.Optimizer, keras.Variable]]: ...

    @property
    def takes_fixed_shapes(self) -> bool: ...

    def train(self, batches: GraphBatches, batch: Any) -> Any:
        """One training step; returns the logs of a custom one."""

    def test(self, batches: GraphBatches, batch: Any) -> Any:
        """One evaluation step; returns the logs of a custom one."""

    def predict(self, batches: GraphBatches, batch: Any) -> Any:
        """Predictions for one batch; of several replicas, a nest per local replica, in row order."""


class StepGraphs:
    """The steps of one kind, and the graphs traced from them.

    Args:
        function_of_keras: Keras's function for the model's step; when Keras replaces it, these graphs are outdated.
        together: how the micro-batches of an optimizer step run together; None if they run one by one.

    Attributes:
        functions: the graphs, by their inputs.
        has_one_graph: whether one graph serves batches of all sizes.
    """

    def __init__(
        self, engine: Engine, kind: str, steps: Steps, *, function_of_keras: Any, together: MicroBatches | None
    ) -> None:
        options, trains = engine.options, kind == "train"
        self.steps, self.together = steps, together
        self.function_of_keras = function_of_keras
        self.run_eagerly = bool(engine.model.run_eagerly)
        self.states = TraceStates(engine.model)
        self.functions: dict[tuple[Any, str, bool], Callable[..., Any]] = {}
        self.has_one_graph = False
        self._model, self._kind, self._replicas = engine.model, kind, engine.replicas
        self._is_unsplit = engine.replicas.num_replicas == 1 and together is None and not steps.takes_fixed_shapes
        self._unsaved: dict[Callable[..., Any], str] = {}
        self._runs_no_step: set[Callable[..., Any]] = set()  # if it is asked for 0 steps
        self._graphs: dict[Callable[..., Any], tf.Graph] = {}
        self._traced_in = engine.contexts(trains=trains)
        self._is_on_tpu = engine.on_tpu
        self._watch_loss = trains and options.stop_at_non_finite_loss
        self._leaves_out = trains and options.leaves_out
        self._times_input = trains and options.times_input and not engine.on_tpu

    def function(self, feed: CallFeed, loop: bool, arguments: Any) -> Callable[..., Any]:
        """The graph for batches of this kind, traced on first use: one for all batches that are not split.

        `tf.random` operations keep their state in the graph. A step that uses one therefore gets a single graph for all
        batch sizes and window lengths, as in Keras, so that its random numbers do not repeat.
        """
        if self.has_one_graph:
            loop = self._kind != "predict" and not has_own_logs(self._model, self._kind)
        batches, predicts = feed.batches, self._kind == "predict"
        # Keras then sees an unknown number of rows in every batch.
        hides_rows = self._is_unsplit and isinstance(batches, ArrayBatches) and batches.has_partial_batch
        any_rows = self.has_one_graph or hides_rows
        specs = feed.signature(any_rows=any_rows)
        key = (batches, str(specs), loop)
        if key in self.functions:
            return self.functions[key]
        stateful: list[bool] = []
        with noting_stateful_random(stateful, current_replica):
            function: Any = self._predict_graph(batches) if predicts else self._window_graph(batches, loop)
            if not self.run_eagerly:
                function = tf.function(self._in_contexts(function, feed.spec), autograph=False, reduce_retracing=True)
                traced = arguments if specs is None else (specs, tf.TensorSpec([], tf.int32))[: 1 if predicts else 2]
                concrete = None
                while concrete is None:  # as `concrete_function` does, whose frame tracebacks of users are spared
                    with contextlib.suppress(TraceAgain):
                        concrete = function.get_concrete_function(*traced)
                function = function if specs is None else concrete
                self._graphs[function] = concrete.graph
        if stateful and not (self.has_one_graph or self.run_eagerly):
            self.has_one_graph = True
            return self.function(feed, loop, arguments)
        self.functions[key] = function
        is_one_by_one = self.together is None or self.together.number == 1
        if loop and is_one_by_one and not (predicts or self.run_eagerly or has_own_logs(self._model, self._kind)):
            self._runs_no_step.add(function)
        return function

    def optimize(self, function: Callable[..., Any], arguments: Any) -> None:
        """Lets TensorFlow optimize a graph and create its kernels, if a call can do so that runs no step.

        Several workers would have to begin such a call together.
        """
        if function in self._runs_no_step and self._replicas.num_workers == 1 and not self._is_on_tpu:
            function(arguments, tf.constant(0))

    def unsaved_state(self, function: Callable[..., Any]) -> str:
        """What a graph keeps from step to step that no checkpoint holds; "" if nothing is known."""
        if self.run_eagerly:
            return ""
        if function not in self._unsaved:
            what = "training step" if self._kind == "train" else "evaluation step"
            self._unsaved[function] = unsaved_state(self._graphs[function], self._saved(), what=what)
        return self._unsaved[function]

    def outside_variables(self, *, written: bool = False) -> list[tf.Variable]:
        """The variables that the graphs read, or write to, and that belong to no part of the model."""
        saved = self._saved() if self._graphs else None
        graphs = () if saved is None else self._graphs.values()
        found = [one for graph in graphs for one in outside_variables(graph, saved or (), written=written)]
        return list({id(one): one for one in found}.values())

    def get_outside_variables(self, batch_spec: Any) -> list[tf.Variable]:
        """The same before a graph is traced: of a single step on a batch of these specs."""
        saved = self._saved()
        if saved is None or self.run_eagerly:
            return []
        graph = self._in_contexts(lambda data: self.steps.train(IteratorBatches(), data), batch_spec)
        return outside_variables(concrete_function(tf.function(graph, autograph=False), batch_spec).graph, saved)

    def _saved(self) -> list[tf.Variable] | None:
        """The variables that a checkpoint holds; None on TPUs, where one handle represents those of all cores."""
        if self._is_on_tpu:
            return None
        every = get_variables(self._model)
        every = every + [v for one in get_optimizers(self._model).values() for v in unlisted_variables(one)]
        return self._replicas.copies(every)

    def _in_contexts(self, run: Callable[..., Any], batch_specs: Any) -> Callable[..., Any]:
        def traced(*arguments: Any) -> Any:
            with self.states.tracing(batch_specs), contextlib.ExitStack() as stack:
                for context in self._traced_in:
                    stack.enter_context(context(self._model))
                return run(*arguments)

        return traced

    def _window_graph(self, batches: GraphBatches, loop: bool) -> Callable[..., Any]:
        steps = self.steps
        if loop and self.together is not None and self.together.number > 1:
            return self._window_of_micro_batches(batches, self.together)
        step_fn = self.states.with_same_numbers(steps.train if self._kind == "train" else steps.test)
        keep_logs = has_own_logs(self._model, self._kind)
        # A single worker must not leave the loop on its own, so several workers check the loss at the window's end.
        # On a TPU too: reading the loss would stop the cores at every step.
        # All workers know, however, whether a batch was left out.
        leaves_out = self._leaves_out
        may_leave = leaves_out or (self._replicas.num_workers == 1 and not self._is_on_tpu)
        watch_loss = self._watch_loss and may_leave
        on_gpu = self._replicas.are_gpus
        is_ahead = on_gpu and watch_loss and not leaves_out
        # A loop's variables are where their first values are. A GPU must not hold what decides whether it goes on.
        on_host: Any = partial(tf.device, "/CPU:0") if on_gpu else contextlib.nullcontext
        times_input = self._times_input and (watch_loss or leaves_out or not on_gpu)
        calls_step = keep_logs and loop and not (leaves_out or self._is_on_tpu) and self._replicas.num_replicas == 1

        def window(arguments: Any, num_steps: tf.Tensor) -> Any:
            once = self._traced_once(step_fn, batches, arguments) if calls_step else None
            run_step = once or partial(step_fn, batches)

            def body(step: tf.Tensor, state: Any, logs: Any, flags: Any, waited: Any, bad: Any) -> Any:
                earlier = logs
                batch, state = batches.fetch(arguments, state, step)
                clock = InputClock(on_gpu=on_gpu)
                own_logs = run_step(batch)
                clock.ended()
                if leaves_out:
                    finite = self._steps_are_finite()
                    bad = (bad[0].write(step, ~finite),)
                    if keep_logs and earlier and own_logs:
                        own_logs = keras.tree.map_structure(partial(tf.where, finite), as_tensors(own_logs), earlier)
                else:
                    finite = self._loss_is_finite() if watch_loss else tf.constant(True)
                if times_input:
                    with tf.device("/CPU:0"):
                        waited = (waited[0] + clock.waited(state, finite),)
                flags = self._flags_ahead(step, flags, finite) if is_ahead else (finite,)
                return step + 1, state, (as_tensors(own_logs) if keep_logs else ()), flags, waited, bad

            with tf.device("/CPU:0"):
                waited = (tf.constant(0.0, tf.float64),) if times_input else ()
            bad = (tf.TensorArray(tf.bool, 0, dynamic_size=True, element_shape=()),) if leaves_out else ()
            logs, goes_on = once.no_logs if once else (), loop
            with on_host():
                variables = (tf.constant(0), batches.start(arguments), logs, self._first_flags(is_ahead), waited, bad)
            if once is None and (keep_logs or not loop):  # the first step determines the structure of the logs
                variables = body(*variables)
                goes_on = loop and not (calls_step and self._will_be_traced_again())
            go_on = _loop_condition(batches, num_steps, on_host, watch_loss=watch_loss)
            done, state, logs, flags, waited, bad = tf.while_loop(go_on, body, variables) if goes_on else variables
            finite, done = _finite_and_done(flags if watch_loss else (tf.constant(True),), done)
            bad = tuple(of_steps.stack() for of_steps in bad)
            return done, state, logs, metric_results(self._model, self._replicas), finite, waited, bad

        return window

    def _traced_once(self, step: Callable[..., Any], batches: GraphBatches, arguments: Any) -> _StepTracedOnce | None:
        """A step with logs of its own, as a function of its batch that a loop calls; None if the logs vary in shape."""
        if self.run_eagerly or self._will_be_traced_again():
            return None
        fetch = partial(batches.fetch, arguments, batches.start(arguments), tf.constant(0))
        batch = tf.function(lambda: fetch()[0], autograph=False).get_concrete_function().structured_outputs
        found = _StepTracedOnce(tf.function(partial(step, batches), autograph=False).get_concrete_function(batch))
        return found if found.has_fixed_logs else None

    def _will_be_traced_again(self) -> bool:
        """Whether variables are created by the step being traced: TensorFlow then traces it once more, without them."""
        return not have_values(get_variables(self._model))

    def _window_of_micro_batches(self, batches: GraphBatches, together: MicroBatches) -> Callable[..., Any]:
        run = window_of_micro_batches(
            self.steps, together, batches, is_finite=self._loss_is_finite if self._watch_loss else None
        )

        def window(arguments: Any, num_steps: tf.Tensor) -> Any:
            done, state, finite, bad = run(arguments, num_steps)
            left_out = tuple(of_steps.stack() for of_steps in bad)
            return done, state, (), metric_results(self._model, self._replicas), finite, (), left_out

        return window

    def _predict_graph(self, batches: GraphBatches) -> Callable[..., Any]:
        step_fn = self.states.with_same_numbers(self.steps.predict)

        def predict(arguments: Any) -> Any:
            batch, state = batches.fetch(arguments, batches.start(arguments), tf.constant(0))
            outputs = step_fn(batches, batch)
            if self._replicas.num_replicas > 1:
                outputs = self._replicas.concatenate(outputs)
            return outputs, state

        return predict

    def _first_flags(self, is_ahead: bool) -> tuple[tf.Tensor, ...]:
        """What a loop knows of its losses before the first step; see `_flags_ahead`."""
        if not is_ahead:
            return (tf.constant(True),)
        with tf.device(self._replicas.devices[0] or None):
            numbers = tf.constant(1.0), tf.constant(0.0)
        return (tf.constant(True), tf.constant(True), *numbers)

    def _flags_ahead(self, step: tf.Tensor, flags: tuple[tf.Tensor, ...], finite: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """What a loop on a GPU knows of its losses: two flags on the host, and two numbers that stay on the GPU.

        A GPU stands still while the host waits for a flag before it launches the next step, and a copy to the host
        waits for all that has been launched before it. So a flag is copied every few steps, and read a few later.

        Args:
            step: the step, from 0.
            flags: before it: the flag that the loop reads, the one that is being copied, 1.0 as long as all losses are
                finite, and the number of steps until then.
            finite: whether its loss is finite.
        """
        read, copied, all_finite, num_finite = flags
        with tf.device(self._replicas.devices[0] or None):
            all_finite *= tf.cast(finite, tf.float32)
            num_finite += all_finite  # exact up to 16 million steps
            finite = all_finite > 0
        with tf.device("/CPU:0"):
            is_due = tf.equal(step % STEPS_PER_FLAG, STEPS_PER_FLAG - 1)
            read, copied = tf.cond(is_due, lambda: (copied, tf.identity(finite)), lambda: (read, copied))
        return read, copied, all_finite, num_finite

    def _steps_are_finite(self) -> tf.Tensor:
        """Whether the step that was just traced kept its batch; the same on all workers."""
        return tf.constant(True) if self.steps.finite is None else self.steps.finite

    def _loss_is_finite(self) -> tf.Tensor:
        """Whether this process's share of the mean loss is finite; a NaN remains in it until the epoch ends."""
        total = private_api.loss_tracker(self._model).total
        local = self._replicas.strategy.experimental_local_results(private_api.tf_variable(total))
        return tf.reduce_all([tf.math.is_finite(component.read_value()) for component in local])


def _loop_condition(
    batches: GraphBatches, num_steps: tf.Tensor, on_host: Callable[[], Any], *, watch_loss: bool
) -> Callable[..., tf.Tensor]:
    """Whether a window has a further step, as a function of its loop's variables."""

    def go_on(step: tf.Tensor, state: Any, logs: Any, flags: Any, *others: Any) -> tf.Tensor:
        del logs, others
        has_next = batches.has_next(state)  # where the batch is
        with on_host():
            more = (step < num_steps) & has_next
            return more & flags[0] if watch_loss else more

    return go_on


class _StepTracedOnce:
    """A step that is called in a loop.

    Attributes:
        no_logs: zeros in the place of its logs.
        has_fixed_logs: whether the shapes of its logs are known.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        specs = tf.nest.flatten(function.structured_outputs)
        self.has_fixed_logs = all(one is not None and one.shape.is_fully_defined() for one in specs)
        self.no_logs: Any = ()
        if self.has_fixed_logs:
            self.no_logs = tf.nest.map_structure(
                lambda spec: tf.zeros(spec.shape, spec.dtype), function.structured_outputs
            )

    def __call__(self, batch: Any) -> Any:
        return self._function(batch)


def _finite_and_done(flags: tuple[tf.Tensor, ...], done: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Whether all losses are finite, and the number of steps up to the first that is not: a few more may have run."""
    if len(flags) == 1:
        return flags[0], done
    num_finite = tf.cast(flags[-1], tf.int32)
    return tf.equal(num_finite, done), tf.minimum(num_finite + 1, done)


def metric_results(model: keras.Model, replicas: Replicas) -> dict[str, tf.Tensor]:
    """The results of all metrics over all replicas."""
    if replicas.num_replicas == 1 and not isinstance(replicas.strategy, tf.distribute.TPUStrategy):
        with replicas.local(model.metrics_variables, 0):
            return model.get_metrics_result()
    with replicas.strategy.scope(), attributes_of_each(own_results(metrics_in(model), replicas)):
        return model.get_metrics_result()


def as_tensors(logs: Any) -> Any:
    """The logs of a step as tensors; an empty dictionary for none."""
    return keras.tree.map_structure(tf.convert_to_tensor, dict(logs)) if logs else {}


def get_logs(model: keras.Model, replicas: Replicas, kind: str, own: Any, results: dict[str, Any]) -> dict[str, Any]:
    """The logs of a window: its metric results, unless a custom step returned others.

    As in Keras, they are the metrics' results if the names are the same. With several replicas, a log with the name of
    a metric is that metric's result over all replicas, except for the compiled loss tracker, which a custom step need
    not use.

    Args:
        kind: "train" or "test".
        own: what a custom step returned.
    """
    if not has_own_logs(model, kind):
        return results
    own = flat_logs(own or {})
    if set(own) == set(results):
        return results
    if replicas.num_replicas == 1:
        return own
    return {name: results[name] if is_read_later(model, name, results) else value for name, value in own.items()}


@dataclass(frozen=True)
class WindowResult:
    """Result of one graph call.

    Attributes:
        num_steps: number of steps, those whose batches were left out included.
        logs: the final logs.
        loss_is_finite: whether the last loss was finite, if that is watched.
        traced: whether the call traced its graph.
        left_out: which of the steps left out their batches, from 0.
    """

    num_steps: int
    logs: dict[str, Any]
    loss_is_finite: bool = True
    traced: bool = False
    left_out: tuple[int, ...] = ()
