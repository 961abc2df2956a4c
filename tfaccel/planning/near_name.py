"""The sentence that helps after a misspelt name."""

import difflib
from collections.abc import Iterable


def near_name(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the known name nearest to `name`, or "" where none is near.

    Example:
        >>> near_name("mixed_bfloat61", ["float32", "mixed_bfloat16"])
        " Did you mean 'mixed_bfloat16'?"
    """
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
