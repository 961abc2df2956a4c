"""The versions of a model that are served: found in a folder, which is looked at again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfaccel.errors import ServeError
from tfaccel.exporting.saved_model_files import GRAPH_FILE, version_folders
from tfaccel.serving.request_error import RequestError
from tfaccel.serving.servable import Servable

logger = logging.getLogger("tfaccel")

AVAILABLE, LOADING, END = "AVAILABLE", "LOADING", "END"


@dataclass(frozen=True)
class VersionState:
    """How a version stands.

    Arguments:
        state: in TensorFlow Serving's words.
        message: why it could not be loaded; "" where it could.
    """

    state: str
    message: str = ""


class Versions:
    """The versions of one model.

    Arguments:
        name: of the model.
        folder: of its versions, or of a single SavedModel.
        load: makes a servable of a folder and a version.
        max_versions: the newest so many are served; 0 for all.

    Raises:
        ServeError: from `load_all`, if no version can be served.
    """

    def __init__(
        self, name: str, folder: Path, load: Callable[[Path, int], Servable], *, max_versions: int = 0
    ) -> None:
        self.name = name
        self._folder, self._load, self._max_versions = folder, load, max_versions
        self._servables: dict[int, Servable] = {}
        self._states: dict[int, VersionState] = {}
        self._marks: dict[int, float] = {}  # of folders that were tried: when their graphs were written
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def load_all(self) -> None:
        """Loads what is there.

        Raises:
            ServeError: if that is no version, or none can be loaded; the message is the newest's.
        """
        self._look()
        if not self._servables:
            faults = [state.message for _, state in sorted(self._states.items()) if state.message]
            raise ServeError(
                faults[-1] if faults
                else f"{self._folder} holds no SavedModel, and no folders of versions (1, 2 ...) with one. "
                "Write one with `tfaccel export`."
            )  # fmt: skip

    def watch(self, poll_seconds: float) -> None:
        """Starts a thread that looks again and again."""
        self._thread = threading.Thread(target=self._watch, args=(poll_seconds,), name="tfaccel-versions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_ready(self) -> bool:
        """Whether a version can be asked."""
        return bool(self._servables) and not self._stopped.is_set()

    @property
    def num_available(self) -> int:
        """Versions that can be asked."""
        return len(self._servables)

    def get(self, version: int | None) -> Servable:
        """A version; None: the newest.

        Raises:
            RequestError: 404, if it is not served.
        """
        servables = self._servables
        if version is None and servables:
            return servables[max(servables)]
        if version not in servables:
            wanted = "Latest" if version is None else "Specific"
            place = self.name if version is None else f"{self.name}, {version}"
            there = ", ".join(map(str, sorted(servables))) or "none"
            raise RequestError(404, f"Servable not found for request: {wanted}({place}). Versions: {there}.")
        return servables[version]

    def states(self) -> dict[int, VersionState]:
        """How each version stands, the newest first."""
        return dict(sorted(self._states.items(), reverse=True))

    def _watch(self, poll_seconds: float) -> None:
        while not self._stopped.wait(max(poll_seconds, 0.05)):
            try:
                self._look()
            except OSError as error:  # The folder may be gone for a while.
                logger.warning("Cannot look at %s: %s", self._folder, error)

    def _look(self) -> None:
        """Loads new versions, then lets go of those that are gone: their last requests still hold them."""
        found = self._folders()
        for version, folder in found.items():
            if self._stopped.is_set():
                return
            mark = _mark(folder)
            if version in self._servables or mark is None or self._marks.get(version) == mark:
                continue
            self._marks[version] = mark
            self._states[version] = VersionState(LOADING)
            try:
                servable = self._load(folder, version)
            except ServeError as error:
                self._states[version] = VersionState(END, str(error))
                logger.warning("Version %d of %s is not served: %s", version, self.name, error)
                continue
            self._servables = {**self._servables, version: servable}
            self._states[version] = VersionState(AVAILABLE)
            logger.info("Version %d of %s is served", version, self.name)
        gone = [version for version in self._states if version not in found]
        for version in gone:
            self._servables = {number: kept for number, kept in self._servables.items() if number != version}
            del self._states[version]
            self._marks.pop(version, None)
            logger.info("Version %d of %s is no longer served", version, self.name)

    def _folders(self) -> dict[int, Path]:
        if (self._folder / GRAPH_FILE).is_file():
            name = self._folder.resolve().name
            return {int(name) if name.isdecimal() else 1: self._folder}
        found = version_folders(self._folder)
        newest = sorted(found)[-self._max_versions :] if self._max_versions else sorted(found)
        return {version: found[version] for version in newest}


def _mark(folder: Path) -> float | None:
    """When a version was written; None while it is not whole."""
    try:
        if not (folder / "variables" / "variables.index").exists() and (folder / "variables").exists():
            return None
        return max(file.stat().st_mtime for file in folder.rglob("*") if file.name == GRAPH_FILE or file.suffix)
    except (OSError, ValueError):
        return None
