"""Creates the workload, plan and model of a trial from its hyperparameters, and finds out which there are."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import keras_tuner
import tensorflow as tf
from keras_tuner.engine.base_tuner import BaseTuner

from tfaccel.data.folds import cut_fold
from tfaccel.errors import SearchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.run_length import get_run_epochs
from tfaccel.planning.workload import Workload
from tfaccel.training.front import refuse_own_methods
from tfaccel.training.run.session import Session, as_planned, compiled_model
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.overrides import replaces
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.optuna_oracle import make_pruner, make_sampler
from tfaccel.tuning.own_training import OwnArguments, check_tuner
from tfaccel.tuning.source import SearchSource, recipe_space


@dataclass(frozen=True, kw_only=True)
class TrialMaker:
    """Creates workloads, plans and models from hyperparameters.

    Args:
        source, options: of the search.
        plan_fields: plan fields fixed by the search and by this worker's devices.
        hardware: of this worker.
        space: `space(hp)` or `build(hp)`; None if a `tuner` needs none.
        own_fit: the custom `fit` of a `HyperModel`, or None.
        epochs: of each trial.
        tuner: the class whose `run_trial` runs the trials, or None.
    """

    source: SearchSource
    options: SearchOptions
    plan_fields: Mapping[str, Any]
    hardware: Hardware
    space: Callable[[Any], Any] | None
    own_fit: Callable[..., Any] | None
    epochs: int
    tuner: Any = None

    @classmethod
    def of(cls, source: SearchSource, options: SearchOptions, group_fields: Mapping[str, Any]) -> TrialMaker:
        """The maker for a source.

        Raises:
            SearchError: if the space cannot be loaded, or has the wrong type.
            WorkloadError: if neither the options nor the workload gives the number of epochs.
        """
        given, own_fit, tuner = source.space.load(SearchError), None, source.tuner.load(SearchError)
        workload = None
        if isinstance(given, type) and issubclass(given, BaseTuner):
            tuner, given = given, None
        if tuner is not None:
            check_tuner(tuner)
        if isinstance(given, type):
            given = given()
        if isinstance(given, keras_tuner.HyperModel):
            own_fit = given.fit if replaces(given, keras_tuner.HyperModel, "fit") else None
            space: Any = _declaring(given)
        elif given is not None or tuner is not None:
            space = given
        else:
            workload = source.make_workload(options.workload_options)
            not_searched = {*options.workload_options, *options.plan_fields}
            space = recipe_space(source.workload_function(), workload, fixed=not_searched)
        if space is not None and not callable(space):
            raise SearchError(
                f"The space {source.space.name} must be a function of hp, or a keras_tuner.HyperModel. "
                f"Received: {type(given).__name__}."
            )
        fixed = {**options.plan_fields, **group_fields}
        if own_fit is not None or tuner is not None:
            fixed.setdefault("strategy", "none")  # custom training may not be correct on several replicas
        maker = cls(
            source=source,
            options=options,
            plan_fields=fixed,
            hardware=detect_hardware(),
            space=space,
            own_fit=own_fit,
            epochs=_trial_epochs(source, options, workload),
            tuner=tuner,
        )
        maker._check_own_training()
        return maker

    @property
    def trains_itself(self) -> bool:
        """Whether a custom `fit` or `run_trial` does the training."""
        return self.own_fit is not None or self.tuner is not None

    @property
    def compiles_again(self) -> bool:
        """Whether the search overrides the optimizer, loss or metrics of models."""
        return bool(set(self.training()) - {"callbacks"})

    def _check_own_training(self) -> None:
        """Raises SearchError if a custom `fit` or `run_trial` does not support the options."""
        if not self.trains_itself:
            return
        training = self.training()
        if self.options.folds is not None:
            raise SearchError("A custom fit or run_trial trains on data of its own choice. Leave out folds.")
        wanted = {
            "pruning": self.options.pruning != "none",
            "early_stopping": self.options.early_stopping,
            "callbacks": "callbacks" in training,
        }
        function: Any = self.own_fit
        name = f"The fit of {self.source.space.name}"
        if self.tuner is not None:
            function, name = self.tuner.run_trial, self.tuner.__name__
            self._check_tuner_options(name, training, [one for one in ("pruning", "early_stopping") if wanted[one]])
        arguments = OwnArguments(function, given=2)  # hp and model, or self and trial
        for option, is_wanted in wanted.items():
            if is_wanted and not arguments.takes("callbacks"):
                raise SearchError(f"{name} does not take `callbacks`, which {option} requires.")

    def _check_tuner_options(self, name: str, training: Mapping[str, Any], stops_early: list[str]) -> None:
        for option in ("retrain", "keep_models", "max_parameters"):
            if getattr(self.options, option):
                raise SearchError(f"{name} builds and trains models itself, so {option} has no effect.")
        if self.options.algorithm == "hyperband":
            raise SearchError(
                "Hyperband trains for a few epochs at a time and continues the best trials, which is not possible with "
                f"{name}. Use another algorithm."
            )
        if set(training) - {"callbacks"}:
            raise SearchError(f"{name} compiles models itself: leave out {', '.join(sorted(set(training)))}.")
        if self.options.executions_per_trial > 1 and stops_early:
            raise SearchError(f"{name} runs the executions of a trial itself: leave out {stops_early[0]}.")

    def training(self) -> dict[str, Any]:
        """New copies of the callbacks, optimizer, loss and metrics given to the search, if any."""
        return dict(self.source.training.load(SearchError) or {})

    def callbacks(self) -> list[Any]:
        """New copies of the callbacks given to the search."""
        given = self.training().get("callbacks") or []
        return list(given() if callable(given) else given)

    def workload(self, arguments: Mapping[str, Any] | None = None) -> Workload:
        """Creates the workload with the fixed arguments and those of a trial."""
        if "global_batch_size" in (arguments or {}) and "global_batch_size" in self.plan_fields:
            raise SearchError(
                f"The space {self.source.space.name} varies global_batch_size, which the search fixes at "
                f"{self.plan_fields['global_batch_size']} (--global_batch_size). Leave out one of them."
            )
        return self.source.make_workload({**self.options.workload_options, **(arguments or {})})

    def without_fold(self, workload: Workload, fold: int | None) -> Workload:
        """The workload that trains without a fold of its data and validates on it; itself for None.

        Nothing of its own validation data is left, so that they have no part in choosing.

        Raises:
            DataError: if its data cannot be cut into folds.
        """
        if fold is None or self.options.folds is None:
            return workload
        seed = self.options.seed
        train, held_out = cut_fold(workload.train_data, fold, num_folds=self.options.folds, seed=seed)
        rows = train.num_examples
        return replace(
            workload, train_data=train, validation_data=held_out.validation, num_train_examples=rows, judge=None
        )

    def plan(self, workload: Workload) -> Plan:
        """The plan for a workload on this worker's devices."""
        fixed = dict(self.plan_fields)
        if isinstance(fixed.get("devices"), list):
            fixed["devices"] = tuple(fixed["devices"])
        return default_plan(self.hardware, workload, **fixed)

    def model(self, made: Any, workload: Workload, plan: Plan, *, num_steps: int | None) -> keras.Model:
        """The compiled model, from what the space returned; call it inside the scope of the plan's strategy."""
        if not isinstance(made, keras.Model):
            return compiled_model(workload, plan, num_steps=num_steps)
        made = self._compiled(made)
        if not made.compiled:  # a custom fit has its own training loop
            return made
        if not self.trains_itself:
            refuse_own_methods(made, f"The space {self.source.space.name}")
        return as_planned(made, plan)

    def _compiled(self, model: keras.Model) -> keras.Model:
        """The model, recompiled if the search overrides the optimizer, loss or metrics."""
        given = {name: value for name, value in self.training().items() if name != "callbacks"}
        if not given:
            return model
        kept: dict[str, Any] = {}
        if model.compiled:
            kept = {"optimizer": model.optimizer, "loss": model.loss}
            config = model.get_compile_config()
            for name in {"metrics", "weighted_metrics", "loss_weights"} - set(given):
                kept[name] = _read_back(name, config.get(name))
        missing = [name for name in ("optimizer", "loss") if (kept | given).get(name) is None]
        if missing and self.own_fit is None:
            raise SearchError(
                f"The space {self.source.space.name} returned a model that is not compiled. Pass "
                f"{' and '.join(missing)} as well, or call model.compile in it."
            )
        model.compile(**(kept | given))
        return model


