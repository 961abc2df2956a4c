"""The private API that finds the slots which Adam keeps for a weight."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_api import variable_index


def adam_slots(optimizer: keras.optimizers.Adam, variable: Any) -> tuple[keras.Variable, keras.Variable]:
    """First and second moment of a weight's gradients."""
    index = variable_index(optimizer, variable)
    return private_part(optimizer, "_momentums")[index], private_part(optimizer, "_velocities")[index]
