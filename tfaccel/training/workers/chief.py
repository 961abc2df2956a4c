"""With several workers, only the chief writes files; the others run the same callbacks without keeping their files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import keras

from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas

# Attributes of Keras's callbacks that hold output paths.
_PATHS = {keras.callbacks.CSVLogger: "filename", keras.callbacks.TensorBoard: "log_dir"}


@contextlib.contextmanager
def only_chief_writes(
    model: keras.Model, callbacks: list[keras.callbacks.Callback], replicas: Replicas
) -> Iterator[None]:
    """On all workers but the chief, makes `model.save` and `save_weights` no-ops and sends logs to a temporary folder.

    All workers still make the same decisions (which epoch is best, when to stop), because their metrics are equal.
    """
    if replicas.is_chief:
        yield
        return
    nothing: dict[str, Any] = {"save": _nothing, "save_weights": _nothing}
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tfaccel-worker-"))
        stack.enter_context(instance_attributes(model, nothing))
        for callback in callbacks:
            for kind, attribute in _PATHS.items():
                if isinstance(callback, kind):
                    path = os.path.join(scratch, os.path.basename(os.fspath(getattr(callback, attribute))))
                    stack.enter_context(instance_attributes(callback, {attribute: path}))
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                stack.enter_context(instance_attributes(callback, {"delete_checkpoint": False}))
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
