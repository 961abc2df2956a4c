"""The recipe for images: what it plans for, what it builds, and that it learns and leaves what it says."""

import io
import json
import re
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.images.image_set import digits
from tfaccel.data.tfrecord_files import write_tfrecords
from tfaccel.errors import DataError, WorkloadError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.candidates import default_plan
from tfaccel.recipes import image_classification as recipe

SIZES = [(8, 1, 10), (28, 1, 2), (64, 3, 5), (128, 3, 7)]


def image_set(image_size, num_channels, num_classes):
    names = tuple(map(str, range(num_classes)))
    return replace(digits(), image_size=image_size, num_channels=num_channels, class_names=names)


def test_workload_is_made_without_tensorflow(run_python):
    run_python(
        """
import sys
from tfaccel.recipes import image_classification
image_classification.workload(optimizer="lamb", remat=True)
sys.exit(", ".join({"tensorflow", "keras", "sklearn"} & set(sys.modules)) or 0)
""",
        fresh=True,
    )


def test_workload_says_what_rules_need():
    work = recipe.workload()
    assert (work.name, work.global_batch_size, work.epochs) == ("image_classification", 64, 24)
    assert work.num_train_examples == 1437
    assert work.raw_input.class_names == tuple("0123456789")
    assert default_plan(Hardware(), work).global_batch_size == 64


DEEPER = {"width": 12, "num_blocks": 3}


def build(shape, *, width=32, num_blocks=1, remat=False):
    return recipe.build_model(image_set(*shape), width=width, num_blocks=num_blocks, remat=remat)


