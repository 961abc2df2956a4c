"""A command that starts itself again, for settings of its plan that a process takes only when it starts."""

import json
import os
import sys
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.planning.plan import Plan

_STARTED_AGAIN = "TFACCEL_STARTED_AGAIN"  # in the environment of the second start: its arguments, and the measured plan


def can_start_again() -> bool:
    """Whether this process runs nothing but this command, and has not started it again already."""
    return not has_started_again() and sys.orig_argv[-len(sys.argv[1:]) :] == sys.argv[1:]


def has_started_again() -> bool:
    """Whether this is the second start of this command."""
    return bool(_record())


def carried_plan() -> Plan | None:
    """The plan that the first start of this command has measured; None if it measured none."""
    found = _record().get("measured")
    try:
        return None if found is None else Plan.from_json(found)
    except TfaccelError:
        return None


def start_again_if_needed(plan: Plan, measured: Plan | None) -> None:
    """Starts the command again, once, if this process cannot take all settings of the plan any more.

    The second start gets all environment variables of the plan, since what it imports may load TensorFlow early again.

    Args:
        plan: the plan to train with.
        measured: the plan that this start has measured, so that the second one need not measure again; or None.
    """
    from tfaccel.planning.plan_environment import get_environment
    from tfaccel.training.runtime import unavailable_settings

    if not unavailable_settings(plan) or not can_start_again():
        return
    variables = get_environment(plan)
    print(f"Starting again with {' '.join(map('='.join, variables.items()))}.", file=sys.stderr, flush=True)
    sys.stdout.flush()
    record = {"arguments": sys.argv[1:], "measured": None if measured is None else measured.to_json()}
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **variables, _STARTED_AGAIN: json.dumps(record)})


def _record() -> dict[str, Any]:
    """What the first start of this command has left; empty if this is the first, or another command started it."""
    try:
        record = json.loads(os.environ.get(_STARTED_AGAIN, "{}"))
        return dict(record) if record["arguments"] == sys.argv[1:] else {}
    except (ValueError, TypeError, LookupError):
        return {}
