"""Models with a custom `train_step`, in the style of the Keras guides."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.parity.case import ParityCase
from tfaccel.parity.datasets import MARK, NUM_FEATURES
from tfaccel.parity.optimizers import build_optimizer
from tfaccel.parity.overflow_layer import OverflowingGradient


@keras.saving.register_keras_serializable("tfaccel_parity")
class OwnStepModel(keras.Model):
    """A functional model with a custom train step."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """One optimizer step; returns the results of all metrics."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}


@keras.saving.register_keras_serializable("tfaccel_parity")
class Gan(keras.Model):
    """A generator and a discriminator with separate optimizers; the noise is part of the data."""

    def __init__(self, case: ParityCase, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.case = case
        self.generator = keras.Sequential(
            [
                keras.Input((NUM_FEATURES,)),
                keras.layers.Dense(8, activation="tanh", dtype=case.layer_dtype, name="generator_first"),
                keras.layers.Dense(NUM_FEATURES, dtype="float32", name="generator_last"),
            ],
            name="generator",
        )
        x = keras.Input((NUM_FEATURES,))
        hidden = keras.layers.Dense(8, activation="tanh", dtype=case.layer_dtype, name="discriminator_first")(x)
        if case.dtype_policy == "mixed_float16":
            hidden = OverflowingGradient(MARK, dtype=case.layer_dtype, name="overflow")([hidden, x])
        output = keras.layers.Dense(1, dtype="float32", name="discriminator_last")(hidden)
        self.discriminator = keras.Model(x, output, name="discriminator")
        self.generator_optimizer = build_optimizer(case, name="generator_optimizer")
        self.discriminator_optimizer = build_optimizer(case, name="discriminator_optimizer")
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.mean_loss = keras.metrics.Mean(name="mean_discriminator_loss")

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Generates samples from noise."""
        return self.generator(inputs["latent"], training=training)

    def train_step(self, data: Any) -> dict[str, Any]:
        """A step of the discriminator, then one of the generator; returns both losses of this batch."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        real, latent = x["real"], x["latent"]
        with tf.GradientTape() as tape:
            truth, fake = self.discriminator(real, training=True), self.discriminator(self.generator(latent))
            discriminator_loss = self.loss_fn(tf.ones_like(truth), truth) + self.loss_fn(tf.zeros_like(fake), fake)
            scaled = self.discriminator_optimizer.scale_loss(discriminator_loss)
        variables = self.discriminator.trainable_variables
        self.discriminator_optimizer.apply(tape.gradient(scaled, variables), variables)
        with tf.GradientTape() as tape:
            judged = self.discriminator(self.generator(latent, training=True))
            generator_loss = self.loss_fn(tf.ones_like(judged), judged)
            scaled = self.generator_optimizer.scale_loss(generator_loss)
        variables = self.generator.trainable_variables
        self.generator_optimizer.apply(tape.gradient(scaled, variables), variables)
        self.mean_loss.update_state(discriminator_loss)
        return {
            "discriminator_loss": discriminator_loss,
            "generator_loss": generator_loss,
            "mean_discriminator_loss": self.mean_loss.result(),
        }
