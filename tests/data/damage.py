"""Damaging files, and images to be damaged."""

import io

import numpy as np
from PIL import Image

from tfaccel.data import BadData


def skipping(fraction=0.5):
    return BadData("skip", fraction)


def picture(seed, form="PNG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)
