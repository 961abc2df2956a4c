"""The recording of the guide to resuming is drawn from the kept lines, and what it shows comes out again."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tfaccel.benchmarks.recording import main, picture

ROOT = Path(__file__).parents[2]


def digests(lines):
    return [line["text"].split()[0] for line in lines if re.match("[0-9a-f]{64}", line["text"])]


def test_the_recording_is_that_of_the_kept_lines():
    lines = json.loads((ROOT / "benchmarks/recording.json").read_text())["lines"]
    drawn = picture(lines)
    assert (ROOT / "docs/pictures/resume.svg").read_text() == drawn
    shown = ["".join(one.itertext()) for one in ElementTree.fromstring(drawn) if one.tag.endswith("text")]
    assert [text.removeprefix("$ ") for text in shown] == [line["text"] for line in lines]
    assert len(set(digests(lines))) == 1 and len(digests(lines)) == 2


def test_a_long_line_is_cut_off_and_marks_are_escaped():
    drawn = picture([{"kind": "output", "text": f"<{'x' * 200}", "second": 1.0}])
    (text,) = [one.text for one in ElementTree.fromstring(drawn) if one.tag.endswith("text")]
    assert len(text) == 96 and text.startswith("<x") and text.endswith("x…")


@pytest.mark.slow
def test_what_it_shows_comes_out_again(tmp_path, capsys):
    out, svg = tmp_path / "recording.json", tmp_path / "resume.svg"
    assert main(["recording", f"--out={out}", f"--picture={svg}"]) == 0
    lines = json.loads(out.read_text())["lines"]
    assert svg.read_text() == picture(lines)
    texts = [line["text"] for line in lines]
    assert any(text.startswith("The run in runs/killed continues from") for text in texts)
    assert "The weights are bit-equal" in capsys.readouterr().out
