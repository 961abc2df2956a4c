"""The noun `TfmotOptions`: how a model is fine-tuned while it is quantized, pruned or clustered."""

from __future__ import annotations

from dataclasses import dataclass

from tfaccel.errors import CompressionError
from tfaccel.records import Record

TRAINED_METHODS = ("qat", "prune", "prune_2_4", "prune_block", "cluster", "pqat", "cqat")
_DEFAULT_EPOCHS = {"prune": 12, "prune_2_4": 4, "prune_block": 12, "qat": 4, "cluster": 4, "pqat": 4, "cqat": 4}


@dataclass(frozen=True, kw_only=True)
class TfmotOptions(Record):
    """How a model is fine-tuned.

    Args:
        epochs: passes over the training data; None for the method's default. For pqat and cqat, epochs of the
            quantization-aware stage; the pruning or clustering before it uses its own default.
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

    epochs: int | None = None
    learning_rate: float | None = None
    sparsity: float = 0.8
    block_size: tuple[int, int] = (4, 1)
    num_clusters: int = 16
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
        """Epochs of a method, or of the pruning or clustering before pqat and cqat."""
        return self.epochs or _DEFAULT_EPOCHS[stage]


def get_stages(method: str) -> tuple[str, ...]:
    """The stages of a method, in order.

    Example:
        >>> get_stages("pqat")
        ('prune', 'pqat')
    """
    return {"pqat": ("prune", "pqat"), "cqat": ("cluster", "cqat")}.get(method, (method,))
