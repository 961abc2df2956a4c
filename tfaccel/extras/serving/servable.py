"""One loaded version of a model, a SavedModel or a LiteRT file, called on batches of requests of many clients."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pool, json_format, message_factory

from tfaccel.compressing.litert.file import is_litert_file
from tfaccel.errors import ExportError, ServeError, VersionError
from tfaccel.exporting.load_model import ModelPlace, raw_input_of_file
from tfaccel.exporting.predictor import LitertPredictor
from tfaccel.exporting.saved_model_files import GRAPH_FILE, LITERT_FILE, read_notes, read_warm_up_requests
from tfaccel.exporting.saved_model_session import SavedModelSession, graph_error_reason
from tfaccel.exporting.signatures import DEFAULT, RAW
from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.request_inputs import Inputs, InputSpec, example_kinds
from tfaccel.known_names import did_you_mean

logger = logging.getLogger("tfaccel")


Arrays = dict[str, np.ndarray]
_PREDICT = "tensorflow/serving/predict"
_RETRY_SECONDS = "1"  # the `Retry-After` sent to clients if the queue is full
Specs = Mapping[str, tf.TensorSpec]


@dataclass(eq=False)
class Work:
    """One request that waits for the model.

    Args:
        run: called with the arrays of one or several requests.
        key: requests of equal keys can share a batch; None for one that is not batched.
        arrays: by name; those that share a batch are concatenated along the first axis.
        num_rows: their length along it.
        client: the receiver of the answer.
        is_exclusive: whether nothing else may run meanwhile.
    """

    run: Callable[[Sequence[Work]], Sequence[Any]]
    key: Hashable
    arrays: Arrays
    num_rows: int
    client: Any
    is_exclusive: bool = True
    arrival: float = field(default_factory=time.monotonic)


class Batcher:
    """A queue with two threads that run the model on batches of requests, of which the earliest due comes first.

    A batch is due when it is full, or its oldest request has waited long enough. Beside a running batch, only full ones
    start, on cores that it leaves idle; others can still grow.

    Args:
        max_batch_size: maximum number of rows in a batch; a larger request is a batch of its own.
        wait_seconds: how long the oldest request waits for others.
        max_queue: maximum number of waiting requests.
        deliver: called in a thread with the results of a batch: pairs of a client and a result or an exception.
    """

    def __init__(
        self,
        *,
        max_batch_size: int,
        wait_seconds: float,
        max_queue: int,
        deliver: Callable[[list[tuple[Any, Any]]], None],
    ) -> None:
        self._max_batch_size, self._wait_seconds, self._max_queue = max_batch_size, wait_seconds, max_queue
        self._deliver = deliver
        self._waiting: dict[Hashable, deque[Work]] = {}
        self._num_rows: Counter[Hashable] = Counter()  # that wait
        self.num_waiting = 0  # requests
        self._running: list[Work] = []  # the first of each batch
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name="tfaccel-batcher", daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Work) -> None:
        """Puts a request into the queue."""
        key = work if work.key is None else work.key
        with self._changed:
            if self._closed:
                raise RequestError(503, "The server is stopping.")
            if self.num_waiting >= self._max_queue:
                raise RequestError(
                    429,
                    f"{self.num_waiting} requests are waiting already. Try again later.",
                    {"Retry-After": _RETRY_SECONDS},
                )
            works = self._waiting.setdefault(key, deque())
            works.append(work)
            self._num_rows[key] += work.num_rows
            self.num_waiting += 1
            if self._is_full(key) or (len(works) == 1 and not self._running):
                self._changed.notify()

    def close(self, *, is_answered: bool = True) -> None:
        """Finishes the waiting requests, or forgets them if nobody can be answered any more; then ends the threads."""
        with self._changed:
            self._closed = True
            if not is_answered:
                self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._run_next():  # a thread that waits holds no batch, nor its version
            pass

    def _run_next(self) -> bool:
        """Runs one batch; False at the end."""
        batch = self._next_batch()
        if batch is None:
            return False
        try:
            results = list(batch[0].run(batch))
        except Exception as error:  # Any error of the model is sent to these clients.
            results = [error] * len(batch)
        with self._changed:
            self._running.remove(batch[0])
        self._deliver([(work.client, result) for work, result in zip(batch, results, strict=True)])
        return True

    def _next_batch(self) -> list[Work] | None:
        """Waits for a batch; None at the end."""
        with self._changed:
            while self._waiting or not self._closed:
                key, due = min(
                    ((key, self._due(key)) for key in self._waiting), key=lambda p: p[1], default=(None, 0.0)
                )
                seconds = due - time.monotonic()
                if key is None or (self._running and not self._may_join(key)):
                    self._changed.wait()
                elif seconds > 0:
                    self._changed.wait(seconds)
                else:
                    batch = self._take(key)
                    if any(map(self._may_join, self._waiting)):
                        self._changed.notify()
                    return batch
            self._changed.notify_all()
        return None

    def _due(self, key: Hashable) -> float:
        first = self._waiting[key][0]
        return first.arrival + (0.0 if self._is_full(key) or first is key or self._closed else self._wait_seconds)

    def _is_full(self, key: Hashable) -> bool:
        return self._num_rows[key] >= self._max_batch_size

    def _may_join(self, key: Hashable) -> bool:
        """Whether a batch may start beside what is running."""
        return self._is_full(key) and not any(work.is_exclusive for work in (self._waiting[key][0], *self._running))

    def _take(self, key: Hashable) -> list[Work]:
        """The requests at the head of a queue that fit into one batch."""
        works = self._waiting[key]
        batch = [works.popleft()]
        num_rows = batch[0].num_rows
        while works and num_rows + works[0].num_rows <= self._max_batch_size:
            batch.append(works.popleft())
            num_rows += batch[-1].num_rows
        self._num_rows[key] -= num_rows
        if not works:
            del self._waiting[key], self._num_rows[key]
        self.num_waiting -= len(batch)
        self._running.append(batch[0])
        return batch


def batch_sizes(max_batch_size: int) -> tuple[int, ...]:
    """The sizes to which batches are padded, so that the model sees few distinct ones.

    Example:
        >>> batch_sizes(24)
        (1, 2, 4, 8, 16, 24)
    """
    sizes = [size for size in (1, 2, 4) if size < max_batch_size]
    return (*sizes, *range(8, max_batch_size, 8), max_batch_size)


class Servable:
    """One version of a model.

    A LiteRT file takes one row at a time: requests for it are not batched.

    Args:
        folder: a SavedModel, or a folder with a LiteRT file; or that file.
        version: its number.
        max_batch_size: maximum number of rows per call.
        allow_file_operations: whether its graph may hold operations that are not known to be safe.
        observe: called with the number of rows of a batch and the seconds that it took.

    Raises:
        ServeError: if the folder holds no model that can be loaded and served.
    """

    def __init__(
        self,
        folder: Path,
        version: int,
        *,
        max_batch_size: int,
        allow_file_operations: bool = False,
        observe: Callable[[int, float], None],
    ) -> None:
        self.version, self.folder = version, folder
        self._max_batch_size = max_batch_size
        self._observe: Callable[[int, float], None] = _nothing
        self._model: SavedModelSession | LitertModel
        file = folder if folder.is_file() else folder / LITERT_FILE
        if is_litert_file(file) and file.is_file() and not (folder / GRAPH_FILE).is_file():
            self._model = litert = load_litert_model(file)
            self.raw_input, walk, self._is_row_by_row = litert.raw_input, None, True
        else:
            self._model = session = load_saved_model(folder, allow_file_operations=allow_file_operations)
            self.raw_input, walk, self._is_row_by_row = read_notes(folder)[1], session.walk, False
        self.signatures = self._model.signatures
        self.inputs = {name: _specs(self._model.input_specs(name)) for name in self.signatures}
        self.examples = {
            name: None if walk is None else example_kinds(walk, signature)
            for name, signature in self.signatures.items()
        }
        self._alone = {name for name in self.signatures if self._model.writes(name)}
        if walk is not None:
            del session.walk  # no longer needed, and as large as the graph
        self._is_exclusive = bool(self._alone) or self._is_row_by_row
        self._warm_up()
        self._observe = observe

    def work(self, signature_name: str, inputs: Inputs, client: Any) -> Work:
        """The queue entry of a request."""
        key = None
        is_by_rows = inputs.num_rows is not None and all(spec.shape for spec in self.inputs[signature_name].values())
        is_by_rows = is_by_rows and signature_name not in self._alone
        if is_by_rows and not self._is_row_by_row:
            shapes = tuple((name, array.shape[1:]) for name, array in inputs.arrays.items())
            key = (self, signature_name, shapes)
        run = self._runner(signature_name, is_batched=is_by_rows, place=inputs.place)
        return Work(run, key, inputs.arrays, inputs.num_rows or 1, client, is_exclusive=self._is_exclusive)

    def signature(self, name: str) -> dict[str, InputSpec]:
        """The inputs of a signature."""
        if name not in self.inputs:
            hint, known = did_you_mean(name, self.inputs), ", ".join(sorted(self.inputs))
            raise RequestError(
                400, f"Serving signature name: {name!r:.60} not found in signature def.{hint} There are: {known}."
            )
        return self.inputs[name]

    def _runner(self, name: str, *, is_batched: bool, place: str) -> Callable[[Sequence[Work]], Sequence[Any]]:
        if not is_batched:
            return lambda works: [self._run_alone(name, work) for work in works]
        return lambda works: self._run_together(name, works, place)

    def _run_alone(self, name: str, work: Work) -> Any:
        """The outputs of one unbatched request; an error of the model is answered as that client's fault."""
        try:
            return self._call(name, work.arrays, num_rows=work.num_rows)
        except (tf.errors.OpError, ValueError) as error:
            return RequestError(400, graph_error_reason(error))

    def _run_together(self, name: str, works: Sequence[Work], place: str) -> Sequence[Any]:
        """The outputs of each request; if the batch fails, each request is tried alone."""
        num_rows = [work.num_rows for work in works]
        joined = {
            key: np.concatenate([work.arrays[key] for work in works]) if len(works) > 1 else works[0].arrays[key]
            for key in works[0].arrays
        }
        try:
            outputs = self._run_rows(name, joined, sum(num_rows))
        except _NotByRows:
            return [self._run_alone(name, work) for work in works]
        except tf.errors.OpError as error:
            if len(works) == 1:
                return [self._fault(name, works[0], error, place)]
            return [result for work in works for result in self._run_together(name, [work], place)]
        ends = np.cumsum(num_rows).tolist()
        return [
            {key: value[end - length : end] for key, value in outputs.items()}
            for end, length in zip(ends, num_rows, strict=True)
        ]

    def _run_rows(self, name: str, arrays: Arrays, num_rows: int) -> Arrays:
        """Outputs of rows, in chunks of at most `max_batch_size`, each padded to one of a few sizes."""
        pieces = []
        fixed = next(iter(self.inputs[name].values())).shape
        most = fixed[0] if fixed and fixed[0] else self._max_batch_size
        for start in range(0, num_rows, most):
            length = min(most, num_rows - start)
            size = length if self._is_row_by_row else next(s for s in batch_sizes(most) if s >= length)
            size = most if fixed and fixed[0] else size
            piece = {key: _filled(array[start : start + length], size) for key, array in arrays.items()}
            outputs = self._call(name, piece, num_rows=length)
            if any(value.ndim == 0 or value.shape[0] != size for value in outputs.values()):
                raise _NotByRows
            pieces.append({key: value[:length] for key, value in outputs.items()})
        return pieces[0] if len(pieces) == 1 else {key: np.concatenate([p[key] for p in pieces]) for key in pieces[0]}

    def _call(self, name: str, arrays: Arrays, *, num_rows: int = 1) -> Arrays:
        start = time.perf_counter()
        outputs = self._model.run(name, arrays)
        self._observe(num_rows, time.perf_counter() - start)
        return outputs

    def _fault(self, name: str, work: Work, error: Exception, place: str) -> RequestError:
        """The error of a request that the model rejects, naming the row."""
        if work.num_rows > 1:
            for row in range(work.num_rows):
                try:
                    self._run_rows(name, {key: array[row : row + 1] for key, array in work.arrays.items()}, 1)
                except tf.errors.OpError as found:
                    return RequestError(400, f"{place}[{row}]: {graph_error_reason(found)}")
        return RequestError(400, f"{place}[0]: {graph_error_reason(error)}")

    def _warm_up(self) -> None:
        """Runs each batch size once, with the model's warm-up rows."""
        for signature_name, arrays in dict(read_warm_up_requests(self.folder)).items():
            if signature_name not in self.signatures or signature_name in self._alone:
                continue
            try:
                for size in batch_sizes(self._max_batch_size):
                    rows = {key: _filled(array[:1], size) for key, array in arrays.items()}
                    self._run_rows(signature_name, rows, size)
            except Exception as error:  # Warm-up is optional.
                logger.warning("The warm-up of version %d failed: %s", self.version, graph_error_reason(error))


