"""The noun `VersionPolicy`: which of the versions in a model's folder are served."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VersionPolicy:
    """Which versions of a model are served.

    Args:
        latest: the newest so many; 0 for all.
        versions: if there are any, these and no others.

    Example:
        >>> VersionPolicy(latest=1)
        VersionPolicy(latest=1, versions=frozenset())
    """

    latest: int = 0
    versions: frozenset[int] = frozenset()
