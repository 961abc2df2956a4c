"""What a search must know before its first trial: the space, the metrics, and whether the space builds models."""

from __future__ import annotations

import tempfile
from typing import Any

import keras
import keras_tuner

from tfaccel.training import private_models
from tfaccel.training.replicas import Replicas
from tfaccel.training.runtime import Runtime
from tfaccel.training.workload_source import WorkloadSource
from tfaccel.tuning.trial_maker import TrialMaker, is_model_space


def discover(maker: TrialMaker) -> dict[str, Any]:
    """Builds the space's default, and what its conditions hide, as Keras Tuner does.

    Returns:
        "space": Keras Tuner's config of all hyperparameters; "builds_models"; "metrics": the names of all metrics, or
        None where a HyperModel's own `fit` decides; "num_parameters" of the default model.

    Raises:
        SearchError: if the space returns something else than a compiled model or arguments.
        WorkloadError: if the workload's function does not take those arguments.
    """
    workload = maker.workload()
    plan = maker.plan(workload)
    keras.backend.clear_session()
    with Runtime(plan, seed=maker.options.seed) as runtime, tempfile.TemporaryDirectory() as folder:
        made: list[Any] = []

        def build(hp: Any) -> Any:
            made[:] = [*made[:1], maker.space(hp)]  # the first is the default
            return made[-1]

        with runtime.strategy.scope():
            # A local oracle, which Keras Tuner fills; the tuner itself is of no further use.
            oracle = keras_tuner.oracles.RandomSearchOracle(objective=keras_tuner.Objective("loss", "min"))
            keras_tuner.Tuner(oracle, hypermodel=build, directory=folder)
            builds_models = is_model_space(made[0], maker.source.space.name)
        if not builds_models:
            workload = maker.workload(made[0])
        with runtime.strategy.scope():
            model = maker.model(made[0], workload, plan)
        source = WorkloadSource(workload, plan, Replicas(runtime.strategy), seed=maker.options.seed)
        source.close()
        private_models.build_model(model, source.batch_spec)
        names = metric_names(model)
        judged = [] if workload.judge is None or builds_models else sorted(workload.judge(model))
        found = {
            "space": oracle.get_space().get_config(), "builds_models": builds_models,
            "metrics": None if maker.own_fit else names + _held_out(names, workload) + judged,
            "num_parameters": model.count_params(),
        }  # fmt: skip
    keras.backend.clear_session()
    return found


def metric_names(model: keras.Model) -> list[str]:
    """The names of the metrics in the logs of an epoch, without those of validation."""
    return sorted(model.get_metrics_result())


def _held_out(names: list[str], workload: Any) -> list[str]:
    return [] if workload.validation_data is None else [f"val_{name}" for name in names]
