"""A worker that builds a model with initial values of its own; prints the values that it has in the end."""

import json
import os

import keras
import numpy as np

from tfaccel import Plan, Runtime
from tfaccel.training.private import private_workers
from tfaccel.training.steps import embeddings

SHAPES = [(3,), (4, 2), (2, 2, 2), ()]


def build(seed):
    """Variables of several dtypes, in an order that packs must undo."""
    rng = np.random.default_rng(seed)
    found = []
    for shape in SHAPES:
        for dtype in ("float32", "int32", "bool", "float16", "int64", "bfloat16", "uint32", "int8"):
            value = rng.integers(0, 2 if dtype == "bool" else 100, shape)
            found.append(keras.Variable(value, dtype=dtype, trainable=dtype == "float32"))
        on_read = {"synchronization": "on_read", "aggregation": "sum", "trainable": False}
        found.append(keras.Variable(rng.normal(size=shape), dtype="float32", **on_read))
    found[0].assign(found[0] + 1.0)  # what building changes counts, too
    return found


def values(variables, strategy):
    """Of each variable on each replica of this worker."""
    parts = [strategy.experimental_local_results(one.value) for one in variables]
    return [[np.asarray(part, "float64").tolist() for part in one] for one in parts]


def main():
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    plan = Plan(strategy="multi_worker_mirrored", devices=("CPU:0",), num_workers=2, global_batch_size=8)
    with Runtime(plan) as runtime, runtime.strategy.scope():
        found = []
        for pack_bytes in (private_workers._PACK_BYTES, 20):
            private_workers._PACK_BYTES = pack_bytes
            with private_workers.broadcast_at_once():
                variables = build(index)
            found.append(values(variables, runtime.strategy))
        with embeddings.tables_created_on_host(), private_workers.broadcast_at_once():
            table = keras.layers.Embedding(7, 3, embeddings_initializer=keras.initializers.RandomNormal(seed=index + 1))
            table.build()
        found.append(table.get_weights()[0].tolist())
        with private_workers.broadcast_at_once():
            zero = keras.Variable(np.zeros(3, "float32"))
            zero_on_one = keras.Variable(np.full(3, float(index), "float32"))
            private_workers._PACK_BYTES = 8  # the next ones are large
            large_zero = keras.Variable(np.zeros(4, "float32"))
            large_zero_on_one = keras.Variable(np.full(4, 1.0 - index, "float32"))
        found.append([v.numpy().tolist() for v in (zero, zero_on_one, large_zero, large_zero_on_one)])
        later = keras.Variable(float(index))  # after the block, as TensorFlow does it
        found.append(float(keras.ops.convert_to_numpy(later)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
