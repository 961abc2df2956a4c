"""Vision beyond classes: segmentation, detection, points, bags of patches, pictures compared with pictures."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, image_classes, pixels, rows, sgd, whole_numbers, world_model


class PetImages(keras.utils.PyDataset):
    """Images with a class and a weight for each pixel."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        part = slice(8 * index, 8 * index + 8)
        masks = whole_numbers(8, 8, 1, below=3)[part]
        return pixels(8, 8, 3)[part], masks, (1.0 + masks).astype("float32")


@world_model(lambda: {"x": PetImages()})
def unet() -> keras.Model:
    inputs = keras.Input(shape=(8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    previous = x = layers.Activation("relu")(layers.BatchNormalization(synchronized=True)(x))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(layers.SeparableConv2D(6, 3, padding="same")(x))
    x = layers.UpSampling2D(2)(layers.Conv2DTranspose(4, 3, padding="same")(x))
    x = layers.concatenate([x, previous])
    model = keras.Model(inputs, layers.Conv2D(3, 3, activation="softmax", padding="same")(x))
    model.compile(optimizer=sgd(), loss="sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


@world_model(lambda: batches(pixels(8, 8, 3), whole_numbers(8, 8, below=3)))
def mean_iou() -> keras.Model:
    """Segmentation with a metric that is a matrix of counts."""
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3, padding="same"), layers.Conv2D(3, 1)])
    metrics = [keras.metrics.MeanIoU(3, sparse_y_pred=False), "accuracy"]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=adam(), loss=loss, metrics=metrics)
    return model


