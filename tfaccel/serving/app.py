"""The server's addresses: TensorFlow Serving's REST protocol, health and counts.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tfaccel.exporting.signatures import DEFAULT
from tfaccel.serving.batcher import Batcher
from tfaccel.serving.json_text import predictions, read_json, write_json
from tfaccel.serving.metrics import CONTENT_TYPE, Metrics
from tfaccel.serving.options import ServeOptions
from tfaccel.serving.request_body import read_body
from tfaccel.serving.request_error import RequestError
from tfaccel.serving.request_inputs import Inputs, read_examples, read_inputs
from tfaccel.serving.row_results import classes_of_rows, one_value_a_row
from tfaccel.serving.servable import Servable, describe
from tfaccel.serving.versions import Versions

logger = logging.getLogger("tfaccel")

_JSON = "application/json"
_LARGE_BYTES = 256 * 2**10  # a body from here on is read in a thread
_MOST_DIGITS = 18  # of a version
_CLOSE = {"Connection": "close"}
_PREDICT = re.compile(r"/v1/models/(?P<name>[^/]+?)(/versions/(?P<version>[^/]+?))?:predict")
_VERBS = (":predict", ":classify", ":regress")
_MODEL, _VERSION = "/v1/models/{name}", "/v1/models/{name}/versions/{version}"

Answer = Callable[[Request], Awaitable[Response]]


class ShortWay:
    """An application whose predictions go around the framework's routing, which takes longer than all else in them.

    Arguments:
        app: what answers all other requests.
        predict: what answers predictions.
    """

    def __init__(self, app: FastAPI, predict: Answer) -> None:
        self._app, self._predict = app, predict

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request, as ASGI has it."""
        found = _PREDICT.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["path_params"] = {name: text for name, text in found.groupdict().items() if text is not None}
        response = await self._predict(Request(scope, receive))
        await response(scope, receive, send)


