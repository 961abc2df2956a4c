"""XLA's compiled programs on disk: TensorFlow's persistent compilation cache, with what it lacks.

TensorFlow loads a program whose computation is the one it would compile. It does not ask whether the file is whole, nor
for which processor it was made: a damaged file ends training, and another processor's may crash. So there is a folder
for each processor, version of TensorFlow and set of XLA flags, below `TFACCEL_CACHE` or ~/.cache/tfaccel, which only
its owner may read. Programs for GPUs name kernels of CUDA's libraries, chosen by timing: there is a folder for each
driver, model of GPU and set of libraries. A program's name ends with its SHA-256, and one that differs is thrown away.

TensorFlow ends training, too, if it cannot write a program. So each process has a folder of its own in memory, with
links to the programs on disk; what it has compiled is copied there, if there is room. TensorFlow reads its flags when
it starts: they must be set before.

TFACCEL_COMPILATION_CACHE=0 turns it off. Programs for TPUs are not kept.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tfaccel.files import get_sha256, whole_file, write_json
from tfaccel.hardware.cpu import cpu_flags, cpu_model
from tfaccel.hardware.gpu import CUDA_12_LIBRARIES, driver_gpus
from tfaccel.hardware.machine import Machine
from tfaccel.planning.cache import cache_file, get_digest, read_from_cache
from tfaccel.planning.plan_environment import XLA_FLAGS

SWITCH = "TFACCEL_COMPILATION_CACHE"
MAX_BYTES = 512 << 20  # of all programs; the oldest are thrown away
_DIRECTORY_FLAG = "--tf_xla_persistent_cache_directory"
_OURS = "--tf_xla_persistent_cache_prefix=tfaccel"
_DEVICES_FLAG = "--tf_xla_persistent_cache_device_types"
_FOLDER, _COUNTS = "compiled", "counts.json"
_PACKAGES = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-tpu")
_ROOM_IN_MEMORY = 48 << 20
_UNREAD_NS = 0
_SYSTEM_FOLDERS = ("/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu")


class CompilationCache:
    """The programs of one processor, version of TensorFlow and set of XLA flags, as one process uses them.

    Args:
        directory: where the programs of all processes are.
        kind: of the devices, "CPU" or "GPU".
        folder: that of this process, if another one has made it.

    Attributes:
        folder: where TensorFlow reads and writes those of this process.
    """

    def __init__(self, directory: Path, kind: str = "CPU", folder: Path | None = None) -> None:
        self.directory = directory
        self._kind = kind
        _make_private(directory.parent)
        _make_private(directory)
        memory = _memory_folder()
        _remove_left_folders(memory)
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"{_own_prefix()}{os.getpid()}-", dir=memory))
        self._is_filled = False
        self._used: set[str] = set()  # what this process has compiled, or was seen to load

    @classmethod
    def open(cls, environ: Mapping[str, str], *, kind: str = "CPU") -> Self | None:
        """The cache for a process with these variables; None if it is off, or its folder cannot be used."""
        directory = get_directory(environ, kind=kind)
        if directory is None:
            return None
        try:
            return cls(directory, kind)
        except OSError:
            return None

    @classmethod
    def given(cls, environ: Mapping[str, str]) -> Self | None:
        """The cache whose flags the launcher of this process has set; None if it has not."""
        flags = dict(flag.split("=", 1) for flag in shlex.split(environ.get(XLA_FLAGS, "")) if "=" in flag)
        if _OURS.partition("=")[0] not in flags or not (folder := Path(flags.get(_DIRECTORY_FLAG, ""))).is_dir():
            return None
        kind = flags.get(_DEVICES_FLAG, "CPU")
        directory = get_directory(environ, kind=kind)
        return None if directory is None else cls(directory, kind, folder)

    def flags(self, environ: Mapping[str, str]) -> str:
        """The value of `TF_XLA_FLAGS`: those of the environment, and those that name the folder."""
        own = (f"{_DIRECTORY_FLAG}={self.folder}", _OURS, f"{_DEVICES_FLAG}={self._kind}")
        return shlex.join([*_other_flags(environ), *own])

    def fill(self) -> None:
        """Gives this process, once, all programs that are as they were written; throws away others, and the oldest."""
        if self._is_filled:
            return
        self._is_filled, room = True, MAX_BYTES
        for program, size in _newest_first(self.directory.parent):
            room -= size
            is_own = program.parent == self.directory
            with contextlib.suppress(OSError):
                if room < 0 or (is_own and not _is_whole(program)):
                    program.unlink()
                elif is_own:
                    self._link(program)

    def _link(self, program: Path) -> None:
        link = self.folder / program.name.rpartition(".")[0]
        if not link.is_symlink():  # else another process has compiled the same one later
            os.utime(program, ns=(_UNREAD_NS, program.stat().st_mtime_ns))
            link.symlink_to(program)

    def keep(self) -> None:
        """Keeps for all processes what this one has compiled since the last call, if there is room."""
        with contextlib.suppress(OSError):
            new = [file for file in self._unused() if not file.is_symlink()]
            self._used.update(file.name for file in new)
            compiled = sum(self._copied(file) for file in new)
            loaded = self._just_loaded() if self._is_filled else 0  # else another process has made the links
            if compiled or loaded:
                counts = _read_counts(self.directory)
                counts["compiled"] += compiled
                counts["loaded"] += loaded
                write_json(self.directory / _COUNTS, counts)

    def _copied(self, file: Path) -> bool:
        """Copies a program to the others, and puts a link in its place."""
        program, link = self.directory / f"{file.name}.{get_sha256(file)}", file.with_suffix(".link")
        try:
            with whole_file(program) as written:
                shutil.copyfile(file, written)
            link.symlink_to(program)
            link.replace(file)
        except OSError:
            return False
        return True

    def _just_loaded(self) -> int:
        """How many programs TensorFlow has loaded since the last call: their files have been read."""
        found = 0
        for file in self._unused():
            if file.stat().st_atime_ns > _UNREAD_NS:
                self._used.add(file.name)
                os.utime(file, ns=(_UNREAD_NS, time.time_ns()))  # the newest from now on
                found += 1
        return found

    def _unused(self) -> list[Path]:
        return [file for file in self.folder.glob("*.pb") if file.name not in self._used]

    def close(self) -> None:
        """`keep`, and removes this process's folder."""
        self.keep()
        shutil.rmtree(self.folder, ignore_errors=True)