@pytest.mark.parametrize(("shape", "filters"), [(SIZES[0], [32, 64]), (SIZES[1], [32, 64, 128, 256])])
def test_blocks_halve_the_image_and_double_the_filters(logical_devices, shape, filters):
    blocks = [layer for layer in build(shape).layers if "block" in layer.name]
    assert [block.output.shape[-1] for block in blocks] == filters
    deeper = [layer.output.shape[1:] for layer in build(shape, **DEEPER).layers if "block" in layer.name]
    size = shape[0]
    assert deeper[:4] == [(size, size, 12)] * 3 + [(size // 2, size // 2, 24)]
    assert len(deeper) == 3 * len(filters)


@pytest.mark.parametrize("shape", SIZES)
def test_model_takes_raw_pixels_and_gives_float32_logits(logical_devices, shape):
    import keras

    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_bfloat16")
        model = build(shape, remat=True)
    finally:
        keras.config.set_dtype_policy(policy)
    logits = model(np.full((2, shape[0], shape[0], shape[1]), 255, np.uint8))
    assert (tuple(logits.shape), logits.dtype) == ((2, shape[2]), "float32")
    assert model.layers[-2].compute_dtype == "bfloat16"
    assert min(int(block.output.shape[1]) for block in model.layers if "block" in block.name) >= 4


def test_learning_rate_rises_then_falls_to_almost_nothing(logical_devices):
    work = recipe.workload(learning_rate=0.5)
    num_steps = 10 * (1437 // 64)
    optimizer = work.compile_args(num_steps=num_steps)["optimizer"]
    rates = []
    for step in (0, 11, 22, num_steps // 2, num_steps, 2 * num_steps):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer.learning_rate))
    first = 0.5 / 22
    assert rates[:3] == pytest.approx([first, (first + 0.5) / 2, 0.5])
    assert rates[2] > rates[3] > 0.2
    assert rates[4] == rates[5] == pytest.approx(0.0005)


def test_shortest_run_has_a_learning_rate(logical_devices):
    optimizer = recipe.workload().compile_args(num_steps=1)["optimizer"]
    optimizer.iterations.assign(1)
    assert np.isfinite(float(optimizer.learning_rate))


def test_labels_are_smoothed(logical_devices):
    loss = recipe.workload(label_smoothing=0.2).compile_args(num_steps=9)["loss"]
    logits = np.log(np.array([[0.9, 0.1]], "float32"))
    expected = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert float(loss(np.array([[1.0, 0.0]], "float32"), logits)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": "adamm"}, WorkloadError, "Keras has no optimizer 'adamm'. Did you mean 'adam"),
        ({"optimiser": "adam"}, WorkloadError, "There is no option 'optimiser'. Did you mean 'optimizer'?"),
        ({"width": 0}, WorkloadError, "`width` must be a whole number of at least 1. Received: width=0."),
        ({"num_blocks": 1.5}, WorkloadError, "`num_blocks` must be a whole number of at least 1."),
        ({"label_smoothing": 1.0}, WorkloadError, "`label_smoothing` must be a number from 0 to below 1."),
        ({"augmentation": "spin"}, WorkloadError, "`augmentation` must be one of moves, none, flip, crop,"),
        ({"data_dir": "nowhere"}, DataError, "There is no folder or file nowhere (`data_dir`)."),
        ({"image_size": 4}, DataError, "`image_size` must be a whole number from 8 to 512 pixels."),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recipe.workload(**options)


def test_data_of_your_own_decides_the_model(logical_devices, tmp_path):
    x = np.zeros((4, 40, 30, 3), np.uint8)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=np.arange(4), x_test=x, y_test=np.arange(4))
    work = recipe.workload(data_dir=tmp_path / "data.npz")
    assert (work.num_train_examples, work.raw_input.class_names) == (4, ("0", "1", "2", "3"))
    smaller = recipe.workload(data_dir=tmp_path / "data.npz", image_size=8)
    assert smaller.build_model().count_params() < work.build_model().count_params()


def test_augmentation_changes_batches_but_not_their_order(logical_devices):
    def first_batch(augmentation):
        work = recipe.workload(augmentation=augmentation)
        return next(work.train_data(64, seed=0, epoch=0).as_numpy_iterator())

    moves, none, cutout = (first_batch(name) for name in ("moves", "none", "cutout"))
    assert np.array_equal(moves[1], none[1])
    assert np.array_equal(moves[1], cutout[1])
    assert not np.array_equal(moves[0], none[0])
    assert not np.array_equal(moves[0], cutout[0])
    assert set(np.unique(none[0])) <= {float(round(value * 255 / 16)) for value in range(17)}


RUN = """
import json, sys
from tfaccel import Plan
from tfaccel.recipes import image_classification

plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=64, steps_per_execution=22)
result = image_classification.run(run_dir=sys.argv[1], plan=plan, verbose=0, **json.loads(sys.argv[2]))
print(json.dumps(result.to_json()))
"""


@pytest.mark.slow
def test_run_learns_and_leaves_a_picture_and_the_classes(run_python, tmp_path):
    child = run_python(RUN, tmp_path / "run", json.dumps({"epochs": 4}))
    result = json.loads(child.stdout)
    assert result["recipe"] == "image_classification"
    assert result["final"]["accuracy"] > 0.9
    assert len(result["history"]["val_accuracy"]) == 4
    with Image.open(tmp_path / "run" / "predictions.png") as picture:
        assert picture.width == 10 * 100 + 8
        assert picture.height > 6 * 113
    assert json.loads((tmp_path / "run" / "classes.json").read_text()) == list("0123456789")


@pytest.mark.slow
def test_digits_reach_the_expected_accuracy(run_python, tmp_path):
    runs = [run_python(RUN, tmp_path / str(seed), json.dumps({"seed": seed}), timeout_seconds=500) for seed in range(5)]
    assert np.median([json.loads(run.stdout)["final"]["accuracy"] for run in runs]) >= 0.993


@pytest.mark.parametrize("augmentation", ["moves", "mixup"])
def test_an_epoch_can_be_entered_anywhere_and_shared(logical_devices, augmentation):
    train_data = recipe.workload(augmentation=augmentation).train_data
    whole = list(train_data(64, seed=1, epoch=2).as_numpy_iterator())
    shares = [
        list(train_data(64, seed=1, epoch=2, start_step=20, shard=(index, 2)).as_numpy_iterator()) for index in range(2)
    ]
    assert [len(share) for share in shares] == [2, 2]
    for images_and_labels, *parts in zip(whole[20:], *shares, strict=True):
        for expected, *found in zip(images_and_labels, *parts, strict=True):
            assert [len(part) for part in found] == [32, 32]
            assert np.array_equal(expected, np.concatenate(found))


@pytest.mark.parametrize("augmentation", get_args(get_type_hints(recipe.workload)["augmentation"]))
def test_batches_can_be_augmented_wherever_training_runs(logical_devices, augmentation):
    import tensorflow as tf

    work = recipe.workload(augmentation=augmentation)
    assert (work.augment is None) == (augmentation == "none")
    assert work.augment_mixes_rows == (augmentation not in ("none", "moves"))
    if work.augment is None:
        return
    options = {"seed": 1, "epoch": 2, "start_step": 21}
    augmented = list(work.train_data(64, **options).as_numpy_iterator())
    before = list(work.train_data(64, **options, augmented=False))
    with tf.device(logical_devices[1].name):
        for (images, labels), batch in zip(augmented, before, strict=True):
            found = work.augment(batch)
            assert found[0].device.endswith(logical_devices[1].name)
            np.testing.assert_allclose(found[0], images, atol=1e-3)
            np.testing.assert_allclose(found[1], labels, atol=1e-6)


def test_places_of_data_are_told_the_same_in_every_folder(tmp_path):
    write_tfrecords(
        [{"image/encoded": png_bytes(number), "image/class/label": number % 2} for number in range(8)], tmp_path
    )
    work = recipe.workload(data_dir=tmp_path, cache="none")
    assert (work.num_train_examples, work.raw_input.class_names) == (6, ("0", "1"))
    assert work.options["data_dir"] == str(tmp_path)
    assert "cache" not in work.options  # it decides nothing about the outcome
    with pytest.raises(WorkloadError, match="cache"):
        recipe.workload(cache="ram")


def png_bytes(value):
    file = io.BytesIO()
    Image.new("L", (8, 8), value).save(file, "PNG")
    return file.getvalue()
