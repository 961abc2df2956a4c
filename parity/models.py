"""The models of the parity cases: tiny, smooth (so that rounding cannot cross a kink), with named layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras

from tfaccel.parity.case import ParityCase
from tfaccel.parity.datasets import (
    IMAGE_SHAPE,
    MARK,
    NUM_CLASSES,
    NUM_FEATURES,
    NUM_TOKENS,
    VOCABULARY,
    global_batch_size,
)
from tfaccel.parity.overflow_layer import OverflowingGradient
from tfaccel.parity.own_steps import Gan, OwnStepModel
from tfaccel.parity.share_layers import OneHotEmbedding, ShareBatchNormalization, ShareDropout

layers = keras.layers


@dataclass(frozen=True)
class ParityModel:
    """A model of the parity cases.

    Attributes:
        build: `build(case, reference)` returns an uncompiled model; `reference` is True for the one-device reference.
        compile_arguments: returns new losses and metrics for each model.
        fault: why plain Keras cannot be the reference; the reference is then a different, correct model.
        plan_fields: fields of the plan passed to `tfaccel.fit`; empty for no plan.
        optimizers: attributes of the model that hold its optimizers.
        any_row_order: whether its weights depend on the order of the rows in a batch by rounding only.
    """

    build: Callable[[ParityCase, bool], keras.Model]
    compile_arguments: Callable[[ParityCase], dict[str, Any]]
    fault: str = ""
    plan_fields: tuple[tuple[str, Any], ...] = ()
    optimizers: tuple[str, ...] = ("optimizer",)
    any_row_order: bool = True


# --- Parts --------------------------------------------------------------------------------------------------------


def _label_head(case: ParityCase, hidden: Any, inputs: Any) -> Any:
    """Class probabilities in float32."""
    if case.dtype_policy == "mixed_float16":
        hidden = OverflowingGradient(MARK, dtype=case.layer_dtype, name="overflow")([hidden, inputs])
    return layers.Dense(NUM_CLASSES, activation="softmax", dtype="float32", name="label")(hidden)


def _label_loss(case: ParityCase) -> dict[str, Any]:
    metrics = [keras.metrics.SparseCategoricalCrossentropy(name="crossentropy")]
    if case.dtype_policy == "float32":  # in low precision, rounding may flip the predicted class
        metrics.append(keras.metrics.SparseCategoricalAccuracy(name="accuracy"))
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(),
        "metrics": metrics,
        "weighted_metrics": [keras.metrics.SparseCategoricalCrossentropy(name="weighted_crossentropy")],
    }


def _tokens(case: ParityCase, *, dense_gradient: bool = False) -> tuple[Any, Any]:
    """A token input and its embeddings, with a mask if the case uses masks."""
    tokens = keras.Input((NUM_TOKENS,), dtype="int32", name="tokens")
    embedding = OneHotEmbedding if dense_gradient else layers.Embedding
    masked = case.weighting == "masks"
    return tokens, embedding(VOCABULARY, 6, mask_zero=masked, dtype=case.layer_dtype, name="embedding")(tokens)


# --- Models -------------------------------------------------------------------------------------------------------


def _dense(case: ParityCase, reference: bool) -> keras.Model:
    del reference
    x = keras.Input((NUM_FEATURES,), name="features")
    hidden = layers.Dense(12, activation="tanh", dtype=case.layer_dtype, name="first")(x)
    hidden = layers.Dense(8, activation="tanh", dtype=case.layer_dtype, name="second")(hidden)
    return keras.Model(x, _label_head(case, hidden, x))


@keras.saving.register_keras_serializable("tfaccel_parity")
class MeanSquareLoss(keras.layers.Layer):
    """Adds the mean square of its input to the loss."""

    def call(self, inputs: Any) -> Any:
        """Returns `inputs` unchanged."""
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(keras.ops.cast(inputs, "float32"))))
        return inputs


def _penalties(case: ParityCase, reference: bool) -> keras.Model:
    """Regularization losses of weights and activations, and a loss from `add_loss`.

    The layer with the activity regularizer uses float32: Keras cannot sum losses of two dtypes.
    """
    del reference
    x = keras.Input((NUM_FEATURES,), name="features")
    l2 = keras.regularizers.L2
    hidden = layers.Dense(12, activation="tanh", dtype=case.layer_dtype, name="first", kernel_regularizer=l2(0.02))(x)
    hidden = MeanSquareLoss(dtype=case.layer_dtype, name="mean_square")(hidden)
    hidden = layers.Dense(8, activation="tanh", dtype="float32", name="second", activity_regularizer=l2(0.05))(hidden)
    return keras.Model(x, _label_head(case, hidden, x))


def _batch_norm(case: ParityCase, normalization: keras.layers.Layer) -> keras.Model:
    x = keras.Input(IMAGE_SHAPE, name="images")
    hidden = layers.Conv2D(4, 3, use_bias=False, dtype=case.layer_dtype, name="convolution")(x)
    hidden = layers.Activation("tanh", dtype=case.layer_dtype, name="tanh")(normalization(hidden))
    hidden = layers.GlobalAveragePooling2D(dtype=case.layer_dtype, name="pooling")(hidden)
    return keras.Model(x, _label_head(case, hidden, x))


def _batch_norm_by_replica(case: ParityCase, reference: bool) -> keras.Model:
    options = {"momentum": 0.8, "dtype": case.layer_dtype, "name": "normalization"}
    if reference:
        return _batch_norm(case, ShareBatchNormalization(num_shares=case.placement.num_replicas, **options))
    return _batch_norm(case, layers.BatchNormalization(**options))


def _batch_norm_synchronized(case: ParityCase, reference: bool) -> keras.Model:
    options = {"momentum": 0.8, "dtype": case.layer_dtype, "name": "normalization"}
    return _batch_norm(case, layers.BatchNormalization(synchronized=not reference, **options))


def _dropout(case: ParityCase, reference: bool) -> keras.Model:
    x = keras.Input((NUM_FEATURES,), name="features")
    hidden = layers.Dense(12, activation="tanh", dtype=case.layer_dtype, name="first")(x)
    options: dict[str, Any] = {
        "seed": 7,
        "dtype": "float32",
        "name": "dropout",
    }  # float32: the same draws under every policy
    if reference:
        hidden = ShareDropout(0.4, num_shares=case.placement.num_replicas, **options)(hidden)
    else:
        hidden = layers.Dropout(0.4, **options)(hidden)
    hidden = layers.Dense(8, activation="tanh", dtype=case.layer_dtype, name="second")(hidden)
    return keras.Model(x, _label_head(case, hidden, x))


def _lstm(case: ParityCase, reference: bool) -> keras.Model:
    del reference
    tokens, hidden = _tokens(case)
    per_token = case.weighting == "masks"
    hidden = layers.LSTM(8, return_sequences=per_token, dtype=case.layer_dtype, name="lstm")(hidden)
    return keras.Model(tokens, _label_head(case, hidden, tokens))


def _stateful_lstm(case: ParityCase, reference: bool) -> keras.Model:
    """Each replica keeps the states of its own rows, so it is built for its share of the global batch."""
    num_replicas = case.placement.num_replicas
    num_rows = global_batch_size(num_replicas) // (1 if reference else num_replicas)
    tokens = keras.Input(batch_shape=(num_rows, NUM_TOKENS), dtype="int32", name="tokens")
    hidden = layers.Embedding(VOCABULARY, 6, dtype=case.layer_dtype, name="embedding")(tokens)
    hidden = layers.LSTM(8, stateful=True, dtype=case.layer_dtype, name="lstm")(hidden)
    return keras.Model(tokens, _label_head(case, hidden, tokens))


def _attention(case: ParityCase, reference: bool) -> keras.Model:
    del reference
    tokens, embedded = _tokens(case)
    # No biases: the softmax does not depend on the key's bias, so its gradient would be pure rounding error.
    attention = layers.MultiHeadAttention(2, 4, use_bias=False, dtype=case.layer_dtype, name="attention")
    hidden = layers.Add(dtype=case.layer_dtype, name="residual")([embedded, attention(embedded, embedded)])
    hidden = layers.LayerNormalization(dtype=case.layer_dtype, name="normalization")(hidden)
    if case.weighting != "masks":
        hidden = layers.GlobalAveragePooling1D(dtype=case.layer_dtype, name="pooling")(hidden)
    return keras.Model(tokens, _label_head(case, hidden, tokens))


def _embedding(case: ParityCase, dense_gradient: bool) -> keras.Model:
    tokens, hidden = _tokens(case, dense_gradient=dense_gradient)
    if case.weighting != "masks":
        hidden = layers.GlobalAveragePooling1D(dtype=case.layer_dtype, name="pooling")(hidden)
    hidden = layers.Dense(8, activation="tanh", dtype=case.layer_dtype, name="first")(hidden)
    return keras.Model(tokens, _label_head(case, hidden, tokens))


def _two_outputs(case: ParityCase, reference: bool) -> keras.Model:
    del reference
    left, right = keras.Input((NUM_FEATURES,), name="left"), keras.Input((NUM_FEATURES,), name="right")
    hidden = layers.Concatenate(dtype=case.layer_dtype, name="both")([left, right])
    hidden = layers.Dense(10, activation="tanh", dtype=case.layer_dtype, name="first")(hidden)
    value = layers.Dense(2, dtype="float32", name="value")(hidden)
    outputs = {"label": _label_head(case, hidden, left), "value": value}
    return keras.Model({"left": left, "right": right}, outputs)


def _two_losses(case: ParityCase) -> dict[str, Any]:
    """One loss averaged by the sum of its weights, and one that is a sum."""
    del case
    return {
        "loss": {
            "label": keras.losses.SparseCategoricalCrossentropy(reduction="mean_with_sample_weight"),
            "value": keras.losses.MeanSquaredError(reduction="sum"),
        },
        "loss_weights": {"label": 1.0, "value": 0.02},
        "weighted_metrics": {"value": [keras.metrics.RootMeanSquaredError(name="rmse")]},
    }


def _own_train_step(case: ParityCase, reference: bool) -> keras.Model:
    plain = _dense(case, reference)
    return OwnStepModel(plain.inputs, plain.outputs[0])


def _gan(case: ParityCase, reference: bool) -> keras.Model:
    del reference
    return Gan(case)


_DROPOUT_FAULT = "plain Keras draws the same mask on every replica; compared with one device that draws N masks"
_NORMALIZATION_FAULT = (
    "cannot match one device: statistics are not synchronized, and plain Keras also lets the replicas' moving "
    "statistics diverge; compared with one device that normalizes each replica's rows separately and averages the "
    "statistics at the end of each epoch"
)
_EMBEDDING_FAULT = (
    "plain Keras does not sum the gradients of repeated rows; compared with a matrix product, whose gradient is dense"
)

MODELS: dict[str, ParityModel] = {
    "dense": ParityModel(_dense, _label_loss),
    "penalties": ParityModel(_penalties, _label_loss),
    "batch_norm": ParityModel(_batch_norm_synchronized, _label_loss),
    "batch_norm_by_replica": ParityModel(
        _batch_norm_by_replica, _label_loss, _NORMALIZATION_FAULT, any_row_order=False
    ),
    "dropout": ParityModel(_dropout, _label_loss, _DROPOUT_FAULT, any_row_order=False),
    "lstm": ParityModel(_lstm, _label_loss),
    "stateful_lstm": ParityModel(_stateful_lstm, _label_loss, any_row_order=False),
    "attention": ParityModel(_attention, _label_loss),
    "embedding": ParityModel(lambda case, reference: _embedding(case, False), _label_loss),
    "embedding_summed": ParityModel(
        _embedding, _label_loss, _EMBEDDING_FAULT, plan_fields=(("sum_duplicate_indices", True),)
    ),
    "embedding_rows": ParityModel(
        _embedding, _label_loss, _EMBEDDING_FAULT, plan_fields=(("embedding_updates", "rows"),)
    ),
    "embedding_host": ParityModel(
        _embedding,
        _label_loss,
        _EMBEDDING_FAULT,
        plan_fields=(("embedding_updates", "rows"), ("embeddings_on", "host")),
    ),
    "two_outputs": ParityModel(_two_outputs, _two_losses),
    "own_train_step": ParityModel(_own_train_step, _label_loss),
    "gan": ParityModel(_gan, lambda case: {}, optimizers=("generator_optimizer", "discriminator_optimizer")),
}
