"""A small workload, spaces whose trials end in every way there is, and what such a search has written."""

import ctypes
import json
import os
import signal
import time

from tfaccel import Workload

NUM_ROWS = 32


def data(batch_size, **place):
    import tensorflow as tf

    del place
    x = tf.reshape(tf.range(float(NUM_ROWS)) / NUM_ROWS, (NUM_ROWS, 1))
    return tf.data.Dataset.from_tensor_slices((x, 2.0 * x + 1.0)).batch(batch_size)


def workload(*, learning_rate: float = 0.1, width: int = 4):
    def build_model():
        import keras

        layers = [keras.layers.Dense(width, activation="relu"), keras.layers.Dense(1, dtype="float32")]
        return keras.Sequential([keras.Input((1,)), *layers])

    def compile_args():
        import keras

        return {"optimizer": keras.optimizers.SGD(learning_rate), "loss": "mse", "metrics": ["mae"]}

    def train_data(batch_size, *, seed, epoch):
        return data(batch_size)

    return Workload(
        "lines",
        build_model,
        compile_args,
        train_data,
        data,
        global_batch_size=8,
        epochs=2,
        num_train_examples=NUM_ROWS,
        options={"learning_rate": learning_rate},
    )


def compiled(learning_rate=0.1, width=4):
    work = workload(learning_rate=learning_rate, width=width)
    model = work.build_model()
    model.compile(**work.compile_args())
    return model


def build_with_batch_normalization(hp):
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile(keras.optimizers.SGD(hp.Choice("learning_rate", [0.05, 0.1])), "mse")
    return model


def build(hp):
    """Compiled models of several widths."""
    return compiled(hp.Float("learning_rate", 1e-3, 0.3, sampling="log"), hp.Int("width", 2, 16))


def end_somehow(hp):
    """A trial for each way to end."""
    endings = ["well", "raises", "nan", "killed", "faults", "exits", "hangs", "memory", "well again"]
    ending = hp.Choice("ending", endings)
    if ending == "raises":
        raise ValueError("this one is broken")
    if ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "faults":
        ctypes.string_at(0)
    if ending == "exits":
        os._exit(3)
    if ending == "hangs":
        time.sleep(1000)
    if ending == "memory":
        raise MemoryError
    return compiled(1e30 if ending == "nan" else 0.1)


def end_softly(hp):
    """The endings that need no further process; all fail where the plan's dtype policy does not hold."""
    import keras

    policy = keras.config.dtype_policy().name
    if policy != "mixed_bfloat16":
        raise ValueError(f"built in {policy}")
    ending = hp.Choice("ending", ["well", "raises", "nan", "well again"])
    if ending == "raises":
        raise ValueError("this one is broken")
    return compiled(1e30 if ending == "nan" else 0.1)


def under_two_replicas(hp):
    """Trials that fail where the plan's strategy or dtype policy does not hold."""
    import keras
    import tensorflow as tf

    found = tf.distribute.get_strategy().num_replicas_in_sync, keras.config.dtype_policy().name
    if found != (2, "mixed_bfloat16"):
        raise ValueError(f"built under {found}")
    return build(hp)


def odd_metrics(hp):
    """A model with a metric that is NaN, and hyperparameters that are there under a condition only."""
    import keras

    def never(targets, outputs):
        return keras.ops.mean(targets) * float("nan")

    hp.Fixed("momentum", 0.5)
    width = 4
    kind = hp.Choice("kind", ["narrow", "wide"])
    with hp.conditional_scope("kind", ["wide"]):
        if kind == "wide":
            width = hp.Int("width", 8, 16)
    work = workload(width=width)
    model = work.build_model()
    model.compile(**{**work.compile_args(), "metrics": ["mae", never]})
    return model


def slow_arguments(hp):
    """Arguments of the workload's function, each trial taking a second or so."""
    time.sleep(1.0)
    return {"learning_rate": hp.Float("learning_rate", 1e-3, 0.3, sampling="log"), "width": hp.Int("width", 2, 16)}


def nothing_free(hp):
    """No free parameter."""
    return {"width": hp.Fixed("width", 4)}


def slow_grid(hp):
    """Eight trials, none of which fails, each taking a while."""
    time.sleep(1.0)
    return compiled(hp.Choice("learning_rate", [0.1, 0.2]), hp.Choice("width", [2, 4, 6, 8]))


def uncompiled(hp):
    """A model that is not compiled."""
    return workload(width=hp.Int("width", 2, 16)).build_model()


def wrong_argument(hp):
    """An argument that the workload's function does not take."""
    return {"lerning_rate": hp.Float("lerning_rate", 1e-3, 0.3)}


def lines(run_dir):
    """The trials that a search has written."""
    return [json.loads(line) for line in (run_dir / "trials.jsonl").read_text().splitlines()]


def by_ending(result):
    """The rows of a search over ways to end, by these."""
    return {row.hyperparameters["ending"]: row for row in result.rows}
