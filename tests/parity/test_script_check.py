"""`tfaccel check` and `tfaccel.check`: a user's script on one device and on replicas, with Keras and with tfaccel."""

import json
from pathlib import Path

import pytest

from tfaccel.errors import TfaccelError
from tfaccel.scripts import check
from tfaccel.training.check import check_script

SCRIPT = """
import sys, keras, numpy as np
rng = np.random.default_rng(0)
x, y = rng.normal(size=(100, 6)).astype("float32"), rng.integers(0, 3, 100)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.5)])
model.add(keras.layers.Dense(3))
model.compile(keras.optimizers.SGD(0.1, clipnorm=0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=int(sys.argv[1]), sample_weight=rng.uniform(0.1, 3, 100), epochs=50, verbose=2)
raise RuntimeError("the script goes on after fit")
"""
CONVOLUTIONAL = """
import keras, numpy as np
rng = np.random.default_rng(0)
x = rng.normal(size=(333, 16, 16, 3)).astype("float32")
y, weights = (x.mean(axis=(1, 2, 3)) > 0).astype("int32"), rng.uniform(0.2, 2, size=333)
layers = [keras.layers.Conv2D(16, 3), keras.layers.BatchNormalization(synchronized=True), keras.layers.ReLU()]
layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01, clipnorm=0.1), loss)
model.fit(x, y, sample_weight=weights, batch_size=64)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_keras_differs_and_tfaccel_does_not(script, capsys):
    assert check.run(["tfaccel check", str(script), "--steps=4", "--json", "--", "24"]) == 0
    found = json.loads(capsys.readouterr().out)
    one, keras, ours = found["rows"]
    assert [row["way"] for row in found["rows"]] == [
        "Model.fit, 1 device",
        "Model.fit, 2 replicas",
        "tfaccel.fit, 2 replicas",
    ]
    assert keras["first_different"] == "sequential/dense/kernel"
    assert keras["weight_difference"] > 1e-2
    assert keras["loss_difference"] > 1e-4
    assert (ours["first_different"], found["is_equal"]) == ("", True)
    assert ours["weight_difference"] < 1e-5
    assert ours["loss_difference"] < 1e-5
    assert all(row["steps_per_second"] > 0 for row in (one, keras, ours))
    assert found["causes"] == [
        "an uneven last batch",
        "sample weights",
        "the optimizer's clipnorm",
        "1 layer drew no random numbers in this comparison",
    ]


@pytest.mark.slow
def test_weights_that_only_rounding_moves_do_not_count(tmp_path, capsys):
    """No gradient moves a bias in front of BatchNormalization: what Adam makes of rounding is all that it gets."""
    convolutional = tmp_path / "convolutional.py"
    convolutional.write_text(CONVOLUTIONAL)
    assert check.run(["tfaccel check", str(convolutional), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    _, keras, ours = found["rows"]
    assert keras["weight_difference"] > 3e-3 > 2e-3 > ours["weight_difference"]
    assert (ours["first_different"], found["is_equal"]) == ("", True)
    assert found["causes"][:3] == ["an uneven last batch", "sample weights", "the optimizer's clipnorm"]
    (rounded,) = found["causes"][3:]  # the normalization is over the rows of all replicas
    assert rounded.startswith(
        "weights that rounding alone moves on one device, which do not count: sequential/conv2d/bias"
    )


@pytest.mark.slow
def test_the_table_names_what_fails(tmp_path, capsys):
    broken = tmp_path / "broken.py"
    broken.write_text(SCRIPT.replace("model.add(", "model.add(keras.layers.Lambda(lambda z: z - z[:1]))\nmodel.add("))
    assert check.run(["tfaccel check", str(broken), "24", "--steps=2"]) == 1
    said = capsys.readouterr().out
    assert "Model.fit, 1 device" in said
    assert "CoupledRowsError" in said
    assert "mixes the rows" in said


@pytest.mark.slow
def test_a_model_and_arrays_are_checked_in_one_call(run_python):
    lines = run_python(MODEL).stdout.splitlines()[-5:]
    assert lines[:2] == ["True 3", "True 3"]  # of data of any length
    assert lines[2] == "Give `x`, and `y`, to train the model on: check(model, x, y)."
    assert lines[3].startswith(
        "`x` must be arrays with equal numbers of rows, as `y` and `sample_weight`, or a tf.data.D"
    )
    assert lines[4].startswith('The model does not train on one device: ValueError: Missing data for input "b"')


MODEL = """
import keras, numpy as np, tensorflow as tf, tfaccel
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
before = model.get_weights()[0]
x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
found = tfaccel.check(model, x, x[:, :1], batch_size=8, steps=10)  # of which there are 3
assert (model.get_weights()[0] == before).all()
print(found.is_equal, found.num_steps)
a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
model = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(a + b))
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensor_slices(({"a": x, "b": x}, x[:, :1])).batch(8)
found = tfaccel.check(model, data.filter(lambda *row: True), steps=5)
print(found.is_equal, found.num_steps)
for wrong in (None, lambda: x, {"a": x}):
    try:
        tfaccel.check(model, wrong, x[:, :1], steps=2)
    except tfaccel.TfaccelError as error:
        print(error)
"""


def test_what_cannot_be_checked_is_refused(tmp_path, capsys):
    for arguments, message in (
        (["nothing.py"], "There is no script 'nothing.py'. Name a Python file that calls `Model.fit`."),
        ([], "no script was named. Use `tfaccel check SCRIPT.py`"),
        (["train.py", "--replicas=0"], "replicas"),
    ):
        assert check.run(["tfaccel check", *arguments]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert message in said.err
    without = tmp_path / "without.py"
    without.write_text("print(1)")
    with pytest.raises(TfaccelError, match=r"without.py ended without calling `Model.fit`"):
        check_script(str(without))
    (tmp_path / "leaves.py").write_text("import os\nos._exit(0)")
    with pytest.raises(TfaccelError, match=r"leaves.py ended without calling `Model.fit`"):
        check_script(str(tmp_path / "leaves.py"))
    failing = Path(tmp_path, "failing.py")
    failing.write_text("raise ValueError('no data')")
    with pytest.raises(TfaccelError, match=r"failing.py does not train on one device: .*ValueError: no data"):
        check_script(str(failing))


ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.parse_args()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n = input('how many? ')", "EOFError: EOF when reading a line"),
        ("import sys\nsys.exit('no data found')", "no data found"),
        (ARGPARSE, "the following arguments are required: --data"),
        ("def f(:", "SyntaxError: "),
    ],
)
def test_a_script_that_stops_before_fit_says_why(text, message, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(text)
    with pytest.raises(TfaccelError, match=rf"script.py does not train on one device: .*{message}"):
        check_script(str(script), time_limit_seconds=120)
