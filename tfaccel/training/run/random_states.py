"""The states of Python's and NumPy's global random numbers, as a checkpoint holds them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

_NUMPY = "MT19937"  # the only kind that NumPy's global generator has, unless a script replaces it


def random_states() -> dict[str, np.ndarray]:
    """The states of `random` and `numpy.random`, as arrays.

    Example:
        >>> before = random_states()
        >>> first = random.random(), np.random.rand()
        >>> set_random_states(before)
        >>> (random.random(), np.random.rand()) == first
        True
    """
    _, words, gauss = random.getstate()
    found: dict[str, np.ndarray] = {
        "python": np.array(words, np.uint32),
        "python_gauss": np.array([gauss is not None, gauss or 0.0], np.float64),
    }
    state: Any = np.random.get_state(legacy=True)
    kind, keys, position, has_gauss, cached = state
    if kind == _NUMPY:
        found["numpy"] = np.array(keys, np.uint32)
        found["numpy_gauss"] = np.array([position, has_gauss, cached], np.float64)
    return found


def set_random_states(states: dict[str, np.ndarray]) -> None:
    """Sets what `random_states` returned."""
    has_next, following = states["python_gauss"]
    random.setstate((3, tuple(int(word) for word in states["python"]), float(following) if has_next else None))
    before: Any = np.random.get_state(legacy=True)
    if "numpy" in states and before[0] == _NUMPY:
        position, has_gauss, cached = states["numpy_gauss"]
        np.random.set_state((_NUMPY, states["numpy"], int(position), int(has_gauss), float(cached)))
