"""Trains a model for some steps on two logical devices, or on one of them; runs in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.planning.placements import STAGES
from tfaccel.training.fit import fit
from tfaccel.training.fit_plan import plan_of_model

_WIDTH, _TINY_WIDTH = 4096, 8
_TABLE_WIDTH, _NUM_IDS = 64, 16
_ROWS_OF_SIZE, _TINY_ROWS_OF_SIZE = 1_000_000, 1000
_BATCH, _NUM_STEPS, _NUM_MICRO_BATCHES = 64, 3, 4


def trained(way: str, size: int, kind: str, part_bytes: int) -> dict[str, Any]:
    """Trains; returns the loss of each step and the peak memory of each device, if TensorFlow knows it.

    Args:
        way: "one", "replicated", "sharded", "host", "stages", "table on the device" or "table on the host".
        size: hidden layers, or millions of rows.
        kind: "GPU", of which the first one is divided, or "CPU".
        part_bytes: memory of each logical GPU.
    """
    split(kind, part_bytes)
    keras.utils.set_random_seed(0)
    run = _with_table if way.startswith("table") else _WAYS[way]
    losses = run(way, size, kind)
    names = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices("GPU")]
    peaks = {name: int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names}
    return {"loss": losses, "peak_bytes": peaks}


def split(kind: str, part_bytes: int) -> None:
    """Makes two logical devices of the first one, before TensorFlow starts."""
    limit = {"memory_limit": part_bytes >> 20} if kind == "GPU" else {}
    part = tf.config.LogicalDeviceConfiguration(**limit)
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices(kind)[0], [part, part])


def _layers(size: int, kind: str) -> keras.Model:
    width = _WIDTH if kind == "GPU" else _TINY_WIDTH
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(size)]
    return keras.Sequential([keras.Input((width,)), *hidden, keras.layers.Dense(1)])


def _rows(kind: str) -> tuple[np.ndarray, np.ndarray]:
    width = _WIDTH if kind == "GPU" else _TINY_WIDTH
    x = np.random.default_rng(0).normal(size=(_BATCH * _NUM_STEPS, width)).astype("float32")
    return x, x[:, :1]


def _on_one(way: str, size: int, kind: str) -> list[float]:
    with tf.device(f"{kind}:0"):
        model = _layers(size, kind)
        model.compile("adam", "mse")
        return _losses(model, *_rows(kind), devices=(f"{kind}:0",))


def _mirrored(way: str, size: int, kind: str) -> list[float]:
    with tf.distribute.MirroredStrategy([f"{kind}:0", f"{kind}:1"]).scope():
        model = _layers(size, kind)
        model.compile("adam", "mse")
    return _losses(model, *_rows(kind), optimizer_state=way)


def _in_stages(way: str, size: int, kind: str) -> list[float]:
    with tf.device("CPU:0"):
        model = _layers(size, kind)
    model.compile(keras.optimizers.Adam(gradient_accumulation_steps=_NUM_MICRO_BATCHES), "mse")
    x, y = _rows(kind)
    fields: dict[str, Any] = {"devices": (f"{kind}:0", f"{kind}:1"), STAGES: 2}
    return _losses(model, x, y, batch_size=_BATCH // _NUM_MICRO_BATCHES, **fields)


_WAYS: dict[str, Callable[[str, int, str], list[float]]] = {
    "one": _on_one,
    "replicated": _mirrored,
    "sharded": _mirrored,
    "host": _mirrored,
    "stages": _in_stages,
}


def _with_table(way: str, size: int, kind: str) -> list[float]:
    num_rows = size * (_ROWS_OF_SIZE if kind == "GPU" else _TINY_ROWS_OF_SIZE)
    on_host = way.endswith("host")
    with tf.device("CPU:0") if on_host else contextlib.nullcontext():
        table = keras.layers.Embedding(num_rows, _TABLE_WIDTH)
        table.build()
    layers = [keras.Input((_NUM_IDS,), dtype="int32"), table, keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adagrad(0.01), "mse")
    x = np.random.default_rng(0).integers(0, num_rows, (_BATCH * _NUM_STEPS, _NUM_IDS), dtype=np.int32)
    y = (x[:, :1] % 2).astype("float32")
    place = "host" if on_host else "device"
    return _losses(model, x, y, devices=(f"{kind}:0",), embedding_updates="rows", embeddings_on=place)


def _losses(
    model: keras.Model, x: np.ndarray, y: np.ndarray, *, batch_size: int = _BATCH, **fields: Any
) -> list[float]:
    """Trains for an epoch by `tfaccel.fit`; returns its loss, after it has been seen to be finite."""
    plan = plan_of_model(model, batch_size=batch_size, **fields)
    history = fit(model, x, y, batch_size=batch_size, verbose=0, shuffle=False, plan=plan)
    loss = [float(value) for value in history.history["loss"]]
    if not np.isfinite(loss).all():
        raise RuntimeError(f"The loss is not finite: {loss}.")
    return loss
