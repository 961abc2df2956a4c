"""Validation beside training: a copy of the model is evaluated on another device while the next epoch trains.

The callbacks at the end of an epoch wait for its score. When it is there, the model gets back its state from the end of
that epoch, the callbacks are called, and it goes on where it was: all is as if training had waited for the score. If
they end training, or change anything that the next epoch depends on, such as the learning rate, the steps since then do
not count: training ends with that epoch, or they are repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.training.epochs import EpochNotNeeded, Validation
from tfaccel.training.evaluate import run_evaluation
from tfaccel.training.private.private_start import swap_name_counters
from tfaccel.training.run.python_state import random_states, set_random_states
from tfaccel.training.run.session import Session, build_for, compiled_model
from tfaccel.training.runtime import background_thread
from tfaccel.training.steps.engine import Engine, EngineOptions, get_engine
from tfaccel.training.steps.model_parts import get_optimizers, get_variables, unlisted_variables, untracked_variables
from tfaccel.training.steps.overrides import replaces
from tfaccel.training.steps.replica_state import get_values, kept_state, restore_values

_SECONDS_BETWEEN_ASKING = 0.2
_LIVE = "tfaccel_live"  # attribute of callbacks: the hooks that are called at once, since they depend on no score
_OWN_HOOKS = (
    *("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end", "on_epoch_begin"),
    *("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
)
_KERAS = (keras.callbacks.LearningRateScheduler, keras.callbacks.ModelCheckpoint)  # keep nothing from these hooks


class EpochRepeated(Exception):
    """Callbacks have changed what steps depend on that were trained meanwhile; the newest checkpoint holds it."""


def device_here(device: str, plan: Plan) -> str:
    """The name in this process of a device such as "GPU:1" of the machine; a `Runtime` shows it behind the plan's.

    Raises:
        PlanError: if there is none.
    """
    kind, _, index = device.partition(":")
    gpus = [one for one in plan.devices if one.startswith("GPU")]
    place = int(index) if kind == "CPU" else gpus.index(device) if device in gpus else len(gpus)
    there = [one.name.removeprefix("/device:") for one in tf.config.list_logical_devices()]
    if f"{kind}:{place}" not in there:
        raise PlanError(
            f"validate_on is {device}, but this process has {', '.join(there)}. Choose one of them; "
            "num_logical_cpus=2 makes CPU:1."
        )
    return f"{kind}:{place}"


class ValidationBeside(Validation):
    """Validation on a copy of a session's model.

    The first evaluation, which traces, and the last one end before this goes on; `HeldCallbacks` wait for the others.

    Args:
        session: whose model is trained.
        source: the batches.
        device: where the copy is evaluated, as TensorFlow names it in this process.

    Raises:
        WorkloadError: for a model whose copy would share something with it.
    """

    def __init__(self, session: Session, source: Any, device: str) -> None:
        super().__init__(source)
        self._session, self._batches, self._device = session, source, device
        self._copy = self._make_copy()
        self._thread = background_thread()
        self._has_run = False

    def run(self, engine: Engine, container: Any) -> dict[str, float]:
        """Evaluates; returns the logs with the prefix `val_`, or none if the callbacks wait for them."""
        self.settle(container)
        if not self._has_run or container.is_last_epoch:
            return super().run(engine, container)
        before = container.state()
        values = self._values(before)
        scores = self._thread.submit(lambda: {f"val_{name}": one for name, one in self._evaluate(values).items()})
        container.hold(scores, before)
        return {}

    def settle(self, container: Any) -> None:
        """Waits for a score that callbacks wait for."""
        container.settle()

    def evaluate(self, engine: Engine, container: Any) -> dict[str, float]:
        """Evaluates now."""
        self._has_run = True
        return self._evaluate(self._values(get_values(self._session.model.variables, engine.replicas)))

    def close(self) -> None:
        """Waits for the evaluation that runs, and releases the batches."""
        self._copy.stop_evaluating = True
        self._thread.shutdown()
        super().close()

    def _make_copy(self) -> keras.Model:
        """A model of its own, made as the session's."""
        session, model = self._session, self._session.model
        if untracked_variables(model):
            raise _refusal("The model's layers keep states from batch to batch")
        states, counters = random_states(), swap_name_counters(None)
        try:
            with kept_state(model, session.engine.replicas), tf.device(self._device):
                copy = compiled_model(session.workload, session.plan, num_steps=session.num_steps)
                build_for(copy, session.source.batch_spec, session.workload)
        finally:
            swap_name_counters(counters)
            set_random_states(states)
        shared = {id(one) for one in model.variables} & {id(one) for one in copy.variables}
        shapes = [[(tuple(one.shape), one.dtype) for one in each.variables] for each in (model, copy)]
        if shared or shapes[0] != shapes[1]:
            raise _refusal("Building the model again gives one that shares its variables, or has others")
        return copy

    @cached_property
    def _engine(self) -> Engine:
        return get_engine(self._copy, EngineOptions(logit_chunks=self._session.plan.logit_chunks))

    def _values(self, state: list[tuple[Any, list[np.ndarray]]]) -> list[np.ndarray]:
        """What the copy's variables get."""
        found = {id(variable): values[0] for variable, values in state}
        return [found[id(variable)] for variable in self._session.model.variables]

    def _evaluate(self, values: list[np.ndarray]) -> dict[str, float]:
        copy = self._copy
        with tf.device(self._device):
            for variable, value in zip(copy.variables, values, strict=True):
                variable.assign(value)
            logs = run_evaluation(self._engine, self._batches, keras.callbacks.CallbackList([], model=copy))
            self._check_unchanged(values)
        return logs

    def _check_unchanged(self, values: list[np.ndarray]) -> None:
        """Raises WorkloadError if an evaluation changes what training goes on with, or reads what may change."""
        metrics = {id(one) for one in self._copy.metrics_variables}
        for variable, value in zip(self._copy.variables, values, strict=True):
            if id(variable) not in metrics and variable.numpy().tobytes() != value.tobytes():
                raise _refusal(f"An evaluation changes {variable.path}, with which training would go on")
        for variable in self._engine.outside_variables(kind="test"):
            raise _refusal(f"An evaluation reads {variable.name}, which is no part of the model")


