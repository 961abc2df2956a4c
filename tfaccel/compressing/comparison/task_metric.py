"""Evaluates predictions of any variant of a model with the loss and metrics of its training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.compressing.comparison.drop_judge import Agreement, DropJudge, Examples, Judged
from tfaccel.compressing.variant import DropInterval
from tfaccel.errors import CompressionError, in_one_line
from tfaccel.known_names import did_you_mean
from tfaccel.training.private.private_api import compute_loss
from tfaccel.training.private.private_tensorflow import metric_directions

AGREEMENT = "agreement"
_SHOWN_CHARACTERS = 250
_LOWER = re.compile(
    r"(^|_)(loss|error|errors|mae|mse|rmse|mape|msle|crossentropy|entropy|perplexity|divergence|nats|bits|deviation"
    r"|distance|hinge|poisson|cosh|logcosh|huber|cost|false_positives|false_negatives|smape|mase|wer|cer|fid|nll)(_|$)"
)

# A pass over examples: their inputs, targets and weights as arrays; targets and weights may be None.
Batches = Callable[[], Iterator[Examples]]
Predict = Callable[[Any], Any]


def lower_is_better(metric: str) -> bool:
    """Whether a lower value of a metric of this name is better.

    Example:
        >>> lower_is_better("mean_absolute_error"), lower_is_better("accuracy")
        (True, False)
    """
    return _LOWER.search(metric) is not None


class _Judge(keras.Model):
    """A model with only a loss and metrics, which evaluates given outputs."""

    def call(self, x: Any) -> Any:
        """Returns its input."""
        return x


class TaskMetrics:
    """Evaluates predictions on held-out data.

    Args:
        batches: iterates over the data.
        compile_args: what the model was compiled with; None to measure agreement with the float model only.
        compiled: a compiled model to evaluate with instead.
        output_names: names of the outputs, for a model with several.

    Attributes:
        num_examples: number of examples, known after the first evaluation.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        compile_args: dict[str, Any] | None = None,
        compiled: keras.Model | None = None,
        output_names: list[str] | None = None,
    ) -> None:
        self._batches = batches
        self._judge = compiled
        self._examples: list[Examples] = []
        self._float_outputs: list[Any] = []
        self._outputs: list[Any] = []
        self._drop_judge: DropJudge | None = None
        self.num_examples = 0
        if compile_args is not None:
            self._judge = _Judge()
            if output_names:
                self._judge.output_names = output_names
            self._judge.compile(**compile_args)

    def lower_is_better(self, metric: str) -> bool:
        """Whether a lower value of a metric is better: from its class if it is Keras's, else from its name."""
        own = [] if self._judge is None else metric_directions(self._judge)
        known = {direction for name, direction in own if metric == name or metric.endswith(f"_{name}")}
        return known == {"down"} if len(known) == 1 else lower_is_better(metric)

    def of_float_model(self, predict: Predict) -> dict[str, float]:
        """The metrics of the float model; its outputs become the reference."""
        self._examples, self._float_outputs, self.num_examples = [], [], 0
        return self._measure(predict, keep=True)

    def of(self, predict: Predict) -> dict[str, float]:
        """The metrics of a variant, and its agreement with the float model.

        Args:
            predict: computes the outputs from the inputs of a batch.
        """
        return self._measure(predict, keep=False)

    def judge_by(self, metric: str, *, lower_is_better: bool, limit: float, confidence: float) -> None:
        """Sets the metric and limit of `drop_interval`; see `DropJudge`. Call `of_float_model` first."""
        self._drop_judge = DropJudge(
            lower_is_better=lower_is_better,
            limit=limit,
            confidence=confidence,
            examples=self._examples,
            of_float=self._float_outputs,
            get_value=lambda batches: self._values(batches, only=metric)[metric],
        )

    def drop_interval(self, *, of_float: float, value: float) -> DropInterval | None:
        """The confidence interval of the drop of the last evaluated variant; None before `judge_by`.

        Args:
            of_float: the float model's metric.
            value: the variant's.
        """
        if self._drop_judge is None:
            return None
        return self._drop_judge.interval(self._outputs, of_float=of_float, value=value)

    def _measure(self, predict: Predict, *, keep: bool) -> dict[str, float]:
        self._outputs = []

        def predicted() -> Iterator[Judged]:
            for number, (x, y, sample_weight) in enumerate(self._batches()):
                outputs = predict(x)
                self._outputs.append(outputs)
                if keep:
                    self._examples.append((x if self._needs_inputs else None, y, sample_weight))
                    self._float_outputs.append(outputs)
                    self.num_examples += len(keras.tree.flatten(outputs)[0])
                yield (x, y, sample_weight), self._float_outputs[number], outputs

        return self._values(predicted())

    def _values(self, batches: Iterable[Judged], *, only: str | None = None) -> dict[str, float]:
        """The metrics of given predictions, and their agreement with the float model."""
        agreement, losses, weights = Agreement(), 0.0, 0
        logs: dict[str, Any] = {}
        if self._judge is not None:
            self._judge.reset_metrics()
        for (x, y, sample_weight), of_float, outputs in batches:
            if only in (None, AGREEMENT):
                agreement.update(of_float, outputs, y)
            if self._judge is not None and y is not None and only != AGREEMENT:
                rows = len(keras.tree.flatten(outputs)[0])
                loss, logs = _judged(self._judge, x, y, outputs, sample_weight)
                losses, weights = losses + rows * loss, weights + rows
        found = {name: float(np.mean(value)) for name, value in logs.items()}
        if weights:
            found["loss"] = losses / weights
        return {**found, AGREEMENT: agreement.result()}

    @property
    def _needs_inputs(self) -> bool:
        """Whether the loss or the metrics may use the model's inputs."""
        own: Any = type(self._judge)
        names = ("compute_metrics", "compute_loss")
        return self._judge is not None and any(getattr(own, name) is not getattr(keras.Model, name) for name in names)


def _judged(judge: keras.Model, x: Any, y: Any, outputs: Any, sample_weight: Any) -> tuple[float, dict[str, Any]]:
    try:
        y, outputs = (keras.tree.map_structure(keras.ops.convert_to_tensor, nest) for nest in (y, outputs))
        weight = None if sample_weight is None else keras.tree.map_structure(keras.ops.convert_to_tensor, sample_weight)
        loss = compute_loss(judge, x, y, outputs, weight, training=False)
        return float(loss), dict(judge.compute_metrics(x, y, outputs, weight))
    except (ValueError, TypeError, KeyError, IndexError, tf.errors.OpError) as error:
        shapes = ", ".join(f"{np.shape(leaf)} {np.asarray(leaf).dtype}" for leaf in keras.tree.flatten(y))
        text = in_one_line(error, _SHOWN_CHARACTERS)
        raise CompressionError(
            f"The model's loss and metrics cannot be computed on the held-out data (targets: {shapes}): {text}"
        ) from error


def chosen_metric(metric: str | None, metrics: dict[str, float]) -> str:
    """The metric to compare by: the requested one, else the first that is not the loss, else the loss.

    Example:
        >>> chosen_metric(None, {"accuracy": 0.9, "loss": 0.3, "agreement": 1.0})
        'accuracy'
    """
    if metric is not None:
        if metric not in metrics:
            hint = did_you_mean(metric, metrics) or ""
            raise CompressionError(
                f"The model has no metric {metric!r} on the held-out data.{hint} Metrics: {', '.join(metrics)}."
            )
        return metric
    own = [name for name in metrics if name != AGREEMENT and name != "loss" and not name.endswith("_loss")]
    return own[0] if own else "loss" if "loss" in metrics else AGREEMENT
