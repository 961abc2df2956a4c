"""Every package is named in setup.cfg: one that is not is missing from the wheel, and only from there."""

import configparser

from source_tree import ROOT, sources


def test_every_package_is_named_in_setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    named = config["options"]["packages"].split()
    assert sorted(named) == sorted(source.module for source in sources() if source.path.endswith("__init__.py"))
