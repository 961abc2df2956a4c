"""The compression methods, how they are named, and the fields of their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from tfaccel.errors import CompressionError
from tfaccel.known_names import did_you_mean

FLOAT32 = "float32"
BLOCKS = "weight_int4_blocks"
# Joins a training method and a post-training one, such as "prune+int8": the pruned model, quantized.
AND = "+"


def option(default: Any, text: str, *, flag: str = "") -> Any:
    """A field of a dataclass of options that a flag of `tfaccel compress` sets.

    Args:
        default: the field's default.
        text: the flag's help.
        flag: the flag's name, if it is not the field's.
    """
    return field(default=default, metadata={"help": text, "flag": flag})


@dataclass(frozen=True)
class Method:
    """One way to make a model smaller.

    Attributes:
        name: the method's name.
        kind: "post_training" (by LiteRT's converter), "weight_only" (by LiteRT's quantizer), "mixed" (int8 with the
            costliest layers in float), "keras" (the model stays in Keras) or "trained" (in TFMOT's child process).
        text: a one-line description.
        needs_rows: whether it needs representative examples.
        doing: what is said while it trains.
        epochs: passes over the training data, if nothing else is asked.
        rate_part: fraction of the workload's peak learning rate to fine-tune with.
        stages: the methods that train one after the other, for a combination.
    """

    name: str
    kind: str
    text: str
    needs_rows: bool = False
    _: KW_ONLY
    doing: str = ""
    epochs: int = 4
    rate_part: float = 0.0
    stages: tuple[str, ...] = ()


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
        Method(
            "qat",
            "trained",
            "int8 by quantization-aware training",
            doing="quantization-aware training",
            rate_part=0.1,
        ),
        Method(
            "prune",
            "trained",
            "most weights zero, by pruning while fine-tuning",
            doing="pruning",
            epochs=12,
            rate_part=0.5,
        ),
        Method(
            "prune_2_4",
            "trained",
            "two of every four weights zero (2:4 sparsity), by fine-tuning",
            doing="pruning 2 of 4",
            rate_part=0.3,
        ),
        Method(
            "prune_block",
            "trained",
            "blocks of weights zero, by fine-tuning",
            doing="pruning blocks",
            epochs=12,
            rate_part=0.5,
        ),
        Method("cluster", "trained", "few distinct weights, by fine-tuning", doing="clustering", rate_part=0.05),
        Method(
            "pqat",
            "trained",
            "pruned, then quantization-aware training that keeps zeros",
            doing="quantization-aware training, zeros kept",
            rate_part=0.1,
            stages=("prune", "pqat"),
        ),
        Method(
            "cqat",
            "trained",
            "clustered, then quantization-aware training that keeps clusters",
            doing="quantization-aware training, clusters kept",
            rate_part=0.05,
            stages=("cluster", "cqat"),
        ),
    )
}
DEFAULT_METHODS = ("float16", "dynamic", "int8", "int16x8")
TRAINED_METHODS = tuple(name for name, method in METHODS.items() if method.kind == "trained")
# What may follow a training method after a "+".
_AFTERWARDS = tuple(name for name, method in METHODS.items() if method.kind in ("post_training", "weight_only"))
# Training methods that give a Keras model, which can still be quantized.
_GIVES_KERAS_MODEL = ("prune", "prune_2_4", "prune_block", "cluster")


def checked_methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    """The requested methods, without duplicates.

    Args:
        methods: names, or one text with commas between; "prune+int8" quantizes the pruned model.

    Raises:
        CompressionError: for no method, an unknown one, or an invalid pair.

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
