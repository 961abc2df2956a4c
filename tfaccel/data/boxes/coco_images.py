"""The image files that a COCO file names: compared with what it says of them, and read with their boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.boxes.boxed_images import NO_OBJECT, BoxedSplit
from tfaccel.data.images.image_check import ImageHeader, check_image
from tfaccel.errors import DataError

_SLACK = 1.0  # pixels by which a box may exceed its image: annotation tools round
_LARGEST = 1e9  # of the numbers of a box, in pixels
TURNED = (5, 6, 7, 8)  # EXIF orientations with which width and height change places
Objects = Sequence[tuple[list[Any], int]]  # left, top, width, height and id of each box, and its class


@dataclass(frozen=True)
class BoxesOfFile:
    """An image file with its boxes.

    Args:
        path: the file.
        size: width and height in pixels, with the orientation applied.
        orientation: the EXIF orientation that is applied; 1 for none.
        corners: left, top, right and bottom edge of each box, in pixels.
        labels: the class index of each box.
    """

    path: Path
    size: tuple[int, int]
    orientation: int
    corners: np.ndarray
    labels: tuple[int, ...]


def boxes_of_file(entry: Mapping[str, Any], objects: Objects, folder: Path) -> BoxesOfFile:
    """Finds and checks the file of an image, and its boxes.

    Args:
        entry: the entry of `images`, and the COCO file under "json".
        objects: the boxes.
        folder: see `image_file`.

    Raises:
        DataError: if there is no such file, it cannot be decoded, or differs from what the COCO file says of it.
    """
    path = image_file(folder, Path(entry["json"]), str(entry["file_name"]))
    if path is None:
        raise DataError(
            f"Image {entry['id']!r} in {entry['json']}: there is no file {entry['file_name']!r} in {folder}."
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the image {path}: {error.strerror or error}. Repair or remove it.") from error
    header = check_image(content, str(path))
    orientation = orientation_of_boxes(entry, header, str(path), has_boxes=bool(objects))
    size = (header.width, header.height)
    size = size[::-1] if orientation in TURNED else size
    corners = np.zeros((len(objects), 4))
    for place, ((left, top, width, height, name), _) in enumerate(objects):
        right, bottom = left + width, top + height
        if min(left, top) < -_SLACK or right > size[0] + _SLACK or bottom > size[1] + _SLACK:
            raise DataError(
                f"Annotation {name!r} in {entry['json']} lies outside its image {entry['file_name']} of "
                f"{size[0]}x{size[1]} pixels: bbox={[left, top, width, height]} (left, top, width, height)."
            )
        corners[place] = left, top, right, bottom
    return BoxesOfFile(path, size, orientation, corners, tuple(label for _, label in objects))


def image_file(folder: Path, json_file: Path, name: str) -> Path | None:
    """The image that a COCO file names; None if it is not there.

    An image of the same name may be in several folders: the one of the file's own part is taken.

    Args:
        folder: holds the images, also in its sub-folders `images`, `train`, `val` and `test`.
        json_file: the COCO file.
        name: the file name of the image.

    Raises:
        DataError: if several parts have an image of that name, and the COCO file is of none of them.
    """
    parts = ["train", "val", "test"]
    own = [part for part in parts if part in json_file.stem]
    for place in (folder, json_file.parent, folder / "images", *(folder / part for part in own)):
        if (place / name).is_file():
            return place / name
    found = [folder / part / name for part in parts if (folder / part / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"{json_file} names the image {name!r}, which is both {found[0]} and {found[1]}. Write the folder before "
            f"the name: {found[0].relative_to(folder)}."
        )
    return found[0] if found else None


def is_crowd(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation marks a crowd, which detectors are not trained on."""
    return annotation.get("iscrowd") not in (None, 0, "", "0", "false", "False")


def are_numbers(box: Any) -> bool:
    """Whether the `bbox` of an annotation is four numbers, of sensible size or NaN."""
    if not isinstance(box, list) or len(box) != 4:
        return False
    return all(type(one) in (int, float) and not abs(one) >= _LARGEST for one in box)


