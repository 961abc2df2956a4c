"""Texts: classification, translation, language models, sequences labelled token by token."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from world import adam, batches, rows, sentences, sgd, whole_numbers, world_model

VOCABULARY = 12


def reviews() -> dict[str, Any]:
    validation = sentences(6, seed=9), whole_numbers(below=2, seed=8)
    return {**batches(sentences(6), whole_numbers(below=2)), "validation_data": validation}


@world_model(reviews)
def bidirectional_lstm() -> keras.Model:
    inputs = keras.Input(shape=(None,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 4)(inputs)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(4))(x)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer=sgd(), loss="binary_crossentropy", metrics=["accuracy"])
    return model


class TransformerBlock(layers.Layer):
    def __init__(self, width: int, num_heads: int, *, causal: bool = False, rate: float = 0.0) -> None:
        super().__init__()
        self.supports_masking = True
        self.causal = causal
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=width // num_heads)
        self.ffn = keras.Sequential([layers.Dense(2 * width, activation="relu"), layers.Dense(width)])
        self.norm1, self.norm2 = layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)
        self.dropout = layers.Dropout(rate)

    def call(self, inputs: Any, training: bool = False) -> Any:
        attended = self.att(inputs, inputs, use_causal_mask=self.causal)
        out = self.norm1(inputs + self.dropout(attended, training=training))
        return self.norm2(out + self.ffn(out))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen: int, width: int, *, mask_zero: bool = False) -> None:
        super().__init__()
        self.token_emb = layers.Embedding(VOCABULARY, width, mask_zero=mask_zero)
        self.pos_emb = layers.Embedding(maxlen, width)

    def call(self, x: Any) -> Any:
        positions = ops.arange(0, ops.shape(x)[-1], 1)
        return self.token_emb(x) + self.pos_emb(positions)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return self.token_emb.compute_mask(inputs)


def text_classifier(rate: float) -> keras.Model:
    inputs = layers.Input(shape=(6,))
    x = TransformerBlock(4, 2, rate=rate)(TokenAndPositionEmbedding(6, 4)(inputs))
    x = layers.Dropout(rate)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    model.compile(optimizer=adam(), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@world_model(lambda: batches(sentences(6), whole_numbers(below=2)), for_replicas=lambda: text_classifier(0.0))
def text_transformer() -> keras.Model:
    return text_classifier(0.1)


WORDS = ("the", "film", "was", "good", "bad", "dull", "great", "plot")


def raw_sentences() -> dict[str, Any]:
    texts = [" ".join(WORDS[i] for i in line) for line in whole_numbers(5, below=len(WORDS))]
    return {"x": tf.data.Dataset.from_tensor_slices((texts, whole_numbers(below=2))).batch(8)}


@world_model(raw_sentences)
def text_from_scratch() -> keras.Model:
    """Strings go into the model, whose first layer makes tokens of them."""
    vectorize = layers.TextVectorization(max_tokens=10, output_sequence_length=5, vocabulary=list(WORDS))
    inputs = keras.Input(shape=(), dtype="string")
    x = layers.Embedding(len(WORDS) + 2, 4)(vectorize(inputs))
    x = layers.Conv1D(4, 3, padding="valid", activation="relu")(x)
    x = layers.Dense(1, activation="sigmoid")(layers.GlobalMaxPooling1D()(x))
    model = keras.Model(inputs, x)
    model.compile(loss="binary_crossentropy", optimizer=adam(), metrics=["accuracy"])
    return model


@world_model(
    lambda: batches(
        [np.eye(VOCABULARY, dtype="float32")[sentences(5)], np.eye(VOCABULARY, dtype="float32")[sentences(6, seed=4)]],
        np.eye(VOCABULARY, dtype="float32")[sentences(6, seed=5)],
    )
)
def lstm_translation() -> keras.Model:
    """Teacher forcing by characters: the encoder's states begin the decoder."""
    encoder_inputs = keras.Input(shape=(None, VOCABULARY))
    _, state_h, state_c = layers.LSTM(6, return_state=True)(encoder_inputs)
    decoder_inputs = keras.Input(shape=(None, VOCABULARY))
    decoder = layers.LSTM(6, return_sequences=True, return_state=True)
    decoder_outputs, _, _ = decoder(decoder_inputs, initial_state=[state_h, state_c])
    decoder_outputs = layers.Dense(VOCABULARY, activation="softmax")(decoder_outputs)
    model = keras.Model([encoder_inputs, decoder_inputs], decoder_outputs)
    model.compile(optimizer=sgd(), loss="categorical_crossentropy", metrics=["accuracy"])
    return model


class TransformerDecoder(layers.Layer):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_1 = layers.MultiHeadAttention(num_heads=1, key_dim=width)
        self.attention_2 = layers.MultiHeadAttention(num_heads=1, key_dim=width)
        self.dense_proj = keras.Sequential([layers.Dense(width, activation="relu"), layers.Dense(width)])
        self.add, self.norm = layers.Add(), layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs: Any, mask: Any = None) -> Any:
        inputs, encoder_outputs = inputs
        inputs_mask, encoder_mask = mask if mask is not None else (None, None)
        out_1 = self.attention_1(inputs, inputs, inputs, query_mask=inputs_mask, use_causal_mask=True)
        out_1 = self.norm(self.add([inputs, out_1]))
        out_2 = self.attention_2(out_1, encoder_outputs, encoder_outputs, query_mask=inputs_mask, key_mask=encoder_mask)
        out_2 = self.norm(self.add([out_1, out_2]))
        return self.norm(self.add([out_2, self.dense_proj(out_2)]))


