"""JPEG images to decode, made on the spot, in a folder for each class."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from tfaccel.benchmarks.synthetic_data import NUM_CLASSES

_QUALITY = 90
_COARSENESS = 8  # pixels to one random colour, before noise: about as many bytes per pixel as a photograph


def write_images(folder: Path, num_images: int, size: int) -> None:
    """Writes square images of this size to `train`, and one of each class to `test`."""
    jobs = [("train", number) for number in range(num_images)] + [("test", number) for number in range(NUM_CLASSES)]
    for part in ("train", "test"):
        for label in range(NUM_CLASSES):
            (folder / part / f"class_{label}").mkdir(parents=True)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda job: _write(folder / job[0], job[1], size), jobs))


def training_files(folder: Path) -> tuple[list[str], list[int]]:
    """Paths and labels of the images in `train`, in one order."""
    found = [
        (str(path), label)
        for label in range(NUM_CLASSES)
        for path in sorted((folder / "train" / f"class_{label}").iterdir())
    ]
    return [path for path, _ in found], [label for _, label in found]


def _write(folder: Path, number: int, size: int) -> None:
    generator = np.random.default_rng(number)
    num_colours = max(2, size // _COARSENESS)
    coarse = Image.fromarray(generator.integers(0, 256, (num_colours, num_colours, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(pixels + generator.integers(-8, 9, pixels.shape, dtype=np.int16), 0, 255)
    Image.fromarray(np.uint8(noisy)).save(
        folder / f"class_{number % NUM_CLASSES}" / f"{number:05}.jpg", quality=_QUALITY
    )
