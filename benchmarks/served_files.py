"""The models that the server's benchmark serves, each written once for a folder, and requests for them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tfaccel.benchmarks.http_load import post
from tfaccel.benchmarks.served_model import ServedModel
from tfaccel.errors import ServeError
from tfaccel.processes.child import ProcessError, run_program

LARGE = "resnet50"
# The other models: a recipe, and the flags to train it briefly.
RECIPES = {
    "image_classification": ("--epochs=1",),
    "text_classification": ("--epochs=1", "--model=lstm"),
}
_SIZE = 64  # pixels a side of the large model's images
_NUM_BODIES = 64  # distinct requests; fewer of large ones
_MAX_BYTES = 64 * 2**20  # of the numbers in all of them
_RUN = "import sys; from tfaccel.scripts.main import main; sys.exit(main(['tfaccel', *sys.argv[1:]]))"


def exported(name: str, folder: Path, progress: Callable[[str], None]) -> Path:
    """The folder with a model's "saved_model", written by child processes unless it is there already.

    Args:
        name: `LARGE`: a ResNet-50 with 25.6 million weights, not trained; or one of `RECIPES`, briefly trained.
        folder: where to write.
        progress: called with a line that says so.

    Raises:
        ServeError: if a child process fails.
    """
    if folder.exists():
        return folder
    if name == LARGE:
        progress(f"{name}: exporting a model")
        _run("-m", "tfaccel.benchmarks.served_files", str(folder))
    else:
        progress(f"{name}: training and exporting a model")
        run = f"{folder}-run"
        _run("-c", _RUN, "train", f"--recipe={name}", f"--run_dir={run}", "--quiet", *RECIPES[name])
        _run("-c", _RUN, "export", f"--run_dir={run}", "--formats=saved_model", f"--out={folder}", "--quiet")
    with ServedModel(folder / "saved_model") as server:
        signatures = server.get("/metadata")["metadata"]["signature_def"]["signature_def"]
    described = next(iter(signatures["serving_default"]["inputs"].values()))
    shape = [int(dim["size"]) for dim in described["tensor_shape"]["dim"][1:]]
    (folder / "input.json").write_text(json.dumps(shape))
    return folder


def row_shape(model: Path) -> list[int]:
    """The shape of one row of the input of an exported model."""
    shape: list[int] = json.loads((model / "input.json").read_text())
    return shape


def predict_requests(model: Path, server: ServedModel, *, num_rows: int = 1) -> list[bytes]:
    """Requests in row format for an exported model that a server serves."""
    rng = np.random.default_rng(0)
    shape = (num_rows, *row_shape(model))
    count = max(4, min(_NUM_BODIES, _MAX_BYTES // (8 * int(np.prod(shape)))))
    values = rng.integers(0, 256, (count, *shape))  # pixels, or token ids of common words
    bodies = [json.dumps({"instances": rows.tolist()}, separators=(",", ":")).encode() for rows in values]
    return [post(f"/v1/models/{server.name}:predict", body) for body in bodies]


def add_version(model: Path, versions: Path, number: int) -> None:
    """Deploys an exported model to a folder of versions, at once; its files are links."""
    unfinished = model / f"version-{number}"
    shutil.copytree(model / "saved_model" / "1", unfinished, copy_function=os.link)
    os.replace(unfinished, versions / str(number))


def _run(*arguments: str) -> None:
    try:
        run_program([sys.executable, *arguments])
    except ProcessError as error:
        raise ServeError(f"{' '.join(arguments[-2:])} failed: {error}") from error


def main(argv: list[str]) -> int:
    """Exports the large model to the folder of the argument."""
    import keras

    import tfaccel

    (folder,) = argv
    keras.utils.set_random_seed(0)
    model = keras.applications.ResNet50(weights=None, input_shape=(_SIZE, _SIZE, 3))
    tfaccel.export(model, ["saved_model"], out=folder, name=LARGE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
