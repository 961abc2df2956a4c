"""Experiment trackers: a run's plan, metrics and final scores in W&B, MLflow or DVCLive, from `--log_to`."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfaccel.training.run.run_dir import RUN_ID, read_config

_PROJECT = "tfaccel"


class Tracker(keras.callbacks.Callback, abc.ABC):
    """Logs one run of `train`. A run that is resumed goes on in the tracker's own record of it.

    Nothing is logged before training begins, so that a refused run leaves no record.

    Args:
        run_dir: the run directory, whose last part is the name of the run.
        described: what the run is, by name, such as the plan's fields; texts, numbers, True, False and None.
    """

    def __init__(self, run_dir: Path, described: Mapping[str, Any]) -> None:
        super().__init__()
        self.run_dir = run_dir
        self.described = described
        self.is_open = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Opens the tracker's record of the run."""
        if not self.is_open:
            self.begin(str(read_config(self.run_dir).get(RUN_ID, self.run_dir.name)))
            self.is_open = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Logs the metrics of an epoch."""
        self.log({name: float(value) for name, value in (logs or {}).items()}, epoch)

    def close(self, final: Mapping[str, float] | None = None) -> None:
        """Ends the record, with the scores of the finished model; None for a run that did not end well."""
        if self.is_open:
            self.is_open = False
            self.end(final)

    @abc.abstractmethod
    def begin(self, run_id: str) -> None:
        """Opens or continues the record of the run with this id."""

    @abc.abstractmethod
    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Logs the metrics of an epoch, counted from 0."""

    @abc.abstractmethod
    def end(self, final: Mapping[str, float] | None) -> None:
        """Logs the final scores, if there are any, and closes the record."""


class _WandbTracker(Tracker):
    """Weights & Biases, which reads WANDB_PROJECT, WANDB_MODE and others.

    References:
        https://docs.wandb.ai/ref/python/init (an id that exists is continued)
    """

    def begin(self, run_id: str) -> None:
        import os

        import wandb

        project = os.environ.get("WANDB_PROJECT", _PROJECT)
        self._run = wandb.init(
            project=project, name=self.run_dir.name, id=run_id, resume="allow", config=dict(self.described)
        )

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        self._run.log({**metrics, "epoch": epoch})

    def end(self, final: Mapping[str, float] | None) -> None:
        self._run.summary.update({f"final_{name}": value for name, value in (final or {}).items()})
        self._run.finish(exit_code=int(final is None))


class _MlflowTracker(Tracker):
    """MLflow, at the place that MLFLOW_TRACKING_URI names.

    References:
        https://mlflow.org/docs/latest/api_reference/python_api/mlflow.html
    """

    def begin(self, run_id: str) -> None:
        import mlflow

        tag = f"{_PROJECT}.run_id"
        found = mlflow.search_runs(filter_string=f"tags.`{tag}` = '{run_id}'", output_format="list")
        known = found[0].info.run_id if found else None
        mlflow.start_run(run_id=known, run_name=None if known else self.run_dir.name, tags={tag: run_id})
        if known is None:
            mlflow.log_params(dict(self.described))

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        import mlflow

        mlflow.log_metrics(dict(metrics), step=epoch)

    def end(self, final: Mapping[str, float] | None) -> None:
        import mlflow

        mlflow.log_metrics({f"final_{name}": value for name, value in (final or {}).items()})
        mlflow.end_run("FAILED" if final is None else "FINISHED")


class _DvcliveTracker(Tracker):
    """DVCLive, in the folder `dvclive` of the run directory.

    References:
        https://dvc.org/doc/dvclive/live
    """

    def begin(self, run_id: str) -> None:
        from dvclive import Live

        self._live = Live(str(self.run_dir / "dvclive"), resume=True, report=None, save_dvc_exp=False)
        self._live.log_params({**self.described, RUN_ID: run_id})

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        self._live.step = epoch
        for name, value in metrics.items():
            self._live.log_metric(name, value)
        self._live.make_summary()

    def end(self, final: Mapping[str, float] | None) -> None:
        self._live.summary.update({f"final_{name}": value for name, value in (final or {}).items()})
        self._live.make_summary()
        self._live.end()


_CLASSES: dict[str, type[Tracker]] = {"wandb": _WandbTracker, "mlflow": _MlflowTracker, "dvclive": _DvcliveTracker}


def trackers(names: list[str], run_dir: Path, described: Mapping[str, Any]) -> list[Tracker]:
    """The trackers with these names; TensorBoard's files are in every run directory, without one."""
    return [_CLASSES[name](run_dir, described) for name in dict.fromkeys(names) if name in _CLASSES]
