"""The sentence that helps after a misspelt name."""

import difflib
from collections.abc import Collection, Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the known name nearest to `name`, or "" where none is near.

    Example:
        >>> did_you_mean("mixed_bfloat61", ["float32", "mixed_bfloat16"])
        " Did you mean 'mixed_bfloat16'?"
    """
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def check_names(names: Iterable[str], known: Collection[str], error: type[Exception], text: str) -> None:
    """Raises an error for the first name that is not known: `text` with the name for {}, and the nearest known one.

    Example:
        >>> check_names(["epoch"], ["epochs", "seed"], ValueError, "There is no option {!r}.")
        Traceback (most recent call last):
        ValueError: There is no option 'epoch'. Did you mean 'epochs'?
    """
    for name in names:
        if name not in known:
            raise error(text.format(name) + (did_you_mean(name, known) or f" Options: {', '.join(known)}."))
