"""Shared by all command-line programs: absl flags, one-line errors, exit status 2 for bad input."""

import contextlib
import errno
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from tfaccel.errors import TfaccelError, printable
from tfaccel.known_names import did_you_mean
from tfaccel.local_path import local_path
from tfaccel.planning.option_checks import MAX_COUNT
from tfaccel.planning.plan_checks import OTHER_NAMES
from tfaccel.remote import is_remote

if TYPE_CHECKING:
    from rich.console import Console

_FILE_WIDTH = 10_000
_ADDRESSES = ("address", "allowed_origins", "environment", "image", "set", "storage_path")  # flags that may hold a URL
_ALSO_REMOTE = ("data_dir", "model", "run_dir")  # flags that take a local path or an address such as s3://bucket/run
MAX_SECONDS = 10**8  # about three years; the operating system's timers support little more
_NO_CHOICE = re.compile(r"^flag --\w+=(.*): value should be one of <(.*)>$")
INTERRUPTED = 130  # the exit status of a command ended by Ctrl-C
_described: ContextVar[list[tuple[flags.FlagValues, bool]] | None] = ContextVar("described", default=None)


@contextlib.contextmanager
def described_only() -> Iterator[list[tuple[flags.FlagValues, bool]]]:
    """In it, `run_command` runs nothing: it adds the command's flags, and whether it takes other words, to the list."""
    found: list[tuple[flags.FlagValues, bool]] = []
    token = _described.set(found)
    try:
        yield found
    finally:
        _described.reset(token)


def run_command(
    main: Callable[[], int],
    argv: list[str],
    values: flags.FlagValues,
    *,
    description: str,
    flags_help: Callable[[], str] | None = None,
    positional: tuple[str, list[str]] | None = None,
) -> int:
    """Parses a command's flags from `argv` and calls `main`; returns the exit status.

    Unknown flags, wrong values, positional arguments and errors meant for users (`TfaccelError`) print one line on
    standard error and give status 2, or the error's own status. So do files that cannot be read or written, and
    running out of memory. Ctrl-C prints one line, with the text of the `KeyboardInterrupt` if it has one, and gives
    status 130.

    Args:
        main: the command; returns the exit status.
        argv: the program's name and its arguments.
        values: the command's flags, not parsed yet; absl's own, such as `--verbosity`, are added.
        description: of the command, for `--help`.
        flags_help: returns the help of the flags; None for a list in alphabetical order.
        positional: what positional arguments are called in the usage line, and a list that takes them; None to refuse
            them.
    """
    program, described = argv[0], _described.get()
    if described is not None:
        described.append((values, positional is not None))
        return 0
    try:
        if any(arg in ("-h", "--help", "-help", "--helpshort") for arg in argv[1:]):
            help_text = flags_help() if flags_help else own_flags_help(values)
            named = f"{positional[0]} " if positional else ""
            print(f"{description}\n\nusage: {program} {named}[--flag=value ...]\n\n{help_text}", flush=True)
            return 0
        _add_flags_of_absl(values)
        rest = _parsed(values, argv)[1:]
        if positional:
            positional[1].extend(rest)
        elif rest:
            raise TfaccelError(f"unexpected argument {rest[0]!r}. Flags are written --name=value.")
        check_numbers(values)
        check_paths(values, program.rpartition(" ")[2])
        status = main()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return unread()
    except (flags.Error, TfaccelError, OSError, MemoryError) as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return getattr(error, "exit_status", 2)
    except KeyboardInterrupt as error:
        return interrupted(program, error)
    except Exception as error:
        text = _shortage(error)
        if text is None:
            raise
        print(f"{program}: {text}", file=sys.stderr)
        return 2


