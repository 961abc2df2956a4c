"""`RunOptions`: what a run was asked for, besides its workload and plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfaccel.errors import PlanError
from tfaccel.planning.learning_rate_scaling import LearningRateScaling
from tfaccel.planning.non_finite_policy import NOT_ON_TPUS, SKIP, STOP
from tfaccel.planning.plan import Plan
from tfaccel.training.run.compiled_model import engine_options
from tfaccel.training.run.step_range import StepRange
from tfaccel.training.steps.engine import EngineOptions


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What `train` was asked for, besides workload and plan.

    Args:
        epochs, seed, checkpoint_interval, keep_checkpoints: as in `train`.
        scaling: how to scale the learning rate; None to leave it as it is.
        profile: the optimizer steps to profile; None for none.
        on_nonfinite: what to do when the loss or gradients become NaN or infinite; see `train`.
        until: only repeat the steps up to this position (epoch and step, from 1) to find out why they did.
    """

    epochs: int
    seed: int
    checkpoint_interval: int | None = None
    keep_checkpoints: int = 2
    scaling: LearningRateScaling | None = None
    profile: StepRange | None = None
    on_nonfinite: str = STOP
    until: tuple[int, int] | None = None

    def engine_options(self, plan: Plan) -> EngineOptions:
        """The engine's options for a plan.

        Raises:
            PlanError: if batches are to be left out on a TPU.
        """
        if plan.strategy == "tpu" and self.on_nonfinite != STOP:
            raise PlanError(NOT_ON_TPUS)
        skips, finds = self.on_nonfinite == SKIP, self.until is not None
        return replace(engine_options(plan), stop_at_non_finite_loss=finds or not skips, leaves_out=finds or skips)
