"""Runs a model's steps: many steps per graph call, with the metrics read at the end of the call.

The inner loop (`Engine.run`) runs a *window* of steps inside the graph. The outer loops (`fit`, `evaluate`, `predict`)
call it, call the callbacks, and choose the length of the next window.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import Feed
from tfaccel.errors import PlanError
from tfaccel.planning.option_checks import NOT_ON_TPUS
from tfaccel.processes import heartbeat
from tfaccel.processes.launched import serve_launcher
from tfaccel.training.kernels.fused_kernels import fused_kernels, kernels_in_xla
from tfaccel.training.private import private_api, private_models
from tfaccel.training.proof.step_checks import StepChecks
from tfaccel.training.runtime import compiling
from tfaccel.training.stages.micro_batches import make_together
from tfaccel.training.stages.staged_model import staged_model
from tfaccel.training.steps.chunked_logits import logits_in_chunks
from tfaccel.training.steps.clocks import ReduceClock
from tfaccel.training.steps.embeddings import host_lookups, prepare_tables, row_updates, tables_on_host
from tfaccel.training.steps.gradient_update import GradientUpdate, UpdateInStep
from tfaccel.training.steps.gradients import densify, summed_rows
from tfaccel.training.steps.left_out import LeftOutCount
from tfaccel.training.steps.loss_scaling import has_loss_scale, refuse_loss_scale
from tfaccel.training.steps.marked_layers import layers_marked
from tfaccel.training.steps.model_parts import has_slots_of_weights
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.rematerialized import recomputed_blocks
from tfaccel.training.steps.replica_state import get_replicas
from tfaccel.training.steps.replicas import is_distributed
from tfaccel.training.steps.several_replicas import SeveralReplicas
from tfaccel.training.steps.slots import FLOAT32, HOST, placed_as_asked, updated_in_float32
from tfaccel.training.steps.step_errors import check_same_data, clear_errors, fixed_rows_named
from tfaccel.training.steps.step_graphs import OnUnsavedState, StepGraphs, Steps, WindowResult, get_logs, metric_results
from tfaccel.training.steps.step_on_rows import FixedShares, StepOnRows, with_fixed_shapes
from tfaccel.training.steps.xla import Compiled, compiled_by_replicas, compiles_steps

_ENGINE = "_tfaccel_engine"
_COMPILED_AGAIN = (
    "A callback compiles the model or replaces its optimizer during training, which no checkpoint holds: call `fit` "
    "once for each phase, with a directory of its own"
)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Settings of the engine that are not part of the compiled model.

    Attributes:
        sum_duplicate_indices: sum the gradients of repeated embedding rows before the optimizer sees them; plain Keras
            does not.
        embedding_updates: "keras", "rows" or "rows_lazy"; see `row_updates`.
        embeddings_on: "device" or "host"; see `embeddings`.
        optimizer_state, optimizer_slots_dtype: of the optimizer's slots; see `slots`.
        bytes_per_pack: size of the packs in which gradients are reduced; 0 leaves it to TensorFlow.
        stop_at_non_finite_loss: end a window at the first step whose loss is NaN or infinite.
        leaves_out: leave out batches whose loss or gradients are not finite; see `left_out`. With
            `stop_at_non_finite_loss`, a window ends at the first such batch.
        whole_step: run the whole step on each replica, including the optimizer update. Always on for TPUs.
        single_steps: run one optimizer step per graph call, unless the model's `steps_per_execution` is greater than 1.
        batches_per_step: batches per optimizer step; callbacks with batch hooks are called once per optimizer step.
        fused_kernels: train with fused kernels; where XLA compiles, for attention on one GPU only; see
            `tfaccel.training.kernels`.
        times_input: measure the time that training steps wait for their batches.
        rematerialization: recompute activations in the backward pass; see `recomputed_blocks`.
        logit_chunks: parts of the rows for which logits and their loss are computed; see `logits_in_chunks`.
        pipeline_stages: number of stages that the model is cut into; see `StagedModel`.
        stage_devices: their devices: those of the first replica's stages, then the second's, ...
        marks_layers: give the operations of each layer a name scope of their own; see `layers_marked`.
    """

    sum_duplicate_indices: bool = False
    embedding_updates: str = "keras"
    embeddings_on: str = "device"
    optimizer_state: str = "replicated"
    optimizer_slots_dtype: str = "float32"
    bytes_per_pack: int = 0
    stop_at_non_finite_loss: bool = False
    leaves_out: bool = False
    whole_step: bool = False
    single_steps: bool = False
    batches_per_step: int = 1
    fused_kernels: bool = False
    times_input: bool = False
    rematerialization: bool = False
    logit_chunks: int = 1
    pipeline_stages: int = 1
    stage_devices: tuple[str, ...] = ()
    marks_layers: bool = False


