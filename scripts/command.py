"""What every command-line program shares: absl flags, one-line errors, exit status 2 for bad input."""

import sys
from collections.abc import Callable

from absl import flags

from tfaccel.errors import TfaccelError


def run_command(main: Callable[[], int], argv: list[str], *, description: str) -> int:
    """Parses absl flags from `argv` and calls `main`; returns the exit status.

    Flags must be defined before the call. Unknown flags, wrong values, positional arguments and errors meant for
    users (`TfaccelError`, `ValueError` raised from flag values) print one line on standard error and give status 2.
    """
    program = argv[0]
    if any(arg in ("-h", "--help", "-help", "--helpshort") for arg in argv[1:]):
        print(f"{description}\n\nusage: {program} [--flag=value ...]\n{own_flags_help()}")
        return 0
    flags.FLAGS.unparse_flags()
    try:
        rest = flags.FLAGS(argv)[1:]
        if rest:
            raise TfaccelError(f"unexpected argument {rest[0]!r}. Flags are written --name=value.")
        return main()
    except (flags.Error, TfaccelError) as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return 2


def one_line(error: BaseException) -> str:
    """The message of an error on a single line."""
    return " ".join(str(error).split()) or type(error).__name__


def show_progress(program: str, text: str) -> None:
    """One line on standard error: rewritten on a terminal, else a new one each time; "" clears it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
    elif text:
        print(f"{program}: {text}", file=sys.stderr, flush=True)


def own_flags_help() -> str:
    """Help of the flags that tfaccel's programs define (absl's own are left out)."""
    by_module = flags.FLAGS.flags_by_module_dict()
    own = [f for module, fs in by_module.items() if not module.startswith("absl") for f in fs]
    lines = []
    for flag in sorted(own, key=lambda f: f.name):
        default = "" if flag.default is None else f" (default: {flag.default_as_str})"
        lines.append(f"  --{flag.name}\n      {' '.join((flag.help or '').split())}{default}")
    return "\n".join(lines)
