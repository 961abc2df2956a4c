"""`export`: writes a trained model in deployable formats, each compared with it in a fresh process."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.argument_types import checks_types
from tfaccel.compressing.litert.file import check_litert
from tfaccel.data.raw_input import RawInput
from tfaccel.errors import ExportError, in_one_line
from tfaccel.exporting.comparison import Comparison, EdgeCase, differences, edge_cases
from tfaccel.exporting.export_result import DEFAULT_FORMATS, FORMATS, ExportedFile, ExportResult
from tfaccel.exporting.fresh_process import NEST, RAW_MARK, as_inputs, numbered
from tfaccel.exporting.litert_files import litert_content
from tfaccel.exporting.load_model import MODEL_FILE, ModelPlace, load_keras_model, place_of_run, served_model, url_name
from tfaccel.exporting.onnx_files import check_onnx_packages, write_onnx
from tfaccel.exporting.sample_rows import (
    get_compared_rows,
    raw_rows,
    rows_of_raw,
    rows_of_run,
    sample_rows,
    smallest_embedding,
)
from tfaccel.exporting.saved_model_files import LITERT_FILE, serving_command, version_folders, write_saved_model
from tfaccel.exporting.signatures import DEFAULT, RAW, float32_model, make_signatures
from tfaccel.files import folder_beside
from tfaccel.known_names import did_you_mean, suggests_names
from tfaccel.local_path import is_utf8, shown_path
from tfaccel.remote import is_remote, readable_path, written_folder
from tfaccel.reporting.classes import softmax
from tfaccel.training.private.private_api import call_model

logger = logging.getLogger("tfaccel")

RESULT_FILE, SAVED_MODEL_FOLDER, ONNX_FILE = "export.json", "saved_model", "model.onnx"
LITERT_PROGRAM, SERVING_PROGRAM = "run_litert.py", "tensorflow_serving.sh"
_NAMES = {"keras": "Keras's own file", "saved_model": "a SavedModel", "litert": "a LiteRT file", "onnx": "an ONNX file"}


@suggests_names
@checks_types(ExportError, checks_numbers=True)
def export(
    run_or_model: str | os.PathLike[str] | keras.Model,
    formats: Sequence[str] = DEFAULT_FORMATS,
    *,
    out: str | os.PathLike[str],
    name: str | None = None,
    version: int | None = None,
    sample: Any = None,
    modules: Sequence[str] = (),
) -> ExportResult:
    """Writes a model in several formats, and compares each file in a fresh process with the Keras model.

    The outputs must be the same for rows of the run's own data, or for random numbers where these cannot be had. They
    are compared for edge values as well (negative, zero, positive, half and extreme ones, and NaN): what differs
    there is logged, and recorded with the file.

    `out` gets `model.keras`; `saved_model/VERSION`, in TensorFlow Serving's layout, with the signature
    `serving_default`, if raw inputs are known also `serving_raw`, and warm-up requests; `model.tflite` with
    `run_litert.py`, which runs it on a device; `model.onnx`; `tensorflow_serving.sh`, which runs TensorFlow Serving's
    image on the SavedModel; and `export.json`, the result. Exporting to the same folder again adds a version and
    replaces the other files. The export is atomic: everything is written next to the folder first and then moved.

    All formats except `model.keras` compute in float32, since 16 bits may be slow or unsupported on the target.

    Args:
        run_or_model: a run directory, a `.keras` file, or a built Keras model.
        formats: any of "keras", "saved_model", "litert" and "onnx".
        out: a new folder, or the folder of an earlier export. For an address such as s3://bucket/digits,
            files are sent there when all are written.
        name: name under which clients request the model; None for the recipe's or the file's.
        version: version of the SavedModel; None for 1, or one more than the highest in `out`.
        sample: an input batch of at least four rows to compare with; None for rows of the run's data, or random
            numbers. Subclassed models need one.
        modules: your modules that define layers of a model in a file.

    Returns:
        The files written, with the largest difference of each format.

    Raises:
        ExportError: if the model cannot be loaded or converted (layers that LiteRT does not support are named), a file
            differs from the Keras model, or `out` holds something else.
        VersionError: if a package is missing.

    Example:
        >>> import keras, tempfile
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = export(model, ["litert"], out=folder + "/out", name="line")
        >>> result.files[0].max_difference < 1e-5
        True
    """
    chosen = check_formats(formats)
    if isinstance(run_or_model, str | os.PathLike):
        run_or_model = readable_path(run_or_model, ExportError)
    place = _place(run_or_model, name)
    with written_folder(out, ExportError, last=("saved_model.pb", RESULT_FILE)) as folder:
        if not is_utf8(folder):
            raise ExportError(f"The name of the folder must be UTF-8. Received: {shown_path(folder)}.")
        number = next_version(folder, version)
        if "litert" in chosen:
            check_litert()
        if "onnx" in chosen:
            check_onnx_packages()
        if isinstance(run_or_model, (str, os.PathLike)):
            logger.info("Loading %s", place.path)
            whole = load_keras_model(place.path, modules=modules)
        else:
            whole = run_or_model
        model = served_model(whole)
        if model is not whole:
            logger.info("Exporting submodel %s of %s", model.name, whole.name)
            place = ModelPlace(Path(), place.name, place.raw_input)
        shown = os.fspath(out) if is_remote(out) else str(folder)
        with export_folder(folder) as unfinished:
            own_rows = rows_of_run(run_or_model) if sample is None and model is whole else None
            exporter = Exporter(model, place, unfinished, sample=sample, own_rows=own_rows, modules=modules)
            result = exporter.write(chosen, folder=folder, version=number, shown=shown)
    logger.info("Exported to %s", shown)
    return result


def check_formats(formats: Sequence[str]) -> list[str]:
    """Checks the formats and removes duplicates.

    Example:
        >>> check_formats(["pdf"])
        Traceback (most recent call last):
        ...
        tfaccel.errors.ExportError: There is no format 'pdf'. Formats: keras, saved_model, litert, onnx.
    """
    if not formats:
        raise ExportError(f"Name at least one format. Formats: {', '.join(FORMATS)}.")
    for name in formats:
        if name not in FORMATS:
            raise ExportError(
                f"There is no format {name!r}.{did_you_mean(name, FORMATS)} Formats: {', '.join(FORMATS)}."
            )
    return [name for name in FORMATS if name in formats]


def _place(run_or_model: Any, name: str | None) -> ModelPlace:
    """The location of the model, with the chosen name."""
    if isinstance(run_or_model, (str, os.PathLike)):
        path = Path(run_or_model)
        found = place_of_run(path) if path.is_dir() else ModelPlace(path, url_name(path.stem))
    else:
        if not isinstance(run_or_model, keras.Model) or not served_model(run_or_model).built:
            raise ExportError(
                f"Give a run directory, a .keras file, or a built Keras model. Received: {run_or_model!r:.200}"
            )
        found = ModelPlace(Path(), url_name(str(run_or_model.name)))
    if name is None:
        return found
    if url_name(name) != name:
        raise ExportError(f"A model's name has letters, digits, '-', '_' and '.' only. Received: {name!r}.")
    return ModelPlace(found.path, name, found.raw_input)


def next_version(out: Path, version: int | None) -> int:
    """The version of the next export to a folder.

    Args:
        out: the folder, which need not exist.
        version: the requested version; None for one more than the highest.
    """
    if out.exists() and not out.is_dir():
        raise ExportError(f"--out is a file: {out}. Name a folder.")
    if out.is_dir() and any(out.iterdir()) and not (out / RESULT_FILE).is_file():
        raise ExportError(f"{out} is not empty and holds no export of tfaccel. Choose a new folder.")
    there = version_folders(out / SAVED_MODEL_FOLDER)
    if version is None:
        return max(there, default=0) + 1
    if type(version) is not int or version < 1:
        raise ExportError(f"`version` must be a whole number of at least 1. Received: version={version!r}.")
    if version in there:
        raise ExportError(f"{out} holds version {version} already. Choose another, such as {max(there) + 1}.")
    return version


@contextlib.contextmanager
def export_folder(out: Path) -> Iterator[Path]:
    """Yields an empty folder next to `out`, and moves its content to `out` at the end, SavedModel versions first."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = folder_beside(out)
    except OSError as error:
        raise ExportError(f"Cannot write to {out}: {error.strerror or error}.") from error
    try:
        yield unfinished
        if out.is_dir() and any(out.iterdir()):
            _move(unfinished, out)
        else:
            with contextlib.suppress(FileNotFoundError):
                out.rmdir()
            os.replace(unfinished, out)
    except OSError as error:  # the disk is full, or another export came first
        raise ExportError(f"Cannot write to {out}: {error}.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move(unfinished: Path, out: Path) -> None:
    for version in version_folders(unfinished / SAVED_MODEL_FOLDER).values():
        (out / SAVED_MODEL_FOLDER).mkdir(exist_ok=True)
        os.replace(version, out / SAVED_MODEL_FOLDER / version.name)
    for entry in sorted(unfinished.iterdir()):
        if entry.is_file():
            os.replace(entry, out / entry.name)


class Exporter:
    """Writes one model into a folder.

    Args:
        model: a built Keras model.
        place: its file, name and raw inputs.
        folder: an empty folder.
        sample: an input batch, or None.
        own_rows: an input batch of the run's own data, or None.
        modules: the user's modules that define its layers.

    Raises:
        ExportError: if the model's inputs are unknown, or it cannot be called.
    """

    def __init__(
        self,
        model: keras.Model,
        place: ModelPlace,
        folder: Path,
        *,
        sample: Any = None,
        own_rows: Any = None,
        modules: Sequence[str] = (),
    ) -> None:
        self._model, self._exact = model, float32_model(model)
        self._place, self._folder, self._modules = place, folder, modules
        self._signatures = make_signatures(self._exact, place.raw_input, sample=sample)
        self._rows = get_compared_rows(self._signatures, self._exact, place.raw_input, sample=sample, own_rows=own_rows)
        self._names = list(self._signatures.functions[DEFAULT].structured_outputs)
        try:
            self._wanted = self._outputs(self._exact, self._rows)
        except Exception as error:
            of = "rows that tfaccel makes for its inputs" if sample is None and own_rows is None else "the sample"
            text = in_one_line(error)
            raise ExportError(
                f"The model cannot be called on {of}: {text:.300} Give rows that it takes: tfaccel.export(model, "
                "sample=rows, ...)."
            ) from error
        self._version = 1

    def write(self, formats: Sequence[str], *, folder: Path, version: int, shown: str) -> ExportResult:
        """Writes and compares the files, then writes the result."""
        self._version = version
        apart = [np.abs(a - b) for a, b in zip(self._trained, self._wanted, strict=True) if b.dtype.kind == "f"]
        changed = max((float(np.max(values, initial=0.0)) for values in apart), default=0.0)
        written = []
        for kind in formats:
            logger.info("Writing %s", _NAMES[kind])
            written.append(getattr(self, f"_write_{kind}")())
        logger.info("Loading the files in a fresh process, and comparing them with the Keras model")
        pairs = zip(written, differences(written, self._modules), strict=True)
        files = [self._file(file, *found) for file, found in pairs]
        for file in files:
            if file.differs:
                logger.warning("%s differs from the Keras model. %s", file.path, file.differs)
        result = ExportResult(
            name=self._place.name,
            version=version,
            folder=shown,
            files=tuple(files),
            float32_difference=changed,
            commands=self._commands(formats, folder),
        )
        (self._folder / RESULT_FILE).write_text(json.dumps(result.to_json(), indent=2) + "\n")
        return result

    def _write_keras(self) -> Comparison:
        path = self._folder / MODEL_FILE
        if self._place.path.is_file():
            shutil.copyfile(self._place.path, path)
        else:
            self._model.save(path)
        rows = {**self._rows, NEST: np.array(json.dumps(self._signatures.input_nest))}
        return Comparison("keras", path, rows, numbered(self._trained))

    def _write_saved_model(self) -> Comparison:
        raw_input = self._place.raw_input
        path = self._folder / SAVED_MODEL_FOLDER / str(self._version)
        has_raw = RAW in self._signatures.functions
        raw = raw_rows(raw_input, self._rows) if has_raw else {}
        requests = [(DEFAULT, _first(self._rows)), (DEFAULT, self._rows)]
        requests += [(RAW, _first(raw)), (RAW, raw)] if raw else []
        path.parent.mkdir()
        write_saved_model(path, self._signatures, name=self._place.name, raw_input=raw_input, requests=requests)
        wanted = dict(zip(self._names, self._wanted, strict=True))
        rows = dict(self._rows)
        if raw and raw_input is not None:
            rows |= {f"{RAW_MARK}{name}": array for name, array in raw.items()}
            of_raw = self._outputs(self._exact, rows_of_raw(raw_input, raw, self._rows))
            wanted |= {f"{RAW_MARK}{name}": value for name, value in self._raw_outputs(of_raw, raw_input).items()}
        program = self._folder / SERVING_PROGRAM
        program.write_text(serving_command(self._place.name))
        readable = program.stat().st_mode & 0o444
        program.chmod(program.stat().st_mode | readable >> 2)  # who may read it may run it
        return Comparison("saved_model", path, rows, wanted, tuple(self._signatures.functions), self._edges)

    def _write_litert(self) -> Comparison:
        path, place = self._folder / LITERT_FILE, self._place
        content = litert_content(
            self._exact, self._signatures, name=place.name, raw_input=place.raw_input, rows=self._rows
        )
        path.write_bytes(content)
        shutil.copyfile(Path(__file__).with_name("litert_program.py"), self._folder / LITERT_PROGRAM)
        wanted = dict(zip(self._names, self._wanted, strict=True))
        return Comparison("litert", path, self._rows, wanted, (DEFAULT,), self._edges)

    def _write_onnx(self) -> Comparison:
        path = self._folder / ONNX_FILE
        write_onnx(path, self._exact)
        return Comparison("onnx", path, self._in_order(self._rows), numbered(self._wanted), (), self._edges)

    @functools.cached_property
    def _edges(self) -> list[EdgeCase]:
        def outputs(rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            with tf.device("/CPU:0"):  # where numbers that are no tokens are refused
                return self._outputs(self._exact, rows)

        cases = edge_cases(self._rows, outputs, highest=smallest_embedding(self._exact))
        return [EdgeCase(case.name, self._in_order(case.rows), case.wanted) for case in cases]

    def _in_order(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: rows[name] for name in self._signatures.input_names}

    @functools.cached_property
    def _trained(self) -> list[np.ndarray]:
        """The outputs of the model as it was trained."""
        return self._wanted if self._model is self._exact else self._outputs(self._model, self._rows)

    def _file(self, file: Comparison, difference: float, size: float, differs: str) -> ExportedFile:
        path = file.path
        num_bytes = sum(entry.stat().st_size for entry in [path, *path.rglob("*")] if entry.is_file())
        return ExportedFile(
            format=file.kind,
            path=str(path.relative_to(self._folder)),
            num_bytes=num_bytes,
            max_difference=difference,
            max_output=size,
            signatures=file.signatures,
            differs=differs,
        )

    def _outputs(self, model: keras.Model, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs of a Keras model in this process; half precision is converted to float32."""
        arguments = keras.tree.map_structure(as_inputs(rows).__getitem__, self._signatures.input_nest)
        outputs = [
            np.asarray(keras.ops.convert_to_numpy(value))
            for value in keras.tree.flatten(call_model(model, arguments, training=False))
        ]
        return [value if value.dtype.kind in "biufcSO" else value.astype(np.float32) for value in outputs]

    def _raw_outputs(self, outputs: list[np.ndarray], raw_input: RawInput) -> dict[str, np.ndarray]:
        """The expected outputs of `serving_raw`, computed with NumPy."""
        if set(self._signatures.functions[RAW].structured_outputs) != {"label", "probabilities"}:
            return dict(zip(self._names, outputs, strict=True))
        values = outputs[0].astype(np.float64)
        values = softmax(values) if raw_input.outputs == "logits" else values
        labels = np.array([raw_input.class_names[row].encode() for row in values.argmax(axis=1)])
        return {"label": labels, "probabilities": values}

    def _commands(self, formats: Sequence[str], folder: Path) -> dict[str, str]:
        """Shell commands that use the files."""
        place, commands = folder.resolve(), {}
        if "saved_model" in formats:
            versions, name = place / SAVED_MODEL_FOLDER, self._place.name
            mount = shlex.quote(f"type=bind,source={versions},target=/models/{name}")
            commands["serve"] = f"tfaccel serve --model={shlex.quote(str(versions))} --name={name}"
            commands["tensorflow_serving"] = (
                f"docker run --rm -p 127.0.0.1:8501:8501 -e MODEL_NAME={name} --mount {mount} tensorflow/serving"
            )
        if "litert" in formats:
            files = [shlex.quote(str(place / file)) for file in (LITERT_PROGRAM, LITERT_FILE)]
            commands["litert"] = f"python {files[0]} {files[1]} examples.npy"
        return commands


def _first(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[:1] for name, array in rows.items()}


def write_served_copy(place: ModelPlace, folder: Path, *, modules: Sequence[str] = ()) -> None:
    """Writes version 1 of a SavedModel into a folder, in float32, without comparing it with the file.

    Args:
        place: location of the `.keras` file.
        folder: an empty folder.
        modules: the user's modules that define its layers.

    Raises:
        ExportError: if the file cannot be loaded.
    """
    whole = load_keras_model(place.path, modules=modules)
    logger.info("Converting %s to a SavedModel", place.path)
    model = float32_model(served_model(whole))
    signatures = make_signatures(model, place.raw_input)
    rows = sample_rows(signatures.inputs, model, place.raw_input, num_rows=1)
    requests = [(DEFAULT, rows)]
    if RAW in signatures.functions:
        requests.append((RAW, raw_rows(place.raw_input, rows)))
    write_saved_model(folder / "1", signatures, name=place.name, raw_input=place.raw_input, requests=requests)
