"""The axes of the parity cases, their values, and which values are incompatible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tfaccel.parity.case import ParityCase, Placement
from tfaccel.parity.covering import covering_cases

# The placements of the test suite.
PLACEMENTS = (Placement("mirrored", 2), Placement("mirrored", 3), Placement("multi_worker", 2))

# Models with one label per row, or one per token if the case uses masks.
ROW_MODELS = ("embedding_rows", "embedding_host")
TOKEN_MODELS = ("lstm", "attention", "embedding", "embedding_summed", *ROW_MODELS)

AXES: dict[str, tuple[Any, ...]] = {
    "model": (
        "dense",
        "penalties",
        "batch_norm",
        "batch_norm_by_replica",
        "dropout",
        *TOKEN_MODELS,
        "stateful_lstm",
        "two_outputs",
        "own_train_step",
        "gan",
    ),
    "optimizer": ("sgd", "adam", "adamw", "adagrad", "lamb", "lars", "ema"),
    "clipping": ("none", "clipvalue", "clipnorm", "global_clipnorm"),
    "accumulation": (1, 4),
    "dtype_policy": ("float32", "mixed_bfloat16", "mixed_float16"),
    "xla": (False, True),
    "last_batch": ("even", "short", "empty"),
    "weighting": ("none", "sample_weights", "class_weights", "masks"),
    "source": ("numpy", "tf_data", "py_dataset"),
    "exact_kernels": (False, True),
}

# Further properties to check, by the functions of these names in `checks`.
CHECK_NAMES = (
    "accumulating_4_batches_is_one_step_on_all_of_them",
    "an_overflow_on_the_last_replica_skips_the_step_everywhere",
    "dropout_masks_differ_between_replicas_and_are_the_same_in_every_run",
)

# Axes whose later values take longer: XLA compiles, low precision needs a second reference, and each replica and a
# smaller last batch need another trace.
CHEAP_FIRST = ("dtype_policy", "xla", "accumulation", "last_batch", "placement")


def excluded(a: tuple[str, Any], b: tuple[str, Any]) -> str | None:
    """Why two values, each given as (axis, value), are incompatible; None if they are compatible.

    Example:

    >>> excluded(("weighting", "masks"), ("model", "dense"))
    'only token models propagate a mask'
    """
    pair = dict([a, b])
    model, weighting, last_batch = pair.get("model"), pair.get("weighting"), pair.get("last_batch")
    if model == "stateful_lstm" and last_batch not in (None, "even"):
        return "a stateful layer keeps one state per row, so Keras needs full batches"
    if model == "embedding_host" and pair.get("xla"):
        return "XLA cannot look up rows in another memory than that of its device"
    if model in ROW_MODELS:
        if pair.get("optimizer", "adagrad") != "adagrad":
            return "updates of rows are exact for optimizers that leave rows without a gradient as they are"
        if pair.get("clipping") == "global_clipnorm" or pair.get("accumulation", 1) > 1:
            return "updates of rows are refused with global_clipnorm and in Keras's accumulation"
    if model is None or weighting is None:
        return None
    if weighting == "masks" and model not in TOKEN_MODELS:
        return "only token models propagate a mask"
    if weighting == "class_weights" and model == "two_outputs":
        return "Keras supports class weights for models with one output only"
    if model == "gan" and weighting != "none":
        return "a GAN's losses ignore the weights passed to `fit`"
    return None


def get_axes(placements: Sequence[Placement]) -> dict[str, tuple[Any, ...]]:
    """All axes, including the placement."""
    return {"placement": tuple(placements), **AXES}


def full_product(placements: Sequence[Placement]) -> Iterator[ParityCase]:
    """Every valid case; cases that share a plain Keras reference are consecutive."""
    axes = get_axes(placements)
    names = sorted(axes, key=lambda name: name in ("placement", "xla"))

    def extended(chosen: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
        for value in axes[name]:
            if not any(excluded((name, value), other) for other in chosen.items()):
                yield {**chosen, name: value}

    def completed(chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if len(chosen) == len(names):
            yield chosen
            return
        for more in extended(chosen, names[len(chosen)]):
            yield from completed(more)

    return (ParityCase(**chosen) for chosen in completed({}))


def covering_set(placements: Sequence[Placement], *, num_axes: int = 2, with_twins: bool = True) -> list[ParityCase]:
    """A covering array: every valid pair (or triple, with `num_axes=3`) of values of different axes occurs in a case.

    Each low-precision case is followed by its twin, the same case in float32, unless `with_twins` is False: rounding
    could hide an error that float32 reveals.
    """
    chosen = covering_cases(get_axes(placements), excluded, num_axes=num_axes, cheap_first=CHEAP_FIRST)
    cases = [ParityCase(**values) for values in chosen]
    return list(dict.fromkeys(twin for case in cases for twin in (case, case.in_float32()))) if with_twins else cases
