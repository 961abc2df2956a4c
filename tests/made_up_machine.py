"""Made-up machines: a folder of files that stands for "/", an environment, and commands that are shell scripts."""

from pathlib import Path
from typing import Any

from tfaccel.hardware.machine import Machine

CPUINFO_BLOCK = """processor\t: {processor}
model name\t: Intel(R) Xeon(R) Platinum 8480+
physical id\t: {socket}
core id\t\t: {core}
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8 {extra}
"""


def cpuinfo(*, num_sockets: int = 1, num_cores: int = 2, num_threads: int = 1, extra: str = "") -> str:
    cores = [(socket, core) for socket in range(num_sockets) for core in range(num_cores)] * num_threads
    blocks = [CPUINFO_BLOCK.format(processor=i, socket=s, core=c, extra=extra) for i, (s, c) in enumerate(cores)]
    return "\n".join(blocks)


def make_machine(folder: Path, *, files: dict[str, str] | None = None, **fields: Any) -> Machine:
    """A machine with 16 GiB, two cores and no accelerator, plus `files` by absolute name."""
    root = folder / "root"
    for name, text in {"/proc/cpuinfo": cpuinfo(), "/proc/meminfo": "MemTotal: 16777216 kB\n", **(files or {})}.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root=root, **{"environ": {}, "cpu_affinity": frozenset({0, 1}), **fields})


def add_command(folder: Path, name: str, script: str) -> str:
    """Writes a shell script and returns its folder, for PATH."""
    commands = folder / "commands"
    commands.mkdir(exist_ok=True)
    path = commands / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(commands)


def add_package(folder: Path, name: str, version: str) -> str:
    """Writes the metadata of an installed package and returns the site folder."""
    site = folder / "site"
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(site)
