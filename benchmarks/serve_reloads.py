"""What a server's memory does while its model is replaced many times, and clients never pause.

    python -m tfaccel.benchmarks.serve_reloads benchmarks/serve.json docs/pictures/reloads.svg

draws what `tfaccel benchmark serve` wrote.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.http_load import closed_loop
from tfaccel.benchmarks.served_files import add_version, predict_requests
from tfaccel.benchmarks.served_model import ServedModel
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.svg import grid_line, svg
from tfaccel.files import write_text

NUM_RELOADS = 100
MAX_GROWTH = 1.05  # of the resident memory
_NUM_CLIENTS = 4
_POLL_SECONDS = 0.1
_NUM_LAST = 5  # samples at the end whose median counts
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 240, 70, 16, 44, 44
_COLORS = ("first", "second")
_LIGHT = """\
.axis { stroke: #d0d7de } polyline, path { fill: none; stroke-width: 2 }
.first { stroke: #0550ae } .second { stroke: #d1570a }"""
_DARK = ".axis { stroke: #3d444d } .first { stroke: #79c0ff } .second { stroke: #ff9b50 }"


def measure_reloads(name: str, model: Path, options: SuiteOptions) -> tuple[list[Figure], dict[str, Any]]:
    """The memory after each of `NUM_RELOADS` reloads, and how many requests failed meanwhile.

    Args:
        name: of the figures.
        model: the folder of an exported model.
        options: with a scale below 1, there are fewer reloads.

    Returns:
        The figures, and the bytes before and after each reload, for the report.
    """
    num_reloads = max(2, round(NUM_RELOADS * min(1.0, options.scale)))
    versions = model / "reloads"
    versions.mkdir()
    add_version(model, versions, 1)
    resident: list[int] = []
    with ServedModel(versions, f"--poll_seconds={_POLL_SECONDS}", "--max_versions=1") as server:
        requests = predict_requests(model, server)

        def reload() -> None:
            resident.append(server.resident_bytes())
            for number in range(2, num_reloads + 2):
                add_version(model, versions, number)
                server.wait_for([number])
                shutil.rmtree(versions / str(number - 1))
                time.sleep(5 * _POLL_SECONDS)  # the old version is gone, and its last requests are answered
                resident.append(server.resident_bytes())
                if number % 10 == 1:
                    options.progress(f"{name}: {number - 1} of {num_reloads} reloads")

        load = closed_loop(server.port, requests, num_clients=_NUM_CLIENTS, seconds=2.0, at_half=reload)
    shutil.rmtree(versions)
    before, first, *_ = resident  # during the first one, two versions are in memory at once as well
    last = statistics.median(resident[-_NUM_LAST:])
    figures = [
        Figure(
            name=name,
            quantity=f"resident memory after {num_reloads} reloads / before",
            values=(last / before,),
            at_most=MAX_GROWTH,
        ),
        Figure(
            name=name,
            quantity=f"resident memory after {num_reloads} reloads / after the first one",
            values=(last / first,),
        ),
        Figure(name=name, quantity="resident MB before", values=(before / 1e6,)),
        Figure(
            name=name,
            quantity=f"failed requests of {sum(load.statuses.values()):,} meanwhile",
            values=(float(load.num_failed),),
            at_most=0,
        ),
    ]
    return figures, {"resident_bytes": resident}


def picture(curves: Mapping[str, Sequence[int]]) -> str:
    """The SVG of resident memory by reload, relative to that before the first one.

    Args:
        curves: model -> bytes before and after each reload, for two models at most.
    """
    shares = {name: [value / values[0] for value in values] for name, values in curves.items()}
    highest = max(1.2, *(max(values) for values in shares.values()))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    right, below = _WIDTH - _RIGHT, _HEIGHT - 20
    parts = [f'<text class="title" x="{_LEFT}" y="24">Memory of a server, reload by reload</text>']
    for tick in (0.0, 0.5, 1.0, 1.5, 2.0):
        if tick <= highest:
            y = _TOP + height * (1 - tick / highest)
            parts += grid_line(f"{tick:.0%}", left=_LEFT, right=right, y=y)
    for (name, values), color, x in zip(shares.items(), _COLORS, (420, 600), strict=False):
        last = len(values) - 1
        places = [
            f"{_LEFT + width * number / last:.1f},{_TOP + height * (1 - value / highest):.1f}"
            for number, value in enumerate(values)
        ]
        parts.append(f'<polyline class="{color}" points="{" ".join(places)}"/>')
        parts.append(
            f'<path class="{color}" d="M{x} 20h20"/><text class="small" x="{x + 26}" y="24">{escape(name)}</text>'
        )
    num_reloads = max(map(len, shares.values())) - 1
    parts.append(f'<text class="small" x="{_LEFT}" y="{below}">before the first one</text>')
    parts.append(f'<text class="small" x="{right}" y="{below}" text-anchor="end">after {num_reloads}</text>')
    ends = ", ".join(f"{name} {values[-1]:.0%}" for name, values in shares.items())
    label = f"Memory after {num_reloads} reloads, relative to that before: {ends}."
    return svg(parts, width=_WIDTH, height=_HEIGHT, label=label, light=_LIGHT, dark=_DARK)


def main(argv: list[str]) -> int:
    """Draws the report of the first argument into the file of the second one."""
    report, target = argv
    curves = json.loads(Path(report).read_text())["raw"]
    write_text(Path(target), picture({name: found["resident_bytes"] for name, found in curves.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
