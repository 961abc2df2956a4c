"""The served versions of a model, found by polling a folder."""

from __future__ import annotations

import ctypes
import gc
import logging
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfaccel.errors import ServeError
from tfaccel.exporting.saved_model_files import GRAPH_FILE, holds_model, is_version, no_saved_model, version_folders
from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.model_config import VersionPolicy
from tfaccel.extras.serving.servable import Servable

logger = logging.getLogger("tfaccel")

AVAILABLE, LOADING, START, END = "AVAILABLE", "LOADING", "START", "END"
_M_MMAP_THRESHOLD, _MMAP_BYTES = -3, 1 << 17  # of glibc's malloc.h, and what it begins with
_SHARD = re.compile(r"variables\.data-\d+-of-(\d+)")


@dataclass(frozen=True)
class VersionState:
    """The state of a version.

    Args:
        state: in TensorFlow Serving's words.
        message: why it could not be loaded; "" where it could.
    """

    state: str
    message: str = ""


class Versions:
    """The versions of one model.

    Args:
        name: the model's name.
        folder: holds its versions, or is a single SavedModel; or a LiteRT file.
        load: makes a servable of a folder and a version.
        policy: which versions are served.
        labels: version labels.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        load: Callable[[Path, int], Servable],
        *,
        policy: VersionPolicy | None = None,
        labels: Mapping[str, int] | None = None,
    ) -> None:
        self.name, self.folder = name, folder
        self._load, self._policy, self._labels = load, policy or VersionPolicy(), dict(labels or {})
        self._servables: dict[int, Servable] = {}
        self._states: dict[int, VersionState] = {}
        self._seen: dict[int, Hashable] = {}  # the folders' contents at the last poll
        self._tried: dict[int, Hashable] = {}  # their contents when loading was last tried
        self._fault = ""  # of the folder of versions
        self._let_some_go = False  # since the last poll
        self._is_loaded = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def load_all(self) -> None:
        """Loads the versions found."""
        self._look(wait_for_rest=False)
        self._is_loaded = True
        faults = {version: state.message for version, state in sorted(self._states.items()) if state.message}
        fatal = None
        if not self._servables and not self._stopped.is_set():
            fatal = faults.popitem()[1] if faults else self._no_version()
        for version, fault in faults.items():
            self._warn(version, fault)
        if fatal is not None:
            raise ServeError(fatal)

    def watch(
        self, poll_seconds: float, *, loaded: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Starts a thread that loads the versions found, then polls for new ones.

        Args:
            poll_seconds: polling interval.
            loaded: called in the thread when the first versions are served.
            failed: called there with the error if none can be; the thread has ended then.
        """
        arguments = (poll_seconds, loaded, failed)
        self._thread = threading.Thread(target=self._watch, args=arguments, name="tfaccel-versions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def configure(self, policy: VersionPolicy, labels: Mapping[str, int]) -> None:
        """Changes the policy, from the next poll on, and the labels, at once."""
        self._policy, self._labels = policy, dict(labels)

    @property
    def is_ready(self) -> bool:
        """Whether loading has been tried for all versions to serve, and one is available."""
        found = self._servables
        return self._is_loaded and bool(found) and not self._stopped.is_set() and self._policy.versions <= set(found)

    @property
    def available(self) -> list[int]:
        """Available versions, in ascending order."""
        return sorted(self._servables)

    def get(self, version: int | None) -> Servable:
        """A version; None for the newest."""
        servables = self._servables
        if not servables and not self._is_loaded:
            raise RequestError(503, f"{self.name} is being loaded. Try again later.", {"Retry-After": "1"})
        if version is None and servables:
            return servables[max(servables)]
        if version not in servables:
            wanted = "Latest" if version is None else "Specific"
            place = self.name if version is None else f"{self.name}, {version}"
            there = ", ".join(map(str, sorted(servables))) or "none"
            raise RequestError(404, f"Servable not found for request: {wanted}({place}). Versions: {there}.")
        return servables[version]

    def labelled(self, label: str) -> int:
        """The version with a label."""
        if label not in self._labels:
            there = ", ".join(sorted(self._labels)) or "none"
            raise RequestError(400, f"Unrecognized servable version label: {label:.60}. Labels: {there}.")
        return self._labels[label]

    def states(self, version: int | None = None) -> dict[int, VersionState]:
        """The state of each version, newest first; or of one of them."""
        states = dict(sorted(self._states.items(), reverse=True))
        if version is None:
            return states
        if version not in states:
            there = ", ".join(map(str, sorted(states))) or "none"
            raise RequestError(404, f"Could not find version {version} of model {self.name}. Versions: {there}.")
        return {version: states[version]}

    def _watch(self, poll_seconds: float, loaded: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        try:
            self.load_all()
            if self._servables:
                loaded()
        except BaseException as error:  # Any error stops the server.
            failed(error)
            return
        while not self._stopped.wait(max(poll_seconds, 0.05)):
            fault = ""
            try:
                self._look()
            except OSError as error:  # The folder may be missing for a while: loaded versions stay.
                fault = str(error)
                if fault != self._fault:
                    logger.warning("Cannot look for versions of %s: %s", self.name, fault)
            self._fault = fault

    def _look(self, *, wait_for_rest: bool = True) -> None:
        """Loads new versions, then unloads those that are gone; their last requests still hold them.

        With `wait_for_rest`, a folder is loaded once nothing in it has changed since the last poll.
        """
        if self._let_some_go:  # requests in progress may have held them until now
            self._let_some_go = False
            give_back_memory()
        folders = self._folders()
        marks = {version: _mark(folder) for version, folder in folders.items()}
        whole = [
            version
            for version, mark in marks.items()
            if mark is not None and (not wait_for_rest or self._seen.get(version) == mark)
        ]
        self._seen = marks
        waiting = {version: VersionState(START) for version in whole if version not in self._states}
        self._states = {**self._states, **waiting}
        while not self._stopped.is_set():
            version = self._next(whole)
            if version is None:
                break
            self._tried[version] = marks[version]
            self._load_version(version, folders[version])
        newest = sorted(version for version in self._servables if version in folders)[-self._policy.latest :]
        for version in list(self._states):
            is_old = version in self._servables and version not in newest
            if version not in folders or is_old or self._states[version].state == START:
                self._let_go(version)
        if self._let_some_go:
            give_back_memory()

    def _next(self, whole: list[int]) -> int | None:
        """The newest version that is not served yet and not tried with its current content; None if there is none."""
        num_served = 0
        for version in sorted(self._seen, reverse=True):
            if self._policy.latest and num_served == self._policy.latest:
                return None
            if version in self._servables:
                num_served += 1
            elif version in whole and self._tried.get(version) != self._seen[version]:
                return version
        return None

    def _load_version(self, version: int, folder: Path) -> None:
        self._states = {**self._states, version: VersionState(LOADING)}
        try:
            servable = self._load(folder, version)
        except ServeError as error:
            self._states = {**self._states, version: VersionState(END, str(error))}
            if self._is_loaded:  # else `load_all` says it
                self._warn(version, str(error))
            return
        self._servables = {**self._servables, version: servable}
        self._states = {**self._states, version: VersionState(AVAILABLE)}
        logger.info("Version %d of %s is served", version, self.name)

    def _warn(self, version: int, fault: str) -> None:
        logger.warning("Version %d of %s is not served: %s", version, self.name, fault)

    def _let_go(self, version: int) -> None:
        was_served = version in self._servables
        self._servables = {number: kept for number, kept in self._servables.items() if number != version}
        self._states = {number: state for number, state in self._states.items() if number != version}
        self._tried.pop(version, None)
        if was_served:
            self._let_some_go = True
            logger.info("Version %d of %s is no longer served", version, self.name)

    def _no_version(self) -> str:
        if not self._policy.versions:
            return no_saved_model(self.folder)
        wanted = ", ".join(map(str, sorted(self._policy.versions)))
        return f"{self.folder} has none of the versions that {self.name} should be served with: {wanted}."

    def _folders(self) -> dict[int, Path]:
        found = self._all_folders()
        wanted = self._policy.versions
        return {version: folder for version, folder in found.items() if not wanted or version in wanted}

    def _all_folders(self) -> dict[int, Path]:
        is_file = self.folder.is_file()
        if is_file or (self.folder / GRAPH_FILE).is_file():
            path = self.folder.resolve()
            name = path.parent.name if is_file else path.name
            return {int(name) if is_version(name) else 1: self.folder}
        if self._servables and not self.folder.is_dir():
            raise FileNotFoundError(f"{self.folder} is gone")
        return version_folders(self.folder)


def keep_blocks_apart() -> None:
    """Lets glibc allocate large blocks apart, however many of them are freed: so they can always be given back."""
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, _MMAP_BYTES)


def give_back_memory() -> None:
    """Frees dropped models, whose graphs hold themselves, and gives their memory back to the system."""
    gc.collect()
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *numbers: int) -> None:
    """Calls a function that only glibc has."""
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*numbers)


def _mark(folder: Path) -> Hashable:
    """A fingerprint of a version's folder or file: names, sizes and times of files; None while it is incomplete."""
    paths = [folder] if folder.is_file() else folder.rglob("*")
    try:
        files = {str(path.relative_to(folder)): path.stat() for path in paths if path.is_file()}
    except OSError:  # A file was renamed meanwhile.
        return None
    if not folder.is_file() and not (holds_model(folder) and _has_variables(folder)):
        return None
    return tuple(sorted((name, entry.st_size, entry.st_mtime_ns) for name, entry in files.items()))


def _has_variables(folder: Path) -> bool:
    """Whether all variables exist, or the model has none."""
    if not (folder / "variables").is_dir():
        return True
    names = {path.name for path in (folder / "variables").iterdir()}
    shards = [found for name in names if (found := _SHARD.fullmatch(name))]
    return "variables.index" in names and bool(shards) and len(shards) == int(shards[0][1])
