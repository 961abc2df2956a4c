"""The sources as the architecture tests see them: files, modules, imports, dotted names."""

import ast
import configparser
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tfaccel", "recipes", "scripts", "benchmarks", "parity")


def setup_cfg():
    """What setup.cfg says, by section."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the repository root, and its text."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return parse(self.text, self.path)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree."""
        return get_nodes(self.text, self.path)

    @property
    def module(self) -> str:
        """The installed name: recipes/digits.py is tfaccel.recipes.digits."""
        parts = Path(self.path).with_suffix("").parts
        parts = parts if parts[0] == "tfaccel" else ("tfaccel", *parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def in_library(self) -> bool:
        return self.path.startswith("tfaccel/")


@cache
def parse(text: str, path: str) -> ast.Module:
    return ast.parse(text, path)


@cache
def get_nodes(text: str, path: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(text, path)))


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the package, the recipes and the scripts."""
    paths = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


@dataclass(frozen=True)
class Import:
    """One imported name; `name` is absolute and holds what follows `import` in a from-import."""

    name: str
    line: int


def imports(source: Source) -> Iterator[Import]:
    """All imports of a file, inside functions too, but not those that only type checkers see.

    `importlib.import_module("a.b")` and `__import__("a.b")` with a literal count as imports.
    """
    yield from imports_below(source.tree, source)


def imports_below(node: ast.AST, source: Source) -> Iterator[Import]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.orelse:
            yield from imports_below(child, source)
        return
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = from_base(node, source)
        yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
    elif isinstance(node, ast.Call) and (name := imported_by_call(node)):
        yield Import(name, node.lineno)
    for child in ast.iter_child_nodes(node):
        yield from imports_below(child, source)


def imported_by_call(node: ast.Call) -> str:
    """The module that `import_module("a.b")` or `__import__("a.b")` loads; "" for other calls."""
    loads = ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
    named = bool(node.args) and isinstance(node.args[0], ast.Constant)
    return str(node.args[0].value) if loads and named else ""  # type: ignore[attr-defined]


def from_base(node: ast.ImportFrom, source: Source) -> str:
    """The absolute module of a from-import, relative ones resolved."""
    if not node.level:
        return node.module or ""
    is_package = source.path.endswith("__init__.py")
    parts = source.module.split(".")
    parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def aliases(source: Source) -> dict[str, str]:
    """Local name -> absolute dotted name, for everything a file imports under a name: {"tf": "tensorflow"}."""
    found = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{from_base(node, source)}.{alias.name}"
    return found


def dotted_name(node: ast.AST, names: dict[str, str]) -> str:
    """`tf.config.set_soft_device_placement` as an absolute name, "" where the expression is no dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    full = ".".join([names.get(node.id, node.id), *reversed(parts)])
    return full.removeprefix("tensorflow.") if full.startswith("tensorflow.keras.") else full


def definitions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """All functions and classes of a file, nested ones too."""
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node
