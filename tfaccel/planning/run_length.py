"""The length of a run, the compile arguments of a workload for it, and how its learning rate follows the batch size."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfaccel.errors import WorkloadError
from tfaccel.known_names import did_you_mean
from tfaccel.planning.option_checks import check_counts, check_fractions
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload, call_own, takes_num_steps
from tfaccel.records import Record

RULES = ("linear", "square_root")


def get_run_epochs(workload: Workload, epochs: int | None) -> int:
    """The epochs of a run: those requested, or else the workload's recommendation.

    Raises:
        WorkloadError: if there is neither.
    """
    epochs = workload.epochs if epochs is None else epochs
    if epochs is None:
        raise WorkloadError(
            f"Workload {workload.name!r} does not say how many epochs it needs. Give epochs (--epochs=NUMBER)."
        )
    return epochs


def num_optimizer_steps(
    workload: Workload, plan: Plan | None = None, *, epochs: int | None = None, num_batches: int | None = None
) -> int | None:
    """The number of optimizer steps of a run.

    Args:
        workload: the workload.
        plan: the plan; None for the batch size that the workload recommends.
        epochs: epochs of the run; None for the workload's recommendation, or else 1.
        num_batches: batches in an epoch, before accumulation; None if unknown: it is then computed from
            `num_train_examples`, with full batches only.

    Returns:
        The number; None if the length of an epoch is unknown.

    Example:
        >>> work = Workload("made_up", object, dict, lambda *args, **kwargs: None, global_batch_size=32,
        ...                 num_train_examples=100, epochs=5)
        >>> num_optimizer_steps(work)
        15
    """
    accumulation = 1 if plan is None else plan.accumulation_steps
    if num_batches is None:
        if workload.num_train_examples is None:
            return None
        size = workload.global_batch_size if plan is None else plan.global_batch_size
        num_batches = workload.num_train_examples // max(1, size // accumulation)
    return max(1, (epochs or workload.epochs or 1) * num_batches // accumulation)


def compile_arguments(workload: Workload, *, num_steps: int | None) -> dict[str, Any]:
    """The compile arguments of a workload for a run of `num_steps` optimizer steps.

    Raises:
        WorkloadError: if `compile_args` fails, does not return a dict, or needs `num_steps` when it is unknown.
    """
    name = f"compile_args of workload {workload.name!r}"
    named = {}
    if takes_num_steps(workload.compile_args):
        needed = inspect.signature(workload.compile_args).parameters["num_steps"].default is inspect.Parameter.empty
        if num_steps is None and needed:
            raise WorkloadError(
                f"{name} takes num_steps, but the number of batches in an epoch is not known. Give the workload "
                "num_train_examples, or its dataset a length (`tf.data.experimental.assert_cardinality`)."
            )
        named = {} if num_steps is None else {"num_steps": num_steps}
    arguments = call_own(name, workload.compile_args, **named)
    if not isinstance(arguments, Mapping):
        raise WorkloadError(
            f"{name} must return a dict of the arguments of `Model.compile`, such as "
            f"{{'optimizer': 'adam', 'loss': 'mse'}}. Received: {arguments!r:.200}"
        )
    return dict(arguments)


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
