"""The network of both tabular recipes: regularised hidden layers, with a linear path beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfaccel.data.table_encoding import TableEncoding
from tfaccel.training.training_options import TrainingOptions

if TYPE_CHECKING:
    import keras

WIDTH, NUM_LAYERS = 64, 2
LEARNING_RATE_PART = 0.3  # of what suits the optimizer on images


@dataclass(frozen=True, kw_only=True)
class TabularNetwork:
    """How large the network is, and how it is regularised.

    Args:
        num_outputs: numbers that come out for each row.
        width: of each hidden layer.
        num_layers: hidden layers.
        dropout: part of the hidden values that is left out in each step, from 0 to below 1.
        remat: calculate the inside of each hidden layer again in the backward pass.

    Example:
        >>> TabularNetwork(num_outputs=2).width
        64
    """

    num_outputs: int
    width: int = WIDTH
    num_layers: int = NUM_LAYERS
    dropout: float = 0.0
    remat: bool = False

    def build(self, encoding: TableEncoding) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor]:
        """The model's inputs, raw numbers (NaN where one is missing) and numbers of categories, and its outputs.

        Outputs stay float32 under mixed precision: 16 bits are too few for what the loss is made of.
        """
        import keras
        from keras import layers

        from tfaccel.data.table_layers import table_inputs
        from tfaccel.training.rematerialize import rematerialize

        inputs, features = table_inputs(encoding)
        x: Any = features
        for number in range(self.num_layers):
            dense = layers.Dense(self.width, kernel_initializer="he_normal")
            parts = [keras.Input(x.shape[1:]), dense, layers.Activation("silu")]
            hidden = keras.Sequential(parts, name=f"hidden_{number}")
            x = layers.Dropout(self.dropout)((rematerialize(hidden) if self.remat else hidden)(x))
        deep = layers.Dense(self.num_outputs, dtype="float32", name="deep")(x)
        straight = {"kernel_initializer": "zeros", "use_bias": False, "name": "wide"}
        wide = layers.Dense(self.num_outputs, dtype="float32", **straight)(features)
        return inputs, layers.Add(dtype="float32", name="logits")([deep, wide])


def for_small_tables(options: TrainingOptions, *, num_steps: int, decay_per_run: float) -> TrainingOptions:
    """The options with a lower learning rate and far more weight decay than images need, unless they were given.

    Args:
        options: what was asked for.
        num_steps: optimizer steps of the whole run.
        decay_per_run: learning rate, weight decay and number of steps multiplied.

    Example:
        >>> for_small_tables(TrainingOptions(learning_rate=0.01), num_steps=100, decay_per_run=7.5).weight_decay
        7.5
    """
    rate, decay = options.learning_rate, options.weight_decay
    rate = LEARNING_RATE_PART * options.peak_learning_rate if rate is None else rate
    decay = decay_per_run / (num_steps * rate) if decay is None else decay
    return replace(options, learning_rate=rate, weight_decay=decay)
