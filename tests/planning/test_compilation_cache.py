"""XLA's compiled programs on disk: what is damaged or foreign is not loaded; places, flags, limits and counts."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tfaccel.planning import compilation_cache
from tfaccel.planning.compilation_cache import CompilationCache, describe_cache, get_directory

NAME = "tfaccel__1__2__XLA_CPU_JIT.pb"
TRAINS = """
import json, os
from tfaccel import Plan, Runtime
plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=8, jit_compile=True)
with Runtime(plan, seed=0):
    import keras
    import numpy as np
    from tfaccel import fit
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    history = fit(model, np.ones((16, 4), "float32"), np.ones((16, 1), "float32"), batch_size=8, verbose=0).history
print(json.dumps([history["loss"], "TF_XLA_FLAGS" in os.environ]))
"""


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "compiled" / "processor"


def compiled(directory, content=b"program", name=NAME):
    """The file of a program that a process has compiled and kept."""
    cache = CompilationCache(directory)
    (cache.folder / name).write_bytes(content)
    cache.close()
    return next(directory.glob(f"{name}.*"))


def filled(directory):
    cache = CompilationCache(directory)
    cache.fill()
    found = {file.name: file.read_bytes() for file in cache.folder.iterdir()}
    cache.close()
    return found


def test_what_one_process_compiles_another_one_loads(directory):
    program = compiled(directory)
    cache = CompilationCache(directory)
    cache.fill()
    assert (cache.folder / NAME).read_bytes() == b"program"
    cache.close()
    assert json.loads((directory / "counts.json").read_text()) == {"loaded": 1, "compiled": 1}
    assert [*directory.glob("*.pb.*")] == [program]
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"Program"),
        lambda file: file.write_bytes(b"prog"),
        lambda file: file.write_bytes(b""),
        lambda file: file.rename(file.with_suffix(".0")),
        lambda file: (file.rename(file.parent / "other"), file.symlink_to(file.parent / "other")),
    ],
)
def test_a_damaged_or_foreign_program_is_thrown_away(directory, damage):
    program = compiled(directory)
    damage(program)
    assert filled(directory) == {}
    assert [*directory.glob("*.pb.*")] == []
    compiled(directory)
    assert filled(directory) == {NAME: b"program"}


def test_the_oldest_are_thrown_away(directory, monkeypatch):
    monkeypatch.setattr(compilation_cache, "MAX_BYTES", 20)
    names = [f"tfaccel__{i}__2__XLA_CPU_JIT.pb" for i in range(3)]
    for place, name in enumerate(names):
        os.utime(compiled(directory, b"12345678", name), (place, place))
    os.utime(compiled(directory.parent / "another", b"12345678"), (1.5, 1.5))
    assert set(filled(directory)) == {names[2]}
    assert len([*directory.parent.glob("*/*.pb.*")]) == 2


def test_folders_of_processes_that_have_ended_are_removed(directory):
    code = "import sys; from pathlib import Path; from tfaccel.planning.compilation_cache import CompilationCache as C"
    code += "; print(C(Path(sys.argv[1])).folder)"
    child = subprocess.run([sys.executable, "-c", code, str(directory)], check=True, capture_output=True, text=True)
    left = Path(child.stdout.strip())
    assert left.exists()
    own = CompilationCache(directory)
    assert not left.exists()
    CompilationCache(directory).close()
    assert own.folder.exists()
    own.close()
    assert not own.folder.exists()


def test_a_full_disk_is_no_error(directory, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = CompilationCache(directory)
    (cache.folder / NAME).write_bytes(b"program")
    monkeypatch.setattr(shutil, "copyfile", full)
    cache.keep()
    assert (cache.folder / NAME).read_bytes() == b"program"
    assert [*directory.iterdir()] == []
    cache.close()


def test_the_folder_must_be_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "compiled").symlink_to(tmp_path / "elsewhere")
    assert CompilationCache.open({}) is None


def test_places_and_flags(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path))
    own = {"TF_XLA_FLAGS": "--tf_xla_persistent_cache_directory=/mine"}
    assert get_directory({"TFACCEL_COMPILATION_CACHE": "0"}) is get_directory(own) is None
    assert describe_cache(own) is None
    given = {"TF_XLA_FLAGS": "--tf_xla_max_cluster_size=9"}
    cache = CompilationCache.open(given)
    flags = {"TF_XLA_FLAGS": cache.flags(given)}
    assert flags["TF_XLA_FLAGS"].split()[:2] == [
        "--tf_xla_max_cluster_size=9",
        f"--tf_xla_persistent_cache_directory={cache.folder}",
    ]
    child = CompilationCache.open(flags)  # a process that has inherited them
    assert child.directory == cache.directory != get_directory({})
    assert child.flags(flags) == flags["TF_XLA_FLAGS"].replace(str(cache.folder), str(child.folder))
    assert get_directory({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}) != get_directory({})
    for one in (cache, child):
        one.close()


def test_a_process_uses_the_folder_that_its_launcher_has_made(tmp_path, monkeypatch):
    monkeypatch.setenv("TFACCEL_CACHE", str(tmp_path))
    assert CompilationCache.given({}) is None
    made = CompilationCache.open({}, kind="GPU")
    flags = {"TF_XLA_FLAGS": made.flags({})}
    found = CompilationCache.given(flags)
    assert (found.folder, found.directory) == (made.folder, made.directory)
    assert made.directory != get_directory({})  # of programs for CPUs
    assert get_directory(flags, kind="GPU") == made.directory
    made.close()
    assert CompilationCache.given(flags) is None


def test_training_loads_what_was_compiled_and_nothing_damaged(run_python, tmp_path):
    environment = {"TFACCEL_CACHE": str(tmp_path)}

    def train():
        child = run_python(TRAINS, env=environment)
        assert "text-format" not in child.stderr
        return json.loads(child.stdout.splitlines()[-1])

    def counts():
        [file] = tmp_path.glob("compiled/*/counts.json")
        return json.loads(file.read_text())

    first = train()
    before = counts()
    assert before["loaded"] == 0 and before["compiled"] > 0 and not first[1]
    assert train() == first
    assert counts() == {"loaded": before["compiled"], "compiled": before["compiled"]}
    for program in tmp_path.glob("compiled/*/*.pb.*"):
        program.write_bytes(program.read_bytes()[:-100] + bytes(100))
    assert train() == first
    assert counts()["compiled"] == 2 * before["compiled"]
