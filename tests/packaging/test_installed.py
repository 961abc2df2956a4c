"""The installed package is whole: modules, recipes, scripts, the command, data, metadata."""

import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata, resources
from pathlib import Path

import pytest

import tfaccel
import tfaccel.recipes
import tfaccel.scripts
from tfaccel.scripts import main as main_module

COMMAND = Path(sysconfig.get_path("scripts")) / "tfaccel"
INSTALLED = os.environ.get("TFACCEL_TEST_INSTALLED")  # scripts/test sets it where the built wheel is what gets tested.


def run_command(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(INSTALLED is None, reason="the sources are what gets tested here")
@pytest.mark.parametrize("package", [tfaccel, tfaccel.recipes, tfaccel.scripts], ids=lambda package: package.__name__)
def test_package_comes_from_the_wheel(package):
    assert package.__file__.startswith(f"{INSTALLED}/")
    assert sys.prefix == INSTALLED


def test_every_module_imports_and_every_public_name_is_there(run_python):
    child = run_python(
        """
import importlib, os, pkgutil, tfaccel
found = [module.name for module in pkgutil.walk_packages(tfaccel.__path__, "tfaccel.")]
# In an editable install these lie outside the package's folder.
for package in ("tfaccel.recipes", "tfaccel.scripts", "tfaccel.parity"):
    path = importlib.import_module(package).__path__
    found += [package, *(module.name for module in pkgutil.walk_packages(path, package + "."))]
of_torch = ("torch_models", "torch_program", "speedrun_torch")  # no extra has PyTorch
for name in sorted(name for name in found if name.rpartition(".")[2] not in of_torch):
    importlib.import_module(name)
    print(name)
for name in tfaccel.__all__:
    assert getattr(tfaccel, name) is not None
""",
        fresh=True,
    )
    modules = child.stdout.split()
    assert {"tfaccel.errors", "tfaccel.planning.plan", "tfaccel.scripts.main"} <= set(modules)
    assert len(modules) > 20


def test_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"no attribute 'trian'. Did you mean 'train'\? Public names: .*train"):
        tfaccel.trian  # noqa: B018


def test_import_and_help_leave_tensorflow_alone(run_python):
    run_python(
        """
import sys
import tfaccel
from tfaccel.scripts.main import main
status = main(["tfaccel", "--help"])
heavy = {"tensorflow", "keras", "numpy", "sklearn"} & set(sys.modules)
sys.exit(status or (f"loaded: {heavy}" if heavy else 0))
""",
        fresh=True,
    )


def test_command_answers():
    asked = run_command("--help")
    assert asked.returncode == 0
    assert asked.stdout.startswith("usage: tfaccel COMMAND")
    assert run_command("--version").stdout == f"tfaccel {tfaccel.__version__}\n"


def test_python_m_tfaccel_is_the_command(run_python):
    def outcome(child):
        return child.returncode, child.stdout, child.stderr

    for arguments in (["--help"], ["--version"], ["trian"], ["recipes", "--json"], ["plan", "--recipe=nothing"]):
        as_module = run_python("tfaccel", *arguments, check=False, fresh=True)
        assert outcome(as_module) == outcome(run_command(*arguments)), arguments


def test_command_names_the_nearest_for_an_unknown_one():
    wrong = run_command("trian")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("tfaccel: unknown command 'trian'. Did you mean 'train'?")
    assert wrong.stderr.count("\n") == 1


@pytest.mark.parametrize("name", sorted(main_module.COMMANDS))
def test_every_command_explains_itself(name):
    asked = run_command(name, "--help")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert f"tfaccel {name}" in asked.stdout


def test_metadata():
    about = metadata.metadata("tfaccel")
    assert about["Version"] == tfaccel.__version__
    assert about["License"] == "Apache-2.0"
    assert about["Requires-Python"] == "<3.14,>=3.11"
    extras = "compress detection dev docs gpu grain hub huggingface litert onnx optuna ray report serve storage"
    extras += " text tfds tfmot tpu-aot tune"
    assert sorted(about.get_all("Provides-Extra")) == extras.split()
    assert about.get_payload().startswith("# tfaccel")
    [entry_point] = metadata.entry_points(group="console_scripts", name="tfaccel")
    assert entry_point.load() is main_module.main


def test_data_is_installed():
    assert resources.files("tfaccel").joinpath("py.typed").is_file()
    [licence] = [path for path in metadata.files("tfaccel") if path.name == "LICENSE"]
    assert re.search(r"Apache License\s+Version 2.0", licence.read_text())


@pytest.mark.skipif(INSTALLED is None, reason="beside the sources lie the shell commands")
def test_shell_commands_are_not_installed():
    files = [path for path in Path(tfaccel.scripts.__file__).parent.iterdir() if path.is_file()]
    assert [path.name for path in files if path.suffix != ".py"] == []
