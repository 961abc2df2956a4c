"""A parity case, with one value per axis, and the row with its result."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tfaccel.errors import TfaccelError

STRATEGY_NAMES = {
    "none": "no strategy",
    "one_device": "OneDeviceStrategy",
    "mirrored": "MirroredStrategy",
    "multi_worker": "MultiWorkerMirroredStrategy",
}


@dataclass(frozen=True, order=True)
class Placement:
    """A strategy and its number of replicas.

    Attributes:
        strategy: "none", "one_device", "mirrored" (replicas on logical CPUs of one process) or "multi_worker" (one
            replica per process).
        num_replicas: total number of replicas.
    """

    strategy: str
    num_replicas: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGY_NAMES:
            raise TfaccelError(f"The strategy must be one of {', '.join(STRATEGY_NAMES)}. Received: {self.strategy!r}.")
        if self.num_replicas < 1 or (self.num_replicas > 1 and self.strategy in ("none", "one_device")):
            raise TfaccelError(
                f"`num_replicas` must be at least 1, and exactly 1 for `none` and `one_device`. "
                f"Received: num_replicas={self.num_replicas}, strategy={self.strategy!r}."
            )

    def __str__(self) -> str:
        unit = {"mirrored": "replica", "multi_worker": "worker"}.get(self.strategy)
        if unit is None:
            return STRATEGY_NAMES[self.strategy]
        return f"{STRATEGY_NAMES[self.strategy]}, {self.num_replicas} {unit}{'s' if self.num_replicas > 1 else ''}"


@dataclass(frozen=True)
class ParityCase:
    """A small training run, defined by one value of each axis (see `axes.AXES` for the values).

    Attributes:
        computes_in_float32: for mixed_float16, keep the loss scale and the overflowing step, but run the layers in
            float32 to avoid rounding.
    """

    placement: Placement
    model: str = "dense"
    optimizer: str = "sgd"
    clipping: str = "none"
    accumulation: int = 1
    dtype_policy: str = "float32"
    xla: bool = False
    last_batch: str = "even"
    weighting: str = "none"
    source: str = "numpy"
    exact_kernels: bool = False
    computes_in_float32: bool = False

    @property
    def layer_dtype(self) -> str:
        """The dtype policy of the layers."""
        return "float32" if self.computes_in_float32 else self.dtype_policy

    def in_float32(self) -> ParityCase:
        """The same case without the rounding of low precision."""
        if self.dtype_policy == "mixed_float16":
            return replace(self, computes_in_float32=True)
        return replace(self, dtype_policy="float32")

    @property
    def name(self) -> str:
        """All axes except the placement, in one line."""
        parts = [self.model, self.optimizer]
        parts += [self.clipping] if self.clipping != "none" else []
        parts += [f"accumulation={self.accumulation}"] if self.accumulation > 1 else []
        parts += ["float32-with-loss-scale" if self.computes_in_float32 else self.dtype_policy]
        parts += ["xla" if self.xla else "no-xla", f"last-batch={self.last_batch}"]
        parts += [self.weighting] if self.weighting != "none" else []
        parts += ["exact-kernels"] if self.exact_kernels else []
        return " ".join([*parts, self.source])

    def to_json(self) -> dict[str, Any]:
        """The case as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class ParityCheck:
    """A property that comparing a case with plain Keras cannot show (see `checks.CHECKS` for the names)."""

    placement: Placement
    check: str

    @property
    def name(self) -> str:
        """The name of the check, as readable text."""
        return self.check.replace("_", " ")

    def to_json(self) -> dict[str, Any]:
        """The check as JSON data."""
        return asdict(self)


def case_from_json(data: dict[str, Any]) -> ParityCase | ParityCheck:
    """Restores a case or check from the data of `to_json`."""
    kind = ParityCheck if "check" in data else ParityCase
    return kind(**{**data, "placement": Placement(**data["placement"])})


@dataclass(frozen=True)
class ParityRow:
    """The result of one case.

    Attributes:
        case: the case's name.
        strategy: strategy and number of replicas, as readable text.
        max_abs_diff: the largest difference of any compared value (see `compare.largest_difference`); None if there is
            nothing to compare, for example because training failed.
        tolerance: the largest allowed difference.
        ok: whether the difference is within the tolerance.
        fault: why plain Keras is not the reference here, and what is used instead; empty otherwise.
        note: the value that differs most, or the error.
        seconds: run time of the case.
    """

    case: str
    strategy: str
    max_abs_diff: float | None
    tolerance: float
    ok: bool
    fault: str = ""
    note: str = ""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The row as JSON data, without empty strings."""
        return {name: value for name, value in asdict(self).items() if value != "" or name in ("case", "strategy")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ParityRow:
        """Restores a row from the data of `to_json`."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})