class Engine:
    """The traced steps of a compiled model; kept until the model is compiled again."""

    def __init__(self, model: keras.Model, options: EngineOptions) -> None:
        private_api.check_versions()
        serve_launcher()
        self.model = model
        self.options = options
        self.replicas = get_replicas(model)
        if options.times_input and self.replicas.num_workers > 1 and not self.replicas.are_gpus:
            self.replicas.reduce_clock = ReduceClock()
        self.on_tpu = isinstance(self.replicas.strategy, tf.distribute.TPUStrategy)
        self.on_unsaved_state: OnUnsavedState | None = None
        self._kinds: dict[str, StepGraphs] = {}
        self._take_compiled()
        self._prepared = dict.fromkeys(("train", "test", "predict"), _compiled_parts(model))
        if options.embeddings_on == "host":
            prepare_tables(model, options.embedding_updates, options.embeddings_on)
        self.left_out = LeftOutCount()
        self.step_seconds: dict[str, float] = {}
        self.waited_seconds: float | None = None  # for batches, in all graph calls so far; None if not measured

    def _take_compiled(self) -> None:
        """Takes over what the model is compiled with."""
        model, options = self.model, self.options
        self.optimizer_state = placed_as_asked(model, self.replicas, options)
        self.checks = StepChecks(self)
        self.stages = staged_model(model, options.stage_devices, options.pipeline_stages)

    def prepare(self, kind: str, feed: Feed) -> None:
        """Called before each window: follows what a callback has compiled.

        As in Keras, a new `model.optimizer` alone has no effect on steps that are traced already.
        """
        parts, known = _compiled_parts(self.model), self._prepared[kind]
        if any(one is not before for one, before in zip(parts, known, strict=True)):
            if self.on_unsaved_state is not None:
                self.on_unsaved_state(kind, _COMPILED_AGAIN)
            self._prepared[kind] = parts
            if kind not in self._kinds or getattr(self.model, f"{kind}_function") is None:
                looks = self.checks.looks
                build_before_steps(self.model, feed.spec, self.options, kind)
                self._take_compiled()
                self.checks.looks = looks

    def _kind(self, kind: str) -> StepGraphs:
        """The graphs for one kind of step.

        Keras creates a function for each kind (`Model.train_function`, ...) on first use after `compile`, or in
        `make_train_function(force=True)`. It keeps the model's settings of that moment, and so do these graphs.
        """
        trains, known = kind == "train", self._kinds.get(kind)
        if trains and (known is None or known.function_of_keras is not self.model.train_function):
            prepare_tables(self.model, self.options.embedding_updates, self.options.embeddings_on)
        getattr(self.model, f"make_{kind}_function")()
        function = getattr(self.model, f"{kind}_function")
        if known is None or known.function_of_keras is not function:
            steps, together = self.new_steps(), None
            if trains and self.stages is not None:
                together = make_together(self.stages, steps, leaves_out=self.options.leaves_out)
            known = StepGraphs(self, kind, steps, function_of_keras=function, together=together)
            self._kinds[kind] = known
        return known

    def num_graphs(self, kind: str) -> int:
        """The number of graphs that were traced for one kind of step."""
        made = self._kinds.get(kind)
        return 0 if made is None else len(made.functions)

    def graphs(self, kind: str) -> list[tf.Graph]:
        """The graphs that were traced for one kind of step on batches of arrays."""
        return [function.graph for function in self._kinds[kind].functions.values() if hasattr(function, "graph")]

    @property
    def has_state_of_keras(self) -> bool:
        """Whether every replica has the slots and embeddings that Keras has on one device."""
        options = self.options
        places = (options.embedding_updates, options.embeddings_on, self.optimizer_state)
        are_places_of_keras = places == ("keras", "device", "replicated") and self.stages is None
        return are_places_of_keras and options.optimizer_slots_dtype == FLOAT32

    def outside_variables(self, spec: Any = None, *, kind: str = "train", written: bool = False) -> list[tf.Variable]:
        """The variables that steps of a kind read, or write to, and that belong to no part of the model.

        Args:
            spec: traces a step on a batch of these specs, before the first one; None takes the traced steps.
            written: those that the traced steps write to, not the others.
        """
        if spec is not None:
            return self._kind(kind).get_outside_variables(spec)
        return self._kinds[kind].outside_variables(written=written) if kind in self._kinds else []

    def contexts(
        self, *, trains: bool, on_one_device: bool = False
    ) -> tuple[Callable[[keras.Model], contextlib.AbstractContextManager[None]], ...]:
        """The contexts in which steps are traced; recomputed blocks contain fused kernels."""
        staged = () if self.stages is None or on_one_device else (self.stages.traced,)
        in_chunks = partial(logits_in_chunks, num_chunks=self.options.logit_chunks, trains=trains)
        chunks = () if self.options.logit_chunks == 1 else (in_chunks,)
        if not trains:
            return (*staged, host_lookups, *chunks)
        kernels: tuple[Any, ...] = (fused_kernels,) * (not self.on_tpu)
        if self.model.jit_compile:  # as one function on one GPU; XLA compiles less of other steps
            is_whole = self.replicas.num_replicas == 1 and self.has_state_of_keras and not tables_on_host(self.model)
            kernels = (kernels_in_xla,) * (is_whole and self.replicas.are_gpus)
        return (
            staged
            + kernels * self.options.fused_kernels
            + (partial(row_updates, replicas=self.replicas),) * (self.options.embedding_updates != "keras")
            + (updated_in_float32,) * (self.options.optimizer_slots_dtype != FLOAT32)
            + (recomputed_blocks,) * self.options.rematerialization
            + chunks
            + (layers_marked,) * self.options.marks_layers
        )

    def get_steps(self, kind: str) -> Steps:
        """The steps that are traced for one kind."""
        return self._kind(kind).steps

    def micro_batches(self) -> tuple[int, int]:
        """Number of micro-batches that run together, and of those left in the current optimizer step."""
        together = self._kind("train").together if self.stages is not None else None
        return (1, 1) if together is None else (together.number, int(together.num_left()))

    def new_steps(self, *, compiles: bool = True) -> Steps:
        """Steps that nothing has been traced from yet; without `compiles`, XLA does not compile them."""
        model, replicas, options, stages = self.model, self.replicas, self.options, self.stages
        if self.on_tpu or options.whole_step:
            if options.leaves_out:
                raise PlanError(NOT_ON_TPUS)
            refuse_loss_scale(model)
            shares, make_update = FixedShares(model, replicas), partial(UpdateInStep, replicas=replicas)
            return SeveralReplicas(model, replicas, rows=shares, make_update=make_update, compiled=Compiled())
        asked = compiles and stages is None and compiles_steps(model)
        by_rows = options.embedding_updates != "keras"
        combine = summed_rows if by_rows else densify if options.sum_duplicate_indices else None
        is_update_apart = stages is None and ((by_rows and asked) or self.optimizer_state == HOST)
        if replicas.num_replicas == 1 and not is_update_apart:
            return OneReplica(model, replicas, jit_compile=asked, combine_slices=combine, leaves_out=options.leaves_out)
        compiled = compiled_by_replicas(model, asked=asked, updates_rows=by_rows)
        return SeveralReplicas(
            model,
            replicas,
            rows=StepOnRows(model, replicas),
            make_update=partial(
                GradientUpdate,
                replicas=replicas,
                jit_compile=compiled.update,
                combine_slices=combine,
                pack_bytes=options.bytes_per_pack,
                optimizer_state=self.optimizer_state,
                **({} if stages is None else {"placed": stages.following}),
            ),
            compiled=compiled,
            leaves_out=options.leaves_out,
            **({} if stages is None else {"placed": stages.on_last}),
        )

    def run(
        self, kind: str, feed: Feed, num_steps: int, *, loop: bool = True, traced: Callable[[], None] | None = None
    ) -> WindowResult:
        """Runs steps on the next batches of `feed` in one graph call.

        Args:
            feed: the batches; at least one must be left.
            loop: False runs one step, in a graph without a loop.
            traced: called when the steps are traced and optimized, before they run.
        """
        check_same_data(self.replicas, feed)
        made = self._kind(kind)
        call_feed = with_fixed_shapes(feed) if kind == "test" and made.steps.takes_fixed_shapes else feed
        num_graphs = len(made.functions)
        first = feed.peek() if num_graphs == 0 and self.replicas.num_replicas > self.replicas.num_workers == 1 else None
        arguments, count = call_feed.arguments(num_steps if loop else 1)
        given = (arguments, tf.constant(count))
        with clear_errors(self.replicas.num_replicas), fixed_rows_named(self.model, self.replicas, kind, first):
            function = made.function(call_feed, loop, given)
            if self.on_unsaved_state is not None:
                self.on_unsaved_state(kind, made.unsaved_state(function))
            if traced is not None:
                made.optimize(function, arguments)
                traced()
            is_new = len(made.functions) > num_graphs
            with self._compiling(is_new):
                outputs = function(*given)
        done, state, own_logs, results, finite, waited, bad = outputs
        num_done = int(done)
        heartbeat.note(*(("training", num_done) if kind == "train" else ("evaluating", 0)))
        call_feed.finished(num_done, state)
        logs = get_logs(self.model, self.replicas, kind, own_logs, dict(results))
        if self.options.stop_at_non_finite_loss and kind == "train":
            finite = bool(finite) and math.isfinite(float(logs.get("loss", 0.0)))
        if waited:
            self.waited_seconds = (self.waited_seconds or 0.0) + float(waited[0])
        left_out = tuple(int(step) for step in np.flatnonzero(bad[0])) if bad else ()
        return WindowResult(num_done, logs, bool(finite), is_new, left_out)

    def predict(self, feed: Feed, *, traced: Callable[[], None] | None = None) -> Any:
        """Predictions for the next batch of `feed`: a nest of tensors with all rows of the global batch.

        Args:
            feed: the batches.
            traced: called when the step is traced, before it runs.
        """
        made = self._kind("predict")
        call_feed = with_fixed_shapes(feed) if made.steps.takes_fixed_shapes else feed
        arguments, _ = call_feed.arguments(1)
        with clear_errors(self.replicas.num_replicas):
            num_graphs = len(made.functions)
            function = made.function(call_feed, False, (arguments,))
            if traced is not None:
                traced()
            with self._compiling(len(made.functions) > num_graphs):
                outputs, state = function(arguments)
        call_feed.finished(1, state)
        return outputs

    def _compiling(self, is_new: bool) -> contextlib.AbstractContextManager[None]:
        """Where a graph runs, which may be a new one."""
        compiles = is_new and (self.model.jit_compile or tf.config.optimizer.get_jit())
        return compiling() if compiles else contextlib.nullcontext()

    def forget_graphs(self) -> None:
        """Lets all steps be traced again."""
        self._kinds.clear()

    @property
    def reduced_seconds(self) -> float:
        """The time of all reductions between workers so far; 0 if it is not measured."""
        clock = self.replicas.reduce_clock
        return 0.0 if clock is None else clock.seconds

    def longest_window(self, kind: str, feed: Feed) -> int | None:
        """Maximum number of steps in one graph call; None for no limit.

        A gather over the replicas keeps the shape of its first step for the whole call: that of rows, and that of
        `IndexedSlices`, which workers gather.
        """
        if self.replicas.num_replicas == 1 or feed.signature() is not None:
            return None
        steps = self.get_steps(kind)
        gathers = steps.gathers_rows or (self.replicas.num_workers > 1 and steps.has_sparse_gradients)
        return 1 if gathers or not self.num_graphs(kind) else None

    def metric_results(self) -> dict[str, tf.Tensor]:
        """Results of all metrics, over all replicas."""
        return metric_results(self.model, self.replicas)


