"""The interface to the operating system: files, environment, commands and packages of a machine.

All hardware detection and checks read through a `Machine`, so that tests can make one up from a folder.
"""

import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from tfaccel.processes.child import ProcessError, run_program

# Windows' Linux subsystem keeps NVIDIA's tools outside PATH.
_EXTRA_COMMAND_FOLDERS = ("usr/lib/wsl/lib",)


def import_nvml() -> Any | None:
    """NVIDIA's management library for Python (`nvidia-ml-py`); None if it is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old package of the same import name warns about itself
            import pynvml
    except ImportError:
        return None
    return pynvml


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine to inspect; `Machine.here()` is this one.

    Args:
        root: the folder that represents "/": /proc, /sys, /dev and /etc are read below it.
        environ: the environment variables; commands and child processes run with them.
        cpu_affinity: the logical CPUs that this process may run on.
        home: the user's home folder.
        site_folders: the folders to search for installed packages, in order.
        import_nvml: returns NVIDIA's management library for Python, or None.
        python: the interpreter that child processes run.

    Example:
        >>> import tempfile
        >>> Machine(root=Path(tempfile.mkdtemp()), environ={}).read("/proc/meminfo") is None
        True
    """

    root: Path
    environ: Mapping[str, str]
    cpu_affinity: frozenset[int] = frozenset({0})
    home: Path = Path("/nonexistent")
    site_folders: tuple[str, ...] = ()
    import_nvml: Callable[[], Any | None] = lambda: None
    python: str = sys.executable

    @classmethod
    def here(cls) -> Self:
        """This machine, as this process sees it now."""
        if hasattr(os, "sched_getaffinity"):
            affinity = frozenset(os.sched_getaffinity(0))
        else:
            affinity = frozenset(range(os.cpu_count() or 1))
        return cls(
            root=Path("/"),
            environ=dict(os.environ),
            cpu_affinity=affinity,
            home=Path(os.path.expanduser("~")),
            site_folders=tuple(dict.fromkeys(path or os.getcwd() for path in sys.path)),
            import_nvml=import_nvml,
        )

    def path(self, absolute: str) -> Path:
        """The path of the file that the machine calls `absolute`."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str | None:
        """The text of the file; None if it does not exist or cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def glob(self, pattern: str) -> list[str]:
        """The machine's paths of matching files, in natural order (accel2 before accel10)."""
        found = (f"/{path.relative_to(self.root)}" for path in self.root.glob(pattern.lstrip("/")))
        return sorted(found, key=_natural_order)

    def get_output(self, *command: str, timeout_seconds: float = 20) -> str | None:
        """The output of a command; None if it is missing, fails, or exceeds the time limit."""
        folders = [self.environ.get("PATH", ""), *(str(self.path(folder)) for folder in _EXTRA_COMMAND_FOLDERS)]
        program = shutil.which(command[0], path=os.pathsep.join(filter(None, folders)))
        if program is None:
            return None
        try:
            return run_program([program, *command[1:]], base=self.environ, time_limit_seconds=timeout_seconds)
        except (OSError, ProcessError):
            return None

    def package_version(self, name: str) -> str | None:
        """The installed version of a package, from its metadata; None if it is not installed."""
        found = metadata.distributions(name=name, path=list(self.site_folders))
        return next((version for one in found if (version := one.metadata["Version"])), None)

    def package_versions(self, prefix: str) -> dict[str, str]:
        """Name -> version of the installed packages whose name starts with `prefix`."""
        start = prefix.replace("-", "_")
        found: dict[str, str] = {}
        for folder in self.site_folders:
            for path in sorted(Path(folder).glob(f"{start}*.dist-info")):
                name, _, version = path.name.removesuffix(".dist-info").partition("-")
                found.setdefault(name.replace("_", "-"), version)
        return found


def _natural_order(name: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]