def _trial_epochs(source: SearchSource, options: SearchOptions, workload: Workload | None) -> int:
    """The epochs of each trial: from the options, or else recommended by the workload."""
    if options.epochs is not None:
        return options.epochs
    if source.workload.kind == "none":
        return 1
    return get_run_epochs(workload or source.make_workload(options.workload_options), None)


def _builds_models(maker: TrialMaker, made: Any) -> bool:
    """Whether a space builds models, from what it returned; otherwise it gives arguments."""
    name = maker.source.space.name
    if isinstance(made, Mapping):
        return False
    if not isinstance(made, keras.Model):
        raise SearchError(
            f"The space {name} must return a compiled Keras model, or a dictionary of arguments for the workload's "
            f"function. Received: {type(made).__name__}."
        )
    if not (made.compiled or maker.trains_itself or maker.compiles_again):
        raise SearchError(f"The space {name} returned a model that is not compiled. Call model.compile in it.")
    return True


def _declaring(hypermodel: keras_tuner.HyperModel) -> Callable[[Any], Any]:
    """The `build` of a `HyperModel`, preceded by `declare_hyperparameters` as in Keras Tuner."""

    def build(hp: Any) -> Any:
        hypermodel.declare_hyperparameters(hp)
        return hypermodel.build(hp)

    return build


def _read_back(name: str, config: Any) -> Any:
    """Recreates an argument of `compile` from its config."""
    try:
        return keras.saving.deserialize_keras_object(config)
    except (TypeError, ValueError) as error:
        raise SearchError(
            f"The search recompiles the model, but its {name} cannot be recreated from their config: {error}. "
            f"Pass {name} as well."
        ) from error


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
            builds_models = made is None or _builds_models(maker, made)
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
    workload = maker.without_fold(maker.workload(None if builds_models else made), 0)
    plan = maker.plan(workload)
    of_run: dict[str, Any] = {
        "seed": maker.options.seed,
        "planned_epochs": maker.epochs,
        "make_model": partial(maker.model, made),
    }
    with contextlib.closing(Session(workload, plan, strategy, **of_run)) as session:
        model = session.model
    names = sorted(model.get_metrics_result())
    held_out = [] if workload.validation_data is None else [f"val_{name}" for name in names]
    return names + held_out + ([] if workload.judge is None or builds_models else sorted(workload.judge(model)))
