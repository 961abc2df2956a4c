"""The recipe for transfer learning: backbones, stages, LoRA, what it refuses, and what it leaves."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from tfaccel.errors import DataError, WorkloadError
from tfaccel.models.backbones import APPLICATIONS, find_backbone
from tfaccel.planning.plan import Plan
from tfaccel.recipes import transfer_learning as recipe
from tfaccel.training.run.result import TrainResult


def test_workload_is_made_without_tensorflow(run_python):
    run_python(
        """
import sys
from tfaccel.recipes import transfer_learning
transfer_learning.workload(optimizer="lamb", backbone="digits").options
sys.exit(", ".join({"tensorflow", "keras"} & set(sys.modules)) or 0)
""",
        fresh=True,
    )


def built(**options):
    work = recipe.workload(**options)
    return work.build_model(), work


def test_pretrained_backbone_has_learned_and_a_fresh_one_has_not(logical_devices):
    import keras

    from tfaccel.data.images.image_set import few_digits
    from tfaccel.models.backbones import DIGITS_FILE

    network = keras.models.load_model(DIGITS_FILE, compile=False)
    test = few_digits(range(5)).load()[1]
    predictions = network.predict(np.asarray(test.images), verbose=0).argmax(axis=1)
    assert (predictions == test.labels).mean() > 0.98
    kernels = {weight.path: weight.numpy() for weight in network.weights if "kernel" in weight.path}
    for pretrained in (True, False):
        model, _ = built(pretrained=pretrained)
        same = [np.array_equal(kernels[w.path], w.numpy()) for w in model.weights if w.path in kernels]
        assert len(same) == len(kernels) - 1  # without the old head
        assert set(same) == {pretrained}


def test_lora_trains_small_matrices_and_the_head_alone(logical_devices):
    model, _ = built(lora_rank=2)
    names = {weight.path.split("/", 1)[-1] for weight in model.trainable_weights}
    assert {"lora_kernel_a", "lora_kernel_b"} <= {name.rsplit("/", 1)[-1] for name in names}
    small = [weight for weight in model.trainable_weights if "lora" in weight.path]
    assert len(small) == 8
    assert all(2 in weight.shape for weight in small)
    assert not any(
        weight.path.startswith("convolution") and weight.path.endswith("/kernel") for weight in model.trainable_weights
    )


@pytest.mark.slow
def test_rematerialized_backbones_keep_their_weights_and_gradients(logical_devices):
    import keras

    for options in ({}, {"backbone": "MobileNetV3Small", "pretrained": False, "image_size": 32}):
        keras.utils.set_random_seed(0)
        plain, work = built(dropout=0.0, **options)
        keras.utils.set_random_seed(0)
        again, _ = built(dropout=0.0, remat=True, **options)
        images, labels = next(iter(work.train_data(20, seed=0, epoch=0)))
        losses = []
        for model in (plain, again):
            model.compile("sgd", keras.losses.CategoricalCrossentropy(from_logits=True))
            losses.append([float(model.train_on_batch(images, labels)) for _ in range(2)])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_several_workers_are_told_why_nothing_is_compared(logical_devices, tmp_path, caplog):
    work = recipe.workload()
    work.build_model().save(tmp_path / "model.keras")
    plan = Plan(strategy="multi_worker_mirrored", devices=("CPU:0",), num_workers=2, global_batch_size=20)
    result = TrainResult(
        recipe=work.name,
        plan=plan,
        history={"val_accuracy": [0.5]},
        final={"accuracy": 0.5, "loss": 1.0},
        examples_per_second=1.0,
        step_seconds={},
        first_step_seconds=1.0,
        wall_seconds=1.0,
        hardware={},
        versions={},
        run_dir=str(tmp_path),
    )
    with caplog.at_level("WARNING", "tfaccel"):
        recipe.show_result(work, result)
    assert "the comparison with training from scratch: only one of the 2 workers shows results" in caplog.text
    assert list(json.loads((tmp_path / "comparison.json").read_text())) == ["fine-tuned"]


def test_networks_of_keras_take_grey_images(logical_devices):
    model, work = built(backbone="MobileNetV3Small", pretrained=False, image_size=32)
    assert (model.input_shape, model.output_shape) == ((None, 32, 32, 1), (None, 5))
    assert work.options["backbone"] == "MobileNetV3Small"


def test_a_model_of_your_own_loses_its_old_head(logical_devices, tmp_path):
    import keras

    old = [keras.Input((16, 16, 3)), keras.layers.Conv2D(6, 3), keras.layers.GlobalAveragePooling2D()]
    keras.Sequential([*old, keras.layers.Dense(7)]).save(tmp_path / "own.keras")
    model, _ = built(backbone=str(tmp_path / "own.keras"))
    assert (model.input_shape, model.output_shape) == ((None, 16, 16, 1), (None, 5))
    assert model.get_layer("backbone").output_shape == (None, 6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"backbone": "MobileNetV"}, WorkloadError, "There is no backbone 'MobileNetV'. Did you mean 'MobileNetV2"),
        ({"backbone": "no.keras"}, WorkloadError, "There is no file no.keras (`backbone`)."),
        ({"image_size": 16}, WorkloadError, "The backbone digits needs images of 8 pixels. Received: 16."),
        ({"backbone": "Xception", "image_size": 32}, WorkloadError, "needs images of 71 or more pixels"),
        ({"num_stages": 0}, WorkloadError, "`num_stages` must be a whole number of at least 1."),
        ({"head_width": -1}, WorkloadError, "`head_width` must be a whole number of at least 0."),
        ({"lora_rank": 0}, WorkloadError, "`lora_rank` must be a whole number of at least 1."),
        ({"data_dir": "nowhere"}, DataError, "There is no folder or file nowhere (`data_dir`)."),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recipe.workload(**options)


def test_files_that_are_no_models_are_refused(tmp_path):
    (tmp_path / "text.keras").write_text("no zip")
    with pytest.raises(WorkloadError, match=r"Cannot read .*text.keras"):
        find_backbone(tmp_path / "text.keras")
    assert {find_backbone(name).num_channels for name in APPLICATIONS} == {3}


def test_weights_that_cannot_be_downloaded_are_said(logical_devices, monkeypatch):
    import keras

    def fail(**arguments):
        raise OSError("URL fetch failure")

    monkeypatch.setattr(keras.applications, "MobileNetV2", fail)
    with pytest.raises(WorkloadError, match=r"Cannot download the ImageNet weights of MobileNetV2: URL fetch failure"):
        recipe.workload(backbone="MobileNetV2").build_model()


RUN = """
import sys
from tfaccel import Plan
from tfaccel.recipes import transfer_learning

devices = ("CPU:0", "CPU:1")
plan = Plan(strategy="mirrored", devices=devices, num_logical_cpus=2, global_batch_size=20, dtype_policy="float32")
transfer_learning.run(run_dir=sys.argv[1], plan=plan, verbose=0, epochs=2)

import keras
print(len(keras.models.load_model(sys.argv[1] + "/model.keras").optimizer.optimizers))
"""


@pytest.mark.slow
def test_run_leaves_both_accuracies(run_python, tmp_path):
    assert run_python(RUN, tmp_path / "run").stdout.split()[-1] == "3"
    compared = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert {way: sorted(values) for way, values in compared.items()} == {
        "fine-tuned": ["accuracy", "by_epoch", "loss"],
        "from scratch": ["accuracy", "by_epoch", "loss"],
    }
    assert {len(values["by_epoch"]) for values in compared.values()} == {2}
    assert (tmp_path / "run" / "curves.png").exists()
    assert json.loads((tmp_path / "run" / "classes.json").read_text()) == list("56789")
    assert (tmp_path / "run" / "from_scratch" / "result.json").exists()
    with Image.open(tmp_path / "run" / "predictions.png") as picture:
        assert picture.width == 10 * 100 + 8
