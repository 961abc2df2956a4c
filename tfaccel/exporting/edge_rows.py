"""Rows that converted models may treat in another way: both signs, zeros, halves, extremes, NaN, odd texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfaccel.errors import ExportError

_MAX_INPUTS = 8  # of models whose inputs are tried one by one as well
_TEXTS = {"zero": b"", "positive": b"a", "negative": "\u00c4 \u4e2d".encode(), "largest": b"x" * 1000}
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class EdgeCase:
    """Rows of one kind, and what the Keras model gives for them.

    Args:
        name: of the kind and of the inputs, such as "negative values of x".
        rows: inputs: arrays by name.
        wanted: the outputs.
    """

    name: str
    rows: Arrays
    wanted: tuple[np.ndarray, ...]


def edge_cases(
    rows: Arrays, outputs: Callable[[Arrays], list[np.ndarray]], *, highest: int | None = None
) -> list[EdgeCase]:
    """The cases that the Keras model takes: it refuses numbers that are no tokens, or a division by zero.

    Args:
        rows: ordinary rows. In each case, all inputs or one of them have edge values.
        outputs: `outputs(rows)` calls the Keras model.
        highest: the size of its smallest embedding, if it has one.
    """
    found: list[EdgeCase] = []
    for name, changed in _changed(rows, highest):
        try:
            wanted = outputs(changed)
        except Exception:  # of TensorFlow, or of the user's layers
            continue
        found.append(EdgeCase(name, changed, tuple(wanted)))
    return found


def _changed(rows: Arrays, highest: int | None) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    targets = [tuple(rows), *([(name,) for name in rows] if 1 < len(rows) <= _MAX_INPUTS else [])]
    kinds = ("negative", "zero", "positive", "mixed", "largest", "smallest", *(["last"] if highest else []), "missing")
    for kind in kinds:
        for names in targets:
            changed = {name: _values(kind, array, highest) if name in names else array for name, array in rows.items()}
            if any(changed[name] is not rows[name] for name in names):
                yield f"{kind} values of {', '.join(names)}", changed


def _values(kind: str, like: np.ndarray, highest: int | None) -> np.ndarray:
    """Values of a kind in the shape of an array; the array itself for dtypes that have none."""
    random = np.random.default_rng(0).integers(1, 100, like.shape)
    dtype: Any = like.dtype
    is_integer, is_float = dtype.kind in "iu", dtype.kind == "f"
    if dtype.kind == "O":
        return np.full_like(like, _TEXTS[kind]) if kind in _TEXTS else like
    if dtype.kind == "b":
        return np.full_like(like, kind == "largest") if kind in ("zero", "largest") else like
    if not is_integer and not is_float:
        return like
    if kind == "zero":
        return np.zeros_like(like)
    if kind == "mixed":  # both signs; halves, which are rounded to even numbers
        return like if dtype.kind == "u" else (random - (50 if is_integer else 50.5)).astype(dtype)
    if kind == "largest" and is_integer:  # odd ones too, which float32 does not hold
        return (np.iinfo(dtype).max - random).astype(dtype)
    if kind == "largest":
        # Squares of sums of such numbers are finite, and they are above the largest integer of 32 bits.
        return np.full_like(like, np.finfo(dtype).max ** 0.25)
    if kind == "missing":  # NaN among numbers
        return (
            np.where(np.arange(like.size).reshape(like.shape) % 2, np.nan, random / 7).astype(dtype)
            if is_float
            else like
        )
    if kind == "smallest":
        return (np.iinfo(dtype).min + random).astype(dtype) if dtype.kind == "i" else like
    if kind == "last":
        return np.full_like(like, (highest or 1) - 1) if is_integer else like
    if kind == "negative":
        return like if dtype.kind == "u" else (-random if is_integer else -random / 7).astype(dtype)
    return (random if is_integer else random / 7).astype(dtype)


def joined(cases: list[EdgeCase]) -> dict[str, np.ndarray]:
    """The rows of all cases, one after the other."""
    return {name: np.concatenate([case.rows[name] for case in cases]) for name in cases[0].rows} if cases else {}


def first_difference(
    cases: list[EdgeCase], names: list[str], found: Arrays, compare: Callable[[Arrays, Arrays], Any]
) -> str:
    """What a file gives otherwise than the Keras model on edge values: the first case, in words; "" if nothing.

    Args:
        cases: the cases.
        names: names of the outputs.
        found: the outputs of the file for the rows of all cases.
        compare: `compare(found, wanted)` raises ExportError if outputs differ.
    """
    start = 0
    for case in cases:
        num_rows = len(next(iter(case.rows.values())))
        piece = {name: array[start : start + num_rows] for name, array in found.items()}
        try:
            compare(piece, dict(zip(names, case.wanted, strict=True)))
        except ExportError as error:
            return f"For {case.name}: {error}"
        start += num_rows
    return ""
