"""What the pictures that benchmarks draw have in common: fonts and colors of their texts on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def svg(parts: Iterable[str], *, width: int, height: int, label: str, light: str, dark: str) -> str:
    """The text of an SVG file.

    Args:
        parts: its elements. Texts have the class "title" or "small", or none.
        width, height: in pixels.
        label: what the picture shows, for those who cannot see it.
        light: CSS of the other classes.
        dark: what of it is different on dark pages.

    Example:
        >>> svg(["<path/>"], width=8, height=4, label="a < b", light="", dark="").splitlines()[0]
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 4" role="img" aria-label="a &lt; b">'
    """
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">
<style>
text {{ font: 14px system-ui, sans-serif; fill: #24292f }}
.title {{ font-weight: 600; font-size: 16px }} .small {{ font-size: 12px; fill: #57606a }}
{light}
@media (prefers-color-scheme: dark) {{
  text {{ fill: #e6edf3 }} .small {{ fill: #9198a1 }}
  {dark}
}}
</style>
{chr(10).join(parts)}
</svg>
"""


def grid_line(label: str, *, left: int, right: int, y: float) -> list[str]:
    """The elements of a horizontal line of a chart, of the class "axis", and of its label on the left.

    Example:
        >>> grid_line("0.5", left=50, right=700, y=20.0)[0]
        '<line class="axis" x1="50" x2="700" y1="20.0" y2="20.0"/>'
    """
    return [
        f'<line class="axis" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text class="small" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
    ]
