"""requirements-tpu.txt installs what setup.cfg asks for, with tensorflow-tpu in place of tensorflow."""

import configparser
import re
from pathlib import Path

from tfaccel.hardware import doctor_installation
from tfaccel.tested_versions import TESTED

ROOT = Path(__file__).resolve().parents[2]


def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def entries(text):
    """Requirements of a text, one a line, without comments: {"keras": ">=3.15"}."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    matches = [re.fullmatch(r"([\w-]+(?:\[[\w,-]+\])?)(.*)", line) for line in lines if line]
    return {match[1]: match[2].strip() for match in matches}


def test_tpu_machines_get_the_same_but_tensorflow():
    required = entries(setup_cfg()["options"]["install_requires"])
    on_tpu = entries((ROOT / "requirements-tpu.txt").read_text())
    assert required.pop("tensorflow") == ">=2.20,<2.22"
    assert on_tpu.pop("tensorflow-tpu") == ">=2.20,<2.21"
    assert on_tpu.pop("libtpu").startswith("<0.0.")
    assert on_tpu == required


def test_gpu_machines_get_the_same_tensorflow():
    extras = setup_cfg()["options.extras_require"]
    required = entries(setup_cfg()["options"]["install_requires"])
    assert entries(extras["gpu"])["tensorflow[and-cuda]"] == required["tensorflow"]


def test_versions_are_stated_alike():
    required = entries(setup_cfg()["options"]["install_requires"])
    extras = setup_cfg()["options.extras_require"]
    assert required["tensorflow"] == doctor_installation.TENSORFLOW_REQUIREMENT.removeprefix("tensorflow")
    assert required["keras"] == doctor_installation.KERAS_REQUIREMENT.removeprefix("keras")
    assert required["keras"] == between(TESTED["keras"])
    assert required["tensorflow"] == between(TESTED["tensorflow"])
    versions = {"keras": doctor_installation.KERAS_VERSIONS, "tensorflow": doctor_installation.TENSORFLOW_VERSIONS}
    for package, pair in versions.items():
        assert [".".join(map(str, version)) for version in pair] == [TESTED[package][0], TESTED[package][-1]]
    for package in ("tensorflow-model-optimization", "tf-keras"):
        assert entries(extras["tfmot"])[package] == between(TESTED[package])
    for extra in ("tune", "dev"):
        assert entries(extras[extra])["keras-tuner"].endswith(between(TESTED["keras-tuner"]).split(",")[1])


def test_only_one_extra_for_users_brings_an_old_absl():
    extras = setup_cfg()["options.extras_require"]
    named = [name for name in extras if "tensorflow-model-optimization" in extras[name] and name != "dev"]
    assert named == ["tfmot"]


def between(tested):
    """From the first tested minor version up to the one after the last."""
    major, minor = tested[-1].split(".")
    return f">={tested[0]},<{major}.{int(minor) + 1}"


def test_every_warning_filter_is_explained():
    lines = (ROOT / "setup.cfg").read_text().split("filterwarnings =\n")[1].split("markers =")[0].splitlines()
    filters = [number for number, line in enumerate(lines) if line.strip().startswith("ignore")]
    unexplained = [lines[i] for i in filters if not lines[i - 1].strip().startswith(("#", "ignore"))]
    assert (len(filters) > 0, unexplained) == (True, [])
    broad = [lines[i] for i in filters if len(lines[i].split(":")) < 4 or not lines[i].split(":")[3].strip()]
    assert broad == [], "name the module that warns"
