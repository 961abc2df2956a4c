"""Every package is named in setup.cfg: one that is not is missing from the wheel, and only from there."""

from source_tree import setup_cfg, sources


def test_every_package_is_named_in_setup_cfg():
    named = setup_cfg()["options"]["packages"].split()
    assert sorted(named) == sorted(source.module for source in sources() if source.path.endswith("__init__.py"))
