"""Folders and files at addresses such as s3://bucket/run, through fsspec; and copies of them here, to be read.

An address is what fsspec knows: s3:// (with s3fs), gs:// (gcsfs), abfs:// (adlfs), memory:// and others. Accounts and
endpoints are set as for these packages: `AWS_ENDPOINT_URL`, `STORAGE_EMULATOR_HOST`, or `~/.config/fsspec`
(https://filesystem-spec.readthedocs.io/en/latest/features.html#configuration).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from filelock import FileLock

from tfaccel.errors import TfaccelError, in_one_line
from tfaccel.files import CACHE_VARIABLE, cache_dir, write_json
from tfaccel.local_path import get_scheme, local_path

logger = logging.getLogger("tfaccel")

_LOCAL = ("file", "local")  # fsspec's names of the local disk, whose paths need none
_PAUSES = (0.5, 2.0, 8.0)  # seconds between attempts
_AT_ONCE = 1000  # files that are copied before this is noted
_PROBE = ".tfaccel"  # a file that is written and removed
_SAID_EVERY = 10.0  # seconds
_VERSIONS = ("ETag", "etag", "md5Hash", "checksum", "mtime", "LastModified", "last_modified", "updated", "created")
_NOTES, _LOCK = "copied.json", "lock"  # beside the folder of the copies
_Answer = TypeVar("_Answer")


def is_remote(given: str | os.PathLike[str]) -> bool:
    """Whether a path is an address such as s3://bucket/run, also after `pathlib.Path` has dropped a slash.

    Example:
        >>> is_remote("s3://bucket/run"), is_remote("runs/digits"), is_remote("hf:OWNER/NAME")
        (True, False, False)
    """
    return (get_scheme(given) or _LOCAL[0]) not in _LOCAL


@dataclass(frozen=True)
class Version:
    """What a listing says of a file: it changes whenever the content does.

    Attributes:
        size: in bytes.
        tag: the store's own mark; "" for a file that was just sent, before it has been listed.
    """

    size: int
    tag: str = ""

    def is_same(self, other: Version | None) -> bool:
        """Whether it is that of the same content, as far as both are known."""
        return other is not None and self.size == other.size and (self.tag == other.tag or not (self.tag and other.tag))


class RemoteFolder:
    """A folder, or a single file, at an address.

    Every operation is repeated a few times where the store does not answer.

    Args:
        address: such as s3://bucket/run.
        error: the type of the errors.
        no_answer: the type of the errors of a store that does not answer; None for `error`.

    Raises:
        TfaccelError: of the given type, if fsspec or the package for the address is missing, or knows no such scheme.
    """

    def __init__(
        self,
        address: str | os.PathLike[str],
        error: type[TfaccelError],
        no_answer: type[TfaccelError] | None = None,
    ) -> None:
        self.address = re.sub(":/+", "://", os.fspath(address), count=1).rstrip("/")
        self._error, self._no_answer = error, no_answer or error
        try:
            fsspec = importlib.import_module("fsspec")
            self._files, self._root = fsspec.url_to_fs(self.address, use_listings_cache=False)
        except ImportError as missing:
            raise error(
                f"{self.address} needs a package that is not installed ({missing}). For s3:// and gs://: pip install "
                "'tfaccel[storage]'; for other stores, the package that fsspec names."
            ) from missing
        except Exception as failed:  # of any store: unknown schemes, settings that cannot be read
            raise error(f"{self.address} cannot be used: {_reason(failed)}.") from failed

    def list_files(self) -> dict[str, Version]:
        """The files by their names below the folder; "" for the address itself, if it is a file."""
        self._files.invalidate_cache()
        found = self._tried(lambda: self._files.find(self._root, detail=True), "listed")
        begin = self._root.rstrip("/") + "/"
        named = {
            name.removeprefix(begin) if name.startswith(begin) else "": info
            for name, info in found.items()
            if not name.endswith("/")  # some programs make empty objects for folders
        }
        odd = next((name for name in named if ".." in PurePosixPath(name).parts or name.startswith("/")), None)
        if odd is not None:
            raise self._error(f"{self.address} holds a file whose name leads out of a folder: {odd!r}. Rename it.")
        return {name: Version(int(info["size"] or 0), _tag(info)) for name, info in named.items()}

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            return bytes(self._tried(lambda: self._files.cat_file(self._at(name)), "read", may_lack=True))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file, which is there as a whole or not at all."""
        self._tried(lambda: self._files.pipe_file(self._at(name), content), "written")

    def check_writable(self) -> None:
        """Raises an error if nothing can be written, before much work is done."""
        self.write(_PROBE, b"")
        self.remove(_PROBE)

    def get(self, names: Sequence[str], folder: Path) -> None:
        """Copies files into a local folder, under the same names; a file at the address itself under its own."""
        here = [folder / (name or PurePosixPath(self._root).name) for name in names]
        for file in here:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._tried(lambda: self._files.get([self._at(name) for name in names], [str(file) for file in here]), "read")

    def put(self, file: Path, name: str) -> None:
        """Sends a local file."""
        self._tried(lambda: self._files.put_file(str(file), self._at(name)), "written")

    def remove(self, name: str) -> None:
        """Removes a file, which may be missing."""
        with contextlib.suppress(FileNotFoundError):
            self._tried(lambda: self._files.rm_file(self._at(name)), "written", may_lack=True)

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _tried(self, operation: Callable[[], _Answer], what: str, *, may_lack: bool = False) -> _Answer:
        """What an operation returns, which is tried again if the store does not answer."""
        pauses = list(_PAUSES)
        while True:
            try:
                return operation()
            except FileNotFoundError as missing:
                if may_lack:
                    raise
                raise self._error(f"{self.address} cannot be {what}: {_reason(missing)}.") from missing
            except Exception as failed:  # stores raise errors of many kinds
                # A store that cannot do something at all says so by a kind of RuntimeError.
                is_final = isinstance(failed, PermissionError | RuntimeError)
                if is_final or not pauses:
                    kind = self._error if is_final else self._no_answer
                    raise kind(f"{self.address} cannot be {what}: {_reason(failed)}.") from failed
                logger.info("%s cannot be %s (%s); trying again.", self.address, what, _reason(failed))
                time.sleep(pauses.pop(0))


