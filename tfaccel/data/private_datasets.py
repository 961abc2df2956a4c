"""What tfaccel needs of the private parts of Hugging Face's `datasets`: how a table is told from others."""

from __future__ import annotations

from typing import Any

from tfaccel.tested_versions import private_part


def fingerprint(table: Any) -> str:
    """The fingerprint that `datasets` gives to a table and all that was done to it; no public attribute has it."""
    return str(private_part(table, "_fingerprint", package="datasets"))
