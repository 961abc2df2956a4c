"""The schema of LiteRT files, from `ai-edge-litert`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tfaccel.errors import VersionError


def check_litert() -> None:
    """Raises VersionError if LiteRT's runtime is not installed."""
    if find_spec("ai_edge_litert") is None:
        raise VersionError(
            "LiteRT files need `ai-edge-litert`, which is not installed. Install it: pip install 'tfaccel[litert]'"
        )


def schema() -> Any:
    """The module of the schema's classes, imported on first use.

    Raises:
        VersionError: if `ai-edge-litert` is not installed.
    """
    try:
        return import_module("ai_edge_litert.schema_py_generated")
    except ModuleNotFoundError as error:
        raise VersionError(
            f"LiteRT files need `ai-edge-litert` ({error}). Install it: pip install 'tfaccel[litert]'"
        ) from error
