"""Rules: private parts of other packages are named in the files `private_*.py` alone, and replaced nowhere else.

A name is private if it begins with one underscore, or if its module is private. Elsewhere `x._name` is allowed where
the file itself gives `_name` to objects or classes; `self._name` where the package does, and no class of another
package that `self` is derived from has such a name. The last is looked up in the installed packages.
"""

import ast
import re
from collections.abc import Iterable, Iterator

from source_tree import Source, aliases, definitions, dotted_name, imports, sources

QUARANTINE = re.compile(r"tfaccel/(\w+/)+private_\w+\.py")
PRIVATE_MODULE = re.compile(
    r"(keras|keras_hub|keras_tuner|tf_keras)\.src(\.|$)|tensorflow\.(python|core|compiler|lite\.python)(\.|$)"
    r"|tensorflow_model_optimization\.python(\.|$)|(keras|tensorflow|tf_keras)(\.\w+)*\.__internal__(\.|$)"
)
NAME = re.compile(r"_[A-Za-z]\w*")
PATH_TO_NAME = re.compile(r"(?:\w+\.)*_[A-Za-z]\w*")
DOCUMENTED = {"os._exit"}  # public in spite of its name
OPERATIONS = {"_Arg", "_Retval"}  # types of operations, as TensorFlow's graphs name them
PUBLIC_STATE = {"absl.flags.FLAGS", "sys"}  # documented to be changed
FOREIGN = {"keras", "keras_hub", "keras_tuner", "tensorflow", "tensorflow_model_optimization", "tf_keras", "datasets"}
OURS = "_tfaccel_"  # begins what tfaccel sets on objects of others
# Methods of texts that take the beginning or the end of a name, and not a name.
TAKE_NAMES = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller", "private_part"}
CHANGERS = {"setattr", "delattr", "__setattr__", "__delattr__"}
ENDS = {"endswith", "startswith", "removesuffix", "removeprefix", "replace", "split", "rsplit", "strip", "join"}

# Prints, for classes given by their dotted names, the private names that they or their bases define or set on `self`.
PRIVATE_NAMES_OF_CLASSES = """
import ast, importlib, inspect, json, sys, textwrap

def found(dotted):
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            value = getattr(value, name)
        return value
    raise SystemExit(f"cannot import {dotted}")

def private_names(kind):
    for one in kind.__mro__[:-1]:
        yield from vars(one)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        except (OSError, TypeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
                yield node.attr

print(json.dumps({dotted: sorted({n for n in private_names(found(dotted)) if n.startswith("_") and n[:2] != "__"})
                  for dotted in sys.argv[1:]}))
"""


def is_quarantine(source: Source) -> bool:
    return QUARANTINE.fullmatch(source.path) is not None


# --- Private modules ----------------------------------------------------------------------------------------------


def private_modules(source: Source) -> list[str]:
    """Private modules that are imported, reached through a public one, or named in a text."""
    if is_quarantine(source):
        return []
    found = {(entry.line, entry.name) for entry in imports(source)}
    names = aliases(source)
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add((node.lineno, node.value))
        elif isinstance(node, ast.Attribute):
            found.add((node.lineno, dotted_name(node, names)))
    return [f"{source.path}:{line}: uses {name}" for line, name in sorted(found) if PRIVATE_MODULE.match(name)]


# --- Private names ------------------------------------------------------------------------------------------------


def defined_names(source: Source) -> set[str]:
    """What a file gives a name to: functions, classes, parameters, attributes of its classes and of `self`."""
    found = set()
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            found.add(node.attr)
    return found


def is_self(node: ast.AST) -> bool:
    match node:
        case ast.Name(id="self" | "cls"):
            return True
        case ast.Attribute(value=ast.Name(id="self"), attr="__class__"):
            return True
        case ast.Call(func=ast.Name(id="super"), args=[], keywords=[]):
            return True
        case ast.Call(func=ast.Name(id="type"), args=[ast.Name(id="self")], keywords=[]):
            return True
    return False


def private_names(source: Source, of_package: set[str], of_others: set[str]) -> list[str]:
    """Private names of others.

    Args:
        source: a file.
        of_package: names that files of the package define.
        of_others: names that are known to be private names of others.
    """
    if is_quarantine(source):
        return []
    names, own = aliases(source), defined_names(source)
    found = [(entry.line, entry.name) for entry in imports(source) if imports_name(entry.name)]
    for node, name in named(source.tree):
        if isinstance(node, ast.Attribute):
            known = of_package if is_self(node.value) else own - of_others
            allowed = dotted_name(node, names) in DOCUMENTED
        else:
            known, allowed = (of_package - of_others) | OPERATIONS, name.startswith(OURS)
        if name not in known and not allowed:
            found.append((node.lineno, name))
    return [f"{source.path}:{line}: names {name}" for line, name in sorted(found)]


def imports_name(dotted: str) -> bool:
    return not dotted.startswith("tfaccel.") and any(NAME.fullmatch(part) for part in dotted.split("."))


