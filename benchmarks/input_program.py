"""Times input pipelines on JPEG images: tfaccel's, and plain `tf.data` with automatic settings.

    python -m tfaccel.benchmarks.input_program '{"num_images": 2048, "repetitions": 7}'

Each run makes a new pipeline, shuffles in each epoch, and reads three epochs of full batches; nothing is trained. The
files are 256x256 pixels and become 128x128. "tfaccel" is what `tfaccel train` reads; it decodes each image once, in the
first epoch, and keeps it in memory. "tfaccel, without a cache" is what it reads if the images do not fit, and "tfaccel,
1 data worker" (or 2) the same with `--data_service=1` (or 2), whose processes have started before. "tf.data"
decodes and resizes with the same operations, with `AUTOTUNE` for its threads and prefetching. A fourth one is Keras's
`image_dataset_from_directory`, which resizes without anti-aliasing. Listing the files comes before and does not count.
The runs are interleaved; the first of each is discarded. The program writes the seconds of each epoch to standard
output, as JSON.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from PIL import Image

from tfaccel.benchmarks.input_figures import KERAS, NUM_EPOCHS, OURS, PLAIN, SERVED, UNCACHED
from tfaccel.data.images.files import read_image_set
from tfaccel.data.images.image_data import ImageData
from tfaccel.extras.data_service.data_service import DataService
from tfaccel.hardware.detect import detect_hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.workload_source import with_plan

FILE_SIZE, IMAGE_SIZE = 256, 128
_BATCH = 128
_CLASSES = ("one", "two")

MakeEpoch = Callable[[int], tf.data.Dataset]


def write_images(folder: Path, num_images: int) -> None:
    """Writes JPEG files for training, in a folder for each class, and a few for testing."""
    generator = np.random.default_rng(0)
    for part, count in (("train", num_images), ("test", 2 * len(_CLASSES))):
        for number in range(count):
            path = folder / part / _CLASSES[number % len(_CLASSES)] / f"{number:05}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(generator.integers(0, 256, (32, 32, 3), dtype=np.uint8))
            pixels = np.asarray(coarse.resize((FILE_SIZE, FILE_SIZE), Image.Resampling.BICUBIC), dtype=np.int16)
            noise = generator.integers(-8, 9, pixels.shape, dtype=np.int16)
            Image.fromarray(np.uint8(np.clip(pixels + noise, 0, 255))).save(path, quality=90)


def tfaccel_epochs(folder: Path, *, cache: Any = "auto") -> MakeEpoch:
    """tfaccel's pipeline, as `tfaccel train` reads it."""
    work = image_workload(folder, cache=cache)
    plan = default_plan(detect_hardware(), work)
    return lambda epoch: with_plan(work.train_data(_BATCH, seed=0, epoch=epoch), plan, "train_data")


def image_workload(folder: Path, *, cache: Any) -> Workload:
    """A workload that reads the images of a folder."""
    data = ImageData(read_image_set(folder, image_size=IMAGE_SIZE), augmentation="none", cache=cache)
    return Workload("jpeg_images", keras.Sequential, dict, data=data, global_batch_size=_BATCH)


def served_pipelines(folder: Path, stack: contextlib.ExitStack) -> dict[str, Callable[[Path], MakeEpoch]]:
    """tfaccel's pipeline without a cache, prepared by data workers that end with the stack."""
    pipelines: dict[str, Callable[[Path], MakeEpoch]] = {}
    for num_workers, name in SERVED.items():
        work = image_workload(folder, cache="none")
        plan = default_plan(detect_hardware(), work, data_service=num_workers)
        service = stack.enter_context(
            contextlib.closing(DataService(work, plan, inspect.signature(work.train_data).parameters))
        )
        service.start(service.parts(_maker(work), 0, 0))
        pipelines[name] = functools.partial(_served_epochs, service, plan)
    return pipelines


def _served_epochs(service: DataService, plan: Plan, folder: Path) -> MakeEpoch:
    make = _maker(image_workload(folder, cache="none"))
    return lambda epoch: with_plan(service.epoch(service.parts(make, epoch, 0)), plan, "train_data")


def _maker(work: Workload) -> Callable[..., tf.data.Dataset]:
    def make(epoch: int, start_step: int, every: Any) -> Any:
        return work.train_data(_BATCH, seed=0, epoch=epoch, start_step=start_step, every=every)

    return make


def plain_epochs(folder: Path) -> MakeEpoch:
    """A plain `tf.data` pipeline with the same operations."""
    files = [(str(path), label) for label, name in enumerate(_CLASSES) for path in (folder / "train" / name).iterdir()]
    paths, labels = zip(*sorted(files), strict=True)

    def read(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        decoded = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        resized = tf.round(tf.image.resize(decoded, [IMAGE_SIZE, IMAGE_SIZE], antialias=True))
        return tf.ensure_shape(resized, [IMAGE_SIZE, IMAGE_SIZE, 3]), tf.one_hot(label, len(_CLASSES))

    batches = (
        tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))
        .shuffle(len(paths), seed=0)
        .map(read, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(_BATCH, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
    return lambda epoch: batches


def keras_epochs(folder: Path) -> MakeEpoch:
    """Keras's own pipeline for folders of images, as its guides use it."""
    batches = keras.utils.image_dataset_from_directory(
        str(folder / "train"),
        label_mode="categorical",
        batch_size=_BATCH,
        image_size=(IMAGE_SIZE, IMAGE_SIZE),
        seed=0,
        verbose=False,
    ).prefetch(tf.data.AUTOTUNE)
    return lambda epoch: batches


PIPELINES: dict[str, Callable[[Path], MakeEpoch]] = {
    OURS: tfaccel_epochs,
    UNCACHED: lambda folder: tfaccel_epochs(folder, cache="none"),
    PLAIN: plain_epochs,
    KERAS: keras_epochs,
}


def timed(make_epoch: MakeEpoch) -> list[float]:
    """The seconds of each epoch, from making its dataset to its last batch."""
    seconds = []
    for epoch in range(NUM_EPOCHS):
        started = time.perf_counter()
        for _ in make_epoch(epoch):
            pass
        seconds.append(time.perf_counter() - started)
    return seconds


def main(argv: list[str]) -> int:
    """Measures; returns the exit status."""
    task = json.loads(argv[0])
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    num_images = task["num_images"] // _BATCH * _BATCH
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, num_images)
        with contextlib.ExitStack() as stack:
            pipelines = PIPELINES | served_pipelines(folder, stack)
            found: dict[str, list[list[float]]] = {name: [] for name in pipelines}
            for repetition in range(task["repetitions"] + 1):
                for pipeline, prepare in pipelines.items():
                    seconds = timed(prepare(folder))
                    if repetition:
                        found[pipeline].append(seconds)
    output.write(json.dumps({"num_images": num_images, "epoch_seconds": found}))
    output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
