"""The wheel holds every source file, and nothing else."""

import os
import shutil
import zipfile
from pathlib import Path

import pytest

# ./scripts/test names the sources and the wheel that it has built from them.
ROOT = Path(os.environ.get("TFACCEL_TEST_SOURCES", Path(__file__).resolve().parents[2]))
FOLDERS = ("tfaccel", "recipes", "scripts", "benchmarks", "parity")
pytestmark = pytest.mark.skipif(not (ROOT / "tfaccel").is_dir(), reason="needs the sources")


@pytest.fixture(scope="module")
def wheel_files(run_python, tmp_path_factory):
    if "TFACCEL_TEST_WHEEL" in os.environ:
        return set(zipfile.ZipFile(os.environ["TFACCEL_TEST_WHEEL"]).namelist())
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    run_python("build", "--wheel", "--no-isolation", "--outdir", str(folder), str(folder / "source"), fresh=True)
    [wheel] = folder.glob("tfaccel-*-py3-none-any.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def installed_name(path):
    relative = path.relative_to(ROOT)
    return relative.as_posix() if relative.parts[0] == "tfaccel" else f"tfaccel/{relative.as_posix()}"


def test_package_files_are_the_sources(wheel_files):
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    data = (
        "py.typed",
        "models/digits_backbone.keras",
        "benchmarks/published_scaling.json",
        "exporting/safe_operations.txt",
        *(f"html_report/page.{kind}" for kind in ("css", "html.jinja", "js")),
    )
    expected = {installed_name(path) for path in paths} | {f"tfaccel/{name}" for name in data}
    packaged = {name for name in wheel_files if ".dist-info/" not in name}
    assert packaged == expected, "a new package must be named under `packages` in setup.cfg"


def test_about_files(wheel_files):
    about = {name.split(".dist-info/")[1] for name in wheel_files if ".dist-info/" in name}
    assert {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"} <= about
