"""The files of a folder that are read, and what is passed over."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from tfaccel.errors import DataError
from tfaccel.local_path import is_utf8, shown_path

_PARTS = (("train", "training"), ("test", "testing"))  # in any capitals


def files_below(folder: Path, suffixes: Collection[str] | None = None) -> list[Path]:
    """The files in a folder and its sub-folders, sorted; without hidden ones.

    Args:
        folder: the folder. Links to folders in it are not followed.
        suffixes: the endings of the files to list, in lowercase; None for all.

    Raises:
        OSError: if a folder cannot be read.
    """
    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if suffixes is None or file.suffix.lower() in suffixes)


def _raise(error: OSError) -> None:
    raise error


def passed_over(folder: Path, used: Iterable[Path], suffixes: Collection[str]) -> str:
    """One line that counts the files of a folder that are not used; "" if there is none.

    Args:
        folder: the folder.
        used: the files that are used.
        suffixes: their endings.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     for file in ("a.txt", "b.md", "c.md"):
        ...         Path(name, file).touch()
        ...     passed_over(Path(name), [Path(name, "a.txt")], [".txt"]).partition(": ")[2]
        '2 .md (first: b.md). Files in class folders that end in .txt are read.'
    """
    known = set(used)
    others = [file for file in files_below(folder) if file not in known]
    first = f" (first: {shown_path(others[0].relative_to(folder))})" if others else ""
    found = ", ".join(filter(None, (counted(others) + first, unlisted(folder, suffixes))))
    return (
        f"Passed over in {folder}: {found}. Files in class folders that end in {', '.join(suffixes)} are read."
        if found
        else ""
    )


def unlisted(folder: Path, suffixes: Collection[str]) -> str:
    """The files of these endings that `files_below` does not list: hidden ones, and folders behind links.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     Path(name, ".a.png").touch()
        ...     Path(name, "b").mkdir()
        ...     Path(name, "b", "c").symlink_to(name)
        ...     unlisted(Path(name), [".png"])
        '1 hidden .png, 1 link to a folder'
    """
    hidden: Counter[str] = Counter()
    num_links = 0
    for place, folders, names in os.walk(folder):
        is_hidden = any(part.startswith(".") for part in Path(place).relative_to(folder).parts)
        endings = [Path(name).suffix.lower() for name in names if is_hidden or name.startswith(".")]
        hidden.update(ending for ending in endings if ending in suffixes)
        num_links += sum(os.path.islink(os.path.join(place, name)) for name in folders) if place != str(folder) else 0
    parts = [f"{count} hidden {ending}" for ending, count in sorted(hidden.items())]
    return ", ".join([*parts, f"{num_links} link{'s' * (num_links > 1)} to a folder"] if num_links else parts)


def class_folders(folder: Path) -> list[Path]:
    """The sub-folders of a folder, each of which is named after a class; without hidden ones.

    Raises:
        DataError: if a name is not UTF-8.
    """
    found = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    for entry in found:
        if not is_utf8(entry):
            raise DataError(f"The name of the class folder {shown_path(entry)} is not UTF-8. Rename it.")
    return found


def part_folders(folder: Path) -> list[Path]:
    """The folders of the training and of the test part, such as `train` and `Test`; none if the folder has no parts.

    Raises:
        DataError: if there is only one of them, and it holds folders, as of classes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     for part in ("Testing", "Training"):
        ...         Path(name, part).mkdir()
        ...     [part.name for part in part_folders(Path(name))]
        ['Training', 'Testing']
    """
    found = {entry.name.lower(): entry for entry in reversed(class_folders(folder))}
    present = [[found[name] for name in names if name in found][:1] for names in _PARTS]
    if all(present):
        return [part for (part,) in present]
    for names, other in zip(present, reversed(_PARTS), strict=True):
        if names and class_folders(names[0]):
            raise DataError(
                f"{folder} has a folder {names[0].name!r} with classes, but no folder {other[0]!r}. Add it."
            )
    return []


def counted(files: Iterable[Path]) -> str:
    """How many files there are of each ending, the most frequent first.

    Example:
        >>> counted([Path("a.webp"), Path("b.WEBP"), Path("c"), Path("d.txt"), Path("e.txt"), Path("f.txt")])
        '3 .txt, 2 .webp, 1 without an ending'
    """
    counts = Counter(file.suffix.lower() or "without an ending" for file in files)
    return ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common())
