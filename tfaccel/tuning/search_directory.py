"""The run directory of a search: it holds a single search, and one process writes to it at a time."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tfaccel.errors import RunDirError
from tfaccel.training.run.run_dir import RunDir
from tfaccel.training.run.run_lock import RunLock


@contextlib.contextmanager
def search_directory(directory: RunDir, space: dict[str, Any]) -> Iterator[None]:
    """Checks that the directory is for this search, writes its config, and locks the directory."""
    file = directory.path / "space.json"
    if file.exists():
        there, here = (
            {e["config"]["name"]: e for e in known["space"]} for known in (json.loads(file.read_text()), space)
        )
        odd = next((name for name in {**there, **here} if there.get(name) != here.get(name)), None)
        if odd is not None:
            raise RunDirError(
                f"The run directory {directory.path} holds a search with another space: the hyperparameter {odd!r} "
                "differs. Choose a new directory."
            )
    directory.make(space=space)
    lock = RunLock(directory.path)
    try:
        yield
    finally:
        lock.release()


def flat_config(config: dict[str, Any]) -> dict[str, Any]:
    """The config with workload options and plan fields merged, so that an error can name the one that differs."""
    own = {name: value for name, value in config.items() if name not in ("workload_options", "plan_fields")}
    return {**own, "options": {**config["workload_options"], **config["plan_fields"]}}
