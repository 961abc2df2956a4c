"""Messages of TensorFlow Serving's gRPC API: makers of right ones, and wrong ones with the words that refuse them."""

import numpy as np
import tensorflow as tf
from grpc_models import fill_spec
from running_server import NAME
from tensorflow_serving.apis import classification_pb2


def tensor(kind, shape, **values):
    """A `TensorProto`, right or wrong."""
    made = tf.make_tensor_proto(0.0)
    made.Clear()
    made.dtype = tf.as_dtype(kind).as_datatype_enum if isinstance(kind, str) else kind
    for size in shape:
        made.tensor_shape.dim.add(size=size)
    for name, value in values.items():
        if isinstance(value, list):
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    return made


def example(**features):
    made = tf.train.Example()
    for name, values in features.items():
        kind = {float: "float_list", int: "int64_list", bytes: "bytes_list"}[type(values[0])]
        getattr(made.features.feature[name], kind).value.extend(values)
    return made


def request_of(kind, name="echo", signature="", *, examples=(), context=None, **spec):
    request = kind()
    if name is not None:
        fill_spec(request.model_spec, name, signature, **spec)
    if context is not None:
        request.input.example_list_with_context.context.CopyFrom(context)
        request.input.example_list_with_context.examples.extend(examples)
    elif examples:
        request.input.example_list.examples.extend(examples)
    return request


WRONG_TENSORS = [
    ("", {"x": [[1.0]]}, "\"inputs\": 'x' must be rows of one float32. Received: shape (1, 1)."),
    ("", {}, "it lacks 'x'"),
    ("", {"x": [1.0], "w": [1.0]}, "there is no input 'w'"),
    ("", {"x": tensor("int32", [1], int_val=[1])}, "Received: dtype int32."),
    ("", {"x": tensor(0, [1], float_val=[1.0])}, "Received: an unknown dtype (0)."),
    ("", {"x": tensor(999, [1])}, "Received: an unknown dtype (999)."),
    ("", {"x": tensor("resource", [1])}, "Received: dtype resource."),
    ("", {"x": tensor("variant", [1])}, "Received: dtype variant."),
    ("", {"x": tensor(101, [1], float_val=[1.0])}, "Received: dtype float32_ref."),
    ("", {"x": tensor("float32", [2**40], float_val=[1.0])}, "whose values take more than 1000000 bytes"),
    ("", {"x": tensor("float32", [2**62, 2**62])}, "whose values take more than 1000000 bytes"),
    ("", {"x": tensor("float32", [1, 0, 2**62, 2**62])}, "with other values than it has room for"),
    ("", {"x": tensor("float32", [1] * 200, float_val=[1.0])}, "shape of 200 axes with other values"),
    ("", {"x": tensor("float32", [-1], float_val=[1.0])}, "shape (-1,), which is not known in full"),
    ("", {"x": tensor("float32", [-2, -2], float_val=[1.0] * 4)}, "which is not known in full"),
    ("", {"x": tensor("float32", [0])}, "Received: none."),
    ("", {"x": tensor("float32", [2], float_val=[1.0] * 3)}, "shape (2,) with other values than it has room for"),
    ("", {"x": tensor("float32", [2], tensor_content=b"1234567")}, "shape (2,) with other values"),
    ("", {"x": tensor("float32", [2], tensor_content=b"1234")}, "shape (2,) with other values"),
    (
        "",
        {"x": tensor("float32", [1], double_val=[1.0])},
        "values in double_val; those of float32 stand in float_val",
    ),
    ("echo_int8", {"x": tensor("int8", [1], int_val=[300])}, "with other values than it has room for"),
    ("echo_float16", {"x": tensor("float16", [1], half_val=[70000])}, "with other values than it has room for"),
    ("echo_string", {"x": tensor("string", [1], tensor_content=b"a")}, "strings stand in string_val"),
    ("echo_string", {"x": tensor("string", [1], string_val=[b"a", b"b"])}, "with other values"),
    ("echo_string", {"x": tensor("string", [2**30])}, "take more than 1000000 bytes"),
    ("scalar", {"x": [1.0], "rows": [[1.0, 2.0]]}, "\"inputs\": 'x' must be float32. Received: shape (1,)."),
    ("scalar", {"x": 1.0, "rows": np.zeros((3, 2, 2))}, "'rows' must be rows of float32 of shape (2)."),
]

WRONG_EXAMPLES = [
    (request_of(classification_pb2.ClassificationRequest, None), "Missing ModelSpec."),
    (request_of(classification_pb2.ClassificationRequest, ""), "ModelSpec has no name specified."),
    (request_of(classification_pb2.ClassificationRequest, "echo", "classify"), '"examples" must be a list of at'),
    (
        request_of(classification_pb2.ClassificationRequest, "echo", "classify", examples=[example(y=[1.0])]),
        "Feature: x (data type: float) is required",
    ),
    (
        request_of(classification_pb2.ClassificationRequest, "echo", "classify", examples=[example(x=[b"a"])]),
        "examples[0]: feature 'x' must have values of kind float. Received: bytes.",
    ),
    (
        request_of(
            classification_pb2.ClassificationRequest,
            "echo",
            "classify",
            examples=[example(x=[1.0])],
            context=example(x=[1.0]),
        ),
        "'x' stands in an example and in the context",
    ),
    (
        request_of(classification_pb2.ClassificationRequest, NAME, examples=[example(pixels=[1.0] * 63)]),
        "examples[0]: input 'pixels' must be float32 of shape (8, 8, 1).",
    ),
    (
        request_of(classification_pb2.ClassificationRequest, NAME, examples=[tf.train.Example()]),
        "examples[0]: it lacks 'pixels'.",
    ),
    (request_of(classification_pb2.ClassificationRequest, NAME), '"examples" must be a list of at least one'),
]
