"""Findings: parts of a train step that a TPU cannot run, or runs badly."""

from dataclasses import asdict, dataclass
from typing import Any

KINDS = (
    "operation",
    "host call",
    "string",
    "ragged",
    "dynamic dimension",
    "custom call",
    "complex128",
    "float64",
    "float16",
    "loss scale",
    "eager",
)


@dataclass(frozen=True)
class Finding:
    """One problem in a train step.

    Args:
        kind: one of `KINDS`.
        what: the operation, dtype or class, such as "CropAndResize".
        where: its layer, or its part of the step, such as "layer 'crop'".

    Example:
        >>> str(Finding("operation", "CropAndResize", "layer 'crop'"))
        "CropAndResize in layer 'crop'"
    """

    kind: str
    what: str
    where: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}. Received: kind={self.kind!r}.")

    def __str__(self) -> str:
        return f"{self.what} in {self.where}"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)
