"""A private name of Keras's models that planning needs; Keras itself is not imported."""

from __future__ import annotations

from typing import Any

from tfaccel.tested_versions import private_part


def given_compile_arguments(model: Any) -> dict[str, Any]:
    """The arguments that a model was compiled with, unserialized; the public config does not hold functions."""
    return dict(private_part(model, "_compile_config.config"))
