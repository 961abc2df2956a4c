"""An experiment with a private part of TensorFlow: the host's tensors in pinned memory, which a GPU copies faster."""

from __future__ import annotations

import importlib
from typing import Any

from tfaccel.tested_versions import private_part


def pin_host_memory() -> None:
    """Sets what TensorFlow 1 called `force_gpu_compatible`, before TensorFlow 2 starts, which has no function for it.

    Raises:
        VersionError: if this TensorFlow makes its options in another way.
    """
    context: Any = importlib.import_module("tensorflow.python.eager.context").context()
    compute = private_part(context, "_compute_gpu_options", package="tensorflow")

    def pinned() -> Any:
        options = compute()
        options.force_gpu_compatible = True
        return options

    context._compute_gpu_options = pinned
