"""How recipes that write one text for another compile their models."""

from __future__ import annotations

from typing import Any

from tfaccel.training.training_options import TrainingOptions


def token_compile_args(options: TrainingOptions, *, num_steps: int, label_smoothing: float) -> dict[str, Any]:
    """What `Model.compile` takes for a model that foretells tokens; padding counts in neither loss nor metric.

    Args:
        options: optimizer, learning rate and so on.
        num_steps: of the whole run, for the learning rate's schedule.
        label_smoothing: part of the target that is spread over all tokens.

    Example:
        >>> sorted(token_compile_args(TrainingOptions(), num_steps=100, label_smoothing=0.0))
        ['loss', 'optimizer', 'weighted_metrics']
    """
    import keras

    from tfaccel.models.token_loss import TokenCrossentropy

    return {
        "optimizer": options.make_optimizer(num_steps=num_steps),
        "loss": TokenCrossentropy(label_smoothing),
        "weighted_metrics": [keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")],
    }
