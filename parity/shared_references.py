"""References cached in files, shared by the workers of a cluster and by later runs."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tfaccel.data.stored_arrays import read_arrays
from tfaccel.parity.case import ParityCase
from tfaccel.parity.references import Reference, reference, reference_case, reference_values
from tfaccel.parity.training_run import Values

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class SharedReferences:
    """References that are trained once. Workers run the same cases in the same order and take turns training them.

    Attributes:
        folder: folder of the files.
        worker: index of this worker.
        num_workers: total number of workers.
    """

    folder: Path
    worker: int
    num_workers: int

    @classmethod
    def of_cluster(cls, folder: Path) -> SharedReferences:
        """References for the cluster in `TF_CONFIG`, or for this process alone if it is not set."""
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        workers = config.get("cluster", {}).get("worker", [""])
        return cls(folder, config.get("task", {}).get("index", 0), len(workers))

    def get(self, case: ParityCase, position: int) -> Reference:
        """The reference of the case at that position. Waits for the worker whose turn it is; the parent process
        enforces the time limit."""
        return reference(case, partial(self._values, trains=position % self.num_workers == self.worker))

    def _values(self, case: ParityCase, *, trains: bool) -> Values:
        path = self.folder / f"{reference_key(case)}.npz"
        if trains and not path.exists():
            self._write(path, reference_values(case))
        while not path.exists():
            time.sleep(_POLL_SECONDS)
        return read_arrays(path)

    def _write(self, path: Path, own: Values) -> None:
        """Writes the file atomically, since several processes may write it at once."""
        descriptor, temporary = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, allow_pickle=False, **own)
        Path(temporary).rename(path)


def reference_key(case: ParityCase) -> str:
    """A digest of everything a reference depends on: the case, the code that trains it, libraries and processor."""
    decisive = reference_case(case).to_json()
    decisive["placement"] = case.placement.num_replicas  # determines the batch size
    return hashlib.sha256(json.dumps([decisive, _surroundings()]).encode()).hexdigest()[:32]


@cache
def _surroundings() -> list[str]:
    libraries = [version(name) for name in ("keras", "tensorflow", "numpy")]
    sources = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
    info = Path("/proc/cpuinfo")
    flags = [line for line in info.read_text().splitlines() if line.startswith("flags")] if info.exists() else []
    return [*libraries, *sources, platform.machine(), *flags[:1]]
