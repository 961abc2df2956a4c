"""The gallery shows every recipe, from what was kept; and a recipe is trained for it as the page says."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tfaccel.benchmarks.gallery import EXHIBITS, main, page
from tfaccel.errors import TfaccelError

ROOT = Path(__file__).parents[2]


def test_every_recipe_is_there_as_it_was_kept():
    kept = json.loads((ROOT / "benchmarks/gallery.json").read_text())
    recipes = {path.stem for path in (ROOT / "recipes").glob("*.py")} - {"__init__"}
    assert recipes == set(EXHIBITS) == set(kept["recipes"])
    assert (ROOT / "docs/gallery.md").read_text() == page(kept)
    shown = {path.stem for path in (ROOT / "docs/pictures/gallery").glob("*.png")}
    assert shown == {name for name, one in kept["recipes"].items() if "made" not in one}
    assert sum(path.stat().st_size for path in (ROOT / "docs/pictures/gallery").glob("*.png")) < 2**20


def test_an_unknown_recipe_is_refused(tmp_path):
    with pytest.raises(TfaccelError, match=r"--recipes: there is no recipe 'gam'\. Known: image_classification, "):
        main(["gallery", "--recipes=gan,gam", f"--out={tmp_path / 'gallery.json'}", f"--folder={tmp_path}"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_recipe_is_trained_for_it(tmp_path):
    out = tmp_path / "gallery.json"
    assert main(["gallery", "--recipes=tabular_regression", f"--out={out}", f"--folder={tmp_path}"]) == 0
    (found,) = json.loads(out.read_text())["recipes"].values()
    assert found["score"].startswith("R² 0.") and "ridge regression" in found["score"]
    with Image.open(tmp_path / "pictures/gallery/tabular_regression.png") as picture:
        assert picture.width <= 640
    assert not (tmp_path / "gallery.md").exists()
