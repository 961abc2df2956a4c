"""What an engine checks before and with the first step of each kind, so that N replicas give what one device gives."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfaccel.data.feeds import Feed
from tfaccel.data.iterator_feed import IteratorFeed
from tfaccel.errors import CoupledRowsError
from tfaccel.training.row_checks.first_step import StepProof
from tfaccel.training.row_checks.proof import Proof, refusal_of
from tfaccel.training.row_checks.row_check import check_rows
from tfaccel.training.steps.gathered_loss import can_gather, gather_loss, gathers_loss
from tfaccel.training.steps.global_batch import keep_values, keeps_values
from tfaccel.training.steps.gradient_update import take_rows_as_same
from tfaccel.training.steps.gradients import densify
from tfaccel.training.steps.model_parts import has_own_test_step, has_own_train_step
from tfaccel.training.steps.overrides import keeps_methods_of
from tfaccel.training.steps.several_replicas import SeveralReplicas
from tfaccel.training.steps.slot_dtype import FLOAT32
from tfaccel.training.steps.window_result import WindowResult

if TYPE_CHECKING:
    from tfaccel.training.steps.engine import Engine

logger = logging.getLogger("tfaccel")

GATHERS_LOSS = (
    "The compiled loss of %s couples the rows of a batch: every replica computes it from the rows of all of them."
)


class StepChecks:
    """The checks of an engine.

    Args:
        engine: the engine.

    Attributes:
        looks: whether checks are on.
        proofs: kind of step -> what comparing its first step with one device's has shown.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.looks = True
        self._rows_checked: set[str] = set()  # kinds of steps
        self.proofs: dict[str, Proof] = {}
        self._coupling: CoupledRowsError | None = None
        self._begun: tuple[str, StepProof] | None = None
        self._undone: list[Callable[[], None]] = []  # takes back what was changed since the last proof

    def to_json(self) -> dict[str, Any] | None:
        """What comparing first steps with one device's has shown, by kind of step; None if nothing was compared."""
        return {kind: asdict(proof) | {"text": str(proof)} for kind, proof in self.proofs.items()} or None

    @contextlib.contextmanager
    def turned(self, on: bool) -> Iterator[None]:
        """Within the block, all checks are on or off."""
        before, self.looks = self.looks, on
        try:
            yield
        finally:
            self.looks = before

    @property
    def _are_needed(self) -> bool:
        return self.looks and self._engine.replicas.num_replicas > 1 and not self._engine.on_tpu

    def check_rows(self, kind: str, feed: Feed) -> None:
        """Checks once per kind, on the first batch, that several replicas can give the results of one device.

        A compiled loss that couples rows is computed from the rows of all replicas from then on.

        Args:
            kind: "train", "test" or "predict".
            feed: the batches.

        Raises:
            CoupledRowsError: if they cannot.
        """
        if not self._are_needed or kind in self._rows_checked or feed.exhausted:
            return
        model, data = self._engine.model, feed.peek()
        own = has_own_train_step(model) or has_own_test_step(model)
        if own and self.is_to_be_proven(kind):  # which knows the variables outside of the model that the step moves
            self._begun = kind, self._proof_of(kind, feed, data)
        try:
            self._look_at_rows(kind, data)
        except CoupledRowsError as error:
            if not (self.is_to_be_proven(kind) and self._gather_loss(kind, data)):
                raise
            self._engine.forget_graphs()
            self._coupling = error  # unless the loss of all rows turns out to be what one device has
        finally:
            if self._begun is not None:
                self._begun[1].put_back()
        self._rows_checked.update((kind,) if own or kind == "predict" else ("train", "test"))

    def _look_at_rows(self, kind: str, data: Any) -> None:
        """Checks a few rows; a step may sum the values of a loss that is not reduced, or take their mean."""
        model, replicas = self._engine.model, self._engine.replicas
        try:
            check_rows(model, replicas, data, kind)
        except CoupledRowsError as error:
            self._engine.forget_graphs()
            keep_values(model, not keeps_values(model))
            try:
                check_rows(model, replicas, data, kind)
            except CoupledRowsError:
                keep_values(model, not keeps_values(model))
                raise error from None

    def forget_batch(self) -> None:
        """Takes note that the batch that was looked at is not used."""
        self._begun = None

    def is_to_be_proven(self, kind: str) -> bool:
        """Whether the next step of this kind is to be compared with one device's.

        Not with several workers, and not where the state of the step is not on the replicas as Keras has it.
        """
        engine, options = self._engine, self._engine.options
        places = (options.embedding_updates, options.embeddings_on, engine.optimizer_state)
        return (
            self._are_needed
            and kind not in self.proofs
            and engine.replicas.num_workers == 1
            and places == ("keras", "device", "replicated")
            and options.optimizer_slots_dtype == FLOAT32
            and engine.stages is None
            and not (options.whole_step or options.leaves_out or engine.model.run_eagerly)
        )

    def run_proven(self, kind: str, feed: Feed, *, loop: bool) -> WindowResult:
        """Runs the first step of a kind, and compares it with one device's; see `StepProof`.

        Args:
            kind: "train" or "test".
            feed: the batches.
            loop: see `Engine.run`.

        Raises:
            CoupledRowsError: if it differs, also with a loss that is computed from the rows of all replicas.
        """
        engine, data = self._engine, feed.peek()
        result, proof, found = self._compared(kind, feed, data, loop=loop)
        for change in (self._gather_loss, self._merge_rows):
            if found.differing and change(kind, data, found):
                proof.put_back()
                engine.forget_graphs()
                again = IteratorFeed(_only(data, any_rows=_takes_any_rows(feed)))
                result, proof, found = self._compared(kind, again, data, loop=loop)
        if found.differing:
            proof.put_back()
            self._undo(kind)
            raise self._coupling or CoupledRowsError(refusal_of(engine.model, found))
        self._coupling = None
        self._undone.clear()  # what was changed is proven, whatever later steps of another kind show
        logger.info("%s", found)
        self.proofs[kind] = found
        return result

    def _compared(self, kind: str, feed: Feed, data: Any, *, loop: bool) -> tuple[WindowResult, StepProof, Proof]:
        engine = self._engine
        known, self._begun = self._begun, None
        proof = known[1] if known is not None and known[0] == kind else self._proof_of(kind, feed, data)
        proof.take_state()
        result = engine.run(kind, feed, 1, loop=loop)
        return result, proof, proof.finish(result.logs)

    def _proof_of(self, kind: str, feed: Feed, data: Any) -> StepProof:
        combine = densify if self._engine.options.sum_duplicate_indices else None
        any_rows = _takes_any_rows(feed)
        return StepProof(
            self._engine.model,
            self._engine.replicas,
            data,
            kind,
            any_rows=any_rows,
            combine_slices=combine,
            traced_in=self._engine.contexts(trains=kind == "train"),
        )

    def _merge_rows(self, kind: str, data: Any, found: Proof) -> bool:
        """Takes sparse gradients that differ to be of the same rows on all replicas; False if there are none."""
        del data
        steps = self._engine.steps_of(kind)
        if kind != "train" or not isinstance(steps, SeveralReplicas):
            return False
        merged = [(one, variable) for one, variable in steps.own_rows if variable.path in found.differing]
        for optimizer, variable in merged:
            take_rows_as_same(optimizer, [variable], same=True)
            self._undone.append(partial(take_rows_as_same, optimizer, [variable], same=False))
        return bool(merged)

    def _undo(self, kind: str) -> None:
        """Takes back what was changed to make a step equal, and did not."""
        self._rows_checked.discard(kind)
        for undo in self._undone:
            undo()
        self._undone.clear()
        self._engine.forget_graphs()

    def _gather_loss(self, kind: str, data: Any, found: Proof | None = None) -> bool:
        """Computes the compiled loss from the rows of all replicas; False if that is so already, or cannot be."""
        model = self._engine.model
        if found is not None and not found.loss_differs:
            return False
        has_own = {"train": has_own_train_step, "test": has_own_test_step}.get(kind)
        if has_own is None or has_own(model) or not keeps_methods_of(model, keras.Model, "compute_loss"):
            return False
        if gathers_loss(model) or not can_gather(data):
            return False
        gather_loss(model)
        self._undone.append(partial(gather_loss, model, False))
        logger.info(GATHERS_LOSS, type(model).__name__)
        return True


def _takes_any_rows(feed: Feed) -> bool:
    """Whether steps are traced for any number of rows."""
    specs = [one for one in tf.nest.flatten(feed.spec) if isinstance(one, tf.TensorSpec) and one.shape.rank]
    return any(spec.shape[0] is None for spec in specs)


def _only(data: Any, *, any_rows: bool) -> tf.data.Dataset:
    """A dataset of a single batch, whose number of rows is not known while tracing with `any_rows`."""

    def relaxed(leaf: Any) -> Any:
        if not (any_rows and isinstance(leaf, tf.Tensor) and leaf.shape.rank):
            return leaf
        return tf.compat.v1.placeholder_with_default(leaf, [None, *leaf.shape[1:]])

    def batch(*parts: Any) -> Any:
        return keras.tree.map_structure(relaxed, parts if isinstance(data, tuple) else parts[0])

    return tf.data.Dataset.from_tensors(data).map(batch)
