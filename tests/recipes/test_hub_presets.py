"""Recipes and your own training that start from presets of KerasHub: folders with small random networks."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from own_data import PROGRAM
from own_texts import write_own_texts

from tfaccel.errors import WorkloadError
from tfaccel.layers import find_backbone
from tfaccel.recipes import text_classification, transfer_learning

needs_hub = pytest.mark.skipif(importlib.util.find_spec("keras_hub") is None, reason="needs keras-hub")
WRITER = Path(__file__).with_name("hub_presets.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("presets")


@pytest.fixture
def presets(folder, run_python):
    """A folder with two presets, "bert" and "vit", and texts of a user's own."""
    if not (folder / "labels.csv").exists():
        run_python(WRITER.read_text(), folder)
        write_own_texts(folder)
    return folder


FEATURES = """
import sys

import keras
import keras_hub
import numpy as np

from tfaccel.layers import find_backbone, prepared_backbone

preset = sys.argv[1] + "/vit"
pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3)).astype("float32")
task = keras_hub.models.ImageClassifier.from_preset(preset)
found = find_backbone(preset)
assert (found.image_size, found.num_channels) == (8, 3), found
features = prepared_backbone(found, 8, pretrained=True)
logits = features.predict(pixels, verbose=0) @ task.output_dense.kernel.numpy() + task.output_dense.bias.numpy()
np.testing.assert_allclose(logits, task.predict(pixels, verbose=0), rtol=1e-5, atol=1e-5)
fresh = prepared_backbone(found, 8, pretrained=False, lora_rank=2)
assert not np.allclose(fresh.predict(pixels, verbose=0), features.predict(pixels, verbose=0))
assert {weight.path.rsplit("/", 1)[-1] for weight in fresh.trainable_weights} >= {"lora_kernel_a", "lora_kernel_b"}
"""

RUNS = """
import json
import sys

import keras
import numpy as np

import tfaccel
from tfaccel.recipes import text_classification, transfer_learning

folder, devices = sys.argv[1], ("CPU:0", "CPU:1")
of_policy = {}
for policy in ("float32", "mixed_bfloat16"):
    plan = tfaccel.Plan(
        strategy="mirrored", devices=devices, num_logical_cpus=2, global_batch_size=8, dtype_policy=policy
    )
    runs = [folder + f"/{policy}-{name}" for name in ("texts", "images")]
    options = {"data_dir": folder + "/labels.csv", "num_words": 8, "learning_rate": 1e-2, "dropout": 0.0}
    options |= {"label_smoothing": 0.0, "schedule": "constant"}
    texts = text_classification.run(
        run_dir=runs[0], plan=plan, verbose=0, epochs=8, backbone=folder + "/bert", **options
    )
    images = transfer_learning.run(
        run_dir=runs[1], plan=plan, verbose=0, epochs=1, backbone=folder + "/vit", baseline=False
    )
    classes = text_classification.classify(runs[0], ["the red red blue one", "the axe axe saw one"])
    of_policy[policy] = [texts.final["accuracy"], classes, images.final["loss"]]
    model = keras.models.load_model(runs[1] + "/model.keras")
    assert model.predict(np.zeros((2, 8, 8, 1)), verbose=0).shape == (2, 5)
print(json.dumps(of_policy))
"""


@needs_hub
def test_the_features_are_those_of_the_preset(run_python, presets):
    run_python(FEATURES, presets)


@needs_hub
def test_recipes_start_from_presets_on_two_replicas(run_python, presets):
    for accuracy, classes, loss in json.loads(run_python(RUNS, presets).stdout.splitlines()[-1]).values():
        assert accuracy == 1.0
        assert classes == ["colour", "tool"]
        assert 0 < loss < 10


