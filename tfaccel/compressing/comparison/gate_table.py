"""The cells of the table that `compress` shows."""

from __future__ import annotations

import math

from tfaccel.compressing.comparison.gate import CompressResult
from tfaccel.compressing.comparison.variant_result import VariantResult
from tfaccel.compressing.litert.layer_cost import LayerCost

# "METRIC" stands for the metric's name.
HEADINGS = (
    "variant",
    "METRIC",
    "change",
    "size",
    "of\nfloat",
    "zipped",
    "threads:\np50 / p95",
    "of\nfloat",
    "memory",
    "in float",
    "agree-\nment",
    "result",
)


def cells(found: CompressResult, result: VariantResult) -> list[str]:
    """The cells of one variant's row, in the order of the headings."""
    if result.failure:
        return [result.variant.name, *[""] * (len(HEADINGS) - 2), found.verdict(result)]
    is_float = found.is_float(result)
    change = found.value(result) - found.value(found.results[0])
    left = result.float_operations
    return [
        result.variant.name,
        f"{found.value(result):.4f}",
        "" if is_float else signed(change) + _interval_text(found, result),
        size_text(result.size_bytes),
        f"{found.size_ratio(result):.2f}",
        size_text(result.zipped_bytes),
        "\n".join(
            f"{one.num_threads}: {time_text(one.p50_seconds)} / {time_text(one.p95_seconds)}"
            for one in result.latencies
        ),
        f"{found.latency_ratio(result):.2f}",
        "" if result.peak_memory_bytes is None else size_text(result.peak_memory_bytes),
        "" if left is None else f"{sum(left.values())} of {result.num_operations}",
        "" if math.isnan(result.agreement) else f"{result.agreement:.4f}",
        found.verdict(result),
    ]


def get_notes(found: CompressResult, result: VariantResult) -> list[str]:
    """Notes on a variant: how it was made, and which operations stay in float."""
    lines = [f"{result.variant.name}: {note}." for note in result.variant.notes]
    left = result.float_operations
    if left and not found.is_float(result):
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
        lines.append(f"{result.variant.name}: in float are {kinds}.")
    return lines


def sensitivity_cells(cost: LayerCost) -> list[str]:
    """The cells of one layer's row: its path, metric drop, output error and operations."""
    operations = ", ".join(f"{count} {name}" for name, count in sorted(cost.operations.items()))
    return [cost.layer, signed(cost.drop), f"{cost.output_error:.1%}", operations]


def _interval_text(found: CompressResult, result: VariantResult) -> str:
    """The interval of the change, on a line of its own; "" if unknown."""
    interval = result.drop_interval
    if interval is None:
        return ""
    bounds = (interval.low, interval.high) if found.lower_is_better else (-interval.high, -interval.low)
    return "\n" + " to ".join(signed(bound) for bound in bounds)


def signed(change: float) -> str:
    """A change with its sign; without a sign if it rounds to 0.

    Example:
        >>> signed(-0.01), signed(0.25), signed(-1e-9)
        ('-0.0100', '+0.2500', '0.0000')
    """
    text = f"{change:+.4f}"
    return text[1:] if float(text) == 0 else text


def size_text(num_bytes: int) -> str:
    """A human-readable number of bytes.

    Example:
        >>> size_text(84_512), size_text(12_345_678), size_text(512)
        ('84.5 kB', '12.35 MB', '512 B')
    """
    if num_bytes < 1000:
        return f"{num_bytes} B"
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.2f} MB"


def time_text(seconds: float) -> str:
    """A human-readable time.

    Example:
        >>> time_text(4.31e-5), time_text(0.0123)
        ('43 us', '12.30 ms')
    """
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