def named(tree: ast.AST) -> Iterator[tuple[ast.Attribute | ast.keyword | ast.Constant | ast.Call, str]]:
    """The private names in a file: attributes, keywords, and texts that are nothing but a name, or begin one."""
    ends = {id(inner) for node in ast.walk(tree) for end in ends_of_names(node) for inner in ast.walk(end)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and NAME.fullmatch(node.attr):
            yield node, node.attr
        elif isinstance(node, ast.keyword) and NAME.fullmatch(node.arg or ""):
            yield node, str(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ends:
            if PATH_TO_NAME.fullmatch(node.value):
                yield node, node.value.split(".")[-1]
        elif isinstance(node, ast.Call) and last_name(node.func) in TAKE_NAMES:
            others = node.args[1:] if node.args and not is_self(node.args[0]) else []
            yield from ((node, ast.unparse(one)) for one in others if makes_name(one))


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`; empty for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def ends_of_names(node: ast.AST) -> list[ast.expr]:
    """Texts that are put behind others, or compared with their ends: `f"{name}_bytes"`, `name.endswith("_bytes")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ENDS:
        return node.args
    if isinstance(node, ast.JoinedStr):
        return node.values
    return [node.right] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else []


def makes_name(node: ast.AST) -> bool:
    """Whether a text that is put together begins with an underscore."""
    if isinstance(node, ast.BinOp):
        return makes_name(node.left)
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    text = first.value if isinstance(first, ast.Constant) else ""
    return text == "_" or (first is not node and NAME.fullmatch(str(text)) is not None)


def names_of_package() -> set[str]:
    """What the files of the package define, those that may name private parts aside."""
    return {name for source in sources() if not is_quarantine(source) for name in defined_names(source)}


def names_of_others() -> set[str]:
    """The private names in the files that may name them, which do not define these names."""
    found = set()
    for source in filter(is_quarantine, sources()):
        found |= {name for _, name in named(source.tree)} - defined_names(source)
    return found


# --- Classes derived from those of other packages -----------------------------------------------------------------


def classes(all_sources: Iterable[Source]) -> dict[str, tuple[Source, ast.ClassDef]]:
    """Dotted name -> class, also for classes inside functions, which are told by their file alone."""
    return {
        f"{source.module}.{node.name}": (source, node)
        for source in all_sources
        for node in definitions(source)
        if isinstance(node, ast.ClassDef)
    }


def foreign_bases(dotted: str, known: dict[str, tuple[Source, ast.ClassDef]]) -> set[str]:
    """The classes of other packages that a class is derived from, by its own bases or by theirs."""
    source, node = known[dotted]
    names = {**aliases(source), **{name.rpartition(".")[2]: name for name in known if known[name][0] is source}}
    found = set()
    for base in node.bases:
        name = dotted_name(base.value if isinstance(base, ast.Subscript) else base, names)
        if name in known and name != dotted:
            found |= foreign_bases(name, known)
        elif "." in name and not name.startswith(("tfaccel.", "typing.")):
            found.add(name)
    return found


def names_in_class(node: ast.ClassDef) -> set[str]:
    """The names that a class defines, or uses of `self`."""
    used = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and is_self(one.value)}
    methods = {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return used | methods | {one.id for part in node.body for one in ast.walk(part) if is_class_variable(part, one)}


def is_class_variable(part: ast.stmt, node: ast.AST) -> bool:
    assigned = isinstance(part, ast.Assign | ast.AnnAssign)
    return assigned and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


# --- Parts of other packages that are replaced --------------------------------------------------------------------


def replaced_parts(source: Source) -> list[str]:
    """Assignments to attributes of modules and classes of others, and of an object's class."""
    if is_quarantine(source):
        return []
    names = aliases(source)
    imported = set(names)
    for node in source.nodes:  # kind = keras.metrics.Mean
        if isinstance(node, ast.Assign) and (value := dotted_name(node.value, names)).split(".")[0] in FOREIGN:
            names |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
            imported |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def is_foreign(owner: ast.AST) -> bool:
        if isinstance(owner, ast.Call):
            return ast.unparse(owner.func) in ("type", "vars") and bool(owner.args) and is_foreign_kind(owner)
        if isinstance(owner, ast.Attribute) and owner.attr in ("__dict__", "__class__"):
            return owner.attr == "__class__" or is_foreign(owner.value)
        root = ast.unparse(owner).split(".")[0]
        name = dotted_name(owner, names)
        return root in imported and bool(name) and not name.startswith("tfaccel") and name not in PUBLIC_STATE

    def is_foreign_kind(call: ast.Call) -> bool:
        return not is_self(call) if ast.unparse(call.func) == "type" else is_foreign(call.args[0])

    found = {(node.lineno, ast.unparse(owner)) for node, owner in changed(source.tree) if is_foreign(owner)}
    return [f"{source.path}:{line}: changes {owner}" for line, owner in sorted(found)]


def changed(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of a place and the object of which an attribute is set or deleted there; of `x.__class__ = y` the class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node, node if node.attr == "__class__" else node.value
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            owner = node.value
            is_dict = isinstance(owner, ast.Attribute) and owner.attr == "__dict__"
            if is_dict or (isinstance(owner, ast.Call) and ast.unparse(owner.func) == "vars"):
                yield node, owner
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in CHANGERS and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value == "__class__":
                yield node, ast.Attribute(node.args[0], "__class__", ast.Store())
            else:
                yield node, node.args[0]
