"""The noun `VersionPolicy`: which of the versions in a model's folder are served."""

from __future__ import annotations

from dataclasses import dataclass

from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True)
class VersionPolicy:
    """Which versions of a model are served.

    Args:
        latest: number of newest versions; 0 for all.
        versions: if not empty, exactly these.

    Example:
        >>> VersionPolicy(latest=1)
        VersionPolicy(latest=1)
    """

    latest: int = 0
    versions: frozenset[int] = frozenset()
