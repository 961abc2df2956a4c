"""How a run was built: the settings of its layers, optimizers and loss, and the length of an epoch.

They are saved with the run, so that it is not continued with a model that has the same weights but computes something
else: another activation, dropout rate or learning rate. What a checkpoint restores anyway (weights, seeds) and what
depends on the plan and not on the user (names, dtypes, accumulation, synchronized statistics) is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from tfaccel.planning.own_model import described
from tfaccel.training.accumulation import AccumulatedSchedule
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.steps.model_parts import get_optimizers

_MAX_CHARACTERS = 120  # of a saved value; longer ones, such as vocabularies, are saved as a digest
_LEFT_OUT = {
    "name",
    "seed",
    "dtype",
    "synchronized",
    "gradient_accumulation_steps",
    "build_config",
    "compile_config",
    "registered_name",
    "module",
    "batch_shape",
    "batch_input_shape",
}
_OF_MODELS = {"layers", "input_layers", "output_layers"}


def built_settings(model: keras.Model, *, num_batches: int | None, batch_size: int) -> dict[str, Any]:
    """The settings of a compiled model and its data, as JSON values.

    Args:
        model: the compiled model.
        num_batches: batches of an epoch; None if unknown.
        batch_size: rows of a batch.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5)])
        >>> model.compile("sgd", "mse")
        >>> built = built_settings(model, num_batches=3, batch_size=32)
        >>> built["layer 1"]["rate"], built["optimizer"]["class"], built["loss"]
        (0.5, 'SGD', 'mse')
    """
    layers = {f"layer {number}": _settings(layer) for number, layer in enumerate(_get_layers(model), start=1)}
    optimizers = {owner: _settings(optimizer) for owner, optimizer in get_optimizers(model).items()}
    data = {"batches": num_batches, "rows of a batch": batch_size}
    return {**layers, **optimizers, "loss": _plain(described(getattr(model, "loss", None))), "an epoch": data}


def check_built(run_dir: RunDir, built: dict[str, Any]) -> None:
    """Records how a run is built, unless the run that is resumed was built otherwise.

    Raises:
        RunDirError: if it was; the message names the first difference.
    """
    built = json.loads(json.dumps(built))
    differs = None if run_dir.built is None else difference(run_dir.built, built)
    if differs is not None:
        raise run_dir.holds_another(*differs)
    run_dir.config = {**run_dir.config, "built": built}


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The first setting that differs: its name, and its value in each of two `built_settings`; None if none does.

    The length of an epoch counts only if the batches have the same size.

    Example:
        >>> difference({"layer 1": {"class": "Dropout", "rate": 0.5}}, {"layer 1": {"class": "Dropout", "rate": 0.4}})
        ('rate of layer 1 (Dropout)', 0.5, 0.4)
    """
    for part in {**there, **here}:
        pair = there.get(part), here.get(part)
        if pair[0] == pair[1]:
            continue
        if not all(isinstance(one, Mapping) for one in pair):
            shown = [one.get("class", one) if isinstance(one, Mapping) else one for one in pair]
            return part, shown[0], shown[1]
        if part == "an epoch" and len({one["rows of a batch"] for one in pair}) > 1:  # type: ignore[index]
            continue
        for name in {**pair[0], **pair[1]}:  # type: ignore[dict-item]
            values = [one.get(name) for one in pair]  # type: ignore[union-attr]
            if values[0] != values[1]:
                kind = f" ({pair[1]['class']})" if name != "class" and "class" in pair[1] else ""  # type: ignore[index,operator]
                return f"{name} of {part}{kind}", values[0], values[1]
    return None


def _get_layers(model: keras.Model) -> Iterator[keras.layers.Layer]:
    """The layers of a model and of the models in it, in order."""
    for layer in model.layers:
        if isinstance(layer, keras.Model) and layer.layers:
            yield from _get_layers(layer)
        elif not isinstance(layer, keras.layers.InputLayer):
            yield layer


def _settings(one: Any) -> dict[str, Any]:
    """The class and config of a layer or optimizer; the class alone where it has no config."""
    config: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # whatever the user's class raises
        config = dict(one.get_config())
    plain = {name: _plain(value) for name, value in config.items() if _counts(name)}
    return {"class": type(one).__qualname__, **{name: value for name, value in plain.items() if value is not _OTHER}}


_OTHER = object()  # in place of a value that JSON does not have


def _counts(name: str) -> bool:
    return name not in _LEFT_OUT | _OF_MODELS and not name.endswith("_initializer")


def _plain(value: Any) -> Any:
    """A value as JSON, long ones as a digest; `_OTHER` for objects and functions, whose text may vary."""
    plain = _nested(value)
    if plain is _OTHER:
        return plain
    text = json.dumps(plain)
    if len(text) <= _MAX_CHARACTERS:
        return plain
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _nested(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        found = [_nested(part) for part in value]
        return _OTHER if any(part is _OTHER for part in found) else found
    if not isinstance(value, Mapping):
        return _OTHER
    if value.get("class_name") == "__lambda__":  # byte code with the numbers of its lines
        return _OTHER
    if value.get("class_name") == AccumulatedSchedule.__name__:
        return _nested(value["config"]["schedule"])
    parts = {str(name): _nested(part) for name, part in value.items() if _counts(str(name))}
    return {name: part for name, part in parts.items() if part is not _OTHER}
