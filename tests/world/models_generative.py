"""Generative models, trained by steps of their own: autoencoders, adversaries, diffusion, flows."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, image_classes, pixels, rows, sgd, world_model

from tfaccel.parity.share_layers import cut_into_shares
from tfaccel.training.private.private_random import SEED_STRIDE


class Draws:
    """Normal numbers, each share of a batch's rows with a seed of its own, as on that many replicas."""

    def __init__(self, seed: int, num_shares: int) -> None:
        self.generators = [keras.random.SeedGenerator(seed + share * SEED_STRIDE) for share in range(num_shares)]

    def __call__(self, like: Any, *shape: int) -> Any:
        shares = cut_into_shares(like, len(self.generators))
        drawn = [
            keras.random.normal((ops.shape(share)[0], *shape), seed=generator)
            for share, generator in zip(shares, self.generators, strict=True)
        ]
        return ops.concatenate(drawn, axis=0)


class VAE(keras.Model):
    """Encoder and decoder with a `train_step` and no `call`."""

    def __init__(self, num_shares: int) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Flatten(), layers.Dense(8, activation="relu"), layers.Dense(4)])
        self.decoder = keras.Sequential([layers.Dense(64, activation="sigmoid"), layers.Reshape((8, 8, 1))])
        self.draws = Draws(5, num_shares)
        self.seed_generators = self.draws.generators
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_loss_tracker, self.kl_loss_tracker]

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            z_mean, z_log_var = ops.split(self.encoder(data), 2, axis=1)
            z = z_mean + ops.exp(0.5 * z_log_var) * self.draws(data, 2)
            crossentropy = keras.losses.binary_crossentropy(data, self.decoder(z))
            kl_loss = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
            kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
            total_loss = ops.mean(ops.sum(crossentropy, axis=(1, 2))) + kl_loss
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {"loss": self.total_loss_tracker.result(), "kl_loss": self.kl_loss_tracker.result()}


def variational(num_shares: int) -> keras.Model:
    model = VAE(num_shares)
    model.compile(optimizer=adam())
    return model


@world_model(lambda: batches(pixels(8, 8, 1)), for_reference=variational, evaluates=False, predicts=False)
def vae() -> keras.Model:
    return variational(1)


def network(*sizes: int) -> keras.Model:
    hidden = [layers.Dense(size, activation="leaky_relu") for size in sizes[1:-1]]
    return keras.Sequential([keras.Input((sizes[0],)), *hidden, layers.Dense(sizes[-1])])


class WGAN(keras.Model):
    """Several steps of the critic, with a gradient penalty, for one of the generator; `compile` is its own."""

    def __init__(self, num_shares: int) -> None:
        super().__init__()
        self.critic, self.generator = network(6, 8, 1), network(3, 8, 6)
        self.draws = Draws(6, num_shares)
        self.seed_generators = self.draws.generators

    def compile(self, d_optimizer: Any, g_optimizer: Any, d_loss_fn: Any, g_loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.d_loss_fn, self.g_loss_fn = d_loss_fn, g_loss_fn

    def gradient_penalty(self, real: Any, fake: Any) -> Any:
        middle = real + self.draws(real, 1) * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(middle)
            scores = self.critic(middle, training=True)
        norm = tf.sqrt(tf.reduce_sum(tf.square(tape.gradient(scores, middle)), axis=1) + 1e-12)
        return tf.reduce_mean((norm - 1.0) ** 2)

    def train_step(self, real: Any) -> Any:
        if isinstance(real, tuple):
            real = real[0]
        for _ in range(2):
            latent = self.draws(real, 3)
            with tf.GradientTape() as tape:
                fake = self.generator(latent, training=True)
                cost = self.d_loss_fn(self.critic(real, training=True), self.critic(fake, training=True))
                d_loss = cost + 10.0 * self.gradient_penalty(real, fake)
            gradient = tape.gradient(d_loss, self.critic.trainable_variables)
            self.d_optimizer.apply_gradients(zip(gradient, self.critic.trainable_variables, strict=True))
        latent = self.draws(real, 3)
        with tf.GradientTape() as tape:
            g_loss = self.g_loss_fn(self.critic(self.generator(latent, training=True), training=True))
        gradient = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gradient, self.generator.trainable_variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def wasserstein(num_shares: int) -> keras.Model:
    model = WGAN(num_shares)
    model.compile(
        d_optimizer=sgd(0.01),
        g_optimizer=sgd(0.01),
        d_loss_fn=lambda real, fake: tf.reduce_mean(fake) - tf.reduce_mean(real),
        g_loss_fn=lambda fake: -tf.reduce_mean(fake),
    )
    return model


@world_model(lambda: batches(rows(6)), for_reference=wasserstein, evaluates=False, predicts=False)
def wgan_gp() -> keras.Model:
    return wasserstein(1)


class ConditionalGAN(keras.Model):
    """Images with their labels as extra channels; two optimizers and a loss handed to `compile`."""

    def __init__(self, num_shares: int) -> None:
        super().__init__()
        self.discriminator = keras.Sequential(
            [layers.Conv2D(4, 3, strides=2, activation="leaky_relu"), layers.GlobalMaxPooling2D(), layers.Dense(1)]
        )
        self.generator = keras.Sequential([layers.Dense(64, activation="tanh"), layers.Reshape((8, 8, 1))])
        self.draws = Draws(7, num_shares)
        self.seed_generators = self.draws.generators
        self.gen_loss_tracker = keras.metrics.Mean(name="generator_loss")
        self.disc_loss_tracker = keras.metrics.Mean(name="discriminator_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.gen_loss_tracker, self.disc_loss_tracker]

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def train_step(self, data: Any) -> Any:
        images, labels = data
        one_hot = ops.one_hot(labels, 3)
        label_images = ops.broadcast_to(one_hot[:, None, None, :], (ops.shape(images)[0], 8, 8, 3))

        def judged(generated: Any) -> Any:
            return self.discriminator(ops.concatenate([generated, label_images], -1))

        latent = ops.concatenate([self.draws(images, 4), one_hot], axis=1)
        with tf.GradientTape() as tape:
            generated = self.generator(latent)
            fake, real = judged(generated), judged(images)
            d_loss = self.loss_fn(ops.ones_like(fake), fake) + self.loss_fn(ops.zeros_like(real), real)
        grads = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(grads, self.discriminator.trainable_weights, strict=True))
        with tf.GradientTape() as tape:
            fake = judged(self.generator(latent))
            g_loss = self.loss_fn(ops.zeros_like(fake), fake)
        grads = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(grads, self.generator.trainable_weights, strict=True))
        self.gen_loss_tracker.update_state(g_loss)
        self.disc_loss_tracker.update_state(d_loss)
        return {"g_loss": self.gen_loss_tracker.result(), "d_loss": self.disc_loss_tracker.result()}


