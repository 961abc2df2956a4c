"""SavedModels in TensorFlow Serving's layout, with its warm-up requests and tfaccel's notes.

Warm-up requests are a TFRecord file of `PredictionLog` messages. The messages have the same fields and field numbers as
TensorFlow Serving's, but different names, so that both can be imported together.
Source: https://www.tensorflow.org/tfx/serving/saved_model_warmup and tensorflow_serving/apis.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from tfaccel.data.raw_input import RawInput, raw_input_of_json

if TYPE_CHECKING:
    from tfaccel.exporting.signatures import Signatures

NOTES = Path("assets.extra", "tfaccel.json")  # TensorFlow Serving ignores unknown files
WARM_UP_REQUESTS = Path("assets.extra", "tf_serving_warmup_requests")
GRAPH_FILE = "saved_model.pb"
LITERT_FILE = "model.tflite"  # file of a version, in TensorFlow Serving's layout
_MAX_DIGITS = 18  # digits of a version number
_MAX_REQUESTS = 1000  # limit of TensorFlow Serving
_MESSAGES = """
name: "tfaccel/serving_messages.proto"
package: "tfaccel.serving_messages"
syntax: "proto3"
dependency: "tensorflow/core/framework/tensor.proto"
message_type {
  name: "ModelSpec"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "signature_name" number: 3 label: LABEL_OPTIONAL type: TYPE_STRING }
}
message_type {
  name: "PredictRequest"
  nested_type {
    name: "InputsEntry"
    options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: ".tensorflow.TensorProto" }
  }
  field { name: "model_spec" number: 1 label: LABEL_OPTIONAL type_name: "ModelSpec" }
  field { name: "inputs" number: 2 label: LABEL_REPEATED type_name: "InputsEntry" }
}
message_type {
  name: "PredictLog"
  field { name: "request" number: 1 label: LABEL_OPTIONAL type_name: "PredictRequest" }
}
message_type {
  name: "PredictionLog"
  field { name: "predict_log" number: 6 label: LABEL_OPTIONAL type_name: "PredictLog" }
}
"""

Request = tuple[str, Mapping[str, np.ndarray]]  # a signature's name, and arrays by name


def write_saved_model(
    folder: Path,
    signatures: Signatures,
    *,
    name: str,
    raw_input: RawInput | None = None,
    requests: Sequence[Request] = (),
) -> None:
    """Writes one version of a SavedModel.

    Args:
        folder: folder of the version, such as `models/digits/1`; it must not exist yet.
        signatures: the model's functions and their resources.
        name: name under which clients request it.
        raw_input: raw inputs and class names, saved for tfaccel's server.
        requests: warm-up requests.
    """
    import keras

    archive = keras.export.ExportArchive()
    for resource in signatures.resources:
        archive.track(resource)
    for function_name, function in signatures.traced.items():
        archive.add_endpoint(function_name, function)
    archive.write_out(str(folder), verbose=False)
    write_warm_up_requests(folder, name, requests)
    (folder / NOTES).parent.mkdir(exist_ok=True)
    known = None if raw_input is None else raw_input.to_json()
    if known is not None and "vocabulary" in known:  # which is in the graph already
        known = {**known, "vocabulary": {**known["vocabulary"], "tokens": []}}
    (folder / NOTES).write_text(json.dumps({"name": name, "raw_input": known}) + "\n")


def read_notes(folder: Path) -> tuple[str | None, RawInput | None]:
    """The name and the raw inputs of a model, from the folder of a version; None if not saved."""
    try:
        notes = json.loads((folder / NOTES).read_text())
        known = notes.get("raw_input")
        return notes.get("name"), None if known is None else raw_input_of_json(known)
    except (OSError, ValueError, AttributeError):
        return None, None


def version_folders(folder: Path) -> dict[int, Path]:
    """Version -> folder, in ascending order, of a model in TensorFlow Serving's layout."""
    if not folder.is_dir():
        return {}
    found = {int(entry.name): entry for entry in sorted(folder.iterdir()) if is_version(entry.name) and entry.is_dir()}
    return dict(sorted(found.items()))


def holds_model(folder: Path) -> bool:
    """Whether the folder of a version has a SavedModel or LiteRT file to serve."""
    return any((folder / name).is_file() for name in (GRAPH_FILE, LITERT_FILE))


def is_version(text: str) -> bool:
    """Whether a text is a version number: ASCII digits that fit in a 64-bit integer.

    Example:
        >>> is_version("00000123"), is_version("\u0661")
        (True, False)
    """
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def no_saved_model(folder: Path) -> str:
    """The error message for a folder without a SavedModel or versions of one."""
    return (
        f"{folder} holds no SavedModel, and no folders of versions (1, 2 ...) with one. Write one with "
        "`tfaccel export`."
    )


def serving_command(name: str, folder: str = "saved_model") -> str:
    """A shell script that runs TensorFlow Serving's image on a folder of versions next to the script.

    Source: https://www.tensorflow.org/tfx/serving/docker
    """
    quoted = shlex.quote(name)
    return (
        "#!/bin/sh\n"
        f"# Runs TensorFlow Serving on {folder}; then: curl localhost:8501/v1/models/{name}\n"
        "# It is reachable from this machine only; use -p 8501:8501 to allow others.\n"
        "exec docker run --rm -p 127.0.0.1:8501:8501 -e MODEL_NAME=" + quoted + " \\\n"
        f'  --mount type=bind,source="$(cd "$(dirname "$0")" && pwd)/{folder}",target=/models/{name} \\\n'
        "  tensorflow/serving --enable_model_warmup=true\n"
    )


def write_warm_up_requests(folder: Path, name: str, requests: Sequence[Request]) -> None:
    """Writes requests into the folder of a SavedModel.

    Args:
        folder: folder of the SavedModel's version.
        name: name under which clients request the model.
        requests: requests to run while the model is loaded.
    """
    import tensorflow as tf

    path = folder / WARM_UP_REQUESTS
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as file:
        for signature_name, arrays in requests[:_MAX_REQUESTS]:
            log = _prediction_log_class()()
            request = log.predict_log.request
            request.model_spec.name, request.model_spec.signature_name = name, signature_name
            for key, array in arrays.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
            file.write(log.SerializeToString(deterministic=True))


def read_warm_up_requests(folder: Path) -> list[Request]:
    """Reads the requests in the folder of a SavedModel; none if the file is missing or invalid."""
    import tensorflow as tf

    path, found = folder / WARM_UP_REQUESTS, []
    if path.is_file():
        try:
            for record in tf.data.TFRecordDataset(str(path)).take(_MAX_REQUESTS).as_numpy_iterator():
                request = _prediction_log_class().FromString(record).predict_log.request
                arrays = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
                found.append((request.model_spec.signature_name, arrays))
        except Exception:  # a model can be served without warm-up
            return []
    return [(signature_name, arrays) for signature_name, arrays in found if arrays]


@functools.cache
def _prediction_log_class() -> Any:
    file = text_format.Parse(_MESSAGES, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.Default()  # that of TensorFlow's messages
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.PredictionLog"))
