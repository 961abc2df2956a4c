"""Loss and box decoding of an anchor-free detector.

Source: Zhou et al., Objects as points, 2019, https://arxiv.org/abs/1904.07850
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfaccel.data.box_data import NUM_BOX_CHANNELS, STRIDE, Detections

_SIZE_WEIGHT, _PLACE_WEIGHT = 0.1, 1.0
_MAX_PEAKS, _MAX_DETECTIONS = 100, 50
_MAX_IOU = 0.5  # of two boxes of one class; non-maximum suppression removes boxes that overlap more
_MIN_SCORE = 0.01


@keras.saving.register_keras_serializable("tfaccel")
def detection_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    r"""The loss of each image: focal loss of the heat maps, plus absolute errors of box sizes and offsets.

    With heat $y$, probability $p$ and $n$ objects (at least 1), the focal loss is
    $-\frac{1}{n} \sum (1 - p)^2 \log p$ where $y = 1$, and $-\frac{1}{n} \sum (1 - y)^4 p^2 \log(1 - p)$ elsewhere.

    Args:
        y_true: of shape (num_images, cells, cells, num_classes + 5); see `tfaccel.data.box_data.target_maps`.
        y_pred: of shape (num_images, cells, cells, num_classes + 4): heat-map logits, then box sizes and offsets.

    Returns:
        Of shape (num_images,).

    Example:
        >>> none = np.zeros((1, 1, 1, 6), np.float32)
        >>> sure = np.array([[[[-20.0, 0, 0, 0, 0]]]], np.float32)
        >>> round(float(detection_loss(none, sure)[0]), 6)
        0.0
    """
    num_classes = y_pred.shape[-1] - NUM_BOX_CHANNELS
    heat, logits = y_true[..., :num_classes], y_pred[..., :num_classes]
    mask = y_true[..., -1:]
    p = ops.sigmoid(logits)
    at_centre = (1 - p) ** 2 * ops.softplus(-logits)
    elsewhere = (1 - heat) ** 4 * p**2 * ops.softplus(logits)
    focal = ops.sum(ops.where(heat >= 1.0, at_centre, elsewhere), axis=(1, 2, 3))
    errors = ops.abs(y_true[..., num_classes:-1] - y_pred[..., num_classes:]) * mask
    sizes, places = ops.sum(errors[..., :2], axis=(1, 2, 3)), ops.sum(errors[..., 2:], axis=(1, 2, 3))
    num_objects = ops.maximum(ops.sum(mask, axis=(1, 2, 3)), 1.0)
    return (focal + _SIZE_WEIGHT * sizes + _PLACE_WEIGHT * places) / num_objects


@tf.function(autograph=False)
def _peaks(maps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Boxes (top, left, bottom, right), classes and scores of the highest peaks of each image's heat maps."""
    num_classes, num_cells = maps.shape[-1] - NUM_BOX_CHANNELS, maps.shape[1]
    heat = tf.sigmoid(maps[..., :num_classes])
    peaks = tf.where(tf.nn.max_pool2d(heat, 3, 1, "SAME") == heat, heat, tf.zeros_like(heat))
    flat = tf.reshape(peaks, [-1, num_cells * num_cells * num_classes])
    scores, places = tf.math.top_k(flat, min(_MAX_PEAKS, flat.shape[1]))
    cells, labels = places // num_classes, places % num_classes
    of_boxes = tf.reshape(maps[..., num_classes:], [-1, num_cells * num_cells, NUM_BOX_CHANNELS])
    sizes_and_places = tf.gather(of_boxes, cells, batch_dims=1)
    corner = tf.cast(tf.stack([cells // num_cells, cells % num_cells], axis=-1), tf.float32)
    centre, half = corner + sizes_and_places[..., 2:], tf.maximum(sizes_and_places[..., :2], 0.0) / 2
    boxes = tf.concat([centre - half, centre + half], axis=-1) * STRIDE
    return tf.clip_by_value(boxes, 0.0, float(num_cells * STRIDE)), labels, scores


def read_detections(maps: np.ndarray) -> list[Detections]:
    """Decodes predicted maps to boxes: peaks of the heat maps, after non-maximum suppression within each class.

    Args:
        maps: predictions of the model, of shape (num_images, cells, cells, num_classes + 4).

    Example:
        >>> maps = np.full((1, 4, 4, 5), -9.0, np.float32)
        >>> maps[0, 1, 2] = 5.0, 2.0, 1.0, 0.5, 0.5
        >>> found = read_detections(maps)[0]
        >>> found.boxes.tolist(), found.labels.tolist(), found.scores.round(2).tolist()
        ([[8.0, 2.0, 12.0, 10.0]], [0], [0.9900000095367432])
    """
    found = []
    for boxes, labels, scores in zip(*(part.numpy() for part in _peaks(tf.constant(maps, tf.float32))), strict=True):
        # Boxes of different classes are shifted apart, so that suppression acts within each class.
        apart = boxes + (labels * maps.shape[1] * STRIDE * 2)[:, None].astype(np.float32)
        kept = tf.image.non_max_suppression(
            apart, scores, _MAX_DETECTIONS, iou_threshold=_MAX_IOU, score_threshold=_MIN_SCORE
        ).numpy()
        found.append(Detections(boxes[kept][:, [1, 0, 3, 2]], labels[kept].astype(np.int64), scores[kept]))
    return found
