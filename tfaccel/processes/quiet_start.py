"""Starts TensorFlow quietly, without meaningless messages on standard error, and quickly, with fewer collections.

Some messages are written before TensorFlow reads `TF_CPP_MIN_LOG_LEVEL`, so no setting suppresses them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

_NOTES = (
    "oneDNN custom operations are on.",
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "Could not find cuda drivers on your machine, GPU will not be used.",
)
# What TensorFlow says of each compiled program that it loads: it tries to read it as text first, and takes hints to the
# compiler for features of the processor.
NOTES_OF_CACHE = (
    "Error parsing text-format tensorflow.XlaSerializedCacheEntry",
    "+prefer-no-gather is not supported",
    "+prefer-no-scatter is not supported",
)
_NO_GPU = "failed call to cuInit"  # an error if GPUs are wanted
_SECONDS = 5.0
_filtered: list[bool] = []  # not empty once notes have been filtered in this process
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


@contextlib.contextmanager
def without_notes(*, wants_gpus: bool) -> Iterator[None]:
    """Within the block, removes lines on standard error that only report that CUDA is missing.

    A child process passes all other lines through immediately, so they appear even if TensorFlow aborts this process.
    TensorFlow writes some when it is imported, others when it starts; once both are done, this does nothing.

    Args:
        wants_gpus: whether a GPU will be used; errors about starting it are then shown.
    """
    if "tensorflow" in sys.modules and _filtered:
        yield
        return
    _filtered.append(True)
    with without_lines((*_NOTES, *(() if wants_gpus else (_NO_GPU,)))):
        yield


def quiet_tensorflow() -> None:
    """Imports TensorFlow without its start-up messages, unless the user asks for them."""
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    with quiet_import():
        import tensorflow as tf

        tf.config.list_physical_devices()


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Leaves out TensorFlow's start-up messages if it is imported in the context, unless the user asks for them."""
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    try:
        with without_notes(wants_gpus=os.path.exists("/dev/nvidiactl")):
            yield
    finally:
        if "tensorflow" not in sys.modules:
            del os.environ["TF_CPP_MIN_LOG_LEVEL"]


@contextlib.contextmanager
def without_lines(parts: Sequence[str]) -> Iterator[None]:
    """Within the block, removes the lines on standard error that have one of these parts."""
    grep = shutil.which("grep")
    if grep is None:
        yield
        return
    patterns = [argument for part in parts for argument in ("-e", part)]
    command = [grep, "--text", "--line-buffered", "--invert-match", "--fixed-strings", *patterns]
    with contextlib.ExitStack() as stack:
        try:
            kept = os.dup(2)
            stack.callback(os.close, kept)
            environment = {**os.environ, "LC_ALL": "C"}
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=kept, env=environment, start_new_session=True
            )
        except OSError:  # no standard error, or no such grep
            yield
            return
        stack.callback(_finish, child, kept)
        if child.stdin is not None:
            _flush()
            os.dup2(child.stdin.fileno(), 2)
        yield


def _finish(child: subprocess.Popen[bytes], kept: int) -> None:
    """Restores standard error after all output has passed through."""
    _flush()
    os.dup2(kept, 2)
    if child.stdin is not None:
        child.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # A process started in the block may hold the other end.
        child.wait(_SECONDS)


def _flush() -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def collect_less_often() -> None:
    """Makes automatic collections rare: every 100,000 new objects, where Python's default is 700.

    To be called before TensorFlow is imported. Importing and tracing create many objects, nearly all of which stay, and
    each collection scans them. Importing Keras takes about a fifth less time this way.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def keep_loaded_objects() -> None:
    """Leaves out all objects that exist now from later collections."""
    gc.collect()
    gc.freeze()
