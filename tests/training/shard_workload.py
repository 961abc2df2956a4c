"""For tests of sharded data: a worker that trains on whole batches first, and then on its own rows of each batch."""

import hashlib
import json
import os
import sys
import threading
import time
from typing import Any

import numpy as np

from tfaccel import Plan, Runtime, Workload, train
from tfaccel.errors import PlanError

NUM_ROWS, BATCH = 44, 8
READ: list[int] = []


def workload(*, sharded: bool) -> Workload:
    def build_model() -> Any:
        import keras

        layers = [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.ReLU(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((4,)), *layers])

    def pipeline() -> Any:
        import tensorflow as tf

        from tfaccel.data.pipeline import Augmentation, Pipeline

        generator, lock = np.random.default_rng(0), threading.Lock()
        x = generator.normal(size=(NUM_ROWS, 4)).astype(np.float32)
        y = (x @ generator.normal(size=(4, 1))).astype(np.float32)

        def read(rows: Any) -> Any:
            def noted(numbers: Any) -> list[Any]:
                with lock:
                    READ.extend(numbers.tolist())
                return [x[numbers], y[numbers]]

            pair = tf.numpy_function(noted, [rows], [tf.float32, tf.float32])
            return tf.ensure_shape(pair[0], [rows.shape[0], 4]), tf.ensure_shape(pair[1], [rows.shape[0], 1])

        noise = Augmentation(
            lambda generator, count: generator.standard_normal((count, 4), np.float32) / 10,
            lambda pair, numbers: (pair[0] + numbers, pair[1]),
        )
        return Pipeline(read, num_examples=NUM_ROWS, augmentation=noise, cache=None)

    def train_data(global_batch_size: int, *, seed: int, epoch: int, shard: Any = None) -> Any:
        return pipeline().train(global_batch_size, seed=seed, epoch=epoch, shard=shard)

    def whole_train_data(global_batch_size: int, *, seed: int, epoch: int) -> Any:
        return train_data(global_batch_size, seed=seed, epoch=epoch)

    def validation_data(global_batch_size: int) -> Any:  # else the chief reads training rows again, for exports
        import tensorflow as tf

        zeros = np.zeros((global_batch_size, 4), np.float32)
        return tf.data.Dataset.from_tensors((zeros, zeros[:, :1]))

    return Workload(
        "sharded" if sharded else "whole",
        build_model,
        lambda: {"optimizer": "adam", "loss": "mse", "metrics": ["mae"]},
        train_data if sharded else whole_train_data,
        validation_data,
        global_batch_size=BATCH,
    )


def plan_of(communication: str = "tensorflow_default") -> Plan:
    return Plan(
        strategy="multi_worker_mirrored",
        devices=("CPU:0",),
        num_workers=2,
        global_batch_size=BATCH,
        communication=communication,
    )


def outcome(run_dir: str, *, sharded: bool) -> dict[str, Any]:
    import keras

    READ.clear()
    plan = plan_of()
    result = train(workload(sharded=sharded), plan, run_dir=run_dir, epochs=2, seed=1, verbose=0)
    weights = keras.models.load_model(f"{run_dir}/model.keras", compile=False).get_weights()
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()
    return {"weights": digest, "history": result.history, "num_read": len(READ)}


def main(run_dir: str) -> None:
    whole = outcome(f"{run_dir}/whole", sharded=False)
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        time.sleep(3)  # the other worker starts its second training run well before this one
    shared = outcome(f"{run_dir}/shared", sharded=True)
    refused = ""
    try:
        Runtime(plan_of("ring")).__enter__()
    except PlanError as error:
        refused = str(error)
    sys.stdout.write(json.dumps([whole, shared, refused]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