def readable_path(given: str | os.PathLike[str], error: type[TfaccelError]) -> Path:
    """A path that a user gave to be read: a local one as it is, or a copy of what is at an address.

    Copies are kept in the cache; only what has changed at the address is read again.

    Raises:
        TfaccelError: of the given type, for what is no path, or an address that cannot be read.
    """
    if not is_remote(given):
        return local_path(given, error)
    remote = RemoteFolder(given, error)
    folder = folder_of_copies("copies", remote.address, error)
    with FileLock(folder.with_name(_LOCK)):
        found = remote.list_files()
        if not found:
            raise error(f"There is nothing at {remote.address}. Check the address.")
        copy_changed(remote, found, folder, said=_said(remote.address))
    return folder / PurePosixPath(remote.address).name if "" in found else folder


@contextlib.contextmanager
def written_folder(
    given: str | os.PathLike[str], error: type[TfaccelError], *, last: tuple[str, ...] = ()
) -> Iterator[Path]:
    """A folder that a user gave to be written: a local one as it is, or the copy of one at an address.

    What has changed in the copy is sent when the block ends without an error.

    Args:
        last: the names of files that are sent last, because others look for them.

    Raises:
        TfaccelError: of the given type, for what is no path, or an address that cannot be read or written.
    """
    if not is_remote(given):
        yield local_path(given, error)
        return
    remote = RemoteFolder(given, error)
    folder = folder_of_copies("written", remote.address, error)
    with FileLock(folder.with_name(_LOCK)):
        remote.check_writable()
        copy_changed(remote, remote.list_files(), folder)
        yield folder
        notes = CopyNotes(folder)
        changed = [name for name in file_names(folder) if notes.has_changed(name)]
        for name in sorted(changed, key=lambda name: (PurePosixPath(name).name in last, name)):
            notes.send(remote, name)
        notes.tag(remote.list_files(), changed)


