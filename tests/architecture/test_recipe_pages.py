"""A recipe is a page: short, whole, and of public names alone."""

import ast
import importlib
import statistics

import pytest
from source_tree import Source, sources

MAX_LINES, MAX_MEDIAN_LINES, MAX_NAMES = 200, 170, 8
PUBLIC_PACKAGES = tuple(
    f"tfaccel.{name}" for name in ("data", "errors", "layers", "optimizers", "options", "reporting")
)


def pages():
    return [source for source in sources() if source.path.startswith("recipes/") and "__init__" not in source.path]


def names_imported(source: Source) -> set[str]:
    """What a page imports of tfaccel, at its top or in its functions: tfaccel.data.ImageData, tfaccel."""
    found = set()
    for node in source.nodes:
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.partition(".")[0] == "tfaccel"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tfaccel":
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def is_public(name: str) -> bool:
    package, _, last = name.rpartition(".")
    if name == "tfaccel" or name in PUBLIC_PACKAGES:
        return True
    return package in ("tfaccel", *PUBLIC_PACKAGES) and last in dir(importlib.import_module(package))


def names_used(source: Source) -> set[str]:
    """The names taken from imported packages: tfaccel.reporting.write_json for reporting.write_json."""
    imported = [node for node in source.nodes if isinstance(node, ast.ImportFrom) and node.module == "tfaccel"]
    packages = {name.name: f"tfaccel.{name.name}" for node in imported for name in node.names}
    packages |= {name: name for name in ("tfaccel", *PUBLIC_PACKAGES)}
    used = [(ast.unparse(node.value), node.attr) for node in source.nodes if isinstance(node, ast.Attribute)]
    names = {f"{packages[package]}.{name}" for package, name in used if package in packages}
    return names - set(PUBLIC_PACKAGES)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path)
def test_a_page_is_short_and_imports_public_names(page):
    assert len(page.text.splitlines()) <= MAX_LINES
    imported = names_imported(page)
    assert len(imported) <= MAX_NAMES, sorted(imported)
    assert [name for name in imported | names_used(page) if not is_public(name)] == []


def test_half_of_the_pages_are_shorter_still():
    assert statistics.median(len(page.text.splitlines()) for page in pages()) <= MAX_MEDIAN_LINES


def test_internal_names_are_found():
    page = Source("recipes/a.py", "import tfaccel\nfrom tfaccel import reporting\nreporting.hidden\ntfaccel.train")
    assert names_used(page) == {"tfaccel.reporting.hidden", "tfaccel.train"}
    assert not is_public("tfaccel.reporting.hidden") and is_public("tfaccel.train")
    inner = Source("recipes/a.py", "def f():\n    from tfaccel.data.pipeline import Pipeline\n    import tfaccel.ops")
    assert names_imported(inner) == {"tfaccel.data.pipeline.Pipeline", "tfaccel.ops"}
    assert not any(map(is_public, names_imported(inner)))
