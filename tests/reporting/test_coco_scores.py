"""Scores of detections by pycocotools."""

from types import SimpleNamespace

import numpy as np
import pytest

from tfaccel.errors import DataError, VersionError
from tfaccel.reporting import detections as scores_module
from tfaccel.reporting.detections import coco_scores

BOXES = np.array([[[0.0, 0, 10, 10], [20, 20, 30, 30]], [[5, 5, 15, 15], [0, 0, 0, 0]]])
LABELS = np.array([[0, 1], [0, -1]])


def found(boxes, labels, scores):
    return SimpleNamespace(boxes=np.array(boxes).reshape(-1, 4), labels=np.array(labels, int), scores=np.array(scores))


def test_all_found_scores_one():
    detections = [found(BOXES[0], [0, 1], [0.9, 0.8]), found(BOXES[1][:1], [0], [0.7])]
    scores = coco_scores(BOXES, LABELS, detections, class_names=("cat", "dog", "cow"))
    assert (scores["map_50"], scores["map"]) == pytest.approx((1.0, 1.0))
    assert scores["ap_50_by_class"] == {"cat": pytest.approx(1.0), "dog": pytest.approx(1.0), "cow": None}


def test_wrong_class_and_a_loose_box_cost():
    detections = [found(BOXES[0] + 1.5, [0, 0], [0.9, 0.8]), found(BOXES[1][:1], [0], [0.7])]
    scores = coco_scores(BOXES, LABELS, detections, class_names=("cat", "dog"))
    assert scores["ap_50_by_class"]["dog"] == 0.0
    assert 0.5 < scores["ap_50_by_class"]["cat"] < 1.0
    assert scores["map"] < scores["map_50"]


def test_nothing_found_scores_nothing():
    nothing = found([], [], [])
    assert coco_scores(BOXES, LABELS, [nothing, nothing], class_names=("cat", "dog"))["map_50"] == 0.0
    with pytest.raises(DataError, match="2 images, 1 detections"):
        coco_scores(BOXES, LABELS, [nothing], class_names=("cat", "dog"))


def test_the_missing_library_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(scores_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(VersionError, match=r"pip install 'tfaccel\[detection\]'"):
        scores_module.check_coco_library()
