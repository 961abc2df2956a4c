"""The models of a server, which can be added and removed while it runs, and the answers to requests for each.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tfaccel.data.raw_input import RawInput
from tfaccel.errors import ServeError, in_one_line
from tfaccel.exporting.signatures import DEFAULT
from tfaccel.extras.serving.messages import Answer, Request, RequestError, predictions, read_json, write_json
from tfaccel.extras.serving.metrics import Metrics
from tfaccel.extras.serving.model_config import ModelConfig, read_model_configs
from tfaccel.extras.serving.options import ServeOptions
from tfaccel.extras.serving.request_inputs import Inputs, InputSpec, number_rows, read_examples, read_inputs
from tfaccel.extras.serving.servable import Batcher, Servable, describe
from tfaccel.extras.serving.versions import Versions, give_back_memory
from tfaccel.reporting.classes import softmax

LARGE_BYTES = 256 * 2**10  # larger bodies are parsed in a thread

Answered = TypeVar("Answered")
Asked = tuple[str, Inputs]  # a signature's name, and its inputs
logger = logging.getLogger("tfaccel")
Loaded = Callable[[Versions], None]
Failed = Callable[[BaseException], None]


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

    def close(self, *, is_answered: bool = True) -> None:
        """Answers the waiting requests, unless `is_answered` is false, and ends the threads."""
        self.versions.stop()
        self._batcher.close(is_answered=is_answered)

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
            raise RequestError(500, f"The model failed: {type(result).__name__}: {in_one_line(result, 300)}")
        return inputs, result

    def _deliver(self, results: list[tuple[Any, Any]]) -> None:
        """Passes the results of a batch from the batcher's thread to the event loop."""
        if self._loop is not None:
            with suppress(RuntimeError):  # The loop has ended: `stop_seconds` have passed, or clients have gone.
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


def classes_of_rows(outputs: dict[str, np.ndarray], known: RawInput | None) -> list[list[list[Any]]]:
    """Pairs of a class's name and its score for each row: what `:classify` answers.

    Args:
        outputs: the model's outputs, by name.
        known: gives class names; without it, each is "".
    """
    if set(outputs) <= {"classes", "scores"}:
        return _pairs_of_rows(outputs)
    names = known.class_names if known is not None else ()
    scores = outputs.get("probabilities", next(iter(outputs.values())))
    is_other = (known is not None and known.outputs == "values") or (
        len(outputs) > 1 and "probabilities" not in outputs
    )
    if is_other or scores.ndim != 2 or scores.dtype.kind != "f" or (names and scores.shape[1] != len(names)):
        raise RequestError(400, f"The model does not classify: its output has the shape {scores.shape}. Use :predict.")
    if known is not None and known.outputs == "logits" and "probabilities" not in outputs:
        scores = softmax(scores)
    names = names or ("",) * scores.shape[1]
    return [[[name, score] for name, score in zip(names, row, strict=True)] for row in scores.tolist()]


def _pairs_of_rows(outputs: dict[str, np.ndarray]) -> list[list[list[Any]]]:
    """As in TensorFlow Serving: missing labels are "", missing scores 0."""
    arrays = list(outputs.values())
    if any(array.ndim != 2 or array.shape != arrays[0].shape for array in arrays):
        shapes = ", ".join(f"{name} {value.shape}" for name, value in outputs.items())
        raise RequestError(400, f"The model does not classify: it gives {shapes}. Use :predict.")
    labels = outputs.get("classes", np.full(arrays[0].shape, b"", dtype=object)).tolist()
    scores = outputs.get("scores", np.zeros(arrays[0].shape)).tolist()
    return [
        [[_text(label), score] for label, score in zip(*row, strict=True)] for row in zip(labels, scores, strict=True)
    ]


def _text(label: Any) -> str:
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