def has_area(box: Sequence[float]) -> bool:
    """Whether a box of four numbers has an area."""
    return bool(np.isfinite(box).all()) and min(box[2:]) > 0


def orientation_of_boxes(entry: Mapping[str, Any], header: ImageHeader, name: str, *, has_boxes: bool) -> int:
    """The EXIF orientation with which an image has the size that a COCO file says; 1 for the image as stored.

    Args:
        entry: the entry of `images`; `width` and `height` may be missing.
        header: of the file.
        name: of the file, for messages.
        has_boxes: whether the image has boxes, which depend on the orientation.

    Raises:
        DataError: if the size differs, or the image has boxes and an orientation, and the size does not tell whether
            they were drawn on the image as it is stored or as it is shown.

    Example:
        >>> header = ImageHeader(40, 30, orientation=6)
        >>> orientation_of_boxes({"width": 30, "height": 40}, header, "a.jpg", has_boxes=True)
        6
    """
    stored, said = (header.width, header.height), (entry.get("width") or None, entry.get("height") or None)
    shown = stored[::-1] if header.orientation in TURNED else stored
    if None not in said and said not in (stored, shown):
        raise DataError(
            f"The image {name} has {stored[0]}x{stored[1]} pixels, but its entry says width={said[0]!r}, "
            f"height={said[1]!r}, so that its boxes would be at wrong places. Put back the image of that size, or "
            "correct the entry and the boxes."
        )
    if header.orientation == 1 or not has_boxes:
        return 1
    if None in said or stored == shown:
        raise DataError(
            f"The image {name} has the EXIF orientation {header.orientation}, and its entry does not tell whether its "
            "boxes were drawn on the image as stored or as shown. Store the pixels as they are shown, without the "
            "orientation (ImageOps.exif_transpose of Pillow), and check the boxes."
        )
    return header.orientation if said == shown else 1


class CocoPart:
    """The images of a part, decoded when they are first used, after TensorFlow has been set up.

    Args:
        images: the images.
        image_size: height and width of the square that they are scaled to fit into, and padded with black.
        most_objects: maximum number of boxes in an image.
    """

    def __init__(self, images: Sequence[BoxesOfFile], image_size: int, most_objects: int) -> None:
        self._images, self._image_size, self._most_objects = images, image_size, most_objects
        self._split: BoxedSplit | None = None

    def __call__(self, *seed_and_epoch: int) -> BoxedSplit:
        """The images and boxes.

        Raises:
            DataError: if an image can no longer be read.
        """
        if self._split is None:
            self._split = self._read()
        return self._split

    def _read(self) -> BoxedSplit:
        side = self._image_size
        images = np.zeros((len(self._images), side, side, 3), np.uint8)
        boxes = np.zeros((len(self._images), self._most_objects, 4), np.float32)
        labels = np.full((len(self._images), self._most_objects), NO_OBJECT, np.int64)
        for row, image in enumerate(self._images):
            scale = side / max(image.size)
            pixels = _scaled(image, scale)
            images[row, : pixels.shape[0], : pixels.shape[1]] = pixels
            boxes[row, : len(image.labels)] = np.clip(image.corners * scale, 0, side)
            labels[row, : len(image.labels)] = image.labels
        return BoxedSplit(images, boxes, labels)


def _scaled(image: BoxesOfFile, scale: float) -> np.ndarray:
    """The pixels of an image, oriented and scaled."""
    from PIL import Image

    from tfaccel.data.images.decoding import pixels

    try:
        content = image.path.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the image {image.path}: {error.strerror or error}.") from error
    moves = Image.Transpose
    turn = {
        2: moves.FLIP_LEFT_RIGHT,
        3: moves.ROTATE_180,
        4: moves.FLIP_TOP_BOTTOM,
        5: moves.TRANSPOSE,
        6: moves.ROTATE_270,
        7: moves.TRANSVERSE,
        8: moves.ROTATE_90,
    }
    found = Image.fromarray(pixels(content, 3, name=str(image.path)))
    if image.orientation in turn:
        found = found.transpose(turn[image.orientation])
    size = (max(1, round(found.width * scale)), max(1, round(found.height * scale)))
    return np.asarray(found.resize(size, Image.Resampling.BILINEAR))
