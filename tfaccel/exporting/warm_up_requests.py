"""Warm-up requests for TensorFlow Serving: a TFRecord file of `PredictionLog` messages.

The messages have the same fields and field numbers as TensorFlow Serving's, but different names, so that both can be
imported together. Source: https://www.tensorflow.org/tfx/serving/saved_model_warmup and tensorflow_serving/apis.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PLACE = Path("assets.extra", "tf_serving_warmup_requests")
_PACKAGE = "tfaccel.serving_messages"
_MAX_REQUESTS = 1000  # limit of TensorFlow Serving

Request = tuple[str, Mapping[str, np.ndarray]]  # a signature's name, and arrays by name


def write_warm_up_requests(folder: Path, name: str, requests: Sequence[Request]) -> None:
    """Writes requests into the folder of a SavedModel.

    Args:
        folder: folder of the SavedModel's version.
        name: name under which clients request the model.
        requests: requests to run while the model is loaded.
    """
    path = folder / PLACE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as file:
        for signature_name, inputs in requests[:_MAX_REQUESTS]:
            file.write(prediction_log(name, signature_name, inputs))


def read_warm_up_requests(folder: Path) -> list[Request]:
    """Reads the requests in the folder of a SavedModel; none if the file is missing or invalid."""
    path, found = folder / PLACE, []
    if path.is_file():
        try:
            for record in tf.data.TFRecordDataset(str(path)).take(_MAX_REQUESTS).as_numpy_iterator():
                request = _messages()["PredictionLog"].FromString(record).predict_log.request
                arrays = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
                found.append((request.model_spec.signature_name, arrays))
        except Exception:  # a model can be served without warm-up
            return []
    return [(signature_name, arrays) for signature_name, arrays in found if arrays]


def prediction_log(name: str, signature_name: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """A serialized `PredictionLog` with one `PredictRequest`.

    Args:
        name: name of the model.
        signature_name: such as "serving_default".
        inputs: arrays by name.
    """
    log = _messages()["PredictionLog"]()
    request = log.predict_log.request
    request.model_spec.name = name
    request.model_spec.signature_name = signature_name
    for key, array in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
    content: bytes = log.SerializeToString(deterministic=True)
    return content


@functools.cache
def _messages() -> dict[str, Any]:
    """The message classes, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tfaccel/serving_messages.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=["tensorflow/core/framework/tensor.proto"],
    )
    text, message = descriptor_pb2.FieldDescriptorProto.TYPE_STRING, descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    spec = _add(file, "ModelSpec", [("name", 1, text, ""), ("signature_name", 3, text, "")])
    request = _add(file, "PredictRequest", [("model_spec", 1, message, f".{_PACKAGE}.{spec.name}")])
    entry = request.nested_type.add(name="InputsEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, text, "")
    _add_field(entry, "value", 2, message, ".tensorflow.TensorProto")
    _add_field(request, "inputs", 2, message, f".{_PACKAGE}.PredictRequest.InputsEntry")
    request.field[-1].label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    _add(file, "PredictLog", [("request", 1, message, f".{_PACKAGE}.PredictRequest")])
    _add(file, "PredictionLog", [("predict_log", 6, message, f".{_PACKAGE}.PredictLog")])
    pool = descriptor_pool.Default()
    pool.Add(file)
    names = [kind.name for kind in file.message_type]
    return {kind: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{kind}")) for kind in names}


def _add(file: Any, name: str, fields: Sequence[tuple[str, int, int, str]]) -> Any:
    kind = file.message_type.add(name=name)
    for field in fields:
        _add_field(kind, *field)
    return kind


def _add_field(kind: Any, name: str, number: int, field_type: int, type_name: str) -> None:
    optional = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    field = kind.field.add(name=name, number=number, type=field_type, label=optional)
    if type_name:
        field.type_name = type_name
