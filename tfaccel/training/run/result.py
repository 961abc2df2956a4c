"""`TrainResult`: the outcome of a run, as saved in `result.json`, with trivial scores; and what a run says."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tfaccel.errors import printable
from tfaccel.hardware.hardware import Cluster
from tfaccel.planning.plan import Plan
from tfaccel.records import Record, to_plain
from tfaccel.short_repr import noun
from tfaccel.training.run.performance import Bottleneck, Performance, WorkerTimes, straggler
from tfaccel.training.run.remote_run import shown_run
from tfaccel.training.verdict import BaselineScores, FitVerdict, verdict

_PACKAGES = ("tfaccel", "tensorflow", "keras", "numpy")
_ACCURACIES = ("accuracy", "acc", "categorical_accuracy", "sparse_categorical_accuracy", "binary_accuracy")
_ABSOLUTE = ("mean_absolute_error", "mae", "MAE")
_SQUARED = ("mean_squared_error", "mse", "MSE")
_ROOT = ("root_mean_squared_error", "rmse", "RMSE")

PROGRESS = "progress"  # the value of `verbose` that leaves out plan and result, which the caller shows
VERBOSE = (0, 1, 2, "auto", PROGRESS)


@noun
class TrainResult(Record):
    """The outcome of a training run.

    Attributes:
        recipe: name of the workload.
        plan: the plan that it was trained with.
        history: metric name -> one value per epoch.
        final: metrics of the finished model on the validation data (without any, those of the last epoch).
        examples_per_second: training examples per second, excluding the first graph call.
        step_seconds: {"median", "p95"} seconds per optimizer step, excluding the first graph call.
        first_step_seconds: duration of the first graph call, which traces and compiles.
        wall_seconds: duration of the whole call to `train`.
        hardware: description of the machine, as JSON data.
        versions: package -> version.
        run_dir: path of the run directory.
        learning_rate_scaling: how the learning rate was scaled: rule, batch sizes, factor, and the peak rate before and
            after; None if it was not.
        baselines: scores of the finished model and of simple predictors on the validation data; None if unknown.
        performance: speed, share of time waiting for input, MFU, utilization and memory; None if nothing was trained,
            or the run is from an earlier version.
        workers: with several workers, the seconds per batch that each of them waited for its input, computed, and
            waited for the others; measured on CPUs.
        left_out_batches: how many batches were left out because their loss or gradients were not finite; see
            `on_nonfinite` of `train`.
        workload_key: a digest of the workload, the machine and the versions, by which `tfaccel report` finds what was
            measured of the same; empty in runs of earlier versions.
        bad_data: the examples that were left out because they are damaged, in all and by file, as
            `tfaccel.data.BadData.to_json` returns them; None if damaged data are an error.
        proof: with several replicas in one process, what comparing the first step with one device's has shown: kind of
            step ("train", "test") -> number of variables, largest difference and a text; None if nothing was compared.
        time_limit: for a run with `max_seconds`, the length that was decided for it: `epochs`, batches in the last one
            (`last_steps`; None for all) and optimizer `steps`; `ended_at`, the batch after which the clock ended the
            run before that, and what would have come `next`, both None if it did not.
    """

    _ignores_others = True

    recipe: str
    plan: Plan
    history: dict[str, list[float | None]] = field(repr=False)
    final: dict[str, float]
    examples_per_second: float
    step_seconds: dict[str, float] = field(repr=False)
    first_step_seconds: float
    wall_seconds: float
    hardware: dict[str, Any] = field(repr=False)
    versions: dict[str, str] = field(repr=False)
    run_dir: str
    learning_rate_scaling: dict[str, Any] | None = None
    baselines: BaselineScores | None = None
    performance: Performance | None = None
    workers: tuple[WorkerTimes, ...] = ()
    left_out_batches: int = 0
    workload_key: str = field(default="", repr=False)
    bad_data: dict[str, Any] | None = None
    proof: dict[str, Any] | None = None
    time_limit: dict[str, Any] | None = None

    @property
    def verdict(self) -> FitVerdict:
        """A diagnosis of the fit from the history and the baselines, with what to try next."""
        return verdict(self.history, baselines=self.baselines, final_loss=self.final.get("loss"))

    def summary_line(self) -> str:
        """The score beside those of the baselines, the folder, and the command that makes the run's page."""
        if self.baselines is not None:
            score = self.baselines.beside()
        else:
            name = next((name for name in self.final if name != "loss"), "loss")
            score = f"{name} {self.final[name]:.4g}" if name in self.final else "Nothing was trained"
        place = shown_run(self.run_dir)
        return f"{score}. The model is in {place}; its page: tfaccel report {shlex.quote(place)}"

    @property
    def bottleneck(self) -> Bottleneck | None:
        """What held the run back: a worker that the others waited for, or what slowed all of them; None if unknown."""
        slow = straggler(self.workers)
        if slow is not None:
            return Bottleneck(kind="straggler", text=slow.text)
        return None if self.performance is None else self.performance.bottleneck

    def to_json(self) -> dict[str, Any]:
        """The result and its verdict as JSON-serializable data."""
        derived = {"straggler": straggler(self.workers), "bottleneck": self.bottleneck, "verdict": self.verdict}
        return {**super().to_json(), **to_plain(derived)}


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect a result."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def say(text: str) -> None:
    """Writes a line on standard error; a terminal breaks it at spaces."""
    console = Console(file=sys.stderr)
    console.print(printable(text), highlight=False, markup=False, soft_wrap=not console.is_terminal)


