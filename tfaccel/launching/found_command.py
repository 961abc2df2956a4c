"""Whether the command that workers are to run exists on this machine, before any of them is started."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tfaccel.errors import LaunchError

_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_ADVICE = "Give it after `--`, such as `-- python train.py`, or `-- tfaccel train --recipe=image_classification`."


def found_command(command: Sequence[str]) -> str:
    """The path of a command's program.

    Raises:
        LaunchError: if the program does not exist, or it is Python and the script does not.
    """
    program = shutil.which(command[0]) if command else None
    if program is None:
        raise LaunchError(f"The command to launch was not found: {command[0] if command else ''!r}. {_ADVICE}")
    script = next(iter(command[1:]), "")
    if _PYTHON.fullmatch(Path(command[0]).name) and script.endswith(".py") and not Path(script).is_file():
        raise LaunchError(f"The script to launch was not found: {script!r}. {_ADVICE}")
    return program
