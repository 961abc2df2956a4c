"""A generator and a discriminator that train against each other, told the class of each image."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.accumulation import accumulate
from tfaccel.training.model_parts import inner_optimizer


@keras.saving.register_keras_serializable("tfaccel")
class ConditionalGan(keras.Model):
    r"""A conditional generative adversarial network with a `train_step` of its own.

    The discriminator $D$ lowers $-\log D(x) - \log(1 - D(G(z)))$, then the generator $G$ lowers $-\log D(G(z))$. The
    noise $z$ is part of the data, so that the step draws nothing at random but dropout.

    Args:
        generator: from [noise, one-hot labels] to images.
        discriminator: from [images, one-hot labels] to one logit: is the image real?
        label_smoothing: part of the discriminator's target that is taken from "real" for real images.

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
        self.built = True  # both parts are

    @property
    def served_model(self) -> keras.Model:
        """What is exported and served: the generator."""
        return self.generator

    def compile(self, optimizer: Any, *, generator_optimizer: Any = None, **kwargs: Any) -> None:
        """Takes two optimizers: `optimizer` is the discriminator's. The generator's has the same loss scaling."""
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
        """What the generator makes of `inputs["noise"]` for the classes in `inputs["labels"]`."""
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
        losses["loss"] = discriminator_loss + generator_loss  # what training stops by where it is not finite
        for metric in self.metrics:
            metric.update_state(losses[metric.name])
        return {metric.name: metric.result() for metric in self.metrics}

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        parts = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in _PARTS}
        return {**super().get_config(), **parts, "label_smoothing": self.label_smoothing}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> ConditionalGan:
        """The model that `get_config` was called on."""
        parts = {name: keras.saving.deserialize_keras_object(config[name], custom_objects) for name in _PARTS}
        return cls(**{**config, **parts})


_PARTS = ("generator", "discriminator")


class GeneratorAverage(keras.callbacks.Callback):
    """Ends training with the moving average of the generator's weights that its optimizer keeps (`use_ema`)."""

    def on_train_end(self, logs: Any = None) -> None:
        """Overwrites the generator's weights; without `use_ema` nothing is done."""
        self.model.generator_optimizer.finalize_variable_values(self.model.generator.trainable_variables)
