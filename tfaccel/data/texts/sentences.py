"""The first sentence of a text."""

import re

_END = re.compile(r"(?<=[a-z0-9)\"\]*’»”])[.:!?](?=\s|$)")


def first_sentence(text: str) -> tuple[str, str]:
    """The first sentence of a text, ending in a period, colon, exclamation or question mark, and the rest.

    Example:
        >>> first_sentence("It is 3.5 long. It is wide.")
        ('It is 3.5 long.', 'It is wide.')
    """
    text = " ".join(text.split())
    end = _END.search(text)
    return (text, "") if end is None else (text[: end.end()], text[end.end() :].strip())
