"""`scripts/gpu_sitting`: parts are packed and collected, faults refused, and a rehearsal that is cut goes on."""

import json
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITTING = ROOT / "scripts" / "gpu_sitting"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
pytestmark = pytest.mark.skipif(not SITTING.exists(), reason="needs the sources")


def sitting(*arguments, **environment):
    command = [sys.executable, SITTING, *map(str, arguments)]
    variables = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=500, check=False)


def refused(message, *arguments):
    ended = sitting(*arguments)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("gpu_sitting: ")
    assert message in ended.stderr


def packed(folder, python_version=VERSION, seed=0):
    """Parts of a wheel with 20 MiB of random bytes, a dropped header and an executable."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    with zipfile.ZipFile(wheels / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny/__init__.py", "")
        wheel.writestr("tiny/large.bin", random.Random(seed).randbytes(20 << 20))
        wheel.writestr("tensorflow/include/header.h", "dropped")
        program = zipfile.ZipInfo("tiny/program")
        program.external_attr = 0o755 << 16
        wheel.writestr(program, "#!/bin/sh\n")
        for name, text in (("METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"), ("RECORD", "")):
            wheel.writestr(f"tiny-1.0.dist-info/{name}", text)
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    options = [f"--to={folder / 'parts'}", "--only=tiny", f"--python_version={python_version}", "--part_mib=17"]
    ended = sitting("pack", *options, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PIP_CONFIG_FILE=os.devnull)
    assert ended.returncode == 0, ended.stderr
    return folder / "parts", ended.stdout


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return packed(tmp_path_factory.mktemp("packed"))


def test_parts_are_small_and_the_calls_are_printed(parts):
    folder, said = parts
    names = [path.name for path in sorted(folder.iterdir())]
    assert names == ["part-00", "part-01"]
    sizes = [sum(file.stat().st_size for file in (folder / name).iterdir()) for name in names]
    assert max(sizes) <= 17 << 20
    assert all(f"scripts/gpu_sitting collect {os.path.relpath(folder / name, ROOT)}\n" in said for name in names)
    assert "scripts/gpu_sitting run --out=RESULTS --minutes=7\n" in said
    assert sitting("calls", f"--to={folder}").stdout in said
    manifest = json.loads((folder / "part-00" / "manifest.json").read_text())
    assert "tensorflow/include/header.h" not in {file["path"] for file in manifest["files"]}


def test_parts_are_collected_in_any_order_and_unpacked(parts, tmp_path):
    folder, _ = parts
    assert sitting("collect", folder / "part-01", f"--work={tmp_path}").stdout == "missing: part-00\n"
    refused("not yet collected: part-00.", "run", f"--work={tmp_path}", f"--out={tmp_path / 'out'}")
    assert sitting("collect", folder / "part-00", f"--work={tmp_path}").stdout == "complete\n"
    assert sitting("collect", folder / "part-00", f"--work={tmp_path}").stdout == "complete\n"
    options = [f"--work={tmp_path}", f"--out={tmp_path / 'out'}", "--minutes=0.0001", "--rehearse"]
    ended = sitting("run", *options)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "no time was left of --minutes=0.0001. Run the same command again" in ended.stderr
    assert "libcudnn.so.9 " in ended.stdout
    site = tmp_path / "site" / "tiny"
    assert (site / "large.bin").read_bytes() == random.Random(0).randbytes(20 << 20)
    assert os.access(site / "program", os.X_OK)
    assert not os.access(site / "large.bin", os.X_OK)


def test_what_does_not_fit_is_refused(parts, tmp_path):
    folder, _ = parts
    refused("holds no manifest.json. Expected: a folder made by `gpu_sitting pack`", "collect", tmp_path)
    refused("holds no part. Run `scripts/gpu_sitting pack` first", "calls", f"--to={tmp_path}")
    refused("holds parts already. Remove them to pack again", "pack", f"--to={folder}")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in (folder / "part-00").iterdir():
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= file.name != "manifest.json"
        (damaged / file.name).write_bytes(content)
    refused("is damaged. Copy it again.", "collect", damaged, f"--work={tmp_path / 'work'}")
    assert list((tmp_path / "work" / "store").iterdir()) == []
    other, _ = packed(tmp_path / "other", python_version="3.99", seed=1)
    for part in sorted(other.iterdir()):
        sitting("collect", part, f"--work={tmp_path / 'work'}")
    refused("was packed at another time than what", "collect", folder / "part-00", f"--work={tmp_path / 'work'}")
    options = [f"--work={tmp_path / 'work'}", f"--out={tmp_path / 'out'}"]
    refused(f"packed for Python 3.99, but this is Python {VERSION}: `pack --python_version={VERSION}`", "run", *options)


@pytest.mark.slow
def test_a_rehearsal_that_is_cut_goes_on(tmp_path):
    """Two minutes of time for a step that is expected to take more; then enough of it."""
    options = [f"--work={tmp_path / 'work'}", f"--out={tmp_path / 'out'}", "--rehearse", "--", "--steps=env,mlp_fit"]

    def results(minutes):
        ended = sitting("run", f"--minutes={minutes}", *options)
        with tarfile.open(tmp_path / "out" / "results.tar.gz") as archive:
            names = {Path(name).name for name in archive.getnames() if "rehearsal/" in name}
        return ended.returncode, names

    assert results(0.5) == (0, {"env.json", "env.log", "report.json"})
    assert results(3) == (0, {"env.json", "env.log", "mlp_fit.json", "mlp_fit.log", "report.json"})
