"""Answers requests for one model.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from tfaccel.exporting.signatures import DEFAULT
from tfaccel.extras.serving.batcher import Batcher
from tfaccel.extras.serving.json_text import predictions, read_json, write_json
from tfaccel.extras.serving.messages import Answer, Request
from tfaccel.extras.serving.metrics import Metrics
from tfaccel.extras.serving.number_rows import number_rows
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.extras.serving.request_error import RequestError
from tfaccel.extras.serving.request_inputs import Inputs, InputSpec, read_examples, read_inputs
from tfaccel.extras.serving.row_results import classes_of_rows, one_value_a_row
from tfaccel.extras.serving.servable import Servable, describe
from tfaccel.extras.serving.versions import Versions

logger = logging.getLogger("tfaccel")

LARGE_BYTES = 256 * 2**10  # larger bodies are parsed in a thread

Answered = TypeVar("Answered")
Asked = tuple[str, Inputs]  # a signature's name, and its inputs


class ModelApi:
    """Answers requests for one model.

    Args:
        versions: the model's versions.
        options: the server's limits.
        metrics: shows its queue.
    """

    def __init__(self, versions: Versions, options: ServeOptions, metrics: Metrics) -> None:
        self.versions, self._options, self._metrics = versions, options, metrics
        self._loop: asyncio.AbstractEventLoop | None = None
        self._batcher = Batcher(
            max_batch_size=options.max_batch_size,
            wait_seconds=options.batch_wait_ms / 1000,
            max_queue=options.max_queue,
            deliver=self._deliver,
        )
        metrics.watch("queue_requests", versions.name, lambda: self._batcher.num_waiting)
        metrics.watch("versions", versions.name, lambda: len(versions.available))

    def close(self) -> None:
        """Answers the waiting requests, and ends the threads."""
        self.versions.stop()
        self._batcher.close()

    async def counted(self, method: str, answer: Awaitable[Answered]) -> Answered:
        """The answer to a request, counted in the metrics.

        Raises:
            RequestError: if the request fails; 500 for an unexpected error.
        """
        start, fault = time.perf_counter(), None
        try:
            found = await answer
        except RequestError as error:
            fault = error
        except Exception as error:
            logger.exception("A request could not be answered")
            fault = RequestError(500, f"The server failed: {type(error).__name__}")
        status = 200 if fault is None else fault.status
        self._metrics.answered(self.versions.name, method, status, time.perf_counter() - start)
        if fault is not None:
            raise fault
        return found

    async def answer(self, method: str, version: int | None, request: Request) -> Answer:
        """The answer to a request.

        Args:
            method: "predict", "classify", "regress", "metadata" or "status".
            version: the requested version; None for the newest, or for the status of all.
            request: whose body, if there is one, has not been read.

        Raises:
            RequestError: if there is none.
        """
        if method == "status":
            return self._status(version)
        servable = self.versions.get(version)
        if method == "metadata":
            return self._metadata(servable)
        body = await request.body(self._options.max_request_bytes, self._options.body_seconds)
        read = _read_predict if method == "predict" else _read_rows
        inputs, outputs = await self.outputs(servable, lambda: read(body, servable), is_large=len(body) >= LARGE_BYTES)
        if method == "classify":
            return Answer(write_json({"results": classes_of_rows(outputs, servable.raw_input)}))
        if method == "regress":
            return Answer(write_json({"results": one_value_a_row(outputs)}))
        if inputs.in_rows and any(value.ndim == 0 or len(value) != inputs.num_rows for value in outputs.values()):
            raise RequestError(400, 'The outputs have no row for each instance. Ask in column format: "inputs".')
        return Answer(write_json(predictions(outputs, in_rows=inputs.in_rows)))

    async def outputs(
        self, servable: Servable, read: Callable[[], Asked], *, is_large: bool
    ) -> tuple[Inputs, dict[str, np.ndarray]]:
        """The inputs of a request and the model's outputs for them, batched with others or alone.

        Args:
            servable: the requested version.
            read: returns the signature's name and inputs.
            is_large: whether to call `read` in a thread.

        Raises:
            RequestError: if it cannot be parsed or answered.
        """
        name, inputs = await asyncio.to_thread(read) if is_large else read()
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._batcher.submit(servable.work(name, inputs, answer))
        result = await answer
        if isinstance(result, RequestError):
            raise result
        if isinstance(result, Exception):
            raise RequestError(500, f"The model failed: {type(result).__name__}: {' '.join(str(result).split())[:300]}")
        return inputs, result

    def _deliver(self, results: list[tuple[Any, Any]]) -> None:
        """Passes the results of a batch from the batcher's thread to the event loop."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_set_results, results)

    def _metadata(self, servable: Servable) -> Answer:
        signatures = {name: describe(signature) for name, signature in servable.signatures.items()}
        spec = {"name": self.versions.name, "signature_name": "", "version": str(servable.version)}
        return Answer(write_json({"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}))

    def _status(self, version: int | None) -> Answer:
        rows = [
            {
                "version": str(number),
                "state": state.state,
                "status": {"error_code": "UNKNOWN" if state.message else "OK", "error_message": state.message},
            }
            for number, state in self.versions.states(version).items()
        ]
        return Answer(write_json({"model_version_status": rows}))


def _read_predict(body: bytes, servable: Servable) -> Asked:
    """Parses a `:predict`."""
    specs = servable.inputs

    def get_specs(name: str) -> Mapping[str, InputSpec] | None:
        return specs.get(name or DEFAULT)

    found = number_rows(body, get_specs)
    if found is not None:
        return found[0] or DEFAULT, found[1]
    return _read(body, servable, is_predict=True)


def _read_rows(body: bytes, servable: Servable) -> Asked:
    """Parses a `:classify` or `:regress`."""
    return _read(body, servable, is_predict=False)


def _read(body: bytes, servable: Servable, *, is_predict: bool) -> Asked:
    data = read_json(body)
    name = _signature_name(data)
    specs = servable.signature(name)
    try:
        return name, read_inputs(data, specs) if is_predict else read_examples(data, specs, servable.examples[name])
    except RecursionError as error:
        raise RequestError(400, "The body has more lists within lists than any input.") from error


def _signature_name(data: dict[str, Any]) -> str:
    name = data.get("signature_name", DEFAULT)
    if not isinstance(name, str):
        raise RequestError(400, f'"signature_name" must be a text. Received: {type(name).__name__}.')
    return name or DEFAULT


def _set_results(results: list[tuple[Any, Any]]) -> None:
    for answer, result in results:
        if not answer.done():  # The client may have disconnected.
            answer.set_result(result)
