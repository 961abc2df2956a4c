"""The extras stand alone: nothing imports them but commands, benchmarks and tests; the rest finds them by name."""

import ast

import pytest
from source_tree import ROOT, Source, imports, setup_cfg, sources

import tfaccel

EXTRAS = "tfaccel.extras"
MAY_IMPORT_THEM = ("scripts/", "benchmarks/", f"{EXTRAS.replace('.', '/')}/")


def is_extra(name):
    return name == EXTRAS or name.startswith(f"{EXTRAS}.")


def imports_of_extras(source):
    """Imports of an extra by what must do without it; by an extra, those of another one."""
    if source.path.startswith(MAY_IMPORT_THEM) and not source.in_library:
        return []
    own = ".".join(source.module.split(".")[:3]) if is_extra(source.module) else None
    return [
        f"{source.path}:{found.line}: imports {found.name}"
        for found in imports(source)
        if is_extra(found.name) and (own is None or not f"{found.name}.".startswith(f"{own}."))
    ]


def entry_points():
    """Name -> module and object, as setup.cfg lists them."""
    lines = setup_cfg()["options.entry_points"][EXTRAS].strip().splitlines()
    return {name.strip(): place.strip() for name, place in (line.split("=") for line in lines)}


def names_found(source):
    """The names that a file gives to `load_extra`."""
    calls = [node for node in source.nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_extra"]
    return {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}


def public_names():
    """The public names that extras define."""
    modules = (tfaccel, tfaccel.estimates, tfaccel.serving)
    return [
        f"{one.__name__}.{name}" for one in modules for name, module in one._PUBLIC_NAMES.items() if is_extra(module)
    ]


def test_nothing_imports_the_extras():
    assert [problem for source in sources() for problem in imports_of_extras(source)] == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tfaccel/training/fit.py", "from tfaccel.extras.data_service import data_service"),
        ("tfaccel/training/fit.py", "def f():\n    import tfaccel.extras.serving.server"),
        ("tfaccel/tuning/search.py", "from tfaccel import extras"),
        ("recipes/digits.py", "from tfaccel.extras.tpu.preflight import prepare_runtime"),
        ("parity/case.py", "from tfaccel.extras import cluster"),
        ("tfaccel/extras/serving/server.py", "from tfaccel.extras.cluster import ray_workers"),
    ],
)
def test_an_import_of_an_extra_is_found(path, text):
    assert imports_of_extras(Source(path, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("scripts/serve.py", "from tfaccel.extras.serving.server import serve"),
        ("benchmarks/rows.py", "from tfaccel.extras.cluster import ray_workers"),
        ("tfaccel/extras/serving/server.py", "from tfaccel.extras.serving import options"),
        ("tfaccel/training/fit.py", "from tfaccel.load_extra import load_extra"),
    ],
)
def test_what_may_be_imported_is(path, text):
    assert imports_of_extras(Source(path, text)) == []


def test_entry_points_are_the_other_way_in():
    points = entry_points()
    assert all(is_extra(place.partition(":")[0]) for place in points.values())
    assert {name for source in sources() for name in names_found(source)} == set(points)
    source = next(source for source in sources() if source.module == "tfaccel.load_extra")
    assert EXTRAS in source.text


def test_public_names_of_extras_load_on_first_use(run_python):
    assert {"tfaccel.serve", "tfaccel.serving.ServeOptions", "tfaccel.estimates.estimate_scaling"} <= set(
        public_names()
    )
    code = """
import sys
import tfaccel, tfaccel.estimates, tfaccel.serving
assert not [name for name in sys.modules if name.startswith("tfaccel.extras")]
tfaccel.serving.ServeOptions
assert "tfaccel.extras.serving.options" in sys.modules
"""
    run_python(code, fresh=True)


def test_the_page_names_each_folder_and_public_name():
    page = (ROOT / "docs" / "extras.md").read_text(encoding="utf-8")
    folders = [path.parent.name for path in (ROOT / "tfaccel" / "extras").glob("*/__init__.py")]
    assert len(folders) >= 6
    assert [name for name in folders if f"| `{name}` |" not in page] == []
    assert [name for name in public_names() if f"`{name}`" not in page] == []
