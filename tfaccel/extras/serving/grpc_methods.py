"""The methods of TensorFlow Serving's gRPC services, on the same models as REST.

Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import wrappers_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
    regression_pb2,
)

from tfaccel.exporting.signatures import DEFAULT
from tfaccel.extras.serving.grpc_inputs import inputs_of_examples, inputs_of_tensors
from tfaccel.extras.serving.model_api import ModelApi
from tfaccel.extras.serving.models import Models
from tfaccel.extras.serving.request_error import RequestError
from tfaccel.extras.serving.row_results import classes_of_rows, one_value_a_row
from tfaccel.extras.serving.servable import Servable
from tfaccel.extras.serving.tensor_protos import fill_proto

_METADATA = "signature_def"  # the only supported metadata field
_TASKS = {"tensorflow/serving/classify": "classify", "tensorflow/serving/regress": "regress"}
_ERROR_CODES = {"OK": 0, "UNKNOWN": 2}


class GrpcMethods:
    """The methods; each takes a message, and whether it is large, and returns the message of the answer.

    Args:
        models: the served models.
        max_bytes: maximum size of a request, and of an array made from it.

    Raises:
        RequestError: from each method, if there is no answer.
    """

    def __init__(self, models: Models, *, max_bytes: int) -> None:
        self._models, self._max_bytes = models, max_bytes

    async def predict(self, request: Any, is_large: bool) -> Any:
        """`PredictionService.Predict`."""
        api = self._api(request)
        return await api.counted("predict", self._predict(api, request, is_large))

    async def classify(self, request: Any, is_large: bool) -> Any:
        """`PredictionService.Classify`."""
        result = await self._infer("classify", request, request, is_large)
        answer = classification_pb2.ClassificationResponse(model_spec=result.model_spec)
        answer.result.CopyFrom(result.classification_result)
        return answer

    async def regress(self, request: Any, is_large: bool) -> Any:
        """`PredictionService.Regress`."""
        result = await self._infer("regress", request, request, is_large)
        answer = regression_pb2.RegressionResponse(model_spec=result.model_spec)
        answer.result.CopyFrom(result.regression_result)
        return answer

    async def multi_inference(self, request: Any, is_large: bool) -> Any:
        """`PredictionService.MultiInference`: several signatures of one model, for the same examples."""
        _check_tasks(request.tasks)
        results = await asyncio.gather(
            *(self._infer(_TASKS[task.method_name], task, request, is_large) for task in request.tasks)
        )
        return inference_pb2.MultiInferenceResponse(results=results)

    async def metadata(self, request: Any, is_large: bool) -> Any:
        """`PredictionService.GetModelMetadata`."""
        del is_large
        api = self._api(request)
        return await api.counted("metadata", _metadata(api, request))

    async def status(self, request: Any, is_large: bool) -> Any:
        """`ModelService.GetModelStatus`."""
        del is_large
        api = self._api(request)
        return await api.counted("status", _status(api, request))

    async def reload(self, request: Any, is_large: bool) -> Any:
        """`ModelService.HandleReloadConfigRequest`, with which any client could have any folder loaded."""
        del request, is_large
        raise RequestError(
            501,
            "Clients may not choose the models. Start the server with --model_config_file, and change that file: "
            "it is read again.",
        )

    def _api(self, request: Any) -> ModelApi:
        if not request.HasField("model_spec"):
            raise RequestError(400, "Missing ModelSpec. Give model_spec.name.")
        if not request.model_spec.name:
            raise RequestError(400, "ModelSpec has no name specified. Give model_spec.name.")
        return self._models.api(request.model_spec.name)

    async def _predict(self, api: ModelApi, request: Any, is_large: bool) -> Any:
        if request.HasField("predict_streamed_options"):
            raise RequestError(400, "predict_streamed_options: requests are answered as a whole. Leave them out.")
        servable, name = _asked(api, request.model_spec)
        specs = servable.signature(name)
        wanted = _filtered(request.output_filter, servable.signatures[name].outputs)

        def read() -> Any:
            return name, inputs_of_tensors(request.inputs, specs, max_bytes=self._max_bytes)

        _, outputs = await api.outputs(servable, read, is_large=is_large)
        answer = predict_pb2.PredictResponse(model_spec=_spec(api, servable, name))
        for key in wanted:
            fill_proto(answer.outputs[key], outputs[key])
        return answer

    async def _infer(self, method: str, task: Any, request: Any, is_large: bool) -> Any:
        api = self._api(task)
        return await api.counted(method, _inference(api, method, (task.model_spec, request.input), is_large))


async def _inference(api: ModelApi, method: str, asked: tuple[Any, Any], is_large: bool) -> Any:
    """A signature's outputs for examples.

    Args:
        api: the model's API.
        method: "classify" or "regress".
        asked: the `ModelSpec`, and the `Input` with the examples.
        is_large: whether reading them takes long.
    """
    spec, given = asked
    servable, name = _asked(api, spec)
    specs = servable.signature(name)

    def read() -> Any:
        return name, inputs_of_examples(given, specs, servable.examples[name])

    _, outputs = await api.outputs(servable, read, is_large=is_large)
    result = inference_pb2.InferenceResult(model_spec=_spec(api, servable, name))
    if method == "classify":
        rows = result.classification_result.classifications
        for pairs in classes_of_rows(outputs, servable.raw_input):
            rows.add(classes=[{"label": label, "score": np.float32(score)} for label, score in pairs])
        return result
    values = result.regression_result.regressions
    for value in one_value_a_row(outputs):
        values.add(value=value)
    return result


async def _metadata(api: ModelApi, request: Any) -> Any:
    servable = api.versions.get(_version(api, request.model_spec))
    if not request.metadata_field:
        raise RequestError(400, f"GetModelMetadataRequest must specify at least one metadata_field: {_METADATA!r}.")
    unknown = next((name for name in request.metadata_field if name != _METADATA), None)
    if unknown is not None:
        raise RequestError(400, f"Metadata field {unknown!r:.60} is not supported. There is {_METADATA!r}.")
    found = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in servable.signatures.items():
        found.signature_def[name].CopyFrom(signature)
    answer = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec(api, servable, ""))
    answer.metadata[_METADATA].Pack(found)
    return answer


async def _status(api: ModelApi, request: Any) -> Any:
    answer = get_model_status_pb2.GetModelStatusResponse()
    for version, state in api.versions.states(_version(api, request.model_spec)).items():
        row = answer.model_version_status.add(version=version, state=state.state)
        row.status.error_code = _ERROR_CODES["UNKNOWN" if state.message else "OK"]
        row.status.error_message = state.message
    return answer


def _asked(api: ModelApi, spec: Any) -> tuple[Servable, str]:
    """The requested version, and the name of its signature."""
    return api.versions.get(_version(api, spec)), spec.signature_name or DEFAULT


def _version(api: ModelApi, spec: Any) -> int | None:
    choice = spec.WhichOneof("version_choice")
    if choice == "version_label":
        return api.versions.labelled(spec.version_label)
    return None if choice is None else int(spec.version.value)


def _spec(api: ModelApi, servable: Servable, signature_name: str) -> dict[str, Any]:
    """The `ModelSpec` of the answer."""
    version = wrappers_pb2.Int64Value(value=servable.version)
    return {"name": api.versions.name, "version": version, "signature_name": signature_name}


def _filtered(names: Sequence[str], outputs: Any) -> list[str]:
    """The requested outputs; all if none is named."""
    for place, name in enumerate(names):
        if name not in outputs:
            there = ", ".join(sorted(outputs))
            raise RequestError(400, f"output tensor alias not found in signature: {name!r:.60}. There are: {there}.")
        if name in names[:place]:
            raise RequestError(400, f"duplicate output tensor alias: {name!r:.60}. Name each output once.")
    return list(names) or sorted(outputs)


def _check_tasks(tasks: Sequence[Any]) -> None:
    if not tasks:
        raise RequestError(400, "Inference request must have at least one task.")
    seen = set()
    for task in tasks:
        name = task.model_spec.signature_name or DEFAULT
        if task.method_name not in _TASKS:
            known = " or ".join(_TASKS)
            raise RequestError(400, f"A task's method_name must be {known}. Received: {task.method_name!r:.60}.")
        if task.model_spec.name != tasks[0].model_spec.name:
            raise RequestError(400, "All tasks of a MultiInferenceRequest must ask the same model.")
        if name in seen:
            raise RequestError(400, f"Duplicate evaluation of signature: {name!r:.60}.")
        seen.add(name)
