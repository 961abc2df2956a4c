"""The picture at the top of the README is drawn from the kept losses, and what it shows comes out again."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tfaccel.benchmarks.losses_picture import ONE, OURS, PLAIN, main, picture

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_is_that_of_the_kept_losses():
    kept = json.loads((ROOT / "benchmarks/losses.json").read_text())
    drawn = picture(kept["loss"])
    assert (ROOT / "docs/pictures/losses.svg").read_text() == drawn
    lines = [line.get("points").split() for line in ElementTree.fromstring(drawn).iter(f"{SVG}polyline")]
    one, plain, ours = ([float(point.split(",")[1]) for point in line] for line in lines)
    assert [abs(a - b) for a, b in zip(one, ours, strict=True)] == pytest.approx([0.0] * len(one), abs=0.2)  # pixels
    assert max(abs(a - b) for a, b in zip(one, plain, strict=True)) > 50


@pytest.mark.slow
def test_what_it_shows_comes_out_again(tmp_path, capsys):
    out, svg = tmp_path / "losses.json", tmp_path / "losses.svg"
    assert main(["losses_picture", f"--out={out}", f"--picture={svg}"]) == 0
    found = json.loads(out.read_text())
    assert list(found["loss"]) == [ONE, PLAIN, OURS]
    assert found["difference_of_weights"][OURS] < 1e-5
    assert found["difference_of_weights"][PLAIN] > 0.1
    assert svg.read_text() == picture(found["loss"])
    assert f"{PLAIN}: weights differ from one device's by" in capsys.readouterr().out