def _refusal(reason: str) -> WorkloadError:
    return WorkloadError(f"{reason}, so it cannot be validated beside training. Leave out validate_on.")


@dataclass
class _Held:
    """The end of an epoch whose callbacks wait for its score.

    Attributes:
        state: of the model.
        left_out: how many batches of the epoch were left out.
        first, last: the steps of the next epoch that callbacks do not know of; None for none.
    """

    epoch: int
    scores: Future[dict[str, float]]
    state: list[Any]
    left_out: int
    logs: dict[str, Any] = field(default_factory=dict)
    first: int | None = None
    last: tuple[int, Any] | None = None


class HeldCallbacks:
    """The callbacks of a run; those of an epoch's end are called when the score of a `ValidationBeside` is there.

    Args:
        is_asked_to_stop: whether the run has to stop now.
        save: saves a checkpoint of an epoch's end.

    Raises:
        WorkloadError: for a callback with hooks that would be called too late.
    """

    def __init__(
        self,
        container: keras.callbacks.CallbackList,
        session: Session,
        *,
        is_asked_to_stop: Callable[[], bool],
        save: Callable[[], Any],
    ) -> None:
        self._container, self._engine, self._source = container, session.engine, session.source
        self._is_asked_to_stop, self._save = is_asked_to_stop, save
        self._held: _Held | None = None
        self._epoch = 0
        for one in container.callbacks:
            if getattr(one, "tfaccel_windows", False) or isinstance(one, keras.callbacks.History):
                continue
            hook = next((name for name in _OWN_HOOKS if replaces(one, keras.callbacks.Callback, name)), None)
            if hook is not None and not (type(one) in _KERAS and getattr(one, "save_freq", "epoch") == "epoch"):
                raise WorkloadError(
                    f"validate_on calls the callbacks of an epoch when its score is there, while the next one trains. "
                    f"Received: {type(one).__name__}, whose {hook} would not be called in time. Leave out one of "
                    "them."
                )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    @property
    def is_last_epoch(self) -> bool:
        """Whether no epoch follows, beside which the model could be evaluated."""
        return bool(self._epoch + 1 == self._container.params["epochs"])

    def state(self) -> list[Any]:
        """A copy of all that training changes."""
        model, engine = self._engine.model, self._engine
        optimizers = get_optimizers(model).values()
        own = [*get_variables(model), *(one for each in optimizers for one in unlisted_variables(each))]
        found: list[Any] = get_values(list({id(one): one for one in own}.values()), engine.replicas)
        return found + [(one, [one.numpy()]) for one in engine.outside_variables()]

    def _put_back(self, state: Iterable[Any]) -> None:
        for variable, values in state:
            if isinstance(variable, keras.Variable):
                restore_values([(variable, values)], self._engine.replicas)
            else:
                variable.assign(values[0])

    def hold(self, scores: Future[dict[str, float]], state: list[Any]) -> None:
        """Lets the callbacks of the epoch's end wait for a score.

        Args:
            state: of the model at the end of the epoch.
        """
        self._held = _Held(self._epoch, scores, state, self._engine.left_out.of_epoch)

    def on_epoch_begin(self, epoch: int) -> None:
        """Begins an epoch; all callbacks know it at once."""
        self._epoch = epoch
        self._container.on_epoch_begin(epoch)

    def on_train_batch_begin(self, step: int) -> None:
        """Begins a window."""
        held = self._held
        if held is not None and held.first is None:
            held.first = step
        with self._at_once("on_train_batch_begin"):
            self._container.on_train_batch_begin(step)

    def on_train_batch_end(self, step: int, logs: Any) -> None:
        """Ends a window; those after a score see it as one window with all since the epoch's begin."""
        held = self._held
        with self._at_once("on_train_batch_end"):
            self._container.on_train_batch_end(step, logs)
        if held is None:
            return
        held.last = step, logs
        bounds = (one.steps_to_boundary for one in self._container.callbacks if hasattr(one, "steps_to_boundary"))
        if self._is_asked_to_stop() and not held.scores.done():
            self._stop(held)
        elif held.scores.done() or any(bound(step) == 1 for bound in bounds):
            self.settle()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Ends an epoch, or lets its callbacks wait."""
        if self._held is not None:
            self._held.logs = logs
        with self._at_once("on_epoch_end"):
            self._container.on_epoch_end(epoch, logs)

    def settle(self) -> None:
        """Waits for the score of the epoch before, if there is one to come, and calls the callbacks of its end.

        Raises:
            EpochNotNeeded: if they end training. The model has its state from that time.
            EpochRepeated: if they change what the next epoch depends on.
        """
        held, self._held = self._held, None
        if held is None:
            return
        while not wait([held.scores], _SECONDS_BETWEEN_ASKING).done:
            if self._is_asked_to_stop():
                self._stop(held)
        logs = {**held.logs, **held.scores.result()}
        left_out, now = self._engine.left_out.of_epoch, self.state()
        self._put_back(held.state)
        self._engine.left_out.begin_epoch(held.left_out)
        with self._only("on_epoch_end", live=False):
            self._container.on_epoch_end(held.epoch, logs)
        if self._engine.model.stop_training:
            raise EpochNotNeeded(logs)
        after = {id(one): values for one, values in self.state()}
        pairs = ((values, after.get(id(one), [])) for one, values in held.state)
        if any([one.tobytes() for one in then] != [one.tobytes() for one in later] for then, later in pairs):
            self._save()
            raise EpochRepeated
        self._put_back(now)
        self._engine.left_out.begin_epoch(left_out)
        if held.first is not None and held.last is not None:
            with self._only("on_train_batch_begin", live=False):
                self._container.on_train_batch_begin(held.first)
            with self._only("on_train_batch_end", live=False):
                self._container.on_train_batch_end(*held.last)

    def _stop(self, held: _Held) -> None:
        """Stops as during an evaluation: with a checkpoint from before it."""
        self._put_back(held.state)
        self._engine.left_out.begin_epoch(held.left_out)
        self._source.is_ahead = True
        self._container.on_test_begin()
        self._container.on_test_batch_end(0)

    def _at_once(self, hook: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._held is None else self._only(hook, live=True)

    @contextlib.contextmanager
    def _only(self, hook: str, *, live: bool) -> Iterator[None]:
        """Within the block, the container has only the callbacks that call a hook at once, or only the others."""
        every = self._container.callbacks
        self._container.callbacks = [one for one in every if (hook in getattr(one, _LIVE, ())) == live]
        try:
            yield
        finally:
            self._container.callbacks = every
