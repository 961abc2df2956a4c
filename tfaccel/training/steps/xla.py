"""Which parts of a step XLA compiles, and where it stays off although `Model.compile` asks for it.

It stays off, with a warning that says why,

* in all steps of a model that looks up rows of tables in main memory (`embeddings_on="host"`);
* in the training of several replicas, if a step sums over them in the forward pass, or has a `train_step` of its own;
* in all steps of several replicas, once one turns out to sum or gather over them (`NeedsEveryReplica`);
* in a `tf.function(jit_compile=True)` of a step of several replicas (`private_tensorflow.functions_inlined`).

It compiles the optimizer's update apart from the rest for rows of embedding tables, and for slots on the host. Models
in stages are refused if they ask for it (`stages.staged_model`). TPUs compile whole steps, whatever is asked for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import keras

from tfaccel.training.steps.batch_statistics import synchronized_layers
from tfaccel.training.steps.embeddings import tables_on_host
from tfaccel.training.steps.model_parts import has_own_train_step

logger = logging.getLogger("tfaccel")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The parts of a model's steps that XLA compiles.

    Attributes:
        steps: evaluation and prediction; of one replica, training as well.
        training: forward and backward pass of several replicas.
        update: the update that follows them.
    """

    steps: bool = False
    training: bool = False
    update: bool = False

    def after_gathering(self) -> Compiled:
        """What it compiles once a step has turned out to gather rows."""
        if self.training:
            logger.warning("XLA stays off: it cannot compile a step that gathers rows over the replicas.")
        return Compiled(update=self.update)


def compiles_steps(model: keras.Model) -> bool:
    """Whether XLA compiles any step of a model: it cannot look up rows of tables in main memory."""
    if model.jit_compile and tables_on_host(model):
        logger.warning("XLA stays off: it cannot look up rows of the tables of %r in main memory.", model.name)
        return False
    return bool(model.jit_compile)


def compiled_by_replicas(model: keras.Model, *, asked: bool, updates_rows: bool) -> Compiled:
    """What XLA compiles of the steps of several replicas, whose gradients are summed between pass and update."""
    refusal = why_not_in_training(model) if asked else None
    if refusal:
        logger.warning("XLA stays off for training: %s", refusal)
    steps = asked and not model.run_eagerly
    training = steps and not refusal
    return Compiled(steps=steps, training=training, update=training and not updates_rows)


def why_not_in_training(model: keras.Model) -> str | None:
    """Why XLA cannot be used to train on several replicas, or None."""
    synchronized = synchronized_layers(model)
    if synchronized:
        names = ", ".join(layer.name for layer in synchronized)
        return (
            f"synchronized batch normalization ({names}) sums over the replicas inside the forward pass, which XLA "
            "cannot compile. For XLA, set synchronize_batch_norm=False in the plan, or synchronized=False in the layer."
        )
    if has_own_train_step(model):
        return (
            f"{type(model).__name__} has its own train_step, which updates weights inside the step; with several "
            "replicas that sums gradients over them, which XLA cannot compile."
        )
    return None
