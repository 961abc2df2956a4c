"""Files, function bodies and parameter lists stay short enough to be read at once."""

import ast

import pytest
from source_tree import Source, definitions, sources

MAX_FILE_LINES = 500
MAX_BODY_LINES = 60
MAX_PARAMETERS = 7

# fit, evaluate, predict and Workload.of take what Keras takes; train, search and compress whatever a run can be asked
# for, by keyword.
LONG_SIGNATURES = {f"tfaccel/training/{name}.py" for name in ("fit", "evaluate", "train")}
LONG_SIGNATURES |= {"tfaccel/planning/workload.py"}
LONG_SIGNATURES |= {"tfaccel/tuning/search.py", "tfaccel/compressing/compress.py"}
LONG_SIGNATURES |= {"tfaccel/data/epochs.py"}  # what a workload's train_data may take
LONG_SIGNATURES |= {"tfaccel/training/optimizers.py"}  # what Keras's optimizers take


def long_files(source: Source) -> list[str]:
    num_lines = len(source.text.splitlines())
    return [f"{source.path}: {num_lines} lines"] if num_lines > MAX_FILE_LINES else []


def long_bodies(source: Source) -> list[str]:
    """Functions with too many lines below the docstring. A recipe's one long sequence is a virtue."""
    if source.path.startswith("recipes/"):
        return []
    functions = [node for node in definitions(source) if not isinstance(node, ast.ClassDef)]
    lengths = [(node, body_lines(node)) for node in functions]
    return [
        f"{source.path}:{node.lineno}: {node.name} has {length} lines"
        for node, length in lengths
        if length > MAX_BODY_LINES
    ]


def body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def many_parameters(source: Source) -> list[str]:
    if source.path in LONG_SIGNATURES:
        return []
    functions = [node for node in definitions(source) if not isinstance(node, ast.ClassDef)]
    return [
        f"{source.path}:{node.lineno}: {node.name} takes {len(parameters(node))} parameters"
        for node in functions
        if len(parameters(node)) > MAX_PARAMETERS and not makes_flags(source, node)
    ]


def makes_flags(source: Source, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether each parameter of a function is a flag of `tfaccel train`: those of a recipe's workload, by keyword."""
    return source.path.startswith("recipes/") and node.name == "workload" and not node.args.args


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Names of all parameters, `*args` and `**kwargs` too; a method's self or cls is not counted."""
    spec = node.args
    names = [arg.arg for arg in [*spec.posonlyargs, *spec.args]]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    return names + [arg.arg for arg in [*spec.kwonlyargs, spec.vararg, spec.kwarg] if arg is not None]


@pytest.mark.parametrize("find", [long_files, long_bodies, many_parameters], ids=lambda find: find.__name__)
def test_sources_keep_the_rule(find):
    assert [problem for source in sources() for problem in find(source)] == []


def test_long_file_is_found():
    assert long_files(Source("tfaccel/a.py", "x = 1\n" * 501)) == ["tfaccel/a.py: 501 lines"]
    assert long_files(Source("tfaccel/a.py", "x = 1\n" * 500)) == []


def test_long_body_is_found():
    head = 'def f():\n    """First line.\n\n    More.\n    """\n'
    assert long_bodies(Source("tfaccel/a.py", head + "    x = 1\n" * 61)) == ["tfaccel/a.py:1: f has 61 lines"]
    assert long_bodies(Source("tfaccel/a.py", head + "    x = 1\n" * 60)) == []
    assert long_bodies(Source("tfaccel/a.py", "class C:\n    def g(self):\n" + "        x = 1\n" * 61))
    assert long_bodies(Source("recipes/a.py", head + "    x = 1\n" * 61)) == []


def test_many_parameters_are_found():
    seven = "class C:\n    def f(self, a, b, *args, c, d, e, **kwargs): pass"
    eight = "def f(a, b, *args, c, d, e, g, **kwargs): pass"
    assert many_parameters(Source("tfaccel/a.py", seven)) == []
    assert many_parameters(Source("tfaccel/a.py", eight)) == ["tfaccel/a.py:1: f takes 8 parameters"]
    assert many_parameters(Source("tfaccel/training/fit.py", eight)) == []
    assert many_parameters(Source("recipes/a.py", "def workload(*, a, b, c, d, e, f, g, h): pass")) == []
    assert many_parameters(Source("recipes/a.py", "def workload(a, b, c, d, e, f, g, h): pass"))
