"""One parity case: a value for each axis, and the row that says how it went."""

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
    """Where the replicas are: a strategy and how many replicas it has.

    Attributes:
        strategy: "none", "one_device", "mirrored" (replicas on logical CPUs of one process) or "multi_worker" (one
            replica in each process).
        num_replicas: replicas in all.
    """

    strategy: str
    num_replicas: int = 1

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGY_NAMES:
            raise TfaccelError(f"A parity strategy is one of {', '.join(STRATEGY_NAMES)}. Received: {self.strategy!r}.")
        if self.num_replicas < 1 or (self.num_replicas > 1 and self.strategy in ("none", "one_device")):
            raise TfaccelError(
                f"`num_replicas` must be at least 1, and 1 without a strategy of several replicas. "
                f"Received: num_replicas={self.num_replicas}, strategy={self.strategy!r}."
            )

    def __str__(self) -> str:
        unit = {"mirrored": "replica", "multi_worker": "worker"}.get(self.strategy)
        if unit is None:
            return STRATEGY_NAMES[self.strategy]
        return f"{STRATEGY_NAMES[self.strategy]}, {self.num_replicas} {unit}{'s' if self.num_replicas > 1 else ''}"


@dataclass(frozen=True)
class ParityCase:
    """A small training run, named by one value of each axis (see `axes.AXES` for the values).

    Attributes:
        computes_in_float32: a case of mixed_float16 with all that float16 asks for (a loss scale, a step that
            overflows), but with layers in float32, so that nothing is rounded.
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
        """All axes but the strategy, in one line."""
        parts = [self.model, self.optimizer]
        parts += [self.clipping] if self.clipping != "none" else []
        parts += [f"accumulation={self.accumulation}"] if self.accumulation > 1 else []
        parts += ["float32-with-loss-scale" if self.computes_in_float32 else self.dtype_policy]
        parts += ["xla" if self.xla else "no-xla", f"last-batch={self.last_batch}"]
        parts += [self.weighting] if self.weighting != "none" else []
        return " ".join([*parts, self.source])

    def to_json(self) -> dict[str, Any]:
        """The case as JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class ParityCheck:
    """A property that no comparison of a case with plain Keras shows (see `checks.CHECKS` for the names)."""

    placement: Placement
    check: str

    @property
    def name(self) -> str:
        """What is checked, in words."""
        return self.check.replace("_", " ")

    def to_json(self) -> dict[str, Any]:
        """The check as JSON data."""
        return asdict(self)


def case_from_json(data: dict[str, Any]) -> ParityCase | ParityCheck:
    """The case or check that `to_json` wrote."""
    kind = ParityCheck if "check" in data else ParityCase
    return kind(**{**data, "placement": Placement(**data["placement"])})


@dataclass(frozen=True)
class ParityRow:
    """How one case went.

    Attributes:
        case: the case's name.
        strategy: strategy and number of replicas, in words.
        max_abs_diff: the largest difference of any compared value (see `compare.largest_difference`); None where there
            is nothing to compare, for example because training failed.
        tolerance: the largest difference that is allowed.
        ok: whether the difference is within the tolerance.
        fault: what plain Keras does wrong here, so that the case is compared with what is right; empty otherwise.
        note: the value that differs most, or the error.
        seconds: how long the case took.
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
        """The row as JSON data; empty texts are left out."""
        return {name: value for name, value in asdict(self).items() if value != "" or name in ("case", "strategy")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ParityRow:
        """The row that `to_json` wrote."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})
