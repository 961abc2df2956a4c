"""Paths that users give, where they must be local; see `tfaccel.remote` for addresses."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tfaccel.errors import TfaccelError

# One slash is enough: `Path` makes one of two. A single letter is a drive of Windows. The text hf:/folder names a data
# set that was saved from the Hugging Face Hub; a path hf:/x was hf://x.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_SAVED_DATA_SET = re.compile(r"hf:/[^/]")


def get_scheme(given: str | os.PathLike[str]) -> str | None:
    """The scheme of an address, such as "s3"; None for a path.

    Example:
        >>> get_scheme("gs://bucket/run"), get_scheme("runs/digits"), get_scheme("hf:OWNER/NAME")
        ('gs', None, None)
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    found = _SCHEME.match(text) if isinstance(text, str) else None
    is_name = isinstance(given, str) and _SAVED_DATA_SET.match(given)
    return None if found is None or is_name else found[1].lower()


def local_path(given: str | os.PathLike[str], error: type[TfaccelError]) -> Path:
    """A path that a user gave.

    Raises:
        TfaccelError: of the given type, for what is no path, and for a path with a scheme, such as gs://bucket/run, or
            in ~, which shells do not replace in --flag=~/run: Python would take it for a local folder `gs:` or `~`.

    Example:
        >>> local_path("runs/digits", TfaccelError).name
        'digits'
        >>> local_path("gs://bucket/run", TfaccelError)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfaccel.errors.TfaccelError: 'gs://bucket/run' is not a local path, and this must be one. Mount the bucket...
    """
    text = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(text, str):
        raise error(f"A path must be a text or a pathlib.Path. Received: {given!r:.200} of {type(given)}.")
    if text == "~" or text.startswith("~/"):
        advice = f"Write $HOME{text[1:]}, or in Python os.path.expanduser({text!r})."
        raise error(f"{text!r} is not a local path. Nothing has replaced the ~ by your home directory. {advice}")
    scheme = get_scheme(given)
    if scheme is None:
        return Path(text)
    if scheme == "file":
        advice = "Leave out file:// and give the path alone."
    elif scheme == "hf":
        advice = "A dataset of the Hugging Face Hub is named hf:OWNER/NAME; download other files first."
    else:
        advice = "Mount the bucket as a folder (with gcsfuse or s3fs, say), or copy the files."
    raise error(f"{str(given)!r} is not a local path, and this must be one. {advice}")


def is_utf8(path: Path) -> bool:
    """Whether the name of a file is UTF-8. Linux allows any bytes; Python gives each other byte as half a character."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_path(path: Path) -> str:
    r"""The name of a file as text that can be written anywhere.

    Example:
        >>> shown_path(Path("M\udcfcller.png")), shown_path(Path("M\xfcller.png"))
        ('M\\xfcller.png', 'Müller.png')
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")
