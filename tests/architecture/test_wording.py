"""Docstrings where users look; no assert, print, stub, filler name or path of one machine."""

import ast
import re

import pytest
from source_tree import ROOT, Source, definitions, sources

FILLER_NAME = re.compile(r"utils?|helpers?|managers?", re.IGNORECASE)
STUB_WORDS = re.compile(r"\b(NotImplementedError|TODO|FIXME|XXX)\b")
# /home/ada is nobody's: examples may use it.
MACHINE_PATH = re.compile(r"(?<![\w.~}/])(/(home/(?!ada\b)|root/|Users/|work/|tmp/)|[A-Z]:\\\\?Users)")

TEXT_SUFFIXES = {".py", ".md", ".cfg", ".toml", ".txt", ".json", ".yml", ".yaml", ""}
OWN_FOLDER = "tests/architecture/"


def asserts(source: Source) -> list[str]:
    return [f"{source.path}:{n.lineno}: assert" for n in source.nodes if isinstance(n, ast.Assert)]


def prints(source: Source) -> list[str]:
    if source.path.startswith("scripts/"):
        return []
    calls = [node for node in source.nodes if isinstance(node, ast.Call)]
    return [f"{source.path}:{c.lineno}: print" for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]


def missing_docstrings(source: Source) -> list[str]:
    """Modules, and the public functions and classes at their top level; scripts need one for the module only."""
    tree = source.tree
    nodes = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    public = [] if source.path.startswith("scripts/") else [node for node in nodes if not node.name.startswith("_")]
    missing = [f"{source.path}:{node.lineno}: {node.name}" for node in public if not ast.get_docstring(node)]
    return missing if ast.get_docstring(tree) else [f"{source.path}:1: the module", *missing]


def filler_names(source: Source) -> list[str]:
    """Folders, files, functions and classes called something that could hold anything."""
    names = [(0, part) for part in source.path.removesuffix(".py").split("/")]
    names += [(node.lineno, node.name) for node in definitions(source)]
    return [f"{source.path}:{line}: {name}" for line, name in names if any(map(FILLER_NAME.fullmatch, words(name)))]


def words(name: str) -> list[str]:
    """The words of a name: run_manager, RunManager -> run, manager."""
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)


def stub_words(source: Source) -> list[str]:
    return [f"{source.path}: {match.group()}" for match in STUB_WORDS.finditer(source.text)]


def machine_paths(source: Source) -> list[str]:
    lines = enumerate(source.text.splitlines(), start=1)
    return [f"{source.path}:{number}: {line.strip()}" for number, line in lines if MACHINE_PATH.search(line)]


def texts() -> list[Source]:
    """Everything in the repository that is written by hand, except these tests."""
    folders = ["tfaccel", "recipes", "scripts", "benchmarks", "parity", "tests", ".ci", ".github"]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    own = [path for path in ROOT.iterdir() if path.name != ".git"]  # a file in a worktree
    paths = [path for path in [*own, *paths] if path.is_file() and path.suffix in TEXT_SUFFIXES]
    named = {path.relative_to(ROOT).as_posix(): path for path in paths}
    return [Source(name, path.read_text()) for name, path in named.items() if not name.startswith(OWN_FOLDER)]


@pytest.mark.parametrize("find", [asserts, prints, missing_docstrings, filler_names], ids=lambda find: find.__name__)
def test_sources_keep_the_rule(find):
    assert [problem for source in sources() for problem in find(source)] == []


@pytest.mark.parametrize("find", [stub_words, machine_paths], ids=lambda find: find.__name__)
def test_texts_keep_the_rule(find):
    found = texts()
    assert {"README.md", "setup.cfg", "scripts/demo", "tests/conftest.py"} <= {source.path for source in found}
    assert [problem for source in found for problem in find(source)] == []


DOCUMENTED = '"""Module."""\n'


@pytest.mark.parametrize(
    ("find", "path", "bad"),
    [
        (asserts, "tfaccel/a.py", "def f():\n    assert True"),
        (prints, "tfaccel/a.py", "def f():\n    print(1)"),
        (prints, "recipes/a.py", "print(1)"),
        (missing_docstrings, "tfaccel/a.py", "x = 1"),
        (missing_docstrings, "scripts/a.py", "x = 1"),
        (missing_docstrings, "tfaccel/a.py", DOCUMENTED + "def f():\n    return 1"),
        (missing_docstrings, "recipes/a.py", DOCUMENTED + "class C:\n    x = 1"),
        (filler_names, "tfaccel/data_utils.py", ""),
        (filler_names, "tfaccel/helpers/a.py", ""),
        (filler_names, "tfaccel/a.py", "class RunManager:\n    x = 1"),
        (filler_names, "tfaccel/a.py", "def shape_util():\n    return 1"),
        (stub_words, "tfaccel/a.py", "raise NotImplementedError"),
        (stub_words, "README.md", "TODO: write"),
        (stub_words, "scripts/a.py", "x = 1  # FIXME"),
        (machine_paths, "tfaccel/a.py", "path = '/home/bob/data'"),
        (machine_paths, "README.md", "cd /tmp/run"),
        (machine_paths, "recipes/a.py", "path = 'C:\\\\Users\\\\ada'"),
    ],
)
def test_bad_text_is_found(find, path, bad):
    assert len(find(Source(path, bad))) == 1


@pytest.mark.parametrize(
    ("find", "path", "good"),
    [
        (prints, "scripts/a.py", "print(1)"),
        (missing_docstrings, "tfaccel/a.py", DOCUMENTED + "def _f():\n    return 1"),
        (missing_docstrings, "scripts/a.py", DOCUMENTED + "def f():\n    return 1"),
        (filler_names, "tfaccel/a.py", "import keras\nkeras.utils.to_categorical\nclass Managed:\n    x = 1"),
        (stub_words, "README.md", "todo"),
        (
            machine_paths,
            "tfaccel/a.py",
            "path = '/proc/cpuinfo'\nother = f'{root}/home/x'\nurl = 'https://x.org/home/y'",
        ),
    ],
)
def test_good_text_is_allowed(find, path, good):
    assert find(Source(path, good)) == []
