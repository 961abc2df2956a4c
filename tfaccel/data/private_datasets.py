"""A private name of Hugging Face's `datasets` that tfaccel needs: the fingerprint of a table."""

from __future__ import annotations

from typing import Any

from tfaccel.tested_versions import private_part


def fingerprint(table: Any) -> str:
    """The fingerprint that `datasets` computes from a table and all its transformations; it has no public attribute."""
    return str(private_part(table, "_fingerprint", package="datasets"))
