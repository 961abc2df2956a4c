"""The methods by which a model is made smaller, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfaccel.errors import CompressionError
from tfaccel.planning.near_name import did_you_mean

FLOAT32 = "float32"
# A method with training and one after it, such as "prune+int8": the pruned model, quantized.
AND = "+"


@dataclass(frozen=True)
class Method:
    """One way to make a model smaller.

    Attributes:
        name: how it is asked for.
        kind: "post_training" (by LiteRT's converter), "weight_only" (by LiteRT's quantizer), "mixed" (int8 with the
            costliest layers in float), "keras" (the model stays in Keras) or "trained" (in TFMOT's child process).
        text: what it does, in one line.
        needs_rows: whether it looks at examples of the training set.
    """

    name: str
    kind: str
    text: str
    needs_rows: bool = False


METHODS = {
    method.name: method
    for method in (
        Method("float16", "post_training", "weights in float16"),
        Method("dynamic", "post_training", "weights in int8, activations quantized as they come"),
        Method("int8", "post_training", "weights and activations in int8", needs_rows=True),
        Method("int16x8", "post_training", "weights in int8, activations in int16", needs_rows=True),
        Method("weight_int8", "weight_only", "weights in int8, arithmetic in float32"),
        Method("weight_int4", "weight_only", "weights in int4, arithmetic in float32"),
        Method("mixed", "mixed", "int8, with the layers that cost most of the metric in float32", needs_rows=True),
        Method("keras_int8", "keras", "Keras's own quantize(int8); stays a Keras model"),
        Method("keras_int4", "keras", "Keras's own quantize(int4); stays a Keras model"),
        Method("keras_gptq", "keras", "Keras's own quantize(gptq) in 4 bits; stays a Keras model", needs_rows=True),
        Method("qat", "trained", "int8 after training that imitates it"),
        Method("prune", "trained", "most weights zero, after training"),
        Method("prune_2_4", "trained", "two of every four weights zero, after training"),
        Method("prune_block", "trained", "blocks of weights zero, after training"),
        Method("cluster", "trained", "few different values of weights, after training"),
        Method("pqat", "trained", "pruned, then int8 after training that imitates it and keeps zeros"),
        Method("cqat", "trained", "clustered, then int8 after training that imitates it and keeps clusters"),
    )
}
DEFAULT_METHODS = ("float16", "dynamic", "int8", "int16x8")
# What may follow a trained method after a "+": the same as for the model as it is.
_AFTERWARDS = tuple(name for name, method in METHODS.items() if method.kind in ("post_training", "weight_only"))
# Methods whose outcome is a Keras model that can still be quantized.
_GIVES_KERAS_MODEL = ("prune", "prune_2_4", "prune_block", "cluster")


def checked_methods(methods: str | Sequence[str]) -> tuple[str, ...]:
    """The methods that were asked for, each once.

    Args:
        methods: names, or one text with commas between; "prune+int8" quantizes the pruned model.

    Raises:
        CompressionError: for none, an unknown one (with the nearest name), or a pair that does not go together.

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


def parts_of(name: str) -> tuple[Method, Method | None]:
    """The method of a name, and the one after its "+", if any.

    Example:
        >>> [part.name for part in parts_of("prune+int8")]
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
            f"{first} cannot be followed by {second}. Received: {name!r}. Before a plus stands one of "
            f"{', '.join(_GIVES_KERAS_MODEL)}, behind it one of {', '.join(_AFTERWARDS)}."
        )
