"""What a launcher tells the workers that it starts, by environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping

ATTEMPT = "TFACCEL_LAUNCH_ATTEMPT"  # 1 for the first
STARTED = "TFACCEL_LAUNCH_STARTED"  # when the first attempt began, as text: the same for all workers and attempts


def resume_in_attempt(resume: str, environ: Mapping[str, str] | None = None) -> str:
    """Whether a run resumes: `resume`, except that workers which are started again continue their own run.

    Args:
        resume: as for `tfaccel.train`.
        environ: the environment; by default this process's.

    Example:
        >>> resume_in_attempt("never", {}), resume_in_attempt("never", {"TFACCEL_LAUNCH_ATTEMPT": "2"})
        ('never', 'auto')
    """
    attempt = (os.environ if environ is None else environ).get(ATTEMPT, "")
    return "auto" if resume == "never" and attempt.isdecimal() and int(attempt) > 1 else resume


def launch_date() -> str | None:
    """When the launch began of which this process is a worker; None if it was not launched."""
    return os.environ.get(STARTED) or None
