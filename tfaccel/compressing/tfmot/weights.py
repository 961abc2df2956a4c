"""Weights by path, as arrays in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name to a `.npz` file."""
    np.savez(path, **arrays)  # type: ignore[arg-type]


def named_arrays(weights: Mapping[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    """Weights by path as arrays with names, to be saved.

    Example:
        >>> sorted(named_arrays({"dense": [np.zeros(1), np.ones(1)]}))
        ['dense:0', 'dense:1']
    """
    return {f"{path}:{number}": array for path, arrays in weights.items() for number, array in enumerate(arrays)}


def arrays_by_path(saved: Any) -> dict[str, list[np.ndarray]]:
    """The weights that `named_arrays` named."""
    found: dict[str, list[np.ndarray]] = {}
    for name in saved.files:
        found.setdefault(name.rpartition(":")[0], []).append(saved[name])
    return found