def one_value_a_row(outputs: dict[str, np.ndarray]) -> list[float]:
    """The number that a model predicts for each row: the answer of `:regress`.

    Example:
        >>> one_value_a_row({"price": np.array([[2.5], [3.0]])})
        [2.5, 3.0]
    """
    values = next(iter(outputs.values()))
    is_number = values.dtype.kind in "fiu" and values.ndim in (1, 2) and values.shape[1:] in ((), (1,))
    if len(outputs) != 1 or not is_number:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in outputs.items())
        raise RequestError(400, f"The model does not give one number for each row, but {shapes}. Use :predict.")
    found: list[float] = values.reshape(-1).tolist()
    return found


class Models:
    """Models by name.

    Args:
        configs: the initial models.
        options: the server's limits.
        metrics: counts their batches.

    Attributes:
        apis: name -> the model's API.
    """

    def __init__(self, configs: Sequence[ModelConfig], options: ServeOptions, metrics: Metrics) -> None:
        self._options, self._metrics = options, metrics
        self.apis: dict[str, ModelApi] = {config.name: self._api(config) for config in configs}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def api(self, name: str) -> ModelApi:
        """The API of a model.

        Raises:
            RequestError: 404, if there is no model of this name.
        """
        if name not in self.apis:
            served = ", ".join(sorted(self.apis))
            raise RequestError(404, f"Servable not found for request: Latest({name}). Served here: {served}.")
        return self.apis[name]

    def start(self, *, loaded: Loaded, failed: Failed) -> None:
        """Starts to load all models, each in its own thread, which then watches for new versions.

        Args:
            loaded: called in a model's thread when its first versions are served.
            failed: called there with the error if none can be.
        """
        for api in self.apis.values():
            self._watch(api.versions, loaded, failed)

    def follow(self, file: Path, poll_seconds: float) -> None:
        """Starts a thread that applies a configuration file again whenever it changes."""
        self._thread = threading.Thread(target=self._follow, args=(file, poll_seconds), daemon=True)
        self._thread.start()

    def configure(self, configs: Sequence[ModelConfig]) -> None:
        """Serves exactly these models: loads new ones, unloads others, and updates the settings of the rest."""
        before, apis = self.apis, {}
        for config in configs:
            api = before.get(config.name)
            if api is not None and api.versions.folder == config.folder:
                api.versions.configure(config.policy, config.labels)
            else:
                api = self._api(config)
                self._watch(api.versions, _say, partial(_warn, config.name))
            apis[config.name] = api
        self.apis = apis
        for name, api in before.items():
            if apis.get(name) is not api:
                api.close()
                logger.info("%s is no longer served", name)
                if name not in apis:
                    self._metrics.forget(name)

    @property
    def is_ready(self) -> bool:
        """Whether each model has loaded its versions."""
        return all(api.versions.is_ready for api in self.apis.values())

    def close(self) -> None:
        """Ends all threads, once the event loop has ended: requests that still wait are forgotten."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for api in self.apis.values():
            api.close(is_answered=False)

    def _api(self, config: ModelConfig) -> ModelApi:
        options, observe = self._options, self._metrics.batches(config.name)

        def load(folder: Path, version: int) -> Servable:
            return Servable(
                folder,
                version,
                max_batch_size=options.max_batch_size,
                observe=observe,
                allow_file_operations=options.allow_file_operations,
            )

        versions = Versions(config.name, config.folder, load, policy=config.policy, labels=config.labels)
        return ModelApi(versions, options, self._metrics)

    def _watch(self, versions: Versions, loaded: Loaded, failed: Failed) -> None:
        versions.watch(self._options.poll_seconds, loaded=partial(loaded, versions), failed=failed)

    def _follow(self, file: Path, poll_seconds: float) -> None:
        known = _content(file)
        while not self._stopped.wait(poll_seconds):
            found = _content(file)
            if found == known:
                continue
            known = found
            try:
                self.configure(read_model_configs(file))
                give_back_memory()
                logger.info("%s was reloaded", file)
            except ServeError as error:  # The current models stay.
                logger.warning("%s", error)


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _say(versions: Versions) -> None:
    logger.info("%s is served", versions.name)


def _warn(name: str, error: BaseException) -> None:
    logger.warning("%s cannot be served: %s", name, error)