class ModelApi:
    """What answers requests for one model.

    Arguments:
        versions: of the model.
        options: the server's limits.
        metrics: where requests are counted.
    """

    def __init__(self, versions: Versions, options: ServeOptions, metrics: Metrics) -> None:
        self._versions, self._options, self._metrics = versions, options, metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._batcher = Batcher(
            max_batch_size=options.max_batch_size, wait_seconds=options.batch_wait_ms / 1000,
            max_queue=options.max_queue, deliver=self._deliver,
        )  # fmt: skip
        metrics.watch("queue_requests", "Requests that wait for the model.", lambda: self._batcher.num_waiting)
        metrics.watch("versions", "Versions that are served.", lambda: len(versions.available))

    def app(self) -> ShortWay:
        """The application."""
        predict = self._counted("predict", self._predict)
        app = FastAPI(title=f"tfaccel: {self._versions.name}", docs_url=None, redoc_url=None, openapi_url=None,
                      redirect_slashes=False)  # fmt: skip
        for place in (_VERSION, _MODEL):
            app.add_route(f"{place}:predict", predict, methods=["POST"])
            app.add_route(f"{place}:classify", self._counted("classify", self._classify), methods=["POST"])
            app.add_route(f"{place}:regress", self._counted("regress", self._regress), methods=["POST"])
            app.add_route(f"{place}/metadata", self._counted("metadata", self._metadata), methods=["GET"])
            app.add_route(place, self._counted("status", self._status), methods=["GET"])
        app.add_route("/healthz", self._healthz, methods=["GET"])
        app.add_route("/readyz", self._readyz, methods=["GET"])
        for path in ("/metrics", "/monitoring/prometheus/metrics"):
            app.add_route(path, self._counts, methods=["GET"])
        app.add_exception_handler(404, _not_found)
        app.add_exception_handler(405, _not_found)
        return ShortWay(app, predict)

    def close(self) -> None:
        """Answers what waits, and ends the thread."""
        self._batcher.close()

    def _counted(self, method: str, answer: Answer) -> Answer:
        """An answer that is counted, and whose errors are JSON."""

        async def counted(request: Request) -> Response:
            start = time.perf_counter()
            try:
                self._check_name(request)
                response = await answer(request)
            except RequestError as error:
                response = _error(error)
            except Exception as error:
                logger.exception("A request could not be answered")
                response = _error(RequestError(500, f"The server failed: {type(error).__name__}"))
            self._metrics.answered(method, response.status_code, time.perf_counter() - start)
            return response

        return counted

    def _check_name(self, request: Request) -> None:
        name = request.path_params["name"]
        if name != self._versions.name:
            if name.endswith(_VERBS) and request.method != "POST":
                raise _malformed(request, 405, {"Allow": "POST"})
            raise RequestError(
                404, f"Servable not found for request: Latest({name}). Served here: {self._versions.name}."
            )

    async def _predict(self, request: Request) -> Response:
        servable, data = self._servable(request), await self._data(request)
        name = _signature_name(data)
        inputs = read_inputs(data, servable.signature(name))
        outputs = await self._outputs(servable, name, inputs)
        if inputs.in_rows and any(value.ndim == 0 or len(value) != inputs.num_rows for value in outputs.values()):
            raise RequestError(400, 'The outputs have no row for each instance. Ask in column format: "inputs".')
        return Response(write_json(predictions(outputs, in_rows=inputs.in_rows)), media_type=_JSON)

    async def _classify(self, request: Request) -> Response:
        servable, data = self._servable(request), await self._data(request)
        name = _signature_name(data)
        inputs = read_examples(data, servable.signature(name))
        outputs = await self._outputs(servable, name, inputs)
        return Response(write_json({"results": classes_of_rows(outputs, servable.raw_input)}), media_type=_JSON)

    async def _regress(self, request: Request) -> Response:
        servable, data = self._servable(request), await self._data(request)
        name = _signature_name(data)
        inputs = read_examples(data, servable.signature(name))
        outputs = await self._outputs(servable, name, inputs)
        return Response(write_json({"results": one_value_a_row(outputs)}), media_type=_JSON)

    async def _outputs(self, servable: Servable, name: str, inputs: Inputs) -> dict[str, np.ndarray]:
        """What the model gives for a request, together with others or alone."""
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._batcher.submit(servable.work(name, inputs, answer))
        result = await answer
        if isinstance(result, RequestError):
            raise result
        if isinstance(result, Exception):
            raise RequestError(500, f"The model failed: {type(result).__name__}: {' '.join(str(result).split())[:300]}")
        outputs: dict[str, np.ndarray] = result
        return outputs

    def _deliver(self, results: list[tuple[Any, Any]]) -> None:
        """From the batcher's thread to the event loop, once for all clients of a batch."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_set_results, results)

    def _servable(self, request: Request) -> Servable:
        return self._versions.get(_version(request))

    async def _data(self, request: Request) -> dict[str, Any]:
        seconds = self._options.body_seconds
        try:
            async with asyncio.timeout(seconds):
                body = await read_body(request, self._options.max_request_bytes)
        except TimeoutError as error:
            raise RequestError(408, f"The body was not there after {seconds:g} seconds.", _CLOSE) from error
        except ClientDisconnect as error:
            raise RequestError(400, "The client went away.", _CLOSE) from error
        return read_json(body) if len(body) < _LARGE_BYTES else await asyncio.to_thread(read_json, body)

    async def _metadata(self, request: Request) -> Response:
        servable = self._servable(request)
        signatures = {name: describe(function) for name, function in servable.functions.items()}
        spec = {"name": self._versions.name, "signature_name": "", "version": str(servable.version)}
        data = {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}
        return Response(write_json(data), media_type=_JSON)

    async def _status(self, request: Request) -> Response:
        rows = [
            {
                "version": str(version),
                "state": state.state,
                "status": {"error_code": "UNKNOWN" if state.message else "OK", "error_message": state.message},
            }
            for version, state in self._versions.states(_version(request)).items()
        ]
        return Response(write_json({"model_version_status": rows}), media_type=_JSON)

    async def _healthz(self, request: Request) -> Response:
        return Response(b'{"status":"alive"}', media_type=_JSON)

    async def _readyz(self, request: Request) -> Response:
        ready = self._versions.is_ready
        return Response(write_json({"ready": ready}), status_code=200 if ready else 503, media_type=_JSON)

    async def _counts(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)


def _version(request: Request) -> int | None:
    """The version in an address; None where there is none."""
    text = request.path_params.get("version")
    if text is None:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise RequestError(400, f"A version is a whole number. Received: {text!r:.60}.")
    return int(text)


def _signature_name(data: dict[str, Any]) -> str:
    name = data.get("signature_name", DEFAULT)
    if not isinstance(name, str):
        raise RequestError(400, f'"signature_name" must be a text. Received: {name!r:.60}.')
    return name or DEFAULT


def _set_results(results: list[tuple[Any, Any]]) -> None:
    for answer, result in results:
        if not answer.done():  # The client may have gone.
            answer.set_result(result)


def _error(error: RequestError) -> Response:
    body = write_json({"error": error.message})
    return Response(body, status_code=error.status, media_type=_JSON, headers=error.headers)


async def _not_found(request: Request, error: Any) -> Response:
    status, headers = int(getattr(error, "status_code", 404)), getattr(error, "headers", None)
    return _error(_malformed(request, status, headers))


def _malformed(request: Request, status: int, headers: Any) -> RequestError:
    return RequestError(status, f"Malformed request: {request.method} {request.url.path}", headers)
