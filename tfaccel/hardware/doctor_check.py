"""One thing that the doctor has looked at."""

from dataclasses import asdict, dataclass
from typing import Any

STATUSES = ("ok", "warn", "fail", "skip")


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check.

    Args:
        name: what was looked at, such as "GPU:0 matmul".
        status: "ok"; "warn" (works, but not as tested or not well); "fail"; "skip" (could not or need not be tried).
        detail: what was found.
        remedy: what to do about it, best a command; every "warn" and "fail" has one.

    Raises:
        ValueError: for an unknown status, or a fault without a remedy.

    Example:
        >>> Check(name="keras", status="ok", detail="Keras 3.15.1").remedy
        ''
    """

    name: str
    status: str
    detail: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}. Received: status={self.status!r}.")
        if self.status in ("warn", "fail") and not self.remedy:
            raise ValueError(f"A check that is {self.status!r} needs a remedy. Received: {self!r}.")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)
