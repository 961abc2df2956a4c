"""Maps that a detector is trained on, boxes that move with their images, and the scenes of digits."""

import numpy as np
import pytest

from tfaccel.data.box_data import NO_OBJECT, BoxedImages, BoxedSplit, digit_scenes
from tfaccel.data.images.image_data import ImageMoves
from tfaccel.errors import DataError


def images_with(boxes, labels, *, size=32, num_images=6):
    split = BoxedSplit(
        np.zeros((num_images, size, size, 1), np.uint8),
        np.tile(np.array(boxes, np.float32), (num_images, 1, 1)),
        np.tile(np.array(labels), (num_images, 1)),
    )
    return BoxedImages(
        class_names=("cat", "dog"),
        image_size=size,
        num_channels=1,
        most_objects=len(labels),
        num_train_images=num_images,
        num_test_images=num_images,
        train=lambda seed, epoch: split,
        test=lambda: split,
    )


def test_maps_hold_each_object_at_its_centre(logical_devices):
    from tfaccel.data.box_data import target_maps

    boxes = np.array([[[4.0, 8, 20, 16], [0, 0, 4, 4], [9, 9, 9, 9]]])
    maps = target_maps(boxes, np.array([[1, 0, NO_OBJECT]]), image_size=32, num_classes=2)
    assert maps.shape == (1, 8, 8, 7)
    assert maps[0, ..., -1].sum() == 2
    assert maps[0, 3, 3].tolist() == pytest.approx([maps[0, 3, 3, 0], 1, 2, 4, 0, 0, 1])
    assert maps[0, 0, 0].tolist() == pytest.approx([1, maps[0, 0, 0, 1], 1, 1, 0.5, 0.5, 1])
    heat = maps[0, ..., 1]
    assert heat.max() == 1
    assert heat[3, 3] > heat[3, 4] > heat[3, 5] > 0
    assert heat[3, 4] > heat[4, 3]  # the box is wider than it is high


def test_boxes_are_read_back_from_their_maps(logical_devices):
    from tfaccel.data.box_data import target_maps
    from tfaccel.models.centre_detector import read_detections

    split = digit_scenes().test()
    some = slice(0, 40)
    maps = target_maps(split.boxes[some], split.labels[some], image_size=64, num_classes=10)
    logits = np.log(np.clip(maps[..., :10], 1e-6, 1 - 1e-6) / (1 - np.clip(maps[..., :10], 1e-6, 1 - 1e-6)))
    found = read_detections(np.concatenate([logits, maps[..., 10:14]], axis=-1))
    for boxes, labels, one in zip(split.boxes[some], split.labels[some], found, strict=True):
        is_there, sure = labels != NO_OBJECT, one.scores > 0.9
        expected = {(label, *np.round(box, 1)) for box, label in zip(boxes[is_there], labels[is_there], strict=True)}
        assert {
            (label, *np.round(box, 1)) for box, label in zip(one.boxes[sure], one.labels[sure], strict=True)
        } == expected


def test_covered_boxes_of_one_class_are_left_out(logical_devices):
    from tfaccel.models.centre_detector import read_detections

    maps = np.full((1, 8, 8, 6), -9.0, np.float32)
    maps[..., 2:] = 4.0, 4.0, 0.5, 0.5
    maps[0, 2, 2, 0], maps[0, 2, 4, 0], maps[0, 5, 5, 1], maps[0, 4, 3, 0] = 3.0, 1.0, 2.0, 2.5
    maps[0, 2, 4, 5] = -0.6  # so that its box is mostly the first one's
    found = read_detections(maps)[0]
    assert found.labels[found.scores > 0.5].tolist() == [0, 0, 1]
    assert found.scores[found.scores > 0.5] == pytest.approx(1 / (1 + np.exp([-3.0, -2.5, -2.0])), abs=1e-4)


