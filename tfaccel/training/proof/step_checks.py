"""Which steps of an engine are compared with one device's, and what is done if one differs.

Of the first epoch, the steps 1, 2, 4, 8, ... and the last one are compared, or all of them if there are at most eight;
of later epochs, one. Where several replicas can compute what differs from the rows of all of them, they do so from then
on, and the step is compared again; anything else is refused, with all state as it was before the step.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.feeds import Feed, IteratorFeed
from tfaccel.errors import CoupledRowsError, PlanError
from tfaccel.processes.launched import is_restarted, launch_date
from tfaccel.training.private.private_slots import get_every_slot
from tfaccel.training.proof.differences import unequal_copies
from tfaccel.training.proof.one_device import (
    get_num_rows,
    only_batch,
    rows_of_share,
    weights_of_each_replica,
    whole_batch,
)
from tfaccel.training.proof.proof import Proof, make_refusal, make_refusal_of_copies
from tfaccel.training.proof.step_proof import StepProof
from tfaccel.training.steps.gather_rows import LOSS_GATHERED, can_gather, get_losses, has_own_loss
from tfaccel.training.steps.global_batch import VALUES_KEPT
from tfaccel.training.steps.gradient_update import EACH_ROW_ONCE, SAME_ROWS, take_rows_as
from tfaccel.training.steps.merged_metrics import GATHERED, own_metrics
from tfaccel.training.steps.model_parts import (
    has_own_test_step,
    has_own_train_step,
    inner_optimizer,
    moved_by_gradients,
)
from tfaccel.training.steps.overrides import instance_attributes, keeps_methods
from tfaccel.training.steps.replica_state import drifting_variables, is_seed, make_whole
from tfaccel.training.steps.step_errors import numbers_of_rows, uneven_rows
from tfaccel.training.steps.step_graphs import WindowResult

if TYPE_CHECKING:
    from tfaccel.training.steps.engine import Engine

logger = logging.getLogger("tfaccel")

GATHERS_LOSS = "Every replica computes the compiled loss of %s from the rows of all replicas."
EARLIER_STEPS = (
    "This shows only now: earlier steps that were not compared may differ from one device's. Compared so far: %d."
)
_EVERY_EPOCH = 10  # the epochs that each have a step compared; after them, so many steps lie in between:
_STEPS_BETWEEN = 200
_MAX_BYTES = 1 << 30  # larger models have their first step compared alone
_MAX_SHAPES = 3  # of batches that one trace does not take, which are traced as well
_FEW_STEPS = 8  # of an epoch, which are all compared in the first one
_FIRST_STEPS = 16  # of an epoch of unknown length, from which its step is drawn
_MAX_DOUBLINGS = 20
_OF_GENERATOR = "StateVar"  # the state of a `tf.random.Generator`, which differs between replicas intentionally


class StepChecks:
    """The checks of an engine.

    Attributes:
        looks: whether checks are on.
        proofs: kind of step -> what comparing its first step with one device's has shown.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.looks = True
        self.proofs: dict[str, Proof] = {}
        self._steps: dict[str, tuple[Any, StepProof | None]] = {}  # by kind, with the function of Keras it belongs to
        self._epochs: dict[str, int] = {}
        self._steps_since: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        self._own_rows: list[tuple[keras.optimizers.Optimizer, keras.Variable]] = []  # before anything was changed
        self._undone: list[Callable[[], None]] = []  # takes back what was changed since the last proof
        self._is_plain = True  # whether all steps were equal as they are
        self._proven_before = set[str]()  # kinds that workers before a restart have compared

    def to_json(self) -> dict[str, Any] | None:
        """What comparing steps with one device's has shown, by kind of step; None if nothing was compared."""
        return {kind: asdict(proof) | {"text": str(proof)} for kind, proof in self.proofs.items()} or None

    @property
    def _launch(self) -> list[Any]:
        """What a restart shares with the workers before it."""
        return [launch_date(), self._engine.replicas.num_replicas, repr(self._engine.options)]

    def get_state(self) -> dict[str, Any] | None:
        """For `set_state`, as JSON; None if workers that are started again have to compare their first step."""
        if not self.proofs or not self._is_plain or launch_date() is None:
            return None
        proofs = {kind: asdict(proof) for kind, proof in self.proofs.items()}
        return {"launch": self._launch, "proofs": proofs, "counts": [dict(self._epochs), dict(self._steps_since)]}

    def set_state(self, state: dict[str, Any] | None) -> None:
        """Lets workers that their launch has started again compare the next step that is due, and not their first."""
        if not state or state["launch"] != self._launch or not is_restarted() or self.proofs:
            return
        self.proofs = {kind: Proof(**{**proof, "differing": ()}) for kind, proof in state["proofs"].items()}
        self._epochs, self._steps_since = map(dict, state["counts"])
        self._proven_before = set(self.proofs)

    def turned(self, on: bool) -> contextlib.AbstractContextManager[None]:
        """Within the block, all checks are on or off."""
        return instance_attributes(self, {"looks": on})

    @property
    def _are_needed(self) -> bool:
        return self.looks and self._engine.replicas.num_replicas > 1 and not self._engine.on_tpu

    def num_compared(self, kind: str) -> int:
        """How many steps of a kind have been compared so far."""
        return self.proofs[kind].num_steps if kind in self.proofs else 0

    # --- Which steps --------------------------------------------------------------------------------------------------

    def due(self, kind: str, done: int, limit: int | None) -> tuple[int, ...]:
        """The steps of an epoch that are to be compared.

        Args:
            done: the first step of the epoch that is run.
            limit: the number of its steps; None if it is not known.
        """
        if not self._are_needed:
            return ()
        if self._function(kind) is not None:  # a callback has made another one than workers before a restart had
            self._proven_before.discard(kind)
        epoch = self._epochs[kind] = self._epochs.get(kind, -1) + 1
        first = () if self._is_proven(kind) else (done,)
        since = self._steps_since.get(kind, 0)
        self._steps_since[kind] = since + (limit or _FIRST_STEPS)
        if (epoch >= _EVERY_EPOCH and since < _STEPS_BETWEEN) or self._engine.stages is not None:
            return first
        self._steps_since[kind] = 0
        if epoch:
            return (*first, int(np.random.default_rng(epoch).integers(done, max(done + 1, limit or _FIRST_STEPS))))
        if limit is not None and limit - done <= _FEW_STEPS:
            return tuple(range(done, limit))
        doubled = (done + (1 << power) - 1 for power in range(_MAX_DOUBLINGS))
        return (*(step for step in doubled if limit is None or step < limit), *(() if limit is None else (limit - 1,)))

    def _is_proven(self, kind: str) -> bool:
        known = kind in self._steps and self._steps[kind][0] is self._function(kind)
        return kind in self.proofs and (known or kind in self._proven_before)

    def _function(self, kind: str) -> Any:
        """The function of Keras that stands for the step as compiled; another one after a change of the model."""
        return getattr(self._engine.model, f"{kind}_function", None)

    def average_statistics(self) -> None:
        """Averages moving statistics over the replicas, after a look at all variables that must be equal on them.

        Raises:
            CoupledRowsError: if one is not, whatever the steps that were compared have shown. The model stays as it is.
        """
        model, replicas = self._engine.model, self._engine.replicas
        if self._are_needed and "train" in self.proofs:
            planned = set(map(id, weights_of_each_replica(model)))
            whole = [one for one in model.non_trainable_weights if "int" in one.dtype and not is_seed(one)]
            weights = [one for one in (*drifting_variables(model), *whole) if id(one) not in planned]
            others = [one for one in self._engine.outside_variables(written=True) if _OF_GENERATOR not in one.name]
            if names := unequal_copies(weights, others, replicas):
                raise CoupledRowsError(make_refusal_of_copies(names, self.proofs["train"]))
        make_whole(model, replicas)

    # --- Running them -------------------------------------------------------------------------------------------------

    def compare(self, kind: str, feed: Feed, *, loop: bool, is_due: bool = False) -> WindowResult | None:
        """Compares the next step with one device's if it is due, or none of its kind was before.

        Args:
            is_due: whether to compare the step.

        Returns:
            Its result if the step has been run; None if it is still to be run.

        Raises:
            CoupledRowsError: if it differs, whatever is computed from the rows of all replicas.
        """
        if kind in self._proven_before:  # it is this function's step that they have compared
            self._engine.get_steps(kind)
            self._steps[kind] = self._function(kind), None
            self._proven_before.discard(kind)
        if not (self._are_needed and (is_due or not self._is_proven(kind))):
            return None

        def one_step(batch: Feed, traced: Callable[[], None] | None = None) -> WindowResult:
            return self._engine.run(kind, batch, 1, loop=loop, traced=traced)

        return self._compared(kind, feed, one_step, lambda done: done.logs)

    def predict(self, feed: Feed) -> Any:
        """`Engine.predict`; the first batch of all is compared with what one device predicts.

        Raises:
            CoupledRowsError: if it differs.
        """
        engine = self._engine
        if not self._are_needed or self._is_proven("predict"):
            return engine.predict(feed)

        def one_step(batch: Feed, traced: Callable[[], None] | None = None) -> Any:
            return (engine.predict(batch, traced=traced),)

        result = self._compared("predict", feed, one_step, lambda done: done[0])
        return engine.predict(feed) if result is None else result[0]

    def _compared(
        self, kind: str, feed: Feed, one_step: Callable[..., Any], get_results: Callable[[Any], Any]
    ) -> Any | None:
        """What `one_step(feed)` returned, if the engine's step was compared; None if it has not been run."""
        self._engine.get_steps(kind)  # creates what `_function` returns
        data = whole_batch(feed, self._engine.replicas)
        step = self._step_for(kind, feed, data)
        if step is None:
            return None
        if step.failure and kind not in self.proofs:  # nothing will be shown: what may take all rows does
            step.begin(data)
            for change in self._for_rows_of_all(kind, step, data):
                change()
            self._undone.clear()
        if step.is_apart:
            self._conclude_apart(kind, step, data)
            return None
        if self._engine.replicas.num_workers > 1:
            self._check_shares(kind, step, data)
        step.begin(data)
        done = [self._run_first(kind, step, data, feed, one_step)]

        def again() -> Proof:
            done[:] = [one_step(IteratorFeed(only_batch(data, feed.spec)))]
            return step.compare(data, get_results(done[0]))

        found = step.compare(data, get_results(done[0]))
        if not step.is_too_large:
            self._conclude(kind, step, data, found, again)
            return done[0]
        step.put_back()
        self._conclude_apart(kind, self._with_fewer_rows(kind, data), data)
        return one_step(IteratorFeed(only_batch(data, feed.spec)))

    def _check_shares(self, kind: str, step: StepProof, data: Any) -> None:
        """Runs the step of one device on each replica's rows, if tensors of a batch have different numbers of rows.

        All workers do this alike, so that none waits for one whose step fails.

        Raises:
            PlanError: if it fails.
        """
        counts, num_replicas = numbers_of_rows(data), self._engine.replicas.num_replicas
        for replica in range(num_replicas if len(set(counts)) > 1 else 0):
            rows = rows_of_share(data, replica, num_replicas)
            try:
                if step.has_shapes(rows):
                    step.run_alone(rows)
            except tf.errors.InvalidArgumentError as error:
                name = f"{type(self._engine.model).__name__}.{kind}_step"
                raise PlanError(uneven_rows(name, counts, error)) from error

    def _run_first(self, kind: str, step: StepProof, data: Any, feed: Feed, one_step: Callable[..., Any]) -> Any:
        """What the engine's step returns; losses and metrics that need more rows than a replica has get all rows."""
        changes = self._for_rows_of_all(kind, step, data)
        if not changes:
            return one_step(feed, step.wait)
        is_plain = isinstance(feed, IteratorFeed) and feed.batches.augment is None
        # A step that fails while it runs has taken batches from its iterator.
        first = IteratorFeed(only_batch(data, feed.spec)) if is_plain else feed
        try:
            result = one_step(first, step.wait)
        except Exception as error:
            run = partial(one_step, feed, step.wait)
            first, result = feed, self._run_changed(kind, step, data, run, changes, error)
        if first is not feed and isinstance(feed, IteratorFeed):
            feed.drop()
        return result

    def _for_rows_of_all(self, kind: str, step: StepProof, data: Any) -> list[Callable[[], None]]:
        """What may be computed from the rows of all replicas: the user's metrics, and the user's loss."""
        model, changes = self._engine.model, list[Callable[[], None]]()
        if kind != "predict" and can_gather(data):
            metrics = [metric for metric in own_metrics(model) if metric not in GATHERED]
            changes += [partial(self._set_gathered, step, metrics, data)] * bool(metrics)
            changes += [self._set_gathers_loss] * (has_own_loss(model) and self._may_gather_loss(data))
        return changes

    def _run_changed(
        self,
        kind: str,
        step: StepProof,
        data: Any,
        run: Callable[[], Any],
        changes: list[Callable[[], None]],
        error: Exception,
    ) -> Any:
        """What a step that has failed returns after one of the changes, or all of them."""
        step.wait()
        for tried in [[change] for change in changes] + [changes] * (len(changes) > 1):
            num_undone = len(self._undone)
            step.put_back()
            for change in tried:
                change()
            self._forget_graphs(kind, step)
            step.begin(data)
            with contextlib.suppress(Exception):
                return run()
            step.wait()
            step.put_back()
            self._undo(num_undone)
            self._forget_graphs(kind, step)
        raise error from error.__cause__

    def _step_for(self, kind: str, feed: Feed, data: Any) -> StepProof | None:
        """The step to compare on a batch, traced for the first one and for other shapes; None if it is not compared."""
        function, step = self._steps.get(kind, (None, None))
        if function is not self._function(kind) or kind not in self.proofs:  # its step has raised
            self._is_plain &= self.proofs.pop(kind, None) is None
            step = None
        if step is None:
            return self._new_step(kind, data, feed.spec)
        if self.proofs[kind].failure or not step.has_rows_for_all(step.get_rows(data)):
            return None
        if any(self._engine.replicas.sum_over_workers([int(step.num_bytes > _MAX_BYTES)])):  # of slots, say
            return None
        if not step.has_shapes(step.get_rows(data)):
            if step.has_fewer_rows or self._shapes.get(kind, 0) == _MAX_SHAPES:
                return None
            self._shapes[kind] = self._shapes.get(kind, 0) + 1
            return self._new_step(kind, data, feed.spec)
        return step

    def _with_fewer_rows(self, kind: str, data: Any) -> StepProof:
        """The same step on as many rows as one replica has: those of a whole batch do not fit on one device."""
        return self._new_step(kind, data, None, every=self._engine.replicas.num_replicas)

    def _new_step(self, kind: str, data: Any, spec: Any, *, every: int = 1) -> StepProof:
        made = StepProof(self._engine, kind, data, spec, every=every)
        self._steps[kind] = self._function(kind), made
        return made

    # --- What is done if one differs ----------------------------------------------------------------------------------

    def _conclude_apart(self, kind: str, step: StepProof, data: Any) -> None:
        """`_conclude` for a step of its own, before the engine's."""

        def compared(step: StepProof) -> Proof:
            found = step.compare_apart(step.get_rows(data))
            return replace(found, num_batch_rows=get_num_rows(data)) if step.has_fewer_rows else found

        def again() -> Proof:
            step.trace_replicas()
            return compared(step)

        found = compared(step)
        if step.is_too_large and not step.has_fewer_rows:
            step = self._with_fewer_rows(kind, data)
            found = compared(step)
        self._conclude(kind, step, step.get_rows(data), found, again)

    def _conclude(self, kind: str, step: StepProof, data: Any, found: Proof, again: Callable[[], Proof]) -> None:
        """Keeps what was found; if the step differs, changes how it is computed, and compares it again."""
        first, steps = found, self._engine.get_steps(kind)
        self._own_rows = list(steps.own_rows) if kind == "train" else []
        changes = (
            self._gather_metrics,
            self._gather_loss,
            self._merge_rows,
            partial(self._merge_rows, rows=EACH_ROW_ONCE),
            self._keep_values,
            partial(self._gather_loss, by_gradients=True),  # if nothing else has helped
            lambda *given: self._keep_values(*given) and self._gather_loss(*given, by_gradients=True),
        )
        for change in changes if kind != "predict" else ():
            num_undone = len(self._undone)
            if not found.differing or not change(kind, step, data, found):
                continue
            step.put_back()
            self._forget_graphs(kind, step)
            try:
                changed = again()
            except Exception:  # what is changed may be computed in no other way
                changed = found
            if len(changed.differing) < len(found.differing) and not changed.failure:
                found = changed
                continue
            step.put_back()
            self._undo(num_undone)
            self._forget_graphs(kind, step)
        if found.differing:
            step.put_back()
            self._undo()
            self._steps.pop(kind)
            self.proofs.pop(kind, None)
            self._engine.forget_graphs()
            raise CoupledRowsError(make_refusal(self._engine, kind, data, first, step.seeded))
        known = self.proofs.get(kind)
        if known is not None and self._undone:
            logger.warning(EARLIER_STEPS, known.num_steps)
        self._is_plain = self._is_plain and not self._undone and not found.failure
        self._undone.clear()  # what was changed is proven, whatever later steps show
        if known is None:
            logger.log(logging.WARNING if found.failure else logging.INFO, "%s", found)
            self.proofs[kind] = found
        elif not found.failure:
            largest = max(known.largest, found.largest)
            self.proofs[kind] = replace(known, num_steps=known.num_steps + 1, largest=largest)

    def _undo(self, first: int = 0) -> None:
        """Takes back what was changed, from the change `first` on."""
        for undo in self._undone[first:]:
            undo()
        del self._undone[first:]

    def _forget_graphs(self, kind: str, step: StepProof) -> None:
        self._engine.forget_graphs()
        self._engine.get_steps(kind)
        self._steps[kind] = self._function(kind), step

    def _gather_metrics(self, kind: str, step: StepProof, data: Any, found: Proof) -> bool:
        """Lets metrics that differ be updated with the rows of all replicas."""
        del found
        if not can_gather(data):
            return False
        step.put_back()
        gathered = step.metrics.differing_anywhere(of_losses=self._has_own_step(kind))
        if gathered:
            self._set_gathered(step, gathered, data)
            step.begin(data)
        return bool(gathered)

    def _set_gathered(self, step: StepProof, metrics: list[keras.metrics.Metric], data: Any) -> None:
        """Lets metrics be updated with the rows of all replicas; call it with the state from before the step."""
        before = step.metrics.gather(metrics)
        self._undone += [*(partial(GATHERED.discard, one) for one in metrics), before.put_back]
        self._undone += [partial(step.begin, data), step.wait]  # from that state
        for metric in metrics:
            logger.info("Every replica updates metric %s with the rows of all replicas.", metric.name)

    def _gather_loss(self, kind: str, step: StepProof, data: Any, found: Proof, *, by_gradients: bool = False) -> bool:
        """Computes the compiled loss from the rows of all replicas, where it differs, or its gradients do."""
        del step
        differs = found.loss_differs
        if by_gradients:
            moved = moved_by_gradients(self._engine.model)
            differs = kind == "train" and any(variable.path in found.differing for variable in moved)
        if not (differs and self._may_gather_loss(data)):
            return False
        self._set_gathers_loss()
        return True

    def _may_gather_loss(self, data: Any) -> bool:
        model = self._engine.model
        return bool(get_losses(model)) and model not in LOSS_GATHERED and can_gather(data)

    def _has_own_step(self, kind: str) -> bool:
        return {"train": has_own_train_step, "test": has_own_test_step}[kind](self._engine.model)

    def _set_gathers_loss(self) -> None:
        model = self._engine.model
        LOSS_GATHERED.add(model)
        self._undone.append(partial(LOSS_GATHERED.discard, model))
        logger.info(GATHERS_LOSS, type(model).__name__)

    def _merge_rows(self, kind: str, step: StepProof, data: Any, found: Proof, rows: str = SAME_ROWS) -> bool:
        """Takes sparse gradients that differ to be of the same rows on all replicas, or to have each row once.

        A weight may differ by less than what may be rounding, where a large `epsilon` hides what its slots show.
        """
        del kind, step, data
        merged = [
            (one, variable)
            for one, variable in self._own_rows
            if any(v.path in found.differing for v in (variable, *get_every_slot(inner_optimizer(one), variable)))
        ]
        for optimizer, variable in merged:
            take_rows_as(optimizer, variable, rows)
            self._undone.append(partial(take_rows_as, optimizer, variable, None))
        return bool(merged)

    def _keep_values(self, kind: str, step: StepProof, data: Any, found: Proof) -> bool:
        """Takes the model's own code to make something else than the sum of a loss that is not reduced."""
        del kind, step, data, found
        model = self._engine.model
        if keeps_methods(model, keras.Model, "train_step", "test_step", "compute_loss"):
            return False
        changes = VALUES_KEPT.add, VALUES_KEPT.discard
        change, undo = reversed(changes) if model in VALUES_KEPT else changes
        change(model)
        self._undone.append(partial(undo, model))
        return True
