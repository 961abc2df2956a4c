"""Trains in pipeline stages, is interrupted, and goes on with other numbers of stages; prints whether it is exact."""

import contextlib
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfaccel import Plan, train

ROWS = np.random.default_rng(0).normal(size=(44, 12)).astype("float32")


def build_model() -> Any:
    blocks = [(keras.layers.Dense(16, activation="tanh"), keras.layers.Dropout(0.2)) for _ in range(3)]
    layers = (layer for block in blocks for layer in block)
    return keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(1)])


def ends(last: int) -> keras.callbacks.Callback:
    """A callback that ends the run in an epoch."""

    def on_epoch_begin(epoch: int, logs: Any) -> None:
        if epoch == last:
            raise InterruptedError

    return keras.callbacks.LambdaCallback(on_epoch_begin=on_epoch_begin)


def weights(folder: Path, *runs: tuple[int, int]) -> list[np.ndarray]:
    """The weights and slots after runs in one directory: each ends before an epoch, and has a number of stages."""
    for last, stages in runs:
        plan = Plan(
            strategy="none",
            devices=tuple(f"CPU:{index}" for index in range(stages)),
            pipeline_stages=stages,
            num_logical_cpus=3,
            global_batch_size=16,
            accumulation_steps=4,
        )
        options: dict[str, Any] = {"loss": "mse", "optimizer": "adam", "resume": "auto", "verbose": 0}
        with contextlib.suppress(InterruptedError):
            train(
                build_model,
                ROWS,
                ROWS[:, :1],
                plan=plan,
                epochs=3,
                run_dir=folder,
                checkpoint_interval=1,
                callbacks=[ends(last)],
                **options,
            )
    model = keras.saving.load_model(next(folder.glob("*.keras")))
    return [one.numpy() for one in (*model.trainable_variables, *model.optimizer.variables)]  # no file has the seeds


def main(folder: str) -> None:
    """Prints "equal" if runs in stages end with the weights of one on one device, also if they are resumed."""
    whole = weights(Path(folder, "whole"), (3, 1))
    for name, runs in {"fewer": ((1, 3), (3, 1)), "more": ((1, 1), (2, 2), (3, 3))}.items():
        found = weights(Path(folder, name), *runs)
        assert all(np.array_equal(*pair) for pair in zip(whole, found, strict=True)), name
    print("equal")
