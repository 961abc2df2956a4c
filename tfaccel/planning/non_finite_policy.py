"""What training does about a loss or gradients that are not finite."""

from typing import Any

from tfaccel.errors import WorkloadError
from tfaccel.known_names import did_you_mean

STOP, SKIP, ROLLBACK = "stop", "skip", "rollback"
POLICIES = (STOP, SKIP, ROLLBACK)
NOT_ON_TPUS = (
    "A TPU cannot leave out batches, because its cores update the weights by themselves. Received: "
    'on_nonfinite="skip" or "rollback" (--on_nonfinite). Use "stop".'
)


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
