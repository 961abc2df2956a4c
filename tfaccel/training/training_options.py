"""How a recipe trains: the optimizer, its learning-rate schedule, and early stopping."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from tfaccel.errors import WorkloadError
from tfaccel.known_names import check_names, did_you_mean
from tfaccel.short_repr import noun

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("tfaccel")

# Name -> Keras's class (`Lars`: tfaccel's) and the peak learning rate, found by training on the digits for 12 epochs in
# batches of 64: all but Ftrl then misclassified at most 2 of the 360 test images.
_OPTIMIZERS: dict[str, tuple[str, float]] = {
    "adadelta": ("Adadelta", 3.0),
    "adafactor": ("Adafactor", 3e-2),
    "adagrad": ("Adagrad", 0.3),
    "adam": ("Adam", 1e-2),
    "adamax": ("Adamax", 1e-2),
    "adamw": ("AdamW", 1e-2),
    "ftrl": ("Ftrl", 0.3),
    "lamb": ("Lamb", 1e-2),
    "lars": ("Lars", 3.0),
    "lion": ("Lion", 2e-3),
    "muon": ("Muon", 6e-3),
    "nadam": ("Nadam", 1e-2),
    "rmsprop": ("RMSprop", 3e-3),
    "schedulefreeadamw": ("ScheduleFreeAdamW", 1e-2),
    "sgd": ("SGD", 0.1),
}
OPTIMIZER_NAMES = tuple(_OPTIMIZERS)

SCHEDULES = ("cosine", "linear", "exponential", "constant")
_NO_DECAY = ("bias", "gamma", "beta")
_EMA_MOMENTUM = 0.98


@noun(suggests=True)
class TrainingOptions:
    """Optimizer, learning-rate schedule and early stopping.

    Args:
        optimizer: name of a Keras optimizer or of `tfaccel.optimizers.Lars`, in any case: "adamw", "SGD" (with Nesterov
            momentum), "Lamb" ...; see `OPTIMIZER_NAMES`.
        learning_rate: the peak learning rate; None for the optimizer's default here.
        weight_decay: as in Keras, multiplied by the learning rate at each step; biases and the scales and offsets of
            normalization layers are excluded. None to derive it from `decay_per_run`.
        learning_rate_factor: if `learning_rate` is None, a factor for the optimizer's default.
        decay_per_run: if `weight_decay` is None, the product of peak learning rate, weight decay and number of steps.
            Keras multiplies weight decay by the learning rate, so this is roughly the fraction of a weight that decays
            in a run at the peak rate; with warm-up and cosine decay it is half of that.
        clipnorm: maximum norm of each weight's gradient; None for no clipping.
        global_clipnorm: maximum norm of all gradients together; None for no clipping.
        ema: keep a moving average of the weights, and use it at the end.
        schedule: how the learning rate decays after the warm-up: "cosine", "linear", "exponential" or "constant".
        warm_up: fraction of all steps used for the warm-up, from 0 to below 1.
        early_stopping: stop after this many epochs without a lower validation loss, and restore the best weights; None
            to train for all epochs.

    Raises:
        WorkloadError: for an unknown optimizer or schedule (suggesting the nearest name), or invalid values.

    Example:
        >>> TrainingOptions(optimizer="sgd").peak_learning_rate
        0.1
    """

    optimizer: str = "adamw"
    learning_rate: float | None = None
    weight_decay: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None
    ema: bool = False
    schedule: str = "cosine"
    warm_up: float = 0.1
    early_stopping: int | None = None
    decay_per_run: float = 0.5
    learning_rate_factor: float = 1.0

    def __post_init__(self) -> None:
        name = str(self.optimizer).lower()
        if name not in _OPTIMIZERS:
            hint = did_you_mean(name, _OPTIMIZERS) or f" Optimizers: {', '.join(_OPTIMIZERS)}."
            raise WorkloadError(f"Keras has no optimizer {self.optimizer!r}.{hint}")
        object.__setattr__(self, "optimizer", name)
        for name in ("decay_per_run", "learning_rate_factor"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                raise WorkloadError(f"`{name}` must be a number above 0. Received: {name}={value!r}.")
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
        if not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            hint = did_you_mean(str(self.schedule), SCHEDULES) or f" Schedules: {', '.join(SCHEDULES)}."
            raise WorkloadError(f"There is no learning-rate schedule {self.schedule!r}.{hint}")
        if type(self.warm_up) not in (int, float) or not 0 <= self.warm_up < 1:
            raise WorkloadError(f"`warm_up` must be a number from 0 to below 1. Received: warm_up={self.warm_up!r}.")
        if self.early_stopping is not None and (type(self.early_stopping) is not int or self.early_stopping < 1):
            raise WorkloadError(
                "`early_stopping` must be a whole number of epochs of at least 1, or None. "
                f"Received: early_stopping={self.early_stopping!r}."
            )

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """Creates the options from a dictionary.

        Raises:
            WorkloadError: for an unknown option, suggesting the nearest one.
        """
        check_names(options, [one.name for one in fields(cls)], WorkloadError, "There is no option {!r}.")
        return cls(**options)

    @property
    def peak_learning_rate(self) -> float:
        """The peak learning rate of the run."""
        if self.learning_rate is not None:
            return self.learning_rate
        return self.learning_rate_factor * _OPTIMIZERS[self.optimizer][1]

    def callbacks(self) -> list[Any]:
        """New Keras callbacks for early stopping, as `Workload.callbacks` returns them."""
        import keras

        if self.early_stopping is None:
            return []
        return [keras.callbacks.EarlyStopping("val_loss", patience=self.early_stopping, restore_best_weights=True)]

    def make_optimizer(self, *, num_steps: int) -> keras.optimizers.Optimizer:
        """Creates the optimizer with its schedule."""
        from tfaccel.training.schedules import make_schedule

        decay = self.weight_decay
        if decay is None:
            decay = self.decay_per_run / (num_steps * self.peak_learning_rate)
        arguments: dict[str, Any] = {
            "learning_rate": make_schedule(
                self.schedule, peak=self.peak_learning_rate, num_steps=num_steps, warm_up=self.warm_up
            ),
            "weight_decay": decay,
            "clipnorm": self.clipnorm,
            "global_clipnorm": self.global_clipnorm,
            "use_ema": self.ema,
            "ema_momentum": _EMA_MOMENTUM,
        }
        if self.optimizer == "sgd":
            arguments |= {"momentum": 0.9, "nesterov": True}
        if self.optimizer == "ftrl":
            logger.warning("Ftrl discards initial weights: it suits linear models, and hardly trains deep networks.")
        if self.optimizer == "muon":
            arguments |= {"adam_weight_decay": decay}
        optimizer = _optimizer_class(self.optimizer)(**arguments)
        optimizer.exclude_from_weight_decay(var_names=list(_NO_DECAY))
        return optimizer


def _optimizer_class(name: str) -> Any:
    """The class of an optimizer."""
    import keras

    from tfaccel.training.optimizers import Lars

    return Lars if name == "lars" else getattr(keras.optimizers, _OPTIMIZERS[name][0])
