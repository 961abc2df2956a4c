"""Trains on a folder of damaged TFRecord files, and prints what came out; see `test_bad_data_runs`."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np

import tfaccel
from tfaccel import Plan
from tfaccel.data import write_tfrecords

PLANS = {
    "none": {"strategy": "none", "devices": ("CPU:0",)},
    "mirrored_2": {"strategy": "mirrored", "devices": ("CPU:0", "CPU:1"), "num_logical_cpus": 2},
    "workers_2": {"strategy": "multi_worker_mirrored", "devices": ("CPU:0",), "num_workers": 2},
}


def write_images(folder, *, numbers=range(120), num_shards=3):
    from PIL import Image

    def picture(number):
        pixels = np.random.default_rng(number).integers(0, 100, (8, 8), np.uint8) + 100 * (number % 2)
        file = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
        return file.getvalue()

    examples = ({"image/encoded": picture(n), "image/class/text": "ab"[n % 2]} for n in numbers)
    return write_tfrecords(examples, folder, num_shards=num_shards)


def write_damaged(folder):
    """Three files with 40 records each; records 3, 20 and 21 of the second, and the last of the third, are damaged.

    Returns the numbers of the others, in order.
    """
    files = write_images(folder)
    content, place = bytearray(files[1].read_bytes()), 0
    for record in range(40):
        length = int.from_bytes(content[place : place + 8], "little")
        if record in (3, 20, 21):
            content[place + 40] ^= 1
        place += 16 + length
    files[1].write_bytes(content)
    files[2].write_bytes(files[2].read_bytes()[:-7])
    lost = {3 * record + 1 for record in (3, 20, 21)} | {119}
    return [number for number in sorted(range(120), key=lambda n: (n % 3, n)) if number not in lost]


def once(data_dir, run_dir, *, plan="none", callbacks=(), **options):
    """The sums of the weights, and the counts of the result."""
    from tfaccel.recipes import image_classification

    work = image_classification.workload(data_dir=data_dir, width=4, augmentation="none", **options)
    result = tfaccel.train(
        work,
        Plan(**PLANS[plan], global_batch_size=16),
        run_dir=run_dir,
        epochs=3,
        resume="auto",
        checkpoint_interval=2,
        verbose=0,
        callbacks=callbacks,
    )
    import keras

    file = Path(run_dir) / "model.keras"
    weights = keras.models.load_model(file, compile=False).get_weights() if file.exists() else []
    return [float(np.sum(np.float64(w) ** 2)) for w in weights], result.bad_data


def die_at(step):
    import keras

    class Die(keras.callbacks.Callback):
        """Ends the process after some steps."""

        num_steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.num_steps += 1
            if self.num_steps == step:
                os._exit(7)

    return Die()


def refused(of, folder, run_dir):
    """Prints the error if this worker has data of its own, for `train` or for `fit` with arrays."""
    import keras
    import tensorflow as tf

    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    try:
        if of == "train":
            own = str(Path(folder) / f"worker_{index}")
            once(own, run_dir, plan="workers_2", on_bad_data="skip", max_bad_fraction=0.1)
        with tf.distribute.MultiWorkerMirroredStrategy().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.delete(np.random.default_rng(0).normal(size=(82, 4)), 70 + index, axis=0)
        tfaccel.fit(model, x, x[:, :1], batch_size=16, shuffle=False, verbose=0)
    except tfaccel.TfaccelError as error:
        print(f"{type(error).__name__}: {error}")


def main(data_dir, run_dir, plan, dies_at):
    callbacks = [die_at(int(dies_at))] if int(dies_at) else []
    options = {"on_bad_data": "skip", "max_bad_fraction": 0.1}
    print(json.dumps(once(data_dir, run_dir, plan=plan, callbacks=callbacks, **options)))


if __name__ == "__main__":
    refused(*sys.argv[2:]) if sys.argv[1] == "refused" else main(*sys.argv[1:])
