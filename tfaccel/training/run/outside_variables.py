"""Variables that training steps read and that belong to no part of the model: saved and restored with a checkpoint.

A closure, a loss or a regularizer may hold such a variable, which a callback moves from epoch to epoch. Only the traced
steps know it.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.errors import RunDirError
from tfaccel.training.steps.engine import Engine

OUTSIDE = "outside/"  # begins the names of their arrays
_LARGE_BYTES = 1 << 20
_REPLICA = "/replica_"


class OutsideVariables:
    """The variables of an engine's training steps. Large ones are saved only if something has changed them.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._num_graphs = 0
        self._found: dict[str, tf.Variable] = {}
        self._as_found: dict[str, int] = {}  # checksums of large ones

    def note(self) -> None:
        """Takes note of the variables that the steps traced so far read."""
        if self._engine.num_graphs("train") != self._num_graphs:
            self._num_graphs = self._engine.num_graphs("train")
            self._add(self._engine.outside_variables())

    def arrays(self) -> dict[str, np.ndarray]:
        """Their values, by name."""
        self.note()
        values = {name: variable.numpy() for name, variable in self._found.items()}
        return {
            f"{OUTSIDE}{name}": value
            for name, value in values.items()
            if value.nbytes <= _LARGE_BYTES or zlib.crc32(value.tobytes()) != self._as_found[name]
        }

    def restore(self, arrays: dict[str, np.ndarray], batch_spec: Any) -> None:
        """Restores what `arrays` returned, once the callbacks have begun and before the first step is traced.

        Args:
            arrays: of the checkpoint.
            batch_spec: specs of a batch, for which the step is traced to find the variables.

        Raises:
            RunDirError: if the step reads other variables than that of the stopped run.
        """
        saved = {name.removeprefix(OUTSIDE): array for name, array in arrays.items() if name.startswith(OUTSIDE)}
        if not saved:
            return
        if not self._found:
            self._add(self._engine.outside_variables(batch_spec))
        bases = {_base(name) for name in self._found}
        odd = next((name for name in saved if _base(name) not in bases), None)
        for name, variable in self._found.items():
            value = saved.get(name, saved.get(_base(name)))
            if value is not None and tuple(value.shape) == tuple(variable.shape):
                variable.assign(value)
            elif value is not None:
                odd = odd or name
        if odd is not None:
            raise RunDirError(
                f"The checkpoint belongs to another script: its training step read the variable {odd!r} of shape "
                f"{tuple(saved[odd].shape)}, which is no part of the model, and this one reads none such. Create it as "
                "before, or start over in a new directory."
            )

    def _add(self, variables: list[tf.Variable]) -> None:
        known = {id(variable) for variable in self._found.values()}
        for variable in variables:
            if id(variable) in known:
                continue
            name, _, replica = variable.name.removesuffix(":0").partition(_REPLICA)
            name, number = re.sub(r"_\d+$", "", name) + (replica and _REPLICA + replica), 1  # Keras counts in a process
            while (key := f"{name}#{number}") in self._found:
                number += 1
            self._found[key] = variable
            value = variable.numpy()
            if value.nbytes > _LARGE_BYTES:
                self._as_found[key] = zlib.crc32(value.tobytes())


def _base(name: str) -> str:
    """The name of the first replica's copy of a variable."""
    name, _, number = name.partition("#")
    return f"{name.partition(_REPLICA)[0]}#{number}"
