"""Validation of the numeric options of recipes, and of what training does about a loss that is not finite."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from numbers import Real
from typing import Any

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.own_model import DeferredItems

MAX_COUNT = 2**31 - 1
"""The largest integer that TensorFlow accepts for counts and sizes: steps, examples, one dimension."""

MAX_SEED = 2**32 - 1
"""The largest seed that NumPy accepts, and therefore `keras.utils.set_random_seed`."""

# Graphs with more layers take too long to trace; wider layers are not practical.
_MAX_COUNTS = {
    **dict.fromkeys(("num_blocks", "num_layers", "num_stages"), 1_000),
    **dict.fromkeys(("width", "head_width", "latent_size", "lora_rank"), 1_000_000),
}
STOP, SKIP, ROLLBACK = "stop", "skip", "rollback"
POLICIES = (STOP, SKIP, ROLLBACK)
NOT_ON_TPUS = (
    "A TPU cannot leave out batches, because its cores update the weights by themselves. Received: "
    'on_nonfinite="skip" or "rollback" (--on_nonfinite). Use "stop".'
)


def check_counts(**values: int) -> None:
    """Raises WorkloadError for a value that is not an integer of at least 1, or exceeds the option's maximum.

    Example:
        >>> check_counts(epochs=0)
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `epochs` must be a whole number of at least 1. Received: epochs=0.
    """
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise WorkloadError(f"`{name}` must be a whole number of at least 1. Received: {name}={value!r}.")
        largest = max_count(name)
        if value > largest:
            raise WorkloadError(f"`{name}` must be at most {largest}. Received: {name}={shortened(value)}.")


def listed(name: str, values: Any) -> list[Any]:
    """The values of an option that takes several.

    Raises:
        PlanError: for anything that holds no values.

    Example:
        >>> listed("replicas", (1, 2))
        [1, 2]
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PlanError(f"{name} must be a list, such as [1, 2, 4]. Received: {name}={shortened(values)}.")
    return list(values)


def check_seconds(**values: Any) -> None:
    """Raises PlanError for a time that is not a number above 0.

    Example:
        >>> check_seconds(limit_seconds="60")
        Traceback (most recent call last):
        ...
        tfaccel.errors.PlanError: `limit_seconds` must be a number above 0. Received: limit_seconds='60'.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
            raise PlanError(f"`{name}` must be a number above 0. Received: {name}={shortened(value)}.")


def check_callbacks(callbacks: Any) -> None:
    """Raises WorkloadError for anything but a list of Keras callbacks, or `DeferredItems`, which are not loaded here.

    Example:
        >>> check_callbacks("EarlyStopping")
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `callbacks` must be a list of Keras callbacks. Received: 'EarlyStopping'.
    """
    if isinstance(callbacks, DeferredItems):
        return
    is_list = isinstance(callbacks, Collection) and not isinstance(callbacks, str)
    if not is_list or not all(hasattr(one, "set_model") for one in callbacks):
        raise WorkloadError(f"`callbacks` must be a list of Keras callbacks. Received: {shortened(callbacks)}.")


def max_count(name: str) -> int:
    """The largest value of a counting option.

    Example:
        >>> max_count("num_layers"), max_count("epochs")
        (1000, 2147483647)
    """
    return _MAX_COUNTS.get(name, MAX_COUNT)


def check_seed(seed: Any) -> None:
    """Raises WorkloadError for an invalid random seed.

    Example:
        >>> check_seed(2**32)
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `seed` must be a whole number from 0 to 4294967295. Received: seed=4294967296.
    """
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise WorkloadError(f"`seed` must be a whole number from 0 to {MAX_SEED}. Received: seed={shortened(seed)}.")


def shortened(value: Any, *, num_characters: int = 40) -> str:
    """The representation of a received value, truncated if it is long.

    Example:
        >>> shortened("x" * 100, num_characters=5)
        "'xxxx..."
    """
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than a few thousand digits.
        return "a number of thousands of digits"
    return text if len(text) <= num_characters else f"{text[:num_characters]}..."


def check_fractions(**values: float) -> None:
    """Raises WorkloadError for a value that is not a number in [0, 1).

    Example:
        >>> check_fractions(dropout=1.5)
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `dropout` must be a number from 0 to below 1. Received: dropout=1.5.
    """
    for name, value in values.items():
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise WorkloadError(f"`{name}` must be a number from 0 to below 1. Received: {name}={value!r}.")


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Raises WorkloadError for a value that is not one of the choices.

    Example:
        >>> check_choice("model", "gru", ("lstm", "transformer"))
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `model` must be one of lstm, transformer. Received: model='gru'.
    """
    if value not in choices:
        names = [str(one) for one in choices]
        hint = did_you_mean(value, names)
        raise WorkloadError(f"`{name}` must be one of {', '.join(names)}. Received: {name}={value!r}.{hint}")


def check_policy(on_nonfinite: Any, policies: tuple[str | None, ...] = POLICIES) -> None:
    """Raises WorkloadError for an unknown policy, suggesting the nearest one.

    Args:
        on_nonfinite: the policy.
        policies: those that are known.

    Example:
        >>> check_policy("ignore")
        Traceback (most recent call last):
        ...
        tfaccel.errors.WorkloadError: `on_nonfinite` must be 'stop', 'skip' or 'rollback'. Received: 'ignore'.
    """
    if on_nonfinite not in policies:
        *some, last = map(repr, policies)
        hint = did_you_mean(on_nonfinite, POLICIES) if isinstance(on_nonfinite, str) else ""
        raise WorkloadError(
            f"`on_nonfinite` must be {', '.join(some)} or {last}. Received: {on_nonfinite!r:.80}.{hint}"
        )
