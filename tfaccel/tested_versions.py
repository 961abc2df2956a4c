"""Tested versions of packages whose private attributes tfaccel uses, and the only way to access those attributes.

Private attributes are named only in `private_*.py` files. An untested minor version causes one warning; a missing
attribute raises `VersionError`, which names the versions that have it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from typing import Any

from tfaccel.errors import VersionError

TESTED = {
    "datasets": ("5",),
    "keras": ("3.15",),
    "keras-tuner": ("1.4",),
    "tensorflow": ("2.20", "2.21"),
    "tensorflow-model-optimization": ("0.8",),
    "tf-keras": ("2.20", "2.21"),
}


@functools.cache
def warn_if_untested(package: str, version: str) -> None:
    """Warns once if tfaccel was not tested with a package's version.

    Example:
        >>> warn_if_untested("keras", "3.15.1")
    """
    tested = TESTED[package]
    if not any(f"{version}.".startswith(f"{known}.") for known in tested):
        wanted = " or ".join(f"{known}.*" for known in tested)
        warnings.warn(
            f"tfaccel was tested with {package} {wanted}; {version} is installed. It may work; if it does not, "
            f"install {package}=={tested[-1]}.*",
            stacklevel=4,
        )


def installed_version(package: str) -> str:
    """The installed version of a package, or "" if it is not installed.

    Example:
        >>> installed_version("no-such-package")
        ''
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def private_part(root: Any, path: str, *, package: str = "keras", renamed: str = "") -> Any:
    """Returns `root.path`, a private attribute of a package.

    Args:
        root: a module, class or object of the package.
        path: attribute names joined by dots.
        package: a key of `TESTED`.
        renamed: what the first of the names is in the package's next version, if it is another one there.

    Example:
        >>> private_part("a text", "__class__.__name__")
        'str'
    """
    value, (first, *rest) = root, path.split(".")
    for name in (renamed if renamed and not hasattr(root, first) else first, *rest):
        if not hasattr(value, name):
            found = " ".join(filter(None, (package, installed_version(package))))
            raise VersionError(
                f"{found} has no `{path}`, which tfaccel needs. Install a version that has it: "
                f"pip install '{package}=={TESTED[package][-1]}.*'."
            )
        value = getattr(value, name)
    return value
