"""The gallery of the documentation: every recipe with a picture or a text that it made, its score and command.

    python -m tfaccel.benchmarks.gallery --out=benchmarks/gallery.json --folder=docs
    python -m tfaccel.benchmarks.gallery --recipes=gan,translation --out=benchmarks/gallery.json --folder=docs

Trains the recipes with their own settings, which takes ten minutes, and writes `gallery.md` and `pictures/gallery`.
Recipes that are left out keep what the file has of them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from absl import flags

from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import TfaccelError
from tfaccel.files import write_json, write_text
from tfaccel.processes.child import run_program
from tfaccel.training.verdict import BaselineScores

_WIDTH = 640  # of pictures, in pixels
_NUM_CHARACTERS, _COLUMNS = 260, 90  # of texts
_NOTEBOOKS = ("image_classification", "text_classification")  # recipes with a notebook for Colab


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """What the gallery shows of a recipe: a picture, or a text, of its run directory, and a sentence."""

    title: str
    file: str
    text: str


EXHIBITS = {
    "image_classification": Exhibit(
        title="Image classification",
        file="predictions.png",
        text="A small residual network reads handwritten digits; wrong predictions come first.",
    ),
    "transfer_learning": Exhibit(
        title="Transfer learning",
        file="curves.png",
        text="Digits 5 to 9 from 20 images each, after a network that knows 0 to 4, and from scratch.",
    ),
    "object_detection": Exhibit(
        title="Object detection",
        file="detections.png",
        text="Heat maps of centers find digits on clutter: predicted boxes in orange, true ones in green.",
    ),
    "gan": Exhibit(
        title="Generative adversarial network",
        file="samples.png",
        text="A conditional DCGAN with its own `train_step` draws digits, a column for each class.",
    ),
    "autoencoder": Exhibit(
        title="Variational autoencoder",
        file="latent_map.png",
        text="The latent space of the digits, as the decoder draws it.",
    ),
    "tabular_classification": Exhibit(
        title="Tables: classes",
        file="predictions.png",
        text="Dense layers with embeddings of categories, beside scikit-learn's classifiers.",
    ),
    "tabular_regression": Exhibit(
        title="Tables: numbers", file="predictions.png", text="Predicted over true values, with ridge regression's."
    ),
    "recommendation": Exhibit(
        title="Recommendation",
        file="auc.png",
        text="Large id tables learn clicks whose probabilities are known; the curve is the AUC after each epoch.",
    ),
    "sequence_forecasting": Exhibit(
        title="Forecasts",
        file="predictions.png",
        text="Quantiles of a double pendulum's angles, with the intervals that they give.",
    ),
    "text_classification": Exhibit(
        title="Text classification",
        file="classes.json",
        text="Passages of Python's documentation, by group of chapters: these are the classes.",
    ),
    "text_generation": Exhibit(
        title="Text generation", file="sample.txt", text="An LSTM continues Python's documentation."
    ),
    "translation": Exhibit(
        title="Translation", file="translations.json", text="Dates in 19 formats and three languages, to ISO dates."
    ),
    "summarization": Exhibit(
        title="Summarization",
        file="summaries.json",
        text="The first sentence of an entry of Python's documentation, which can copy words of the entry.",
    ),
}


def run_recipe(recipe: str, folder: Path, pictures: Path) -> dict[str, Any]:
    """Trains a recipe: what the gallery says of it. Its picture goes to a folder."""
    run_dir, exhibit = folder / recipe, EXHIBITS[recipe]
    run_program([sys.executable, "-m", "tfaccel", "train", f"--recipe={recipe}", f"--run_dir={run_dir}", "--quiet"])
    result = json.loads((run_dir / "result.json").read_text())
    file = run_dir / exhibit.file
    found = {
        "score": BaselineScores.from_json(result["baselines"]).beside(),
        "seconds": round(result["wall_seconds"], 1),
    }
    if file.suffix == ".png":
        from PIL import Image

        with Image.open(file) as image:
            image.thumbnail((_WIDTH, _WIDTH))
            image.convert("P", palette=Image.Palette.ADAPTIVE).save(pictures / f"{recipe}.png", optimize=True)
        return found
    return {**found, "made": _made(file)}


def _made(file: Path) -> str:
    """Some lines of the text that a recipe wrote."""
    if file.suffix == ".txt":
        return f"{file.read_text()[:_NUM_CHARACTERS]} …"
    content = json.loads(file.read_text())
    if file.name == "translations.json":
        return "\n".join(f"{source}  →  {made}" for source, made, _ in content["texts"][:6])
    if file.name == "summaries.json":
        document, made, *_, wanted = next(iter(content.values()))[0]
        return f"entry    {' '.join(document.split())[:_NUM_CHARACTERS]} …\nsummary  {made}\nwanted   {wanted}"
    return "\n".join(content)


def page(found: Mapping[str, Any]) -> str:
    """The page of the gallery, in Markdown."""
    machine = f"{found['num_usable_cores']} cores of an {found['cpu_model']}"
    parts = [
        "# Gallery",
        "Each recipe as it comes, with its own settings: what it made, and its score beside those of simple baselines, "
        f"on {machine}. How fast that is, beside `Model.fit`, is in [Measurements](measurements.md#the-recipes). "
        "`python -m tfaccel.benchmarks.gallery` makes this page.",
    ]
    for recipe, exhibit in EXHIBITS.items():
        one = found["recipes"][recipe]
        if "made" in one:
            lines = [line for text in one["made"].splitlines() for line in textwrap.wrap(text, _COLUMNS) or [""]]
            shown = "\n".join(["```text", *lines, "```"])
        else:
            shown = f"![{exhibit.title}](pictures/gallery/{recipe}.png)"
        parts += [
            f"## {exhibit.title}",
            exhibit.text,
            shown,
            f"**{one['score']}**, in {one['seconds']:.0f} s",
            f"```sh\ntfaccel train --recipe={recipe} --run_dir=runs/{recipe}\n```",
            *([f"In a notebook: {{colab:{recipe}}}"] if recipe in _NOTEBOOKS else []),
        ]
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _wrapped(text: str) -> str:
    """A paragraph in lines that can be read; other blocks as they are."""
    return text if text.startswith(("#", "`" * 3, "!")) else textwrap.fill(text, 118, break_on_hyphens=False)


def main(arguments: list[str]) -> int:
    """Trains recipes, and writes the page."""
    values = flags.FlagValues()
    flags.DEFINE_list("recipes", list(EXHIBITS), "the recipes to train", flag_values=values)
    flags.DEFINE_string("out", "gallery.json", "the file for scores and texts", flag_values=values)
    flags.DEFINE_string("folder", "docs", "the folder for the page and its pictures", flag_values=values)
    values(arguments)
    if unknown := set(values.recipes) - set(EXHIBITS):
        raise TfaccelError(f"--recipes: there is no recipe {min(unknown)!r}. Known: {', '.join(EXHIBITS)}.")
    options = SuiteOptions(repetitions=1, progress=lambda line: sys.stderr.write(f"{line}\n"))
    out, folder = Path(values.out), Path(values.folder)
    pictures = folder / "pictures" / "gallery"
    pictures.mkdir(parents=True, exist_ok=True)
    found = json.loads(out.read_text())["recipes"] if out.exists() else {}
    for recipe in values.recipes:
        options.progress(f"{recipe} …")
        with tempfile.TemporaryDirectory() as runs:
            found[recipe] = run_recipe(recipe, Path(runs), pictures)
        write_json(out, {**options.machine(), "recipes": {name: found[name] for name in EXHIBITS if name in found}})
    if len(found) == len(EXHIBITS):
        write_text(folder / "gallery.md", page(json.loads(out.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
