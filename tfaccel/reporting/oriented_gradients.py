"""Histograms of oriented gradients (HOG): the edge strength per direction in each cell of an image.

Source: Dalal and Triggs, Histograms of oriented gradients for human detection, 2005
"""

from __future__ import annotations

import numpy as np

CELL = 4  # height and width of a cell in pixels
NUM_BINS = 9  # directions, from 0 to 180 degrees
_FAINT = 75.0  # added in the normalization, so that faint edges (pixels from 0 to 255) are not amplified


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
