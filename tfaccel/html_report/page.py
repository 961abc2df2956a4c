"""A report's sections as one HTML page that needs nothing else: style, scripts and pictures are part of it."""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.resources import files
from typing import Any

from tfaccel import __version__
from tfaccel.html_report.blocks import Block, Chart, Section


def page(sections: Sequence[Section], *, title: str, subtitle: str) -> str:
    """The page as HTML.

    Every text is escaped. Only the page's own scripts may run, by their digests, and nothing may be loaded (Content
    Security Policy).

    Args:
        sections: what it shows; sections without blocks are left out.
        title: its heading.
        subtitle: a line below it.

    Example:
        >>> from tfaccel.html_report.blocks import Message
        >>> section = Section(anchor="a", title="A & B", blocks=[Message(lines=("1 < 2",))])
        >>> html = page([section], title="T", subtitle="")
        >>> "<h2 id=\\"a-title\\">A &amp; B</h2>" in html, "<p>1 &lt; 2</p>" in html
        (True, True)
    """
    import jinja2

    shown = [section for section in sections if section.blocks]
    figures = [dict(block.figure) for section in shown for block in section.blocks if isinstance(block, Chart)]
    scripts = [_plotly_script(), _own_file("page.js")] if figures else []
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    environment.filters["groupby_runs"] = _runs_of_a_kind
    return environment.from_string(_own_file("page.html.jinja")).render(
        sections=shown,
        title=title,
        subtitle=subtitle,
        figures=figures,
        scripts=scripts,
        script_sources=" ".join(f"'sha256-{_digest(script)}'" for script in scripts) or "'none'",
        style=_own_file("page.css"),
        version=__version__,
        date=datetime.now().strftime("%Y-%m-%d %H:%M"),
    )


def _runs_of_a_kind(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Any]]]:
    """Blocks of the same kind in a row, which charts and pictures share a grid for."""
    for kind, group in itertools.groupby(blocks, key=lambda block: block.kind):
        yield kind, list(group)


def _own_file(name: str) -> str:
    return files("tfaccel.html_report").joinpath(name).read_text(encoding="utf-8")


def _plotly_script() -> str:
    """Plotly's library for browsers."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script")  # in a string, which would end the element of the page


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
