"""A conditional GAN: generator and discriminator, both conditioned on the class."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.schedules import accumulate
from tfaccel.training.steps.model_parts import inner_optimizer

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