def sentence_pairs() -> dict[str, Any]:
    english, spanish = sentences(5), sentences(6, seed=4)
    pairs = {"encoder_inputs": english, "decoder_inputs": spanish[:, :-1]}, spanish[:, 1:]
    return {"x": tf.data.Dataset.from_tensor_slices(pairs).batch(8).prefetch(2).cache()}


@world_model(sentence_pairs)
def transformer_translation() -> keras.Model:
    """Dicts of tokens, masks from the embeddings through encoder and decoder to the loss."""
    encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
    encoded = TransformerBlock(4, 1)(TokenAndPositionEmbedding(6, 4, mask_zero=True)(encoder_inputs))
    decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
    x = TokenAndPositionEmbedding(6, 4, mask_zero=True)(decoder_inputs)
    x = TransformerDecoder(4)([x, encoded])
    outputs = layers.Dense(VOCABULARY, activation="softmax")(x)
    transformer = keras.Model({"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs}, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    transformer.compile(adam(), loss=loss, metrics=["accuracy"])
    return transformer


class MaskedLanguageModel(keras.Model):
    """A functional model with steps of its own: losses by token, weighted by what was masked."""

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        losses = keras.losses.sparse_categorical_crossentropy(y, y_pred)
        return ops.mean(losses * sample_weight)

    def train_step(self, inputs: Any) -> Any:
        features, labels, sample_weight = inputs if len(inputs) == 3 else (*inputs, None)
        with tf.GradientTape() as tape:
            predictions = self(features, training=True)
            loss = self.compute_loss(y=labels, y_pred=predictions, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, predictions, sample_weight)
        return {m.name: m.result() for m in self.metrics}


def masked_sentences() -> dict[str, Any]:
    tokens = whole_numbers(6, below=VOCABULARY - 1) + 1
    masked = np.random.default_rng(5).uniform(size=tokens.shape) < 0.3
    return batches(np.where(masked, 0, tokens), tokens, masked.astype("float32"))


@world_model(masked_sentences, evaluates=False)
def masked_language_model() -> keras.Model:
    inputs = layers.Input((6,), dtype="int64")
    x = TransformerBlock(4, 2)(TokenAndPositionEmbedding(6, 4)(inputs))
    model = MaskedLanguageModel(inputs, layers.Dense(VOCABULARY, activation="softmax")(x))
    model.compile(optimizer=adam(), weighted_metrics=["accuracy"])
    return model


class SummedTokenLosses(keras.Model):
    """Keras's own train step, with a loss that is summed over all tokens, and one tracker for all that is logged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.each = keras.losses.SparseCategoricalCrossentropy(reduction=None)
        self.tracker = keras.metrics.Mean(name="loss")

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        losses = self.each(y, y_pred, sample_weight)
        self.tracker.update_state(losses, sample_weight=sample_weight)
        return ops.sum(losses)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


@world_model(masked_sentences)
def masked_language_modeling() -> keras.Model:
    inputs = layers.Input((6,), dtype="int64")
    x = TransformerBlock(4, 2)(TokenAndPositionEmbedding(6, 4)(inputs))
    model = SummedTokenLosses(inputs, layers.Dense(VOCABULARY, activation="softmax")(x))
    model.compile(optimizer=adam())
    return model


def next_tokens() -> dict[str, Any]:
    texts = sentences(7)
    return {"x": tf.data.Dataset.from_tensor_slices((texts[:, :-1], texts[:, 1:])).batch(8)}


@world_model(next_tokens)
def causal_language_model() -> keras.Model:
    """A miniature GPT with two outputs, of which one has no loss."""
    inputs = layers.Input(shape=(6,), dtype="int32")
    x = TransformerBlock(4, 2, causal=True)(TokenAndPositionEmbedding(6, 4)(inputs))
    model = keras.Model(inputs=inputs, outputs=[layers.Dense(VOCABULARY)(x), x])
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adam(), loss=[loss_fn, None])
    return model


class NonPaddingTokenLoss(keras.losses.Loss):
    """The mean over all tokens of the batch that are no padding: its denominator couples the rows."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        mask = ops.cast(y_true > 0, "float32")
        return ops.sum(loss * mask) / ops.sum(mask)


@world_model(lambda: batches(sentences(6), sentences(6, seed=7) // 3))
def named_entities() -> keras.Model:
    model = keras.Sequential([TokenAndPositionEmbedding(6, 4), TransformerBlock(4, 2), layers.Dense(4, "softmax")])
    model.compile(optimizer=adam(), loss=NonPaddingTokenLoss(reduction="none", name="non_padding"))
    return model


@world_model(lambda: batches(rows(3, 5), rows(1)))
def sentence_pairs_by_features() -> keras.Model:
    """Siamese sentence encoder on features: one encoder, called on both halves of a row."""
    inputs = keras.Input((3, 5))
    encoder = keras.Sequential([layers.GRU(4), layers.UnitNormalization()])
    similarity = layers.Dot(axes=1)([encoder(inputs), encoder(layers.Permute((1, 2))(inputs) * 0.5)])
    model = keras.Model(inputs, similarity)
    model.compile(optimizer=sgd(), loss="mse", metrics=[keras.metrics.CosineSimilarity()])
    return model