class RetinaNetLoss(keras.losses.Loss):
    """Focal loss and smooth L1, each over the anchors of one image, divided by the number that hold an object."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(name="RetinaNetLoss")
        self.num_classes = num_classes

    def call(self, y_true: Any, y_pred: Any) -> Any:
        positive = ops.cast(y_true[:, :, 4] > -1.0, "float32")
        classes = ops.one_hot(ops.cast(y_true[:, :, 4], "int32"), self.num_classes)
        logits = y_pred[:, :, 4:]
        cross_entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=classes, logits=logits)
        probability = ops.where(classes == 1.0, ops.sigmoid(logits), 1 - ops.sigmoid(logits))
        class_loss = ops.sum(0.25 * (1.0 - probability) ** 2 * cross_entropy, axis=-1)
        distance = ops.abs(y_true[:, :, :4] - y_pred[:, :, :4])
        box_loss = ops.sum(ops.where(distance < 1.0, 0.5 * distance**2, distance - 0.5), axis=-1)
        normalizer = ops.sum(positive, axis=-1)
        return tf.math.divide_no_nan(ops.sum(class_loss + positive * box_loss, axis=-1), normalizer)


class RetinaNet(keras.Model):
    def __init__(self, num_classes: int) -> None:
        super().__init__(name="RetinaNet")
        self.backbone = keras.Sequential([layers.Conv2D(4, 3, strides=2, activation="relu", padding="same")])
        prior = keras.initializers.Constant(-2.0)
        self.cls_head = layers.Conv2D(num_classes, 3, padding="same", bias_initializer=prior)
        self.box_head = layers.Conv2D(4, 3, padding="same")
        self.num_classes = num_classes

    def call(self, image: Any, training: bool = False) -> Any:
        features = self.backbone(image, training=training)
        boxes = ops.reshape(self.box_head(features), [ops.shape(image)[0], -1, 4])
        classes = ops.reshape(self.cls_head(features), [ops.shape(image)[0], -1, self.num_classes])
        return ops.concatenate([boxes, classes], axis=-1)


def boxes_and_classes() -> dict[str, Any]:
    labels = np.concatenate([rows(16, 4, seed=3), whole_numbers(16, 1, below=4) - 1.0], axis=-1)
    return batches(pixels(8, 8, 3), labels.astype("float32"))


@world_model(boxes_and_classes)
def retina_net() -> keras.Model:
    model = RetinaNet(3)
    optimizer = keras.optimizers.SGD(learning_rate=0.01, momentum=0.9, clipnorm=10.0)
    model.compile(loss=RetinaNetLoss(3), optimizer=optimizer)
    return model


class MILAttentionLayer(layers.Layer):
    """Weights of the instances of a bag, by gated attention."""

    def __init__(self, weight_params_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.v, self.u = (layers.Dense(weight_params_dim, activation=a, use_bias=False) for a in ("tanh", "sigmoid"))
        self.w = layers.Dense(1, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01))

    def call(self, inputs: Any) -> Any:
        instances = [self.w(self.v(instance) * self.u(instance)) for instance in inputs]
        stack = ops.softmax(ops.stack(instances), axis=0)
        return [stack[i] for i in range(len(inputs))]


@world_model(lambda: {"x": [pixels(6, 6, seed=s) for s in range(3)], "y": whole_numbers(below=2), "batch_size": 1})
def attention_mil() -> keras.Model:
    """Bags of three instances, one bag a batch: fewer rows than replicas."""
    shared = layers.Dense(8, activation="relu")
    inputs = [layers.Input((6, 6)) for _ in range(3)]
    embeddings = [shared(layers.Flatten()(one)) for one in inputs]
    alpha = MILAttentionLayer(4, name="alpha")(embeddings)
    multiplied = [layers.multiply([alpha[i], embeddings[i]]) for i in range(3)]
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.concatenate(multiplied, axis=1)))
    model.compile(optimizer=sgd(0.01), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class OrthogonalRegularizer(keras.regularizers.Regularizer):
    """A penalty on an activation, the transform of each cloud of points: a sum over the rows."""

    def __init__(self, num_features: int) -> None:
        self.num_features = num_features
        self.eye = ops.eye(num_features)

    def __call__(self, x: Any) -> Any:
        x = ops.reshape(x, (-1, self.num_features, self.num_features))
        xxt = ops.reshape(ops.matmul(x, ops.transpose(x, (0, 2, 1))), (-1, self.num_features, self.num_features))
        return ops.sum(0.001 * ops.square(xxt - self.eye))


def dense_bn(x: Any, filters: int) -> Any:
    x = layers.BatchNormalization(momentum=0.0, synchronized=True)(layers.Dense(filters)(x))
    return layers.Activation("relu")(x)


@world_model(lambda: batches(rows(6, 3), whole_numbers(below=3)))
def point_net() -> keras.Model:
    inputs = keras.Input(shape=(6, 3))
    x = layers.GlobalMaxPooling1D()(dense_bn(inputs, 8))
    transform = layers.Dense(
        9,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(np.eye(3).flatten()),
        activity_regularizer=OrthogonalRegularizer(3),
    )(x)
    x = layers.Dot(axes=(2, 1))([inputs, layers.Reshape((3, 3))(transform)])
    x = layers.GlobalMaxPooling1D()(dense_bn(x, 8))
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x), name="pointnet")
    metrics = ["sparse_categorical_accuracy"]
    model.compile(loss="sparse_categorical_crossentropy", optimizer=adam(), metrics=metrics)
    return model


class DistanceLayer(layers.Layer):
    def call(self, anchor: Any, positive: Any, negative: Any) -> Any:
        return ops.sum((anchor - positive) ** 2, -1), ops.sum((anchor - negative) ** 2, -1)


class SiameseModel(keras.Model):
    """Triplets through one embedding, with steps and a loss tracker of its own."""

    def __init__(self, siamese_network: keras.Model, margin: float = 0.5) -> None:
        super().__init__()
        self.siamese_network, self.margin = siamese_network, margin
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        return self.siamese_network(inputs)

    def _compute_loss(self, data: Any) -> Any:
        ap_distance, an_distance = self.siamese_network(data)
        return ops.maximum(ap_distance - an_distance + self.margin, 0.0)

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self._compute_loss(data)
        gradients = tape.gradient(loss, self.siamese_network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.siamese_network.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data: Any) -> Any:
        self.loss_tracker.update_state(self._compute_loss(data))
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker]


def triplets() -> dict[str, Any]:
    three = tuple(tf.data.Dataset.from_tensor_slices(pixels(6, 6, 1, seed=s)) for s in range(3))
    return {"x": tf.data.Dataset.zip(three).batch(8).map(lambda *images: (images,))}


# The loss of a step is a vector here: its gradient is that of a sum over the rows of the batch.
@world_model(triplets)
def siamese_triplets() -> keras.Model:
    embedding = keras.Sequential([layers.Flatten(), layers.Dense(6, activation="relu"), layers.Dense(4)])
    names = ("anchor", "positive", "negative")
    inputs = [layers.Input(name=name, shape=(6, 6, 1)) for name in names]
    distances = DistanceLayer()(*[embedding(one) for one in inputs])
    warnings.filterwarnings("ignore", message="The structure of `inputs` doesn't match")  # a tuple in place of a list
    model = SiameseModel(keras.Model(inputs=inputs, outputs=distances))
    model.compile(optimizer=sgd(0.01))
    return model


def contrastive_loss(y_true: Any, y_pred: Any) -> Any:
    return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * ops.square(ops.maximum(1 - y_pred, 0)))


@world_model(lambda: batches([pixels(6, 6, 1, seed=s) for s in (0, 1)], pixels(1, seed=5).round()))
def siamese_contrastive() -> keras.Model:
    """Pairs of images; the loss function takes the mean of the batch by itself."""
    embedding = keras.Sequential([layers.Flatten(), layers.Dense(6, activation="tanh"), layers.Dense(4)])
    inputs = [layers.Input((6, 6, 1)) for _ in range(2)]
    towers = [embedding(one) for one in inputs]
    distance = layers.Lambda(
        lambda v: ops.sqrt(ops.maximum(ops.sum(ops.square(v[0] - v[1]), axis=1, keepdims=True), 1e-7)),
        output_shape=(1,),
    )(towers)
    output = layers.Dense(1, activation="sigmoid")(layers.BatchNormalization(synchronized=True)(distance))
    siamese = keras.Model(inputs=inputs, outputs=output)
    siamese.compile(loss=contrastive_loss, optimizer=sgd(), metrics=["accuracy"])
    return siamese


class SupervisedContrastiveLoss(keras.losses.Loss):
    """Compares every row of the batch with every other."""

    def __call__(self, labels: Any, feature_vectors: Any, sample_weight: Any = None) -> Any:
        vectors = ops.normalize(feature_vectors, axis=1)
        logits = ops.matmul(vectors, ops.transpose(vectors)) / 0.5
        same = ops.cast(ops.equal(ops.reshape(labels, (-1, 1)), ops.reshape(labels, (1, -1))), "float32")
        return ops.mean(ops.categorical_crossentropy(same / ops.sum(same, 1, keepdims=True), logits, from_logits=True))


@world_model(lambda: image_classes(8))
def supervised_contrastive() -> keras.Model:
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(8, "relu"), layers.Dense(4)])
    model.compile(optimizer=adam(), loss=SupervisedContrastiveLoss(name="supervised_contrastive"))
    return model
