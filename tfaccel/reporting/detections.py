"""COCO detection metrics by pycocotools, and detection without a neural network: HOG of windows, SVMs, regression.

Sources: Dalal and Triggs, Histograms of oriented gradients for human detection, 2005 (windows and SVMs);
Girshick et al., Rich feature hierarchies, 2014, https://arxiv.org/abs/1311.2524 (hard negatives, box regression).
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfaccel.data.box_data import NO_OBJECT, BoxedSplit, Detections
from tfaccel.errors import DataError, VersionError
from tfaccel.training.verdict import BaselineScores

logger = logging.getLogger("tfaccel")

NAME = "SVM on windows of gradients"
MAX_TRAIN_IMAGES = 512
MAX_DECISIONS = 50_000  # classes times test images; more would take minutes
CELL = 4  # height and width of a cell in pixels
NUM_BINS = 9  # directions, from 0 to 180 degrees
_FAINT = 75.0  # added in the normalization, so that faint edges (pixels from 0 to 255) are not amplified
_WINDOW, _CORE = 8, 6  # side of a window in cells, and longer side of the object at its center
_MAX_SIDE = 256  # max side of an enlarged image in pixels
_MAX_LEVELS = 6
_STEP = 1.22  # ratio of consecutive window sizes
_IS_OBJECT, _IS_NONE = 0.6, 0.4  # IoU of a window and an object's square: at least, or below
_NUM_RANDOM = 60  # random negative windows per image
_NUM_PROPOSED = 40  # windows per image that the SVMs classify
_NUM_COMPONENTS = 80
_MAX_OF_A_KIND = 4000  # max positive, and max negative windows
_PENALTY = 5.0
_MIN_SCORE, _MAX_IOU = -1.0, 0.4
_AMBIGUOUS = -2
_IMAGES_AT_ONCE = 32


def detection_scores(
    map_50: float, train: BoxedSplit, test: BoxedSplit, *, class_names: tuple[str, ...]
) -> BaselineScores:
    """Compares a detector's mAP@0.5 on test images with the baseline's.

    The baseline is skipped, and the reason logged, if it would take minutes or no window fits an object.

    Args:
        map_50: the detector's mAP@0.5 on the test images.
        train, test: images with boxes.
        class_names: the name of each class.
    """
    return BaselineScores(
        metric="mAP@0.5",
        score=map_50,
        baselines=_window_scores(train, test, class_names),
        trivial={"no boxes": 0.0},
        perfect=1.0,
        num_examples=len(test.images),
    )


def _window_scores(train: BoxedSplit, test: BoxedSplit, class_names: tuple[str, ...]) -> dict[str, float]:
    """The baseline's mAP@0.5; empty if it is skipped."""
    if len(class_names) * len(test.images) > MAX_DECISIONS:
        many = f"{len(class_names)} classes in {len(test.images)} test images"
        logger.info("Skipping the baseline (%s): %s would take minutes.", NAME, many)
        return {}
    found = window_detections(train, test.images, num_classes=len(class_names))
    if found is None:
        logger.info("Skipping the baseline (%s): no window fits an object in the training images.", NAME)
        return {}
    return {NAME: float(coco_scores(test.boxes, test.labels, found, class_names=class_names)["map_50"])}


def window_detections(train: BoxedSplit, test_images: np.ndarray, *, num_classes: int) -> list[Detections] | None:
    """Fits the baseline to training images and detects objects in test images.

    Windows of several sizes slide over each image. A linear filter proposes some of them, one SVM per class classifies
    them, ridge regression corrects their boxes, and non-maximum suppression removes overlapping boxes of a class.

    Args:
        train: images with boxes; the first 512 are used.
        test_images: like `BoxedSplit.images`.
        num_classes: number of classes.

    Returns:
        The detections in each image; None if no window fits an object.
    """
    rows = slice(0, MAX_TRAIN_IMAGES)
    boxes, labels = train.boxes[rows], train.labels[rows]
    of_objects = boxes[labels != NO_OBJECT]
    if not len(of_objects):
        return None
    windows = Windows.around(of_objects, image_size=train.images.shape[1])
    machines = _Machines.fitted(windows, windows.features(train.images[rows]), boxes, labels, num_classes)
    return None if machines is None else machines.detections(windows, windows.features(test_images))