def test_loss_is_zero_for_the_truth_and_counts_per_object(logical_devices):
    from tfaccel.data.box_data import target_maps
    from tfaccel.models.centre_detector import detection_loss

    maps = target_maps(np.array([[[8.0, 8, 24, 16]]]), np.array([[1]]), image_size=32, num_classes=2)
    right = np.concatenate([np.where(maps[..., :2] == 1, 20.0, -20.0), maps[..., 2:6]], axis=-1).astype(np.float32)
    assert float(detection_loss(maps, right)[0]) == pytest.approx(0, abs=1e-6)
    wrong = right.copy()
    wrong[0, 3, 4, 2] += 5.0  # a size
    wrong[0, 3, 4, 4] += 0.5  # a place
    wrong[0, 0, 0, 2:] += 100.0  # where there is no object
    assert float(detection_loss(maps, wrong)[0]) == pytest.approx(0.1 * 5 + 0.5, abs=1e-5)


def test_boxes_move_with_their_images(logical_devices):
    import tensorflow as tf

    from tfaccel.data.box_data import BoxBatches, moved_boxes

    moves = ImageMoves(rotation=0.0, zoom=0.3, shift=0.1)
    transforms = moves.transforms(np.random.default_rng(0), 20, 32)
    boxes = np.tile(np.array([10.0, 12, 20, 26], np.float32), (20, 1, 1))
    moved, labels = moved_boxes(boxes, np.zeros((20, 1), int), transforms, 32)
    assert (labels == 0).all()
    pictures = np.zeros((20, 32, 32, 1), np.float32)
    pictures[:, 12:26, 10:20] = 1.0
    shown = tf.raw_ops.ImageProjectiveTransformV3(
        images=pictures,
        transforms=transforms,
        output_shape=[32, 32],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    ).numpy()[..., 0]
    for picture, (left, top, right, bottom) in zip(shown, moved[:, 0], strict=True):
        assert picture.sum() == pytest.approx((right - left) * (bottom - top), rel=0.1)
        centre = [np.average(np.arange(32) + 0.5, weights=picture.sum(axis=axis)) for axis in (0, 1)]
        assert centre == pytest.approx([(left + right) / 2, (top + bottom) / 2], abs=0.3)
    with pytest.raises(DataError, match="are not turned"):
        BoxBatches(images_with([[0, 0, 8, 8]], [0]), ImageMoves())


def test_objects_that_leave_the_image_are_none_any_more(logical_devices):
    from tfaccel.data.box_data import moved_boxes

    boxes = np.array([[[0.0, 0, 10, 10], [20, 20, 30, 30]]])
    shift = np.array([[1, 0, 8, 0, 1, 0, 0, 0]], np.float32)
    moved, labels = moved_boxes(boxes, np.array([[1, 1]]), shift, 32)
    assert labels.tolist() == [[NO_OBJECT, 1]]
    assert moved[0, 1].tolist() == [12, 20, 22, 30]


def test_batches_are_full_and_follow_from_seed_and_epoch(logical_devices):
    from tfaccel.data.box_data import BoxBatches

    batches = BoxBatches(images_with([[8, 8, 24, 16]], [1]), ImageMoves(rotation=0.0, zoom=0.2, shift=0.1))
    data = batches.train(4, seed=0, epoch=1)
    assert (data.cardinality(), data.element_spec[0].shape) == (1, (4, 32, 32, 1))
    first, again, other = (next(iter(batches.train(4, seed=0, epoch=epoch)))[1].numpy() for epoch in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert [images.shape[0] for images, _ in batches.test(4)] == [4, 2]
    with pytest.raises(DataError, match="A batch takes 7 images, but there are 6"):
        batches.train(7, seed=0, epoch=0)


def test_scenes_follow_from_seed_and_epoch_and_boxes_fit():
    scenes = digit_scenes()
    first, again = scenes.test(), scenes.test()
    assert np.array_equal(first.images, again.images)
    boxes = first.boxes[first.labels != NO_OBJECT]
    assert 300 < len(boxes) < 700
    assert boxes.min() >= 0
    assert boxes.max() <= 64
    longer = (boxes[:, 2:] - boxes[:, :2]).max(axis=1)
    assert (longer.min(), longer.max()) == (14, 30)
    for image, own in zip(first.images[:50, ..., 0], first.boxes[:50], strict=True):
        left, top, right, bottom = own[0].astype(int)
        assert image[top:bottom, left:right].mean() > 2 * image.mean()
