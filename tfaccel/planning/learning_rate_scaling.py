"""How a learning rate follows the global batch size if that is not the one that a workload recommends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfaccel.errors import WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.option_checks import check_counts, check_fractions
from tfaccel.records import Record

RULES = ("linear", "square_root")


@dataclass(frozen=True, kw_only=True)
class LearningRateScaling(Record):
    """A rule by which a learning rate follows the batch size, and the two batch sizes.

    A batch `k` times as large multiplies the learning rate by `k` ("linear": Goyal et al., 2017, arXiv:1706.02677, for
    SGD) or by the square root of `k` ("square_root": Krizhevsky, 2014, arXiv:1404.5997; the usual rule for Adam, LAMB
    and similar optimizers). A higher rate is reached by a linear warm-up that starts at the unscaled rate.

    Args:
        rule: "linear" or "square_root".
        recommended_batch_size: the global batch size that the learning rate is meant for.
        global_batch_size: the global batch size of the run.
        warm_up: fraction of all optimizer steps over which the rate rises to the scaled one, from 0 to below 1.

    Raises:
        WorkloadError: for an unknown rule or an invalid fraction.

    Example:
        >>> LearningRateScaling(rule="square_root", recommended_batch_size=32, global_batch_size=128).factor
        2.0
    """

    rule: str
    recommended_batch_size: int
    global_batch_size: int
    warm_up: float = 0.05

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            hint = did_you_mean(str(self.rule), RULES) or f" Rules: {', '.join(RULES)}, or None."
            raise WorkloadError(f"There is no rule {self.rule!r} for learning_rate_scaling.{hint}")
        check_fractions(scaling_warm_up=self.warm_up)
        check_counts(
            recommended_batch_size=self.recommended_batch_size,
            global_batch_size=self.global_batch_size,
        )

    @property
    def factor(self) -> float:
        """What the learning rate is multiplied by."""
        ratio = self.global_batch_size / self.recommended_batch_size
        return ratio if self.rule == "linear" else math.sqrt(ratio)

    def warm_up_steps(self, num_steps: int | None) -> int:
        """The number of optimizer steps of the warm-up in a run of `num_steps`; 0 if the rate does not rise.

        Raises:
            WorkloadError: if the number of steps is needed, and None.
        """
        if self.factor <= 1 or self.warm_up == 0:
            return 0
        if num_steps is None:
            raise WorkloadError(
                "The warm-up of a scaled learning rate is a fraction of all steps, but the number of batches in an "
                "epoch is not known. Give the dataset a length (`tf.data.experimental.assert_cardinality`), or set "
                "scaling_warm_up=0 (--scaling_warm_up=0)."
            )
        return max(1, round(self.warm_up * num_steps))

    @property
    def reason(self) -> str:
        """Why the rate is scaled, in words."""
        return (
            f"{self.rule} scaling: global batch size {self.global_batch_size} instead of the recommended "
            f"{self.recommended_batch_size}"
        )


def scaling_advice(recommended_batch_size: int, global_batch_size: int) -> str:
    """One line for a run whose batch size is not the recommended one, and whose learning rate is not scaled.

    Example:
        >>> scaling_advice(64, 64)
        ''
    """
    if recommended_batch_size == global_batch_size:
        return ""
    return (
        f"The learning rate is that for the recommended global batch size of {recommended_batch_size}, and the batch "
        f"size is {global_batch_size}: learning_rate_scaling='linear' or 'square_root' (--learning_rate_scaling) "
        "scales it."
    )