class _NotByRows(Exception):
    """Outputs have another number of rows than the inputs, so requests cannot be batched."""


def load_saved_model(folder: Path, *, allow_file_operations: bool = False) -> SavedModelSession:
    """A SavedModel with a signature."""
    if not (folder / GRAPH_FILE).is_file():
        raise ServeError(f"{folder} holds no SavedModel: it has no {GRAPH_FILE}. Write one with `tfaccel export`.")
    try:
        loaded = SavedModelSession(folder, allow_file_operations=allow_file_operations)
    except ExportError as error:
        raise ServeError(str(error)) from error
    if not loaded.signatures:
        raise ServeError(
            f"The SavedModel in {folder} has no signature that takes and gives plain tensors. Export it anew with "
            f"`tfaccel export`, or give tf.saved_model.save the argument signatures={{{DEFAULT!r}: function}}."
        )
    return loaded


def load_litert_model(file: Path) -> LitertModel:
    """A LiteRT file."""
    try:
        return LitertModel(file)
    except (ExportError, VersionError) as error:
        raise ServeError(str(error)) from error


def describe(signature: Any) -> dict[str, Any]:
    """A signature as `/metadata` shows it: a `SignatureDef` as JSON."""
    found: dict[str, Any] = json_format.MessageToDict(
        signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def _specs(specs: Mapping[str, tf.TensorSpec]) -> dict[str, InputSpec]:
    found = {}
    for name, spec in specs.items():
        shape = None if spec.shape.rank is None else tuple(spec.shape.as_list())
        kind = np.dtype(object) if spec.dtype == tf.string else np.dtype(spec.dtype.as_numpy_dtype)
        found[name] = InputSpec(name, shape, kind)
    return found


def _nothing(num_rows: int, seconds: float) -> None:
    del num_rows, seconds


def _filled(array: np.ndarray, size: int) -> np.ndarray:
    """Rows, padded to `size` by repeating the last one."""
    missing = size - len(array)
    return array if missing <= 0 else np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])


