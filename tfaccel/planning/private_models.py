"""What planning needs of the private parts of Keras's models; Keras itself is not imported."""

from __future__ import annotations

from typing import Any

from tfaccel.tested_versions import private_part


def given_compile_arguments(model: Any) -> dict[str, Any]:
    """The arguments that a model was compiled with, as they were given; the public config holds no functions."""
    return dict(private_part(model, "_compile_config.config"))
