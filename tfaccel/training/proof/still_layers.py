"""Layers whose numbers are meant to differ between replicas and one device, in inference mode."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tfaccel.training.private import private_api
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.overrides import instance_attributes


def layers_by_replica(model: keras.Model) -> list[keras.layers.Layer]:
    """The BatchNormalization layers whose statistics, as planned, are those of a replica's own rows."""
    alike = {id(layer) for layer in layers_alike(model)}
    return [
        layer
        for layer in private_api.all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and id(layer) not in alike
    ]


def draws(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws random numbers in training, and none in inference mode."""
    draws = any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())
    return draws and "training" in inspect.signature(layer.call).parameters


@contextlib.contextmanager
def in_inference_mode(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Within the block, these layers run in inference mode, whatever mode they are called in."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(instance_attributes(layer, {"call": _inference_call(layer)}))
        yield


def _inference_call(layer: keras.layers.Layer) -> Callable[..., Any]:
    left = layer.call  # with what contexts outside of this one have put in its place
    signature = inspect.signature(type(layer).call)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(layer, *args, **kwargs)
        bound.arguments["training"] = False
        return left(*bound.args[1:], **bound.kwargs)

    return call
