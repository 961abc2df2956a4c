"""`ExportResult`: the files that `export` wrote, and the difference of each from the Keras model."""

from __future__ import annotations

from tfaccel.records import Record
from tfaccel.short_repr import noun

FORMATS = ("keras", "saved_model", "litert", "onnx")
DEFAULT_FORMATS = FORMATS[:3]  # litert needs the extra `litert`


@noun
class ExportedFile:
    """One exported format.

    Attributes:
        format: "keras", "saved_model", "litert" or "onnx".
        path: the file, or the folder of the version.
        num_bytes: its size.
        max_difference: largest absolute difference between its outputs, in a fresh process, and the Keras model's.
        max_output: largest absolute output of the Keras model, for comparison.
        signatures: its signatures.
        differs: what it gives otherwise than the Keras model for edge values (negative, zero, positive, half and
            extreme ones, and NaN), in words; "" if nothing.
    """

    format: str
    path: str
    num_bytes: int
    max_difference: float
    max_output: float
    signatures: tuple[str, ...] = ()
    differs: str = ""


@noun
class ExportResult(Record):
    """The result of `export`.

    Attributes:
        name: name under which clients request the model.
        version: version of the SavedModel.
        folder: folder of all files.
        files: one entry per format.
        float32_difference: largest difference caused by computing in float32, compared with the model as trained; 0 if
            it was trained in float32.
        commands: commands to use the files: name -> shell command.
    """

    name: str
    version: int
    folder: str
    files: tuple[ExportedFile, ...]
    float32_difference: float = 0.0
    commands: dict[str, str]
