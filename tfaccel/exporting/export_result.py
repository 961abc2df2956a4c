"""The noun `ExportResult`: what `export` wrote, and how far each file is from the Keras model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

FORMATS = ("keras", "saved_model", "litert", "onnx")
DEFAULT_FORMATS = FORMATS[:3]  # what needs no package beside tfaccel's own


@dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """One format.

    Attributes:
        format: "keras", "saved_model", "litert" or "onnx".
        path: the file, or the folder of the version.
        num_bytes: its size.
        max_difference: largest absolute difference between its outputs, in a fresh process, and the Keras model's.
        max_output: largest absolute output of the Keras model, for comparison.
        signatures: what can be called.
    """

    format: str
    path: str
    num_bytes: int
    max_difference: float
    max_output: float
    signatures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """What `export` wrote.

    Attributes:
        name: by which clients ask for the model.
        version: of the SavedModel.
        folder: where everything lies.
        files: one for each format.
        float32_difference: largest difference that calculating in float32 made, against the model as it was trained;
            0 where it was trained in float32.
        commands: what to do with it: name -> shell command.
    """

    name: str
    version: int
    folder: str
    files: tuple[ExportedFile, ...]
    float32_difference: float = 0.0
    commands: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON-serialisable data."""
        return asdict(self)
