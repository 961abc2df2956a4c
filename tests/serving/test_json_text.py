"""JSON as the protocol has it: NaN and Infinity, bytes, and texts of any language."""

import json
import math

import numpy as np
import pytest

from tfaccel.extras.serving.messages import RequestError, predictions, read_json, write_json


def test_numbers_come_back_as_they_went():
    values = np.array([[0.1, -1e-30, 3.0e38]], np.float32)
    answer = json.loads(write_json(predictions({"a": values}, in_rows=True)))
    assert np.array_equal(np.array(answer["predictions"], np.float32), values)
    assert write_json({"a": np.array([1, 2], np.int64)}) == b'{"a":[1,2]}'


def test_nan_and_infinity_are_written_and_read():
    text = write_json(predictions({"a": np.array([np.nan, np.inf, -np.inf], np.float32)}, in_rows=True))
    nan, *infinities = json.loads(text)["predictions"]
    assert math.isnan(nan) and infinities == [math.inf, -math.inf]
    assert math.isnan(read_json(b'{"a": NaN}')["a"])


def test_single_numbers_stay_single_and_may_be_nan():
    scalar = {"a": np.array(6.0, np.float32)}
    assert write_json(predictions(scalar, in_rows=False)) == b'{"outputs":6.0}'
    rows = predictions({"a": np.array([np.nan], np.float16), "b": np.array([1])}, in_rows=True)
    assert write_json(rows) == b'{"predictions": [{"a": NaN, "b": 1}]}'
    assert write_json({"results": [[["cat", float("inf")]]]}) == b'{"results": [[["cat", Infinity]]]}'


def test_rows_and_columns_of_several_outputs():
    outputs = {"label": np.array([b"cat", b"\xff"], object), "p": np.array([[0.5], [1.0]], np.float32)}
    rows = predictions(outputs, in_rows=True)["predictions"]
    assert [row["label"] for row in rows] == ["cat", {"b64": "/w=="}]
    assert json.loads(write_json(rows))[1]["p"] == [1.0]
    assert json.loads(write_json(predictions(outputs, in_rows=False)))["outputs"]["p"] == [[0.5], [1.0]]


def test_outputs_named_bytes_are_binary():
    assert predictions({"png_bytes": np.array([b"ab"], object)}, in_rows=True) == {"predictions": [{"b64": "YWI="}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", r"The body is no JSON: .*line 1, column 1"),
        (b'{"a": }', r"The body is no JSON: .*\(line 1, column 7\)"),
        (b'{"a": NaN, }', r"The body is no JSON: .*\(line 1, column 1[12]\)"),
        (b'{"a": "\xff"}', "The body is no UTF-8: byte 7 cannot be read."),
        (b"[1]", "The body must be a JSON object. Received: a list."),
        (b"null", "The body must be a JSON object. Received: null."),
        (b"[" * 100_000, "The body is no JSON"),
        (b'{"a": NaN, "b": ' + b"[" * 100_000, "The body is no JSON"),
    ],
)
def test_what_is_no_object_is_refused(body, message):
    with pytest.raises(RequestError, match=message) as caught:
        read_json(body)
    assert caught.value.status == 400
