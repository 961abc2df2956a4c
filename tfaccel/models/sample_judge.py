"""A quality metric for a GAN's generator during training, for searches: its losses do not measure quality."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

    from tfaccel.models.conditional_gan import ConditionalGan

METRIC = "val_recognised"
SAMPLES_PER_CLASS = 20


def sample_inputs(generator: keras.Model, samples_per_class: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The inputs of samples, the same in every call: [noise, one-hot labels], and the labels, cycling through them."""
    noise_shape, labels_shape = (tensor.shape for tensor in generator.inputs)
    labels = np.tile(np.arange(labels_shape[1]), samples_per_class)
    noise = np.random.default_rng(0).standard_normal((len(labels), noise_shape[1]), np.float32)
    return [noise, np.eye(labels_shape[1], dtype=np.float32)[labels]], labels


class SampleJudge:
    """Scores a generator with a support vector machine, fitted to real images that the GAN is not trained on.

    Args:
        real_images: `real_images()` returns standardized pixels, of shape (num_images, height, width, channels), and
            the class index of each image. It is called on first use.
    """

    def __init__(self, real_images: Callable[[], tuple[np.ndarray, np.ndarray]]) -> None:
        self._real_images = real_images

    @functools.cached_property
    def _classifier(self) -> Any:
        from sklearn.svm import SVC

        images, labels = self._real_images()
        return SVC().fit(images.reshape(len(images), -1), labels)

    def __call__(self, model: ConditionalGan) -> dict[str, float]:
        """The fraction of samples classified as their intended class, with the averaged weights.

        Args:
            model: a compiled GAN; its weights are restored afterwards.
        """
        inputs, labels = sample_inputs(model.generator, SAMPLES_PER_CLASS)
        weights = model.generator.get_weights()
        model.generator_optimizer.finalize_variable_values(model.generator.trainable_variables)
        made = np.asarray(model.generator(inputs, training=False))
        model.generator.set_weights(weights)
        found = self._classifier.predict(np.nan_to_num(made).reshape(len(made), -1))
        return {METRIC: float((found == labels).mean())}
