"""What a launched worker knows of its launch and does for its launcher, and the exit statuses that both agree on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from types import TracebackType

from tfaccel.errors import TfaccelError
from tfaccel.processes import heartbeat

ATTEMPT = "TFACCEL_LAUNCH_ATTEMPT"  # 1 for the first
NUM_WORKERS = "TFACCEL_LAUNCH_WORKERS"  # of the whole group; fewer may be training
STARTED = "TFACCEL_LAUNCH_STARTED"  # when the first attempt began, as text: the same for all workers and attempts
# Kubernetes' and Kubeflow's policies for failed pods read these: 138 is the status that Kubeflow leaves to programs
# which want to be started again.
DONE = 0
PERMANENT = 1  # an exception in the user's code, or in tfaccel's
BAD_INPUT = 2
INTERRUPTED = 130  # Ctrl-C
RETRY = 138  # stopped with a checkpoint, or because another worker was lost: starting again continues
_KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def resume_in_attempt(resume: str, environ: Mapping[str, str] | None = None) -> str:
    """Whether a run resumes: `resume`, except that workers which are started again continue their own run.

    Args:
        resume: as for `tfaccel.train`.
        environ: the environment; by default this process's.

    Example:
        >>> resume_in_attempt("never", {}), resume_in_attempt("never", {"TFACCEL_LAUNCH_ATTEMPT": "2"})
        ('never', 'auto')
    """
    return "auto" if resume == "never" and is_restarted(environ) else resume


def is_restarted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether this is not the first attempt of a launch; `environ` is by default this process's environment."""
    attempt = (os.environ if environ is None else environ).get(ATTEMPT, "")
    return attempt.isdecimal() and int(attempt) > 1


def launch_date() -> str | None:
    """When the launch began of which this process is a worker; None if it was not launched."""
    return os.environ.get(STARTED) or None


def whole_group_size() -> int | None:
    """How many workers the launch asked for, if training may go on with fewer; None if it may not."""
    number = os.environ.get(NUM_WORKERS, "")
    return int(number) if number.isdecimal() else None


def serve_launcher() -> None:
    """Gives signs of life, and lets errors of tfaccel end this process with their exit status; unless launched, no-op.

    A script of the user's, which lets a `ClusterError` pass, would otherwise end with status 1, as for any exception.
    """
    heartbeat.begin_if_asked()
    if os.environ.get(ATTEMPT) and sys.excepthook is not _end_with_its_status:
        sys.excepthook = _end_with_its_status


def end_uncaught_with_status() -> None:
    """Lets an error of tfaccel that a script does not catch end this process with the error's exit status.

    As at any other end, functions registered with `atexit` run. In a launched process, `serve_launcher` has done more.
    """
    before = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        before(kind, error, traceback)
        if isinstance(error, TfaccelError):
            raise SystemExit(error.exit_status)

    if before is not _end_with_its_status:
        sys.excepthook = end


def _end_with_its_status(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, traceback)
    if isinstance(error, TfaccelError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(error.exit_status)
    heartbeat.note_failure()


def final_status(status: int) -> int:
    """The exit status of a group that is not started again, because one of its workers ended with `status`.

    Example:
        >>> final_status(2), final_status(134)
        (2, 1)
    """
    return BAD_INPUT if status == BAD_INPUT else PERMANENT


def can_be_retried(status: int) -> bool:
    """Whether a process that ended with a status may succeed if it is started again.

    That is so if it says so by status 138, or if it was killed from outside, for example because memory was short.

    Args:
        status: the exit status; the negative signal number of a process that was killed by a signal, or 128 plus the
            number, as shells report it.

    Example:
        >>> [can_be_retried(status) for status in (0, 1, 2, 138, -9, 137, -11)]
        [False, False, False, True, True, True, False]
    """
    killed = [-status, status - 128]
    return status == RETRY or any(number in _KILLED_FROM_OUTSIDE for number in killed)