class LitertModel:
    """A LiteRT file with the signatures that a SavedModel of the same model has.

    `serving_default` takes and returns tensors; `serving_raw`, if the raw inputs are known, takes encoded images or
    texts, and returns the most likely class and all probabilities if the classes are known.

    Attributes:
        signatures: name -> `SignatureDef`.
        raw_input: its raw inputs; None if unknown.

    Raises:
        ExportError: if LiteRT cannot load it, or it has no signature that takes one row at a time.
        VersionError: if LiteRT's runtime is not installed.
    """

    def __init__(self, file: Path) -> None:
        self.raw_input = raw_input_of_file(file)
        self._predictor = LitertPredictor(ModelPlace(file, file.stem, self.raw_input))
        self._inputs: dict[str, Specs] = {DEFAULT: self._predictor.inputs}
        outputs: dict[str, Specs] = {DEFAULT: self._predictor.outputs}
        if self._predictor.raw_inputs:
            self._inputs[RAW], outputs[RAW] = self._predictor.raw_inputs, self._predictor.raw_outputs
        self.signatures = {name: _signature(self._inputs[name], outputs[name]) for name in outputs}

    def input_specs(self, name: str) -> Specs:
        """The inputs of a signature, by name."""
        return self._inputs[name]

    def run(self, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of a signature for arrays by name.

        Raises:
            tensorflow.errors.OpError: if the model cannot take them.
        """
        if name == DEFAULT:
            return self._predictor.run(arrays)
        (contents,) = arrays.values()
        return self._predictor.raw(contents.tolist())

    def writes(self, name: str) -> bool:
        """Whether a signature changes the model's state: none does."""
        del name
        return False


def _signature(inputs: Specs, outputs: Specs) -> Any:
    """A `SignatureDef`."""
    kind = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("tensorflow.SignatureDef"))
    made: Any = kind(method_name=_PREDICT)
    for side, specs in ((made.inputs, inputs), (made.outputs, outputs)):
        for name, spec in specs.items():
            side[name].name = name
            side[name].dtype = spec.dtype.as_datatype_enum
            side[name].tensor_shape.CopyFrom(spec.shape.as_proto())
    return made
