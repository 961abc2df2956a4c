"""The noun `TrainResult`: what a training run did, as it stands in `result.json`."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from tfaccel.planning.plan import Plan
from tfaccel.training.verdict.baseline_scores import BaselineScores
from tfaccel.training.verdict.fit_verdict import FitVerdict, verdict

_PACKAGES = ("tfaccel", "tensorflow", "keras", "numpy")


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a training run did.

    Attributes:
        recipe: name of the workload.
        plan: how it was trained.
        history: metric name -> one value an epoch.
        final: metrics of the finished model on the validation data (of the last epoch where there is none).
        examples_per_second: training examples per second, first graph call left out.
        step_seconds: {"median", "p95"} over the graph calls, seconds of one optimizer step.
        first_step_seconds: duration of the first graph call, which traces and compiles.
        wall_seconds: the whole call of `train`.
        hardware: what the machine is, as data.
        versions: package -> version.
        run_dir: where everything stands.
        baselines: what the finished model and simple predictors reach on the validation data; None if it is not known.
    """

    recipe: str
    plan: Plan
    history: dict[str, list[float | None]]
    final: dict[str, float]
    examples_per_second: float
    step_seconds: dict[str, float]
    first_step_seconds: float
    wall_seconds: float
    hardware: dict[str, Any]
    versions: dict[str, str]
    run_dir: str
    baselines: BaselineScores | None = None

    @property
    def verdict(self) -> FitVerdict:
        """What the history and the baselines say of the fit, and what to try."""
        return verdict(self.history, baselines=self.baselines, final_loss=self.final.get("loss"))

    def to_json(self) -> dict[str, Any]:
        """The result, and its verdict, as JSON-serialisable data."""
        baselines = None if self.baselines is None else self.baselines.to_json()
        return {**asdict(self), "plan": self.plan.to_json(), "baselines": baselines, "verdict": self.verdict.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result that `to_json` wrote."""
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        baselines = data.get("baselines")
        known["baselines"] = None if baselines is None else BaselineScores.from_json(baselines)
        return cls(**{**known, "plan": Plan.from_json(data["plan"])})


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a result."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
