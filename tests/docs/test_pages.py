"""README and the pages under docs/ as texts: links, lengths, public names, and the library's own error messages."""

import ast
import importlib.util
import re

import pytest
from pages import ROOT, blocks, pages

from tfaccel.scripts.main import COMMANDS

MAX_README_LINES = 150
MAX_CODE_WIDTH = 80  # characters, at 1280 pixels
MESSAGES = "docs/troubleshooting.md"


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page):
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", pages()[page]):
        assert (folder / target).exists(), target


@pytest.mark.parametrize("page", pages())
def test_lines_can_be_read(page):
    text = re.sub(r"^```.*?^```$", "", pages()[page], flags=re.MULTILINE | re.DOTALL)
    assert [line for line in text.splitlines() if len(line) > 130 and not line.startswith("|")] == []


@pytest.mark.parametrize("page", [page for page in pages() if page.startswith("docs/")])
def test_code_is_not_cut_off_beside_both_menus(page):
    lines = [line for block in blocks(page, "python", "py") for line in block.code.splitlines()]
    assert [line for line in lines if len(line) > MAX_CODE_WIDTH] == []


def test_code_that_is_wider_than_the_screen_is_wrapped():
    """By a style for each line, which the highlighter has to put into a span of its own."""
    assert "pre-wrap" in (ROOT / "docs/code.css").read_text()
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "extra_css: [code.css]" in settings and "line_spans: __span" in settings


def test_readme_is_short():
    assert len(pages()["README.md"].splitlines()) <= MAX_README_LINES


def test_readme_works_as_the_page_of_a_package():
    targets = re.findall(r"(?<!!)\[[^\]]*\]\(([^)]+)\)", pages()["README.md"])
    assert [target for target in targets if not target.startswith(("#", "https://"))] == []
    paths = re.findall(r"`((?:docs/)?[\w./]+\.md|docs/[\w/]+/|\./scripts/\w+)`", pages()["README.md"])
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_command_has_a_row():
    named = re.findall(r"^\| `tfaccel ([\w-]+)[^`]*` \|", pages()["docs/reference/commands.md"], re.MULTILINE)
    assert set(named) == set(COMMANDS)


@pytest.fixture(scope="module")
def site_hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "mkdocs_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("package", ["tfaccel", "tfaccel.data", "tfaccel.layers", "tfaccel.ops", "tfaccel.reporting"])
def test_the_reference_has_every_public_name(package, site_hooks):
    listed = [name for page in pages() for name in re.findall(r"^::: (tfaccel[\w.]*)$", pages()[page], re.MULTILINE)]
    public = [f"{package}.{name}" for name in site_hooks.public_names(package)]
    assert sorted(public) == sorted(name for name in listed if name.rpartition(".")[0] == package)


def text_of(node):
    """The text that an expression makes, with "…" for what is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%(\.\d)?[sdrgf]|\{\w*(![rs])?\}", "…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return "…"


def texts_of_library():
    """Every text in the library that a message may be made of, each on a line."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tfaccel").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.expr)]
    return "\n".join(text.replace("\n", " ") for text in map(text_of, nodes) if text.strip("…"))


@pytest.mark.slow
def test_troubleshooting_has_the_messages_of_the_library():
    library = texts_of_library().splitlines()
    shown = [block.code.strip() for block in blocks(MESSAGES, "text")]
    assert len(shown) > 40
    for message in (line for text in shown for line in text.splitlines()):
        parts = re.split("…+", message)
        longest, pattern = max(parts, key=len), ".*?".join(map(re.escape, parts))
        found = any(longest in text and re.search(pattern, text) for text in library)
        assert found, f"no message of the library reads: {message}"


def test_the_site_has_every_page():
    """What mkdocs would say only when the site is built."""
    named = re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(f"docs/{name}" for name in named) == sorted(set(pages()) - {"README.md"})


def test_notebooks_open_in_colab_once_there_is_a_repository(site_hooks):
    assert site_hooks.notebook_link("digits", None, "pictures") == "`recipes/colab/digits.ipynb`"
    assert site_hooks.notebook_link("digits", "https://example.org/a/b", "pictures") == "`recipes/colab/digits.ipynb`"
    address = "https://colab.research.google.com/github/a/b/blob/main/recipes/colab/digits.ipynb"
    for repo_url in ("https://github.com/a/b", "https://github.com/a/b.git"):
        assert site_hooks.notebook_link("digits", repo_url, "../pictures").endswith(
            f"(../pictures/colab.svg)]({address})"
        )


def test_the_notebooks_install_from_the_repository_that_the_site_names():
    named = re.search(r"^repo_url: (\S+)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    source = f"git+{named[1]}" if named else ""
    for notebook in (ROOT / "recipes" / "colab").glob("*.ipynb"):
        assert f'os.environ.get(\\"TFACCEL_SOURCE\\", \\"{source}\\")' in notebook.read_text(encoding="utf-8")


def test_notebooks_named_on_pages_are_there():
    named = {name for page in pages().values() for name in re.findall(r"\{colab:(\w+)\}", page)}
    assert named == {path.stem for path in (ROOT / "recipes" / "colab").glob("*.ipynb")}


def test_formulas_are_drawn(site_hooks):
    html = site_hooks.on_page_content(r'<span class="arithmatex">\(a &lt; \frac{1}{n}\)</span>, <code>\(a\)</code>')
    assert html.startswith('<span class="arithmatex"><math ') and "<mfrac><mrow><mn>1</mn>" in html
    assert html.endswith(r"</math></span>, <code>\(a\)</code>")
    assert "pymdownx.arithmatex: {generic: true}" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_docstrings_are_given_as_griffe_reads_them(site_hooks):
    given = "Sums.\n\nArgs:\n    x, y: numbers,\n        of any size.\n\nExample:\n\n>>> f(1, 2)\n3\n\nReference: none."
    wanted = (
        "Sums.\n\nArgs:\n    x: numbers,\n        of any size.\n    y: numbers,\n        of any size.\n\n"
        "Examples:\n    >>> f(1, 2)\n    3\n\nReference: none."
    )
    assert site_hooks.as_griffe_reads(given) == wanted
    assert site_hooks.public_names("tfaccel.ops") == {
        "all_gather_rows": "tfaccel.training.steps.gather_rows",
        "mean_over_replicas": "tfaccel.training.steps.all_reduce",
        "sum_over_replicas": "tfaccel.training.steps.all_reduce",
    }
