"""Reads command lines as the commands do, without doing what they say; a test starts this program.

Standard input holds command lines as a JSON list of lists of words. Prints [words, status, what was said] for each.
"""

import contextlib
import io
import json
import os
import sys
from importlib import import_module
from typing import Any

from tfaccel.scripts import command

run_command = command.run_command


def only_flags(main: Any, *arguments: Any, **keywords: Any) -> int:
    """`run_command` that ends once the flags are read."""
    return run_command(lambda: 0, *arguments, **keywords)


def read(words: list[str]) -> tuple[int, str]:
    """The exit status of a command line, and what was said."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        program = import_module(f"tfaccel.scripts.{words[0].replace('-', '_')}")
        status = program.run([f"tfaccel {words[0]}", *words[1:]])
    return status, said.getvalue()


def main() -> None:
    """Each line is read in a process of its own, since a recipe's flags stay defined once they are."""
    command.run_command = only_flags
    for words in json.load(sys.stdin):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                print(json.dumps([words, *read(words)]), flush=True)
            except BaseException as error:
                print(json.dumps([words, 1, repr(error)]), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


main()
