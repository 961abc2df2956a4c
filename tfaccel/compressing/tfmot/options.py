"""The nouns `TfmotOptions`, how a model is fine-tuned, and `TfmotJob`, what the process that does it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfaccel.compressing.methods import METHODS, option
from tfaccel.errors import CompressionError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class TfmotOptions:
    """How a model is fine-tuned.

    Args:
        epochs: passes over the training data, for pqat and cqat in each of both stages; None for the method's default.
        learning_rate: peak learning rate, which decays to 0; None for a fraction of the workload's own.
        sparsity: fraction of each pruned kernel that becomes zero, above 0 and below 1; always 0.5 for 2:4 pruning.
        block_size: rows and columns of the blocks of `prune_block`.
        num_clusters: number of distinct values in each clustered kernel, at least 2.
        seed: for shuffling and dropout.

    Raises:
        CompressionError: for an invalid value.

    Example:
        >>> TfmotOptions(sparsity=0.8).get_epochs("qat")
        4
    """

    epochs: int | None = option(
        None,
        "training epochs of the methods with training (default: 4, or 12 for pruning except 2:4)",
        flag="train_epochs",
    )
    learning_rate: float | None = option(
        None,
        "peak learning rate of the methods with training (default: a fraction of the workload's)",
        flag="train_learning_rate",
    )
    sparsity: float = option(0.8, "fraction of the weights that pruning sets to zero (default: 0.8)")
    block_size: tuple[int, int] = (4, 1)
    num_clusters: int = option(16, "number of distinct values per kernel after clustering (default: 16)")
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_size", tuple(self.block_size))
        if self.epochs is not None and (type(self.epochs) is not int or self.epochs < 1):
            raise CompressionError(f"`epochs` must be an integer of at least 1. Received: epochs={self.epochs!r}.")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise CompressionError(f"`learning_rate` must be a number above 0. Received: {self.learning_rate!r}.")
        if not isinstance(self.sparsity, (int, float)) or not 0 < self.sparsity < 1:
            raise CompressionError(f"`sparsity` must be above 0 and below 1. Received: sparsity={self.sparsity!r}.")
        if len(self.block_size) != 2 or any(type(size) is not int or size < 1 for size in self.block_size):
            raise CompressionError(
                f"`block_size` must be two integers of at least 1: rows, columns. Received: {self.block_size!r}."
            )
        if type(self.num_clusters) is not int or self.num_clusters < 2:
            raise CompressionError(
                f"`num_clusters` must be an integer of at least 2. Received: num_clusters={self.num_clusters!r}."
            )
        if type(self.seed) is not int or self.seed < 0:
            raise CompressionError(f"`seed` must be an integer of at least 0. Received: seed={self.seed!r}.")

    def get_epochs(self, stage: str) -> int:
        """Epochs of a method, or of one stage of pqat and cqat."""
        return self.epochs or METHODS[stage].epochs


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """One stage of training.

    Args:
        losses: for each output the loss as `saved_loss` gives it, or None.
        loss_weights: one for each output.
        optimizer: class name and config of the Keras 3 optimizer.
        learning_rate: the peak; it decays to 0 over all steps.
        steps_per_epoch, epochs: the length.
        num_sample_weights: arrays of sample weights in each batch.
    """

    losses: Sequence[Any]
    loss_weights: Sequence[float]
    optimizer: Mapping[str, Any]
    learning_rate: float
    steps_per_epoch: int
    epochs: int
    num_sample_weights: int

    @property
    def num_steps(self) -> int:
        """Total number of steps."""
        return self.steps_per_epoch * self.epochs


@dataclass(frozen=True, kw_only=True)
class TfmotJob:
    """What TFMOT's process is given before the batches.

    Args:
        model: the serialized model; see `FlatModel`.
        weights: its weights by path.
        inputs, outputs: a batch, and the model's outputs for it.
        stages: how to train, by method, in order.
        options: further ones of the methods.
        sys_path, modules: where the classes of layers and losses are found.
        input_names, output_names: of the LiteRT file's signature, in the order of the model.
    """

    model: Mapping[str, Any]
    weights: Mapping[str, Sequence[np.ndarray]]
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    stages: Mapping[str, TrainingStage]
    options: TfmotOptions
    sys_path: Sequence[str]
    modules: Sequence[str]
    input_names: Sequence[str]
    output_names: Sequence[str]
