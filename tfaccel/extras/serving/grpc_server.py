"""The gRPC server, in the same event loop as the HTTP server, and its methods, on the same models as REST.

Source: https://github.com/tensorflow/serving/tree/master/tensorflow_serving/apis
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import numpy as np
import psutil
from google.protobuf import wrappers_pb2
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    predict_pb2,
    regression_pb2,
)

from tfaccel.errors import ServeError
from tfaccel.exporting.signatures import DEFAULT
from tfaccel.extras.serving.grpc_inputs import fill_proto, inputs_of_examples, inputs_of_tensors
from tfaccel.extras.serving.http_protocol import has_arrived, target
from tfaccel.extras.serving.messages import BodyRoom, RequestError
from tfaccel.extras.serving.models import LARGE_BYTES, ModelApi, Models, classes_of_rows, one_value_a_row
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.extras.serving.servable import Servable

logger = logging.getLogger("tfaccel")

_PACKAGE = "tensorflow.serving"
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_MAX_MESSAGE = 1000  # characters of an error message, which is sent in a header
_IDLE_SECONDS = 75  # idle connections are closed after this time
_DOOR_SECONDS = 1.0  # at shutdown, how long new requests are still received (and refused)
_QUIET_SECONDS = 0.1  # without a new request, after which none is assumed to be in flight
_AT_ONCE_SECONDS = 0.25  # a body that takes longer to arrive needs room for one of the largest size
_TURN_SECONDS = 0.01  # polling interval at shutdown
_METADATA = "signature_def"  # the only supported metadata field
_TASKS = {"tensorflow/serving/classify": "classify", "tensorflow/serving/regress": "regress"}
_ERROR_CODES = {"OK": 0, "UNKNOWN": 2}


class GrpcServer:
    """TensorFlow Serving's `PredictionService` and `ModelService`.

    Args:
        models: the served models.
        options: the server's limits.
        reserved: a socket bound to the address and not listening; closed when the server listens there.
        room: what the bodies of all requests share.
    """

    def __init__(self, models: Models, options: ServeOptions, reserved: socket.socket, *, room: BodyRoom) -> None:
        self._options, self._reserved, self._room = options, reserved, room
        self.target = target(reserved)
        self._port = reserved.getsockname()[1]
        self._methods = GrpcMethods(models, max_bytes=options.max_request_bytes)
        self._num_running, self._last_arrival, self._is_stopping = 0, 0.0, False
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Starts to accept requests.

        Raises:
            ServeError: if the address was taken meanwhile.
        """
        made = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),  # else two servers share a port, and each gets some of the requests
                ("grpc.max_receive_message_length", self._options.max_request_bytes),
                ("grpc.server_handshake_timeout_ms", round(self._options.head_seconds * 1000)),
                ("grpc.max_connection_idle_ms", _IDLE_SECONDS * 1000),
            ]
        )
        services = {name: grpc.method_handlers_generic_handler(name, found) for name, found in self._handlers().items()}
        made.add_generic_rpc_handlers(tuple(services.values()))
        try:
            made.add_insecure_port(self.target)
        except RuntimeError as error:
            raise ServeError(f"gRPC cannot listen on {self.target}. Choose another port with --grpc_port.") from error
        await made.start()
        self._reserved.close()
        self._server = made

    async def stop(self, is_forced: Callable[[], bool]) -> None:
        """Answers the requests sent so far, refuses later ones, and stops.

        gRPC's own shutdown drops requests that have arrived but were not yet read from their connections.

        Args:
            is_forced: whether to stop at once.
        """
        if self._server is None:
            return
        end = time.monotonic() + self._options.stop_seconds
        await self._wait_for_quiet(end, is_forced)
        self._is_stopping = True
        while self._num_running and time.monotonic() < end and not is_forced():
            await asyncio.sleep(_TURN_SECONDS)
        await self._wait_for_quiet(end, is_forced)  # new requests are told that the server is stopping
        await self._server.stop(0.0 if is_forced() else max(0.0, end - time.monotonic()))

    async def _wait_for_quiet(self, end: float, is_forced: Callable[[], bool]) -> None:
        """Waits until no request is in flight; only for a limited time, since clients may never stop."""
        last = time.monotonic()
        end = min(end, last + _DOOR_SECONDS)
        while time.monotonic() < end and not is_forced():
            if await asyncio.to_thread(_has_unread, self._port):
                last = time.monotonic()
            if time.monotonic() - max(last, self._last_arrival) > _QUIET_SECONDS:
                return
            await asyncio.sleep(_TURN_SECONDS)

    def _handlers(self) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
        """Service -> method -> its handler."""
        methods = self._methods
        found = {
            "PredictionService": {
                "Predict": (predict_pb2.PredictRequest, methods.predict),
                "Classify": (classification_pb2.ClassificationRequest, methods.classify),
                "Regress": (regression_pb2.RegressionRequest, methods.regress),
                "MultiInference": (inference_pb2.MultiInferenceRequest, methods.multi_inference),
                "GetModelMetadata": (get_model_metadata_pb2.GetModelMetadataRequest, methods.metadata),
            },
            "ModelService": {
                "GetModelStatus": (get_model_status_pb2.GetModelStatusRequest, methods.status),
                "HandleReloadConfigRequest": (model_management_pb2.ReloadConfigRequest, methods.reload),
            },
        }
        return {
            f"{_PACKAGE}.{service}": {name: self._handler(kind, method) for name, (kind, method) in of_service.items()}
            for service, of_service in found.items()
        }

    def _handler(self, kind: Any, method: Callable[[Any, bool], Awaitable[Any]]) -> grpc.RpcMethodHandler:
        """The handler of a method, from bytes to bytes.

        Clients see a unary method; the request is read as a stream of one message, so that its arrival can be given a
        deadline.
        """

        async def answer(stream: Any, context: Any) -> bytes:
            del stream
            self._last_arrival = time.monotonic()
            if self._is_stopping:
                await _refuse(context, RequestError(503, "The server is stopping."))
            self._num_running += 1
            try:
                body = await self._body(context)
                is_large = len(body) >= LARGE_BYTES
                request = await asyncio.to_thread(_message, kind, body) if is_large else _message(kind, body)
                content: bytes = (await method(request, is_large)).SerializeToString()
            except RequestError as error:
                await _refuse(context, error)
            except Exception as error:
                logger.exception("A request could not be answered")
                await _refuse(context, RequestError(500, f"The server failed: {type(error).__name__}"))
            finally:
                self._num_running -= 1
            return content

        return grpc.stream_unary_rpc_method_handler(answer)

    async def _body(self, context: Any) -> bytes:
        """The only message of a request.

        gRPC hands over a message when it is complete, and sets no limit to those that are not.

        Raises:
            RequestError: 408, if it takes too long; 429, if other bodies take all room; 400 for no or several messages.
        """
        seconds, reading = self._options.body_seconds, asyncio.ensure_future(_messages(context))
        try:
            async with asyncio.timeout(seconds):
                done, _ = await asyncio.wait({reading}, timeout=_AT_ONCE_SECONDS)
                body, rest = reading.result() if done else await self._late(reading)
        except TimeoutError as error:
            raise RequestError(408, f"The body was not there after {seconds:g} seconds.") from error
        finally:
            reading.cancel()
        if body is grpc.aio.EOF or rest is not grpc.aio.EOF:
            raise RequestError(400, "A request must have one message.")
        found: bytes = body
        return found

    async def _late(self, reading: asyncio.Future[tuple[Any, Any]]) -> tuple[Any, Any]:
        """The messages of a request that has not arrived at once; it takes room until it is there."""
        size = self._options.max_request_bytes
        self._room.take(size, size)
        try:
            return await reading
        finally:
            self._room.taken -= size


async def _messages(context: Any) -> tuple[Any, Any]:
    """The first message of a request, and what follows it."""
    body = await context.read()
    return body, grpc.aio.EOF if body is grpc.aio.EOF else await context.read()


def _message(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise RequestError(400, f"The body is no {kind.DESCRIPTOR.name}: {error}.") from error


async def _refuse(context: Any, error: RequestError) -> None:
    """Answers with an error, by raising gRPC's abort exception."""
    seconds = error.headers.get("Retry-After")
    more = () if seconds is None else (("grpc-retry-pushback-ms", str(int(seconds) * 1000)),)
    await context.abort(_CODES.get(error.status, grpc.StatusCode.INTERNAL), error.message[:_MAX_MESSAGE], more)


def _has_unread(port: int) -> bool:
    """Whether one of this process's sockets of a port has unread data."""
    own = [found.fd for found in psutil.Process().net_connections("tcp") if found.laddr and found.laddr.port == port]
    return any(map(has_arrived, own))


class GrpcMethods:
    """The methods; each takes a message, and whether it is large, and returns the message of the answer.

    Args:
        models: the served models.
        max_bytes: maximum size of a request, and of an array made from it.
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
