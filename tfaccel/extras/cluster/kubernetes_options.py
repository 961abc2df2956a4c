"""The noun `KubernetesOptions`: where Kubernetes runs a job, and where its checkpoints are kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from tfaccel.errors import LaunchError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MOUNT_PATH = "/checkpoints"


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions:
    """Where Kubernetes runs a job, and where its checkpoints are kept.

    Args:
        image: the container image, with tfaccel and what the command needs.
        volume_claim: a PersistentVolumeClaim for the run directory, which all workers mount: with several nodes, its
            access mode must be ReadWriteMany. None if nothing has to outlive the workers.
        mount_path: where the volume is mounted; None for `/checkpoints`.
        namespace: None for the current one of `kubectl`.
        user_id: the user and group that the workers run as; not 0, which is root.

    Raises:
        LaunchError: if a value is invalid, or two contradict each other.

    Example:
        >>> KubernetesOptions(image="registry.example.com/digits:1", volume_claim="runs").user_id
        1000
    """

    image: str
    volume_claim: str | None = None
    mount_path: str | None = None
    namespace: str | None = None
    user_id: int = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.image, str) or not self.image or any(character.isspace() for character in self.image):
            raise LaunchError(f"Kubernetes needs the name of a container image. Received: image={self.image!r:.200}.")
        for name in ("volume_claim", "namespace"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not _NAME.fullmatch(value)):
                raise LaunchError(
                    f"`{name}` must be the name of one: small letters, digits, hyphens and dots. Received: "
                    f"{name}={value!r:.200}."
                )
        if self.mount_path is not None and self.volume_claim is None:
            raise LaunchError(
                f"`mount_path` is for the volume of `volume_claim`. Received: mount_path={self.mount_path!r} without "
                "volume_claim. Give both, or none."
            )
        path = PurePosixPath(self.volume_path)
        if not path.is_absolute() or ".." in path.parts or ":" in str(path) or path == PurePosixPath("/"):
            raise LaunchError(
                f"`mount_path` must be an absolute path other than `/`, without `..` and `:`. Received: "
                f"mount_path={self.mount_path!r:.200}."
            )
        if type(self.user_id) is not int or not 0 < self.user_id < 2**31:
            raise LaunchError(
                "`user_id` must be a whole number of at least 1: workers do not run as root. Received: "
                f"user_id={self.user_id!r}."
            )

    @property
    def volume_path(self) -> str:
        """Where the volume is mounted."""
        return self.mount_path or _MOUNT_PATH
