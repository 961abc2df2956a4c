"""Converts the findings in a train step to checks with remedies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfaccel.extras.tpu.finding import Finding
from tfaccel.hardware.doctor import Check

# A tile of a TPU core has eight rows: batches are padded to a multiple of eight.
ROWS_OF_A_TILE = 8
_SHOWN = 4


@dataclass(frozen=True)
class _Rule:
    """How to report findings of some kinds: the check's name, its status if there are any, and the remedy."""

    name: str
    kinds: tuple[str, ...]
    status: str
    meaning: str
    remedy: str


_RULES = (
    _Rule(
        "operations",
        ("operation",),
        "fail",
        "XLA cannot compile",
        "move it to train_data, which runs on the host, or use operations that XLA supports",
    ),
    _Rule(
        "host calls",
        ("host call", "eager"),
        "fail",
        "the step would wait for Python on the host",
        "take it out of the step: compute it in train_data, or log it with a metric or a callback",
    ),
    _Rule(
        "strings",
        ("string",),
        "fail",
        "TPUs do not support strings",
        "convert text to token ids in train_data, for example with keras.layers.TextVectorization in its `map`",
    ),
    _Rule(
        "ragged tensors",
        ("ragged",),
        "fail",
        "XLA does not support ragged tensors",
        "pad to a fixed length in train_data (dataset.padded_batch with padded_shapes), with a mask",
    ),
    _Rule(
        "dynamic dimensions",
        ("dynamic dimension",),
        "warn",
        "sizes that depend on values are padded to the maximum",
        "use fixed sizes: multiply by a mask instead of tf.boolean_mask, tf.where with three "
        "arguments, tf.image.non_max_suppression_padded",
    ),
    _Rule(
        "complex128",
        ("complex128",),
        "fail",
        "the TPU compiler aborts on complex128",
        "use complex64: cast with tf.complex64, and pass float32 to tf.signal and tf.dtypes",
    ),
    _Rule("float64", ("float64",), "warn", "TPUs emulate float64, slowly", "cast to float32, preferably in train_data"),
    _Rule(
        "float16",
        ("float16", "loss scale"),
        "warn",
        "TPUs compute in bfloat16, which has float32's range and needs no loss scaling",
        "drop dtype='mixed_float16' and LossScaleOptimizer; tfaccel sets mixed_bfloat16",
    ),
    _Rule(
        "custom calls",
        ("custom call",),
        "fail",
        "the TPU compiler does not implement",
        "use TensorFlow operations instead",
    ),
)

# More specific remedies for some operations.
_REMEDIES = {
    "ImageProjectiveTransformV3": "move keras.layers.RandomRotation, RandomTranslation, RandomZoom and RandomShear "
    "into train_data's `map`",
    "CropAndResize": "crop boxes in train_data, or use slices of a fixed size and tf.image.resize",
    "DenseBincount": "pass constant minlength and maxlength to tf.math.bincount, or sum tf.one_hot",
    "UniqueV2": "count with tf.one_hot or tf.math.unsorted_segment_sum over a fixed number of values",
}


def lint_checks(facts: Mapping[str, Any]) -> Iterator[Check]:
    """The checks of a traced step.

    Args:
        facts: the result of `step_probes.probe_step`.

    Example:
        >>> facts = {"findings": [], "num_operations": 700, "refusal": ""}
        >>> {check.status for check in lint_checks(facts)}
        {'ok'}
    """
    findings = [Finding(**finding) for finding in facts["findings"]]
    refusal = facts["refusal"]
    if not refusal:
        yield Check(name="train step", status="ok", detail=f"XLA compiles its {facts['num_operations']:,} operations")
    elif "could not find registered" in refusal:  # tensorflow-tpu has no XLA compiler for the host
        yield Check(name="train step", status="skip", detail=f"this TensorFlow cannot compile for the CPU: {refusal}")
    elif not any(finding.kind in ("operation", "host call", "string", "ragged") for finding in findings):
        remedy = "change the step so that all shapes depend on input shapes only, and try again"
        yield Check(name="train step", status="fail", detail=f"XLA cannot compile it: {refusal}", remedy=remedy)
    for rule in _RULES:
        own = [finding for finding in findings if finding.kind in rule.kinds]
        if own:
            yield Check(
                name=rule.name, status=rule.status, detail=f"{rule.meaning}: {_listed(own)}", remedy=_remedy(own, rule)
            )
        else:
            yield Check(
                name=rule.name, status="ok", detail="none" if rule.name != "operations" else "XLA supports all of them"
            )


