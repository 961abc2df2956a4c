"""Images with boxes from COCO files: JSON with images, annotations and categories, next to the images."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfaccel.data.bad_data import BadData
from tfaccel.data.box_data import NO_OBJECT, BoxedImages, BoxedSplit
from tfaccel.data.class_labels import TEST_FRACTION
from tfaccel.data.images.image_check import ORIENTATION, ImageHeader, check_image, pixels
from tfaccel.errors import DataError, WorkloadError
from tfaccel.remote import readable_path

logger = logging.getLogger("tfaccel")

_FIELDS = {  # list -> what each of its entries must have
    "images": ("id", "file_name"),
    "annotations": ("id", "image_id", "category_id", "bbox"),
    "categories": ("id", "name"),
}
_MAX_BYTES = 2**31

_Listed = list[tuple[dict[str, Any], list[tuple[list[float], int]]]]  # each image's entry with its boxes and classes

_SLACK = 1.0  # pixels by which a box may exceed its image: annotation tools round
_LARGEST = 1e9  # of the numbers of a box, in pixels
TURNED = (5, 6, 7, 8)  # EXIF orientations with which width and height change places
Objects = Sequence[tuple[list[Any], int]]  # left, top, width, height and id of each box, and its class


def read_coco(data_dir: str | os.PathLike[str], *, image_size: int, bad_data: BadData | None = None) -> BoxedImages:
    """Reads and validates the images and boxes of a folder in COCO format.

    The folder holds `train.json` and `test.json`, or only `annotations.json`, of which a fifth of the images (always
    the same) is held out for testing. File names in it are relative to the folder, or to its sub-folders `images`,
    `train`, `val` and `test`, of which the one of the file's own part comes first. Images are scaled to fit into a
    square and padded with black. Crowds (`iscrowd`) are ignored; how many is logged.

    The `width` and `height` that a file says of an image are compared with those of the image. They also tell whether
    the boxes of a photo with an EXIF orientation were drawn on the photo as it is shown; then it is turned. All files
    are opened and checked here; pixels are read on use.

    Args:
        data_dir: the folder.
        image_size: height and width of the square in pixels: a multiple of 16, since detectors halve images four times.
        bad_data: what to do with images that are missing, cannot be decoded or have another size than the file says,
            and images with an invalid annotation; they are left out with all their boxes. A damaged JSON file is always
            an error.

    Raises:
        WorkloadError: for another image size.
        DataError: if a file is missing or malformed, or an entry is invalid; the message names the entry.
    """
    bad_data = bad_data or BadData()
    if image_size < 32 or image_size % 16:
        raise WorkloadError(f"`image_size` must be a multiple of 16, at least 32. Received: image_size={image_size!r}.")
    folder = readable_path(data_dir, DataError)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder} (`data_dir`).")
    names = [name for name in ("train.json", "test.json") if (folder / name).exists()]
    if len(names) == 1:
        raise DataError(f"{folder} has {names[0]}, but not both train.json and test.json.")
    paths = [folder / name for name in names or ["annotations.json"]]
    contents = [_read(path) for path in paths]
    classes = _classes(contents[0], paths[0])
    if any(_classes(content, path) != classes for content, path in zip(contents, paths, strict=True)):
        raise DataError(f"{paths[0]} and {paths[1]} must have the same categories.")
    found = [_objects(content, path, classes, bad_data) for content, path in zip(contents, paths, strict=True)]
    listed = [_placed(part, folder, bad_data) for part in found]
    bad_data.finish(sum(map(len, listed)), "images")
    if len(listed) == 1:
        listed = _split(listed[0], paths[0])
    if not all(listed):
        raise DataError(f"{paths[0]} and {paths[-1]} must each have an image that can be read.")
    most = max(1, *(len(image.labels) for part in listed for image in part))
    num_bytes = sum(map(len, listed)) * image_size**2 * 3
    if num_bytes > _MAX_BYTES:
        raise DataError(
            f"The images take {num_bytes:,} bytes in memory at {image_size} pixels. Use a smaller image_size."
        )
    train, test = (functools.cache(partial(_read_images, part, image_size, most)) for part in listed)
    return BoxedImages(
        class_names=tuple(classes.values()),
        image_size=image_size,
        num_channels=3,
        most_objects=most,
        num_train_images=len(listed[0]),
        num_test_images=len(listed[1]),
        train=lambda seed, epoch: train(),
        test=test,
    )


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"There is no {path}. A folder for detection holds train.json and test.json, or annotations.json, in "
            "COCO's format."
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {error}. It must be JSON in COCO's format.") from error
    for name, names in _FIELDS.items():
        entries = content.get(name) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not entries:
            raise DataError(f"{path} must have a list {name!r} with at least one entry, as COCO's files have.")
        for number, entry in enumerate(entries):
            missing = [f for f in names if not isinstance(entry, dict) or f not in entry]
            if missing:
                raise DataError(f"Entry {number} (from 0) of {name!r} in {path} has no {missing[0]!r}.")
        check_ids(name, entries, path)
        ids = [entry["id"] for entry in entries]
        if len(set(map(str, ids))) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise DataError(f"Two entries of {name!r} in {path} have the id {twice!r}.")
    return content


def check_ids(name: str, entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raises DataError for an id that is no whole number or text, such as {"$oid": "65f1"} of a MongoDB export."""
    for number, entry in enumerate(entries):
        for field in _FIELDS[name]:
            is_id = field.endswith("id") and field in entry
            if is_id and (type(entry[field]) is bool or not isinstance(entry[field], int | str)):
                raise DataError(
                    f"The {field!r} of entry {number} (from 0) of {name!r} in {path} must be a whole number or a text. "
                    f"Received: {entry[field]!r:.80}."
                )


