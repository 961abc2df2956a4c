"""The parts of tfaccel that not every training needs are found by name, so that nothing has to import them."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from tfaccel.errors import VersionError


def load_extra(name: str) -> Any:
    """Loads what an entry point of the group `tfaccel.extras` names; see `setup.cfg` and `tfaccel/extras`.

    Args:
        name: of the entry point, as "data_service".

    Example:
        >>> load_extra("data_service").__name__
        'DataService'
        >>> load_extra("teapot")
        Traceback (most recent call last):
            ...
        tfaccel.errors.VersionError: This installation of tfaccel has no part 'teapot'. Install tfaccel again.
    """
    found = entry_points(group="tfaccel.extras", name=name)
    if not found:
        raise VersionError(f"This installation of tfaccel has no part {name!r}. Install tfaccel again.")
    return next(iter(found)).load()
