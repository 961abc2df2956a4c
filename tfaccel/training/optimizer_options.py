"""The optimizer of a recipe: every optimizer of Keras by its name, with a learning rate that suits it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from tfaccel.errors import WorkloadError
from tfaccel.planning.near_name import near_name

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("tfaccel")

# Name -> Keras's class and the peak learning rate, found by training on the digits for 12 epochs in batches of 64: all
# but Ftrl then took at most 2 of the 360 test images for something else.
_OPTIMIZERS: dict[str, tuple[str, float]] = {
    "adadelta": ("Adadelta", 3.0),
    "adafactor": ("Adafactor", 3e-2),
    "adagrad": ("Adagrad", 0.3),
    "adam": ("Adam", 1e-2),
    "adamax": ("Adamax", 1e-2),
    "adamw": ("AdamW", 1e-2),
    "ftrl": ("Ftrl", 0.3),
    "lamb": ("Lamb", 1e-2),
    "lion": ("Lion", 2e-3),
    "muon": ("Muon", 6e-3),
    "nadam": ("Nadam", 1e-2),
    "rmsprop": ("RMSprop", 3e-3),
    "schedulefreeadamw": ("ScheduleFreeAdamW", 1e-2),
    "sgd": ("SGD", 0.1),
}
OPTIMIZER_NAMES = tuple(_OPTIMIZERS)

# Keras multiplies weight decay by the learning rate. If that stayed at its peak, all steps of a run together would take
# away this part of a weight; over a rise and a cosine's fall it is half of it.
_DECAY_PER_RUN = 0.5
_NO_DECAY = ("bias", "gamma", "beta")
_EMA_MOMENTUM = 0.98


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Which optimizer of Keras, and how it is set.

    Arguments:
        optimizer: its name in Keras, in any case: "adamw", "SGD" (here with Nesterov momentum), "Lamb" ...; see
            `OPTIMIZER_NAMES`.
        learning_rate: the highest learning rate; None for one that suits the optimizer.
        weight_decay: as in Keras, multiplied by the learning rate at each step; biases and the scales and offsets of
            normalisations are left out. None for so much that a weight without gradient loses a quarter in a run.
        clipnorm: the largest norm of each weight's gradient; None for no clipping.
        global_clipnorm: the largest norm of all gradients together; None for no clipping.
        ema: keep a moving average of the weights and end with it.

    Raises:
        WorkloadError: for an unknown optimizer (with the nearest name), or values that Keras cannot use.

    Example:
        >>> OptimizerOptions(optimizer="sgd").peak_learning_rate
        0.1
    """

    optimizer: str = "adamw"
    learning_rate: float | None = None
    weight_decay: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None
    ema: bool = False

    def __post_init__(self) -> None:
        name = str(self.optimizer).lower()
        if name not in _OPTIMIZERS:
            hint = near_name(name, _OPTIMIZERS) or f" Optimizers: {', '.join(_OPTIMIZERS)}."
            raise WorkloadError(f"Keras has no optimizer {self.optimizer!r}.{hint}")
        object.__setattr__(self, "optimizer", name)
        for name in ("learning_rate", "weight_decay", "clipnorm", "global_clipnorm"):
            value, may_be_zero = getattr(self, name), name == "weight_decay"
            is_number = type(value) in (int, float) and 0 <= value < float("inf")
            if value is not None and (not is_number or (value == 0 and not may_be_zero)):
                least = "at least 0" if may_be_zero else "above 0"
                raise WorkloadError(f"`{name}` must be a number {least}, or None. Received: {name}={value!r}.")
        if self.clipnorm is not None and self.global_clipnorm is not None:
            raise WorkloadError(
                "Gradients are clipped by `clipnorm` or by `global_clipnorm`, not by both. "
                f"Received: clipnorm={self.clipnorm}, global_clipnorm={self.global_clipnorm}. Drop one of them."
            )
        if type(self.ema) is not bool:
            raise WorkloadError(f"`ema` must be true or false. Received: ema={self.ema!r}.")

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """The options in a dictionary.

        Raises:
            WorkloadError: for a name that is no option, with the nearest one.
        """
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                hint = near_name(name, known) or f" Options: {', '.join(known)}."
                raise WorkloadError(f"There is no option {name!r}.{hint}")
        return cls(**options)

    @property
    def peak_learning_rate(self) -> float:
        """The highest learning rate of the run."""
        return _OPTIMIZERS[self.optimizer][1] if self.learning_rate is None else self.learning_rate

    def make(self, learning_rate: Any, *, num_steps: int) -> keras.optimizers.Optimizer:
        """A fresh optimizer.

        Arguments:
            learning_rate: a number, or a schedule of Keras with `peak_learning_rate` at its top.
            num_steps: optimizer steps of the whole run.
        """
        import keras

        decay = self.weight_decay
        if decay is None:
            decay = _DECAY_PER_RUN / (num_steps * self.peak_learning_rate)
        arguments: dict[str, Any] = {
            "learning_rate": learning_rate,
            "weight_decay": decay,
            "clipnorm": self.clipnorm,
            "global_clipnorm": self.global_clipnorm,
            "use_ema": self.ema,
            "ema_momentum": _EMA_MOMENTUM,
        }
        if self.optimizer == "sgd":
            arguments |= {"momentum": 0.9, "nesterov": True}
        if self.optimizer == "ftrl":
            logger.warning("Ftrl forgets initial weights: it is for linear models, and hardly trains deep networks.")
        if self.optimizer == "muon":
            arguments |= {"adam_weight_decay": decay}
        optimizer = getattr(keras.optimizers, _OPTIMIZERS[self.optimizer][0])(**arguments)
        optimizer.exclude_from_weight_decay(var_names=list(_NO_DECAY))
        return optimizer