def folder_of_copies(kind: str, address: str, error: type[TfaccelError]) -> Path:
    """The local folder for what is at an address, which is made.

    Raises:
        TfaccelError: of the given type, if there is no cache, or it cannot be written.
    """
    cache = cache_dir()
    if cache is None:
        raise error(f"{address} needs a local folder for its copy. Set {CACHE_VARIABLE} to one.")
    folder = cache / kind / hashlib.sha256(address.encode()).hexdigest()[:16] / PurePosixPath(address).name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as failed:
        raise error(
            f"{address} needs a local folder for its copy, and {folder} cannot be written: {failed.strerror}. Set "
            f"{CACHE_VARIABLE} to another one."
        ) from failed
    return folder


def copy_changed(
    remote: RemoteFolder, found: dict[str, Version], folder: Path, said: Callable[[int, int], None] | None = None
) -> None:
    """Makes a local folder hold the files that were found at an address, and no others but hidden ones."""
    notes = CopyNotes(folder)
    wanted = [name for name, version in found.items() if not notes.holds(name, version)]
    for file in sorted(folder.rglob("*"), reverse=True):
        name = file.relative_to(folder).as_posix()
        if file.is_dir() and not file.is_symlink():
            if not any(file.iterdir()):
                file.rmdir()
        elif name not in found and "" not in found and not is_hidden(name):
            file.unlink()
    for start in range(0, len(wanted), _AT_ONCE):
        group = wanted[start : start + _AT_ONCE]
        remote.get(group, folder)
        notes.note({name: found[name] for name in group})
        if said is not None:
            said(start + len(group), len(wanted))
    notes.forget(set(notes.versions) - set(found))


class CopyNotes:
    """What the files of a local folder are copies of: kept beside it, and right also after a kill."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder.with_name(_NOTES)
        try:
            self._noted = {str(name): list(one) for name, one in json.loads(self._file.read_text()).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            self._noted = {}

    @property
    def versions(self) -> dict[str, Version]:
        """The versions at the address that were copied or sent, by name."""
        return {name: Version(size, tag) for name, (size, tag, *_) in self._noted.items()}

    def holds(self, name: str, version: Version) -> bool:
        """Whether the local file is an unchanged copy of a version."""
        known = self._noted.get(name)
        return known is not None and version.is_same(Version(*known[:2])) and not self.has_changed(name)

    def has_changed(self, name: str) -> bool:
        """Whether the local file has been written, or removed, since it was copied or sent."""
        return self._noted.get(name, [])[2:] != get_state(self._folder / (name or self._folder.name))

    def note(self, versions: dict[str, Version]) -> None:
        """Takes note of files that were copied."""
        for name, version in versions.items():
            state = get_state(self._folder / (name or self._folder.name))
            self._noted[name] = [version.size, version.tag, *(state or ())]
        write_json(self._file, self._noted)

    def send(self, remote: RemoteFolder, name: str) -> None:
        """Sends a file, unless it was removed just now, and takes note of its state before."""
        state = get_state(self._folder / name)
        if state is not None:
            remote.put(self._folder / name, name)
            self._noted[name] = [state[0], "", *state]
            write_json(self._file, self._noted)

    def tag(self, found: dict[str, Version], sent: Iterable[str]) -> None:
        """Takes note of what a listing says of files that were sent."""
        for name in sent:
            if name in found and name in self._noted:
                self._noted[name][:2] = found[name].size, found[name].tag
        write_json(self._file, self._noted)

    def forget(self, names: Iterable[str]) -> None:
        """Takes note of files that are gone."""
        gone = [name for name in names if self._noted.pop(name, None) is not None]
        if gone:
            write_json(self._file, self._noted)


def get_state(file: Path) -> list[int] | None:
    """Size and time of a local file, which tell whether it is written again; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def file_names(folder: Path) -> list[str]:
    """The names of all files below a folder, but hidden ones."""
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return [name for name in names if not is_hidden(name)]


def is_hidden(name: str) -> bool:
    """Whether a file is one that is being written, or a lock."""
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def _said(address: str) -> Callable[[int, int], None]:
    """Says now and then how many files have been copied."""
    said = [time.monotonic()]

    def say(done: int, of: int) -> None:
        if done == of or time.monotonic() - said[0] > _SAID_EVERY:
            said[0] = time.monotonic()
            logger.info("Copied %d of %d files of %s.", done, of, address)

    return say


def _tag(info: dict[str, Any]) -> str:
    return next((str(info[key]) for key in _VERSIONS if info.get(key) is not None), "")


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {in_one_line(error, 200)}".rstrip(". ")
