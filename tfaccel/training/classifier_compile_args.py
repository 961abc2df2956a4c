"""How recipes that tell classes apart compile their models."""

from __future__ import annotations

from typing import Any

from tfaccel.training.training_options import TrainingOptions


def classifier_compile_args(options: TrainingOptions, *, num_steps: int, label_smoothing: float) -> dict[str, Any]:
    """What `Model.compile` takes for a model that gives logits, with one-hot labels that the loss smooths.

    Args:
        options: optimizer, learning rate and so on.
        num_steps: of the whole run, for the learning rate's schedule.
        label_smoothing: part of the target that is spread over all classes.

    Example:
        >>> classifier_compile_args(TrainingOptions(), num_steps=100, label_smoothing=0.1)["metrics"]
        ['accuracy']
    """
    import keras

    return {
        "optimizer": options.make_optimizer(num_steps=num_steps),
        "loss": keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing),
        "metrics": ["accuracy"],
    }
