"""A SavedModel in the layout of TensorFlow Serving, and what tfaccel notes beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.data.raw_input import RawInput, raw_input_of_json

if TYPE_CHECKING:
    from tfaccel.exporting.signatures import Signatures
    from tfaccel.exporting.warm_up_requests import Request

NOTES = Path("assets.extra", "tfaccel.json")  # TensorFlow Serving passes over files that it does not know
GRAPH_FILE = "saved_model.pb"
LITERT_FILE = "model.tflite"  # of a version, in TensorFlow Serving's layout
_MAX_DIGITS = 18  # of a version


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
        folder: of the version, such as `models/digits/1`; it must not be there yet.
        signatures: the model's functions, with whose variables they are written.
        name: by which clients ask for it.
        raw_input: what is noted for tfaccel's own server, class names among it.
        requests: warm-up requests.
    """
    import keras

    from tfaccel.exporting.warm_up_requests import write_warm_up_requests

    archive = keras.export.ExportArchive()
    for resource in signatures.resources:
        archive.track(resource)
    for function_name, function in signatures.traced.items():
        archive.add_endpoint(function_name, function)
    archive.write_out(str(folder), verbose=False)
    write_warm_up_requests(folder, name, requests)
    (folder / NOTES).parent.mkdir(exist_ok=True)
    known = None if raw_input is None else _without_vocabulary(raw_input.to_json())
    (folder / NOTES).write_text(json.dumps({"name": name, "raw_input": known}) + "\n")


def _without_vocabulary(data: dict[str, Any]) -> dict[str, Any]:
    """The graph holds the vocabulary already."""
    if "vocabulary" in data:
        data = {**data, "vocabulary": {**data["vocabulary"], "tokens": []}}
    return data


def read_notes(folder: Path) -> tuple[str | None, RawInput | None]:
    """The name of a model and what its raw inputs are, from the folder of a version; None for what is not noted."""
    try:
        notes = json.loads((folder / NOTES).read_text())
        known = notes.get("raw_input")
        return notes.get("name"), None if known is None else raw_input_of_json(known)
    except (OSError, ValueError, AttributeError):
        return None, None


def version_folders(folder: Path) -> dict[int, Path]:
    """Version -> folder, in rising order, of a model in TensorFlow Serving's layout."""
    if not folder.is_dir():
        return {}
    found = {int(entry.name): entry for entry in sorted(folder.iterdir()) if is_version(entry.name) and entry.is_dir()}
    return dict(sorted(found.items()))


def holds_model(folder: Path) -> bool:
    """Whether the folder of a version has a SavedModel or a LiteRT file that can be served."""
    return any((folder / name).is_file() for name in (GRAPH_FILE, LITERT_FILE))


def is_version(text: str) -> bool:
    """Whether a text is the number of a version: digits 0 to 9, of which an integer of 64 bits can be made.

    Example:
        >>> is_version("00000123"), is_version("\u0661")
        (True, False)
    """
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def no_saved_model(folder: Path) -> str:
    """What is said of a folder that is no SavedModel and has no versions of one."""
    return (
        f"{folder} holds no SavedModel, and no folders of versions (1, 2 ...) with one. Write one with "
        "`tfaccel export`."
    )


def serving_command(name: str, folder: str = "saved_model") -> str:
    """A shell program that runs TensorFlow Serving's own image on a folder of versions beside the program.

    Args:
        name: of the model.
        folder: of its versions.

    Source: https://www.tensorflow.org/tfx/serving/docker
    """
    quoted = shlex.quote(name)
    return (
        "#!/bin/sh\n"
        f"# Runs TensorFlow Serving on {folder}; then: curl localhost:8501/v1/models/{name}\n"
        "# It is reached from this machine only; with -p 8501:8501, from others too.\n"
        "exec docker run --rm -p 127.0.0.1:8501:8501 -e MODEL_NAME=" + quoted + " \\\n"
        f'  --mount type=bind,source="$(cd "$(dirname "$0")" && pwd)/{folder}",target=/models/{name} \\\n'
        "  tensorflow/serving --enable_model_warmup=true\n"
    )
