"""`in_new_process`: calls a function in a process of its own, which may crash, hang or run out of memory.

    python -m tfaccel.benchmarks.gpu.trial '{"function": "module:function", "arguments": {}}'

The program writes on standard output, as JSON, what the function returns, or why it failed.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.measuring.candidate_child import OUT_OF_MEMORY
from tfaccel.measuring.workload_task import get_cause
from tfaccel.processes.child import Environment, ProcessError, end_with_parent, run_program


class TrialFailed(TfaccelError):
    """A function failed in its process; its text says why.

    Attributes:
        ran_out_of_memory: whether TensorFlow said that memory was short, or only that a replica was cancelled, which
            may be all that it says if memory is short on another one.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.ran_out_of_memory = cause.startswith((OUT_OF_MEMORY, "CancelledError"))


def in_new_process(
    function: str, arguments: Mapping[str, Any], *, limit_seconds: float, environment: Environment | None = None
) -> Any:
    """Calls a function in a new process; returns what it returns.

    Args:
        function: "module:function".
        arguments: its keyword arguments, JSON values. What it returns is a JSON value, too.
        limit_seconds: time limit.
        environment: what to add to the environment; None removes a name.

    Raises:
        TrialFailed: if it raises an error, crashes or takes too long.

    Example:
        >>> in_new_process("statistics:mode", {"data": [3, 4, 4]}, limit_seconds=60)
        4
    """
    order = json.dumps({"function": function, "arguments": dict(arguments)})
    command = [sys.executable, "-m", "tfaccel.benchmarks.gpu.trial", order]
    try:
        written = run_program(command, environment=environment, given=None, time_limit_seconds=limit_seconds)
    except ProcessError as error:
        raise TrialFailed(str(error)[:500]) from error
    answer = json.loads(written.splitlines()[-1])
    if "failure" in answer:
        raise TrialFailed(answer["failure"])
    return answer["result"]


def main(argv: list[str]) -> int:
    """Calls the function; returns the exit status."""
    end_with_parent()
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # keeps other output out of the answer
    order = json.loads(argv[0])
    module, _, name = order["function"].partition(":")
    try:
        answer: dict[str, Any] = {"result": getattr(import_module(module), name)(**order["arguments"])}
    except Exception as error:
        traceback.print_exc()
        answer = {"failure": get_cause(error)}
    output.write(json.dumps(answer) + "\n")
    output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
