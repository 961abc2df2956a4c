"""What the site needs beside its pages: the public names' definitions, and docstrings in the form that griffe reads.

`mkdocs.yml` names this file twice: as a hook of mkdocs, which documents `::: tfaccel.fit` on an API page by what the
public name stands for, lists the flags of the commands and links to notebooks, and as an extension of griffe, which
reads docstrings without importing anything. TensorFlow is not imported.
"""

import ast
import os
import posixpath
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert

from tfaccel.scripts.main import COMMANDS

ROOT = Path(__file__).resolve().parent
EXAMPLE = re.compile(r"^Example:\n(.*?)(?=^\S[^\n]*:\n[ ]{4}|^Reference|\Z)", re.MULTILINE | re.DOTALL)
SEVERAL_ARGUMENTS = re.compile(r"^([ ]+)((?:\w+,\s+)+\w+):\s+(.+(?:\n\1[ ]+.+)*)", re.MULTILINE)


def public_names(package: str) -> dict[str, str]:
    """Public name -> the module that defines it, with its name there if that is another one, of a package."""
    place = ROOT / package.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_PUBLIC_NAMES":
            names |= ast.literal_eval(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfaccel."):
            names |= {one.name: node.module or "" for one in node.names if node.module != "tfaccel.known_names"}
    return names


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replaces the placeholders of a page.

    Each public name behind `:::` by where it is defined, `::: tfaccel --help` by what that prints, and `{colab:NAME}`
    by a link to the notebook of that name.
    """
    pictures = posixpath.relpath("pictures", posixpath.dirname(page.file.src_uri))
    markdown = re.sub(r"\{colab:(\w+)\}", lambda m: notebook_link(m[1], config.repo_url, pictures), markdown)
    markdown = re.sub(r"^::: tfaccel --help$", lambda _: commands_help(), markdown, flags=re.MULTILINE)
    return re.sub(r"^::: (tfaccel(?:\.\w+)?)\.(\w+)$", _defined, markdown, flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    r"""Draws formulas, which arithmatex leaves as `\(...\)` and `\[...\]`, in MathML, which needs no script."""
    return re.sub(
        r"(?<=arithmatex\">)\\([(\[])(.*?)\\[)\]](?=<)",
        lambda m: convert(unescape(m[2]), display="inline" if m[1] == "(" else "block"),
        html,
        flags=re.DOTALL,
    )


def notebook_link(name: str, repo_url: str | None, pictures: str) -> str:
    """A badge that opens a notebook in Colab if the repository is on GitHub; the notebook's path if not."""
    path = f"recipes/colab/{name}.ipynb"
    repository = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repo_url or "")
    if repository is None:
        return f"`{path}`"
    address = f"https://colab.research.google.com/github/{repository[1]}/blob/main/{path}"
    return f"[![Open in Colab]({pictures}/colab.svg)]({address})"


def commands_help() -> str:
    """What `tfaccel COMMAND --help` prints, for each command."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(_help_of, COMMANDS)
    return "\n".join(texts)


def _help_of(command: str) -> str:
    words = [sys.executable, "-m", "tfaccel", command, "--help"]
    text = subprocess.run(words, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return f"### tfaccel {command}\n\n```text\n{text.strip()}\n```\n"


def _defined(match: re.Match[str]) -> str:
    package, name = match.groups()
    module, _, original = public_names(package).get(name, package).partition(":")
    return (
        f'::: {module}.{original or name}\n    options:\n      heading: "{package}.{name}"\n      toc_label: "{name}"'
    )


class Docstrings(griffe.Extension):
    """Gives griffe the docstrings as it reads them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_griffe_reads(obj.docstring.value)

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Makes a class with the decorator `noun` a dataclass, which it is for type checkers."""
        for decorator in cls.decorators:
            if re.match(r"noun\b", str(decorator.value)):
                cls.decorators.append(griffe.Decorator(_dataclass(str(decorator.value)), lineno=None, endlineno=None))
                return


def _dataclass(noun: str) -> griffe.Expr:
    """The decorator `dataclass` with the arguments that a `noun` has."""
    module = griffe.ExprName("dataclasses")
    function = griffe.ExprAttribute([module, griffe.ExprName("dataclass", parent=module)])
    return griffe.ExprCall(function, [griffe.ExprKeyword("kw_only", str("kw_only=False" not in noun))])


def as_griffe_reads(text: str) -> str:
    """A docstring with `Examples:` and its content indented, and one entry for each argument."""
    return SEVERAL_ARGUMENTS.sub(_as_entries, EXAMPLE.sub(_as_section, text))


def _as_section(match: re.Match[str]) -> str:
    return "Examples:\n" + textwrap.indent(textwrap.dedent(match[1]).strip("\n"), "    ") + "\n\n"


def _as_entries(match: re.Match[str]) -> str:
    indent, names, text = match.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in re.split(r",\s+", names))
