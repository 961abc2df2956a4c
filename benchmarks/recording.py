"""The recording of a run that is killed and resumed: what a terminal shows, as an SVG that plays by itself.

    python -m tfaccel.benchmarks.recording --picture=docs/pictures/resume.svg --out=benchmarks/recording.json

Trains the recipe image_classification three times, which takes two minutes: to its end; killed with `kill -9` in the
middle; and resumed. Then it compares the SHA-256 of both models' weights. Only the lines named in `SHOWN` are kept, as
they were written; pauses are shortened.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from absl import flags

from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.files import write_json, write_text
from tfaccel.processes.child import NO_INPUT, Child

SHOWN = re.compile(r"epoch \d|The run in|Trained| accuracy  |[0-9a-f]{64}")  # how the lines begin that are kept
_OPTIONS = "--recipe=image_classification --epochs=6"
_TRAIN = f"tfaccel train {_OPTIONS} --run_dir=runs/%s"
_DIGEST = "unzip -p runs/%s/model.keras model.weights.h5 | sha256sum"
_KILLED_AFTER = "epoch 3/6"
_LABEL = (
    "A run is killed with kill -9 after three epochs and resumed; its weights are those of a run that was not killed."
)

_MAX_PAUSE = 0.7  # seconds
_COLUMNS, _LINE_HEIGHT, _MARGIN = 96, 20, 16  # characters, and pixels
_WIDTH = 2 * _MARGIN + round(7.85 * _COLUMNS)
_STYLE = """
.screen { fill: #0d1117; stroke: #3d444d }
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #c9d1d9; white-space: pre }
.command { fill: #7ee787; font-weight: 600 } .comment { fill: #8b949e }
@keyframes written { from { visibility: hidden } to { visibility: visible } }
text { animation: written 1ms linear both }
@media (prefers-reduced-motion: reduce) { text { animation: none } }
"""


def record(folder: Path) -> list[dict[str, Any]]:
    """Runs the commands in a folder: each line that a terminal shows, with its kind and its second."""
    lines: list[dict[str, Any]] = []
    start = time.monotonic()

    def show(kind: str, text: str) -> None:
        lines.append({"kind": kind, "text": text.rstrip(), "second": round(time.monotonic() - start, 2)})
        sys.stderr.write(f"{text.rstrip()}\n")

    def run(command: str, *, killed_after: str | None = None) -> None:
        show("command", command)
        for line in _output(command, folder, killed_after):
            if SHOWN.match(line):
                show("output", line)
        if killed_after:
            show("comment", "Killed    # kill -9, from another terminal")

    show("comment", "# The same run twice. The first one is not disturbed.")
    run(_TRAIN % "whole")
    show("comment", "# The second one is killed, and resumed.")
    run(_TRAIN % "killed", killed_after=_KILLED_AFTER)
    run(f"{_TRAIN % 'killed'} --resume=auto")
    show("comment", "# Bit-equal weights:")
    for name in ("whole", "killed"):
        run(_DIGEST % name)
    return lines


def _output(command: str, folder: Path, killed_after: str | None) -> Iterator[str]:
    """The lines that a command writes; after one that begins with a text, all its processes are killed."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
    line = ["sh", "-c", f"cd {shlex.quote(str(folder))} && {command} 2>&1"]
    with Child(line, environment=environment, pipes=("stdout",), stdin=NO_INPUT) as child:
        for text in child.process.stdout or ():
            yield text
            if killed_after and text.startswith(killed_after):
                os.killpg(child.process.pid, signal.SIGKILL)
        status = child.process.wait()
    if status != (-signal.SIGKILL if killed_after else 0):
        raise TfaccelError(f"{command}: exit status {status}")


def picture(lines: Sequence[dict[str, Any]]) -> str:
    """The SVG that plays the lines."""
    height = 2 * _MARGIN + _LINE_HEIGHT * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{_LABEL}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="screen" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
    ]
    delay, before = 0.0, lines[0]["second"]
    for number, line in enumerate(lines, start=1):
        delay += min(_MAX_PAUSE, line["second"] - before)
        before = line["second"]
        text = ("$ " if line["kind"] == "command" else "") + line["text"]
        shown = text if len(text) <= _COLUMNS else f"{text[: _COLUMNS - 1]}…"
        y = _MARGIN + _LINE_HEIGHT * number - 5
        parts.append(
            f'<text class="{line["kind"]}" x="{_MARGIN}" y="{y}" xml:space="preserve" '
            f'style="animation-delay:{delay:.2f}s">{escape(shown)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main(arguments: list[str]) -> int:
    """Records, and draws what was recorded."""
    values = flags.FlagValues()
    flags.DEFINE_string("picture", "resume.svg", "the file to draw", flag_values=values)
    flags.DEFINE_string("out", "recording.json", "the file for the recorded lines", flag_values=values)
    values(arguments)
    with tempfile.TemporaryDirectory() as folder:
        lines = record(Path(folder))
    write_json(Path(values.out), {**SuiteOptions(repetitions=1, progress=sys.stderr.write).machine(), "lines": lines})
    write_text(Path(values.picture), picture(lines))
    digests = [line["text"] for line in lines if re.match("[0-9a-f]{64}", line["text"])]
    sys.stdout.write(f"The weights are {'bit-equal' if len(set(digests)) == 1 else 'DIFFERENT'}: {digests[-1]}\n")
    return 0 if len(set(digests)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
