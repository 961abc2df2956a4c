"""Exit statuses of processes that train, and which of them mean that the same command may be started again.

Kubernetes' and Kubeflow's policies for failed pods read them: 138 is the status that Kubeflow leaves to programs which
want to be started again.
"""

from __future__ import annotations

import signal

DONE = 0
PERMANENT = 1  # an exception in the user's code, or in tfaccel's
BAD_INPUT = 2
INTERRUPTED = 130  # Ctrl-C
RETRY = 138  # stopped with a checkpoint, or because another worker was lost: starting again continues

_KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


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