def build_before_steps(
    model: keras.Model, batch_spec: Any, options: EngineOptions, kind: str = "train", *, always: bool = False
) -> None:
    """Creates a model's variables unless, as in Keras, the first step may do so while it is traced."""
    usual = (options.embedding_updates, options.optimizer_state, options.optimizer_slots_dtype, options.pipeline_stages)
    needed = usual != ("keras", "replicated", "float32", 1) or options.leaves_out or has_slots_of_weights(model)
    scales = kind == "train" and has_loss_scale(model.optimizer)  # by a scale that must be built before the loss
    needed |= scales and not all(layer.built for layer in private_api.all_layers(model))
    if always or needed or is_distributed(model.distribute_strategy):
        private_models.build_model(model, batch_spec, kind)


def _compiled_parts(model: keras.Model) -> tuple[Any, Any]:
    """What tells one `compile` from another, and one optimizer."""
    return private_api.loss_tracker(model), getattr(model, "optimizer", None)


def get_engine(model: keras.Model, options: EngineOptions | None = None) -> Engine:
    """The engine of a compiled model; recreated after `compile` and for different options (None: any)."""
    tracker = private_api.loss_tracker(model)
    known: tuple[Any, Engine] | None = vars(model).get(_ENGINE)
    if known is None or known[0] is not tracker or options not in (None, known[1].options):
        known = (tracker, Engine(model, options or EngineOptions()))
        vars(model)[_ENGINE] = known  # freed together with the model; bypasses Keras's attribute tracking
    return known[1]
