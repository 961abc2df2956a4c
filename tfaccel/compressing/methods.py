"""The compression methods, how they are named, and how those that train fine-tune a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tfaccel.errors import CompressionError
from tfaccel.known_names import did_you_mean

FLOAT32 = "float32"
BLOCKS = "weight_int4_blocks"
# Joins a training method and a post-training one, such as "prune+int8": the pruned model, quantized.
AND = "+"


def option(default: Any, text: str, *, flag: str = "") -> Any:
    """A field of a dataclass of options that a flag of `tfaccel compress` sets."""
    return field(default=default, metadata={"help": text, "flag": flag})


@dataclass(frozen=True)
class Training:
    """How a method fine-tunes.

    Attributes:
        doing: what is said while it trains.
        rate_part: fraction of the workload's peak learning rate to fine-tune with.
        epochs: passes over the training data, if nothing else is asked.
        stages: the methods that train one after the other, for a combination.
    """

    doing: str
    rate_part: float
    epochs: int = 4
    stages: tuple[str, ...] = ()


TRAINING = {
    "qat": Training("quantization-aware training", 0.1),
    "prune": Training("pruning", 0.5, epochs=12),
    "prune_2_4": Training("pruning 2 of 4", 0.3),
    "prune_block": Training("pruning blocks", 0.5, epochs=12),
    "cluster": Training("clustering", 0.05),
    "pqat": Training("quantization-aware training, zeros kept", 0.1, stages=("prune", "pqat")),
    "cqat": Training("quantization-aware training, clusters kept", 0.05, stages=("cluster", "cqat")),
}


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
        return self.epochs or TRAINING[stage].epochs


@dataclass(frozen=True)
class Method:
    """One way to make a model smaller.

    Attributes:
        name: the method's name.
        kind: "post_training" (by LiteRT's converter), "weight_only" (by LiteRT's quantizer), "mixed" (int8 with the
            costliest layers in float), "keras" (the model stays in Keras) or "trained" (in TFMOT's child process).
        text: a one-line description.
        needs_rows: whether it needs representative examples.
    """

    name: str
    kind: str
    text: str
    needs_rows: bool = False


METHODS = {
    method.name: method
    for method in (
        Method("float16", "post_training", "weights in float16"),
        Method("dynamic", "post_training", "weights in int8, activations quantized at run time"),
        Method("int8", "post_training", "weights and activations in int8", needs_rows=True),
        Method("int16x8", "post_training", "weights in int8, activations in int16", needs_rows=True),
        Method("weight_int8", "weight_only", "weights in int8, arithmetic in float32"),
        Method("weight_int4", "weight_only", "weights in int4, arithmetic in float32"),
        Method(BLOCKS, "weight_only", "weights in int4, in dense layers by blocks; activations quantized at run time"),
        Method("mixed", "mixed", "int8, with the most sensitive layers in float32", needs_rows=True),
        Method("keras_int8", "keras", "Keras's own quantize(int8); stays a Keras model"),
        Method("keras_int4", "keras", "Keras's own quantize(int4); stays a Keras model"),
        Method("keras_gptq", "keras", "Keras's own quantize(gptq) in 4 bits; stays a Keras model", needs_rows=True),
        Method("keras_awq", "keras", "Keras's own quantize(awq) in 4 bits; stays a Keras model", needs_rows=True),
        Method("qat", "trained", "int8 by quantization-aware training"),
        Method("prune", "trained", "most weights zero, by pruning while fine-tuning"),
        Method("prune_2_4", "trained", "two of every four weights zero (2:4 sparsity), by fine-tuning"),
        Method("prune_block", "trained", "blocks of weights zero, by fine-tuning"),
        Method("cluster", "trained", "few distinct weights, by fine-tuning"),
        Method("pqat", "trained", "pruned, then quantization-aware training that keeps zeros"),
        Method("cqat", "trained", "clustered, then quantization-aware training that keeps clusters"),
    )
}
DEFAULT_METHODS = ("float16", "dynamic", "int8", "int16x8")
# What may follow a training method after a "+".
_AFTERWARDS = tuple(name for name, method in METHODS.items() if method.kind in ("post_training", "weight_only"))
# Training methods that give a Keras model, which can still be quantized.
_GIVES_KERAS_MODEL = ("prune", "prune_2_4", "prune_block", "cluster")


def checked_methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    """The requested methods, without duplicates.

    Args:
        methods: names, or one text with commas between; "prune+int8" quantizes the pruned model.

    Example:
        >>> checked_methods("float16, int8,float16")
        ('float16', 'int8')
    """
    if not isinstance(methods, str | Sequence):
        raise CompressionError(f"`methods` must be names of methods. Received: {methods!r}.")
    names = methods.split(",") if isinstance(methods, str) else list(methods)
    found = tuple(dict.fromkeys(str(name).strip() for name in names))
    if not found or found == ("",):
        raise CompressionError(f"Name at least one method. Methods: {', '.join(METHODS)}.")
    for name in found:
        _check(name)
    return found


def get_parts(name: str) -> tuple[Method, Method | None]:
    """The method of a name, and the one after its "+", if any.

    Example:
        >>> [part.name for part in get_parts("prune+int8")]
        ['prune', 'int8']
    """
    first, _, second = name.partition(AND)
    return METHODS[first], METHODS[second] if second else None


def _check(name: str) -> None:
    first, plus, second = name.partition(AND)
    for part in (first, second) if plus else (first,):
        if part not in METHODS:
            hint = did_you_mean(part, METHODS) or f" Methods: {', '.join(METHODS)}."
            raise CompressionError(f"There is no method {part!r}.{hint}")
    if plus and (first not in _GIVES_KERAS_MODEL or second not in _AFTERWARDS):
        raise CompressionError(
            f"{first} cannot be followed by {second}. Received: {name!r}. Before the plus, give one of "
            f"{', '.join(_GIVES_KERAS_MODEL)}, after it one of {', '.join(_AFTERWARDS)}."
        )
