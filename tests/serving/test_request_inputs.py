"""Requests become arrays, or a message that names the instance and the input at fault."""

import base64
import re

import numpy as np
import pytest

from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.request_inputs import InputSpec, read_examples, read_inputs

PIXELS = {"pixels": InputSpec("pixels", (None, 2, 1), np.dtype("float32"))}
TEXT = {"text": InputSpec("text", (None,), np.dtype(object))}
TWO = {
    "age": InputSpec("age", (None,), np.dtype("int32")),
    "name": InputSpec("name", (None,), np.dtype(object)),
}
FREE = {"past": InputSpec("past", (None, None), np.dtype("float32"))}
FLAG = {"x": InputSpec("x", (None, 2), np.dtype("float32")), "scale": InputSpec("scale", (), np.dtype("float32"))}


def test_rows_of_one_input_are_taken_plain_or_named():
    for instances in ([[[1], [2]], [[3], [4.5]]], [{"pixels": [[1], [2]]}, {"pixels": [[3], [4.5]]}]):
        inputs = read_inputs({"instances": instances}, PIXELS)
        assert inputs.arrays["pixels"].tolist() == [[[1], [2]], [[3], [4.5]]]
        assert (inputs.arrays["pixels"].dtype, inputs.num_rows, inputs.in_rows) == (np.float32, 2, True)


def test_columns_are_taken_plain_or_named():
    for columns in ([[[1], [2]]], {"pixels": [[[1], [2]]]}):
        inputs = read_inputs({"inputs": columns}, PIXELS)
        assert (inputs.arrays["pixels"].shape, inputs.num_rows, inputs.in_rows) == ((1, 2, 1), 1, False)
    inputs = read_inputs({"inputs": {"x": [[1, 2], [3, 4]], "scale": 0.5}}, FLAG)
    assert (inputs.arrays["scale"].shape, inputs.num_rows) == ((), None)


def test_texts_and_bytes():
    content = b"\x89PNG\x00"
    encoded = {"b64": base64.b64encode(content).decode()}
    inputs = read_inputs({"instances": ["\u00e4", encoded, {"b64": ""}]}, TEXT)
    assert inputs.arrays["text"].tolist() == ["\u00e4".encode(), content, b""]
    assert read_inputs({"instances": [{"text": encoded}]}, TEXT).arrays["text"].tolist() == [content]
    assert read_inputs({"inputs": {"text": ["a", "b"]}}, TEXT).num_rows == 2


def test_several_inputs_of_several_kinds():
    inputs = read_inputs({"instances": [{"age": 3, "name": "Mia"}, {"age": 4, "name": "Rex"}]}, TWO)
    assert inputs.arrays["age"].tolist() == [3, 4]
    assert (inputs.arrays["age"].dtype, inputs.arrays["name"].tolist()) == (np.int32, [b"Mia", b"Rex"])
    same = read_examples({"context": {"age": 3}, "examples": [{"name": "Mia"}]}, TWO)
    assert (same.arrays["age"].tolist(), same.num_rows, same.place) == ([3], 1, "examples")


def test_examples_give_a_value_in_place_of_a_list_of_one():
    line = {"x": InputSpec("x", (None, 1), np.dtype("float32"))}
    assert read_examples({"examples": [{"x": 1.5}, {"x": [2]}]}, line).arrays["x"].tolist() == [[1.5], [2.0]]


def test_nan_and_infinity_are_numbers():
    rows = read_inputs({"instances": [[float("nan"), float("inf"), -float("inf")]]}, FREE).arrays["past"]
    assert np.array_equal(rows, np.array([[np.nan, np.inf, -np.inf]], np.float32), equal_nan=True)


def test_any_length_is_taken_where_it_is_free():
    assert read_inputs({"instances": [[1, 2, 3]]}, FREE).arrays["past"].shape == (1, 3)


