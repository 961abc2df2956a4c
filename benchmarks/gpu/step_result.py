"""`StepResult`: what a step of the GPU suite has found, and how it ended; a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from tfaccel.benchmarks.figure import Figure
from tfaccel.errors import TfaccelError
from tfaccel.files import write_json

STATUSES = ("running", "done", "failed", "cut short")


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step has found so far.

    Attributes:
        step: its name.
        machine: where it ran: processor, GPUs, versions.
        is_rehearsal: whether it ran on CPUs with tiny models.
        status: "running"; "done"; "failed", by an error, a crash, or the step's own time limit; or "cut short", by the
            time limit of all steps or by Ctrl-C. Only "done" and "failed" are final.
        cause: why it failed, or was cut short; empty otherwise.
        seconds: how long it took.
        results: name -> what was found, as JSON.
        figures: the figures derived from that.
        notes: what was left out, and reasons to doubt figures.

    Raises:
        TfaccelError: for another status.
    """

    step: str
    machine: Mapping[str, Any]
    is_rehearsal: bool
    status: str = "running"
    cause: str = ""
    seconds: float = 0.0
    results: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise TfaccelError(f"A status is one of {', '.join(STATUSES)}. Received: {self.status!r}.")

    @property
    def is_final(self) -> bool:
        """Whether the step need not run again."""
        return self.status in ("done", "failed")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**plain, "figures": [figure.to_json() for figure in self.figures], "notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result from its `to_json` data."""
        figures = tuple(Figure.from_json(figure) for figure in data["figures"])
        return cls(**{**data, "figures": figures, "notes": tuple(data["notes"])})

    def save(self, folder: Path) -> None:
        """Writes the file `step`.json of a folder, to a temporary name first."""
        write_json(folder / f"{self.step}.json", self.to_json())

    @classmethod
    def load(cls, folder: Path, step: str) -> Self | None:
        """The result in a folder; None if there is none.

        Raises:
            TfaccelError: if the file is not a result.
        """
        path = folder / f"{step}.json"
        if not path.exists():
            return None
        try:
            return cls.from_json(json.loads(path.read_text()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TfaccelError(
                f"--out: {path} is not a result of `tfaccel benchmark gpu` ({type(error).__name__}). Name another "
                "folder, or remove the file."
            ) from error
