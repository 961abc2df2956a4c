"""Validation data for `fit`, and when to evaluate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras

from tfaccel.training.evaluate import evaluate, evaluate_source, run_evaluation
from tfaccel.training.inputs import Source, make_source
from tfaccel.training.own_methods import call_own_method, methods_on_engine, needs_keras_loop, overrides
from tfaccel.training.private import private_models
from tfaccel.training.private.private_api import CACHED_EVALUATION
from tfaccel.training.steps.engine import Engine
from tfaccel.training.steps.model_parts import has_own_train_step
from tfaccel.training.steps.replicas import Replicas


@dataclass
class Validation:
    """Validation data and the epochs that end with validation.

    Attributes:
        source: the batches, or a function that returns them when they are first needed.
        freq: every `freq` epochs, or a list of epochs (from 1).
    """

    source: Source | Callable[[], Source]
    freq: int | list[int] = 1

    def is_due(self, epoch: int) -> bool:
        """Whether the epoch (from 0) ends with validation."""
        if isinstance(self.freq, int):
            return (epoch + 1) % self.freq == 0
        if isinstance(self.freq, list | tuple):
            return epoch + 1 in self.freq
        raise ValueError(
            f"Expected `validation_freq` to be an int or a list of epochs (from 1). Received: {self.freq!r}."
        )

    def run(self, engine: Engine, container: keras.callbacks.CallbackList) -> dict[str, float]:
        """Evaluates; returns the logs with the prefix `val_`."""
        return {f"val_{name}": value for name, value in self.evaluate(engine, container).items()}

    def evaluate(self, engine: Engine, container: keras.callbacks.CallbackList) -> dict[str, float]:
        """Evaluates."""
        if callable(self.source):
            self.source = self.source()
        return run_evaluation(engine, self.source, container)

    def close(self) -> None:
        """Releases the resources of the batches."""
        if not callable(self.source):
            self.source.close()


@dataclass
class OwnValidation(Validation):
    """Validation of a model whose class overrides `evaluate`, which is called as Keras's `fit` does.

    Attributes:
        arguments: arguments for `evaluate`.
    """

    arguments: dict[str, Any] = field(default_factory=dict)

    def evaluate(self, engine: Engine, container: keras.callbacks.CallbackList) -> dict[str, float]:
        """Evaluates with the class's own method."""
        if callable(self.source):
            self.source = self.source()
        source, options = self.source, {"check_rows": engine.checks.looks}
        methods = methods_on_engine("evaluate", options)

        def evaluated(model: keras.Model, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.pop(CACHED_EVALUATION, False) or needs_keras_loop(model, "evaluate"):
                return methods["evaluate"](model, *args, **kwargs)
            given = inspect.signature(evaluate).bind(model, *args, **kwargs).arguments
            given = {name: given[name] for name in ("verbose", "callbacks", "return_dict") if name in given}
            return evaluate_source(model, source, **given, **options)

        takes = inspect.signature(engine.model.evaluate).parameters
        takes_it = CACHED_EVALUATION in takes or any(one.kind is one.VAR_KEYWORD for one in takes.values())
        cached = {CACHED_EVALUATION: True} if takes_it else {}
        arguments = {**self.arguments, "callbacks": container, "return_dict": True, **cached}
        methods_of_own = {**methods, "evaluate": evaluated}
        logs: dict[str, float] = call_own_method(engine.model, "evaluate", arguments, methods_of_own)
        return logs


def validation_of_fit(
    model: keras.Model,
    replicas: Replicas,
    data: Any,
    *,
    batch_size: int | None,
    steps: int | None,
    freq: int | list[int],
) -> Validation:
    """The validation given by the arguments of `fit`; as in Keras, data that run code are opened when first needed."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)

    def make() -> Source:
        source = make_source(
            x,
            y,
            sample_weight,
            replicas=replicas,
            batch_size=batch_size,
            steps=steps,
            steps_per_execution=model.steps_per_execution,
        )
        if not replicas.is_default and has_own_train_step(model):
            private_models.build_model(model, source.batch_spec, "test")
        return source

    runs_code = hasattr(x, "__next__") or isinstance(x, keras.utils.PyDataset)
    if overrides(model, "evaluate"):
        arguments = {"x": x, "y": y, "sample_weight": sample_weight, "batch_size": batch_size, "steps": steps}
        return OwnValidation(make, freq, arguments)
    return Validation(make if runs_code else make(), freq)
