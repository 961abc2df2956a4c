"""Suggestions for misspelled names."""

import difflib
from collections.abc import Collection, Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `" Did you mean 'x'?"` with the known name closest to `name`, or "" if none is close.

    Example:
        >>> did_you_mean("mixed_bfloat61", ["float32", "mixed_bfloat16"])
        " Did you mean 'mixed_bfloat16'?"
    """
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_names(names: Iterable[str], known: Collection[str], error: type[Exception], text: str) -> None:
    """Raises an error for the first unknown name: `text` formatted with it, plus the closest known name or all names.

    Example:
        >>> check_names(["epoch"], ["epochs", "seed"], ValueError, "There is no option {!r}.")
        Traceback (most recent call last):
        ValueError: There is no option 'epoch'. Did you mean 'epochs'?
    """
    for name in names:
        if name not in known:
            raise error(text.format(name) + (did_you_mean(name, known) or f" Options: {', '.join(known)}."))
