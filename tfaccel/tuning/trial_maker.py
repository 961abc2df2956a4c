"""What a trial trains: the workload, the plan and the model that its hyperparameters stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import keras_tuner

from tfaccel.errors import SearchError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.accumulation import accumulate
from tfaccel.training.compiled_model import compiled_model
from tfaccel.tuning.options import SearchOptions
from tfaccel.tuning.recipe_space import recipe_space
from tfaccel.tuning.source import SearchSource


@dataclass(frozen=True, kw_only=True)
class TrialMaker:
    """Makes what trials train, from hyperparameters.

    Arguments:
        source: where workload and space come from.
        options: of the search.
        plan_fields: what the search and this worker's device group fix of the plan.
        hardware: what this worker has.
        space: `space(hp)` or `build(hp)`.
        own_fit: the `fit` of a `HyperModel` that has one of its own; None otherwise.
        epochs: of each trial.
    """

    source: SearchSource
    options: SearchOptions
    plan_fields: Mapping[str, Any]
    hardware: Hardware
    space: Callable[[Any], Any]
    own_fit: Callable[..., Any] | None
    epochs: int

    @classmethod
    def of(cls, source: SearchSource, options: SearchOptions, group_fields: Mapping[str, Any]) -> TrialMaker:
        """The maker for a source.

        Raises:
            SearchError: if the space cannot be loaded, or is none of the kinds.
        """
        given, own_fit = source.space.load(), None
        if isinstance(given, type):
            given = given()
        if isinstance(given, keras_tuner.HyperModel):
            own_fit = None if type(given).fit is keras_tuner.HyperModel.fit else given.fit
            space: Any = _declaring(given)
        elif given is not None:
            space = given
        else:
            workload = source.make_workload(options.workload_options)
            space = recipe_space(source.workload_function(), workload, fixed=options.workload_options)
        if not callable(space):
            raise SearchError(
                f"The space {source.space.name} must be a function of hp, or a keras_tuner.HyperModel. "
                f"Received: {type(given).__name__}."
            )
        fixed = {**options.plan_fields, **group_fields}
        return cls(source=source, options=options, plan_fields=fixed, hardware=detect_hardware(), space=space,
                   own_fit=own_fit, epochs=trial_epochs(source, options))  # fmt: skip

    def workload(self, arguments: Mapping[str, Any] | None = None) -> Workload:
        """The workload, made with the arguments of a trial, or those that all trials share."""
        own = {**self.options.workload_options, **(arguments or {})}
        if "epochs" in self.source.parameters():
            own["epochs"] = self.epochs
        return self.source.make_workload(own)

    def plan(self, workload: Workload) -> Plan:
        """The plan for a workload on this worker's devices."""
        fixed = dict(self.plan_fields)
        if isinstance(fixed.get("devices"), list):
            fixed["devices"] = tuple(fixed["devices"])
        return default_plan(self.hardware, workload, **fixed)

    def model(self, made: Any, workload: Workload, plan: Plan) -> keras.Model:
        """The compiled model, to be called inside the scope of the plan's strategy.

        Args:
            made: what the space returned: a compiled model, or arguments of the workload's function.
        """
        if not isinstance(made, keras.Model):
            return compiled_model(workload, plan)
        if plan.accumulation_steps > 1:
            accumulate(made.optimizer, plan.accumulation_steps)
        made.jit_compile = plan.jit_compile
        made.steps_per_execution = plan.steps_per_execution * plan.accumulation_steps
        return made


def trial_epochs(source: SearchSource, options: SearchOptions) -> int:
    """The epochs of each trial: as asked for, or as the workload's function recommends.

    Raises:
        SearchError: if neither says.
    """
    epochs = options.epochs or options.workload_options.get("epochs") or source.parameters().get("epochs")
    if type(epochs) is not int:
        raise SearchError("This workload does not say how many epochs it needs. Give epochs (--epochs=NUMBER).")
    return epochs


def is_model_space(made: Any, name: str) -> bool:
    """Whether a space builds models, from what it returned; otherwise it gives arguments.

    Raises:
        SearchError: for anything else, and for a model that is not compiled.
    """
    if isinstance(made, Mapping):
        return False
    if not isinstance(made, keras.Model):
        raise SearchError(
            f"The space {name} must return a compiled Keras model, or a dictionary of arguments for the workload's "
            f"function. Received: {type(made).__name__}."
        )
    if not made.compiled:
        raise SearchError(f"The space {name} returned a model that is not compiled. Call model.compile in it.")
    return True


def _declaring(hypermodel: keras_tuner.HyperModel) -> Callable[[Any], Any]:
    """The `build` of a `HyperModel`, after its declarations, as Keras Tuner calls them."""

    def build(hp: Any) -> Any:
        hypermodel.declare_hyperparameters(hp)
        return hypermodel.build(hp)

    return build


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function takes an argument of this name."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
