"""Data from disk are never unpickled, archives never extracted, and Keras's safe mode is lowered for own files only."""

import ast
import re

import pytest
from source_tree import Source, sources

# Functions that a user passes to his own child processes: through a pipe, or a file in a private temporary folder that
# the parent has just written and removes. Nothing else that is read from a disk may be a pickle.
MAY_PICKLE = {"tfaccel/planning/reference.py", "tfaccel/planning/own_model.py"}
# They load what this process, or its parent, has just written: a model that the user gave in memory,
# and that may hold his own lambdas. A model from a file has passed `keras_file.py` before.
MAY_LOWER_SAFE_MODE = {
    "tfaccel/compressing/keras_quantize.py": 2,
    "tfaccel/compressing/comparison/runtime_measures.py": 1,
    "tfaccel/compressing/tfmot/flat_model.py": 1,
}
UNPICKLERS = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "_pickle"}
EXTRACTORS = {"tarfile", "unpack_archive", "extractall", "get_file"}
UNSAFE_LOADERS = {"unsafe_load", "full_load", "enable_unsafe_deserialization"}


def names_in(source: Source) -> dict[str, int]:
    """Every name, attribute and imported module of a file, and its line."""
    found: dict[str, int] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0]: node.lineno for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= dict.fromkeys([*(node.module or "").split("."), *(a.name for a in node.names)], node.lineno)
        elif isinstance(node, ast.Attribute):
            found[node.attr] = node.lineno
        elif isinstance(node, ast.Name):
            found[node.id] = node.lineno
    return found


def unpickling(source: Source) -> list[str]:
    if source.path in MAY_PICKLE:
        return []
    return [f"{source.path}:{line}: {name}" for name, line in names_in(source).items() if name in UNPICKLERS]


def extracting(source: Source) -> list[str]:
    return [
        f"{source.path}:{line}: {name}"
        for name, line in names_in(source).items()
        if name in EXTRACTORS | UNSAFE_LOADERS
    ]


def keyword_is(source: Source, keyword: str, value: bool) -> list[int]:
    """The lines of calls with this keyword argument, other than for `savez` and `save`, which write."""
    calls = [node for node in source.nodes if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        for argument in call.keywords
        if argument.arg == keyword
        and not (isinstance(argument.value, ast.Constant) and argument.value.value is not value)
    ]


def pickles_allowed(source: Source) -> list[str]:
    return [f"{source.path}:{line}: allow_pickle" for line in keyword_is(source, "allow_pickle", True)]


def safe_mode_lowered(source: Source) -> list[str]:
    lines = keyword_is(source, "safe_mode", False)
    allowed = MAY_LOWER_SAFE_MODE.get(source.path, 0)
    return [f"{source.path}: safe_mode is not True in lines {lines}"] if len(lines) > allowed else []


@pytest.mark.parametrize("find", [unpickling, extracting, pickles_allowed, safe_mode_lowered], ids=lambda f: f.__name__)
def test_files_of_others_run_nothing(find):
    library = [source for source in sources() if source.path.startswith(("tfaccel/", "scripts/", "recipes/"))]
    assert len(library) > 300
    assert [problem for source in library for problem in find(source)] == []


def make_source(text):
    return Source("tfaccel/made_up.py", text)


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (unpickling, "import pickle"),
        (unpickling, "from joblib import load"),
        (unpickling, "import cloudpickle as c"),
        (extracting, "import tarfile"),
        (extracting, "archive.extractall(folder)"),
        (extracting, "keras.config.enable_unsafe_deserialization()"),
        (pickles_allowed, "np.load(path, allow_pickle=True)"),
        (pickles_allowed, "np.load(path, allow_pickle=trusted)"),
        (safe_mode_lowered, "load_model(path, safe_mode=False)"),
        (safe_mode_lowered, "load_model(path, safe_mode=not trusted)"),
    ],
)
def test_what_would_run_code_is_found(find, text):
    assert find(make_source(text))


def test_every_exception_is_needed():
    by_path = {source.path: source for source in sources()}
    assert all(re.search(r"\bpickle\b", by_path[path].text) for path in MAY_PICKLE)
    assert {
        path: len(keyword_is(by_path[path], "safe_mode", False)) for path in MAY_LOWER_SAFE_MODE
    } == MAY_LOWER_SAFE_MODE