def _classes(content: dict[str, list[dict[str, Any]]], path: Path) -> dict[Any, str]:
    classes = {entry["id"]: str(entry["name"]) for entry in sorted(content["categories"], key=lambda e: str(e["id"]))}
    if len(set(classes.values())) < len(classes):
        raise DataError(f"Two categories in {path} have the same name.")
    return classes


def _objects(
    content: dict[str, list[dict[str, Any]]], path: Path, classes: dict[Any, str], bad_data: BadData
) -> _Listed:
    """Each image with its boxes (left, top, width, height) and classes; without images that have an invalid box."""
    numbers = {key: number for number, key in enumerate(classes)}
    found: dict[Any, tuple[dict[str, Any], list[tuple[list[float], int]]]] = {
        entry["id"]: ({**entry, "json": path, "number": number}, []) for number, entry in enumerate(content["images"])
    }
    damaged, num_crowds = set(), 0
    for number, entry in enumerate(content["annotations"]):
        where = f"Annotation {entry['id']!r} in {path}"
        image, box = entry["image_id"], entry["bbox"]
        if is_crowd(entry):
            num_crowds += 1
            continue
        error = None
        for name, known in (("image_id", found), ("category_id", numbers)):
            if entry[name] not in known:
                error = f"{where} has the {name} {entry[name]!r}, which the file does not have."
                break
        if error is None and not are_numbers(box):
            error = f"{where} must have a bbox of four numbers: left, top, width, height. Received: {box!r}."
        if error is None and not has_area(box):
            error = f"{where} has a box without area: bbox={box!r}."
        if error is None:
            found[image][1].append(([*map(float, box), entry["id"]], numbers[entry["category_id"]]))
        elif image in found:
            bad_data.found(DataError(error), path, found[image][0]["number"])
            damaged.add(image)
        else:
            bad_data.found(DataError(error), f"{path} (annotations)", number)
    if num_crowds:
        logger.warning("Passed over in %s: %d annotations of crowds (iscrowd).", path, num_crowds)
    return [listed for image, listed in found.items() if image not in damaged]


def _placed(listed: _Listed, folder: Path, bad_data: BadData) -> list[_BoxesOfFile]:
    """The images that can be decoded, and whose boxes are inside."""
    found = (
        bad_data.tried(partial(_boxes_of_file, entry, objects, folder), entry["json"], entry["number"])
        for entry, objects in listed
    )
    return [image for image in found if image is not None]


def _split(listed: list[_BoxesOfFile], path: Path) -> list[list[_BoxesOfFile]]:
    if len(listed) < 2:
        raise DataError(f"{path} has one image; it needs at least two, one to train on and one to test with.")
    order = np.random.default_rng(0).permutation(len(listed))
    num_test = max(1, round(TEST_FRACTION * len(listed)))
    return [[listed[i] for i in sorted(order[num_test:])], [listed[i] for i in sorted(order[:num_test])]]


@dataclass(frozen=True)
class _BoxesOfFile:
    """An image file with its boxes."""

    path: Path
    size: tuple[int, int]  # width and height in pixels, with the orientation applied
    orientation: int  # the EXIF orientation that is applied; 1 for none
    corners: np.ndarray  # left, top, right and bottom edge of each box, in pixels
    labels: tuple[int, ...]  # the class index of each box


def _boxes_of_file(entry: Mapping[str, Any], objects: Objects, folder: Path) -> _BoxesOfFile:
    """Finds and checks the file of an image, and its boxes; the entry has the COCO file under "json"."""
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
    return _BoxesOfFile(path, size, orientation, corners, tuple(label for _, label in objects))


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


def _read_images(images: Sequence[_BoxesOfFile], side: int, most_objects: int) -> BoxedSplit:
    """Decodes images, scaled to fit into a square and padded with black, and scales their boxes.

    Raises:
        DataError: if an image can no longer be read.
    """
    squares = np.zeros((len(images), side, side, 3), np.uint8)
    boxes = np.zeros((len(images), most_objects, 4), np.float32)
    labels = np.full((len(images), most_objects), NO_OBJECT, np.int64)
    for row, image in enumerate(images):
        scale = side / max(image.size)
        pixels = _scaled(image, scale)
        squares[row, : pixels.shape[0], : pixels.shape[1]] = pixels
        boxes[row, : len(image.labels)] = np.clip(image.corners * scale, 0, side)
        labels[row, : len(image.labels)] = image.labels
    return BoxedSplit(squares, boxes, labels)


def _scaled(image: _BoxesOfFile, scale: float) -> np.ndarray:
    """The pixels of an image, oriented and scaled."""
    from PIL import Image, ImageOps

    try:
        content = image.path.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the image {image.path}: {error.strerror or error}.") from error
    found = Image.fromarray(pixels(content, 3, name=str(image.path)))
    found.getexif()[ORIENTATION] = image.orientation
    found = ImageOps.exif_transpose(found)
    size = (max(1, round(found.width * scale)), max(1, round(found.height * scale)))
    return np.asarray(found.resize(size, Image.Resampling.BILINEAR))
