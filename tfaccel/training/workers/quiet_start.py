"""TensorFlow's notes on standard error while it starts, left out where they mean nothing.

Some are written before TensorFlow reads `TF_CPP_MIN_LOG_LEVEL`, so that no setting keeps them back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

_NOTES = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "Could not find cuda drivers on your machine, GPU will not be used.",
)
_NO_GPU = "failed call to cuInit"  # an error where GPUs are wanted
_SECONDS = 5.0


@contextlib.contextmanager
def without_notes(*, wants_gpus: bool) -> Iterator[None]:
    """Within the block, lines on standard error that only say that there is no CUDA are left out.

    All others pass through another process at once, and are there even if TensorFlow ends this one. Nothing happens
    where TensorFlow is imported already.

    Args:
        wants_gpus: whether a GPU is to be used: that none can be started is then an error to be seen.
    """
    grep = shutil.which("grep")
    if grep is None or "tensorflow" in sys.modules:
        yield
        return
    patterns = [part for note in (*_NOTES, *(() if wants_gpus else (_NO_GPU,))) for part in ("-e", note)]
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
    """Puts standard error back, once all that was written has passed."""
    _flush()
    os.dup2(kept, 2)
    if child.stdin is not None:
        child.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # A process that began meanwhile may hold the other end.
        child.wait(_SECONDS)


def _flush() -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