@needs_hub
@pytest.mark.slow
def test_a_killed_run_from_a_preset_is_resumed_to_the_last_bit(run_python, presets):
    case = {"name": "hub", "recipe": "text_classification", "data": "labels.csv"}
    case["options"] = {"backbone": str(presets / "bert"), "num_words": 8}

    def run(*kinds):
        cases = json.dumps([{**case, "kind": kind} for kind in kinds])
        return run_python(PROGRAM, presets, cases, check=False, timeout_seconds=500)

    assert run("killed").returncode == 7
    ended = run("whole", "resumed")
    whole, resumed = json.loads(ended.stdout.splitlines()[-1])
    assert resumed == whole


OWN = """
import sys
import warnings

import keras
import keras_hub
import numpy as np
import tensorflow as tf

import tfaccel
from tfaccel.errors import WorkloadError

split = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], split)
folder = sys.argv[1]
texts = np.array(["the red one", "the axe one", "the blue one", "the saw one"] * 8)
classes = np.arange(32) % 2
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def task(**options):
    keras.utils.set_random_seed(0)
    model = keras_hub.models.TextClassifier.from_preset(folder + "/bert", num_classes=2, dropout=0.0, **options)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


train = {"batch_size": 8, "epochs": 2, "verbose": 0, "shuffle": False}
whole = task().fit(texts, classes, **train).history["loss"]
mine = tfaccel.fit(task(), texts, classes, exact_kernels=True, **train).history["loss"]
assert mine == whole, (mine, whole)
try:
    tfaccel.train(task, tf.constant(texts), classes, run_dir=folder + "/refused", **train)
except WorkloadError as error:
    assert "Use tfaccel.fit" in str(error) and "preprocessor=None" in str(error), error
else:
    raise SystemExit("train took a task that prepares its data")
tokens = task().preprocessor(texts)
tokens = {name: np.asarray(rows) for name, rows in tokens.items()}


def build():
    return task(preprocessor=None)


for devices in (("CPU:0",), ("CPU:0", "CPU:1")):
    run = {"devices": devices, "run_dir": f"{folder}/own{len(devices)}", "dtype_policy": "float32"}
    result = tfaccel.train(build, tokens, classes, num_logical_cpus=2, **run, **train)
    np.testing.assert_allclose(result.history["loss"], whole, rtol=1e-5)
    with warnings.catch_warnings():  # The task's constructor compiles it, with another optimizer than the saved one.
        warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
        model = keras.models.load_model(f"{folder}/own{len(devices)}/model.keras", compile=False)
    assert model.predict({name: rows[:2] for name, rows in tokens.items()}, verbose=0).shape == (2, 2)
"""


@needs_hub
def test_tasks_train_as_by_keras_or_are_refused(run_python, presets):
    run_python(OWN, presets)


def test_what_is_no_preset_is_refused(tmp_path, monkeypatch):
    config = tmp_path / "other" / "config.json"
    config.parent.mkdir()
    described = {"class_name": "BertBackbone", "config": {"vocabulary_size": 10}}
    cases = [
        (None, f"The folder {config.parent} (`backbone`) is no preset of KerasHub: cannot read config.json"),
        ("[1]", f"The folder {config.parent} (`backbone`) is no preset of KerasHub: cannot read config.json"),
        (json.dumps(described), f"The preset {config.parent} holds a BertBackbone, which takes no images."),
    ]
    if importlib.util.find_spec("keras_hub") is not None:
        for text, message in cases:
            if text is not None:
                config.write_text(text)
            with pytest.raises(WorkloadError) as raised:
                transfer_learning.workload(backbone=str(config.parent))
            assert str(raised.value).startswith(message)
        with pytest.raises(WorkloadError, match=r"There is no folder .*nowhere \(`backbone`\)"):
            text_classification.workload(backbone=str(tmp_path / "nowhere"))
    monkeypatch.setitem(sys.modules, "keras_hub", None)  # as where it is not installed
    for name in ("resnet_50_imagenet", str(config.parent)):
        with pytest.raises(WorkloadError, match=r"not installed. Install it: pip install 'tfaccel\[hub\]'"):
            find_backbone(name)
