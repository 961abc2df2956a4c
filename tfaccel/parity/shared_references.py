"""References that the workers of a cluster share: each calculates its part of them and reads the others'."""

from __future__ import annotations

import json
import os
import pickle
import time
from dataclasses import dataclass
from pathlib import Path

from tfaccel.parity.case import ParityCase
from tfaccel.parity.references import Reference, reference

_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class SharedReferences:
    """References of cases that all workers run in the same order.

    Attributes:
        folder: where the workers leave them.
        worker: this worker's index.
        num_workers: workers in all.
    """

    folder: Path
    worker: int
    num_workers: int

    @classmethod
    def of_cluster(cls, folder: Path) -> SharedReferences:
        """Those of the cluster that `TF_CONFIG` tells of; of this process alone where there is none."""
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        workers = config.get("cluster", {}).get("worker", [""])
        return cls(folder, config.get("task", {}).get("index", 0), len(workers))

    def get(self, case: ParityCase, position: int) -> Reference:
        """The reference of the case at that position. Waits for the worker whose turn it is; who started them all ends
        them if it never comes."""
        path = self.folder / f"reference-{position}.pickle"
        if position % self.num_workers == self.worker:
            own = reference(case)
            if self.num_workers > 1:
                temporary = path.with_suffix(".part")
                temporary.write_bytes(pickle.dumps(own))
                temporary.rename(path)
            return own
        while not path.exists():
            time.sleep(_POLL_SECONDS)
        found: Reference = pickle.loads(path.read_bytes())
        return found