def unread() -> int:
    """Drops output whose reader, such as `head`, has closed the pipe; returns the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parsed(values: flags.FlagValues, argv: list[str]) -> list[str]:
    """Parses the flags; the error for an unknown name or value has the closest known one."""
    try:
        return list(values(argv))
    except flags.UnrecognizedFlagError as error:
        name, known = error.flagname, [flag.name for flag in own_flags(values)]
        hint = did_you_mean(OTHER_NAMES.get(name, name), known)
        raise TfaccelError(f"Unknown command line flag {name!r}.{hint}") from error
    except flags.IllegalFlagValueError as error:
        choice = _NO_CHOICE.search(str(error))
        hint = "" if choice is None else did_you_mean(choice[1], choice[2].split("|"))
        raise TfaccelError(f"{error}.{hint}") from error


def interrupted(program: str, error: KeyboardInterrupt) -> int:
    """Says that Ctrl-C ended a command, and how it continues if the error tells; returns the exit status."""
    if sys.stderr.isatty():
        print(file=sys.stderr)  # the terminal shows ^C, and perhaps a line of progress
    print(f"{program}: Interrupted. {one_line(error) if error.args else ''}".rstrip(), file=sys.stderr)
    return INTERRUPTED


def one_line(error: BaseException) -> str:
    """The message of an error on a single line.

    Example:
        >>> one_line(OSError(28, "No space left on device", "run/model.keras"))
        'run/model.keras: No space left on device.'
    """
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and not isinstance(error, TfaccelError) and error.strerror:
        named = f"{os.fspath(error.filename)!s}: " if isinstance(error.filename, str | os.PathLike) else ""
        text = f"{named}{error.strerror}."
    if isinstance(error, MemoryError):
        text = f"There is not enough memory{f' ({text})' if text else ''}. {_LESS_MEMORY}"
    return printable(text) or type(error).__name__


# TensorFlow's messages for files that it cannot write.
_UNWRITTEN = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES)))
_LESS_MEMORY = "Use a smaller model or smaller batches, or a machine with more memory."


def _shortage(error: Exception) -> str | None:
    """The message for a TensorFlow error that means that memory or the disk is full; None for any other error."""
    kinds, text = {kind.__name__ for kind in type(error).__mro__}, " ".join(str(error).split())
    if "OpError" in kinds and any(cause in text for cause in _UNWRITTEN):
        return f"{text:.300}."
    if "ResourceExhaustedError" in kinds:
        return f"There is not enough memory: {text:.200}. {_LESS_MEMORY}"
    return None


def _add_flags_of_absl(values: flags.FlagValues) -> None:
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        for flag in defined if module.startswith("absl") else ():
            if flag.name not in values:
                values[flag.name] = flag
    flags.FLAGS(["tfaccel"])  # absl's logging waits until its flags are parsed


def check_numbers(values: flags.FlagValues) -> None:
    """Checks the values of all numeric flags that were defined without an upper bound.

    Raises:
        TfaccelError: for a number that is not finite, or larger than any sensible count or time.
    """
    for flag in own_flags(values):
        is_time = flag.name.endswith(("_seconds", "_ms"))
        largest = MAX_SECONDS if is_time else MAX_COUNT
        for value in flag.value if isinstance(flag.value, list) else [flag.value]:
            if type(value) is float and not math.isfinite(value):
                raise TfaccelError(f"--{flag.name} must be a number. Received: --{flag.name}={value}.")
            if type(value) not in (int, float) or getattr(flag.parser, "upper_bound", None) is not None:
                continue
            if value > largest and (type(value) is int or is_time):
                raise TfaccelError(f"--{flag.name} must be at most {largest}. Received: --{flag.name}={value}.")


def check_paths(values: flags.FlagValues, command: str) -> None:
    """Refuses paths with a scheme, such as --report=gs://bucket/report.json, for all flags that take none.

    The texts that a workload's own parameters take are not checked: they may be anything.

    Raises:
        TfaccelError: for such a path.
    """
    for module, defined in values.flags_by_module_dict().items():
        for flag in defined:
            if flag.name in _ADDRESSES or module.endswith(".workload_parameters"):
                continue
            for value in flag.value if isinstance(flag.value, list) else [flag.value]:
                may_be_remote = flag.name in _ALSO_REMOTE or (command, flag.name) == ("export", "out")
                if isinstance(value, str) and not (may_be_remote and is_remote(value)):
                    local_path(value, TfaccelError)


def check_writable(flag: str, path: str | None) -> None:
    """Refuses an output file that cannot be written, before anything is measured.

    Raises:
        TfaccelError: if there is no such directory, or the path is one; it names the flag.
    """
    if path is not None and (not path or not Path(path).parent.is_dir() or Path(path).is_dir()):
        raise TfaccelError(f"--{flag} must be a file in an existing directory. Received: --{flag}={path}.")


def check_picture(flag: str, path: str | None) -> None:
    """Refuses a picture that cannot be written, before anything is measured.

    Raises:
        TfaccelError: if it is no PNG file in an existing directory, or matplotlib is missing; it names the flag.
    """
    if path is None:
        return
    if Path(path).suffix != ".png" or not Path(path).parent.is_dir() or Path(path).is_dir():
        raise TfaccelError(f"--{flag} must be a PNG file in an existing directory. Received: --{flag}={path}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise TfaccelError(f"--{flag} needs matplotlib: pip install matplotlib")


def show_progress(program: str, text: str) -> None:
    """Shows one line on standard error: rewritten in place on a terminal, otherwise a new line; "" clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
    elif text:
        print(f"{program}: {text}", file=sys.stderr, flush=True)


def table_console(*, highlight: bool = True) -> "Console":
    """A console for tables: as wide as the terminal, or as wide as the table without one.

    Lines in files are never wrapped, so that names and values can be searched for; words in terminals are not broken.
    Brackets in names are text, no markup.
    """
    from tfaccel.scripts.fitted_tables import TableConsole

    console = TableConsole(highlight=highlight, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console


def own_flags_help(values: flags.FlagValues) -> str:
    """The help of a command's flags, without absl's own."""
    lines = []
    for flag in sorted(own_flags(values), key=lambda f: f.name):
        default = "" if flag.default in (None, "", []) else flag.default_as_str.strip("'")
        said = f" (default: {default})" if default else ""
        lines.append(f"  --{flag.name}\n      {' '.join((flag.help or '').split())}{said}")
    return "\n".join(lines)


def own_flags(values: flags.FlagValues) -> Iterator[flags.Flag]:
    """A command's flags, without absl's own."""
    for defined in values.flags_by_module_dict().values():
        yield from defined
