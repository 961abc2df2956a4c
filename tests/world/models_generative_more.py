"""More generative models: flows, quantized codes, pictures that are masked, scenes that are rendered."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, pixels, rows, sgd, world_model


class VectorQuantizer(layers.Layer):
    """The nearest of the learned vectors; adds the commitment loss and hands gradients straight through."""

    def __init__(self, num_embeddings: int, width: int) -> None:
        super().__init__()
        self.width, self.num_embeddings = width, num_embeddings

    def build(self, input_shape: Any) -> None:
        shape = (self.width, self.num_embeddings)
        self.embeddings = self.add_weight(shape=shape, initializer="uniform", name="embeddings_vqvae")

    def call(self, x: Any) -> Any:
        flat = ops.reshape(x, [-1, self.width])
        distances = (
            ops.sum(flat**2, axis=1, keepdims=True)
            + ops.sum(self.embeddings**2, axis=0)
            - 2 * ops.matmul(flat, self.embeddings)
        )
        one_hot = ops.one_hot(ops.argmin(distances, axis=1), self.num_embeddings)
        quantized = ops.reshape(ops.matmul(one_hot, ops.transpose(self.embeddings)), ops.shape(x))
        commitment_loss = ops.mean((ops.stop_gradient(quantized) - x) ** 2)
        codebook_loss = ops.mean((quantized - ops.stop_gradient(x)) ** 2)
        self.add_loss(0.25 * commitment_loss + codebook_loss)
        return x + ops.stop_gradient(quantized - x)


class VQVAETrainer(keras.Model):
    def __init__(self, train_variance: float) -> None:
        super().__init__()
        self.train_variance = train_variance
        inputs = keras.Input((8, 8, 1))
        x = VectorQuantizer(6, 4)(layers.Conv2D(4, 3, strides=2, padding="same")(inputs))
        self.vqvae = keras.Model(inputs, layers.Conv2DTranspose(1, 3, strides=2, padding="same")(x))
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.vq_loss_tracker = keras.metrics.Mean(name="vq_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_loss_tracker, self.vq_loss_tracker]

    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            reconstructions = self.vqvae(x)
            reconstruction_loss = ops.mean((x - reconstructions) ** 2) / self.train_variance
            total_loss = reconstruction_loss + sum(self.vqvae.losses)
        grads = tape.gradient(total_loss, self.vqvae.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.vqvae.trainable_variables, strict=True))
        self.total_loss_tracker.update_state(total_loss)
        self.vq_loss_tracker.update_state(sum(self.vqvae.losses))
        return {"loss": self.total_loss_tracker.result(), "vqvae_loss": self.vq_loss_tracker.result()}


@world_model(lambda: batches(pixels(8, 8, 1)), evaluates=False, predicts=False)
def vq_vae() -> keras.Model:
    model = VQVAETrainer(0.08)
    model.compile(optimizer=adam())
    return model


def coupling(width: int, seed: int) -> keras.Model:
    inputs = keras.Input((width,))
    hidden = layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.l2(0.01))(inputs)
    return keras.Model(inputs, [layers.Dense(width)(hidden), layers.Dense(width, activation="tanh")(hidden)])


class RealNVP(keras.Model):
    """A normalizing flow: its likelihood is its loss, called by `train_step` and by `test_step`."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.masks = [[float(i % 2), float(1 - i % 2)] for i in range(num_layers)]
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.coupling_layers = [coupling(2, i) for i in range(num_layers)]

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]

    def call(self, x: Any, training: bool = True) -> Any:
        log_det = 0.0
        for mask, layer in zip(self.masks, self.coupling_layers, strict=True):
            mask = ops.convert_to_tensor(mask)
            translate, scale = layer(x * mask, training=training)
            scale, translate = scale * (1 - mask), translate * (1 - mask)
            x = mask * x + (1 - mask) * (x * ops.exp(-scale) - translate)
            log_det -= ops.sum(scale, axis=1)
        return x, log_det

    def log_loss(self, x: Any) -> Any:
        y, log_det = self(x)
        return -ops.mean(-0.5 * ops.sum(y**2, axis=1) + log_det)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.log_loss(data)
        g = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(g, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data: Any) -> Any:
        self.loss_tracker.update_state(self.log_loss(data))
        return {"loss": self.loss_tracker.result()}


@world_model(lambda: {**batches(rows(2)), "validation_split": 0.2})
def real_nvp() -> keras.Model:
    model = RealNVP(2)
    model.compile(optimizer=adam())
    return model


class NeRF(keras.Model):
    """Renders rays through a volume; the network is handed to the trainer, the optimizer to its `compile`."""

    def __init__(self, nerf_model: keras.Model) -> None:
        super().__init__()
        self.nerf_model = nerf_model

    def compile(self, optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.optimizer, self.loss_fn = optimizer, loss_fn
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.psnr_metric = keras.metrics.Mean(name="psnr")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.psnr_metric]

    def rendered(self, rays: Any, *, training: bool) -> Any:
        flat, distances = rays
        outputs = self.nerf_model(flat, training=training)
        color, density = ops.sigmoid(outputs[..., :3]), ops.relu(outputs[..., 3])
        delta = ops.concatenate([distances[:, 1:] - distances[:, :-1], ops.ones_like(distances[:, :1])], axis=1)
        alpha = 1.0 - ops.exp(-density * delta)
        transmittance = tf.math.cumprod(1.0 - alpha + 1e-10, axis=1, exclusive=True)
        return ops.sum((alpha * transmittance)[..., None] * color, axis=1)

    def measured(self, images: Any, rgb: Any, loss: Any) -> Any:
        psnr = tf.image.psnr(images[:, None, None, :], rgb[:, None, None, :], max_val=1.0)
        self.loss_tracker.update_state(loss)
        self.psnr_metric.update_state(psnr)
        return {"loss": self.loss_tracker.result(), "psnr": self.psnr_metric.result()}

    def train_step(self, inputs: Any) -> Any:
        images, rays = inputs
        with tf.GradientTape() as tape:
            rgb = self.rendered(rays, training=True)
            loss = self.loss_fn(images, rgb)
        variables = self.nerf_model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self.measured(images, rgb, loss)

    def test_step(self, inputs: Any) -> Any:
        images, rays = inputs
        rgb = self.rendered(rays, training=False)
        return self.measured(images, rgb, self.loss_fn(images, rgb))


