"""Every argument of every public name is refused by tfaccel's own error where its type cannot be right."""

import inspect
import os
import traceback
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import tfaccel
from tfaccel import Hardware, Plan, TfaccelError, Workload
from tfaccel.serving import ServeOptions

pytestmark = pytest.mark.usefixtures("logical_devices")

# What functions return, nobody makes; others take what only tfaccel makes, or are annotations.
RETURNED = ("Report", "Result", "Comparison", "Estimate", "Cost", "Roofline", "Performance", "Run")
LEFT_OUT = ("Count", "Fraction", "recipe", "TableInput", "TextInput")


def untrained():
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    return model


def data(size=4, *, seed=0, epoch=0):
    return [(np.ones((size, 4)), np.ones((size, 3)))]


class Foreign:
    """Nothing that any function takes."""


@dataclass
class Wrong:
    """A value, and the words of annotations for which it may be right."""

    value: object
    right_for: tuple[str, ...] = ()


TAKES_FUNCTIONS = ("Callable", "Progress", "On", "Ready")
WRONG = {
    "foreign": Wrong(Foreign()),
    "array": Wrong(np.ones((16, 4))),
    "bytes": Wrong(b"x"),
    "number": Wrong(3, ("int", "float", "bool")),
    "fraction": Wrong(1.5, ("float",)),
    "text": Wrong("x", ("str", "Literal", "Path", "Algorithm")),
    "list": Wrong([3], ("Sequence", "list", "Iterable", "tuple")),
    "dict": Wrong({"a": 1}, ("Mapping", "dict")),
    "None": Wrong(None, ("None", "= None")),
    "class": Wrong(Foreign, TAKES_FUNCTIONS),
}
PUBLIC = {
    name: getattr(module, name)
    for module in (tfaccel, tfaccel.estimates, tfaccel.options, tfaccel.optimizers, tfaccel.serving)
    for name in module.__all__
    if callable(getattr(module, name)) and not name.endswith((*RETURNED, *LEFT_OUT, "Error", "Stopped"))
}


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Values of arguments that a call needs, and that are right for all functions."""
    monkeypatch.chdir(tmp_path)
    model = untrained()
    workload = Workload("mine", lambda: model, dict, data, data, global_batch_size=8, epochs=1, num_train_examples=16)
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8)
    texts = {"run_dir": "run", "out": "out", "name": "mine", "run_or_model": "run", "teacher": "run/model.keras"}
    sizes = {"global_batch_size": 8, "index": 0, "machine_latency_seconds": 1e-6, "machine_bytes_per_second": 1e9}
    return {
        **texts,
        **sizes,
        "hardware": Hardware(),
        "plan": plan,
        "model": model,
        "workload": workload,
        "options": ServeOptions(),
        "x": np.ones((16, 4)),
        "y": np.ones((16, 3)),
        "directory": "resume",
        "configs": [],
        "folder": "exported",
        "build_model": untrained,
        "compile_args": dict,
        "train_data": data,
        "function": print,
        "space": None,
        "strategy": "none",
        "devices": ("CPU:0",),
        "kind": "GPU",
        "image_size": 8,
        "num_channels": 3,
    }


def calls(function, given):
    """For each argument and each value that is wrong for it: a description, and the call."""
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    for one in named:
        text = f"{one.annotation} = {one.default}" if one.default is None else str(one.annotation)
        if "Any" in text and not any(kind in text for kind in ("Mapping", "Callable")):
            continue
        for label, wrong in WRONG.items():
            if any(words in text for words in wrong.right_for):
                continue
            needed = {other.name: given[other.name] for other in named if other.default is other.empty and other != one}
            yield f"{one.name}={label}", {**needed, one.name: wrong.value}


@pytest.mark.parametrize("name", PUBLIC)
def test_wrong_types_are_refused_by_name(name, given):
    function = PUBLIC[name]
    raw = []
    for described, arguments in calls(function, given):
        try:
            function(**arguments)
        except TfaccelError:
            continue
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            if "tfaccel" in where.filename and "raise" in (where.line or "") and type(error) in (TypeError, ValueError):
                continue
            raw.append(f"{described}: {type(error).__name__}: {str(error)[:100]} ({os.path.basename(where.filename)})")
        else:
            raw.append(f"{described}: taken")
    assert not raw


FRAME = pd.DataFrame(np.ones((16, 4), "float32"), columns=list("abcd"))
TEXTS = np.array(["a", "b"] * 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"x": FRAME.astype("Float32")},
            r"Column 'a' of `x` has the dtype Float32, which Keras .*astype\(.float32.\)",
        ),
        ({"x": FRAME.assign(c=TEXTS)}, "Column 'c' of `x` has the dtype .* class indices for categories"),
        ({"x": FRAME.assign(c=True)}, r"`x` has columns of booleans beside float32\. Use .astype"),
        ({"x": np.ones((16, 4), np.longdouble)}, "`x` has the dtype float128, which Keras does not take"),
        ({"x": np.ones((16, 4), object)}, "`x` has the dtype object, which Keras does not take"),
        ({"y": TEXTS}, r"`y` has the dtype <U1, which Keras does not take\. Use class indices .* tf.constant\(y\)"),
        ({"y": TEXTS.astype("S")}, r"`y` has the dtype \|S1, .*class indices"),
        ({"y": pd.Series(TEXTS, dtype="category")}, "`y` has the dtype category, .*class indices"),
        ({"y": np.arange(16).astype("datetime64[h]")}, r"`y` has the dtype datetime64\[h\], .*less the first one"),
    ],
)
def test_arrays_that_keras_does_not_take_are_named(arguments, message, given):
    data = {"x": np.ones((16, 4), "float32"), "y": np.ones((16, 3), "float32")} | arguments
    with pytest.raises(TfaccelError, match=message):
        tfaccel.fit(given["model"], verbose=0, **data)
    if "y" not in arguments:
        with pytest.raises(TfaccelError, match=message):
            tfaccel.predict(given["model"], data["x"], verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"callbacks": [3]}, "`callbacks` must be a list of keras.callbacks.Callback. Received: 3"),
        ({"callbacks": [Foreign]}, r"keras.callbacks.Callback, such as Foreign\(\). Received: "),
        (
            {"y": [1, 2]},
            r"`y` must be arrays, .* Received: 1 of <class 'int'>. For a list of numbers, pass numpy.array",
        ),
        ({"x": []}, r"Received no data: x=\[\]"),
        ({"batch_size": 0}, "`batch_size` must be a whole number of at least 1. Received: batch_size=0"),
    ],
)
def test_data_and_callbacks_of_no_kind_are_refused_by_name(arguments, message, given):
    with pytest.raises(TfaccelError, match=message):
        tfaccel.fit(**({"model": given["model"], "x": given["x"], "y": given["y"], "verbose": 0} | arguments))