@dataclass(frozen=True)
class Windows:
    """The sliding windows of an image.

    Attributes:
        sides: the longer side of an object at each level, in pixels.
        image_size: height and width of the images.
        levels: the level of each window, an index into `sides`.
        places: row and column of each window, in cells of its level.
        boxes: the square of an object in each window: left, top, right, bottom.
    """

    sides: tuple[float, ...]
    image_size: int
    levels: np.ndarray
    places: np.ndarray
    boxes: np.ndarray

    @classmethod
    def around(cls, boxes: np.ndarray, *, image_size: int) -> Windows:
        """Windows that cover the sizes of the boxes from the 2nd to the 98th percentile."""
        longer = np.maximum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        least, most = np.quantile(longer, [0.02, 0.98])
        least = max(float(least), _CORE * CELL * image_size / _MAX_SIDE)
        most = max(float(most), least)
        num_levels = min(_MAX_LEVELS, 1 + round(float(np.log(most / least) / np.log(_STEP))))
        sides = tuple(np.geomspace(least, most, num_levels).tolist())
        levels, places, squares = [], [], []
        for level, side in enumerate(sides):
            num_cells = _num_cells(side, image_size) - _WINDOW + 1
            grid = np.stack(np.meshgrid(np.arange(num_cells), np.arange(num_cells), indexing="ij"), -1).reshape(-1, 2)
            centres = ((grid + _WINDOW / 2) * CELL - CELL) * side / (_CORE * CELL)
            inside = (centres <= image_size).all(axis=1)
            corners = centres[inside, ::-1]
            levels.append(np.full(len(corners), level))
            places.append(grid[inside])
            squares.append(np.concatenate([corners - side / 2, corners + side / 2], axis=1))
        return cls(sides, image_size, np.concatenate(levels), np.concatenate(places), np.concatenate(squares))

    def features(self, images: np.ndarray) -> list[np.ndarray]:
        """HOG features of the images at each level, scaled so that an object of that level spans `_CORE` cells."""
        grey = images.astype(np.float32).mean(axis=-1)
        found = []
        for side in self.sides:
            size = max(1, round(self.image_size * _CORE * CELL / side))
            more = _num_cells(side, self.image_size) * CELL - size - CELL
            maps = []
            for start in range(0, len(grey), _IMAGES_AT_ONCE):
                scaled = resized(grey[start : start + _IMAGES_AT_ONCE], size)
                maps.append(oriented_gradients(np.pad(scaled, ((0, 0), (CELL, more), (CELL, more)), mode="edge")))
            found.append(np.concatenate(maps))
        return found

    def rows(self, features: list[np.ndarray], images: np.ndarray, windows: np.ndarray) -> np.ndarray:
        """The features of pairs of image and window, of shape (num_windows, 576)."""
        found = np.empty((len(windows), _WINDOW * _WINDOW * NUM_BINS), np.float32)
        for level, maps in enumerate(features):
            own = self.levels[windows] == level
            down, across = self.places[windows[own]].T
            found[own] = _views(maps)[images[own], down, across].reshape(int(own.sum()), -1)
        return found

    def filtered(self, features: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
        """The weighted sum of each window's features, of shape (num_images, num_windows)."""
        found = np.empty((len(features[0]), len(self.levels)), np.float32)
        for level, maps in enumerate(features):
            own = self.levels == level
            down, across = self.places[own].T
            for image, view in enumerate(_views(maps)):
                found[image, own] = view[down, across].reshape(int(own.sum()), -1) @ weights
        return found


def _num_cells(side: float, image_size: int) -> int:
    """Cells of an enlarged image, padded by one before and some after, so that windows extend over its edges."""
    return max(_WINDOW, -(-round(image_size * _CORE * CELL / side) // CELL) + 3)


def _views(maps: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(maps, (_WINDOW, _WINDOW), axis=(1, 2))


@dataclass(frozen=True)
class _Machines:
    """The fitted models: proposal filter, principal components, one SVM per class, and box regression."""

    proposal: np.ndarray
    components: Any
    by_class: dict[int, Any]
    corrections: Any

    @classmethod
    def fitted(
        cls, windows: Windows, features: list[np.ndarray], boxes: np.ndarray, labels: np.ndarray, num_classes: int
    ) -> _Machines | None:
        from sklearn.decomposition import PCA
        from sklearn.linear_model import Ridge
        from sklearn.svm import SVC

        generator = np.random.default_rng(0)
        shown, nearest = _shown(windows, boxes, labels)
        objects = _some(np.argwhere(shown >= 0), _MAX_OF_A_KIND, generator)
        none = _some(np.argwhere(shown == NO_OBJECT), _NUM_RANDOM * len(shown), generator)
        if not len(objects) or not len(none):
            return None
        rows = [windows.rows(features, *some.T) for some in (objects, none)]
        proposal = _ridge_filter(*rows)
        best = _proposed(windows.filtered(features, proposal))
        mined = np.argwhere(np.take_along_axis(shown, best, axis=1) == NO_OBJECT)
        mined = _some(np.stack([mined[:, 0], best[tuple(mined.T)]], axis=1), _MAX_OF_A_KIND, generator)
        without = np.concatenate([windows.rows(features, *mined.T), rows[1][: _MAX_OF_A_KIND // 4]])
        both = np.concatenate([rows[0], without])
        components = PCA(min(_NUM_COMPONENTS, *both.shape), random_state=0).fit(both)
        described = components.transform(both)
        classes = np.concatenate([shown[tuple(objects.T)], np.full(len(without), NO_OBJECT)])
        by_class = {
            number: SVC(C=_PENALTY).fit(described, classes == number)
            for number in range(num_classes)
            if (classes == number).any()
        }
        squares = windows.boxes[objects[:, 1]]
        true = boxes[objects[:, 0], nearest[tuple(objects.T)]]
        sides = (squares[:, 2] - squares[:, 0])[:, None]
        corrections = Ridge(1.0).fit(described[: len(objects)], (true - squares) / sides)
        return cls(proposal, components, by_class, corrections)

    def detections(self, windows: Windows, features: list[np.ndarray]) -> list[Detections]:
        best = _proposed(windows.filtered(features, self.proposal))
        images = np.repeat(np.arange(len(best)), best.shape[1])
        described = self.components.transform(windows.rows(features, images, best.ravel()))
        scores = np.stack([machine.decision_function(described) for machine in self.by_class.values()], axis=1)
        squares = windows.boxes[best.ravel()]
        sides = (squares[:, 2] - squares[:, 0])[:, None]
        boxes = np.clip(squares + self.corrections.predict(described) * sides, 0, windows.image_size)
        classes = np.array(list(self.by_class))
        return [_surest(boxes[images == image], scores[images == image], classes) for image in range(len(best))]


def _shown(windows: Windows, boxes: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each image and window, its class, NO_OBJECT or _AMBIGUOUS; and the object of largest overlap."""
    middles = (boxes[..., :2] + boxes[..., 2:]) / 2
    half = (boxes[..., 2:] - boxes[..., :2]).max(axis=-1, keepdims=True) / 2
    squares = np.concatenate([middles - half, middles + half], axis=-1)
    shown = np.full((len(boxes), len(windows.boxes)), NO_OBJECT)
    nearest = np.zeros_like(shown)
    for image, (own, classes) in enumerate(zip(squares, labels, strict=True)):
        overlaps = np.where(classes == NO_OBJECT, 0.0, _overlaps(windows.boxes, own))
        nearest[image], most = overlaps.argmax(axis=1), overlaps.max(axis=1)
        kinds = np.where(most >= _IS_OBJECT, classes[nearest[image]], _AMBIGUOUS)
        shown[image] = np.where(most < _IS_NONE, NO_OBJECT, kinds)
    return shown, nearest


def _overlaps(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The intersection over union of each pair of boxes."""
    starts, ends = np.maximum(some[:, None, :2], others[:, :2]), np.minimum(some[:, None, 2:], others[:, 2:])
    common = np.clip(ends - starts, 0, None).prod(axis=-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=-1) for boxes in (some, others)]
    return np.asarray(common / np.maximum(areas[0][:, None] + areas[1] - common, 1e-9))


def _some(places: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    return places[np.sort(generator.permutation(len(places))[:most])]


def _ridge_filter(objects: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Weights that separate windows with objects from others (linear discriminant, classes weighted equally)."""
    difference = objects.mean(axis=0) - others.mean(axis=0)
    spread = np.cov(objects, rowvar=False, bias=True) + np.cov(others, rowvar=False, bias=True)
    spread += 1e-3 * np.trace(spread) / len(spread) * np.eye(len(spread))
    return np.linalg.solve(spread, difference).astype(np.float32)


def _proposed(scores: np.ndarray) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :_NUM_PROPOSED]


def _surest(boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray) -> Detections:
    """The boxes that each SVM accepts, after non-maximum suppression within each class."""
    found: list[tuple[float, int, np.ndarray]] = []
    for number, own in zip(classes.tolist(), scores.T, strict=True):
        left = np.argsort(-own, kind="stable")
        left = left[own[left] > _MIN_SCORE]
        while len(left):
            found.append((float(own[left[0]]), number, boxes[left[0]]))
            left = left[1:][_overlaps(boxes[left[:1]], boxes[left[1:]])[0] < _MAX_IOU]
    found.sort(key=lambda one: -one[0])
    return Detections(
        np.array([box for *_, box in found]).reshape(-1, 4),
        np.array([number for _, number, _ in found], np.int64),
        np.array([score for score, *_ in found]),
    )


def oriented_gradients(images: np.ndarray) -> np.ndarray:
    """Computes the histogram of each cell, normalized by the edge strength in the 3x3 cells around it.

    Args:
        images: grayscale, float32, of shape (num_images, height, width).

    Returns:
        float32, of shape (num_images, height // 4, width // 4, 9).

    Example:
        >>> edge = np.repeat([0.0, 255.0], 8)[None, None].repeat(16, axis=1)
        >>> oriented_gradients(edge)[0, 1, 1].astype(float).round(1).tolist()
        [0.4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    down, across = np.zeros_like(images, np.float32), np.zeros_like(images, np.float32)
    down[:, 1:-1] = images[:, 2:] - images[:, :-2]
    across[:, :, 1:-1] = images[:, :, 2:] - images[:, :, :-2]
    strength = np.hypot(down, across)
    direction = np.arctan2(down, across) % np.pi / np.pi * NUM_BINS
    lower = np.floor(direction)
    to_upper = strength * (direction - lower)
    lower = lower.astype(int) % NUM_BINS
    num_images, height, width = len(images), images.shape[1] // CELL, images.shape[2] // CELL
    cells = (np.arange(num_images)[:, None, None] * height + np.arange(height * CELL)[:, None] // CELL) * width
    cells = (cells + np.arange(width * CELL) // CELL) * NUM_BINS
    inside = (slice(None), slice(height * CELL), slice(width * CELL))
    found = np.zeros(num_images * height * width * NUM_BINS)
    for bins, weights in ((lower, strength - to_upper), ((lower + 1) % NUM_BINS, to_upper)):
        found += np.bincount((cells + bins[inside]).ravel(), weights[inside].ravel(), minlength=len(found))
    histograms = found.astype(np.float32).reshape(num_images, height, width, NUM_BINS)
    squares = np.pad((histograms**2).sum(axis=-1), ((0, 0), (1, 1), (1, 1)), mode="edge")
    around = sum(squares[:, i : i + height, j : j + width] for i in range(3) for j in range(3))
    return np.asarray(histograms / np.sqrt(around + _FAINT**2)[..., None], np.float32)


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Resizes square images by linear interpolation; downsizing averages pixels.

    Example:
        >>> resized(np.array([[[0.0, 4.0], [0.0, 4.0]]]), 4)[0, 0].tolist()
        [0.0, 1.0, 3.0, 4.0]
    """
    old = images.shape[1]
    positions = np.clip((np.arange(size) + 0.5) * old / size - 0.5, 0, old - 1)
    weights = np.maximum(0, 1 - np.abs(positions[:, None] - np.arange(old)) / max(1.0, old / size))
    weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return np.asarray(weights @ images.astype(np.float32) @ weights.T)


def check_coco_library() -> None:
    """Raises VersionError if pycocotools is not installed."""
    if importlib.util.find_spec("pycocotools") is None:
        raise VersionError(
            "Scoring detections needs pycocotools, which is not installed. Run: pip install 'tfaccel[detection]'."
        )


def coco_scores(
    boxes: np.ndarray, labels: np.ndarray, detections: Sequence[Any], *, class_names: tuple[str, ...]
) -> dict[str, Any]:
    """Computes the mean average precision of detections, from 0 to 1.

    Args:
        boxes: the true boxes in pixels: left, top, right, bottom; of shape (num_images, max_objects, 4).
        labels: their classes, of shape (num_images, max_objects), padded with NO_OBJECT.
        detections: an object with `boxes` (num_found, 4), `labels` and `scores` for each image.
        class_names: the name of each class.

    Returns:
        "map_50" (mAP at an IoU threshold of 0.5), "map" (the mean over IoU thresholds from 0.5 to 0.95), and
        "ap_50_by_class", None for a class without objects.

    Raises:
        VersionError: if pycocotools is not installed.
        DataError: if the numbers of images and detections differ.

    Example:
        >>> from types import SimpleNamespace
        >>> box = np.array([[0.0, 0, 9, 9]])
        >>> found = SimpleNamespace(boxes=box, labels=np.array([0]), scores=np.array([0.9]))
        >>> round(coco_scores(box[None], np.array([[0]]), [found], class_names=("cat",))["map_50"], 6)
        1.0
    """
    check_coco_library()
    if len(detections) != len(boxes):
        raise DataError(
            f"Each image needs its detections. Received: {len(boxes)} images, {len(detections)} detections."
        )
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = [
        _entry(image, boxes[image, place], labels[image, place])
        for image, place in zip(*np.nonzero(labels != NO_OBJECT), strict=True)
    ]
    found = [
        {**_entry(image, box, label), "score": float(score)}
        for image, one in enumerate(detections)
        for box, label, score in zip(one.boxes, one.labels, one.scores, strict=True)
    ]
    num_classes = len(class_names)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        judge = COCOeval(_coco(COCO(), truth, len(boxes), class_names), iouType="bbox")
        judge.cocoDt = _coco(COCO(), found, len(boxes), class_names)
        judge.evaluate()
        judge.accumulate()
    precision = judge.eval["precision"][:, :, :, 0, -1]  # IoU, recall, class; all box sizes, max detections
    by_class = [
        [_mean(precision[overlaps, :, c]) for c in range(num_classes)] for overlaps in (slice(0, 1), slice(None))
    ]
    means = [float(np.mean([v for v in values if v is not None] or [0.0])) for values in by_class]
    return {"map_50": means[0], "map": means[1], "ap_50_by_class": dict(zip(class_names, by_class[0], strict=True))}


def box_rows(detections: Sequence[Any], *, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Converts detections to JSON values: image index, category, box (left, top, width, height) and score.

    Args:
        detections: an object with `boxes` (num_found, 4), `labels` and `scores` for each image.
        class_names: the name of each class.
    """
    return [
        {
            "image_id": image,
            "category": class_names[label],
            "bbox": [*map(float, (*box[:2], *(box[2:] - box[:2])))],
            "score": float(score),
        }
        for image, one in enumerate(detections)
        for box, label, score in zip(one.boxes, one.labels, one.scores, strict=True)
    ]


def _entry(image: int, box: np.ndarray, label: int) -> dict[str, Any]:
    left, top, right, bottom = (float(edge) for edge in box)
    size = [left, top, right - left, bottom - top]
    return {"image_id": int(image), "category_id": int(label), "bbox": size, "area": size[2] * size[3], "iscrowd": 0}


def _coco(coco: Any, entries: list[dict[str, Any]], num_images: int, class_names: tuple[str, ...]) -> Any:
    """Fills a pycocotools dataset with these boxes."""
    coco.dataset = {
        "images": [{"id": image} for image in range(num_images)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(class_names)],
        "annotations": [{"id": number + 1, **entry} for number, entry in enumerate(entries)],
    }
    coco.createIndex()
    return coco


def _mean(precision: np.ndarray) -> float | None:
    """The mean precision of a class; None if it has no objects, which pycocotools marks with -1."""
    return None if (precision < 0).all() else float(precision[precision >= 0].mean())