def ray_batches() -> dict[str, Any]:
    """Colours, and for each the points of its ray, encoded, with their distances."""
    distances = tf.data.Dataset.from_tensor_slices(tf.sort(pixels(5, seed=3), axis=1))
    rays = tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(rows(5, 6)), distances))
    return {"x": tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(pixels(3)), rays)).batch(8)}


@world_model(ray_batches, predicts=False)
def nerf() -> keras.Model:
    inputs = keras.Input((5, 6))
    x = layers.Dense(8, activation="relu")(inputs)
    x = layers.concatenate([layers.Dense(8, activation="relu")(x), inputs], axis=-1)
    model = NeRF(keras.Model(inputs, layers.Dense(4)(x)))
    model.compile(optimizer=sgd(), loss_fn=keras.losses.MeanSquaredError())
    return model


@world_model(lambda: batches(pixels(6, 6, 1), pixels(12, 12, 1)))
def super_resolution() -> keras.Model:
    """An efficient sub-pixel network, with its own way to report."""
    options = {"activation": "tanh", "kernel_initializer": "orthogonal", "padding": "same"}
    inputs = keras.Input((None, None, 1))
    x = layers.Conv2D(8, 5, **options)(inputs)
    x = layers.Conv2D(4, 3, **options)(x)
    outputs = tf_depth_to_space()(x)
    model = keras.Model(inputs, outputs)
    model.compile(optimizer=adam(), loss=keras.losses.MeanSquaredError())
    return model


def tf_depth_to_space() -> layers.Layer:
    return layers.Lambda(lambda x: tf.nn.depth_to_space(x, 2), output_shape=(None, None, 1))


def moving_frames() -> dict[str, Any]:
    frames = rows(4, 8, 8, 1)
    return batches(frames[:, :-1], frames[:, 1:])


@world_model(moving_frames)
def next_frame() -> keras.Model:
    inp = layers.Input(shape=(None, 8, 8, 1))
    x = layers.ConvLSTM2D(filters=3, kernel_size=(3, 3), padding="same", return_sequences=True, activation="relu")(inp)
    x = layers.Conv3D(filters=1, kernel_size=(3, 3, 3), activation="sigmoid", padding="same")(x)
    model = keras.Model(inp, x)
    model.compile(loss="mse", optimizer=sgd())
    return model


class Diffusion(keras.Model):
    """Learns the noise of a random time, and keeps a moving average of its network; the step returns the bare loss."""

    def __init__(self, *, draws: bool) -> None:
        super().__init__()
        self.draws, self.steps = draws, 5
        self.kept = tf.constant([0.9, 0.7, 0.5, 0.3, 0.1])
        self.network, self.average = self.new_network(), self.new_network()
        self.average.set_weights(self.network.get_weights())

    def new_network(self) -> keras.Model:
        images, time = keras.Input((6, 6, 1)), keras.Input(())
        x = layers.Conv2D(4, 3, padding="same")(images) + layers.Dense(4)(layers.Reshape((1, 1, 1))(time))
        return keras.Model([images, time], layers.Conv2D(1, 3, padding="same")(layers.Activation("silu")(x)))

    def drawn(self, images: Any) -> tuple[Any, Any]:
        """A time for each image and its noise, or what stands for them: something of the image itself."""
        if self.draws:
            count = tf.shape(images)[0]
            return tf.random.uniform((count,), 0, self.steps, tf.int64), tf.random.normal(tf.shape(images))
        return tf.cast(images[:, 0, 0, 0] * self.steps, tf.int64), tf.reverse(images, [1]) - 0.5

    def train_step(self, images: Any) -> Any:
        images = images[0] if isinstance(images, tuple) else images
        time, noise = self.drawn(images)
        with tf.GradientTape() as tape:
            kept = tf.reshape(tf.gather(self.kept, time), (-1, 1, 1, 1))
            mixed = tf.sqrt(kept) * images + tf.sqrt(1 - kept) * noise
            loss = self.loss(noise, self.network([mixed, time], training=True))
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        for weight, average in zip(self.network.weights, self.average.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {"loss": loss}


def diffusion(*, draws: bool) -> keras.Model:
    model = Diffusion(draws=draws)
    model.compile(loss=keras.losses.MeanSquaredError(), optimizer=adam())
    return model


@world_model(
    lambda: batches(pixels(6, 6, 1)), for_replicas=lambda: diffusion(draws=False), evaluates=False, predicts=False
)
def ddpm() -> keras.Model:
    return diffusion(draws=True)
