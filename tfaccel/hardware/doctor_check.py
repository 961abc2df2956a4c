"""`Check`: the result of one check of the doctor."""

from dataclasses import asdict, dataclass
from typing import Any

STATUSES = ("ok", "warn", "fail", "skip")


@dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check.

    Args:
        name: what was checked, such as "GPU:0 matmul".
        status: "ok"; "warn" (works, but untested or not well); "fail"; "skip" (cannot or need not be checked).
        detail: what was found.
        remedy: what to do about it, preferably a command; every "warn" and "fail" has one.

    Raises:
        ValueError: for an unknown status, or a "warn" or "fail" without a remedy.

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
