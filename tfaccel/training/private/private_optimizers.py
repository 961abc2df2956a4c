"""The base class of optimizers that decay weights within their update, for which Keras has no public switch."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_api import variable_index


class OwnWeightDecay(keras.optimizers.Optimizer):
    """An optimizer whose `update_step` applies `weight_decay`, in place of Keras's decay before the update."""

    def _apply_weight_decay(self, variables: Any) -> None:
        """Overrides Keras's decoupled weight decay: `update_step` decays."""

    def decays(self, variable: Any) -> bool:
        """Whether a variable is decayed: not if `exclude_from_weight_decay` excluded it."""
        return self.weight_decay is not None and bool(private_part(self, "_use_weight_decay")(variable))

    def position(self, variable: Any) -> int:
        """The position of a model's variable, or of TensorFlow's variable behind it, among those built for."""
        return variable_index(self, variable)
