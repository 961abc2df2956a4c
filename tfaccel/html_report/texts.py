"""Numbers as texts for tables and cards, with units taken from the names of fields."""

from __future__ import annotations

import math
from typing import Any

NONE = "–"
_BYTES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_SHARES = tuple(f"_{word}" for word in ("share", "fraction", "utilization"))


def get_number(value: Any) -> float | None:
    """A finite number; None for anything else that a file may hold.

    Example:
        >>> get_number(3), get_number(float("nan")), get_number(True), get_number("3"), get_number(10**400)
        (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def get_unit(name: str) -> str:
    """The unit that a field's name contains: "examples/s", "per second", "s", "bytes", "share", or "".

    Example:
        >>> get_unit("examples_per_second"), get_unit("step_seconds"), get_unit("mfu"), get_unit("accuracy")
        ('examples/s', 's', 'share', '')
    """
    if name.endswith("_per_second"):
        return "examples/s" if name == "examples_per_second" else "per second"
    if name == "seconds" or name.endswith("_seconds"):
        return "s"
    if name.endswith("_bytes"):
        return "bytes"
    return "share" if name == "mfu" or name.endswith(_SHARES) else ""


def value_text(name: str, value: Any) -> str:
    """A number with the unit that its name contains.

    Example:
        >>> value_text("peak_bytes", 3 * 2**30), value_text("accuracy", 0.98765), value_text("step_seconds", 0.0012)
        ('3.0 GiB', '0.9877', '1.2 ms')
    """
    number = get_number(value)
    if number is None:
        return NONE
    unit = get_unit(name)
    if unit == "bytes":
        return bytes_text(number)
    if unit == "s":
        return seconds_text(number)
    if unit == "share":
        return f"{100 * number:.1f} %"
    if unit:
        return f"{number:,.0f} {unit}" if abs(number) >= 100 else f"{number:.3g} {unit}"
    return plain_number(number)


def plain_number(number: float) -> str:
    """A number with four significant digits, or with thousands separators.

    Example:
        >>> plain_number(0.98765), plain_number(1234567.0), plain_number(3.2e-7), plain_number(12.0)
        ('0.9877', '1,234,567', '3.2e-07', '12')
    """
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"


def bytes_text(number: float) -> str:
    """A number of bytes with a binary prefix.

    Example:
        >>> bytes_text(1536), bytes_text(12)
        ('1.5 KiB', '12 bytes')
    """
    for unit, size in _BYTES:
        if abs(number) >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:,.0f} bytes"


def seconds_text(number: float) -> str:
    """A duration.

    Example:
        >>> seconds_text(0.00043), seconds_text(0.0123), seconds_text(15.94), seconds_text(4000)
        ('430 µs', '12.3 ms', '15.9 s', '1 h 7 min')
    """
    if abs(number) < 1e-3:
        return f"{number * 1e6:.0f} µs"
    if abs(number) < 1:
        return f"{number * 1e3:.3g} ms"
    if abs(number) < 120:
        return f"{number:.1f} s"
    minutes = round(number / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def setting_text(value: Any) -> str:
    """A setting's value, as on the command line.

    Example:
        >>> setting_text(True), setting_text(None), setting_text(["CPU:0", "CPU:1"]), setting_text(0.1)
        ('on', 'auto', 'CPU:0, CPU:1', '0.1')
    """
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def get_words(name: str) -> str:
    """A field's name in words, without its unit.

    Example:
        >>> get_words("input_wait_share"), get_words("examples_per_second"), get_words("mfu"), get_words("peak_bytes")
        ('input wait', 'examples per second', 'MFU', 'peak')
    """
    for end in ("_seconds", "_bytes", *_SHARES):
        if get_unit(name) and name.endswith(end) and name != end[1:]:
            name = name.removesuffix(end)
            break
    words = name.replace("_", " ")
    return " ".join(word.upper() if word in ("mfu", "cpu", "gpu") else word for word in words.split())
