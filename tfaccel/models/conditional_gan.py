"""A conditional GAN: generator and discriminator, both conditioned on the class.

Its losses do not measure quality, so `SampleJudge` scores the generator during training, for searches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.training.accumulation import accumulate
from tfaccel.training.steps.model_parts import inner_optimizer

METRIC = "val_recognised"
SAMPLES_PER_CLASS = 20
_PARTS = ("generator", "discriminator")


@keras.saving.register_keras_serializable("tfaccel")
class ConditionalGan(keras.Model):
    r"""A conditional generative adversarial network with a custom `train_step`.

    The discriminator $D$ minimizes $-\log D(x) - \log(1 - D(G(z)))$, then the generator $G$ minimizes $-\log D(G(z))$.
    The noise $z$ is part of the data, so dropout is the only randomness in the step.

    Args:
        generator: maps [noise, one-hot labels] to images.
        discriminator: maps [images, one-hot labels] to one logit: is the image real?
        label_smoothing: the discriminator's target for real images is 1 minus this.

    Source: Goodfellow et al., Generative adversarial nets, 2014, https://arxiv.org/abs/1406.2661
    """

    def __init__(
        self, generator: keras.Model, discriminator: keras.Model, *, label_smoothing: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.generator = generator
        self.discriminator = discriminator
        self.label_smoothing = label_smoothing
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.discriminator_loss = keras.metrics.Mean(name="discriminator_loss")
        self.generator_loss = keras.metrics.Mean(name="generator_loss")
        self.built = True  # both submodels are

    @property
    def served_model(self) -> keras.Model:
        """The model to export and serve: the generator."""
        return self.generator

    def compile(self, optimizer: Any, *, generator_optimizer: Any = None, **kwargs: Any) -> None:
        """Configures both optimizers: `optimizer` is the discriminator's. Loss scaling applies to both."""
        super().compile(optimizer=optimizer, **kwargs)
        if generator_optimizer is None:
            return
        num_steps = inner_optimizer(self.optimizer).gradient_accumulation_steps
        if num_steps:
            accumulate(generator_optimizer, num_steps)
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            generator_optimizer = keras.optimizers.LossScaleOptimizer(generator_optimizer)
        generator_optimizer.build(self.generator.trainable_variables)  # so that a checkpoint finds its state
        self.generator_optimizer = generator_optimizer

    def call(self, inputs: dict[str, Any], training: bool = False) -> Any:
        """Generates images from `inputs["noise"]` for the classes in `inputs["labels"]`."""
        return self.generator([inputs["noise"], inputs["labels"]], training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of the discriminator, then one of the generator."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        images, labels, noise = x["images"], x["labels"], x["noise"]
        with tf.GradientTape() as tape:
            made = self.generator([noise, labels], training=True)
            real = self.discriminator([images, labels], training=True)
            fake = self.discriminator([made, labels], training=True)
            discriminator_loss = self.loss_fn(tf.ones_like(real) * (1.0 - self.label_smoothing), real)
            discriminator_loss += self.loss_fn(tf.zeros_like(fake), fake)
            scaled = self.optimizer.scale_loss(discriminator_loss)
        variables = self.discriminator.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        with tf.GradientTape() as tape:
            fake = self.discriminator([self.generator([noise, labels], training=True), labels], training=True)
            generator_loss = self.loss_fn(tf.ones_like(fake), fake)
            scaled = self.generator_optimizer.scale_loss(generator_loss)
        variables = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(scaled, variables), variables)
        losses = {"discriminator_loss": discriminator_loss, "generator_loss": generator_loss}
        losses["loss"] = discriminator_loss + generator_loss  # training stops if this is not finite
        for metric in self.metrics:
            metric.update_state(losses[metric.name])
        return {metric.name: metric.result() for metric in self.metrics}

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        parts = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in _PARTS}
        return {**super().get_config(), **parts, "label_smoothing": self.label_smoothing}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> ConditionalGan:
        """Rebuilds the model from the config that `get_config` returned."""
        parts = {name: keras.saving.deserialize_keras_object(config[name], custom_objects) for name in _PARTS}
        return cls(**{**config, **parts})


class GeneratorAverage(keras.callbacks.Callback):
    """Replaces the generator's weights by their moving average (`use_ema` of its optimizer) at the end of training."""

    def on_train_end(self, logs: Any = None) -> None:
        """Overwrites the generator's weights; does nothing without `use_ema`."""
        self.model.generator_optimizer.finalize_variable_values(self.model.generator.trainable_variables)


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
