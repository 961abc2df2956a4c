"""The source distribution holds all of the repository, so that it can be tested elsewhere."""

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("TFACCEL_TEST_SOURCES", Path(__file__).resolve().parents[2]))
pytestmark = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="needs a clone, and git"
)


@pytest.fixture(scope="module")
def repository_files():
    """The files of the repository: those that git does not ignore."""
    names = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, text=True)
    return {name for name in names.split("\0") if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def unpacked(repository_files, run_python, tmp_path_factory):
    """The source distribution of a copy of the repository, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    for name in repository_files:
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    run_python("build", "--sdist", "--no-isolation", "--outdir", str(folder), str(folder / "source"), fresh=True)
    [archive] = folder.glob("tfaccel-*.tar.gz")
    (folder / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder / "unpacked"], check=True)
    [root] = (folder / "unpacked").iterdir()
    return root


def test_every_file_of_the_repository_is_there(unpacked, repository_files):
    made = {"PKG-INFO"}
    packed = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    packed = {name for name in packed - made if not name.startswith("tfaccel.egg-info/")}
    assert packed == repository_files, "MANIFEST.in names what the source distribution holds"


def test_scripts_can_still_be_run(unpacked):
    for name in ("scripts/test", "scripts/demo", ".ci/run"):
        assert os.access(unpacked / name, os.X_OK), name


@pytest.mark.slow
def test_its_tests_pass_where_it_is_installed(unpacked, run_python, tmp_path):
    """In a second environment, which takes what tfaccel depends on from this one."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    there = Path(subprocess.check_output([python, "-c", where], text=True).strip())
    # Python does not follow path files that it finds there, so an editable tfaccel of this environment stays out.
    (there / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(unpacked)]
    run_python("pip", "--python", str(python), "install", *options, fresh=True)
    tests = ["-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests/planning"]
    ended = subprocess.run([python, *tests], cwd=unpacked, capture_output=True, text=True, timeout=550, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:]
    place = [python, "-c", "import tfaccel.recipes; print(tfaccel.__file__, *tfaccel.recipes.__path__)"]
    assert subprocess.check_output(place, cwd=tmp_path, text=True).count(f"{unpacked}/") == 2
