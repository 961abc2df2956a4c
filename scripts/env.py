"""Describes this machine and installation, to paste into a bug report.

tfaccel env
tfaccel env --json > machine.json     # `tfaccel plan --hardware=machine.json` plans for it elsewhere
"""

import json
import os
import sys
from typing import Any

from absl import flags

from tfaccel.hardware.environment import describe_environment
from tfaccel.hardware.machine import Machine
from tfaccel.planning.compilation_cache import describe_cache
from tfaccel.scripts.command import run_command
from tfaccel.scripts.command_flags import Flag, command_flags

_FLAGS: dict[str, Flag] = {"json": (False, "print the output as JSON")}


def run(argv: list[str]) -> int:
    """Runs `tfaccel env`; returns its exit status."""
    values = command_flags(_FLAGS)
    return run_command(lambda: _main(values), argv, values, description=(__doc__ or "").strip())


def _main(values: flags.FlagValues) -> int:
    data = describe_environment(Machine.here()) | {"compilation_cache": describe_cache(os.environ)}
    print(json.dumps(data, indent=2) if values.json else as_text(data))
    return 0


def as_text(data: dict[str, Any]) -> str:
    """The block for a bug report."""
    backend = data["keras_backend"]
    rows = [("tfaccel", data["tfaccel"]), ("Python", data["python"]), ("platform", data["platform"])]
    rows += [(name, version or "not installed") for name, version in data["packages"].items()]
    rows += [("CUDA packages", ", ".join(f"{n} {v}" for n, v in data["cuda_packages"].items()) or "none")]
    rows += [("Keras backend", f"{backend['name']} (from {backend['source']})")]
    rows += _hardware_rows(data["hardware"]) if data["hardware"] else []
    rows.append(("compiled programs", _cache_text(data["compilation_cache"])))
    rows += [("problem", text) for text in data["problems"]]
    rows += [(name, "(set)" if value is None else value) for name, value in data["environment"].items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join(["Please copy this text into your report.", "", *lines])


def _cache_text(cache: dict[str, Any] | None) -> str:
    if cache is None:
        return "not kept"
    size, limit = (f"{num_bytes / 2**20:.0f}" for num_bytes in (cache["bytes"], cache["max_bytes"]))
    used = f"{cache['loaded']} times loaded, {cache['compiled']} times compiled here"
    return f"{cache['programs']} in {cache['directory']}, {size} of at most {limit} MiB; {used}"


def _hardware_rows(hardware: dict[str, Any]) -> list[tuple[str, str]]:
    cores = f"{hardware['num_physical_cores']} cores, {hardware['num_usable_cores']} threads usable"
    rows = [
        ("CPU", f"{hardware['cpu_model']}, {cores}"),
        ("CPU features", ", ".join(hardware["cpu_features"]) or "none that are relevant"),
        ("memory", _gibibytes(hardware["memory_bytes"])),
    ]
    rows += [(f"{device['kind']}:{device['index']}", _device_text(device)) for device in hardware["devices"]]
    if not hardware["devices"]:
        rows.append(("accelerators", "none"))
    if hardware["tpu_environment"]:
        rows.append(("TPU environment", hardware["tpu_environment"]))
    cluster = hardware["cluster"]
    if cluster:
        place = f"{cluster['task_type']} {cluster['task_index']} among {cluster['num_workers']} workers"
        rows.append(("cluster", f"{place} (from {cluster['source']})"))
    return rows


def _device_text(device: dict[str, Any]) -> str:
    capability = device["compute_capability"]
    parts = [device["model"] or "unknown model"]
    parts += [_gibibytes(device["memory_bytes"])] if device["memory_bytes"] else []
    parts += [f"compute capability {capability[0]}.{capability[1]}"] if capability else []
    parts += [f"driver {device['driver_version']}"] if device["driver_version"] else []
    return ", ".join(parts)


def _gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"


if __name__ == "__main__":
    sys.exit(run(sys.argv))
