"""Parses XLA programs in text form: dynamic dimensions, custom calls and padding by tiling."""

import math
import re
from collections.abc import Callable

from tfaccel.extras.tpu.finding import Finding

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
