"""What TensorFlow Serving's documentation of its REST API says: requests, and the answer that each one must get.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import math

import numpy as np

HALF, THREE, NEST = "/v1/models/half", "/v1/models/saved_model_half_plus_three", "/v1/models/nest"


def get(path):
    return "GET", path, None


def post(path, **body):
    return "POST", path, body


def predict(signature_name, **body):
    return post(f"{NEST}:predict", signature_name=signature_name, **body)


def regress(*examples, path=HALF, **body):
    return post(f"{path}:regress", signature_name="regress_x_to_y", examples=list(examples), **body)


def examples(*rows, **body):
    return post(f"{NEST}:regress", signature_name="total", examples=list(rows), **body)


def status(*versions):
    ok = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": number, "state": "AVAILABLE", "status": ok} for number in versions]}


def in_metadata(*path, value):
    """A check that a place in the answer to /metadata has a value."""

    def check(answer):
        for key in path:
            answer = answer[key]
        return answer == value

    return check


def is_error(text):
    return lambda answer: set(answer) == {"error"} and text in answer["error"]


ROWS = [
    {"tag": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]},
    {"tag": "bar", "signal": [3, 4, 1, 2, 5], "sensor": [[4, 5], [6, 8]]},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
TOTALS = {"tag": ["foo", "bar"], "total": [15, 15], "sensor": COLUMNS["sensor"]}
SIGNATURES = ("metadata", "signature_def", "signature_def")
WHOLE = ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64")

# What is said: name -> (request, status, answer or a check of it).
POINTS = {
    "error": (post(f"{HALF}:predict", x=1), 400, is_error('Give "instances" (rows) or "inputs"')),
    "status": (get(HALF), 200, status("124", "123")),
    "status of a version": (get(f"{HALF}/versions/123"), 200, status("123")),
    "status of a label": (get(f"{HALF}/labels/canary"), 200, status("124")),
    "status of no version": (get(f"{HALF}/versions/7"), 404, is_error("Could not find version 7 of model half")),
    "metadata": (get(f"{HALF}/metadata"), 200, in_metadata("model_spec", "version", value="124")),
    "metadata of a version": (
        get(f"{HALF}/versions/123/metadata"),
        200,
        in_metadata("model_spec", "version", value="123"),
    ),
    "metadata of a label": (
        get(f"{HALF}/labels/stable/metadata"),
        200,
        in_metadata("model_spec", value={"name": "half", "signature_name": "", "version": "123"}),
    ),
    "metadata: method": (
        get(f"{HALF}/metadata"),
        200,
        in_metadata(*SIGNATURES, "regress_x_to_y", "method_name", value="tensorflow/serving/regress"),
    ),
    "metadata: input": (
        get(f"{NEST}/metadata"),
        200,
        in_metadata(
            *SIGNATURES,
            "serving_default",
            "inputs",
            "signal",
            "tensor_shape",
            value={"dim": [{"size": "-1", "name": ""}, {"size": "5", "name": ""}], "unknown_rank": False},
        ),
    ),
    "metadata: output": (
        get(f"{NEST}/metadata"),
        200,
        in_metadata(*SIGNATURES, "serving_default", "outputs", "total", "dtype", value="DT_INT64"),
    ),
    "classify": (
        post(f"{HALF}:classify", signature_name="classify_x_to_y", examples=[{"x": 2.0}]),
        200,
        {"results": [[["", 21.0]]]},
    ),
    "classify a version": (
        post(f"{HALF}/versions/123:classify", signature_name="classify_x_to_y", examples=[{"x": 2.0}]),
        200,
        {"results": [[["", 3.0]]]},
    ),
    "classify a label": (
        post(f"{HALF}/labels/stable:classify", signature_name="classify_x_to_y", examples=[{"x": 2.0}]),
        200,
        {"results": [[["", 3.0]]]},
    ),
    "classify: labels and scores": (
        post(f"{NEST}:classify", signature_name="classify", examples=[{"x": 1.5}, {"x": 2.5}]),
        200,
        {"results": [[["low", -1.5], ["high", 1.5]], [["low", -2.5], ["high", 2.5]]]},
    ),
    "regress": (regress({"x": 2.0}), 200, {"results": [21.0]}),
    "regress a version": (regress({"x": 2.0}, path=f"{HALF}/versions/123"), 200, {"results": [3.0]}),
    "regress a label": (regress({"x": 2.0}, path=f"{HALF}/labels/stable"), 200, {"results": [3.0]}),
    "regress: the order of examples": (
        regress({"x": 1.0}, {"x": 2.0}, {"x": 5.0}),
        200,
        {"results": [20.5, 21.0, 22.5]},
    ),
    "default signature": (post(f"{HALF}:regress", examples=[{"x": 2.0}]), 200, {"results": [21.0]}),
    "context": (examples({"x": 0.5}, {"x": 1.5}, context={"n": [1, 2]}), 200, {"results": [3.5, 4.5]}),
    "context only once": (examples({"x": 0.5}, context={"x": 1.0}), 400, is_error("in an example and in the context")),
    "feature: whole number": (regress({"x": 2}), 200, {"results": [21.0]}),
    "feature: decimal number": (regress({"x": 2.5}), 200, {"results": [21.25]}),
    "feature: string": (examples({"words": "four"}), 200, {"results": [4.0]}),
    "feature: binary": (examples({"words": {"b64": "aW1hZ2UgYnl0ZXM="}}), 200, {"results": [11.0]}),
    "feature: list": (examples({"words": ["four", {"b64": "AAE"}], "n": [3, 4]}), 200, {"results": [13.0]}),
    "feature: missing": (regress({"y": 2.0}), 400, is_error("Feature: x (data type: float) is required")),
    "predict": (post(f"{HALF}:predict", instances=[2.0, 3.0, 4.0]), 200, {"predictions": [21.0, 21.5, 22.0]}),
    "predict a version": (post(f"{HALF}/versions/123:predict", instances=[2.0]), 200, {"predictions": [3.0]}),
    "predict a label": (post(f"{HALF}/labels/canary:predict", instances=[2.0]), 200, {"predictions": [21.0]}),
    "no such label": (
        post(f"{HALF}/labels/new:predict", instances=[2.0]),
        400,
        is_error("Unrecognized servable version label: new"),
    ),
    "signature by name": (predict("pairs", instances=[[[1, 2]]]), 200, {"predictions": [3.0]}),
    "no such signature": (predict("pears", instances=[1]), 400, is_error("'pears' not found in signature def")),
    "not both formats": (predict("pairs", instances=[[[1, 2]]], inputs=[[[1, 2]]]), 400, is_error("Received: both")),
    "rows: scalars": (predict("string", instances=["foo", "bar", "baz"]), 200, {"predictions": ["foo", "bar", "baz"]}),
    "rows: tensors": (predict("pairs", instances=[[[1, 2]], [[3, 4]]]), 200, {"predictions": [3.0, 7.0]}),
    "rows: named inputs": (
        post(f"{NEST}:predict", instances=ROWS),
        200,
        {"predictions": [{name: column[row] for name, column in TOTALS.items()} for row in (0, 1)]},
    ),
    "rows: one shape": (predict("pairs", instances=[[[1, 2]], [[3]]]), 400, is_error("instances[1]")),
    "columns: one tensor": (post(f"{HALF}:predict", inputs=[2.0, 3.0, 4.0]), 200, {"outputs": [21.0, 21.5, 22.0]}),
    "columns: named inputs": (post(f"{NEST}:predict", inputs=COLUMNS), 200, {"outputs": TOTALS}),
    "columns: different sizes": (
        predict("free", inputs={"a": [1, 2, 3], "b": 4}),
        200,
        {"outputs": {"a": [1.0, 2.0, 3.0], "b": 4.0}},
    ),
    "columns: missing input": (predict("free", inputs={"a": [1]}), 400, is_error("it lacks 'b'")),
    "binary output": (predict("echo_bytes", instances=["foo"]), 200, {"predictions": [{"b64": "Zm9v"}]}),
    "binary input": (predict("string", instances=[{"b64": "Zm9v"}]), 200, {"predictions": ["foo"]}),
    "bool": (predict("bool", instances=[True, False]), 200, {"predictions": [True, False]}),
    "string": (predict("string", instances=["Hello \u00e4"]), 200, {"predictions": ["Hello \u00e4"]}),
    **{name: (predict(name, instances=[1, 10, 0]), 200, {"predictions": [1, 10, 0]}) for name in ("int8", "uint8")},
    "other integers": ([predict(name, instances=[1, 10, 0]) for name in WHOLE], 200, {"predictions": [1, 10, 0]}),
    "integers only": (predict("int32", instances=[1.5]), 400, is_error("must be one int32. Received: 1.5")),
    "float and double": (
        [predict(name, instances=[1.5, -10.0, 0]) for name in ("float32", "float64")],
        200,
        {"predictions": [1.5, -10.0, 0.0]},
    ),
    "exponents": (("POST", f"{HALF}:predict", b'{"instances": [1e1, 2.0E0]}'), 200, {"predictions": [25.0, 21.0]}),
    "precision": (
        predict("float32", instances=[1435774380]),
        200,
        lambda answer: np.float32(answer["predictions"][0]) == 1435774336,
    ),
    "NaN and Infinity": (
        ("POST", f"{NEST}:predict", b'{"signature_name": "float32", "instances": [NaN, -Infinity]}'),
        200,
        lambda answer: math.isnan(answer["predictions"][0]) and answer["predictions"][1] == -math.inf,
    ),
    "example: predict": (post(f"{THREE}:predict", instances=[1.0, 2.0, 5.0]), 200, {"predictions": [3.5, 4.0, 5.5]}),
    "example: regress": (
        post(f"{THREE}:regress", signature_name="tensorflow/serving/regress", examples=[{"x": 1.0}, {"x": 2.0}]),
        200,
        {"results": [3.5, 4.0]},
    ),
    "example: no such model": (
        post("/v1/models/quarter:predict", instances=[1.0, 5.0]),
        404,
        is_error("Servable not found for request: Latest(quarter)"),
    ),
}
