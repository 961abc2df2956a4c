"""Parts of a train step that a TPU cannot run, or runs badly, in its graph and its XLA program, with remedies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfaccel.hardware.doctor import Check
from tfaccel.records import Record

# They call Python or print: the device would have to stop and wait for the host.
HOST_CALLS = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "Print", "PrintV2", "StringFormat", "InfeedDequeueTuple")
# String operations that neither their name nor a dtype reveals.
_STRING_OPERATIONS = ("AsString", "ReduceJoin", "Substr", "RegexReplace", "StaticRegexReplace", "UnicodeTranscode")
# XLA drops assertions and their messages; the others do no work.
_NO_WORK = ("Assert", "Const", "NoOp", "Placeholder", "_Arg", "_Retval")
_NUMBER_FORMATS = {"float64": "float64", "complex128": "complex128", "half": "float16", "float16": "float16"}


KINDS = (
    "operation",
    "host call",
    "string",
    "ragged",
    "dynamic dimension",
    "custom call",
    "complex128",
    "float64",
    "float16",
    "loss scale",
    "eager",
)


@dataclass(frozen=True)
class Finding(Record):
    """One problem in a train step.

    Args:
        kind: one of `KINDS`.
        what: the operation, dtype or class, such as "CropAndResize".
        where: its layer, or its part of the step, such as "layer 'crop'".

    Example:
        >>> str(Finding("operation", "CropAndResize", "layer 'crop'"))
        "CropAndResize in layer 'crop'"
    """

    kind: str
    what: str
    where: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}. Received: kind={self.kind!r}.")

    def __str__(self) -> str:
        return f"{self.what} in {self.where}"


@dataclass(frozen=True)
class Node:
    """One operation of a graph: its name ("model/dense/MatMul"), its type ("MatMul") and its dtypes."""

    name: str
    operation: str
    dtypes: frozenset[str] = frozenset()


def find_in_nodes(
    nodes: Sequence[Node], get_place: Callable[[str], str], *, compilable: Collection[str] | None = None
) -> list[Finding]:
    """Findings of the kinds "operation", "host call", "string", "ragged" and the dtypes, each place once.

    Args:
        nodes: the operations of the step.
        get_place: returns the place of an operation, given its name.
        compilable: the operations that XLA can compile; None if XLA is known to compile them all.

    Example:
        >>> node = Node("model/crop/CropAndResize", "CropAndResize")
        >>> [str(f) for f in find_in_nodes([node], lambda name: name.split("/")[1], compilable={"MatMul"})]
        ['CropAndResize in crop']
    """
    found = (finding for node in nodes for finding in _get_findings(node, get_place(node.name), compilable))
    return list(dict.fromkeys(found))


def _get_findings(node: Node, place: str, compilable: Collection[str] | None) -> Iterator[Finding]:
    operation = node.operation
    if operation in _NO_WORK:
        return
    if operation in HOST_CALLS:
        yield Finding("host call", operation, place)
    elif operation.startswith("Ragged"):
        yield Finding("ragged", operation, place)
    elif "string" in node.dtypes or operation.startswith("String") or operation in _STRING_OPERATIONS:
        yield Finding("string", operation, place)
    elif compilable is not None and operation not in compilable:
        yield Finding("operation", operation, place)
    for dtype in sorted(node.dtypes & _NUMBER_FORMATS.keys()):
        if dtype == "float64" and "complex128" in node.dtypes:
            continue  # its parts
        yield Finding(_NUMBER_FORMATS[dtype], operation, place)


def place_finder(layer_names: Collection[str]) -> Callable[[str], str]:
    """Returns a function that locates an operation: its layer among these, otherwise its part of the step.

    Keras prefixes a layer's operations with its name, plus a suffix such as "_1"; the innermost layer counts.

    Example:
        >>> place = place_finder(["crop", "classifier"])
        >>> place("gradient_tape/classifier_1/crop_1/MatMul"), place("compile_loss/mse/Mean"), place("Mul")
        ("layer 'crop'", 'compile_loss/mse', 'the train step itself')
    """
    names = set(layer_names)

    def place(operation_name: str) -> str:
        *scopes, _ = operation_name.removeprefix("gradient_tape/").split("/")
        for scope in reversed(scopes):
            name = scope if scope in names else re.sub(r"_\d+$", "", scope)
            if name in names:
                return f"layer {name!r}"
        return "/".join(scopes[:2]) or "the train step itself"

    return place


# The TPU compiler implements these; TensorFlow's linear algebra calls them.
KNOWN_CUSTOM_CALLS = ("Qr", "ProductOfElementaryHouseholderReflectors", "Eigh", "TopK", "ApproxTopK", "PartialReduce")

_DYNAMIC = re.compile(r"= \(?\w+\[(?:[\d, ]|<=)*<=")
_CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
_METADATA = re.compile(r'op_(type|name)="([^"]*)"')
# bf16[64,8,8,32]{0,3,2,1:T(8,128)(2,1)}
_TILED_SHAPE = re.compile(r"\b(pred|[a-z]+?(\d+)\w*)\[([\d,]*)\]\{([\d,]*):T\(([\d,]+)\)")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = (.*?) (?:\w|-)+\(")
_NO_BUFFER = re.compile(r" (?:bitcast|get-tuple-element|tuple|parameter|constant|copy-done|copy-start)\(")


def find_in_program(text: str, get_place: Callable[[str], str]) -> list[Finding]:
    """Findings of the kinds "dynamic dimension" and "custom call" in an XLA program, each place once.

    Args:
        text: the program from `experimental_get_compiler_ir(...)(stage="hlo")`.
        get_place: returns the place of a TensorFlow operation, given its name.

    Example:
        >>> line = '%w = s64[<=8,1] set-dimension-size(), metadata={op_type="Where" op_name="model/mask/Where"}'
        >>> [str(finding) for finding in find_in_program(line, lambda name: name.split("/")[1])]
        ['Where in mask']
    """
    found: dict[Finding, None] = {}
    dynamic_places: set[str] = set()
    for line in text.splitlines():
        metadata = dict(_METADATA.findall(line))
        operation, place = metadata.get("type", "an operation"), get_place(metadata.get("name", ""))
        # Dynamic dimensions propagate; only their origin is reported.
        if _DYNAMIC.search(line) and "set-dimension-size(" in line and place not in dynamic_places:
            dynamic_places.add(place)
            found[Finding("dynamic dimension", operation, place)] = None
        for target in _CUSTOM_CALL.findall(line):
            if target not in KNOWN_CUSTOM_CALLS:
                found[Finding("custom call", target, place)] = None
    return list(found)


def padding_waste(text: str) -> float:
    """The fraction of the bytes written by a compiled program that is padding, from 0 to below 1.

    A TPU stores arrays in tiles, usually of 8x128 numbers; other dimensions are padded to a multiple.

    Args:
        text: the compiled program; its shapes have layouts and tiles.

    Example:
        >>> padding_waste("ENTRY %main () -> f32[] {\\n  %a = f32[8,32]{1,0:T(8,128)} add()\\n}")
        0.75
    """
    wanted = stored = 0
    for line in text[text.find("ENTRY ") :].splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction and not _NO_BUFFER.search(line):
            for dtype, bits, shape, layout, tile in _TILED_SHAPE.findall(instruction[1]):
                num_bytes = 1 if dtype == "pred" else max(1, int(bits) // 8)
                sizes = _numbers(shape)
                wanted += num_bytes * math.prod(sizes)
                stored += num_bytes * math.prod(_filled_up(sizes, _numbers(layout), _numbers(tile)))
    return 1 - wanted / stored if stored else 0.0


def _filled_up(sizes: list[int], minor_to_major: list[int], tile: list[int]) -> list[int]:
    """The sizes in storage order, the last ones rounded up to whole tiles."""
    stored = [sizes[dimension] for dimension in reversed(minor_to_major)]
    num_tiled = min(len(stored), len(tile))
    untiled, tiled = stored[: len(stored) - num_tiled], stored[len(stored) - num_tiled :]
    tile_sizes = tile[len(tile) - num_tiled :] if num_tiled else []
    return untiled + [math.ceil(size / by) * by for size, by in zip(tiled, tile_sizes, strict=True)]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


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
        facts: the result of `traced_step.probe_step`.

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
        facts: the result of `traced_step.probe_batches`.

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
