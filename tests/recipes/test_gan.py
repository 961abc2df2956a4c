"""The recipe for a GAN: what it builds, what it refuses, that replicas train it as one device does, what it leaves."""

import json
import re

import numpy as np
import pytest
from PIL import Image

from tfaccel.data.images.image_set import digits
from tfaccel.errors import DataError, WorkloadError
from tfaccel.recipes import gan as recipe


def test_workload_is_made_without_tensorflow(run_python):
    run_python(
        """
import sys
from tfaccel.recipes import gan
gan.workload(optimizer="lamb", remat=True)
sys.exit(", ".join({"tensorflow", "keras", "sklearn"} & set(sys.modules)) or 0)
""",
        fresh=True,
    )


@pytest.mark.parametrize("image_size", [8, 13, 28, 64])
def test_both_models_take_images_of_every_size(logical_devices, image_size):
    images = digits(image_size)
    generator = recipe.generator(images, latent_size=5, width=16, remat=False)
    assert generator.output.shape == (None, image_size, image_size, 1)
    assert recipe.discriminator(images, width=16, dropout=0.1).output.shape == (None, 1)
    noise, labels = np.full((2, 5), 100, np.float32), np.eye(10, dtype=np.float32)[:2]
    made = np.asarray(generator([noise, labels]))
    assert (made.dtype, np.abs(made).max() <= recipe.MAX_PIXEL) == (np.float32, True)


def test_noise_follows_from_seed_and_epoch(logical_devices):
    work = recipe.workload(latent_size=4)

    def noise_of(seed, epoch):
        return next(work.train_data(64, seed=seed, epoch=epoch).as_numpy_iterator())[0]["noise"]

    assert noise_of(0, 0).shape == (64, 4)
    assert np.array_equal(noise_of(3, 1), noise_of(3, 1))
    assert not np.array_equal(noise_of(3, 1), noise_of(3, 2))
    assert not np.array_equal(noise_of(3, 1), noise_of(4, 1))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"latent_size": 0}, WorkloadError, "`latent_size` must be a whole number of at least 1."),
        ({"width": 12}, WorkloadError, "`width` must be a multiple of 8. Received: width=12."),
        ({"dropout": 1}, WorkloadError, "`dropout` must be a number from 0 to below 1."),
        ({"early_stopping": 3}, WorkloadError, "A GAN has no validation loss for early stopping."),
        ({"data_dir": "nowhere"}, DataError, "There is no folder or file nowhere (`data_dir`)."),
    ],
)
def test_options_that_cannot_be_are_refused(options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        recipe.workload(**options)


def test_a_search_is_told_how_many_samples_are_recognised(logical_devices):
    work = recipe.workload(ema=True)
    assert work.judge is not None
    model = work.build_model()
    model.compile(**work.compile_args(num_steps=9))
    weights = model.generator.get_weights()
    judged = work.judge(model)
    assert sorted(judged) == ["val_recognised"]
    assert 0.0 <= judged["val_recognised"] < 0.5  # untrained
    assert all(np.array_equal(one, other) for one, other in zip(weights, model.generator.get_weights(), strict=True))


RUNS = """
import json, sys
import numpy as np
from tfaccel import Plan
from tfaccel.recipes import gan

options = {"epochs": 1, "global_batch_size": 120, "dropout": 0.0, "seed": 3, "verbose": 0, "data_dir": sys.argv[2]}
for name, strategy, devices in (("one", "none", ("CPU:0",)), ("two", "mirrored", ("CPU:0", "CPU:1"))):
    plan = Plan(strategy=strategy, devices=devices, num_logical_cpus=2, global_batch_size=120, dtype_policy="float32")
    gan.run(run_dir=f"{sys.argv[1]}/{name}", plan=plan, **options)

import keras
weights = [keras.models.load_model(f"{sys.argv[1]}/{name}/model.keras", compile=False).get_weights()
           for name in ("one", "two")]
print(max(float(np.abs(one - two).max()) for one, two in zip(*weights)))
"""


@pytest.mark.slow
def test_two_replicas_train_as_one_device_and_leave_samples(run_python, tmp_path):
    generator = np.random.default_rng(0)
    labels = np.arange(360) % 3
    images = generator.integers(0, 80, (360, 8, 8)) + 80 * labels[:, None, None]
    np.savez(tmp_path / "images.npz", x_train=images, y_train=labels, x_test=images[:9], y_test=labels[:9])
    child = run_python(RUNS, tmp_path, tmp_path / "images.npz")
    assert float(child.stdout) < 2e-4
    judged = json.loads((tmp_path / "two" / "samples.json").read_text())
    assert sorted(judged) == [
        "gaussian_recognised",
        "num_samples",
        "real_test_accuracy",
        "recognised",
        "recognised_by_class",
    ]
    assert sorted(judged["recognised_by_class"]) == ["0", "1", "2"]
    with Image.open(tmp_path / "two" / "samples.png") as picture:
        assert picture.size == (3 * 100 + 8, 8 * 113 + 8)


@pytest.mark.slow
def test_samples_of_digits_are_recognised(run_python, tmp_path):
    code = "import sys; from tfaccel.recipes import gan; gan.run(run_dir=sys.argv[1], seed=int(sys.argv[2]), verbose=0)"
    for seed in range(3):
        run_python(code, tmp_path / str(seed), str(seed), timeout_seconds=500)
    files = [tmp_path / str(seed) / "samples.json" for seed in range(3)]
    assert np.median([json.loads(file.read_text())["recognised"] for file in files]) >= 0.95