def conditional(num_shares: int) -> keras.Model:
    gan = ConditionalGAN(num_shares)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    gan.compile(d_optimizer=adam(0.003), g_optimizer=adam(0.003), loss_fn=loss)
    return gan


@world_model(lambda: image_classes(8), for_reference=conditional, evaluates=False, predicts=False)
def conditional_gan() -> keras.Model:
    return conditional(1)


class DiffusionModel(keras.Model):
    """Denoises implicitly; `compile`'s loss is called by the step, a second network follows the first one's weights."""

    def __init__(self, num_shares: int) -> None:
        super().__init__()
        self.normalizer = layers.Normalization()
        self.network = network(7, 16, 6)
        self.ema_network = keras.models.clone_model(self.network)
        self.noises, self.times = Draws(8, num_shares), Draws(9, num_shares)
        self.seed_generators = self.noises.generators + self.times.generators

    def compile(self, **kwargs: Any) -> None:
        super().compile(**kwargs)
        self.noise_loss_tracker = keras.metrics.Mean(name="n_loss")
        self.image_loss_tracker = keras.metrics.Mean(name="i_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.noise_loss_tracker, self.image_loss_tracker]

    def losses_of(self, images: Any, net: Any, *, training: bool) -> tuple[Any, Any]:
        images = self.normalizer(images, training=training)
        noises, times = self.noises(images, 6), ops.sigmoid(self.times(images, 1))
        signal_rates, noise_rates = ops.cos(times), ops.sin(times)
        noisy = signal_rates * images + noise_rates * noises
        pred_noises = net(ops.concatenate([noisy, noise_rates**2], axis=1), training=training)
        pred_images = (noisy - noise_rates * pred_noises) / signal_rates
        return self.loss(noises, pred_noises), self.loss(images, pred_images)

    def train_step(self, images: Any) -> Any:
        with tf.GradientTape() as tape:
            noise_loss, image_loss = self.losses_of(images, self.network, training=True)
        gradients = tape.gradient(noise_loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        for weight, ema_weight in zip(self.network.weights, self.ema_network.weights, strict=True):
            ema_weight.assign(0.9 * ema_weight + 0.1 * weight)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, images: Any) -> Any:
        noise_loss, image_loss = self.losses_of(images, self.ema_network, training=False)
        self.noise_loss_tracker.update_state(noise_loss)
        self.image_loss_tracker.update_state(image_loss)
        return {m.name: m.result() for m in self.metrics}


def diffusion(num_shares: int) -> keras.Model:
    model = DiffusionModel(num_shares)
    model.compile(
        optimizer=keras.optimizers.AdamW(0.01, weight_decay=1e-4, epsilon=1e-3), loss=keras.losses.mean_absolute_error
    )
    model.normalizer.adapt(rows(6))
    return model


@world_model(
    lambda: {"x": tf.data.Dataset.from_tensor_slices(rows(6)).batch(8)}, for_reference=diffusion, predicts=False
)
def ddim() -> keras.Model:
    return diffusion(1)
