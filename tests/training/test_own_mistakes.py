"""Mistakes in a user's workload raise an error that names the function and what it should return."""

import re
import sys

import pytest

from tfaccel import Plan, Workload, default_plan, train
from tfaccel.errors import PlanError, WorkloadError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.load_workload import load_workload

PLAN = Plan(strategy="none", devices=("CPU:0",), global_batch_size=4)


def data(shape=(3,), *, batched=True, target=(1,)):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((tf.zeros((12, *shape)), tf.zeros((12, *target))))
    return rows.batch(4) if batched else rows


def model(*, compiled=False):
    import keras

    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    if compiled:
        made.compile("sgd", "mse")
    return made


def labels_are_missing(*args, **kwargs):
    raise FileNotFoundError(2, "No such file or directory", "labels.txt")


def work(**changes):
    functions = {
        "build_model": model,
        "compile_args": lambda: {"optimizer": "sgd", "loss": "mse"},
        "train_data": lambda global_batch_size, *, seed, epoch: data(),
    }
    return Workload("mine", **{**functions, "global_batch_size": 4, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_data": lambda size: None},
            r"is called as train_data\(global_batch_size, \*, seed, epoch\). Received "
            r"a function of \(size\): got an unexpected keyword argument 'seed'",
        ),
        ({"train_data": lambda *, seed, epoch: None}, "too many positional arguments"),
        ({"validation_data": lambda: None}, r"validation_data is called as validation_data\(global_batch_size\)"),
        ({"build_model": lambda width: None}, r"build_model is called as build_model\(\). Received a function"),
        ({"compile_args": lambda steps: None}, r"compile_args is called as compile_args\(num_steps\) or"),
        ({"callbacks": lambda model: None}, r"callbacks is called as callbacks\(\)"),
    ],
)
def test_function_with_other_parameters_is_refused_at_once(changes, message):
    with pytest.raises(WorkloadError, match=message):
        work(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"build_model": lambda: None}, "build_model of workload 'mine' must return a Keras 3 model. Received: None"),
        ({"build_model": lambda: model(compiled=True)}, "a model that is not compiled. Omit `compile`, and return"),
        (
            {"build_model": labels_are_missing},
            r"build_model of workload 'mine' raised FileNotFoundError: .*labels.* "
            r"\(test_own_mistakes.py, line \d+, in labels_are_missing\)",
        ),
        ({"compile_args": lambda: None}, "compile_args of workload 'mine' must return a dict .*Received: None"),
        ({"compile_args": lambda: {"los": "mse"}}, "compile_args of workload 'mine' returned raised TypeError: .*los"),
        ({"compile_args": lambda: {"optimizer": "adm"}}, "compile_args of workload 'mine' returned raised ValueError"),
        (
            {"train_data": lambda size, *, seed, epoch: data(batched=False)},
            r"train_data of workload 'mine' returns inputs of shape \(3,\), but the model takes \(None, 3\). Call",
        ),
        (
            {"train_data": lambda size, *, seed, epoch: data(batched=False, target=())},
            r"must return batches whose .*Received elements of x \(3,\) float32, y \(\) float32. Call `.batch",
        ),
        (
            {"train_data": lambda size, *, seed, epoch: data((5,))},
            r"returns inputs of shape \(None, 5\), but the model takes \(None, 3\). Change the model or the data.",
        ),
        (
            {"compile_args": lambda: {"loss": {"other": "mse"}}},
            r"mine' do not take the batches that train_data returns, which hold x \(None, 3\) float32, y \(None, 1\)",
        ),
        (
            {"train_data": lambda size, *, seed, epoch: data().map(lambda x, y: x)},
            r"which hold x \(None, 3\) float32: A loss or a metric of the model needs targets, and the data have none",
        ),
        (
            {"train_data": lambda size, *, seed, epoch: data().map(lambda x, y: (x, x, y, y))},
            r"train_data of workload 'mine' must return batches of x, \(x, y\) or .* Received tuples of 4. Several inp",
        ),
        (
            {"train_data": lambda size, *, seed, epoch: data().map(lambda x, y: ({"width": x}, y))},
            r"train_data of workload 'mine' returns a dictionary of \['width'\], but the model's inputs are named",
        ),
        ({"train_data": lambda size, *, seed, epoch: [1, 2]}, "train_data must return a tf.data.Dataset of batches"),
        ({"train_data": labels_are_missing}, "train_data of workload 'mine' raised FileNotFoundError"),
        ({"validation_data": lambda size: None}, "validation_data must return a tf.data.Dataset of batches. Rec"),
        (
            {"validation_data": lambda size: data((5,))},
            r"validation_data of workload 'mine' returns inputs of shape \(None, 5\), but the model takes \(None, 3\)",
        ),
        (
            {"validation_data": lambda size: data().map(lambda x, y: x)},
            r"not take the batches that validation_data returns, which hold x \(None, 3\) float32: .* needs targets",
        ),
        (
            {
                "compile_args": lambda: {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"},
                "validation_data": lambda size: data(target=(3,)),
            },
            r"not take the batches that validation_data returns, which hold .* y \(None, 3\) float32: Argument",
        ),
        ({"validation_data": labels_are_missing}, "validation_data of workload 'mine' raised FileNotFoundError"),
        ({"callbacks": lambda: None}, "callbacks of workload 'mine' must return a list of Keras callbacks"),
        ({"callbacks": lambda: [3]}, "callbacks of workload 'mine' must return a list of Keras callbacks"),
    ],
)
def test_mistake_is_named_when_training_begins(logical_devices, tmp_path, changes, message):
    with pytest.raises(WorkloadError, match=message) as caught:
        train(work(**changes), PLAN, run_dir=tmp_path / "run", epochs=1, verbose=0)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_dataset_of_single_examples_is_told_apart(logical_devices, tmp_path):
    import tensorflow as tf

    singles = tf.data.Dataset.from_tensor_slices((tf.zeros((12, 3)), tf.zeros(12)))
    with pytest.raises(WorkloadError, match=r"or call `.batch\(32\)`, if the dataset yields single examples"):
        train(model(compiled=True), singles, run_dir=tmp_path / "run", epochs=1)
    with pytest.raises(WorkloadError, match=r"validation_data .* must return batches whose .* Call `.batch\("):
        train(model(compiled=True), data(), validation_data=singles, run_dir=tmp_path / "run", epochs=1)


