"""README and the pages under docs/, as the tests see them: fenced blocks of code, in order, with their info strings.

* A block of `python` runs, after those above it on its page.
* A block of `sh` runs too, with bash; a test that runs always checks its commands and flags.
* `title="Needs ..."` says what a block needs that is not there in tests; of such a block only the form is checked.
* `title="In a new process"` is Python for a process in which TensorFlow has not started; it has the imports, functions
  and classes of the blocks above it.
* `title="NAME.py"` is a file that the reader saves: it is written before the blocks below it run.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its page, the line where its code begins, its language, its title, its code."""

    page: str
    line: int
    language: str
    title: str
    code: str

    @property
    def runs(self) -> bool:
        return not self.title.startswith("Needs ")

    @property
    def is_in_new_process(self) -> bool:
        return self.title == "In a new process"

    @property
    def file(self) -> str | None:
        """The name under which the reader saves the block."""
        return self.title if re.fullmatch(r"[\w.]+\.\w+", self.title) else None


@cache
def pages() -> dict[str, str]:
    """Path from the repository root -> text."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, in order."""
    found = []
    for match in FENCE.finditer(pages()[page]):
        indent, language, info, code = match.groups()
        title = re.search(r'title="([^"]*)"', info)
        line = pages()[page].count("\n", 0, match.start(4)) + 1
        code = re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        if language in languages:
            found.append(Block(page, line, language, title[1] if title else "", code))
    return found


def calls(block: Block, program: str) -> list[str]:
    """The calls of a program in a block of shell commands, each without what comes before or after it on its line."""
    text = block.code.replace("\\\n", " ")
    return re.findall(rf"(?:^|[\s;&|'(])({re.escape(program)} [^\n#&|;>]*)", re.sub(r"^\s*#.*$", "", text, flags=re.M))