def _memory_folder() -> Path:
    """Where folders of processes are made: in memory, if there is room for a few programs."""
    memory = Path("/dev/shm")
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= _ROOM_IN_MEMORY
    return memory if has_room else Path(tempfile.gettempdir())


def _own_prefix() -> str:
    return f"tfaccel-compiled-{os.getuid()}-{socket.gethostname()}-"


def _remove_left_folders(parent: Path) -> None:
    """Removes the folders of this user's processes that have ended without `close`."""
    for folder in parent.glob(f"{glob.escape(_own_prefix())}*"):
        with contextlib.suppress(OSError, ValueError):
            if folder.lstat().st_uid != os.getuid():
                continue
            try:
                os.kill(int(folder.name.removeprefix(_own_prefix()).split("-")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)


def get_directory(environ: Mapping[str, str], *, kind: str = "CPU") -> Path | None:
    """Where the programs of this machine are; None if the cache is off, or the user has set TensorFlow's own."""
    if environ.get(SWITCH) == "0" or (
        _DIRECTORY_FLAG in environ.get(XLA_FLAGS, "") and _OURS not in environ[XLA_FLAGS]
    ):
        return None
    machine = Machine.here()
    versions = [machine.package_version(name) for name in _PACKAGES]
    parts: list[Any] = [cpu_model(machine), cpu_flags(machine), versions, environ.get("XLA_FLAGS", "")]
    if kind == "GPU":
        gpus = {f"{gpu.device.model} {gpu.device.driver_version}" for gpu in driver_gpus(machine)}
        parts += [*sorted(gpus), machine.package_versions("nvidia"), *_cuda_libraries(environ)]
    parts += _other_flags(environ)
    return cache_file(_FOLDER, get_digest(parts))


def _cuda_libraries(environ: Mapping[str, str]) -> list[str]:
    """The files of CUDA libraries outside packages, with their sizes."""
    folders = filter(None, (*environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_SYSTEM_FOLDERS))
    files = (Path(folder, name).resolve() for folder in folders for name in CUDA_12_LIBRARIES)
    return [f"{file.name} {file.stat().st_size}" for file in files if file.exists()]


def describe_cache(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The place of the cache, its size, and how often it was used, as JSON values; None if it is off."""
    directory = get_directory(environ)
    if directory is None:
        return None
    programs = list(_newest_first(directory.parent))
    counts = [_read_counts(one) for one in directory.parent.iterdir()] if directory.parent.is_dir() else []
    return {
        "directory": str(directory.parent).replace(str(Path.home()), "~"),
        "programs": len(programs),
        "bytes": sum(size for _, size in programs),
        "max_bytes": MAX_BYTES,
        **{name: sum(one[name] for one in counts) for name in ("loaded", "compiled")},
    }


def _other_flags(environ: Mapping[str, str]) -> list[str]:
    """The XLA flags of the environment, without those of a cache that a parent process has set."""
    flags = shlex.split(environ.get(XLA_FLAGS, ""))
    if _OURS not in flags:
        return flags
    return [flag for flag in flags if flag != _OURS and flag.partition("=")[0] not in (_DIRECTORY_FLAG, _DEVICES_FLAG)]


def _make_private(directory: Path) -> None:
    """Makes a folder that only its owner may read.

    Raises:
        PermissionError: if it is another user's, since programs are machine code.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user")
    if stat.S_IMODE(found.st_mode) != 0o700:
        directory.chmod(0o700)


def _newest_first(parent: Path) -> Iterator[tuple[Path, int]]:
    """All programs with their sizes in bytes, the one that was used last first."""
    found = []
    for program in parent.glob("*/*.pb.*"):
        with contextlib.suppress(OSError):
            status = program.lstat()
            found.append((status.st_mtime_ns, program, status.st_size))
    return ((program, size) for _, program, size in sorted(found, reverse=True))


def _is_whole(program: Path) -> bool:
    """Whether a file is as it was when its name was given to it."""
    return not program.is_symlink() and program.name.rpartition(".")[2] == get_sha256(program)


def _read_counts(directory: Path) -> dict[str, int]:
    def read(counts: Any) -> dict[str, int]:
        return {name: int(counts[name]) for name in ("loaded", "compiled")}

    found = read_from_cache(directory / _COUNTS, read, "The counts of compiled programs in {} are ignored")
    return found or {"loaded": 0, "compiled": 0}
