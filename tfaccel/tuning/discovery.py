"""What a search needs before its first trial: the space, the metrics, and whether the space builds models."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import keras_tuner
import tensorflow as tf

from tfaccel.errors import SearchError
from tfaccel.training.run.session import Session
from tfaccel.training.runtime import Runtime
from tfaccel.tuning.trial_maker import TrialMaker, is_model_space


def discover(maker: TrialMaker) -> dict[str, Any]:
    """Finds all hyperparameters as Keras Tuner does: builds the defaults, then each conditional branch.

    Returns:
        "space": Keras Tuner's config of all hyperparameters; "builds_models"; "metrics": the names of all metrics, or
        None with a custom `fit` or `run_trial`, which may also request further hyperparameters.

    Raises:
        SearchError: if the space returns neither a compiled model nor arguments, or the sampler or pruner cannot be
            created.
        WorkloadError: if the workload's function does not accept those arguments.
    """
    options = maker.options
    if options.by_optuna:
        from tfaccel.tuning.optuna_study import make_pruner, make_sampler

        make_sampler(options)
        make_pruner(options, epochs=maker.epochs)
    if maker.space is None:
        known = options.hyperparameters or {"space": [], "values": {}}
        return {"space": dict(known), "builds_models": True, "metrics": None}
    workload = maker.workload()
    plan = maker.plan(workload)
    keras.backend.clear_session()
    with Runtime(plan, seed=options.seed) as runtime:
        with runtime.strategy.scope():
            space, made = _explored(maker, maker.space)
            builds_models = made is None or is_model_space(
                made, maker.source.space.name, compiled=not maker.trains_itself and not maker.compiles_again
            )
        found = {"space": space, "builds_models": builds_models, "metrics": None}
        if not maker.trains_itself:
            found["metrics"] = _metrics(maker, made, builds_models, runtime.strategy)
    keras.backend.clear_session()
    return found


def _explored(maker: TrialMaker, space: Callable[[Any], Any]) -> tuple[dict[str, Any], Any]:
    """The config of all hyperparameters, and the space's output for the defaults (None with a Tuner)."""
    options = maker.options
    made: list[Any] = []

    def build(hp: Any) -> Any:
        made[:] = [*made[:1], space(hp)]  # the first is the default
        return made[-1]

    known = options.hyperparameters and keras_tuner.HyperParameters.from_config(options.hyperparameters)
    # Creating the tuner fills this oracle; the tuner itself is discarded.
    oracle = keras_tuner.oracles.RandomSearchOracle(
        objective=keras_tuner.Objective("loss", "min"),
        hyperparameters=known or None,
        tune_new_entries=options.tune_new_entries,
        allow_new_entries=options.allow_new_entries,
    )
    with tempfile.TemporaryDirectory() as folder:
        keras_tuner.Tuner(oracle, hypermodel=build, directory=folder)
    return oracle.get_space().get_config(), None if maker.tuner is not None else made[0]


def _metrics(maker: TrialMaker, made: Any, builds_models: bool, strategy: tf.distribute.Strategy) -> list[str]:
    """The names of the metrics of a trial."""
    if not builds_models and maker.compiles_again:
        raise SearchError(
            "optimizer, loss and metrics override those that build(hp) compiles a model with, but the space "
            f"{maker.source.space.name or 'of the workload'} returns arguments for the workload's function. Leave them "
            "out."
        )
    workload = maker.workload(None if builds_models else made)
    plan = maker.plan(workload)
    of_run: dict[str, Any] = {
        "seed": maker.options.seed,
        "planned_epochs": maker.epochs,
        "make_model": partial(maker.model, made),
    }
    with contextlib.closing(Session(workload, plan, strategy, **of_run)) as session:
        model = session.model
    names = metric_names(model)
    judged = [] if workload.judge is None or builds_models else sorted(workload.judge(model))
    return names + _held_out(names, workload) + judged


def metric_names(model: keras.Model) -> list[str]:
    """The names of the metrics in the logs of an epoch, without validation metrics."""
    return sorted(model.get_metrics_result())


def _held_out(names: list[str], workload: Any) -> list[str]:
    return [] if workload.validation_data is None else [f"val_{name}" for name in names]