def batch_checks(facts: Mapping[str, Any]) -> Iterator[Check]:
    """The checks of a workload's batches.

    Args:
        facts: the result of `step_probes.probe_batches`.

    Example:
        >>> facts = {"shapes": ["float32 64x8", "float32 29x8"], "num_seen": 23, "strings": 0, "composite": []}
        >>> [check.status for check in batch_checks(facts)]
        ['warn']
    """
    shapes = facts["shapes"]
    if facts["composite"]:
        detail = f"batches contain {', '.join(facts['composite'])}s, and XLA supports dense tensors only"
        remedy = "pad in train_data: dataset.padded_batch(...), or tensor.to_tensor(shape=...) in its `map`"
        yield Check(name="batch types", status="fail", detail=detail, remedy=remedy)
        return
    if facts["strings"]:
        remedy = "convert text to token ids in train_data, for example with keras.layers.TextVectorization in its `map`"
        yield Check(name="batch types", status="fail", detail=f"batches contain strings: {shapes[0]}", remedy=remedy)
    if len(shapes) > 1:
        shown = "; ".join(shapes[:_SHOWN]) + (" ..." if len(shapes) > _SHOWN else "")
        detail = f"{len(shapes)} shapes in {facts['num_seen']} batches, each compiled separately (minutes): {shown}"
        remedy = (
            "give all batches the same shape: dataset.batch(n, drop_remainder=True), padded_batch(padded_shapes=...)"
        )
        yield Check(name="batch shapes", status="warn", detail=detail, remedy=remedy)
    else:
        yield Check(name="batch shapes", status="ok", detail=shapes[0])


def replica_batch_check(global_batch_size: int, num_cores: int) -> Check:
    """Checks whether each core gets a whole number of tiles.

    Example:
        >>> replica_batch_check(100, 1).remedy
        'set --global_batch_size=96 or 104'
    """
    replica_batch_size, rest = divmod(global_batch_size, num_cores)
    cores = f"{num_cores} cores" if num_cores > 1 else "1 core"
    detail = f"{global_batch_size} rows on {cores}"
    unit = ROWS_OF_A_TILE * num_cores
    if not rest and replica_batch_size % ROWS_OF_A_TILE == 0:
        most = max(n for n in range(1, global_batch_size + 1) if global_batch_size % (ROWS_OF_A_TILE * n) == 0)
        return Check(name="replica batch", status="ok", detail=f"{detail}; whole tiles of 8 rows on up to {most} cores")
    below = global_batch_size // unit * unit
    choice = f"{below} or {below + unit}" if below else str(unit)
    if rest:
        detail += ": not divisible by the number of cores"
    else:
        detail += f": {replica_batch_size} each, padded to whole tiles of 8 rows"
    status = "fail" if rest else "warn"
    return Check(name="replica batch", status=status, detail=detail, remedy=f"set --global_batch_size={choice}")


def _listed(findings: Sequence[Finding]) -> str:
    more = len(findings) - _SHOWN
    return ", ".join(map(str, findings[:_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _remedy(findings: Sequence[Finding], rule: _Rule) -> str:
    special = dict.fromkeys(_REMEDIES[f.what] for f in findings if f.what in _REMEDIES)
    return "; ".join(special) or rule.remedy