@pytest.mark.parametrize(
    ("specs", "data", "message"),
    [
        (PIXELS, {}, 'Give "instances" (rows) or "inputs" (columns). Received: neither.'),
        (PIXELS, {"instances": [], "inputs": []}, "Received: both."),
        (PIXELS, {"instances": []}, '"instances" must be a list of at least one. Received: [].'),
        (PIXELS, {"instances": 3}, '"instances" must be a list of at least one. Received: 3.'),
        (
            PIXELS,
            {"instances": [[[1], [2]], [[1]]]},
            "instances[1]: input 'pixels' must be float32 of shape (2, 1). Received: shape (1, 1).",
        ),
        (PIXELS, {"instances": [[[1], [2]], [[1], ["a"]]]}, "instances[1]: input 'pixels' must be float32 of shape"),
        (PIXELS, {"instances": [[["1"], ["2"]]]}, "instances[0]: input 'pixels' must be float32 of shape (2, 1)."),
        (PIXELS, {"instances": [[[1], [None]]]}, "instances[0]: input 'pixels' must be float32 of shape (2, 1)."),
        (PIXELS, {"instances": [[[True], [False]]]}, "instances[0]: input 'pixels' must be float32 of shape (2, 1)."),
        (PIXELS, {"instances": [[[1], [2, 3]]]}, "instances[0]: input 'pixels' must be float32 of shape (2, 1)."),
        (
            PIXELS,
            {"instances": [{"pixel": [[1], [2]]}]},
            "instances[0]: there is no input 'pixel'. Did you mean 'pixels'? The signature takes 'pixels' (float32 of",
        ),
        (PIXELS, {"instances": [[[1e39], [2]]]}, "instances[0]: input 'pixels' must be float32 of shape (2, 1)."),
        (PIXELS, {"inputs": []}, "\"inputs\": 'pixels' has no rows. Give at least one: float32 of shape (2, 1)."),
        (TEXT, {"inputs": {"text": []}}, "\"inputs\": 'text' has no rows."),
        (PIXELS, {"inputs": {"pixels": [[[1]]]}}, "inputs.pixels[0]: input 'pixels' must be float32 of shape (2, 1)."),
        (PIXELS, {"inputs": 3}, "\"inputs\": 'pixels' must be a list of float32 of shape (2, 1). Received: 3."),
        (TWO, {"instances": [{"age": 1, "name": "a"}, 7]}, "instances[1] must be an object with 'age' (one int32)"),
        (TWO, {"instances": [{"age": 1, "name": "a"}, {"age": 2}]}, "instances[1]: it lacks 'name'."),
        (TWO, {"instances": [{"age": 1, "name": "a", "b": 2}]}, "instances[0]: there is no input 'b'."),
        (
            TWO,
            {"instances": [{"age": 1.5, "name": "a"}]},
            "instances[0]: input 'age' must be one int32. Received: 1.5.",
        ),
        (
            TWO,
            {"instances": [{"age": 2**40, "name": "a"}]},
            "instances[0]: input 'age' must be one int32. Received: 10",
        ),
        (
            TWO,
            {"instances": [{"age": 2**70, "name": "a"}]},
            "instances[0]: input 'age' must be one int32. Received: 11",
        ),
        (TWO, {"instances": [{"age": 1, "name": 5}]}, "instances[0]: input 'name' must be a text, or {\"b64\": ...}."),
        (
            TEXT,
            {"instances": ["a", {"b64": "%%"}]},
            "instances[1]: input 'text' must be a text, or {\"b64\": ...}. Received: {'b64': '%%'}, whose bytes",
        ),
        (TEXT, {"instances": [["a"]]}, "instances[0]: input 'text' must be a text"),
        (FREE, {"instances": [[1, 2], [3]]}, "instances: the rows of input 'past' must have one shape"),
        (TWO, {"inputs": [1, 2]}, "\"inputs\" must be an object with 'age' (one int32), 'name' (a text"),
    ],
)
def test_fault_is_found_and_named(specs, data, message):
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        read_inputs(data, specs)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"instances": [{}]}, '"examples" must be a list of objects'),
        ({"examples": [3]}, '"examples" must be a list of objects'),
        ({"examples": []}, '"examples" must be a list of at least one'),
        ({"examples": [{"age": 1, "name": "a"}], "context": 3}, '"context" must be an object'),
        (
            {"examples": [{"age": 1, "name": "a"}], "context": {"age": 3}},
            "'age' stands in an example and in the context",
        ),
    ],
)
def test_fault_of_examples_is_named(data, message):
    with pytest.raises(RequestError, match=re.escape(message)):
        read_examples(data, TWO)
