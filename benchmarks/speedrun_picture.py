"""The picture of the speedrun: a bar for each row, as long as its training took, for light and dark pages.

    python -m tfaccel.benchmarks.speedrun_picture benchmarks/speedrun.json docs/pictures/speedrun.svg

draws what `tfaccel benchmark speedrun` wrote.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.speedrun_rows import ROWS
from tfaccel.benchmarks.svg import svg
from tfaccel.files import write_text

_WIDTH, _ROW_HEIGHT, _TOP, _BOTTOM = 760, 26, 68, 18
_LABELS = 300  # pixels left of the bars
_VALUES = 130  # pixels right of them
_LIGHT = ".keras { fill: #d1570a } .tfaccel { fill: #0550ae } .torch { fill: #8c959f }"
_DARK = ".keras { fill: #ff9b50 } .tfaccel { fill: #79c0ff } .torch { fill: #6e7681 }"
_TITLE = "Fashion-MNIST on two CPU cores: seconds to an accuracy, change by change"
_KEY = {"keras": "Model.fit", "tfaccel": "tfaccel.fit", "torch": "PyTorch"}


def picture(raw: Mapping[str, Mapping[str, Any]], *, title: str = _TITLE) -> str:
    """The SVG of what the suite measured.

    Args:
        raw: row -> accuracy aimed at -> trainings, each with "seconds" and "accuracy". A row that aimed at several is
            drawn for the highest one.
        title: the line above.
    """
    found = []
    for name in (name for name in ROWS if name in raw):
        runs = raw[name][max(raw[name], key=int)]
        found.append((name, *(statistics.mean(run[key] for run in runs) for key in ("seconds", "accuracy"))))
    longest = max(seconds for _, seconds, _ in found)
    height = _TOP + _ROW_HEIGHT * len(found) + _BOTTOM
    parts = [f'<text class="title" x="16" y="24">{escape(title)}</text>']
    for number, (program, text) in enumerate(_KEY.items()):
        x = 16 + 130 * number
        parts.append(f'<rect class="{program}" x="{x}" y="38" width="12" height="12" rx="2"/>')
        parts.append(f'<text class="small" x="{x + 18}" y="49">{text}</text>')
    for number, (name, seconds, accuracy) in enumerate(found):
        row, y = ROWS[name], _TOP + _ROW_HEIGHT * number
        length = (_WIDTH - _LABELS - _VALUES) * seconds / longest
        parts.append(f'<text x="{_LABELS - 10}" y="{y + 15}" text-anchor="end">{escape(row.change)}</text>')
        parts.append(f'<rect class="{row.program}" x="{_LABELS}" y="{y + 2}" width="{length:.1f}" height="17" rx="2"/>')
        value = f"{seconds:.0f} s · {100 * accuracy:.1f} %"
        parts.append(f'<text class="small" x="{_LABELS + length + 8:.1f}" y="{y + 15}">{value}</text>')
    label = f"{title}: from {found[0][1]:.0f} s to {min(seconds for _, seconds, _ in found):.0f} s."
    return svg(parts, width=_WIDTH, height=height, label=label, light=_LIGHT, dark=_DARK)


def main(argv: list[str]) -> int:
    """Draws the report of the first argument into the file of the second one."""
    report, target = argv
    write_text(Path(target), picture(json.loads(Path(report).read_text())["raw"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