def test_own_step_takes_dictionaries_by_other_names(logical_devices, tmp_path):
    import keras

    class Named(keras.Model):
        def train_step(self, data):
            return super().train_step((data["width"], data["height"]))

    inputs = keras.Input((3,))
    made = Named(inputs, keras.layers.Dense(1)(inputs))
    made.compile("sgd", "mse")
    rows = data().map(lambda x, y: {"width": x, "height": y})
    result = train(made, rows, batch_size=4, run_dir=tmp_path / "run", epochs=1, verbose=0)
    assert len(result.history["loss"]) == 1


def test_workload_in_the_place_of_the_machine_is_told():
    for arguments in ([work()], [work(), Hardware()], [Hardware()]):
        with pytest.raises(PlanError, match=r"in this order: default_plan\(detect_hardware\(\), workload\). Rec"):
            default_plan(*arguments)


def test_function_of_a_workload_that_raises_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_raising_module.py").write_text("def workload():\n    return {}['width']\n")
    text = "my_raising_module:workload raised KeyError: 'width' (my_raising_module.py, line 2, in workload)"
    with pytest.raises(WorkloadError, match=f"^{re.escape(text)}$"):
        load_workload("my_raising_module:workload")
    sys.modules.pop("my_raising_module")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1. Received: epochs=0"),
        ({"epochs": 10**20}, "`epochs` must be at most 2147483647. Received: epochs=10000"),
        ({"epochs": 1, "seed": 2**32}, "`seed` must be a whole number from 0 to 4294967295. Received: seed=4294967296"),
        ({"epochs": 1, "checkpoint_interval": 0}, "`checkpoint_interval` must be a whole number of at least 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(tmp_path, arguments, message):
    with pytest.raises(WorkloadError, match=message):
        train(work(), PLAN, run_dir=tmp_path / "run", **arguments)


def test_model_that_cannot_fit_into_memory_is_refused_before_its_first_step(logical_devices, tmp_path, monkeypatch):
    import keras

    def wide(num_units):
        return lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(num_units), keras.layers.Dense(1)])

    def begin(num_units, plan=PLAN, optimizer="sgd"):
        compile_args = {"optimizer": optimizer, "loss": "mse"}
        arguments = {"run_dir": tmp_path / "run", "epochs": 1, "verbose": 0}
        return train(work(build_model=wide(num_units), compile_args=lambda: dict(compile_args)), plan, **arguments)

    # The kernel of the first layer alone has 3 values of 4 bytes per unit, and its gradient as many.
    monkeypatch.setattr("tfaccel.training.train.hardware_of_worker", lambda: Hardware(memory_bytes=2**20))
    one = (
        r"^The model of mine is too large: weights and gradients take more than 0\.0 GiB, and CPU:0 has 0\.0 GiB\. Make"
    )
    with pytest.raises(WorkloadError, match=one):
        begin(2**16)
    kept = r"too large: weights and gradients, plus optimizer state, take 0\.0 GiB"
    with pytest.raises(WorkloadError, match=kept):  # 5 weights and 5 gradients per unit, and Adam's two moments
        begin(2**14 + 2**13, optimizer="adam")
    halved = Plan(strategy="mirrored", devices=("CPU:0", "CPU:1"), num_logical_cpus=4, global_batch_size=4)
    with pytest.raises(WorkloadError, match=r"CPU:0 has 0\.0 GiB for each of 2 replicas\. Make the model smaller\."):
        begin(2**14, plan=halved)
    assert not (tmp_path / "run").exists()
    assert begin(2**14).final["loss"] >= 0
