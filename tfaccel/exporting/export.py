"""`export`: converts a trained model to deployable files, each compared with it in a fresh process."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.argument_types import checks_types
from tfaccel.compressing.litert.file import check_litert
from tfaccel.errors import ExportError
from tfaccel.exporting.export_folder import export_folder, next_version
from tfaccel.exporting.export_result import DEFAULT_FORMATS, FORMATS, ExportResult
from tfaccel.exporting.load_model import ModelPlace, load_keras_model, place_of_run, served_model, url_name
from tfaccel.known_names import did_you_mean, suggests_names
from tfaccel.local_path import is_utf8, local_path, shown_path

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("tfaccel")


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
        out: a new folder, or the folder of an earlier export.
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
    place = _place(run_or_model, name)
    folder = local_path(out, ExportError)
    if not is_utf8(folder):
        raise ExportError(f"The name of the folder must be UTF-8. Received: {shown_path(folder)}.")
    number = next_version(folder, version)
    if "litert" in chosen:
        check_litert()
    if "onnx" in chosen:
        from tfaccel.exporting.onnx_files import check_onnx_packages

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
    from tfaccel.exporting.exporter import Exporter
    from tfaccel.exporting.own_rows import rows_of_run

    with export_folder(folder) as unfinished:
        own_rows = rows_of_run(run_or_model) if sample is None and model is whole else None
        exporter = Exporter(model, place, unfinished, sample=sample, own_rows=own_rows, modules=modules)
        result = exporter.write(chosen, folder=folder, version=number)
    logger.info("Exported to %s", folder)
    return result


def check_formats(formats: Sequence[str]) -> list[str]:
    """Checks the formats and removes duplicates.

    Raises:
        ExportError: if there are none, or one does not exist.

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
        path = local_path(run_or_model, ExportError)
        found = place_of_run(path) if path.is_dir() else ModelPlace(path, url_name(path.stem))
    else:
        import keras

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