class ShownRun:
    """What `train` says of a run, on the chief."""

    def __init__(self, verbose: int | str, cluster: Cluster | None) -> None:
        self._is_shown = bool(verbose) and (cluster is None or cluster.is_chief)
        self._is_whole = self._is_shown and verbose != PROGRESS

    def plan(self, plan: Plan, origin: str) -> None:
        """Says which plan was chosen, and where it comes from."""
        if self._is_whole:
            say(f"Plan ({origin}): {plan!r}. Its `reasons` say why.")

    def complete(self, run_dir: Path) -> None:
        """Says that nothing is left to train."""
        if self._is_shown:
            say(f"The run in {shown_run(run_dir)} is complete; there is nothing to train.")

    def result(self, result: TrainResult) -> None:
        """Says what is wrong with the fit, if anything, and ends with one line: score, folder, the next command."""
        if self._is_whole:
            if result.verdict.advice:
                say(result.verdict.text())
            say(result.summary_line())


def trivial_scores(batches: Iterable[Any], final: Mapping[str, float]) -> BaselineScores | None:
    """Compares a finished model with a trivial predictor, for the first metric that has one.

    Accuracy is compared with the most frequent class, mean absolute error with the median, and squared errors with the
    mean. None for other metrics, for several outputs, and for targets other than one class or a vector of numbers per
    example.

    Args:
        batches: validation batches: (inputs, targets) or (inputs, targets, weights).
        final: the model's metrics on these batches.

    Example:
        >>> batches = [(None, np.array([0, 2])), (None, np.array([2, 1]))]
        >>> trivial_scores(batches, {"loss": 1.1, "accuracy": 0.75}).beside()
        'accuracy 75.0 % vs. 50.0 % (most frequent class)'
    """
    known = [name for name in final if name in (*_ACCURACIES, *_ABSOLUTE, *_SQUARED, *_ROOT)]
    if not known or not np.isfinite(final[known[0]]):
        return None
    targets = _targets(batches)
    if targets is None:
        return None
    metric, score, examples = known[0], float(final[known[0]]), len(targets)
    if metric in _ACCURACIES:
        classes = _classes(targets)
        if classes is None:
            return None
        share = float(np.unique(classes, return_counts=True)[1].max() / examples)
        return BaselineScores(
            metric=metric, score=score, trivial={"most frequent class": share}, is_fraction=True, num_examples=examples
        )
    values = targets.reshape(examples, -1).astype(np.float64)
    if metric in _ABSOLUTE:
        trivial = {"median": float(np.abs(values - np.median(values, axis=0)).mean())}
    else:
        variance = float(np.square(values - values.mean(axis=0)).mean())
        trivial = {"mean": variance if metric in _SQUARED else variance**0.5}
    return BaselineScores(
        metric=metric, score=score, trivial=trivial, higher_is_better=False, perfect=0.0, num_examples=examples
    )


def _targets(batches: Iterable[Any]) -> np.ndarray | None:
    found = []
    for batch in batches:
        target = batch[1] if isinstance(batch, tuple) and len(batch) >= 2 else None
        if target is None or not hasattr(target, "dtype") or not hasattr(target, "__array__"):
            return None
        found.append(np.asarray(target))
        if found[-1].ndim not in (1, 2) or found[-1].dtype.kind not in "biuf":
            return None
    return np.concatenate(found) if found and sum(map(len, found)) else None


def _classes(targets: np.ndarray) -> np.ndarray | None:
    """The class of each example, from integer or one-hot labels; None for other targets."""
    if targets.ndim == 1 or targets.shape[1] == 1:
        flat = targets.reshape(-1)
        return flat if np.array_equal(flat, np.round(flat)) else None
    is_one_hot = np.isclose(targets.sum(axis=1), 1).all() and (targets.max(axis=1) > 0.5).all()
    return targets.argmax(axis=1) if is_one_hot else None
