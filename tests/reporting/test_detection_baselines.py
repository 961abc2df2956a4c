"""Detection without a network: it finds digits, takes few and odd images, and is left out with a word why."""

import dataclasses

import numpy as np
import pytest

from tfaccel.data.box_data import NO_OBJECT, BoxedSplit, digit_scenes
from tfaccel.reporting import detections
from tfaccel.reporting.detections import NAME, Windows, detection_scores, window_detections

NAMES = tuple("0123456789")


@pytest.fixture(scope="module")
def scenes():
    images = digit_scenes("validation")
    return images.train(0, 0), images.test()


def part(split, num_images):
    return BoxedSplit(*(getattr(split, field.name)[:num_images] for field in dataclasses.fields(split)))


@pytest.mark.slow
def test_digits_are_found_the_same_each_time(scenes):
    train, test = part(scenes[0], 160), part(scenes[1], 48)
    scores = detection_scores(0.9, train, test, class_names=NAMES)
    assert (scores.score, scores.num_examples) == (0.9, 48)
    assert 0.75 < scores.baselines[NAME] <= 1.0
    assert detection_scores(0.9, train, test, class_names=NAMES) == scores


@pytest.mark.slow
def test_boxes_lie_in_the_image_and_the_surest_come_first(scenes):
    found = window_detections(part(scenes[0], 64), scenes[1].images[:8], num_classes=10)
    assert len(found) == 8
    for one in found:
        assert one.boxes.shape == (len(one.labels), 4) == (len(one.scores), 4)
        assert (one.boxes >= 0).all()
        assert (one.boxes <= 64).all()
        assert (np.diff(one.scores) <= 0).all()


def test_windows_reach_over_the_edges():
    corners = np.array([[0.0, 0, 20, 20], [44, 44, 64, 64], [10, 10, 34, 34]])
    windows = Windows.around(corners, image_size=64)
    overlaps = detections._overlaps(corners, windows.boxes).max(axis=1)
    assert (overlaps > 0.6).all()


def split_of(boxes, labels, size=32):
    images = np.random.default_rng(0).integers(0, 255, (len(boxes), size, size, 3), np.uint8)
    return BoxedSplit(images, np.array(boxes, np.float32), np.array(labels))


def test_few_images_with_colours_and_empty_ones_are_taken():
    split = split_of([[[4, 4, 20, 20]], [[0, 0, 0, 0]], [[8, 6, 20, 20]]], [[1], [NO_OBJECT], [1]])
    scores = detection_scores(0.9, split, split, class_names=("a", "b"))
    assert list(scores.baselines) == [NAME]


@pytest.mark.parametrize("limit", [1, None])
def test_left_out_with_the_reason(monkeypatch, caplog, limit):
    split = split_of([[[0, 0, 0, 0]]] * 2, [[NO_OBJECT]] * 2)
    if limit:
        monkeypatch.setattr(detections, "MAX_DECISIONS", limit)
    with caplog.at_level("INFO", logger="tfaccel"):
        assert detection_scores(0.0, split, split, class_names=("a",)).baselines == {}
    reason = "1 classes in 2 test images would take minutes" if limit else "no window fits an object"
    assert f"Skipping the baseline ({NAME}): {reason}" in caplog.text
