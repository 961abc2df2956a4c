"""Launches two workers in a network namespace of their own, and cuts their connection once.

unshare --map-root-user --net python -m tfaccel.benchmarks.cut_program FOLDER OPTIONS
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.fault_launch import Launch, Running, launch
from tfaccel.benchmarks.fault_row import NotPossibleHere
from tfaccel.processes.child import ProcessError, run_program

_NAMESPACE = ("unshare", "--map-root-user", "--net")
_CUT_SECONDS = 40.0
_LIMIT_SECONDS = 600.0


def launch_and_cut(folder: Path, options: dict[str, Any]) -> Launch:
    """The launch of two workers whose connection is cut after a second of training.

    The workers run in a network namespace, whose loopback device is switched off: what they send is lost, as when a
    cable is pulled. It is switched on again when they have been started again.

    Raises:
        NotPossibleHere: if the system allows no network namespace.
    """
    try:
        run_program([*_NAMESPACE, "ip", "link", "set", "lo", "up"], time_limit_seconds=20)
    except (OSError, ProcessError) as error:
        raise NotPossibleHere(f"no network namespace can be made: {error}") from error
    command = [*_NAMESPACE, sys.executable, "-m", __name__, str(folder), json.dumps(options)]
    found = json.loads(run_program(command, time_limit_seconds=_LIMIT_SECONDS).splitlines()[-1])
    return Launch(**{**found, "said": tuple(found["said"])})


def main(argv: list[str]) -> int:
    """Launches, and prints the `Launch` as JSON."""
    folder, options = Path(argv[1]), json.loads(argv[2])
    _switch("up")

    def inject(running: Running) -> float:
        time.sleep(1.0)
        _switch("down")
        cut_at = time.time()
        threading.Thread(target=_mend, args=(folder / "logs" / "worker-0.log",), daemon=True).start()
        return cut_at

    sys.stdout.write(json.dumps(asdict(launch(folder, 2, options, inject=inject))) + "\n")
    return 0


def _mend(log: Path) -> None:
    """Switches the device on when the first workers have ended."""
    deadline = time.monotonic() + _CUT_SECONDS
    while "is lost: worker" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    _switch("up")


def _switch(state: str) -> None:
    run_program(["ip", "link", "set", "lo", state], time_limit_seconds=20)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
